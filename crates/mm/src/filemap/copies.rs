//! Charging the copies that views own ([`crate::views`]) to the bound.

use foliocache_sys::Errno;
use foliocache_xarray::CHUNK_SIZE;

use crate::charge::MetadataCharge;
use crate::records::Mm;
use crate::views::{CopyInMaking, OVERHEAD};

/// One of so many bytes of the bound is the most that charged copies hold.
const PART: u64 = 4;
/// Bytes that are charged at once where memory is short. Room for so many is made by whatever makes room for an index node.
const PIECE: u64 = CHUNK_SIZE as u64;

impl Mm {
    /// Charges a copy of `len` bytes to the bound.
    ///
    /// Context: as [`Mm::charge_used_metadata`], which it blocks as.
    ///
    /// # Errors
    /// `ENOBUFS` if copies would hold more than their share. `ENOMEM` if nothing can be reclaimed.
    pub(super) fn charge_copy(&self, len: usize) -> Result<CopyInMaking<'_>, Errno> {
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
        let at_once = self.try_charge_metadata(wanted);
        if at_once {
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
