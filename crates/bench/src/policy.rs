//! Caches that hold no bytes: what is compared is what they keep.

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

/// No page.
const NONE: u32 = u32::MAX;

/// The page that was not used for longest goes.
pub(crate) struct Lru {
    capacity: usize,
    len: usize,
    /// Neighbours of each page in the order of use, the earlier and the later one.
    links: Vec<[u32; 2]>,
    resident: Vec<bool>,
    oldest: u32,
    newest: u32,
}

const EARLIER: usize = 0;
const LATER: usize = 1;

impl Lru {
    /// Keeps `capacity` of `pages` pages, at least one.
    pub(crate) fn new(capacity: usize, pages: u32) -> Self {
        Self {
            capacity,
            len: 0,
            links: vec![[NONE; 2]; pages as usize],
            resident: vec![false; pages as usize],
            oldest: NONE,
            newest: NONE,
        }
    }

    fn take(&mut self, page: u32) {
        let [earlier, later] = self.links[page as usize];
        match earlier {
            NONE => self.oldest = later,
            earlier => self.links[earlier as usize][LATER] = later,
        }
        match later {
            NONE => self.newest = earlier,
            later => self.links[later as usize][EARLIER] = earlier,
        }
        self.resident[page as usize] = false;
        self.len -= 1;
    }

    fn put(&mut self, page: u32) {
        self.links[page as usize] = [self.newest, NONE];
        match self.newest {
            NONE => self.oldest = page,
            newest => self.links[newest as usize][LATER] = page,
        }
        self.newest = page;
        self.resident[page as usize] = true;
        self.len += 1;
    }
}

impl Policy for Lru {
    fn read(&mut self, page: u32) -> io::Result<bool> {
        let hit = self.resident[page as usize];
        if hit {
            self.take(page);
        } else if self.len == self.capacity {
            self.take(self.oldest);
        }
        self.put(page);
        Ok(hit)
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
        let mut lru = Lru::new(2, 10);
        let hits: Vec<bool> = [1, 2, 1, 3, 2, 1, 1]
            .map(|page| lru.read(page).unwrap())
            .into();
        // 2 goes for 3, since 1 was used after it; then 1 for 2, 3 for 1.
        assert_eq!(hits, [false, false, true, false, false, false, true]);
    }

    #[test]
    fn a_loop_beyond_the_capacity_never_hits_in_lru_and_does_in_quick_cache() {
        let (mut lru, mut quick) = (Lru::new(1000, 1100), Quick::new(1000));
        let trace = crate::trace::cycle(1100, 11_000);
        let count =
            |policy: &mut dyn Policy| trace.iter().filter(|&&p| policy.read(p).unwrap()).count();
        assert_eq!(count(&mut lru), 0);
        assert!(count(&mut quick) > 1000);
    }
}
