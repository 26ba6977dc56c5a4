//! Buffers that requests to workers own: a fixed amount of memory, handed out first come, first
//! served.
//!
//! # Model
//!
//! The amount is charged to the bound once. Who finds it used up waits in a queue; whoever gives
//! some back hands it to the first of them.
//!
//! # Invariants
//!
//! 1. `free` and what is granted, in use or not taken yet, are together the amount.
//! 2. Whoever stands in the queue needs more than is free, or stands behind somebody who does.
//!
//! # Locking
//!
//! *Protects*: the amount and the queue. *Order*: leaf; nobody is woken under it. *May block*: no.

use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};

use foliocache_mm::{MetadataCharge, Mm, PAGE_SIZE};
use foliocache_sync::{Arc, Mutex};
use foliocache_sys::Errno;

/// A stock of memory for buffers.
pub(super) struct Buffers {
    stock: Mutex<Stock>,
    /// The longest buffer, in bytes.
    longest: usize,
    mm: Arc<Mm>,
    /// What stands for the memory in the bound.
    _charge: Arc<MetadataCharge>,
}

struct Stock {
    free: usize,
    queue: VecDeque<Waiter>,
    next_ticket: u64,
}

struct Waiter {
    ticket: u64,
    wanted: usize,
    /// The memory is his; he stays in the queue until he takes it.
    granted: bool,
    waker: Waker,
}

impl Stock {
    /// Grants what is free to those in front; returns whom to wake.
    fn grant(&mut self) -> Vec<Waker> {
        let mut woken = Vec::new();
        for waiter in &mut self.queue {
            if waiter.granted {
                continue;
            }
            if waiter.wanted > self.free {
                break;
            }
            self.free -= waiter.wanted;
            waiter.granted = true;
            woken.push(waiter.waker.clone());
        }
        woken
    }

    fn at(&self, ticket: u64) -> Option<usize> {
        self.queue.iter().position(|waiter| waiter.ticket == ticket)
    }
}

impl Buffers {
    /// A stock of `bytes` bytes, part of `charge`, out of which one buffer takes at most `longest`.
    pub(super) fn new(
        mm: &Arc<Mm>,
        charge: &Arc<MetadataCharge>,
        bytes: usize,
        longest: usize,
    ) -> Arc<Self> {
        debug_assert!(0 < longest && longest <= bytes);
        Arc::new(Self {
            stock: Mutex::new(Stock {
                free: bytes,
                queue: VecDeque::new(),
                next_ticket: 0,
            }),
            longest,
            mm: Arc::clone(mm),
            _charge: Arc::clone(charge),
        })
    }

    /// Bytes not in use.
    pub(super) fn free(&self) -> usize {
        self.stock.lock().free
    }

    /// A buffer of `wanted` bytes, or the longest there is, once it is this one's turn.
    pub(super) fn take(self: &Arc<Self>, wanted: usize) -> Take {
        Take {
            buffers: Arc::clone(self),
            wanted: wanted.clamp(1, self.longest),
            ticket: None,
        }
    }

    fn give_back(&self, bytes: usize) {
        let mut stock = self.stock.lock();
        stock.free += bytes;
        let woken = stock.grant();
        drop(stock);
        woken.into_iter().for_each(Waker::wake);
    }
}

/// The future of [`Buffers::take`].
pub(super) struct Take {
    buffers: Arc<Buffers>,
    wanted: usize,
    /// Its place in the queue, if it stands there.
    ticket: Option<u64>,
}

impl Future for Take {
    type Output = Result<Buffer, Errno>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        self.buffers.mm.check_fork()?;
        let this = &mut *self;
        let mut stock = this.buffers.stock.lock();
        match this.ticket.and_then(|ticket| stock.at(ticket)) {
            Some(at) if stock.queue[at].granted => {
                stock.queue.remove(at);
                this.ticket = None;
            }
            Some(at) => {
                stock.queue[at].waker.clone_from(context.waker());
                return Poll::Pending;
            }
            None if stock.queue.iter().all(|waiter| waiter.granted)
                && stock.free >= this.wanted =>
            {
                stock.free -= this.wanted;
            }
            None => {
                let ticket = stock.next_ticket;
                stock.next_ticket += 1;
                this.ticket = Some(ticket);
                stock.queue.push_back(Waiter {
                    ticket,
                    wanted: this.wanted,
                    granted: false,
                    waker: context.waker().clone(),
                });
                return Poll::Pending;
            }
        }
        drop(stock);
        Poll::Ready(Ok(Buffer {
            bytes: Vec::with_capacity(this.wanted),
            room: this.wanted,
            buffers: Arc::clone(&this.buffers),
        }))
    }
}

impl Drop for Take {
    fn drop(&mut self) {
        let Some(ticket) = self.ticket else { return };
        // A thread of the parent may have held the lock when a child was forked.
        if self.buffers.mm.check_fork().is_err() {
            return;
        }
        let mut stock = self.buffers.stock.lock();
        let Some(at) = stock.at(ticket) else { return };
        let waiter = stock.queue.remove(at);
        if let Some(waiter) = &waiter
            && waiter.granted
        {
            stock.free += waiter.wanted;
        }
        // Those behind him may have waited for him alone.
        let woken = stock.grant();
        drop(stock);
        drop(waiter);
        woken.into_iter().for_each(Waker::wake);
    }
}

/// Memory out of a stock, empty at first; dropping it gives it back.
pub(super) struct Buffer {
    /// Never longer than `room`.
    pub(super) bytes: Vec<u8>,
    room: usize,
    buffers: Arc<Buffers>,
}

impl Buffer {
    /// Bytes that it may hold.
    pub(super) fn room(&self) -> usize {
        self.room
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        if self.buffers.mm.check_fork().is_ok() {
            // First the memory, then the right to it.
            drop(std::mem::take(&mut self.bytes));
            self.buffers.give_back(self.room);
        }
    }
}

/// Rounds down to whole pages, but not to nothing.
pub(super) fn whole_pages(bytes: usize) -> usize {
    (bytes / PAGE_SIZE).max(1) * PAGE_SIZE
}
