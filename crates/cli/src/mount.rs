//! `foliocache mount`: checks, the life of a mount.
//!
//! # Model
//!
//! ```text
//!  checks ──▶ cache, directory, mount ──▶ live line until a signal or an unmount ──▶ shutdown
//! ```
//!
//! The main thread serves nothing: it waits for signals, draws the line, and ends the mount.

use crate::shutdown::{self, Mounted};
use crate::status::{INTERVAL, StatusLine, say, show};
use crate::{BAD_INPUT, FAILED, Outcome, check, start_log};
use clap::{Args, ValueEnum};
use foliocache::{Cache, DirectoryError, DirectoryOptions, Error, MIN_MEMORY, MemorySize};
use foliocache_fuse::{KernelCache, MountOptions};
use foliocache_sys::memory::{Resident, total_memory};
use foliocache_sys::signal::Signals;
use std::path::PathBuf;
use std::process::ExitCode;

/// Arguments of `foliocache mount`.
#[derive(Args)]
pub(crate) struct MountArguments {
    /// The directory to show.
    #[arg(value_name = "SOURCE")]
    source: PathBuf,
    /// The empty directory to show it at.
    #[arg(value_name = "MOUNTPOINT")]
    mount_point: PathBuf,
    /// Bound on the cache's memory: bytes, or a number with K, M, G or T.
    #[arg(
        long,
        value_name = "SIZE",
        default_value = "512M",
        allow_hyphen_values = true
    )]
    memory: String,
    /// Refuse every change.
    #[arg(long)]
    read_only: bool,
    /// Mount SOURCE though another mount or program has it open through foliocache: what one of them writes may undo what was
    /// durable through the other.
    #[arg(long)]
    force: bool,
    /// Let other users in, as far as the files' permissions allow them.
    #[arg(long)]
    allow_other: bool,
    /// Say more; twice for still more. No live line then.
    #[arg(short, long, action = clap::ArgAction::Count)]
    verbose: u8,
    /// What the kernel's own cache keeps of files' data, beside --memory.
    #[arg(long, value_name = "WHAT", value_enum, default_value = "mapped")]
    kernel_cache: KernelCacheArgument,
    /// Operations that can be under way at once.
    #[arg(long, value_name = "N", default_value_t = 8, hide = true)]
    threads: usize,
}

/// Arguments of `foliocache write-back-mapped`.
#[derive(Args)]
pub(crate) struct WriteBackArguments {
    /// Where the mount is.
    mount_point: PathBuf,
}

/// The other process that `foliocache_fuse::write_back_mapped` asks for.
pub(crate) fn write_back_mapped(arguments: &WriteBackArguments) -> Outcome {
    foliocache_fuse::write_back_mapped(&arguments.mount_point).map_err(|errno| {
        let what = "what programs stored into mapped files could not all be taken over";
        (FAILED, format!("{what}: {errno}"))
    })?;
    Ok(ExitCode::SUCCESS)
}

#[derive(Clone, Copy, ValueEnum)]
enum KernelCacheArgument {
    /// Nothing, private mappings and running programs excepted. Shared mappings are refused.
    None,
    /// What is mapped, while it is open. All memory for other data is within --memory.
    Mapped,
    /// All that is read and written, until memory is short: beyond --memory, and most of it held twice. Reading it again is as
    /// fast as on SOURCE itself. Unless root mounts, each opening of a file is a request all the same.
    All,
}

/// Runs it to its end.
pub(crate) fn run(arguments: &MountArguments) -> Outcome {
    start_log(arguments.verbose);
    // Before the first thread, see `Signals`.
    let signals =
        Signals::block().map_err(|errno| (FAILED, format!("cannot wait for signals: {errno}")))?;
    let mounted = start(arguments).map_err(|line| (BAD_INPUT, line))?;
    let mut status = StatusLine::new(arguments.verbose > 0);
    let why = serve(&mounted, &signals, &mut status);
    status.say(&why);
    Ok(shutdown::end(mounted, &signals, &status))
}

/// Checks everything and mounts; `Err` is the line to show.
fn start(arguments: &MountArguments) -> Result<Mounted, String> {
    let limit = memory_limit(&arguments.memory)?;
    let places = check::places(&arguments.source, &arguments.mount_point)?;
    let cache = Cache::builder().memory(limit).build();
    let cache = cache.map_err(|error| error.to_string())?;
    let mut options = DirectoryOptions::default();
    options.read_only = arguments.read_only;
    options.raise_open_files = true;
    options.ignore_lock = arguments.force;
    let directory = cache.directory_with(&places.source, options);
    let directory = directory.map_err(|error| match error {
        Error::Directory(DirectoryError::Locked { .. }) => {
            format!("{error}; mount it with --read-only, or with --force all the same")
        }
        _ => error.to_string(),
    })?;
    let mut options = MountOptions::new(places.source.display().to_string());
    options.allow_other = arguments.allow_other;
    options.threads = arguments.threads;
    options.kernel_cache = match arguments.kernel_cache {
        KernelCacheArgument::None => KernelCache::None,
        KernelCacheArgument::Mapped => KernelCache::Mapped,
        KernelCacheArgument::All => KernelCache::All,
    };
    let mount = foliocache_fuse::mount(&directory, &places.mount_point, &options)
        .map_err(|error| error.to_string())?;
    // What the process holds before the first request, and what its workers will take.
    let base = Resident::of_process().map_or(0, |resident| resident.pss) + mount.fixed_bytes();
    say(&format!(
        "{} is mounted on {}{}; memory bound {}, fixed base {} beside it",
        places.source.display(),
        places.mount_point.display(),
        if arguments.read_only {
            " read-only"
        } else {
            ""
        },
        show(limit),
        show(base),
    ));
    Ok(Mounted { cache, mount })
}

fn memory_limit(text: &str) -> Result<u64, String> {
    let limit = text.in_bytes().map_err(|_| {
        format!("--memory {text} is no size: give bytes, or a number with K, M, G or T")
    })?;
    let machine = total_memory();
    if limit < MIN_MEMORY {
        return Err(format!(
            "--memory {text} is too little: at least {} are needed",
            show(MIN_MEMORY)
        ));
    }
    if limit > machine {
        return Err(format!(
            "--memory {text} is more than the {} of this machine",
            show(machine)
        ));
    }
    Ok(limit)
}

/// Draws the line until the mount is to end or has ended; returns why.
fn serve(mounted: &Mounted, signals: &Signals, status: &mut StatusLine) -> String {
    loop {
        match signals.wait(INTERVAL) {
            Ok(Some(signal)) => return format!("{}: writing back", signal.name()),
            Ok(None) => {}
            Err(errno) => return format!("cannot wait for signals ({errno}): writing back"),
        }
        if mounted.mount.is_ended() {
            return "unmounted: writing back".to_owned();
        }
        if !status.is_hidden()
            && let Ok(stats) = mounted.cache.stats()
        {
            status.draw(&stats, mounted.mount.stats());
        }
    }
}
