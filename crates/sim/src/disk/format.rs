//! Real file systems on a disk: how they are made.

use std::fs::File;
use std::io;
use std::path::Path;
use std::process::Command;

/// A file system of the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Format {
    /// ext4 with a journal, in its default mode (`data=ordered`).
    Ext4,
    /// XFS.
    Xfs,
}

impl Format {
    /// Both.
    pub const ALL: [Format; 2] = [Format::Ext4, Format::Xfs];

    /// Both, or the one that `FOLIOCACHE_FORMAT` names.
    pub fn wanted() -> Vec<Format> {
        let name = std::env::var("FOLIOCACHE_FORMAT").unwrap_or_default();
        let wanted = |format: &Format| name.is_empty() || format.name() == name;
        Format::ALL.into_iter().filter(wanted).collect()
    }

    /// The name that `mount` and `mkfs` know.
    pub fn name(self) -> &'static str {
        match self {
            Format::Ext4 => "ext4",
            Format::Xfs => "xfs",
        }
    }

    /// The size of a disk that is large enough for tests, in bytes. Sparse: only written blocks
    /// take memory.
    pub fn size(self) -> u64 {
        match self {
            Format::Ext4 => 128 << 20,
            // It takes no less.
            Format::Xfs => 320 << 20,
        }
    }

    /// Mount options. Several images of one file system may be mounted, and as long as a disk is empty no kernel
    /// thread writes to it on its own.
    pub(super) fn mount_options(self) -> &'static str {
        match self {
            Format::Ext4 => "noinit_itable",
            Format::Xfs => "nouuid",
        }
    }

    /// Makes the file system in a new sparse file.
    pub(super) fn make(self, file: &Path, size: u64) -> io::Result<()> {
        File::create(file)?.set_len(size)?;
        let options: &[&str] = match self {
            // Blocks as on larger disks; nothing is left to be initialised later.
            Format::Ext4 => &[
                "-q",
                "-F",
                "-b",
                "4096",
                "-N",
                "4096",
                "-E",
                "nodiscard,lazy_itable_init=0,lazy_journal_init=0",
            ],
            Format::Xfs => &["-q", "-K"],
        };
        let mut command = Command::new(format!("mkfs.{}", self.name()));
        let made = command.args(options).arg(file).output()?;
        if made.status.success() {
            return Ok(());
        }
        let error = String::from_utf8_lossy(&made.stderr);
        Err(io::Error::other(format!("mkfs.{}: {error}", self.name())))
    }
}
