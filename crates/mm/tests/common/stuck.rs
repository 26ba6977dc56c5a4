//! The end of a test whose threads make no progress.
//!
//! Threads that hang cannot be joined, and the test harness keeps what a test prints until it ends. So the process says
//! on its error stream where each thread is, and aborts.

use std::backtrace::Backtrace;
use std::fs;
use std::io::{self, Write};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// How long one thread may take to tell: one that was stopped within the allocator never does.
const PATIENCE: Duration = Duration::from_secs(2);

static TOLD: AtomicU32 = AtomicU32::new(0);

fn say(words: &str) {
    let _ = io::stderr().write_all(words.as_bytes());
}

extern "C" fn tell(_signal: libc::c_int) {
    say(&format!("{}\n", Backtrace::force_capture()));
    TOLD.fetch_add(1, Ordering::SeqCst);
}

/// Says why, and where all other threads of the process are, and aborts it.
pub(crate) fn abort(why: &str) -> ! {
    say(&format!("\n{why}\n"));
    let handler = tell as extern "C" fn(libc::c_int) as *const () as libc::sighandler_t;
    // SAFETY: the handler has the type that a handler has to have; what it calls may wait for ever, and nobody waits for it so long.
    unsafe { libc::signal(libc::SIGUSR1, handler) };
    let process = std::process::id() as libc::pid_t;
    // SAFETY: no arguments.
    let own = unsafe { libc::gettid() };
    for task in fs::read_dir("/proc/self/task")
        .into_iter()
        .flatten()
        .flatten()
    {
        let Some(thread) =
            (task.file_name().to_str()).and_then(|name| name.parse::<libc::pid_t>().ok())
        else {
            continue;
        };
        if thread == own {
            continue;
        }
        let read = |what: &str| fs::read_to_string(task.path().join(what)).unwrap_or_default();
        say(&format!(
            "\nthread {thread}, {}, in the kernel at {}:\n",
            read("comm").trim(),
            read("wchan")
        ));
        let (told, since) = (TOLD.load(Ordering::SeqCst), Instant::now());
        // SAFETY: numbers alone.
        unsafe { libc::syscall(libc::SYS_tgkill, process, thread, libc::SIGUSR1) };
        while TOLD.load(Ordering::SeqCst) == told && since.elapsed() < PATIENCE {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
    std::process::abort()
}
