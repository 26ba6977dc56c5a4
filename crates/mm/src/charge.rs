//! Metadata that counts against the bound: charging it, and [`MetadataCharge`], a charge that ends with its owner.

use foliocache_sync::Arc;
use foliocache_sync::time::Duration;
use foliocache_sys::Errno;
use foliocache_xarray::CHUNK_SIZE;

use crate::bound::MetadataBound;
use crate::records::Mm;
use crate::rounds::PATIENCE;
use crate::views::{CopyInMaking, OVERHEAD};

/// One of so many bytes of the bound is the most that charged copies hold.
const PART: u64 = 4;

/// Bytes that are charged at once where memory is short. Whatever makes room for an index node makes room for so many.
const PIECE: u64 = CHUNK_SIZE as u64;

/// Times room is made for a charge of metadata before it is refused: others may take the freed memory.
const CHARGE_ATTEMPTS: usize = 4;

/// Bytes that are charged to the bound of a cache until this is dropped.
#[derive(Debug)]
pub struct MetadataCharge {
    mm: Arc<Mm>,
    bytes: u64,
}

impl MetadataCharge {
    /// How long an open file or directory, and the pages of a file, wait for their memory.
    pub const PATIENCE: Duration = PATIENCE;

    /// Charges the bytes if there is room at once.
    ///
    /// # Errors
    /// `EAGAIN` if there is none.
    pub fn at_once(mm: &Arc<Mm>, bytes: u64) -> Result<Self, Errno> {
        let mm = Arc::clone(mm);
        match mm.try_charge_metadata(bytes) {
            true => Ok(Self { mm, bytes }),
            false => Err(Errno::EAGAIN),
        }
    }

    /// Charges the bytes for something in use; see [`Mm::charge_used_metadata`].
    ///
    /// # Errors
    /// Those of [`Mm::charge_used_metadata`], whose context this has.
    pub fn before_names(mm: &Arc<Mm>, bytes: u64, patience: Duration) -> Result<Self, Errno> {
        mm.charge_used_metadata(bytes, patience)?;
        let mm = Arc::clone(mm);
        Ok(Self { mm, bytes })
    }

    /// Bytes charged.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Gives back the charge beyond `bytes`.
    pub fn reduce_to(&mut self, bytes: u64) {
        let less = self.bytes.saturating_sub(bytes);
        self.bytes -= less;
        self.mm.uncharge_metadata(less);
    }
}

impl Drop for MetadataCharge {
    fn drop(&mut self) {
        if self.mm.check_fork().is_ok() {
            self.mm.uncharge_metadata(self.bytes);
        }
    }
}

impl Mm {
    /// Charges `bytes` of metadata to the bound; reclaims a little to make room. Pages give way to it before names and inodes
    /// do; with [`Mm::charge_used_metadata`] names and inodes go first.
    ///
    /// # Errors
    /// `ENOMEM` when the part of the bound for metadata is used up even so. Never waits for I/O.
    pub fn charge_metadata(&self, bytes: u64) -> Result<(), Errno> {
        for _ in 0..CHARGE_ATTEMPTS {
            if self.take_metadata(bytes) {
                return Ok(());
            }
            if self.metadata_may_grow() {
                self.make_room_for_metadata();
            }
            self.nodes.shrink();
        }
        match self.take_metadata(bytes) {
            true => Ok(()),
            false => Err(Errno::ENOMEM),
        }
    }

    /// Charges a copy of `len` bytes to the bound.
    ///
    /// Context: as [`Mm::charge_used_metadata`], which it blocks as.
    ///
    /// # Errors
    /// `ENOBUFS` if copies would hold more than their share. `ENOMEM` if nothing can be reclaimed.
    pub(crate) fn charge_copy(&self, len: usize) -> Result<CopyInMaking<'_>, Errno> {
        let copies = &self.views.copies;
        let wanted = (len as u64).saturating_add(OVERHEAD);
        if !copies.enter(wanted, self.frames.limit() / PART) {
            return Err(Errno::ENOBUFS);
        }
        let mut making = CopyInMaking {
            copies,
            wanted,
            charged: 0,
        };
        if self.try_charge_metadata(wanted) {
            making.charged = wanted;
        }
        while making.charged < wanted {
            let piece = (wanted - making.charged).min(PIECE);
            self.charge_used_metadata(piece, MetadataCharge::PATIENCE)?;
            making.charged += piece;
        }
        Ok(making)
    }
}

impl MetadataBound for Mm {
    fn charge(&self, bytes: u64) -> bool {
        self.charge_cached_metadata(bytes, &|| false).is_ok()
    }

    fn try_charge(&self, bytes: u64) -> bool {
        self.try_charge_metadata(bytes)
    }

    fn charge_or(&self, bytes: u64, elsewhere: &dyn Fn() -> bool) -> bool {
        self.charge_cached_metadata(bytes, elsewhere).is_ok()
    }

    fn is_short(&self) -> bool {
        self.metadata_is_short()
    }

    fn uncharge(&self, bytes: u64) {
        self.uncharge_metadata(bytes);
    }
}
