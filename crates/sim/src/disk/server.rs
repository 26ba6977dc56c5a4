//! The process that serves disks, and how a test comes by it.
//!
//! # Model
//!
//! ```text
//!  test process ──socket (its stdin)──▶ server process ──/dev/fuse──▶ file ──▶ loop device ──▶ ext4, XFS
//!       │                                                                                      ▲
//!       └──────────────────────────── reads, writes, fsyncs ───────────────────────────────────┘
//! ```
//!
//! A separate process, because one process that both uses and serves a disk can deadlock for ever:
//!
//! - A killed process whose thread waits for the disk cannot die before the disk answers. If it were also the
//!   server, it would still have the FUSE device open, and the connection would never end.
//! - The server takes faults for its memory. They wait for the memory map's lock, which a thread that waits for the
//!   disk may hold.
//! - Tests count the descriptors, threads and memory of the process under test.
//!
//! The server is this very program: a function among the initialisers of the program looks for a variable of the
//! environment, serves, and exits before `main`. So each test program that uses disks can serve them,
//! without another program that would have to be found.
//!
//! The server ends with its socket. It also ends when the first thread of the test process is gone, though other
//! threads may still wait for a disk that hangs: the end of the server ends the connection, and these waiters get
//! errors. A disk that hung for [`HANG_LIMIT`] fails its hanging operations.
//!
//! # Safety
//!
//! The one unsafe attribute puts a function of the right type into the section of initialisers.
#![allow(unsafe_code)]

use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use foliocache_sync::Mutex;
use foliocache_sys::Errno;
use fuser::{BackgroundSession, Session};
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::content::Content;
use super::export::{Drive, Export};
use super::log::{Entry, Log};
use super::protocol::{Base, DiskId, ImageId, Request, Wire};
use super::{Logged, LoggedKind};
use crate::Faults;

/// Set in the environment of a server.
const VARIABLE: &str = "FOLIOCACHE_SIM_DISK";

/// An operation that hangs for this long fails, so that a stuck test ends.
const HANG_LIMIT: Duration = Duration::from_secs(240);

/// How long a server may take to end.
const PATIENCE: Duration = Duration::from_secs(20);

#[used]
#[unsafe(link_section = ".init_array")]
static START: extern "C" fn() = start;

extern "C" fn start() {
    let Some(parent) = std::env::var_os(VARIABLE) else {
        return;
    };
    let parent = parent
        .to_str()
        .and_then(|pid| pid.parse().ok())
        .unwrap_or(0);
    if let Err(error) = serve(parent) {
        eprintln!("the server of disks: {error}");
    }
    std::process::exit(0);
}

/// The server's end of things, held by the test.
#[derive(Debug)]
pub(super) struct Server {
    wire: Mutex<Option<Wire>>,
    child: Mutex<Child>,
}

impl Server {
    pub(super) fn start() -> io::Result<Server> {
        // The initialiser is linked where this is.
        std::hint::black_box(START);
        let (ours, theirs) = UnixStream::pair()?;
        let mut command = Command::new("/proc/self/exe");
        command.env(VARIABLE, std::process::id().to_string());
        command.stdin(OwnedFd::from(theirs)).stdout(Stdio::null());
        let child = command.spawn()?;
        Ok(Server {
            wire: Mutex::new(Some(Wire::new(ours)?)),
            child: Mutex::new(child),
        })
    }

    /// Asks for something that can fail.
    pub(super) fn ask<T: DeserializeOwned>(&self, request: &Request) -> Result<T, String> {
        let mut wire = self.wire.lock();
        let wire = wire.as_mut().ok_or("the server of disks has ended")?;
        let reply = wire.send(request).and_then(|()| wire.receive());
        match reply {
            Ok(Some(reply)) => reply,
            Ok(None) => Err("the server of disks is gone".to_owned()),
            Err(error) => Err(format!("the server of disks: {error}")),
        }
    }

    /// Asks for something that cannot.
    pub(super) fn call<T: DeserializeOwned>(&self, request: &Request) -> T {
        self.ask(request)
            .unwrap_or_else(|error| panic!("{error} ({request:?})"))
    }

    /// Kills the server: its disks give errors from then on.
    pub(super) fn kill(&self) {
        let _ = self.child.lock().kill();
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        *self.wire.lock() = None;
        let mut child = self.child.lock();
        let until = Instant::now() + PATIENCE;
        while let Ok(None) = child.try_wait() {
            if Instant::now() > until {
                let _ = child.kill();
                let _ = child.wait();
                return;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

/// A disk that is served.
struct Served {
    drive: Arc<Drive>,
    session: BackgroundSession,
}

#[derive(Default)]
struct State {
    disks: HashMap<DiskId, Served>,
    images: HashMap<ImageId, Content>,
    last: u64,
}

fn serve(parent: u32) -> io::Result<()> {
    let stdin = std::os::fd::AsFd::as_fd(&io::stdin()).try_clone_to_owned()?;
    let mut wire = Wire::new(UnixStream::from(stdin))?;
    let state = Arc::new(Mutex::new(State::default()));
    let watched = Arc::clone(&state);
    std::thread::spawn(move || watch(parent, &watched));
    while let Some(request) = wire.receive::<Request>()? {
        let reply = match state.lock().handle(request) {
            Ok(value) => Ok(value),
            Err(error) => Err(error.to_string()),
        };
        wire.send(&reply)?;
    }
    Ok(())
}

/// Ends the process when its parent is gone, and hangs that last too long.
fn watch(parent: u32, state: &Mutex<State>) {
    let mut hung_since = HashMap::new();
    loop {
        std::thread::sleep(Duration::from_millis(200));
        if !super::leftover::is_alive(parent) {
            std::process::exit(0);
        }
        let drives: Vec<_> = {
            let state = state.lock();
            let drives = state.disks.iter();
            drives
                .map(|(&id, disk)| (id, Arc::clone(&disk.drive)))
                .collect()
        };
        for (id, drive) in drives {
            if drive.faults.hung() == 0 {
                hung_since.remove(&id);
                continue;
            }
            let since = *hung_since.entry(id).or_insert_with(Instant::now);
            if since.elapsed() > HANG_LIMIT {
                eprintln!("disk {id} has hung for {HANG_LIMIT:?}: what hangs fails");
                drive.faults.release(Err(Errno::EIO));
            }
        }
    }
}

fn json(value: impl Serialize) -> io::Result<serde_json::Value> {
    Ok(serde_json::to_value(value)?)
}

impl State {
    fn number(&mut self) -> u64 {
        self.last += 1;
        self.last
    }

    fn drive(&self, id: DiskId) -> io::Result<&Arc<Drive>> {
        let disk = self.disks.get(&id).map(|disk| &disk.drive);
        disk.ok_or_else(|| io::Error::other(format!("there is no disk {id}")))
    }

    fn image(&self, id: ImageId) -> io::Result<&Content> {
        let image = self.images.get(&id);
        image.ok_or_else(|| io::Error::other(format!("there is no image {id}")))
    }

    fn content(&self, base: &Base) -> io::Result<Content> {
        match base {
            Base::Zeros => Ok(Content::default()),
            Base::File(path) => Content::load(&File::open(path)?),
            Base::Image(id) => self.image(*id).cloned(),
        }
    }

    fn handle(&mut self, request: Request) -> io::Result<serde_json::Value> {
        match request {
            Request::Create {
                folder,
                size,
                seed,
                base,
            } => {
                let drive = Arc::new(Drive {
                    size,
                    log: Mutex::new(Log::new(self.content(&base)?)),
                    faults: Faults::new(seed),
                });
                let export = Export(Arc::clone(&drive));
                let session = Session::new(export, folder, &Export::config())?.spawn()?;
                let id = self.number() as DiskId;
                self.disks.insert(id, Served { drive, session });
                json(id)
            }
            Request::End(id) => {
                if let Some(disk) = self.disks.remove(&id) {
                    disk.drive.faults.heal();
                    // It may be unmounted already.
                    let _ = disk.session.umount_and_join();
                }
                json(())
            }
            Request::Load(id, base) => {
                let content = self.content(&base)?;
                *self.drive(id)?.log.lock() = Log::new(content);
                json(())
            }
            Request::Cut(id, position, unflushed) => {
                let content = self.drive(id)?.log.lock().cut(position, unflushed)?;
                let image = self.number();
                self.images.insert(image, content);
                json(image)
            }
            Request::Free(image) => {
                self.images.remove(&image);
                json(())
            }
            Request::ReadImage(image, pos, len) => {
                let mut bytes = vec![0; len];
                self.image(image)?.read(pos, &mut bytes);
                json(bytes)
            }
            Request::Position(id) => json(self.drive(id)?.log.lock().position()),
            Request::Flushes(id) => json(self.drive(id)?.log.lock().flushes()),
            Request::Since(id, from) => json(logged(self.drive(id)?.log.lock().since(from))),
            Request::Trim(id, position) => {
                self.drive(id)?.log.lock().trim(position);
                json(())
            }
            Request::AddRule(id, rule) => json(self.drive(id)?.faults.add(rule)),
            Request::RemoveRule(id, rule) => json(self.drive(id)?.faults.remove(rule)),
            Request::Fired(id, rule) => json(self.drive(id)?.faults.fired(rule)),
            Request::Heal(id) => {
                self.drive(id)?.faults.heal();
                json(())
            }
            Request::Release(id, errno) => {
                let outcome = errno.map_or(Ok(()), |errno| Err(Errno::from_raw(errno)));
                self.drive(id)?.faults.release(outcome);
                json(())
            }
            Request::Counts(id) => json(self.drive(id)?.faults.counts()),
            Request::Trace(id, n) => json(self.drive(id)?.faults.trace_text(n)),
        }
    }
}

fn logged(entries: &[Entry]) -> Vec<Logged> {
    let logged = |entry: &Entry| match entry {
        Entry::Write { pos, data } => Logged {
            kind: LoggedKind::Write,
            pos: *pos,
            len: data.len() as u64,
        },
        Entry::Zero { pos, len } => Logged {
            kind: LoggedKind::Zero,
            pos: *pos,
            len: *len,
        },
        Entry::Flush => Logged::without_range(LoggedKind::Flush),
        Entry::Nothing => Logged::without_range(LoggedKind::Nothing),
    };
    entries.iter().map(logged).collect()
}
