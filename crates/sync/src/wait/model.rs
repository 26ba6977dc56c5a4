//! The numbers of keys in a shuttle model.

use std::sync::{Mutex, PoisonError};

/// A key that is waited for.
#[derive(Debug)]
struct Numbered {
    key: usize,
    number: usize,
    waiters: usize,
}

/// Keys with waiters have numbers, in the order of their first wait. A key without waiters has none, since its
/// address may become another word's.
#[derive(Debug, Default)]
pub(super) struct Numbers(Mutex<(Vec<Numbered>, usize)>);

impl Numbers {
    fn with<R>(&self, f: impl FnOnce(&mut Vec<Numbered>, &mut usize) -> R) -> R {
        // Never waited for: there is no switch of threads inside.
        let (keys, next) = &mut *self.0.lock().unwrap_or_else(PoisonError::into_inner);
        f(keys, next)
    }

    /// The number of a key; any number if it has no waiters.
    pub(super) fn of(&self, key: usize) -> usize {
        self.with(|keys, next| {
            let numbered = keys.iter().find(|numbered| numbered.key == key);
            numbered.map_or(*next, |numbered| numbered.number)
        })
    }

    /// Gives a key a number while it has waiters.
    pub(super) fn keep(&self, key: usize) -> Kept<'_> {
        self.with(
            |keys, next| match keys.iter_mut().find(|numbered| numbered.key == key) {
                Some(numbered) => numbered.waiters += 1,
                None => {
                    keys.push(Numbered {
                        key,
                        number: *next,
                        waiters: 1,
                    });
                    *next += 1;
                }
            },
        );
        Kept { numbers: self, key }
    }

    /// One waits less.
    pub(super) fn release(&self, key: usize) {
        self.with(|keys, _| {
            if let Some(at) = keys.iter().position(|numbered| numbered.key == key) {
                keys[at].waiters -= 1;
                if keys[at].waiters == 0 {
                    keys.swap_remove(at);
                }
            }
        });
    }
}

/// A key that is waited for.
pub(super) struct Kept<'a> {
    numbers: &'a Numbers,
    key: usize,
}

impl Drop for Kept<'_> {
    fn drop(&mut self) {
        self.numbers.release(self.key);
    }
}
