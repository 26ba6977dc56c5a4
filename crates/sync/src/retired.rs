//! [`Retired`]: what readers may still be using, until they are gone.
//!
//! # Model
//!
//! ```text
//!  add ──▶ filling ──▶ waiting ──▶ the caller's
//!            one cookie    grace period over
//! ```
//!
//! When *waiting* is empty, *filling* becomes *waiting* and takes one grace-period cookie, which covers all of it. So
//! everything waits two grace periods at most, and one poll serves a whole list.
//!
//! # Invariants
//!
//! 1. An item leaves only after a grace period that began after it was added.

use crate::rcu::{self, GpCookie};

/// A list of items.
pub trait List: Default {
    /// Items in the list.
    fn len(&self) -> usize;

    /// Whether there are none.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Takes all items of `other`.
    fn append(&mut self, other: &mut Self);
}

impl<T> List for Vec<T> {
    fn len(&self) -> usize {
        self.len()
    }

    fn append(&mut self, other: &mut Self) {
        match self.is_empty() {
            true => std::mem::swap(self, other),
            false => self.append(other),
        }
    }
}

/// Items that no new reader can find. Not synchronised; dropping it drops the items at once.
#[derive(Debug, Default)]
pub struct Retired<L> {
    filling: L,
    waiting: L,
    /// `Some` exactly if `waiting` is not empty.
    cookie: Option<GpCookie>,
}

impl<L: List> Retired<L> {
    /// The list that takes items which wait from now on.
    pub fn filling(&mut self) -> &mut L {
        &mut self.filling
    }

    /// Items that wait.
    #[must_use]
    pub fn len(&self) -> usize {
        self.filling.len() + self.waiting.len()
    }

    /// Whether nothing waits.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Adds those items to `free` whose readers are gone. Does not wait.
    pub fn advance(&mut self, free: &mut L) {
        // Twice: when `waiting` is done, `filling` can begin to wait, and may be done as well.
        for _ in 0..2 {
            let over = |cookie| rcu::poll(cookie) || crate::planted!(freed_under_readers);
            if self.cookie.is_some_and(over) {
                free.append(&mut self.waiting);
                self.cookie = None;
            }
            if self.cookie.is_some() || self.filling.is_empty() {
                return;
            }
            self.waiting.append(&mut self.filling);
            self.cookie = Some(rcu::start_poll());
        }
    }

    /// All items, whether they have readers or not.
    pub fn take_all(&mut self) -> L {
        let mut all = std::mem::take(&mut self.waiting);
        all.append(&mut self.filling);
        self.cookie = None;
        all
    }
}
