//! A mount from outside: from another thread, or another process than the one that serves it.

use foliocache_sys::Errno;
use foliocache_sys::dir::mount as sys_mount;
use foliocache_sys::fd::{self, AsFd, OFlags, OwnedFd};
use foliocache_vfs::Device;
use std::path::{Path, PathBuf};

/// Stores of programs into mappings of files of a mount.
///
/// **Use it in another process than the one that serves the mount.** A thread that waits for its own process cannot be killed: it
/// shares the process's descriptors, and so keeps the connection open that the kernel would have to close to wake it.
///
/// The mount is in use while the value lives.
#[derive(Debug)]
pub struct MappedStores(OwnedFd);

impl MappedStores {
    /// Those of the mount at `mount_point`. `device` is its [`Connection::device`], where that is known. May block.
    ///
    /// # Errors
    /// Those of opening the mount point. `ESTALE` if something else is there: the mount was taken off the tree, or another one hides
    /// it.
    pub fn of(mount_point: &Path, device: Option<u64>) -> Result<MappedStores, Errno> {
        let root = fd::open(mount_point, OFlags::RDONLY | OFlags::DIRECTORY, 0)?;
        if let Some(device) = device
            && fd::fstat(root.as_fd())?.dev.raw() != device
        {
            return Err(Errno::ESTALE);
        }
        Ok(MappedStores(root))
    }

    /// Asks the kernel to write them back. It need not have done all of it afterwards: see
    /// [`Mount::take_over_stores`](crate::Mount::take_over_stores). Works after [`Mount::hide`](crate::Mount::hide), too. Blocks.
    ///
    /// # Errors
    /// The first error of writing.
    pub fn write_back(&self) -> Result<(), Errno> {
        fd::syncfs(self.0.as_fd())
    }
}

/// The kernel's side of a mount, to cut programs off while another thread has the [`Mount`](crate::Mount).
#[derive(Clone, Debug)]
pub struct Connection {
    pub(crate) mount_point: PathBuf,
    /// `None` where the list of mounts does not have it.
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

    /// The device number of its files, as `stat(2)` tells it; `None` where the list of mounts does not have it.
    pub fn device(&self) -> Option<u64> {
        let (major, minor) = self.device?;
        Some(Device { major, minor }.raw())
    }

    /// Whether it is on top at its place, and not another mount that came later. `true` if that is not known.
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

    /// Ends every request that is under way, and every one to come, with an error, and takes the mount off the tree. May
    /// block.
    ///
    /// # Errors
    /// `EPERM` without privilege: programs are cut off when the process ends.
    pub fn abort(&self) -> Result<(), Errno> {
        let done = match self.device {
            _ if self.is_in_tree() => sys_mount::abort(&self.mount_point),
            Some(device) => sys_mount::abort_fuse(device),
            // It is in the tree then, see above.
            None => Err(Errno::EINVAL),
        };
        match done {
            // It is gone.
            Err(Errno::EINVAL | Errno::ENOENT) => Ok(()),
            done => done,
        }
    }
}
