//! A compressed disk in memory: a device that is faster than the way to it.
//!
//! # Model
//!
//! The kernel makes a new device for each use, so devices of other users are never touched. Its
//! content is random and does not compress.

use foliocache_sys::Errno;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::error::{BenchError, set_up};
use crate::guard::{Guard, Thing, run};

const CONTROL: &str = "/sys/class/zram-control";

/// Makes a device of `size` bytes with an ext4 in it and mounts that at `point`, which exists.
///
/// # Errors
/// Not root, no zram, no `mkfs.ext4`: the reason, in words.
pub(crate) fn mount(guard: &Guard, point: &Path, size: u64) -> Result<(), BenchError> {
    set_up("a compressed disk in memory (zram)", || {
        let number = fs::read_to_string(format!("{CONTROL}/hot_add"))?;
        let number = number.trim().parse();
        let number = number.map_err(|_| io::ErrorKind::InvalidData)?;
        guard.of(&Thing::Zram(number))?;
        fs::write(settings(number).join("disksize"), size.to_string())?;
        let device = format!("/dev/zram{number}");
        // Builds its tables at once: otherwise a kernel thread would fill them in during the
        // measurement.
        let tables = "lazy_itable_init=0,lazy_journal_init=0";
        let options = ["-q", "-F", "-m", "0", "-E", tables, &device];
        run(Command::new("mkfs.ext4").args(options))?;
        guard.of(&Thing::Mount(point.to_owned()))?;
        run(Command::new("mount").arg(device).arg(point))
    })
}

/// Bytes of memory that can be taken without reclaim from other users.
pub(crate) fn available() -> u64 {
    let text = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix("MemAvailable:"));
    let number = line.and_then(|line| line.trim().split(' ').next()?.parse::<u64>().ok());
    number.unwrap_or(0) << 10
}

/// Removes a device with its content.
pub(crate) fn remove(number: u32) -> io::Result<()> {
    match fs::write(settings(number).join("reset"), "1") {
        Err(error) if error.raw_os_error() == Some(Errno::ENOENT.raw()) => return Ok(()),
        done => done?,
    }
    fs::write(format!("{CONTROL}/hot_remove"), number.to_string())
}

fn settings(number: u32) -> PathBuf {
    PathBuf::from(format!("/sys/block/zram{number}"))
}
