//! A mount as another thread or process sees it, not the one that serves it.

use foliocache_sys::Errno;
use foliocache_sys::dir::mount as sys_mount;
use foliocache_sys::fd::{self, AsFd, OFlags, OwnedFd};
use foliocache_vfs::Device;
use std::path::{Path, PathBuf};

/// Stores of programs into mappings of files of a mount.
///
/// **Use it in a process other than the one that serves the mount.** A thread that waits for its own process cannot
/// be killed: it shares the process's descriptors, and so keeps the connection open that the kernel would have to
/// close to wake it.
///
/// The mount is in use while the value lives.
#[derive(Debug)]
pub struct MappedStores(OwnedFd);

impl MappedStores {
    /// Opens the mount at `mount_point`. `device` is its [`Connection::device`], if it is known.
    /// May block.
    ///
    /// # Errors
    /// Those of opening the mount point. `ESTALE` if another file system is there: the mount was detached, or
    /// another one covers it.
    pub fn of(mount_point: &Path, device: Option<u64>) -> Result<MappedStores, Errno> {
        let root = fd::open(mount_point, OFlags::RDONLY | OFlags::DIRECTORY, 0)?;
        if let Some(device) = device
            && fd::fstat(root.as_fd())?.dev.raw() != device
        {
            return Err(Errno::ESTALE);
        }
        Ok(MappedStores(root))
    }

    /// Asks the kernel to write dirty pages of mappings back. It may leave some out: see
    /// [`Mount::take_over_stores`](crate::Mount::take_over_stores). Works after [`Mount::hide`](crate::Mount::hide)
    /// too. Blocks.
    ///
    /// # Errors
    /// The first error of writing.
    pub fn write_back(&self) -> Result<(), Errno> {
        fd::syncfs(self.0.as_fd())
    }
}

/// The kernel's side of a mount. With it a thread can cut programs off while another one owns the
/// [`Mount`](crate::Mount).
#[derive(Clone, Debug)]
pub struct Connection {
    pub(crate) mount_point: PathBuf,
    /// `None` if the mount table does not list it.
    device: Option<(u32, u32)>,
}

impl Connection {
    pub(crate) fn of(mount_point: PathBuf) -> Connection {
        let mounts = sys_mount::mounts().unwrap_or_default();
        let found = mounts
            .iter()
            .rfind(|mount| mount.mount_point == mount_point);
        let device = found.map(|mount| mount.device);
        Connection {
            mount_point,
            device,
        }
    }

    /// The device number of its files, as in `stat(2)`; `None` if the mount table does not list it.
    pub fn device(&self) -> Option<u64> {
        let (major, minor) = self.device?;
        Some(Device { major, minor }.raw())
    }

    /// Whether it is on top at its mount point, and not covered by a later mount. `true` if that is
    /// unknown.
    pub(crate) fn is_in_tree(&self) -> bool {
        if self.device.is_none() {
            return true;
        }
        let mounts = sys_mount::mounts().unwrap_or_default();
        let top = mounts
            .iter()
            .rfind(|mount| mount.mount_point == self.mount_point);
        top.is_some_and(|mount| Some(mount.device) == self.device)
    }

    /// Fails every present and future request, and detaches the mount. May block.
    ///
    /// # Errors
    /// `EPERM` without privilege: programs are cut off when the process ends.
    pub fn abort(&self) -> Result<(), Errno> {
        let done = match self.device {
            _ if self.is_in_tree() => sys_mount::abort(&self.mount_point),
            Some(device) => sys_mount::abort_fuse(device),
            // It is in the tree then, see `is_in_tree`.
            None => Err(Errno::EINVAL),
        };
        match done {
            // It is gone.
            Err(Errno::EINVAL | Errno::ENOENT) => Ok(()),
            done => done,
        }
    }
}
