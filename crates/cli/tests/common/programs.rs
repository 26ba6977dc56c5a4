//! Programs of others, which run as another user than root.

use std::path::Path;
use std::process::Command;

/// The user `nobody`, for programs without privilege.
pub(crate) const USER: &str = "65534";

/// Installs packages if possible; otherwise prints which are missing.
pub(crate) fn installed(program: &str, packages: &[&str]) -> bool {
    let there = || {
        let found = Command::new("sh")
            .args(["-c", &format!("command -v {program}")])
            .output();
        found.is_ok_and(|found| found.status.success())
    };
    if !there() {
        let mut apt = Command::new("apt-get");
        let _ = apt
            .args(["install", "-y", "--no-install-recommends"])
            .args(packages)
            .output();
    }
    let there = there();
    if !there {
        eprintln!("SKIPPED: there is no {program}, and apt-get cannot install {packages:?}");
    }
    there
}

/// A command of the other user in `place`, which belongs to it.
pub(crate) fn by_user(place: &Path, program: &str) -> Command {
    let mut command = Command::new("setpriv");
    command.args(["--reuid", USER, "--regid", USER, "--clear-groups", program]);
    command.current_dir(place).env("HOME", place);
    command
}
