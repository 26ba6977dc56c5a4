//! [`SlabArc`], [`SlabWeak`] and [`SlabRetired`]: an object of a slab that is shared.
//!
//! # Model
//!
//! | count | counts references that | the reference that takes it to zero |
//! |---|---|---|
//! | `strong` | use the object: [`SlabArc`] | gives up one of `retired`, which all of them had together |
//! | `retired` | keep it whole for its RCU readers: [`SlabRetired`] | drops it, and gives up one of `weak`, likewise |
//! | `weak` | keep its memory: [`SlabWeak`] | frees that |
//!
//! A cache that unpublishes an object [retires](SlabArc::retire) its reference into a limbo. So `strong` counts the
//! users alone, without the waiting references: the last user is known at once, and no reference is given out after
//! it. A reader under RCU takes one unless `strong` is zero ([`SlabArc::try_from_borrow`]). A cache with the only
//! reference may [freeze](SlabArc::freeze) it, and then knows that no reader takes one.
//!
//! The counts lie before the object, so that an object that begins on a cache line has them on the line of the one
//! before it.
//!
//! # Memory ordering
//!
//! Cloning a reference needs no order (`Relaxed`). Each decrement is a `Release`, and the last one is followed by
//! an `Acquire` fence: all other users' actions on the object come before its end. An exchange that takes `strong`
//! from another value than zero, or to zero, is an `Acquire`, which pairs with the `Release` of dropped references,
//! and of [`SlabArc::thaw`].
//!
//! # Safety
//!
//! Each reference stands for one of its count, and all of a kind together for one of the next: the thread that
//! takes `retired` to zero owns the object, the thread that takes `weak` to zero the slot. While `strong` is frozen
//! its last references belong to the freezer.
#![allow(unsafe_code)]

use super::{Pool, Slab, Slot};
use crate::bound::MetadataBound;
use foliocache_sync::Arc;
use foliocache_sync::atomic::{AtomicU32, Ordering, fence};
use foliocache_sync::time::{Duration, sleep};
use std::fmt;
use std::mem::ManuallyDrop;
use std::ops::Deref;
use std::ptr::{self, NonNull};

/// Bytes before each shared object, for its counts. A model's are larger.
pub(super) const COUNT_BYTES: usize = match cfg!(any(loom, shuttle)) {
    true => size_of::<Counts>().next_multiple_of(128),
    false => 16,
};

/// Only references leaked in a loop reach this number.
const MOST: u32 = i32::MAX as u32;

struct Counts {
    strong: Count,
    retired: Count,
    weak: Count,
}

const _: () = assert!(size_of::<Counts>() <= COUNT_BYTES);

struct Count(AtomicU32);

impl Count {
    fn one() -> Self {
        Self(AtomicU32::new(1))
    }

    fn get(&self) {
        // Relaxed: see the module's header.
        if self.0.fetch_add(1, Ordering::Relaxed) > MOST {
            std::process::abort();
        }
    }

    /// Whether it was the last one; then all actions of the others come before.
    #[must_use]
    fn put(&self) -> bool {
        // Release pairs with the fence.
        let last = self.0.fetch_sub(1, Ordering::Release) == 1;
        if last {
            // Acquire: see the module's header.
            fence(Ordering::Acquire);
        }
        last
    }

    /// One more, unless there is none.
    #[must_use]
    fn upgrade(&self) -> bool {
        let more = |count: u32| (count > 0).then_some(count + 1);
        // Acquire: see the module's header. Relaxed on failure: no reference was taken.
        self.0
            .fetch_update(Ordering::Acquire, Ordering::Relaxed, more)
            .is_ok()
    }
}

/// The counts of a shared object.
#[inline(always)]
fn counts_of<'a, T: ?Sized>(object: NonNull<T>) -> &'a Counts {
    // By the address: the pointer may come from a borrow of the object, which the counts are not part of.
    let counts: *const Counts = ptr::with_exposed_provenance(object.addr().get() - COUNT_BYTES);
    // SAFETY: there as long as a reference of any kind is, which all callers have. The slot's provenance is exposed.
    unsafe { &*counts }
}

/// How often memory is requested again, and the wait before each attempt.
const TRIES: usize = 10;
const PAUSE: Duration = Duration::from_millis(2);

/// Memory for shared objects of at most 64 bytes of alignment and a third of a page, side by side in private pages,
/// which are charged. A larger `T` does not compile.
pub struct SharedSlab<T>(pub Slab<T>);

impl<T> SharedSlab<T> {
    /// Objects in a page.
    pub const PER_PAGE: usize = super::per_page::<T>(COUNT_BYTES);

    /// A slab without memory, whose pages are charged to `bound`.
    pub fn new(bound: Arc<dyn MetadataBound>) -> Self {
        Self(Slab::with_space(bound, COUNT_BYTES))
    }

    /// Makes an object; `None` if the bound has no room. Takes a lock of the thread's shard, and now and then a page
    /// from the system. The object may outlive the slab.
    ///
    /// Context: that of [`MetadataBound::charge`].
    pub fn try_alloc(&self, make: impl FnOnce() -> T) -> Option<SlabArc<T>> {
        self.0.reserve().map(|slot| SlabArc::make(slot, make()))
    }

    /// As [`SharedSlab::try_alloc`], for an object that is needed even if the bound has no room. While the bound is short,
    /// this waits a moment for others that were asked to give up memory. Otherwise a kernel that walks a mount gets
    /// ahead of its own forgets, and thousands of inodes are not charged.
    pub fn alloc(&self, value: T) -> SlabArc<T> {
        let mut slot = self.0.reserve();
        for _ in 0..TRIES {
            if slot.is_some() || !self.0.pool.is_short() {
                break;
            }
            sleep(PAUSE);
            slot = self.0.reserve();
        }
        SlabArc::make(slot.unwrap_or_else(|| self.0.reserve_uncharged()), value)
    }

    /// Makes an object in reserved memory, or else as [`SharedSlab::alloc`].
    pub fn make(&self, slot: Option<Slot<T>>, value: T) -> SlabArc<T> {
        match slot {
            Some(slot) => SlabArc::make(slot, value),
            None => self.alloc(value),
        }
    }
}

impl<T> fmt::Debug for SharedSlab<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SharedSlab").finish_non_exhaustive()
    }
}

/// A shared object of a [`SharedSlab`].
pub struct SlabArc<T: ?Sized> {
    object: NonNull<T>,
}

// SAFETY: as of an `Arc`: it shares a `T`, and the last one drops it.
unsafe impl<T: ?Sized + Send + Sync> Send for SlabArc<T> {}
// SAFETY: as an `Arc`: it shares a `T`, and the last one drops it.
unsafe impl<T: ?Sized + Send + Sync> Sync for SlabArc<T> {}

impl<T> SlabArc<T> {
    fn make(slot: Slot<T>, value: T) -> Self {
        let object = slot.into_memory();
        // SAFETY: a free slot, of the size and alignment of a `T`, and private to this function.
        unsafe { object.write(value) };
        // SAFETY: the bytes before the object are its own, see `SharedSlab::new`.
        let counts = unsafe { object.byte_sub(COUNT_BYTES) };
        let ones = Counts {
            strong: Count::one(),
            retired: Count::one(),
            weak: Count::one(),
        };
        // SAFETY: the bytes before the object belong to it, see `SharedSlab::new`.
        unsafe { counts.cast().write(ones) };
        Self { object }
    }

    /// The reference as a pointer, for [`SlabArc::from_raw`].
    pub fn into_raw(self) -> NonNull<T> {
        ManuallyDrop::new(self).object
    }

    /// As [`SlabArc::from_raw`], by a borrow.
    ///
    /// # Safety
    ///
    /// As for [`SlabArc::from_raw`].
    pub unsafe fn adopt(object: &T) -> Self {
        Self {
            object: pointer_to(object),
        }
    }

    /// One more reference of an object.
    ///
    /// # Safety
    ///
    /// There is one, which is not frozen.
    #[inline]
    pub unsafe fn from_borrow(object: &T) -> Self {
        let object = pointer_to(object);
        counts_of(object).strong.get();
        Self { object }
    }

    /// One more reference of an object, unless there is none, or it is frozen.
    ///
    /// # Safety
    ///
    /// A reference of some kind keeps the memory, or it is freed a grace period after a [`SlabRetired`] that readers
    /// like the caller still wait for.
    #[inline]
    pub unsafe fn try_from_borrow(object: &T) -> Option<Self> {
        let object = pointer_to(object);
        counts_of(object).strong.upgrade().then(|| Self { object })
    }

    /// References at some moment; none while it is frozen.
    ///
    /// # Safety
    ///
    /// As for [`SlabArc::try_from_borrow`].
    pub unsafe fn count_of(object: &T) -> u32 {
        // Relaxed: a hint.
        counts_of(pointer_to(object))
            .strong
            .0
            .load(Ordering::Relaxed)
    }

    /// Whether the caller's `references` are all references. Then no one gets another, until [`SlabArc::thaw`], and
    /// the actions of former holders come before.
    ///
    /// # Safety
    ///
    /// These references are the caller's, if there are no others. It gives them up by
    /// [`SlabArc::retire_frozen`], or thaws them.
    pub unsafe fn freeze(object: &T, references: u32) -> bool {
        let strong = &counts_of(pointer_to(object)).strong.0;
        // Acquire: see the module's header. Relaxed on failure: nothing is concluded.
        strong
            .compare_exchange(references, 0, Ordering::Acquire, Ordering::Relaxed)
            .is_ok()
    }

    /// Takes a [`SlabArc::freeze`] back.
    ///
    /// # Safety
    ///
    /// It was frozen so by the caller.
    pub unsafe fn thaw(object: &T, references: u32) {
        // Release: see the module's header.
        counts_of(pointer_to(object))
            .strong
            .0
            .store(references, Ordering::Release);
    }

    /// Retires the references that the caller has frozen.
    ///
    /// # Safety
    ///
    /// The caller has frozen them, and no longer owns them.
    pub unsafe fn retire_frozen(object: &T) -> SlabRetired<T> {
        // The one of `retired` that they stood for together.
        SlabRetired {
            object: pointer_to(object),
        }
    }

    /// Gives the reference up, and keeps the object whole for its readers.
    pub fn retire(self) -> SlabRetired<T> {
        let object = self.object;
        counts_of(object).retired.get();
        SlabRetired { object }
    }

    /// Drops the reference. If it is the last one `last` is called before the object is dropped: at once, though readers
    /// may still look at it.
    pub fn put(self, last: impl FnOnce(&T)) {
        let object = ManuallyDrop::new(self).object;
        if counts_of(object).strong.put() {
            let retired = SlabRetired { object };
            // SAFETY: `retired` keeps it.
            last(unsafe { retired.object.as_ref() });
        }
    }

    /// A reference that does not keep the object.
    pub fn downgrade(this: &Self) -> SlabWeak<T> {
        counts_of(this.object).weak.get();
        SlabWeak {
            object: this.object,
        }
    }
}

/// The object as a pointer that may end it, which a borrow may not.
fn pointer_to<T>(object: &T) -> NonNull<T> {
    // The slot's provenance is exposed.
    let object = ptr::with_exposed_provenance_mut(ptr::from_ref(object).addr());
    NonNull::new(object).expect("a reference is not null")
}

impl<T: ?Sized> SlabArc<T> {
    /// Takes a reference over.
    ///
    /// # Safety
    ///
    /// It comes from [`SlabArc::into_raw`], of the object's own type or of a trait's, and is taken over once.
    pub unsafe fn from_raw(object: NonNull<T>) -> Self {
        Self { object }
    }

    /// Whether both are of one object.
    pub fn ptr_eq(one: &Self, other: &Self) -> bool {
        ptr::addr_eq(one.object.as_ptr(), other.object.as_ptr())
    }
}

impl<T: ?Sized> Clone for SlabArc<T> {
    #[inline]
    fn clone(&self) -> Self {
        counts_of(self.object).strong.get();
        Self {
            object: self.object,
        }
    }
}

impl<T: ?Sized> Deref for SlabArc<T> {
    type Target = T;

    #[inline(always)]
    fn deref(&self) -> &T {
        // SAFETY: it exists as long as this reference does.
        unsafe { self.object.as_ref() }
    }
}

impl<T: ?Sized> Drop for SlabArc<T> {
    fn drop(&mut self) {
        if counts_of(self.object).strong.put() {
            drop(SlabRetired {
                object: self.object,
            });
        }
    }
}

impl<T: ?Sized + fmt::Debug> fmt::Debug for SlabArc<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(f)
    }
}

/// A reference that was given up, and keeps the object whole for its readers.
pub struct SlabRetired<T: ?Sized> {
    object: NonNull<T>,
}

// SAFETY: as of a `SlabArc`.
unsafe impl<T: ?Sized + Send + Sync> Send for SlabRetired<T> {}

impl<T: ?Sized> Drop for SlabRetired<T> {
    fn drop(&mut self) {
        if counts_of(self.object).retired.put() {
            // SAFETY: it was the last one.
            unsafe { self.object.drop_in_place() };
            put_weak(self.object.cast());
        }
    }
}

/// A reference of an object that does not keep it, but its memory.
pub struct SlabWeak<T> {
    object: NonNull<T>,
}

// SAFETY: as of a `Weak`.
unsafe impl<T: Send + Sync> Send for SlabWeak<T> {}
// SAFETY: as a `Weak`.
unsafe impl<T: Send + Sync> Sync for SlabWeak<T> {}

impl<T> SlabWeak<T> {
    /// Whether the object is still in use, at this moment.
    pub fn is_alive(&self) -> bool {
        // Relaxed: no reference is taken.
        counts_of(self.object).strong.0.load(Ordering::Relaxed) > 0
    }

    /// The object, if it is still in use. One that a cache is about to evict may be missed.
    pub fn upgrade(&self) -> Option<SlabArc<T>> {
        let object = self.object;
        counts_of(object)
            .strong
            .upgrade()
            .then(|| SlabArc { object })
    }
}

impl<T> fmt::Debug for SlabWeak<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("(SlabWeak)")
    }
}

impl<T> Drop for SlabWeak<T> {
    fn drop(&mut self) {
        put_weak(self.object.cast());
    }
}

/// Drops one of the weak references of an object.
fn put_weak(object: NonNull<u8>) {
    if counts_of(object).weak.put() {
        // SAFETY: the object is dropped, and its slot is free now.
        unsafe { Pool::put(object) };
    }
}
