//! Pages of a slab for models of them: a [`Slab`](super::Slab) has none in a model, where each object is an
//! allocation of its own.
//!
//! # Safety
//!
//! As stated in [`super`].
#![allow(unsafe_code)]

use super::counts::Counts;
use super::page::Pool;
use crate::bound::Unbounded;
use foliocache_sync::{Arc, Weak};
use std::marker::PhantomData;
use std::mem::ManuallyDrop;
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
        // SAFETY: a free slot, of the size and alignment of a `T`, and nobody else's.
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

/// A shared object with the counts of a [`SlabArc`](super::SlabArc), in a box.
pub struct Shared<T>(NonNull<Boxed<T>>);

/// A reference that does not keep it.
pub struct WeakShared<T>(NonNull<Boxed<T>>);

struct Boxed<T> {
    counts: Counts,
    value: ManuallyDrop<T>,
}

// SAFETY: as of an `Arc`.
unsafe impl<T: Send + Sync> Send for Shared<T> {}
// SAFETY: as of a `Weak`.
unsafe impl<T: Send + Sync> Send for WeakShared<T> {}

fn counts<'a, T>(object: NonNull<Boxed<T>>) -> &'a Counts {
    // SAFETY: all callers have a reference of some kind, which keeps the memory.
    unsafe { &(*object.as_ptr()).counts }
}

fn put_weak<T>(object: NonNull<Boxed<T>>) {
    if counts(object).put_weak() {
        // SAFETY: the last one, and made so.
        drop(unsafe { Box::from_raw(object.as_ptr()) });
    }
}

impl<T> Shared<T> {
    /// The first reference.
    pub fn new(value: T) -> Self {
        let counts = Counts::one();
        let value = ManuallyDrop::new(value);
        Self(NonNull::from(Box::leak(Box::new(Boxed { counts, value }))))
    }

    /// A weak reference.
    pub fn downgrade(&self) -> WeakShared<T> {
        counts(self.0).get_weak();
        WeakShared(self.0)
    }
}

impl<T> WeakShared<T> {
    /// The object, if it is there.
    pub fn upgrade(&self) -> Option<Shared<T>> {
        counts(self.0).upgrade().then(|| Shared(self.0))
    }
}

impl<T> Clone for Shared<T> {
    fn clone(&self) -> Self {
        counts(self.0).get();
        Self(self.0)
    }
}

impl<T> Deref for Shared<T> {
    type Target = T;

    fn deref(&self) -> &T {
        // SAFETY: there as long as this reference is.
        unsafe { &(*self.0.as_ptr()).value }
    }
}

impl<T> Drop for Shared<T> {
    fn drop(&mut self) {
        if counts(self.0).put() {
            // SAFETY: the last one; the memory is there.
            let value = unsafe { &mut (*self.0.as_ptr()).value };
            // SAFETY: it is not used again.
            unsafe { ManuallyDrop::drop(value) };
            put_weak(self.0);
        }
    }
}

impl<T> Drop for WeakShared<T> {
    fn drop(&mut self) {
        put_weak(self.0);
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
