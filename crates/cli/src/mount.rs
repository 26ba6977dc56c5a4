//! `foliocache mount`: checks, the life of a mount.
//!
//! # Model
//!
//! ```text
//!  [background] ──▶ checks ──▶ cache, directory, mount ──▶ live line until a signal or an unmount ──▶ shutdown
//! ```
//!
//! The main thread serves nothing: it waits for signals, draws the line, and ends the mount.

use crate::background::{self, Side};
use crate::control::Control;
use crate::figures::{Asked, Facts};
use crate::log::{self, say};
use crate::mounted::Mounted;
use crate::notify::Supervisor;
use crate::options::{self, OnlyOptions};
use crate::status::{INTERVAL, StatusLine, show};
use crate::write_back::WriteBack;
use crate::{BAD_INPUT, FAILED, Outcome, check, memory, metrics, shutdown, source};
use clap::{Args, ValueEnum};
use foliocache::{Cache, DirectoryOptions, WritebackAtClose};
use foliocache_fuse::{KernelCache, MountOptions};
use foliocache_sys::memory::Resident;
use foliocache_sys::signal::{Signal, Signals, signal_name};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::{Arc, RwLock};
use std::time::{Duration, Instant};

/// The part of the long help on signals and of exit codes.
const SIGNALS_AND_EXIT_CODES: &str = "\
Signals:
  TERM, INT  End. The mount leaves the tree: no path leads to it. Open files are served until they are closed or
             --stop-timeout is over. Then everything is written back. Data that cannot be written, on a full disk
             for instance, is retried until --stop-timeout is over. A source that takes nothing for as long, 5 seconds
             at least, is given up. A second signal gives up at once. Files with data that is not in SOURCE are
             named. Linux ends no process while one of its threads is in an uninterruptible I/O: after the names
             are printed, the process may still wait for SOURCE.
  USR1       Print the statistics and go on.
  USR2       Write everything back, report the result in a line, and go on.
  HUP        Open the log file anew and go on. Without --log-file it is ignored, so the mount outlives its terminal.

Supervisors:
  The mount tells the supervisor in NOTIFY_SOCKET (systemd's Type=notify) when it serves, reloads and ends.

Exit codes:
  0  Everything is written back.
  1  Something else failed.
  2  Bad arguments, or the mount was refused.
  3  Programs were cut off after --stop-timeout. Everything that they had written is written back.
  4  Data could not be written back. The files are named.
  With --background: 0 once the mount serves, 1 or 2 if it could not be made. The log says how it ends.";

fn after_long_help() -> String {
    format!("{}\n\n{SIGNALS_AND_EXIT_CODES}", options::HELP)
}

/// Arguments of `foliocache mount`.
#[derive(Args)]
#[command(args_override_self = true, after_long_help = after_long_help())]
pub(crate) struct MountArguments {
    /// The directory to show.
    #[arg(value_name = "SOURCE")]
    pub(crate) source: PathBuf,
    /// The empty directory to show it at.
    #[arg(value_name = "MOUNTPOINT")]
    pub(crate) mount_point: PathBuf,
    /// Bound on the cache's memory: bytes, a number with K, M, G or T, or a percentage such as 10% of the machine's memory or of
    /// the memory cgroup's limit, whichever is smaller.
    #[arg(
        long,
        value_name = "SIZE",
        default_value = "512M",
        allow_hyphen_values = true
    )]
    pub(crate) memory: String,
    /// Refuse every change. A read-only SOURCE is always mounted read-only.
    #[arg(long)]
    pub(crate) read_only: bool,
    /// Mount SOURCE even if another foliocache mount or program has it open. Each may undo changes
    /// that are durable through the other.
    #[arg(long)]
    pub(crate) force: bool,
    /// Leave out mounts below SOURCE: the directories and files that they cover are shown instead. Takes
    /// CAP_SYS_ADMIN, such as root's.
    #[arg(long)]
    one_file_system: bool,
    /// Give other users access, as far as the files' permissions allow it.
    #[arg(long)]
    pub(crate) allow_other: bool,
    /// Log slow I/O, waits of writers and short memory besides failures; twice for more. Turns the
    /// live line off.
    #[arg(short, long, action = clap::ArgAction::Count)]
    pub(crate) verbose: u8,
    /// File data that the kernel's own cache keeps, on top of --memory.
    #[arg(long, value_name = "WHAT", value_enum, default_value = "mapped")]
    kernel_cache: KernelCacheArgument,
    /// Time that programs with open files have to finish after SIGTERM or SIGINT. With --kernel-cache all the kernel does not
    /// report closed files, so a mount that is in use waits for all of it.
    #[arg(long, value_name = "SECONDS", default_value_t = 10,
        value_parser = clap::value_parser!(u64).range(..=86_400))]
    pub(crate) stop_timeout: u64,
    /// Append the log and all messages to this file, outside of SOURCE and MOUNTPOINT. SIGHUP opens it anew.
    #[arg(long, value_name = "PATH")]
    pub(crate) log_file: Option<PathBuf>,
    /// When the data of a closed file is written to SOURCE. There it survives a kill of this process; only fsync protects it from
    /// a crash of the machine. Data of an open file is written after --dirty-age seconds.
    #[arg(long, value_name = "WHEN", value_enum, default_value = "begin")]
    writeback: WritebackArgument,
    /// Seconds after which written data is made durable by itself, without fsync.
    #[arg(
        long,
        value_name = "SECONDS",
        default_value_t = 5,
        value_parser = clap::value_parser!(u64).range(1..=3600)
    )]
    pub(crate) dirty_age: u64,
    /// Return once the mount serves, and serve in the background. Messages go to --log-file from then on; without it they are lost.
    #[arg(long)]
    pub(crate) background: bool,
    /// Write a newline to this file descriptor and close it once the mount serves. It is 3 or more.
    #[arg(long, value_name = "N")]
    ready_fd: Option<i32>,
    /// Options of mount(8), separated by commas; see below.
    #[arg(short, value_name = "OPTIONS")]
    pub(crate) options: Vec<String>,
    #[command(flatten)]
    pub(crate) only_options: OnlyOptions,
    /// Serve the statistics for Prometheus at http://ADDRESS/metrics. Only a loopback address is taken, such as 127.0.0.1:9101.
    #[arg(long, value_name = "ADDRESS")]
    metrics: Option<String>,
    /// Operations that can be under way at once.
    #[arg(long, value_name = "N", default_value_t = 8, hide = true)]
    threads: usize,
}

#[derive(Clone, Copy, ValueEnum)]
enum KernelCacheArgument {
    /// Nothing but private mappings and running programs. Shared mappings are refused.
    None,
    /// Mapped files, while they are open. All other data is within --memory.
    Mapped,
    /// Everything that is read and written, until memory is short: beyond --memory, and most of it held twice. Reading it again
    /// is as fast as on SOURCE itself. Unless root mounts, opening a file is still a request.
    All,
}

impl KernelCacheArgument {
    /// The setting of the mount, and its name.
    fn setting(self) -> (KernelCache, &'static str) {
        match self {
            KernelCacheArgument::None => (KernelCache::None, "none"),
            KernelCacheArgument::Mapped => (KernelCache::Mapped, "mapped"),
            KernelCacheArgument::All => (KernelCache::All, "all"),
        }
    }
}

#[derive(Clone, Copy, ValueEnum)]
enum WritebackArgument {
    /// Some 50 ms after the close, with --kernel-cache all up to two seconds. A kill of this process loses files that were
    /// closed in that time.
    Begin,
    /// Before close(2) returns, which reports errors. A kill loses no closed file. Each close is a request, and waits for
    /// SOURCE if the file was written.
    #[value(alias = "wait")]
    Close,
    /// After --dirty-age seconds, or when memory is short. A kill loses files that were closed in that time, except for small
    /// new files on ext4 and XFS, which are written as with begin.
    Delayed,
}

impl From<WritebackArgument> for WritebackAtClose {
    fn from(argument: WritebackArgument) -> WritebackAtClose {
        match argument {
            WritebackArgument::Begin => WritebackAtClose::Begin,
            WritebackArgument::Close => WritebackAtClose::Wait,
            WritebackArgument::Delayed => WritebackAtClose::Delayed,
        }
    }
}

/// Runs it to its end.
pub(crate) fn run(arguments: &MountArguments) -> Outcome {
    let bad_input = |line| (BAD_INPUT, line);
    if arguments.only_options.fake {
        check_all(arguments).map_err(bad_input)?;
        return Ok(ExitCode::SUCCESS);
    }
    let supervisor = Supervisor::take().unwrap_or_else(|why| {
        say(&format!("{why}; no supervisor is told of this mount"));
        Supervisor::default()
    });
    let begun = background::begin(arguments.background, arguments.ready_fd);
    let waiting = match begun.map_err(bad_input)? {
        Side::Starter(outcome) => return outcome,
        Side::Mounting(waiting) => waiting,
    };
    let (mounted, _control, signals) = match mount(arguments) {
        Ok(mounted) => mounted,
        Err((exit, line)) => {
            say(&line);
            waiting.failed(exit);
            return Ok(ExitCode::from(exit));
        }
    };
    waiting.serves().map_err(|line| (FAILED, line))?;
    let point = mounted.mount_point();
    supervisor.ready(&format!("serving {}", point.display()));
    let mut status = StatusLine::new(arguments.verbose > 0);
    let why = serve(&mounted, &signals, &supervisor, &mut status);
    say(&why);
    let stop_timeout = Duration::from_secs(arguments.stop_timeout);
    let exit = shutdown::end(mounted, &signals, &mut status, &supervisor, stop_timeout);
    Ok(exit)
}

/// Whether it could be mounted.
fn check_all(arguments: &MountArguments) -> Result<(), String> {
    memory::bound("--memory", &arguments.memory)?;
    check_log_file(arguments)?;
    check::places(&arguments.source, &arguments.mount_point).map(drop)
}

/// Starts the log, takes over the signals and mounts.
///
/// # Errors
/// The exit code, and the line to show.
fn mount(arguments: &MountArguments) -> Result<(Mounted, Option<Control>, Signals), (u8, String)> {
    check_log_file(arguments).map_err(|line| (BAD_INPUT, line))?;
    log::start(arguments.verbose, arguments.log_file.as_deref())
        .map_err(|line| (BAD_INPUT, line))?;
    // Before the first thread, see `Signals`.
    let signals =
        Signals::block().map_err(|errno| (FAILED, format!("cannot wait for signals: {errno}")))?;
    let (mounted, control) = start(arguments, &signals).map_err(|line| (BAD_INPUT, line))?;
    Ok((mounted, control, signals))
}

/// A log file in the source would be a change behind the mount with each line, one on the mount would wait for itself.
fn check_log_file(arguments: &MountArguments) -> Result<(), String> {
    let Some(path) = &arguments.log_file else {
        return Ok(());
    };
    let folder = match path.parent() {
        Some(parent) if parent != Path::new("") => parent,
        _ => Path::new("."),
    };
    // Places that do not exist have distinct errors.
    let Ok(folder) = folder.canonicalize() else {
        return Ok(());
    };
    for (name, place) in [
        ("SOURCE", &arguments.source),
        ("MOUNTPOINT", &arguments.mount_point),
    ] {
        if place
            .canonicalize()
            .is_ok_and(|place| folder.starts_with(place))
        {
            return Err(format!("the log file {} is in {name}", path.display()));
        }
    }
    Ok(())
}

/// Checks everything and mounts; `Err` is the line to show.
fn start(
    arguments: &MountArguments,
    signals: &Signals,
) -> Result<(Mounted, Option<Control>), String> {
    let bound = memory::bound("--memory", &arguments.memory)?;
    let places = check::places(&arguments.source, &arguments.mount_point)?;
    let builder = Cache::builder().memory(bound.bytes);
    let builder = builder.dirty_expire(Duration::from_secs(arguments.dirty_age));
    let cache = builder.build();
    let cache = cache.map_err(|error| error.to_string())?;
    let options = DirectoryOptions::new()
        .raise_open_files(true)
        .ignore_lock(arguments.force)
        .one_file_system(arguments.one_file_system)
        .writeback_at_close(arguments.writeback.into());
    let (directory, read_only) = source::open(
        &cache,
        &places.source,
        arguments.read_only,
        options,
        signals,
    )?;
    // Only now: a mount of the source that was ending had the address until it gave up the lock.
    let metrics = arguments
        .metrics
        .as_deref()
        .map(metrics::listen)
        .transpose()?;
    let mount = foliocache_fuse::mount(
        &directory,
        &places.mount_point,
        &mount_options(arguments, &places.source),
    )
    .map_err(|error| error.to_string())?;
    // The memory of the process before the first request, and of its workers.
    let base = Resident::of_process().map_or(0, |resident| resident.pss) + mount.fixed_bytes();
    say(&format!(
        "{} is mounted on {}{}; memory bound {}{}, fixed base {} beside it",
        places.source.display(),
        places.mount_point.display(),
        if read_only { " read-only" } else { "" },
        show(bound.bytes),
        bound.of,
        show(base),
    ));
    let mount = Arc::new(RwLock::new(mount));
    let asked = Arc::new(Asked {
        facts: Facts {
            source: places.source,
            mount_point: places.mount_point,
            kernel_cache: arguments.kernel_cache.setting().1,
            read_only,
            since: Instant::now(),
        },
        cache: cache.clone(),
        directory,
        mount: Arc::downgrade(&mount),
    });
    if let Some(listener) = metrics {
        metrics::start(listener, &asked)?;
    }
    let control = Control::start(&asked).inspect_err(|why| {
        say(&format!(
            "`foliocache status` and `set` cannot reach this mount: {why}"
        ));
    });
    Ok((Mounted { cache, mount }, control.ok()))
}

fn mount_options(arguments: &MountArguments, source: &Path) -> MountOptions {
    let only = &arguments.only_options;
    let name = only.fsname.clone();
    let mut options = MountOptions::new(name.unwrap_or_else(|| source.display().to_string()));
    options.allow_other = arguments.allow_other;
    options.threads = arguments.threads;
    options.kernel_cache = arguments.kernel_cache.setting().0;
    options.shown.uid = only.uid;
    options.shown.gid = only.gid;
    options.shown.umask = only.umask;
    options.no_exec = only.no_exec;
    options
}

/// Draws the line and answers signals until the mount is to end or has ended; returns why.
fn serve(
    mounted: &Mounted,
    signals: &Signals,
    supervisor: &Supervisor,
    status: &mut StatusLine,
) -> String {
    let mut write_back = WriteBack::default();
    loop {
        match signals.wait(INTERVAL) {
            Ok(Some(Signal::USR1)) => match mounted.cache.stats() {
                Ok(stats) => status.report(&stats, mounted.shared().stats()),
                Err(error) => say(&format!("SIGUSR1: {error}")),
            },
            Ok(Some(Signal::USR2)) => write_back.ask(mounted),
            Ok(Some(Signal::HUP)) => {
                status.look_for_terminal();
                supervisor.reloading();
                log::hang_up();
                supervisor.reloaded();
            }
            Ok(Some(signal)) => return format!("{}: writing back", signal_name(signal)),
            Ok(None) => {}
            Err(errno) => return format!("cannot wait for signals ({errno}): writing back"),
        }
        write_back.go_on(mounted);
        if mounted.shared().is_ended() {
            return "unmounted: writing back".to_owned();
        }
        if !status.is_hidden()
            && let Ok(stats) = mounted.cache.stats()
        {
            status.draw(&stats, mounted.shared().stats());
        }
    }
}
