//! Kinds of file systems that a source may be on, by `statfs.f_type`.

/// ext2, ext3 and ext4.
pub(super) const EXT4: u64 = 0xef53;
/// Overlayfs.
pub(super) const OVERLAY: u64 = 0x794c_7630;
/// XFS.
pub(super) const XFS: u64 = 0x5846_5342;
/// Btrfs.
pub(super) const BTRFS: u64 = 0x9123_683e;
/// F2FS.
pub(super) const F2FS: u64 = 0xf2f5_2010;
/// Bcachefs.
pub(super) const BCACHEFS: u64 = 0xca45_1a4e;
/// ZFS.
pub(super) const ZFS: u64 = 0x2fc1_2fc1;
/// tmpfs.
pub(super) const TMPFS: u64 = 0x0102_1994;
/// ramfs.
pub(super) const RAMFS: u64 = 0x8584_58f6;
