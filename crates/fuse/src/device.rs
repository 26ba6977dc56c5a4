//! Messages to the kernel that answer no request.
//!
//! # Model
//!
//! ```text
//!  fuse_out_header           what the code says
//!  len u32 │ code i32 │ 0 u64  │ …
//!
//!  2  INVAL_INODE   number u64 │ from u64 │ len u64
//!  3  INVAL_ENTRY   directory u64 │ len of the name u32 │ flags u32 │ name │ 0
//!  8  INC_EPOCH
//!  9  PRUNE         count u32 │ 0 u32 │ 0 u64 │ count × u64
//! ```
//!
//! `PRUNE` drops the unused names of each inode, and forgets the inode if only those kept it. Inodes in use stay,
//! such as open files and working directories. `INC_EPOCH` makes the kernel look each name up again before it uses
//! it. Linux has both since 6.18; older kernels refuse them with `EINVAL`. They are written to the device directly
//! because our FUSE library lacks them and the flags of `INVAL_ENTRY`, and hides `ENOENT`.

use foliocache_sync::Arc;
use foliocache_sys::Errno;
use foliocache_sys::fd::BorrowedFd;
use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Write};
use std::os::unix::ffi::OsStrExt;

// Stands in the field of the error number.
const INVAL_INODE: i32 = 2;
const INVAL_ENTRY: i32 = 3;
const INC_EPOCH: i32 = 8;
const PRUNE: i32 = 9;

/// The name is looked up again before its next use, and stays until then.
const EXPIRE_ONLY: u32 = 1;

/// The device of a mount, for notifications.
#[derive(Clone)]
pub(crate) struct Device(Arc<File>);

impl Device {
    /// `device` belongs to the session.
    pub(crate) fn new(device: BorrowedFd<'_>) -> Result<Device, Errno> {
        Ok(Device(Arc::new(device.try_clone_to_owned()?.into())))
    }

    /// Asks the kernel to forget those of these inodes that are not in use.
    ///
    /// Context: may wait for requests to this mount, if the kernel must first write an inode's
    /// data.
    pub(crate) fn prune(&self, numbers: &[u64]) -> io::Result<()> {
        self.send(PRUNE, prune(numbers))
    }

    /// Invalidates the kernel's attributes of an inode, and with `pages` its cached pages.
    ///
    /// Context: with `pages`, as [`Device::prune`].
    ///
    /// # Errors
    /// `ENOENT` if the kernel does not know it.
    pub(crate) fn forget_attributes(&self, ino: u64, pages: bool) -> io::Result<()> {
        let from = if pages { 0_i64 } else { -1 };
        let words = [ino, from as u64, 0];
        self.send(INVAL_INODE, words.map(u64::to_ne_bytes).concat())
    }

    /// Invalidates a name. Without `keep` it is removed from the tree at once, even while it is in use.
    ///
    /// Context: waits for requests in the directory.
    ///
    /// # Errors
    /// `ENOENT` if the kernel does not know it.
    pub(crate) fn forget_name(&self, dir: u64, name: &OsStr, keep: bool) -> io::Result<()> {
        let flags = if keep { EXPIRE_ONLY } else { 0 };
        let mut bytes = dir.to_ne_bytes().to_vec();
        bytes.extend((name.len() as u32).to_ne_bytes());
        bytes.extend(flags.to_ne_bytes());
        bytes.extend(name.as_bytes());
        bytes.push(0);
        self.send(INVAL_ENTRY, bytes)
    }

    /// Invalidates all names.
    pub(crate) fn forget_all_names(&self) -> io::Result<()> {
        self.send(INC_EPOCH, Vec::new())
    }

    fn send(&self, code: i32, body: Vec<u8>) -> io::Result<()> {
        // One write is one message; the kernel takes all of it or refuses it.
        (&*self.0).write(&message(code, &body)).map(drop)
    }
}

fn message(code: i32, body: &[u8]) -> Vec<u8> {
    let len = 16 + body.len();
    let mut bytes = Vec::with_capacity(len);
    bytes.extend((len as u32).to_ne_bytes());
    bytes.extend(code.to_ne_bytes());
    bytes.extend(0_u64.to_ne_bytes());
    bytes.extend(body);
    bytes
}

fn prune(numbers: &[u64]) -> Vec<u8> {
    let mut bytes = (numbers.len() as u32).to_ne_bytes().to_vec();
    bytes.extend([0; 12]);
    bytes.extend(numbers.iter().flat_map(|number| number.to_ne_bytes()));
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_has_the_kernels_layout() {
        let bytes = message(PRUNE, &prune(&[0x0102_0304_0506_0708, 3]));
        let u32_at = |at: usize| u32::from_ne_bytes(bytes[at..at + 4].try_into().unwrap());
        let u64_at = |at: usize| u64::from_ne_bytes(bytes[at..at + 8].try_into().unwrap());
        assert_eq!((bytes.len(), u32_at(0), u32_at(4)), (48, 48, 9));
        assert_eq!(
            (u64_at(8), u32_at(16), u32_at(20), u64_at(24)),
            (0, 2, 0, 0)
        );
        assert_eq!((u64_at(32), u64_at(40)), (0x0102_0304_0506_0708, 3));
        assert_eq!(message(PRUNE, &prune(&[])).len(), 32);
    }
}
