//! [`MetadataCharge`]: metadata that counts against the bound for as long as its owner is there.

use foliocache_sync::Arc;
use foliocache_sync::time::Duration;
use foliocache_sys::Errno;

use crate::records::Mm;

/// Bytes that are charged to the bound of a cache until this is dropped.
#[derive(Debug)]
pub struct MetadataCharge {
    mm: Arc<Mm>,
    bytes: u64,
}

impl MetadataCharge {
    /// How long an open file or directory, and the pages of a file, wait for their memory.
    pub const PATIENCE: Duration = Duration::from_secs(1);

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

    /// Charges the bytes for what somebody has in use; see [`Mm::charge_used_metadata`].
    ///
    /// # Errors
    /// Those of [`Mm::charge_used_metadata`], whose context this has.
    pub fn before_names(mm: &Arc<Mm>, bytes: u64, patience: Duration) -> Result<Self, Errno> {
        mm.charge_used_metadata(bytes, patience)?;
        let mm = Arc::clone(mm);
        Ok(Self { mm, bytes })
    }

    /// What is charged.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Gives back what is beyond `bytes`.
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
