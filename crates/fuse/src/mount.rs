//! A mounted file system: mounting, ending, and its cost.
//!
//! # Model
//!
//! ```text
//!  Mount::new ──▶ serving ──unmount──▶ gone
//!                    │ └── unmounted from outside: `is_ended`
//!                    ├──hide──▶ out of the tree, served until the last program is done: `is_ended`
//!                    └──detach──▶ out of the tree; programs that are inside get errors
//! ```
//!
//! An orderly end is: [`Mount::take_over_stores`] with [`MappedStores`](crate::MappedStores) in another process, so
//! that stores of programs into mappings reach the file system; [`Mount::hide`]; some time for programs to finish;
//! then [`Mount::unmount`], or, if programs remain, the stores again and [`Mount::detach`]; last, the file system's
//! own writeback, when no program can change anything any more.

use crate::answers::Stale;
use crate::buffers::{MAX_REQUEST, MORE_BUFFERS};
use crate::conn::FuseConn;
use crate::connection::Connection;
use crate::device::Device;
use crate::kernel_pages::KernelPages;
use crate::linking::Linking;
use crate::news::News;
use crate::nodes::Nodes;
use crate::options::MountOptions;
use crate::prune::Pruner;
use crate::service::{Job, Server, WORKERS_MEMORY};
use crate::stats::{Counters, FuseStats};
use crate::unopened::Unopened;
use foliocache::Directory;
use foliocache_sync::background::{self, Panics};
use foliocache_sync::thread::{self, JoinHandle};
use foliocache_sync::workers::Workers;
use foliocache_sync::{Arc, Weak};
use foliocache_sys::Errno;
use foliocache_sys::credentials::may_mount;
use foliocache_sys::dir::mount as sys_mount;
use foliocache_sys::fd::{self, AsFd, OFlags};
use foliocache_vfs::{InodeHolder, Observer, SuperBlock};
use fuser::{BackgroundSession, Config, MountOption, Session, SessionACL};
use std::io;
use std::mem;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

/// The inode number of the root.
const ROOT: u64 = 1;

/// Memory of a reader besides its two buffers: its stack and allocations.
const READER_BYTES: u64 = 256 << 10;

/// Why a file system could not be mounted or unmounted.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MountError {
    /// The kernel has no FUSE.
    #[error("there is no /dev/fuse: this kernel has no FUSE, or its module is not loaded")]
    NoFuse,
    /// The caller may not mount, and no helper may do it instead.
    #[error("mounting is not permitted: it takes root, or the program fusermount3")]
    NotPermitted,
    /// The helper cannot open the device for its caller.
    #[error("/dev/fuse may not be opened by this user: it takes root, or mode 666 on the device")]
    DeviceDenied,
    /// The kernel or the helper refused.
    #[error("cannot mount: {0}")]
    Refused(String),
    /// A thread could not be started.
    #[error("cannot start a thread: {0}")]
    Thread(io::Error),
    /// The directory is not the top of a file system, or has separate credentials.
    #[error("only a directory as `Cache::directory` or `Cache::memfs` returned it can be mounted")]
    NotWhole,
    /// The directory cannot be used.
    #[error(transparent)]
    Directory(#[from] foliocache::Error),
    /// It is busy, or cannot be unmounted for another reason.
    #[error("cannot unmount: {0}")]
    Unmount(Errno),
}

impl MountError {
    /// The error number.
    pub fn errno(&self) -> Errno {
        match self {
            MountError::NoFuse => Errno::ENODEV,
            MountError::NotPermitted => Errno::EPERM,
            MountError::DeviceDenied => Errno::EACCES,
            MountError::Refused(_) => Errno::EIO,
            MountError::Thread(_) => Errno::EAGAIN,
            MountError::NotWhole => Errno::EINVAL,
            MountError::Directory(error) => error.errno(),
            MountError::Unmount(errno) => *errno,
        }
    }

    fn of_mount(error: &io::Error) -> MountError {
        let fuse = Path::new("/dev/fuse");
        let denied = || fd::open(fuse, OFlags::RDWR, 0).err() == Some(Errno::EACCES);
        let said = || MountError::Refused(error.to_string().trim().to_owned());
        match (error.kind(), error.raw_os_error().map(Errno::from_raw)) {
            (_, Some(Errno::ENODEV | Errno::ENXIO)) => MountError::NoFuse,
            (io::ErrorKind::NotFound, _) if !fuse.exists() => MountError::NoFuse,
            (io::ErrorKind::PermissionDenied, _) if denied() => MountError::DeviceDenied,
            // The helper printed what is missing.
            (io::ErrorKind::PermissionDenied, None) => said(),
            // The helper, which is tried when the kernel refuses, was not found.
            (io::ErrorKind::NotFound | io::ErrorKind::PermissionDenied, _) => {
                MountError::NotPermitted
            }
            _ => said(),
        }
    }
}

/// Mounts `directory` at `mount_point`, for programs that do not use the library. Dedicated threads serve it until
/// the [`Mount`] is dropped. The program can use the directory at the same time.
///
/// ```no_run
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let cache = foliocache::Cache::builder().memory("512M").build()?;
/// let data = cache.directory("/srv/data")?;
/// let options = foliocache_fuse::MountOptions::new("/srv/data");
/// let mut mount = foliocache_fuse::mount(&data, "/mnt/data", &options)?;
/// println!("mounted, {} bytes beside the cache's memory", mount.fixed_bytes());
/// // ... until it is time to end:
/// mount.unmount()?;
/// cache.close()?;
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// [`MountError::NotWhole`] for a directory below another, no FUSE, no right to mount, or the
/// kernel's error.
pub fn mount(
    directory: &Directory,
    mount_point: impl AsRef<Path>,
    options: &MountOptions,
) -> Result<Mount, MountError> {
    let whole = directory.whole_file_system()?;
    let (names, read_only) = whole.ok_or(MountError::NotWhole)?;
    let mut options = options.clone();
    options.read_only |= read_only;
    Mount::new(names, mount_point.as_ref(), &options)
}

/// A name escaped for the helper's comma-separated options.
fn escaped(name: &str) -> String {
    name.replace('\\', r"\\").replace(',', r"\,")
}

/// The configuration of the FUSE library for a mount.
fn config(options: &MountOptions, read_only: bool) -> Config {
    let mut config = Config::default();
    config.mount_options = vec![
        MountOption::FSName(match may_mount() {
            true => options.name.clone(),
            false => escaped(&options.name),
        }),
        // The kernel takes this option; the library's variant goes to the helper alone.
        MountOption::CUSTOM("subtype=foliocache".to_owned()),
        MountOption::DefaultPermissions,
        match read_only {
            true => MountOption::RO,
            false => MountOption::RW,
        },
    ];
    if options.no_exec {
        config.mount_options.push(MountOption::NoExec);
    }
    config.acl = match options.allow_other {
        true => SessionACL::All,
        false => SessionACL::Owner,
    };
    config.n_threads = Some(options.threads.max(1));
    config.clone_fd = true;
    config
}

/// Takes the thread out of the session, and leaks the rest.
///
/// Dropping the library's mount would unmount the mount point. The library takes every ended connection for a
/// mounted one, so it would unmount a file system below ours, or one that was mounted later. The leaked part keeps
/// a descriptor of the device.
///
/// # Errors
/// A thread cannot be started; then the session is dropped.
fn keep_mounted(mut session: BackgroundSession) -> io::Result<JoinHandle<io::Result<()>>> {
    // The handle cannot be moved out of the leaked session.
    let instead = thread::Builder::new().spawn(|| Ok(()))?;
    let serving = mem::replace(&mut session.guard, instead);
    mem::forget(session);
    Ok(serving)
}

/// A mounted file system. Dropping it detaches it.
///
/// Each mount keeps one descriptor of `/dev/fuse` until the process ends.
pub struct Mount {
    /// The last of the threads that serve requests to end.
    serving: Option<JoinHandle<io::Result<()>>>,
    connection: Connection,
    device: Device,
    threads: usize,
    workers: Arc<Workers<Job>>,
    panics: Arc<Panics>,
    counters: Arc<Counters>,
    kernel_pages: Arc<KernelPages>,
    news: Arc<News>,
    pruner: Arc<Pruner>,
    /// `None` where the kernel opens files.
    unopened: Option<Arc<Unopened>>,
    linking: Arc<Linking>,
    stale: Arc<Stale>,
    threads_beside: Vec<JoinHandle<()>>,
}

impl Mount {
    /// Mounts a file system at the directory `mount_point`: as [`mount()`], for file systems
    /// outside a cache, such as those of tests.
    ///
    /// # Errors
    /// No FUSE, no right to mount, or the kernel's error.
    #[doc(hidden)]
    pub fn new(
        names: Arc<SuperBlock>,
        mount_point: &Path,
        options: &MountOptions,
    ) -> Result<Mount, MountError> {
        let mount_point = mount_point
            .canonicalize()
            .map_err(|error| MountError::Refused(error.to_string()))?;
        let conn = FuseConn::new(&names, options);
        let conn = Arc::new(conn.map_err(|errno| MountError::Thread(errno.into()))?);
        let threads = options.threads.max(1);
        let server = Server::new(Arc::clone(&conn), threads);
        let workers = Arc::clone(&server.workers);
        let config = config(options, options.is_read_only(&names));
        let session = Session::new(server, &mount_point, &config)
            .map_err(|error| MountError::of_mount(&error))?;
        let device =
            Device::new(session.as_fd()).map_err(|errno| MountError::Thread(errno.into()))?;
        // An empty request: tells whether the kernel knows the message.
        let can_prune = device.prune(&[]);
        match &can_prune {
            Ok(()) => conn.nodes.keep_names(),
            Err(error) => tracing::info!(
                %error,
                "this kernel cannot be asked to forget inodes: those that it remembers are kept"
            ),
        }
        let serving = session.spawn().and_then(keep_mounted);
        let mut mount = Mount {
            serving: Some(serving.map_err(MountError::Thread)?),
            connection: Connection::of(mount_point),
            device,
            threads,
            workers,
            panics: Arc::clone(&conn.panics),
            counters: Arc::clone(&conn.counters),
            kernel_pages: Arc::clone(&conn.kernel_pages),
            news: Arc::clone(&conn.news),
            pruner: Arc::clone(&conn.pruner),
            unopened: conn.kernel_opens.then(|| Arc::clone(&conn.unopened)),
            linking: Arc::clone(&conn.linking),
            stale: Arc::clone(&conn.stale),
            threads_beside: Vec::new(),
        };
        mount
            .start_threads_beside(names, Arc::clone(&conn.nodes), can_prune.is_ok())
            .map_err(MountError::Thread)?;
        Ok(mount)
    }

    /// Starts the threads that serve no requests; `can_prune` says that the kernel can be asked to forget inodes. On an
    /// error the mount keeps those that were started.
    fn start_threads_beside(
        &mut self,
        names: Arc<SuperBlock>,
        nodes: Arc<Nodes>,
        can_prune: bool,
    ) -> io::Result<()> {
        let (panics, threads) = (&self.panics, &mut self.threads_beside);
        let mut start = |name, run: Box<dyn FnMut() + Send>| -> io::Result<()> {
            threads.push(background::spawn(name, panics, run)?);
            Ok(())
        };
        if let Some(unopened) = self.unopened.clone() {
            start("fuse-close", Box::new(move || unopened.run()))?;
        }
        let (pages, device) = (Arc::clone(&self.kernel_pages), self.device.clone());
        start("kernel-pages", Box::new(move || pages.run(&device)))?;
        let (linking, device) = (Arc::clone(&self.linking), self.device.clone());
        start("fuse-linking", Box::new(move || linking.run(&device)))?;
        let (stale, device) = (Arc::clone(&self.stale), self.device.clone());
        let forget = move |ino| device.forget_attributes(ino, false);
        start("fuse-attributes", Box::new(move || stale.run(&forget)))?;
        let device = self.device.clone();
        // If the kernel cannot be asked to forget, nodes have no names, so events would not lead to
        // inodes.
        if can_prune && names.has_news() && device.forget_all_names().is_ok() {
            let observer: Weak<dyn Observer> = Arc::downgrade(&self.news) as _;
            names.add_observer(observer);
            let (news, names) = (Arc::clone(&self.news), Arc::clone(&names));
            let (nodes, device) = (Arc::clone(&nodes), device.clone());
            let run = move || news.run(&names, &nodes, &device);
            start("kernel-news", Box::new(run))?;
            self.news.can_tell();
        }
        if can_prune {
            let holder: Weak<dyn InodeHolder> = Arc::downgrade(&self.pruner) as _;
            names.add_holder(holder);
            let pruner = Arc::clone(&self.pruner);
            let run = move || pruner.run(&names, &nodes, &device);
            start("kernel-prune", Box::new(run))?;
        }
        Ok(())
    }

    /// The mount point, absolute and without symbolic links.
    pub fn mount_point(&self) -> &Path {
        &self.connection.mount_point
    }

    /// The kernel's side of it.
    pub fn connection(&self) -> Connection {
        self.connection.clone()
    }

    /// Its statistics.
    pub fn stats(&self) -> FuseStats {
        FuseStats {
            panics: self.panics.count(),
            workers: self.workers.stats().threads as u64,
            ..self.counters.snapshot()
        }
    }

    /// The most memory that the mount takes in this process on top of the cache's bound, in bytes: request buffers, stacks of
    /// waiting threads, and the writes that they hold.
    pub fn fixed_bytes(&self) -> u64 {
        let request = u64::from(MAX_REQUEST);
        self.threads as u64 * (2 * request + READER_BYTES)
            + MORE_BUFFERS as u64 * request
            + WORKERS_MEMORY
    }

    /// Whether it is no longer mounted.
    pub fn is_ended(&self) -> bool {
        self.serving
            .as_ref()
            .is_none_or(|serving| serving.is_finished())
    }

    /// Whether it is on top at its mount point.
    ///
    /// A new mount may get the device number of an old one, so the kernel is asked for our root, which it knows as
    /// long as the file system lives. Only in that case: the query waits for a file system that is about to end.
    fn is_in_tree(&self) -> bool {
        self.connection.is_in_tree() && self.device.forget_attributes(ROOT, false).is_ok()
    }

    /// Whether an open file may be mapped. Always `true` if the kernel does not report open files, with
    /// [`KernelCache::All`](crate::KernelCache::All).
    pub fn may_be_mapped(&self) -> bool {
        self.unopened.is_some() || self.counters.snapshot().open_files > 0
    }

    /// Makes the kernel write out stores of programs into mappings: calls `ask` as long as that brings writes.
    /// `ask` must make another process run [`MappedStores::write_back`](crate::MappedStores::write_back). Does
    /// nothing if no file is known to be open.
    ///
    /// Blocks until the kernel has sent nothing for a quarter of a second, or until `within` has passed: programs
    /// may go on storing.
    ///
    /// # Errors
    /// The first error of `ask`.
    pub fn take_over_stores<E>(
        &self,
        within: Duration,
        mut ask: impl FnMut() -> Result<(), E>,
    ) -> Result<(), E> {
        let begun_at = Instant::now();
        while self.may_be_mapped() {
            let begun = self.kernel_pages.writes_begun();
            ask()?;
            if !self.kernel_pages.wait_for_writes(begun) || begun_at.elapsed() >= within {
                break;
            }
        }
        Ok(())
    }

    /// Detaches it from the tree: no path leads to it any more. Programs that use it are served until they finish;
    /// then [`Mount::is_ended`] is true.
    ///
    /// # Errors
    /// Those of the kernel, or of the helper that runs without privilege; then it is still mounted.
    pub fn hide(&self) -> Result<(), MountError> {
        self.take_off(true)
    }

    fn take_off(&self, detach: bool) -> Result<(), MountError> {
        if !self.is_in_tree() {
            return Ok(());
        }
        let arguments: &[&str] = match detach {
            true => &["-u", "-q", "-z", "--"],
            false => &["-u", "-q", "--"],
        };
        match sys_mount::unmount(self.mount_point(), detach) {
            Ok(()) | Err(Errno::EINVAL) => Ok(()),
            Err(Errno::EPERM) => self.unmount_by_helper(arguments),
            Err(errno) => Err(MountError::Unmount(errno)),
        }
    }

    /// Detaches a mount without a server, as far as this process may. Programs inside get errors.
    fn take_off_unserved(&self) {
        if self.is_in_tree()
            && self.connection.abort().is_err()
            && let Err(error) = self.hide()
        {
            tracing::warn!(%error, "left mounted");
        }
    }

    fn unmount_by_helper(&self, arguments: &[&str]) -> Result<(), MountError> {
        let unmounts = |helper: &str| {
            let mut command = Command::new(helper);
            let done = command.args(arguments).arg(self.mount_point()).output();
            done.is_ok_and(|done| done.status.success())
        };
        match unmounts("fusermount3") || unmounts("fusermount") {
            true => Ok(()),
            false => Err(MountError::Unmount(Errno::EPERM)),
        }
    }

    /// Unmounts it and waits until its threads have ended.
    ///
    /// # Errors
    /// `EBUSY` while programs have files open or their working directory in it; then it goes on as
    /// before.
    pub fn unmount(&mut self) -> Result<(), MountError> {
        self.unmount_unused()?;
        self.join();
        Ok(())
    }

    /// Unmounts it without waiting for its threads.
    ///
    /// # Errors
    /// As [`Mount::unmount`].
    pub fn unmount_unused(&self) -> Result<(), MountError> {
        if self.is_ended() {
            // The kernel may have cut it off and left it in the tree, where it is no longer served.
            self.take_off_unserved();
            return Ok(());
        }
        self.take_off(false)
    }

    /// Detaches it even while programs use it, and cuts them off: their next call fails.
    ///
    /// With privilege, no program can change anything any more when this returns. Without it, the helper detaches
    /// the mount, and its programs are cut off when the process ends.
    ///
    /// # Errors
    /// Those of the kernel; then it is still mounted.
    pub fn detach(&mut self) -> Result<(), MountError> {
        // Another mount may have got the device number of an ended one.
        let ended = match self.is_ended() {
            true => {
                self.take_off_unserved();
                Ok(())
            }
            false => self.connection.abort(),
        };
        match ended {
            Ok(()) => self.join(),
            Err(Errno::EPERM) => {
                // The news thread goes on: programs inside believe their answers for long. It ends
                // with the session.
                self.kernel_pages.stop();
                self.pruner.stop();
                self.workers.stop();
                if let Err(error) = self.hide() {
                    tracing::warn!(%error, "left mounted");
                }
                // Its threads serve the programs inside to the end.
                self.serving = None;
            }
            Err(errno) => return Err(MountError::Unmount(errno)),
        }
        Ok(())
    }

    /// Ends the threads that serve no requests, except the one that closes unopened files.
    fn stop(&self) {
        self.kernel_pages.stop();
        self.linking.stop();
        self.stale.stop();
        self.news.stop();
        self.pruner.stop();
    }

    fn join(&mut self) {
        self.stop();
        match self.serving.take().map(JoinHandle::join) {
            None | Some(Ok(Ok(()))) => {}
            Some(Ok(Err(error))) => {
                tracing::error!(%error, "serving the mount ended with an error");
            }
            Some(Err(_)) => tracing::error!("serving the mount ended with a panic"),
        }
        // Their callers are gone, but they may still write.
        self.workers.wait_idle();
        self.workers.stop();
        // No request opens a file any more.
        if let Some(unopened) = self.unopened.take() {
            unopened.stop();
        }
        for thread in self.threads_beside.drain(..) {
            // It ends on its own.
            let _ = thread.join();
        }
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        if self.serving.is_some()
            && let Err(error) = self.detach()
        {
            tracing::error!(%error, "left mounted");
        }
    }
}
