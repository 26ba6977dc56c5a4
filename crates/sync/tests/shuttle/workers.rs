//! The pool of workers over many random schedules: each job runs once, in its lane's order and within its lane's
//! limit, and no caller waits for ever. A lost wake-up shows as a deadlock.

use foliocache_sync::atomic::{AtomicUsize, Ordering};
use foliocache_sync::background::Panics;
use foliocache_sync::model::sample;
use foliocache_sync::time::Duration;
use foliocache_sync::workers::{Limits, Workers};
use foliocache_sync::{Arc, Mutex, thread};

const ITERATIONS: usize = 5000;
/// Most jobs of each lane at a time.
const MOST: [usize; 2] = [1, 2];
/// Most threads.
const THREADS: usize = 2;
/// Jobs of each lane.
const JOBS: usize = 3;

/// The observations of all lanes' jobs.
#[derive(Default)]
struct Seen {
    running: [AtomicUsize; 2],
    /// Jobs in the order in which they started, by lane.
    started: Mutex<[Vec<usize>; 2]>,
    ended: AtomicUsize,
}

struct Job {
    seen: Arc<Seen>,
    lane: usize,
    number: usize,
}

fn run(job: Job, _: &Panics) {
    let Job { seen, lane, number } = job;
    // Relaxed, here and below: shuttle has one order of all accesses.
    let running = seen.running[lane].fetch_add(1, Ordering::Relaxed) + 1;
    assert!(running <= MOST[lane], "{running} jobs of lane {lane}");
    seen.started.lock()[lane].push(number);
    thread::yield_now();
    seen.running[lane].fetch_sub(1, Ordering::Relaxed);
    seen.ended.fetch_add(1, Ordering::Relaxed);
}

fn workers() -> Arc<Workers<Job>> {
    let limits = Limits {
        name: "model",
        lanes: MOST.to_vec(),
        threads: THREADS,
        idle: Duration::from_secs(1),
    };
    Arc::new(Workers::new(limits, &Arc::new(Panics::new(|_, _| {})), run))
}

/// Submits the jobs of a lane in order.
fn submit_all(workers: &Workers<Job>, seen: &Arc<Seen>, lane: usize) {
    for number in 0..JOBS {
        let seen = Arc::clone(seen);
        let submitted = workers.submit(lane, Job { seen, lane, number });
        assert!(submitted.is_ok());
        assert!(workers.stats().threads <= THREADS);
    }
}

#[test]
fn each_job_runs_once_in_order_and_within_the_limits() {
    sample(ITERATIONS, || {
        let (workers, seen) = (workers(), Arc::<Seen>::default());
        let submitters = [0, 1].map(|lane| {
            let (workers, seen) = (Arc::clone(&workers), Arc::clone(&seen));
            thread::spawn(move || submit_all(&workers, &seen, lane))
        });
        for submitter in submitters {
            submitter.join().unwrap();
        }
        workers.wait_idle();
        assert_eq!(seen.ended.load(Ordering::Relaxed), 2 * JOBS);
        let started = seen.started.lock();
        assert!(
            started[0].iter().copied().eq(0..JOBS),
            "one at a time, in order"
        );
        assert_eq!(started[1].len(), JOBS);
        drop(started);
        let stats = workers.stats();
        assert_eq!((stats.queued, stats.running), (0, 0));
        workers.stop();
    });
}

#[test]
fn a_stop_beside_submissions_leaves_no_job_and_no_thread() {
    sample(ITERATIONS, || {
        let (workers, seen) = (workers(), Arc::<Seen>::default());
        submit_all(&workers, &seen, 0);
        let stopper = {
            let workers = Arc::clone(&workers);
            thread::spawn(move || workers.stop())
        };
        let submitter = {
            let (workers, seen) = (Arc::clone(&workers), Arc::clone(&seen));
            thread::spawn(move || submit_all(&workers, &seen, 1))
        };
        stopper.join().unwrap();
        submitter.join().unwrap();
        workers.wait_idle();
        assert_eq!(seen.ended.load(Ordering::Relaxed), 2 * JOBS);
        while workers.stats().threads > 0 {
            thread::yield_now();
        }
    });
}
