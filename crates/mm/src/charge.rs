//! [`MetadataCharge`]: metadata that counts against the bound for as long as its owner is there.

use foliocache_sync::Arc;
use foliocache_sync::time::{Duration, sleep};
use foliocache_sys::Errno;

use crate::mm::Mm;

/// How long is waited before memory is asked for again.
const PAUSE: Duration = Duration::from_millis(2);

/// Bytes that are charged to the bound of a cache until this is dropped.
#[derive(Debug)]
pub struct MetadataCharge {
    mm: Arc<Mm>,
    bytes: u64,
}

impl MetadataCharge {
    /// How long an open file or directory waits for its memory.
    pub const PATIENCE: Duration = Duration::from_secs(1);

    /// # Errors
    /// Those of [`Mm::charge_metadata`].
    pub fn new(mm: &Arc<Mm>, bytes: u64) -> Result<Self, Errno> {
        mm.charge_metadata(bytes)?;
        let mm = Arc::clone(mm);
        Ok(Self { mm, bytes })
    }

    /// As [`MetadataCharge::new`], if there is room at once.
    ///
    /// # Errors
    /// `EAGAIN` otherwise.
    pub fn at_once(mm: &Arc<Mm>, bytes: u64) -> Result<Self, Errno> {
        let mm = Arc::clone(mm);
        match mm.try_charge_metadata(bytes) {
            true => Ok(Self { mm, bytes }),
            false => Err(Errno::EAGAIN),
        }
    }

    /// As [`MetadataCharge::new`], for what somebody has in use: names and inodes that nobody needs give way to it, and
    /// where it is refused it is tried again for so long, since those who hold others were asked to give them up.
    ///
    /// # Errors
    /// Those of [`Mm::charge_cached_metadata`], whose context this has.
    pub fn before_names(mm: &Arc<Mm>, bytes: u64, patience: Duration) -> Result<Self, Errno> {
        let charge = || mm.charge_cached_metadata(bytes, &|| false);
        let mut charged = charge();
        for _ in 0..patience.as_millis() / PAUSE.as_millis() {
            if charged.is_ok() {
                break;
            }
            sleep(PAUSE);
            charged = charge();
        }
        charged?;
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
