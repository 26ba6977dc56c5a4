//! Runs a test program on a separate file system, as root or as another user.
//!
//! # Model
//!
//! cargo calls `xtask on KIND [--as USER] PROGRAM ARGUMENTS` as the runner of test programs. An image is made and
//! mounted, the program is copied into it, since other users may not reach the build's folder, and run with
//! `FOLIOCACHE_TEST_DIR`. Then everything is removed. The next run removes the remains of a killed one.

use std::fs::{self, File, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Bytes of an image, sparse. XFS takes no less than 300 MiB.
const IMAGE: u64 = 1 << 30;

/// The unprivileged user, `nobody`.
pub(crate) const OTHER: &str = "65534";

/// The descriptors of that user: the usual soft limit, and no right to more.
const DESCRIPTORS: &str = "--nofile=1024:1024";

/// The program, and where to run it.
#[derive(Debug, PartialEq, Eq)]
struct Request {
    kind: String,
    user: Option<String>,
    program: PathBuf,
    arguments: Vec<String>,
}

fn parse(arguments: &[String]) -> Result<Request, String> {
    const USAGE: &str = "on KIND [--as USER] PROGRAM ARGUMENTS";
    let mut rest = arguments.iter().map(String::as_str);
    let kind = rest.next().ok_or(USAGE)?;
    if !["ext4", "xfs"].contains(&kind) {
        return Err(format!(
            "there is no test file system `{kind}`: ext4 or xfs"
        ));
    }
    let mut program = rest.next().ok_or(USAGE)?;
    let mut user = None;
    if program == "--as" {
        user = Some(rest.next().ok_or(USAGE)?.to_owned());
        program = rest.next().ok_or(USAGE)?;
    }
    Ok(Request {
        kind: kind.to_owned(),
        user,
        program: program.into(),
        arguments: rest.map(str::to_owned).collect(),
    })
}

/// Whether the program succeeded.
pub(crate) fn run(arguments: &[String], folder: &Path) -> Result<bool, String> {
    let request = parse(arguments)?;
    remove_left_behind(folder);
    let made = Mounted::new(&request.kind, folder)?;
    let program = made.top.join("program");
    fs::copy(&request.program, &program).map_err(|error| format!("{error}"))?;
    let mut command = match &request.user {
        None => Command::new(&program),
        Some(user) => {
            let mut command = Command::new("prlimit");
            command
                .args([DESCRIPTORS, "setpriv"])
                .args(["--reuid", user, "--regid", user, "--clear-groups"])
                .arg(&program);
            let missing = std::env::var("FOLIOCACHE_MISSING").unwrap_or_default();
            let missing = format!("{missing},root,userfaultfd");
            command.env("FOLIOCACHE_MISSING", missing.trim_start_matches(','));
            command
        }
    };
    command.args(&request.arguments);
    command.env("FOLIOCACHE_TEST_DIR", &made.top);
    let status = command.status();
    status
        .map(|status| status.success())
        .map_err(|error| format!("{}: {error}", program.display()))
}

/// A file system in a file, until this is dropped.
struct Mounted {
    folder: PathBuf,
    top: PathBuf,
}

impl Mounted {
    fn new(kind: &str, folder: &Path) -> Result<Mounted, String> {
        let folder = folder.join(format!("on-{}", std::process::id()));
        let made = Mounted {
            top: folder.join("top"),
            folder,
        };
        let failed = |error| format!("{}: {error}", made.folder.display());
        fs::create_dir_all(&made.top).map_err(failed)?;
        let image = made.folder.join("image");
        File::create(&image)
            .and_then(|image| image.set_len(IMAGE))
            .map_err(failed)?;
        call(Command::new(format!("mkfs.{kind}")).arg("-q").arg(&image))?;
        call(
            Command::new("mount")
                .args(["-o", "loop"])
                .arg(&image)
                .arg(&made.top),
        )?;
        fs::set_permissions(&made.top, Permissions::from_mode(0o1777)).map_err(failed)?;
        Ok(made)
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        remove(&self.folder);
    }
}

/// Unmounts and removes, as far as there is something.
fn remove(folder: &Path) {
    let top = folder.join("top");
    for lazily in [&[][..], &["-l"]] {
        let mut command = Command::new("umount");
        command.args(lazily).arg(&top).stderr(Stdio::null());
        if command.status().is_ok_and(|status| status.success()) {
            break;
        }
    }
    // Not the files of a file system that is still there.
    if fs::remove_dir(&top).is_ok() {
        let _ = fs::remove_dir_all(folder);
    }
}

fn remove_left_behind(folder: &Path) {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let owner = name.to_str().and_then(|name| name.strip_prefix("on-"));
        if owner.is_some_and(|pid| !Path::new("/proc").join(pid).exists()) {
            remove(&entry.path());
        }
    }
}

fn call(command: &mut Command) -> Result<(), String> {
    let name = command.get_program().to_string_lossy().into_owned();
    match command.output() {
        Ok(out) if out.status.success() => Ok(()),
        Ok(out) => {
            let error = String::from_utf8_lossy(&out.stderr);
            Err(format!("{name}: {}", error.trim()))
        }
        Err(error) => Err(format!("{name}: {error}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(arguments: &[&str]) -> Result<Request, String> {
        parse(&crate::owned(arguments))
    }

    #[test]
    fn file_system_user_and_program_are_parsed() {
        let root = request(&["xfs", "program", "--nocapture"]).unwrap();
        assert_eq!(root.user, None);
        assert_eq!(root.arguments, ["--nocapture"]);
        let other = request(&["ext4", "--as", OTHER, "program"]).unwrap();
        assert_eq!(other.user.as_deref(), Some(OTHER));
        assert_eq!(other.program, Path::new("program"));
        for bad in [
            &[][..],
            &["xfs"],
            &["ntfs", "program"],
            &["xfs", "--as", "7"],
        ] {
            assert!(request(bad).is_err(), "{bad:?}");
        }
    }
}
