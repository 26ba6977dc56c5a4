//! [`SlabArc`] and [`SlabWeak`]: an object of a slab that is shared.
//!
//! # Model
//!
//! An [`Arc`](foliocache_sync::Arc). Its counts are the word before the object, so that an
//! object that begins on a cache line has them on the line of the one before it. In a model it is an `Arc`:
//! what is modelled is the use of objects; the [counts](super::counts) have a model of their own.
//!
//! # Safety
//!
//! Each `SlabArc` stands for one of `strong`; the one that takes it to zero owns the object. Each `SlabWeak`, and all
//! `SlabArc`s together, stand for one of `weak`; the one that takes it to zero owns the slot.
#![allow(unsafe_code)]

use super::Slab;
use crate::bound::{MetadataBound, Unbounded};
use foliocache_sync::Arc;
use foliocache_sync::time::{Duration, sleep};
use std::fmt;
use std::mem::ManuallyDrop;
use std::ops::Deref;
use std::ptr::{self, NonNull};

#[cfg(not(any(loom, shuttle)))]
use super::counts::Counts;
#[cfg(not(any(loom, shuttle)))]
use super::page::{COUNT_BYTES, Pool};
#[cfg(any(loom, shuttle))]
use foliocache_sync::Weak;

/// The counts of a shared object.
#[cfg(not(any(loom, shuttle)))]
#[inline(always)]
fn counts_of<'a, T: ?Sized>(object: NonNull<T>) -> &'a Counts {
    // By the address: the pointer may come from a borrow of the object, which the counts are not part of.
    let counts: *const Counts = ptr::with_exposed_provenance(object.addr().get() - COUNT_BYTES);
    // SAFETY: there as long as a reference of any kind is, which all callers have. `new_page` exposed the provenance.
    unsafe { &*counts }
}

/// How often memory is asked for again, and how long is waited before.
const TRIES: usize = 10;
const PAUSE: Duration = Duration::from_millis(2);

/// Memory for shared objects of at most 64 bytes of alignment and a third of a page, side by side in pages of
/// their own, which are charged. A larger `T` does not compile.
#[derive(Debug)]
pub struct SharedSlab<T>(Slab<T>);

/// A shared object of a [`SharedSlab`].
pub struct SlabArc<T: ?Sized> {
    #[cfg(not(any(loom, shuttle)))]
    object: NonNull<T>,
    #[cfg(any(loom, shuttle))]
    object: Arc<T>,
}

// SAFETY: as of an `Arc`: it shares a `T`, and the last one drops it.
unsafe impl<T: ?Sized + Send + Sync> Send for SlabArc<T> {}
// SAFETY: as above.
unsafe impl<T: ?Sized + Send + Sync> Sync for SlabArc<T> {}

impl<T> SharedSlab<T> {
    /// A slab without memory, whose pages are charged to `bound`.
    pub fn new(bound: Arc<dyn MetadataBound>) -> Self {
        #[cfg(not(any(loom, shuttle)))]
        return Self(Slab::with_space(bound, COUNT_BYTES));
        #[cfg(any(loom, shuttle))]
        Self(Slab::with_space(bound, 0))
    }

    /// Makes an object; `None` if the bound has no room. Takes a lock of the thread's shard, and now and then a page
    /// from the system. The object may outlive the slab.
    ///
    /// Context: that of [`MetadataBound::charge`].
    pub fn try_alloc(&self, make: impl FnOnce() -> T) -> Option<SlabArc<T>> {
        self.0.reserve().map(|slot| SlabArc::make(slot, make()))
    }

    /// As [`SharedSlab::try_alloc`], where the object is needed whatever the bound says. While the bound is short it waits
    /// a moment for others, who were asked to give up some of theirs.
    pub fn alloc(&self, value: T) -> SlabArc<T> {
        let mut slot = self.0.reserve();
        for _ in 0..TRIES {
            if slot.is_some() || !self.0.is_short() {
                break;
            }
            sleep(PAUSE);
            slot = self.0.reserve();
        }
        SlabArc::make(slot.unwrap_or_else(|| self.0.reserve_uncharged()), value)
    }

    /// Bytes that are charged for the pages. One load.
    pub fn bytes(&self) -> u64 {
        self.0.bytes()
    }

    /// Objects that there is charged room for. Some locks.
    pub fn spare(&self) -> u64 {
        self.0.spare()
    }

    pub(crate) fn slab(&self) -> &Slab<T> {
        &self.0
    }
}

impl<T> SlabArc<T> {
    /// An object in a slab of its own, that is not charged: for tests.
    pub fn new(value: T) -> Self {
        SharedSlab::new(Arc::new(Unbounded)).alloc(value)
    }

    #[cfg(not(any(loom, shuttle)))]
    fn make(slot: super::Slot<T>, value: T) -> Self {
        let object = slot.fill(value).into_raw();
        // SAFETY: the word before the object is its own, see `SharedSlab::new`.
        let counts = unsafe { object.cast::<Counts>().sub(1) };
        // SAFETY: as above.
        unsafe { counts.write(Counts::one()) };
        Self { object }
    }

    #[cfg(any(loom, shuttle))]
    fn make(_slot: super::Slot<T>, value: T) -> Self {
        let object = Arc::new(value);
        Self { object }
    }

    /// The reference as a pointer, for [`SlabArc::from_raw`].
    pub(crate) fn into_raw(self) -> NonNull<T> {
        #[cfg(not(any(loom, shuttle)))]
        return ManuallyDrop::new(self).object;
        #[cfg(any(loom, shuttle))]
        {
            let this = ManuallyDrop::new(self);
            // SAFETY: taken out once, since `this` is not dropped.
            let object = Arc::into_raw(unsafe { ptr::read(&this.object) });
            // For `from_raw` by a borrow.
            object.expose_provenance();
            NonNull::new(object.cast_mut()).expect("an Arc is not null")
        }
    }

    /// Takes a reference over.
    ///
    /// # Safety
    ///
    /// It comes from [`SlabArc::into_raw`], or is one that [`SlabArc::increment`] counted, and nobody else takes it.
    pub(crate) unsafe fn from_raw(object: NonNull<T>) -> Self {
        #[cfg(not(any(loom, shuttle)))]
        return Self { object };
        #[cfg(any(loom, shuttle))]
        {
            let object = ptr::with_exposed_provenance(object.addr().get());
            // SAFETY: the caller's contract.
            let object = unsafe { Arc::from_raw(object) };
            Self { object }
        }
    }

    /// As [`SlabArc::from_raw`], by a borrow.
    ///
    /// # Safety
    ///
    /// As for [`SlabArc::from_raw`].
    pub(crate) unsafe fn adopt(object: &T) -> Self {
        // SAFETY: the caller's contract.
        ManuallyDrop::into_inner(unsafe { Self::borrowed(object) })
    }

    /// One more reference of an object.
    ///
    /// # Safety
    ///
    /// The object is in a `SlabArc`, whose count is one or more.
    #[inline]
    pub(crate) unsafe fn from_borrow(object: &T) -> Self {
        // SAFETY: the caller's contract.
        (*unsafe { Self::borrowed(object) }).clone()
    }

    /// References at some moment.
    ///
    /// # Safety
    ///
    /// As for [`SlabArc::from_borrow`].
    pub(crate) unsafe fn count_of(object: &T) -> usize {
        // SAFETY: the caller's contract.
        Self::count(&*unsafe { Self::borrowed(object) })
    }

    /// A reference that is not counted.
    ///
    /// # Safety
    ///
    /// As for [`SlabArc::from_borrow`], as long as it is used.
    unsafe fn borrowed(object: &T) -> ManuallyDrop<Self> {
        // A borrow may not be used for the end of the object; `new_page` and `into_raw` exposed the provenance.
        let object = ptr::with_exposed_provenance_mut(ptr::from_ref(object).addr());
        let object = NonNull::new(object).expect("a reference is not null");
        // SAFETY: the caller's contract; it is not dropped.
        ManuallyDrop::new(unsafe { Self::from_raw(object) })
    }
}

impl<T: ?Sized> SlabArc<T> {
    /// References at some moment.
    pub fn count(this: &Self) -> usize {
        #[cfg(not(any(loom, shuttle)))]
        return counts_of(this.object).strong();
        #[cfg(any(loom, shuttle))]
        Arc::strong_count(&this.object)
    }

    /// Whether both are of one object.
    pub fn ptr_eq(one: &Self, other: &Self) -> bool {
        ptr::addr_eq(&raw const **one, &raw const **other)
    }
}

impl<T: ?Sized> Clone for SlabArc<T> {
    #[inline]
    fn clone(&self) -> Self {
        #[cfg(not(any(loom, shuttle)))]
        {
            counts_of(self.object).get();
            Self {
                object: self.object,
            }
        }
        #[cfg(any(loom, shuttle))]
        Self {
            object: Arc::clone(&self.object),
        }
    }
}

impl<T: ?Sized> Deref for SlabArc<T> {
    type Target = T;

    #[inline(always)]
    fn deref(&self) -> &T {
        #[cfg(not(any(loom, shuttle)))]
        // SAFETY: it is there as long as this reference is.
        return unsafe { self.object.as_ref() };
        #[cfg(any(loom, shuttle))]
        &self.object
    }
}

#[cfg(not(any(loom, shuttle)))]
impl<T: ?Sized> Drop for SlabArc<T> {
    fn drop(&mut self) {
        if counts_of(self.object).put() {
            // SAFETY: it was the last one.
            unsafe { self.object.drop_in_place() };
            put_weak(self.object.cast());
        }
    }
}

impl<T: ?Sized + fmt::Debug> fmt::Debug for SlabArc<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(f)
    }
}

/// A reference of an object that does not keep it, but its memory.
pub struct SlabWeak<T> {
    #[cfg(not(any(loom, shuttle)))]
    object: NonNull<T>,
    #[cfg(any(loom, shuttle))]
    object: Weak<T>,
}

// SAFETY: as of a `Weak`.
unsafe impl<T: Send + Sync> Send for SlabWeak<T> {}
// SAFETY: as above.
unsafe impl<T: Send + Sync> Sync for SlabWeak<T> {}

impl<T> SlabArc<T> {
    /// A reference that does not keep the object.
    pub fn downgrade(this: &Self) -> SlabWeak<T> {
        #[cfg(not(any(loom, shuttle)))]
        {
            counts_of(this.object).get_weak();
            SlabWeak {
                object: this.object,
            }
        }
        #[cfg(any(loom, shuttle))]
        SlabWeak {
            object: Arc::downgrade(&this.object),
        }
    }
}

impl<T> SlabWeak<T> {
    /// The object, if it is still there.
    pub fn upgrade(&self) -> Option<SlabArc<T>> {
        #[cfg(not(any(loom, shuttle)))]
        {
            let object = self.object;
            counts_of(object).upgrade().then(|| SlabArc { object })
        }
        #[cfg(any(loom, shuttle))]
        self.object.upgrade().map(|object| SlabArc { object })
    }
}

/// Drops one of the weak references.
#[cfg(not(any(loom, shuttle)))]
fn put_weak(object: NonNull<u8>) {
    if counts_of(object).put_weak() {
        // SAFETY: the object is dropped, and its slot is free now.
        unsafe { Pool::put(object) };
    }
}

#[cfg(not(any(loom, shuttle)))]
impl<T> Drop for SlabWeak<T> {
    fn drop(&mut self) {
        put_weak(self.object.cast());
    }
}

impl<T> fmt::Debug for SlabWeak<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SlabWeak").finish_non_exhaustive()
    }
}
