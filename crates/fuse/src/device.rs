//! Messages to the kernel that nobody asked for.
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
//! `PRUNE` drops the names of each inode that nobody uses, and forgets the inode if that was all that kept it. Those in
//! use stay, open files and working directories among them. `INC_EPOCH` has each name looked up again before it is
//! used. Linux has both since 6.18; others refuse them with `EINVAL`. They are written to the device here because our FUSE
//! library knows neither them nor the flags of `INVAL_ENTRY`, and hides that something is not there.

use foliocache_sync::Arc;
use foliocache_sys::Errno;
use foliocache_sys::fd::BorrowedFd;
use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Write};
use std::os::unix::ffi::OsStrExt;

// In the place of an error number.
const INVAL_INODE: i32 = 2;
const INVAL_ENTRY: i32 = 3;
const INC_EPOCH: i32 = 8;
const PRUNE: i32 = 9;

/// The name is asked for before it is used again, and stays until then.
const EXPIRE_ONLY: u32 = 1;

/// The device of a mount, for these messages alone.
#[derive(Clone)]
pub(crate) struct Device(Arc<File>);

impl Device {
    /// `device` is the session's.
    pub(crate) fn new(device: BorrowedFd<'_>) -> Result<Device, Errno> {
        Ok(Device(Arc::new(device.try_clone_to_owned()?.into())))
    }

    /// Asks the kernel to forget these inodes, as far as they are not used.
    ///
    /// Context: blocks for requests to this mount, where an inode has data that the kernel must write first.
    pub(crate) fn prune(&self, numbers: &[u64]) -> io::Result<()> {
        self.send(PRUNE, prune(numbers))
    }

    /// Has the kernel ask for the attributes of an inode again, and with `pages` drop its pages.
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

    /// Has the kernel look a name up again; it is taken off the tree at once, also where it is in use, unless
    /// `keep`.
    ///
    /// Context: blocks for requests in the directory.
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

    /// Has the kernel look all names up again.
    pub(crate) fn forget_all_names(&self) -> io::Result<()> {
        self.send(INC_EPOCH, Vec::new())
    }

    fn send(&self, code: i32, body: Vec<u8>) -> io::Result<()> {
        // One write is one message, and is taken as a whole or not at all.
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
    fn a_message_is_what_the_kernel_reads() {
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
