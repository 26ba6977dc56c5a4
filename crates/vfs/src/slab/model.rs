//! Pages of a slab for models of them: a [`Slab`](super::Slab) has none in a model, where each object is an
//! allocation of its own.
//!
//! # Safety
//!
//! As stated in [`super`].
#![allow(unsafe_code)]

use super::page::Pool;
use crate::bound::Unbounded;
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
