//! The answer to a look-up in the kernel's form, and how long the kernel may believe it.

use crate::convert;
use foliocache_vfs::{Attributes, FileKind};
use fuser::{FileAttr, Generation};
use std::time::Duration;

/// Longest time that the kernel may believe a name or attributes whose changes it is not told of.
pub(crate) const TTL: Duration = Duration::from_secs(1);

/// How long the kernel believes a name or attributes whose changes it will be told of. It still
/// asks again now and then.
pub(crate) const LONG: Duration = Duration::from_secs(3600);

/// A directory entry in the kernel's form.
pub(crate) struct Entry {
    pub(crate) attr: FileAttr,
    pub(crate) generation: Generation,
    /// How long the kernel may believe the name, and how long the attributes.
    pub(crate) name_ttl: Duration,
    pub(crate) attr_ttl: Duration,
}

impl Entry {
    /// The answer that the name does not exist.
    pub(crate) fn absent(name_ttl: Duration) -> Entry {
        let none = Attributes::default().of(0, FileKind::Regular);
        Entry {
            attr: convert::attr(&none),
            generation: Generation(0),
            name_ttl,
            attr_ttl: Duration::ZERO,
        }
    }

    /// For an answer with one time for both.
    pub(crate) fn ttl(&self) -> Duration {
        self.name_ttl.min(self.attr_ttl)
    }
}
