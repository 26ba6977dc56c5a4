//! Prints the cost of a read section, a fence, a poll and a grace period on this machine.
//!
//! `cargo run --release -p foliocache-sync --example rcu_cost`

#[cfg(any(loom, shuttle))]
fn main() {}

#[cfg(not(any(loom, shuttle)))]
fn main() {
    use foliocache_sync::atomic::{AtomicU64, Ordering, fence};
    use foliocache_sync::time::Instant;
    use foliocache_sync::{ShardedCounter, rcu};
    use std::hint::black_box;

    /// Median of nine rounds, in nanoseconds a call.
    fn measure(name: &str, calls: u32, mut call: impl FnMut()) {
        let mut rounds: Vec<f64> = (0..9)
            .map(|_| {
                let start = Instant::now();
                for _ in 0..calls {
                    call();
                }
                start.elapsed().as_secs_f64() * 1e9 / f64::from(calls)
            })
            .collect();
        rounds.sort_by(f64::total_cmp);
        println!(
            "{name:32} {:8.2} ns  ({:.2} to {:.2})",
            rounds[4], rounds[0], rounds[8]
        );
    }

    drop(rcu::read_lock());
    let word = AtomicU64::new(1);
    let counter = ShardedCounter::new();
    measure("an atomic load", 10_000_000, || {
        black_box(word.load(Ordering::Relaxed));
    });
    measure("read_lock and unlock", 10_000_000, || {
        let _guard = rcu::read_lock();
        black_box(word.load(Ordering::Relaxed));
    });
    let outer = rcu::read_lock();
    measure("the same, nested", 10_000_000, || {
        let _guard = rcu::read_lock();
        black_box(word.load(Ordering::Relaxed));
    });
    drop(outer);
    let slot = AtomicU64::new(0);
    measure("control: store, load, store", 10_000_000, || {
        black_box(&slot).store(1, Ordering::Relaxed);
        black_box(word.load(Ordering::Relaxed));
        black_box(&slot).store(0, Ordering::Release);
    });
    measure("control: with a SeqCst fence", 10_000_000, || {
        black_box(&slot).store(1, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        black_box(word.load(Ordering::Relaxed));
        black_box(&slot).store(0, Ordering::Release);
    });
    measure("ShardedCounter::add", 10_000_000, || counter.add(1));
    measure("start_poll", 10_000_000, || {
        black_box(rcu::start_poll());
    });
    measure("start_poll and poll", 10_000, || {
        black_box(rcu::poll(rcu::start_poll()));
    });
    measure("synchronize", 10_000, rcu::synchronize);
}
