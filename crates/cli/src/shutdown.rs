//! Writing back, ending, and the list of lost data.
//!
//! # Model
//!
//! ```text
//!  handing over: stores into mappings, out of the tree
//!      ──▶ serving: programs finish, until the stop timeout
//!      ──▶ writing back: programs that are left are cut off, all dirty files ──▶ the list
//! ```
//!
//! A separate thread does the work, because a medium that does not answer may block it for ever. Meanwhile the main
//! thread listens for signals. After a second signal, or when the source takes no data for the stop timeout, the
//! main thread lists the files that are not in the source, and ends the process.
//!
//! A source that is slow is waited for, however long it takes: giving up would lose data. It is slow and not dead while the
//! bytes written grow or those not durable shrink.

use crate::log::{self, say};
use crate::mappings::{Helper, TAKE_OVER};
use crate::mounted::{Mounted, NotWritten, not_written};
use crate::notify::Supervisor;
use crate::status::{self, INTERVAL, StatusLine, show};
use crate::{CUT_OFF, FAILED, UNWRITTEN, spawn};
use foliocache::{Cache, CacheStats};
use foliocache_fuse::Mount;
use foliocache_sys::signal::{Signal, Signals, signal_name};
use std::process::ExitCode;
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::sync::{Arc, PoisonError, RwLock};
use std::thread;
use std::time::{Duration, Instant};

/// Time between messages about progress when no line is shown.
const PROGRESS: Duration = Duration::from_secs(3);

/// How often the end of the mount is looked for.
const TICK: Duration = Duration::from_millis(20);

/// The pause between two attempts to write failed data.
const RETRY: Duration = Duration::from_millis(250);

/// Least time in which a source must take something.
const LEAST_QUIET: Duration = Duration::from_secs(5);

/// Least time for the steps after the stop timeout.
const GRACE: Duration = Duration::from_secs(3);

/// The result.
#[derive(Default)]
struct Outcome {
    /// Failures that concern no file.
    errors: Vec<String>,
    /// Programs that still used the mount got errors.
    cut_off: bool,
    lost: NotWritten,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Phase {
    HandingOver,
    Serving,
    WritingBack,
}

/// A message of the worker.
enum Event {
    Phase(Phase),
    CutOff,
    Done(Outcome),
}

/// When to give up.
struct Watch {
    deadline: Instant,
    /// Time without progress after which a source is taken for dead.
    quiet: Duration,
    phase: Phase,
    since: Instant,
    written: u64,
    /// Fewest bytes not durable in this phase.
    lowest: u64,
    progress: Instant,
}

impl Watch {
    fn new(stop_timeout: Duration) -> Watch {
        let now = Instant::now();
        Watch {
            deadline: now + stop_timeout,
            quiet: stop_timeout.max(LEAST_QUIET),
            phase: Phase::HandingOver,
            since: now,
            written: 0,
            lowest: u64::MAX,
            progress: now,
        }
    }

    fn enter(&mut self, phase: Phase, now: Instant) {
        self.phase = phase;
        self.since = now;
        // Programs may have written since.
        self.lowest = u64::MAX;
    }

    /// Takes note of the figures of `now`: bytes written to the source ever, and bytes not durable.
    fn look(&mut self, written: u64, left: u64, now: Instant) {
        let first = self.lowest == u64::MAX;
        // In the other phases there is always a request to the source, at least to open the mount point.
        let nothing_to_do = left == 0 && self.phase == Phase::Serving;
        if written > self.written || (left < self.lowest && !first) || nothing_to_do {
            self.progress = now;
        }
        self.written = written;
        self.lowest = self.lowest.min(left);
    }

    fn is_dead(&self, now: Instant) -> bool {
        now >= self.deadline
            && self.phase != Phase::Serving
            && now.duration_since(self.since) >= GRACE
            && now.duration_since(self.progress) >= self.quiet
    }
}

/// Lets programs finish, writes everything back and unmounts; the exit status says how it went.
pub(crate) fn end(
    mounted: Mounted,
    signals: &Signals,
    status: &mut StatusLine,
    supervisor: &Supervisor,
    stop_timeout: Duration,
) -> ExitCode {
    let cache = mounted.cache.clone();
    let mount = Arc::downgrade(&mounted.mount);
    let connection = mounted.shared().connection();
    let mut watch = Watch::new(stop_timeout);
    let deadline = watch.deadline;
    let (tell, events) = mpsc::channel();
    let worker = spawn("shutdown", move || {
        let outcome = write_back_and_unmount(mounted, deadline, stop_timeout, &tell);
        // The receiver is gone only if the process is about to end.
        let _ = tell.send(Event::Done(outcome));
    });
    if let Err(why) = worker {
        say(&why);
        return ExitCode::from(FAILED);
    }
    supervisor.stopping("ending");
    let (mut said, mut cut_off) = (Instant::now(), false);
    let outcome = loop {
        match events.recv_timeout(Duration::ZERO) {
            Ok(Event::Done(outcome)) => break outcome,
            Ok(Event::CutOff) => cut_off = true,
            Ok(Event::Phase(phase)) => watch.enter(phase, Instant::now()),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => {
                say("writing back panicked");
                return ExitCode::from(FAILED);
            }
        }
        let stats = cache.stats();
        let (written, left) = stats.as_ref().map_or((0, 0), |stats| {
            (stats.files.written_bytes, status::not_durable(stats))
        });
        watch.look(written, left, Instant::now());
        let waiting = match watch.phase {
            Phase::Serving => "waiting for programs, ",
            _ => "",
        };
        status.working(format!(
            "{waiting}writing back, {} to go; another ^C gives up and loses what is left",
            show(left)
        ));
        if said.elapsed() >= PROGRESS {
            said = Instant::now();
            let text = format!("writing back, {} to go", show(left));
            // More time, because a source that is slow is waited for.
            supervisor.stopping(&format!("{waiting}{text}"));
            if left > 0 && status.is_hidden() {
                say(&text);
            }
        }
        let why = match signals.wait(INTERVAL / 10) {
            Ok(Some(signal @ (Signal::INT | Signal::TERM))) => {
                format!("{} again: given up", signal_name(signal))
            }
            Ok(Some(signal)) => {
                while_ending(signal, stats.ok().as_ref(), &mount, status);
                continue;
            }
            _ if watch.is_dead(Instant::now()) => format!(
                "the source has taken nothing for {} s: given up",
                watch.quiet.as_secs()
            ),
            _ => continue,
        };
        status.clear();
        say(&why);
        // `None` where the worker is busy with it.
        let in_use = || Some(!mount.upgrade()?.try_read().ok()?.is_ended());
        let in_use = in_use();
        let mut outcome = Outcome {
            cut_off: cut_off || in_use.unwrap_or(false),
            ..Outcome::default()
        };
        // Takes the mount out of the tree and ends the waits of its programs. If it fails, the end of the process has the same
        // effect. An ended mount is left alone: another mount may have its device number by now.
        if in_use != Some(false) {
            let _ = connection.abort();
        }
        outcome.lost = not_written(&cache);
        if outcome.lost.is_empty() {
            let error = "it is not known whether all names and attributes are in the source";
            outcome.errors.push(error.to_owned());
        }
        let exit = report(&outcome);
        // The worker may be blocked for good: no destructor may wait for it.
        std::process::exit(exit.into());
    };
    status.clear();
    ExitCode::from(report(&outcome))
}

/// Signals that do not ask for an end.
fn while_ending(
    signal: Signal,
    stats: Option<&CacheStats>,
    mount: &std::sync::Weak<RwLock<Mount>>,
    status: &mut StatusLine,
) {
    match signal {
        Signal::USR1 => {
            let of_mount = || Some(mount.upgrade()?.try_read().ok()?.stats());
            if let Some(stats) = stats {
                status.report(stats, of_mount().unwrap_or_default());
            }
        }
        Signal::USR2 => say("SIGUSR2: the mount is ending, and everything is being written back"),
        _ => log::hang_up(),
    }
}

/// The work: programs finish, the mount ends, and everything is written back.
fn write_back_and_unmount(
    mounted: Mounted,
    deadline: Instant,
    stop_timeout: Duration,
    tell: &Sender<Event>,
) -> Outcome {
    let mut outcome = Outcome::default();
    let cache = &mounted.cache;
    let phase = |phase| {
        let _ = tell.send(Event::Phase(phase));
    };
    let syncing = sync_until_dropped(cache);
    let mount = mounted.shared();
    let (mut helper, mut unasked) = (None, None);
    match hand_over(&mount, stop_timeout.min(TAKE_OVER)) {
        Ok(HandedOver::All) => {}
        Ok(HandedOver::SoFar(left)) => helper = Some(left),
        Ok(HandedOver::Unasked(why)) => unasked = Some(why),
        Err(why) => outcome.errors.push(why),
    }
    if let Err(error) = mount.hide() {
        let point = mount.mount_point().display();
        outcome.errors.push(format!("{point}: {error}"));
    }
    phase(Phase::Serving);
    let helper = let_programs_finish(&mount, deadline, helper);
    phase(Phase::WritingBack);
    if let Some(mut helper) = helper
        && !mount.is_ended()
    {
        // The stores since the first take-over.
        let taken_over = helper.take_over(&mount, TAKE_OVER);
        outcome.errors.extend(taken_over.err());
    }
    // The other process used the mount too. It has ended.
    if !is_ended_within(&mount, INTERVAL / 2) {
        outcome.cut_off = true;
        // These stores would have come when the last program closed its files.
        outcome.errors.extend(unasked);
        let _ = tell.send(Event::CutOff);
        say(&format!(
            "{}, and they are cut off: {} s are over",
            in_use(&mount),
            stop_timeout.as_secs()
        ));
    }
    drop(mount);
    outcome
        .errors
        .extend(unmount(&mounted.mount, outcome.cut_off));
    drop(syncing);
    let synced = sync_until(cache, deadline);
    outcome.lost = not_written(cache);
    if let Err(error) = synced {
        if error.failed_files().is_empty() {
            outcome.errors.push(error.to_string());
        }
        for failed in error.failed_files() {
            let lost = outcome.lost.entry(failed.file.clone()).or_default();
            lost.1 = Some(failed.errno);
        }
    }
    if let Err(error) = cache.discard_unsynced() {
        outcome.errors.push(error.to_string());
    }
    outcome
}

/// Waits until the mount has ended, to the deadline at most. Returns `helper` if files may still be mapped.
fn let_programs_finish(
    mount: &Mount,
    deadline: Instant,
    mut helper: Option<Helper>,
) -> Option<Helper> {
    let mut said = false;
    while !is_ended_within(mount, INTERVAL / 5) {
        if Instant::now() >= deadline {
            break;
        }
        if !mount.may_be_mapped() {
            helper = None;
        }
        if !said && !is_ended_within(mount, INTERVAL) {
            said = true;
            let left = deadline.saturating_duration_since(Instant::now());
            say(&format!("{}, for {:.0?} more", in_use(mount), left));
        }
    }
    helper
}

/// Ends the mount; `cut_off` takes it from its programs. Returns the line to show if that fails.
fn unmount(mount: &RwLock<Mount>, cut_off: bool) -> Option<String> {
    let mut mount = mount.write().unwrap_or_else(PoisonError::into_inner);
    let ended = match cut_off {
        true => mount.detach(),
        false => mount.unmount(),
    };
    let point = mount.mount_point().display();
    ended.err().map(|error| format!("{point}: {error}"))
}

/// Writes everything back. Data that cannot be written is retried until the deadline.
fn sync_until(cache: &Cache, deadline: Instant) -> foliocache::Result<()> {
    let mut said = false;
    loop {
        let synced = cache.sync();
        if synced.is_ok() || Instant::now() >= deadline {
            return synced;
        }
        if let (false, Err(error)) = (said, &synced) {
            said = true;
            let left = deadline.saturating_duration_since(Instant::now());
            say(&format!("{error}; trying again for {left:.0?}"));
        }
        thread::sleep(RETRY);
    }
}

/// How far the stores of programs into mappings were taken over.
enum HandedOver {
    All,
    /// The stores so far: programs may go on storing.
    SoFar(Helper),
    /// The kernel could not be asked, and why.
    Unasked(String),
}

/// Takes over the stores of programs into mappings so far.
fn hand_over(mount: &Mount, within: Duration) -> Result<HandedOver, String> {
    if mount.is_ended() || !mount.may_be_mapped() {
        return Ok(HandedOver::All);
    }
    let mut helper = match Helper::start(mount) {
        Ok(helper) => helper,
        Err(why) => return Ok(HandedOver::Unasked(why)),
    };
    helper.take_over(mount, within)?;
    // The other process may have been the last user.
    drop(helper);
    if mount.unmount_unused().is_ok() {
        return Ok(HandedOver::All);
    }
    Ok(match Helper::start(mount) {
        Ok(helper) => HandedOver::SoFar(helper),
        Err(why) => HandedOver::Unasked(why),
    })
}

/// How the mount is used.
fn in_use(mount: &Mount) -> String {
    let point = mount.mount_point().display();
    match mount.stats().open_files {
        0 => format!("{point} is in use by programs"),
        1 => format!("{point} is in use by programs, with 1 open file"),
        n => format!("{point} is in use by programs, with {n} open files"),
    }
}

/// Waits for the end of the mount, for `time` at most; whether it has ended.
fn is_ended_within(mount: &Mount, time: Duration) -> bool {
    let end = Instant::now() + time;
    while !mount.is_ended() {
        if Instant::now() >= end {
            return false;
        }
        thread::sleep(TICK);
    }
    true
}

/// Ends a thread when it is dropped, and waits for it.
struct Syncing(Option<(Sender<()>, thread::JoinHandle<()>)>);

impl Drop for Syncing {
    fn drop(&mut self) {
        if let Some((stop, thread)) = self.0.take() {
            drop(stop);
            let _ = thread.join();
        }
    }
}

/// Writes back beside programs that finish, again and again, so that little is left for the end.
fn sync_until_dropped(cache: &Cache) -> Syncing {
    let cache = cache.clone();
    let (stop, stopped) = mpsc::channel::<()>();
    let started = spawn("write-back", move || {
        loop {
            if not_durable(&cache) > 0 {
                // The last round finds the same errors again and reports them.
                let _ = cache.sync();
            }
            if stopped.recv_timeout(RETRY) != Err(RecvTimeoutError::Timeout) {
                return;
            }
        }
    });
    // Without the thread the last round does all the work.
    Syncing(started.ok().map(|thread| (stop, thread)))
}

/// Bytes that are not safely in the source.
fn not_durable(cache: &Cache) -> u64 {
    cache.stats().map_or(0, |stats| status::not_durable(&stats))
}

/// Shows the outcome; returns the exit status.
fn report(outcome: &Outcome) -> u8 {
    for error in &outcome.errors {
        say(error);
    }
    for (file, (bytes, errno)) in &outcome.lost {
        let why = errno.map_or("not written yet".to_owned(), |errno| errno.to_string());
        say(&format!("lost: {file}: {}: {why}", show(*bytes)));
    }
    if !outcome.lost.is_empty() {
        return UNWRITTEN;
    }
    if !outcome.errors.is_empty() {
        return FAILED;
    }
    say("everything is written back");
    if outcome.cut_off { CUT_OFF } else { 0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn watch_at(now: Instant, stop_timeout: u64) -> Watch {
        let stop_timeout = Duration::from_secs(stop_timeout);
        Watch {
            deadline: now + stop_timeout,
            since: now,
            progress: now,
            ..Watch::new(stop_timeout)
        }
    }

    #[test]
    fn a_source_that_takes_nothing_is_given_up_after_the_stop_timeout() {
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        for phases in [
            &[(0, Phase::WritingBack)][..],
            &[(0, Phase::Serving), (10, Phase::WritingBack)],
        ] {
            let mut watch = watch_at(start, 10);
            let mut dead = None;
            for second in 0..60 {
                for (_, phase) in phases.iter().filter(|(when, _)| *when == second) {
                    watch.enter(*phase, at(second));
                }
                watch.look(1 << 20, 4096, at(second));
                dead = dead.or(watch.is_dead(at(second)).then_some(second));
            }
            let dead = dead.expect("given up");
            assert!((10..=13).contains(&dead), "after {dead} s");
        }
    }

    #[test]
    fn a_slow_source_is_waited_for() {
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let mut watch = watch_at(start, 1);
        watch.enter(Phase::WritingBack, start);
        for step in 0..100 {
            let (written, left) = if step < 50 {
                (step << 12, 1 << 30)
            } else {
                (50 << 12, (200 - step) << 12)
            };
            watch.look(written, left, at(4 * step));
            assert!(!watch.is_dead(at(4 * step)), "step {step}");
        }
        assert!(watch.is_dead(at(406)));
    }

    #[test]
    fn a_source_that_hangs_while_nothing_is_dirty_is_given_up() {
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let mut watch = watch_at(start, 10);
        let dead = (0..60).find(|&second| {
            watch.look(1, 0, at(second));
            watch.is_dead(at(second))
        });
        let dead = dead.expect("given up");
        assert!((10..=15).contains(&dead), "after {dead} s");
    }

    #[test]
    fn programs_that_write_nothing_are_no_dead_source() {
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let mut watch = watch_at(start, 10);
        watch.enter(Phase::Serving, start);
        watch.look(1, 0, at(9));
        assert!(!watch.is_dead(at(30)));
        watch.look(1, 0, at(30));
        watch.enter(Phase::WritingBack, at(30));
        watch.look(1, 0, at(31));
        assert!(!watch.is_dead(at(39)));
        assert!(watch.is_dead(at(40)));
    }
}
