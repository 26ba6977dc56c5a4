//! Caches that hold no bytes: the comparison is about which pages they keep.

use std::collections::{BTreeMap, HashMap};
use std::io;

use quick_cache::unsync::Cache as QuickCache;

/// Something that keeps some pages of one file.
pub(crate) trait Policy {
    /// Reads a page, which is kept from now on, until it is not; returns whether it was there.
    ///
    /// # Errors
    /// Those of a cache that has a file to read.
    fn read(&mut self, page: u32) -> io::Result<bool>;
}

/// The page that was not used for longest goes.
pub(crate) struct Lru {
    capacity: usize,
    /// Pages in the order of their last use, by its number.
    order: BTreeMap<u64, u32>,
    /// The number of the last use of each page that is kept.
    last: HashMap<u32, u64>,
    uses: u64,
}

impl Lru {
    /// Keeps `capacity` pages, at least one.
    pub(crate) fn new(capacity: usize) -> Self {
        Self {
            capacity,
            order: BTreeMap::new(),
            last: HashMap::new(),
            uses: 0,
        }
    }
}

impl Policy for Lru {
    fn read(&mut self, page: u32) -> io::Result<bool> {
        self.uses += 1;
        self.order.insert(self.uses, page);
        let before = self.last.insert(page, self.uses);
        match before {
            Some(before) => {
                self.order.remove(&before);
            }
            None if self.last.len() > self.capacity => {
                let oldest = self.order.pop_first();
                oldest.and_then(|(_, page)| self.last.remove(&page));
            }
            None => {}
        }
        Ok(before.is_some())
    }
}

/// The crate `quick_cache` as it comes: a clock with a cold and a hot part and ghosts.
pub(crate) struct Quick(QuickCache<u32, ()>);

impl Quick {
    pub(crate) fn new(capacity: usize) -> Self {
        Self(QuickCache::new(capacity))
    }
}

impl Policy for Quick {
    fn read(&mut self, page: u32) -> io::Result<bool> {
        let hit = self.0.get(&page).is_some();
        if !hit {
            self.0.insert(page, ());
        }
        Ok(hit)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_goes() {
        let mut lru = Lru::new(2);
        let hits: Vec<bool> = [1, 2, 1, 3, 2, 1, 1]
            .map(|page| lru.read(page).unwrap())
            .into();
        // 2 goes for 3, since 1 was used after it; then 1 for 2, 3 for 1.
        assert_eq!(hits, [false, false, true, false, false, false, true]);
    }

    #[test]
    fn a_loop_beyond_the_capacity_never_hits_in_lru_and_does_in_quick_cache() {
        let (mut lru, mut quick) = (Lru::new(1000), Quick::new(1000));
        let trace = crate::trace::cycle(1100, 11_000);
        let count =
            |policy: &mut dyn Policy| trace.iter().filter(|&&p| policy.read(p).unwrap()).count();
        assert_eq!(count(&mut lru), 0);
        assert!(count(&mut quick) > 1000);
    }
}
