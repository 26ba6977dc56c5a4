//! Buffers that requests to workers own: a fixed amount of memory, handed out first come, first
//! served.
//!
//! # Model
//!
//! The amount is charged to the bound once. A future that finds it used up waits in a queue. The first in the queue is
//! woken whenever memory comes back, and whenever it becomes the first. Callers that may never poll again
//! ([`Buffers::poll_take`]) have no place in the queue. All of them are woken at the same times, and are served when the queue is
//! empty.
//!
//! # Invariants
//!
//! 1. `free` and the buffers in use together make the amount.
//! 2. Memory is taken in the order of the queue.
//!
//! # Locking
//!
//! *Protects*: the amount and the queue. *Order*: leaf; no future is woken under it. *May block*: no.

use std::collections::VecDeque;
use std::future::Future;
use std::mem;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};

use foliocache_mm::{MetadataCharge, Mm, PAGE_SIZE};
use foliocache_sync::{Arc, Mutex, MutexGuard};
use foliocache_sys::Errno;

/// A stock of memory for buffers.
pub(crate) struct Buffers {
    stock: Mutex<Stock>,
    /// The longest buffer, in bytes.
    longest: usize,
    mm: Arc<Mm>,
    /// The charge of the memory to the bound.
    _charge: Arc<MetadataCharge>,
}

struct Stock {
    free: usize,
    /// By ticket.
    queue: VecDeque<(u64, Waker)>,
    next_ticket: u64,
    /// Of those without a place in the queue.
    bystanders: Vec<Waker>,
}

impl Stock {
    fn at(&self, ticket: u64) -> Option<usize> {
        self.queue.iter().position(|waiter| waiter.0 == ticket)
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
                bystanders: Vec::new(),
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
    pub(crate) fn take(self: &Arc<Self>, wanted: usize) -> Take {
        Take {
            buffers: Arc::clone(self),
            wanted: wanted.clamp(1, self.longest),
            ticket: None,
        }
    }

    /// As [`Buffers::take`], for a caller that may never poll again: it holds up no other.
    ///
    /// # Errors
    /// `ECHILD` after a fork.
    #[cfg(feature = "tokio")]
    pub(crate) fn poll_take(
        self: &Arc<Self>,
        wanted: usize,
        context: &mut Context<'_>,
    ) -> Poll<Result<Buffer, Errno>> {
        self.mm.check_fork()?;
        let wanted = wanted.clamp(1, self.longest);
        let mut stock = self.stock.lock();
        if !stock.queue.is_empty() || stock.free < wanted {
            let mine = context.waker();
            if !stock.bystanders.iter().any(|waker| waker.will_wake(mine)) {
                stock.bystanders.push(mine.clone());
            }
            return Poll::Pending;
        }
        stock.free -= wanted;
        drop(stock);
        Poll::Ready(Ok(Buffer::new(self, wanted)))
    }

    fn wake_first(mut stock: MutexGuard<'_, Stock>) {
        let first = stock.queue.front().map(|waiter| waiter.1.clone());
        let bystanders = mem::take(&mut stock.bystanders);
        drop(stock);
        first.into_iter().chain(bystanders).for_each(Waker::wake);
    }
}

/// The future of [`Buffers::take`].
pub(crate) struct Take {
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
        let at = this.ticket.and_then(|ticket| stock.at(ticket));
        if at.unwrap_or(stock.queue.len()) > 0 || stock.free < this.wanted {
            let waker = context.waker();
            match at {
                Some(at) => stock.queue[at].1.clone_from(waker),
                None => {
                    let ticket = stock.next_ticket;
                    stock.next_ticket += 1;
                    this.ticket = Some(ticket);
                    stock.queue.push_back((ticket, waker.clone()));
                }
            }
            return Poll::Pending;
        }
        stock.free -= this.wanted;
        let left = this.ticket.take().and_then(|_| stock.queue.pop_front());
        Buffers::wake_first(stock);
        drop(left);
        Poll::Ready(Ok(Buffer::new(&this.buffers, this.wanted)))
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
        let left = stock.at(ticket).and_then(|at| stock.queue.remove(at));
        Buffers::wake_first(stock);
        drop(left);
    }
}

/// Memory out of a stock, empty at first; dropping it gives it back.
pub(crate) struct Buffer {
    /// Never longer than `room`.
    pub(crate) bytes: Vec<u8>,
    room: usize,
    buffers: Arc<Buffers>,
}

impl Buffer {
    /// A buffer whose room was taken from the stock.
    fn new(buffers: &Arc<Buffers>, room: usize) -> Self {
        Self {
            bytes: Vec::with_capacity(room),
            room,
            buffers: Arc::clone(buffers),
        }
    }

    /// Bytes that it may hold.
    pub(crate) fn room(&self) -> usize {
        self.room
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        if self.buffers.mm.check_fork().is_ok() {
            // First the memory, then the right to it.
            drop(mem::take(&mut self.bytes));
            let mut stock = self.buffers.stock.lock();
            stock.free += self.room;
            Buffers::wake_first(stock);
        }
    }
}

/// Rounds down to whole pages, but not to nothing.
pub(super) fn whole_pages(bytes: usize) -> usize {
    (bytes / PAGE_SIZE).max(1) * PAGE_SIZE
}
