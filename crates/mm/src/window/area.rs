//! The area that all windows of a cache lie in: windows come and go, and page tables without a page are given back.
//!
//! # Locking
//!
//! `state` *protects* which addresses are taken. *Order*: leaf. *May block*: the system calls.
//!
//! # Safety
//!
//! The memory behind a window belongs to folios, whose holders expect stores at any time while they are mapped. A
//! window's addresses are used by the program only while it has the [`Vma`](crate::Vma). A place in the area is one window's alone,
//! whose addresses nobody uses when it goes.
#![allow(unsafe_code)]

use crate::frames::{BLOCK_FRAMES, BLOCK_SIZE, Tables};
use crate::mapped::{LockedAccess, MapError, Streams, VmaAccess};
use crate::readahead::ReadaheadState;
use crate::records::{AddressSpace, LinearFile, Mm, Window, Windows};
use crate::slab::SlabArc;
use crate::types::{PAGE_SHIFT, PAGE_SIZE, PageIndex};
use foliocache_sync::Arc;
use foliocache_sync::atomic::AtomicU64;
use foliocache_sync::cell::OnceLock;
use foliocache_sys::Errno;
use std::ops::Range;

impl Windows {
    /// Makes a window onto pages of a file that have linear frames.
    ///
    /// # Errors
    /// See [`MapError`].
    pub(crate) fn add(
        &self,
        mapping: &AddressSpace,
        linear: &LinearFile,
        pages: Range<u64>,
        access: VmaAccess,
        locked: Option<LockedAccess>,
    ) -> Result<Arc<Window>, MapError> {
        let mm: &Mm = mapping.mm();
        let faults = match locked {
            None => Some(&*self.faults),
            Some(_) => None,
        };
        let shown = mapping.whole(PageIndex(pages.start)..PageIndex(pages.end));
        let shown = shown.start.0..shown.end.0;
        let runs = linear.runs(shown.clone());
        let (_, first) = runs.first().expect("the ranges cover the pages");
        // At the same place in its 2 MiB as the first frame is.
        let lead = first.start.0 % BLOCK_FRAMES + (pages.start - shown.start) as u32;
        let nr_units = (u64::from(lead) + (pages.end - pages.start)).div_ceil(BLOCK_FRAMES.into());
        let units = u32::try_from(nr_units).ok();
        let units = units.and_then(|nr| self.state.write().free.take(nr));
        let units = units.ok_or(MapError::NoAddresses {
            wanted: (pages.end - pages.start) << PAGE_SHIFT,
        })?;
        let start = units.start as usize * BLOCK_SIZE + lead as usize * PAGE_SIZE;
        let window = Arc::new(Window {
            mapping: SlabArc::downgrade(&mapping.share()),
            access,
            locked,
            huge: mm.frames.is_huge(),
            address: self.area.addresses().start + start,
            tables: Tables::new(units.end - units.start),
            units,
            pages: pages.clone(),
            readahead: ReadaheadState::new(),
            owed: AtomicU64::new(0),
            streams: Streams::default(),
            stored: OnceLock::new(),
        });
        let mapped = runs.into_iter().try_for_each(|(page, frames)| {
            let (memory, bytes) = mm.frames.linear_memory(frames).expect("there is a range");
            let at = start - (pages.start - shown.start) as usize * PAGE_SIZE
                + (page - shown.start) as usize * PAGE_SIZE;
            // SAFETY: the place is the window's alone. The frames live as long as the file, which has a range until
            // it is dropped, after its windows; the program has been told of the faults.
            unsafe { self.area.map(at, &memory, bytes, access, faults) }
        });
        if let Err(error) = mapped {
            self.unmap(&window);
            return Err(match error {
                Errno::ENOMEM => MapError::TooManyMappings,
                error => MapError::Failed(error),
            });
        }
        self.state
            .write()
            .windows
            .insert(window.units.start, Arc::clone(&window));
        linear.windows.write().push(Arc::clone(&window));
        Ok(window)
    }

    /// Takes a window away. Context: the program does not use it any more.
    pub(crate) fn remove(&self, linear: &LinearFile, window: &Arc<Window>) {
        linear
            .windows
            .write()
            .retain(|other| !Arc::ptr_eq(other, window));
        self.state.write().windows.remove(&window.units.start);
        self.unmap(window);
    }

    /// Gives page tables back that have no page of the cache, about as many as `wanted`; how many.
    ///
    /// Context: takes `windows` of files exclusive.
    pub(crate) fn drop_idle_tables(&self, wanted: u64) -> u64 {
        let (mut gone, mut turns) = (0, 0);
        while gone < wanted && turns < 2 {
            let (first, next) = {
                let mut state = self.state.write();
                let (window, unit) = state.hand;
                let next = (state.windows.range(window..).next())
                    .map(|(&at, next)| (at, Arc::clone(next)));
                state.hand = (next.as_ref().map_or(0, |(at, _)| at + 1), 0);
                let here = next.as_ref().is_some_and(|(at, _)| *at == window);
                (if here { unit } else { 0 }, next)
            };
            let Some((at, window)) = next else {
                turns += 1;
                continue;
            };
            let Some(file) = window.mapping.upgrade().filter(|_| window.locked.is_none()) else {
                continue;
            };
            let most = usize::try_from(wanted - gone).unwrap_or(usize::MAX);
            let (idle, go_on) = window.idle_units(&file, first, most);
            if let Some(unit) = go_on {
                self.state.write().hand = (at, unit);
            }
            if !idle.is_empty() {
                let linear = file.linear.get().expect("it is mapped");
                gone += window.drop_tables(&file, linear, &idle);
            }
        }
        gone
    }

    fn unmap(&self, window: &Window) {
        let units = &window.units;
        let part = units.start as usize * BLOCK_SIZE..units.end as usize * BLOCK_SIZE;
        // SAFETY: nobody uses the window, by the callers' context.
        if let Err(error) = unsafe { self.area.unmap(part) } {
            // The addresses stay taken, and still show what the window showed.
            tracing::error!(%error, "a window could not be unmapped");
            return;
        }
        self.state.write().free.give_back(units.clone());
    }
}
