//! The message that asks the kernel to forget inodes, `FUSE_NOTIFY_PRUNE`.
//!
//! # Model
//!
//! ```text
//!  fuse_out_header             fuse_notify_prune_out        numbers
//!  len u32 │ 9 i32 │ 0 u64  │  count u32 │ 0 u32 │ 0 u64 │  count × u64
//! ```
//!
//! The kernel drops the names of each inode that nobody uses, and forgets the inode if that was all that kept
//! it. Those in use stay, open files and working directories among them. Linux has it since 6.18
//! (FUSE 7.45); others refuse it with `EINVAL`. It is written to the device here because our FUSE library does
//! not know it.

use foliocache_sys::Errno;
use foliocache_sys::fd::BorrowedFd;
use std::fs::File;
use std::io::{self, Write};

/// `FUSE_NOTIFY_PRUNE`, in the place of an error number.
const CODE: i32 = 9;

/// Bytes before the numbers.
const HEAD: usize = 32;

/// The device of a mount, for this message alone.
pub(crate) struct Device(File);

impl Device {
    /// `device` is the session's.
    pub(crate) fn new(device: BorrowedFd<'_>) -> Result<Device, Errno> {
        Ok(Device(File::from(device.try_clone_to_owned()?)))
    }

    /// Asks the kernel to forget these inodes, as far as they are not used.
    ///
    /// Context: blocks for requests to this mount, where an inode has data that the kernel must write first.
    pub(crate) fn prune(&self, numbers: &[u64]) -> io::Result<()> {
        // One write is one message, and is taken as a whole or not at all.
        (&self.0).write(&message(numbers)).map(drop)
    }
}

fn message(numbers: &[u64]) -> Vec<u8> {
    let len = HEAD + size_of_val(numbers);
    let mut bytes = Vec::with_capacity(len);
    bytes.extend((len as u32).to_ne_bytes());
    bytes.extend(CODE.to_ne_bytes());
    bytes.extend(0_u64.to_ne_bytes());
    bytes.extend((numbers.len() as u32).to_ne_bytes());
    bytes.extend(0_u32.to_ne_bytes());
    bytes.extend(0_u64.to_ne_bytes());
    for number in numbers {
        bytes.extend(number.to_ne_bytes());
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_is_what_the_kernel_reads() {
        let bytes = message(&[0x0102_0304_0506_0708, 3]);
        let u32_at = |at: usize| u32::from_ne_bytes(bytes[at..at + 4].try_into().unwrap());
        let u64_at = |at: usize| u64::from_ne_bytes(bytes[at..at + 8].try_into().unwrap());
        assert_eq!((bytes.len(), u32_at(0), u32_at(4)), (48, 48, 9));
        assert_eq!(
            (u64_at(8), u32_at(16), u32_at(20), u64_at(24)),
            (0, 2, 0, 0)
        );
        assert_eq!((u64_at(32), u64_at(40)), (0x0102_0304_0506_0708, 3));
        assert_eq!(message(&[]).len(), HEAD);
    }
}
