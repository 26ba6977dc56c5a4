//! Replaces the pages of a slab in models, and a model of those.
//!
//! # Memory ordering
//!
//! A publication increments `published` (`Release`), and a scan takes it over (`Acquire`) before it looks: it sees the
//! objects made that it meets.
//!
//! # Safety
//!
//! A model runs one thread at a time, and switches threads only where a thread uses something that the model
//! watches. So unwatched data is changed by one thread at a time. Otherwise as stated in [`super`].
#![allow(unsafe_code)]

use super::shared::COUNT_BYTES;
use crate::bound::MetadataBound;
use foliocache_sync::Arc;
use foliocache_sync::atomic::{AtomicU64, Ordering};
use std::alloc::Layout;
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::ptr::{self, NonNull};

/// Bytes from a page to its object.
const BEFORE: usize = 128 + COUNT_BYTES;

/// An allocation for one object.
struct Page {
    pool: Arc<Pool>,
    layout: Layout,
    visible: Cell<bool>,
    /// Objects that the pool gave out before.
    number: usize,
}

const _: () = assert!(size_of::<Page>() <= 128);

/// As that of `page`, with each object in a separate page.
pub(crate) struct Pool {
    layout: Layout,
    bound: Arc<dyn MetadataBound>,
    /// Orders publications before scans. Stale values would be those of a scan that came earlier.
    published: AtomicU64,
    pages: RefCell<VecDeque<NonNull<Page>>>,
    /// Objects ever given out.
    given: Cell<usize>,
}

/// The number of a pool's object that is kept alive; zero for none.
#[cfg(shuttle)]
pub(super) fn number_of(object: usize) -> usize {
    NonNull::new(ptr::with_exposed_provenance_mut(object)).map_or(0, |object| {
        // SAFETY: there, since there is an object.
        unsafe { Pool::page_of(object).as_ref() }.number
    })
}

// SAFETY: see the module's header.
unsafe impl Send for Pool {}
// SAFETY: see the module's header.
unsafe impl Sync for Pool {}

/// As if each had a page.
pub(crate) const fn per_page<T>(_before: usize) -> usize {
    1
}

impl Pool {
    pub(crate) fn new<T>(bound: Arc<dyn MetadataBound>, _before: usize) -> Arc<Pool> {
        let layout = Layout::from_size_align(BEFORE + size_of::<T>(), 128);
        Arc::new(Pool {
            layout: layout.expect("an object has a layout"),
            bound,
            published: AtomicU64::new(0),
            pages: RefCell::default(),
            given: Cell::new(0),
        })
    }

    /// A bound may refuse them all.
    pub(crate) fn take(self: &Arc<Self>) -> Option<NonNull<u8>> {
        self.bound.charge(0).then(|| self.take_uncharged())
    }

    pub(crate) fn take_uncharged(self: &Arc<Self>) -> NonNull<u8> {
        // SAFETY: it has a size.
        let page = NonNull::new(unsafe { std::alloc::alloc(self.layout) }).expect("memory");
        let _ = page.as_ptr().expose_provenance();
        let header = Page {
            pool: Arc::clone(self),
            layout: self.layout,
            visible: Cell::new(false),
            number: self.given.get() + 1,
        };
        self.given.set(header.number);
        // SAFETY: within the allocation.
        unsafe { page.cast().write(header) };
        self.pages.borrow_mut().push_back(page.cast());
        // SAFETY: within the allocation.
        unsafe { page.byte_add(BEFORE) }
    }

    fn page_of(object: NonNull<u8>) -> NonNull<Page> {
        let page = ptr::with_exposed_provenance_mut(object.addr().get() - BEFORE);
        NonNull::new(page).expect("an object has a page")
    }

    pub(crate) unsafe fn put(object: NonNull<u8>) {
        let page = Self::page_of(object);
        // SAFETY: the page is no longer in use.
        let Page { pool, layout, .. } = unsafe { page.read() };
        pool.pages.borrow_mut().retain(|&other| other != page);
        // SAFETY: allocated so.
        unsafe { std::alloc::dealloc(page.as_ptr().cast(), layout) };
    }

    pub(crate) unsafe fn publish(object: NonNull<u8>) {
        // SAFETY: there, since there is an object.
        let page = unsafe { Self::page_of(object).as_ref() };
        page.pool.published.fetch_add(1, Ordering::Release);
        page.visible.set(true);
    }

    pub(crate) unsafe fn hide(object: NonNull<u8>) {
        // SAFETY: there, since there is an object.
        unsafe { Self::page_of(object).as_ref() }.visible.set(false);
    }

    pub(crate) fn next_page(&self) -> Option<impl Iterator<Item = NonNull<u8>> + use<>> {
        self.published.fetch_add(0, Ordering::Acquire);
        let mut pages = self.pages.borrow_mut();
        let page = pages.pop_front()?;
        pages.push_back(page);
        // SAFETY: in the list, so not freed.
        let visible = unsafe { page.as_ref() }.visible.get();
        // SAFETY: within the allocation.
        Some(
            visible
                .then(|| unsafe { page.byte_add(BEFORE) }.cast())
                .into_iter(),
        )
    }

    pub(crate) fn round(&self) -> usize {
        self.pages.borrow().len()
    }

    pub(crate) fn slots(&self) -> usize {
        1
    }

    pub(crate) fn is_short(&self) -> bool {
        self.bound.is_short()
    }

    pub(crate) fn close(&self) {}

    // Nothing is charged.

    pub(crate) fn bytes(&self) -> u64 {
        0
    }

    pub(crate) fn uncharged(&self) -> u64 {
        0
    }

    pub(crate) fn spare(&self) -> u64 {
        0
    }
}

/// Pages of a slab for a model of them.
#[cfg(loom)]
pub mod pages {
    use super::super::page::Pool;
    use crate::Unbounded;
    use foliocache_sync::{Arc, Weak};
    use std::marker::PhantomData;
    use std::ops::Deref;
    use std::ptr::NonNull;

    /// Objects in pages of two slots.
    pub struct Pages<T> {
        pool: Arc<Pool>,
        _objects: PhantomData<fn(T) -> T>,
    }

    /// Tells whether any page of a pool is in use.
    pub struct PoolWatch(Weak<Pool>);

    /// An object in a page.
    pub struct Paged<T>(NonNull<T>);

    // SAFETY: it owns a `T`.
    unsafe impl<T: Send> Send for Paged<T> {}

    impl<T> Pages<T> {
        /// No page yet.
        #[expect(clippy::new_without_default, reason = "one caller")]
        pub fn new() -> Self {
            Self {
                pool: Pool::new::<T>(Arc::new(Unbounded), 0),
                _objects: PhantomData,
            }
        }

        /// Puts an object into a slot.
        pub fn alloc(&self, value: T) -> Paged<T> {
            let object: NonNull<T> = self.pool.take_uncharged().cast();
            // SAFETY: a free slot, of the size and alignment of a `T`, and private to this
            // function.
            unsafe { object.write(value) };
            Paged(object)
        }

        /// For after the end.
        pub fn watch(&self) -> PoolWatch {
            PoolWatch(Arc::downgrade(&self.pool))
        }
    }

    impl<T> Drop for Pages<T> {
        fn drop(&mut self) {
            self.pool.close();
        }
    }

    impl PoolWatch {
        /// Whether the slab or a page of it is left.
        pub fn is_alive(&self) -> bool {
            self.0.strong_count() > 0
        }
    }

    impl<T> Deref for Paged<T> {
        type Target = T;

        fn deref(&self) -> &T {
            // SAFETY: it is owned.
            unsafe { self.0.as_ref() }
        }
    }

    impl<T> Drop for Paged<T> {
        fn drop(&mut self) {
            // SAFETY: it is owned, and not touched again.
            unsafe { self.0.drop_in_place() };
            // SAFETY: its slot is free now.
            unsafe { Pool::put(self.0.cast()) };
        }
    }
}
