//! A bare executor, and futures that are given up on the way.

use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};
use std::time::Duration;

/// Wakes a thread, and counts.
pub struct Unpark {
    thread: Thread,
    woken: AtomicBool,
    pub wakes: AtomicUsize,
}

impl Unpark {
    pub fn of_this_thread() -> Arc<Self> {
        Arc::new(Self {
            thread: thread::current(),
            woken: AtomicBool::new(false),
            wakes: AtomicUsize::new(0),
        })
    }

    /// Sleeps until woken since the last time.
    ///
    /// # Panics
    /// After a minute: a wake-up was lost.
    pub fn wait(&self) {
        let start = std::time::Instant::now();
        while !self.woken.swap(false, Ordering::Acquire) {
            thread::park_timeout(Duration::from_secs(1));
            assert!(
                start.elapsed() < Duration::from_secs(60),
                "the future was not woken"
            );
        }
    }
}

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.wakes.fetch_add(1, Ordering::Relaxed);
        self.woken.store(true, Ordering::Release);
        self.thread.unpark();
    }
}

/// Runs a future to its end on this thread.
pub fn block_on<F: Future>(future: F) -> F::Output {
    give_up_after(usize::MAX, future).expect("it was not given up")
}

/// Polls a future `polls` times at most, waiting for its waker in between, and drops it.
pub fn give_up_after<F: Future>(polls: usize, future: F) -> Option<F::Output> {
    let mut future = pin!(future);
    let unpark = Unpark::of_this_thread();
    let waker = Waker::from(Arc::clone(&unpark));
    for at in 0..polls {
        if at > 0 {
            unpark.wait();
        }
        let context = &mut Context::from_waker(&waker);
        if let Poll::Ready(output) = future.as_mut().poll(context) {
            return Some(output);
        }
    }
    None
}

/// Polls once, with a waker that does nothing.
pub fn poll_once<F: Future>(future: Pin<&mut F>) -> Poll<F::Output> {
    future.poll(&mut Context::from_waker(Waker::noop()))
}

/// The output of a future that must be ready at its first poll.
pub fn at_once<F: Future>(future: F) -> F::Output {
    match poll_once(pin!(future)) {
        Poll::Ready(output) => output,
        Poll::Pending => panic!("it waits"),
    }
}

/// Runs the future of `make` on every executor: the bare one, and both of tokio's.
pub fn on_every_executor<F>(make: impl Fn(&'static str) -> F)
where
    F: Future<Output = ()> + Send + 'static,
{
    block_on(make("bare"));
    tokio::runtime::Builder::new_current_thread()
        .build()
        .expect("a runtime")
        .block_on(make("tokio-current-thread"));
    let many = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(3)
        .build()
        .expect("a runtime");
    many.block_on(async {
        tokio::spawn(make("tokio-multi-thread"))
            .await
            .expect("no panic")
    });
}
