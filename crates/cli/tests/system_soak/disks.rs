//! Two file systems, made for the soak and removed after it: ext4 and XFS on loop devices.
//!
//! # Model
//!
//! A file system is an image in a folder of this process, on a loop device that ends with the mount. The next run
//! removes the remains of a killed one. Without `mkfs` the soak runs on the machine's disk and a tmpfs, and says
//! so.

use crate::work::{Context, Done};
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Bytes of an image, sparse. XFS takes no less than 300 MiB.
const IMAGE: u64 = 512 << 20;

/// How our folders begin; the process number follows.
const PREFIX: &str = "foliocache-soak-";

/// A file system.
pub(crate) struct Disk {
    pub(crate) kind: String,
    pub(crate) top: PathBuf,
    folder: PathBuf,
    mounted: bool,
}

fn call(program: &str, arguments: &[&str]) -> Done {
    let output = Command::new(program).args(arguments).output();
    let output = output.context(|| program.to_owned())?;
    match output.status.success() {
        true => Ok(()),
        false => Err(format!(
            "{program} {arguments:?}: {}",
            String::from_utf8_lossy(&output.stderr).trim()
        )),
    }
}

/// The two file systems, below `parent`.
pub(crate) fn make(parent: &Path) -> Done<Vec<Disk>> {
    remove_left_behind(parent);
    remove_left_behind(Path::new("/dev/shm"));
    let missing = std::env::var("FOLIOCACHE_MISSING").unwrap_or_default();
    if missing.split(',').any(|name| name == "mkfs") {
        println!("SKIPPED: there is no mkfs: the soak runs on the machine's disk and a tmpfs");
        return Ok(vec![
            plain("disk", parent)?,
            plain("tmpfs", Path::new("/dev/shm"))?,
        ]);
    }
    Ok(vec![on_loop("ext4", parent)?, on_loop("xfs", parent)?])
}

fn folder(kind: &str, parent: &Path) -> Done<PathBuf> {
    let folder = parent.join(format!("{PREFIX}{}-{kind}", std::process::id()));
    let top = folder.join("top");
    fs::create_dir_all(&top).context(|| format!("make {}", top.display()))?;
    Ok(folder)
}

fn plain(kind: &str, parent: &Path) -> Done<Disk> {
    let folder = folder(kind, parent)?;
    Ok(Disk {
        kind: kind.to_owned(),
        top: folder.join("top"),
        folder,
        mounted: false,
    })
}

fn on_loop(kind: &str, parent: &Path) -> Done<Disk> {
    let mut disk = plain(kind, parent)?;
    let image = disk.folder.join("image");
    let made = File::create(&image).and_then(|file| file.set_len(IMAGE));
    made.context(|| format!("make {}", image.display()))?;
    let (image, top) = (image.to_string_lossy(), disk.top.to_string_lossy());
    call(&format!("mkfs.{kind}"), &["-q", &image])?;
    call("mount", &["-o", "loop,discard", &image, &top])?;
    disk.mounted = true;
    Ok(disk)
}

impl Disk {
    /// The image, if it has one.
    pub(crate) fn image(&self) -> Option<PathBuf> {
        let image = self.folder.join("image");
        image.exists().then_some(image)
    }

    /// Unmounts it. Fails if a file is still open in it, which must not be the case at the end.
    pub(crate) fn unmount(&mut self) -> Done {
        if self.mounted {
            call("umount", &[&self.top.to_string_lossy()])?;
            self.mounted = false;
        }
        Ok(())
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        remove(&self.folder);
    }
}

/// Unmounts and removes, as far as there is something.
fn remove(folder: &Path) {
    let top = folder.join("top");
    let points = [folder.join("mount"), top];
    for point in &points {
        for lazily in [&[][..], &["-l"]] {
            let mut command = Command::new("umount");
            let command = command.args(lazily).arg(point).stderr(Stdio::null());
            if command.status().is_ok_and(|status| status.success()) {
                break;
            }
        }
    }
    // Not the files of a file system that is still there.
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let is_mounted = |point: &PathBuf| mounts.contains(&format!(" {} ", point.display()));
    if !points.iter().any(is_mounted) {
        let _ = fs::remove_dir_all(folder);
    }
}

fn remove_left_behind(parent: &Path) {
    for entry in fs::read_dir(parent).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let owner = name.to_str().and_then(|name| name.strip_prefix(PREFIX));
        let pid = owner.and_then(|owner| owner.split('-').next());
        if pid.is_some_and(|pid| !Path::new("/proc").join(pid).exists()) {
            remove(&entry.path());
        }
    }
}
