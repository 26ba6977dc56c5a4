//! Options of a local directory.

use foliocache_fs::{DirFsOptions, WritebackAtClose};
use std::time::Duration;

use crate::setters::setters;

/// Options of a local directory, for [`Cache::directory_with`](crate::Cache::directory_with).
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use foliocache::DirectoryOptions;
///
/// # let cache = foliocache::Cache::builder().memory("16M").build()?;
/// # let path = tempfile::tempdir()?;
/// let options = DirectoryOptions::new().read_only(true);
/// let data = cache.directory_with(&path, options)?;
/// assert_eq!(data.create("new").unwrap_err().errno(), foliocache::Errno::EROFS);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, Default)]
#[must_use = "options change nothing before `directory_with`"]
pub struct DirectoryOptions {
    pub(crate) fs: DirFsOptions,
}

impl DirectoryOptions {
    /// The defaults: the directory is read, written, and watched for changes by others.
    pub fn new() -> Self {
        Self::default()
    }

    setters! {
        /// Refuse every change with `EROFS`. Off by default.
        read_only(read_only: bool) => fs.read_only = read_only;

        /// Watch for changes by others with inotify, on local file systems. On by default.
        ///
        /// Names, attributes and contents are believed until the kernel reports a change, and a change is noticed
        /// within some ten milliseconds; `docs/guide/sharing.md` lists the changes that are not reported. Costs 1.5 KiB
        /// of the bound for each directory in use, and other writers of its files about a microsecond a write. Without
        /// it each open asks the source whether the file was changed.
        #[doc(alias = "inotify")]
        watch(watch: bool) => fs.watch = watch;

        /// Promises that no other program changes the directory while it is open here. So no answer is requested twice,
        /// and nothing is watched. If the directory is changed after all, the change may never be seen, and a write may
        /// undo it. Off by default.
        exclusive(exclusive: bool) => fs.exclusive = exclusive;

        /// Open the directory for writing even if another cache, of this process or another, has it open for writing.
        /// Each may undo changes that are durable through the other. A warning is logged. The directory stays locked
        /// until both are gone. Off by default.
        ignore_lock(ignore: bool) => fs.ignore_lock = ignore;

        /// Leave out mounts below the directory, made before or later: the directory or file that a mount covers,
        /// usually an empty directory, is shown instead, as in a bind mount. Subvolumes of btrfs stay. Opening fails
        /// without `CAP_SYS_ADMIN` or before Linux 5.12. Off by default: then files of other file systems are shown,
        /// with separate inode numbers.
        #[doc(alias = "xdev")]
        one_file_system(leave_out: bool) => fs.one_file_system = leave_out;

        /// How long unwatched names and attributes are believed without asking the source again, which bounds how late
        /// a change by others is noticed. One second by default. Zero asks each time, and watches nothing. Opening an
        /// unwatched file always asks about the file itself. Opening a watched file makes a `statx` if the last one is
        /// this old, since stores through mappings cause no event.
        #[doc(alias = "entry_timeout")]
        #[doc(alias = "attr_timeout")]
        #[doc(alias = "actimeo")]
        revalidate_after(age: Duration) => fs.revalidate_after = age;

        /// The same for missing names, so how late a new file of others may be found. Zero by default: each look-up of a missing name
        /// that is not watched asks the source.
        #[doc(alias = "negative_timeout")]
        revalidate_absent_after(age: Duration) => fs.revalidate_absent_after = age;

        /// Use direct I/O where the source allows it. On by default.
        direct(direct: bool) => fs.direct = direct;

        /// Read in the background through io_uring where the kernel allows it. On by default.
        io_uring(io_uring: bool) => fs.io_uring = io_uring;

        /// The most descriptors that are kept for names. 512 by default. All directories of the process share an eighth of its soft
        /// limit of open files.
        path_descriptors(most: usize) => fs.path_descriptors = most;

        /// The most closed files that may keep descriptors, two each, until their data is written. Beyond that a close writes the
        /// data of others first. By default all directories of the process share a quarter of its soft limit of open files.
        idle_files(most: usize) => fs.idle_files = Some(most);

        /// Raise the process's soft limit of open files to the hard limit when the directory is opened. Off by default, because it
        /// changes the whole process: `select(2)` cannot handle descriptors from 1,024 on, and child processes inherit the limit.
        raise_open_files(raise: bool) => fs.raise_open_files = raise;

        /// Write a small new file to the kernel's cache when it is closed, and make many such files durable with one `syncfs(2)`, if
        /// the source's file system reports errors to that call (ext4, XFS). On by default. At most 64 MiB, charged to the bound, are in
        /// the kernel's cache at a time.
        batch_small_files(batch: bool) => fs.batch_small_files = batch;

        /// When data of a closed file is written to the source. [`WritebackAtClose::Begin`] by default.
        writeback_at_close(when: WritebackAtClose) => fs.writeback_at_close = when;
    }
}
