//! Buffers of a ring that are pages of a file of the cache, and are given up while others need these pages.
//!
//! ```text
//! pin_revocable SOURCE DIRECTORY
//! ```
//!
//! The ring reads the source with `O_DIRECT`, again and again, into an arena in the directory: a pinned file whose memory is registered
//! with the ring. Meanwhile another thread halves the arena three times. Without the callback it would get `EBUSY` as long as
//! the memory is registered.
//!
//! # Safety
//!
//! A ring is handed addresses of pinned memory. A pin is dropped when all its requests have ended and the memory is no longer
//! registered; never, if the ring fails.
#![allow(unsafe_code)]

use foliocache::{Cache, Errno, File, FolioPin, PinEvent, PinMode, PinnedPart};
use io_uring::{IoUring, opcode, types};
use std::error::Error;
use std::fs::OpenOptions;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver};
use std::thread;
use std::time::Duration;

/// Requests in flight.
const DEPTH: usize = 16;

/// Of a request, at most; a multiple of the alignment of direct I/O.
const CHUNK: usize = 64 << 10;

/// Bytes of the arena.
pub(crate) const ARENA: u64 = 1 << 20;

/// Times that the arena is halved.
pub(crate) const CUTS: u32 = 3;

/// Of the request that waits for a ring of the bell; the others have none.
const BELL: u64 = 1;

#[allow(dead_code, reason = "a test runs the rest")]
fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<_> = std::env::args_os().skip(1).collect();
    let [source, directory] = &arguments[..] else {
        return Err("pin_revocable SOURCE DIRECTORY".into());
    };
    let cache = Cache::builder().memory("64M").build()?;
    let arena = cache.directory(directory)?.create("arena")?;
    let used = run(source.as_ref(), &arena)?;
    println!("bytes of the arena that were registered, one after another: {used:?}");
    Ok(())
}

/// Reads `source` into `arena` while another thread halves that; returns how long the arena was each time that it was
/// registered.
pub(crate) fn run(source: &Path, arena: &File) -> Result<Vec<u64>, Box<dyn Error>> {
    let source = OpenOptions::new()
        .read(true)
        .custom_flags(libc::O_DIRECT)
        .open(source)?;
    if source.metadata()?.len() < CHUNK as u64 {
        return Err("the source is too short".into());
    }
    arena.set_len(ARENA)?;
    let bell = Arc::new(Bell::new()?);
    let cuts = thread::spawn({
        let (arena, bell) = (arena.try_clone()?, Arc::clone(&bell));
        move || {
            let cut = |cut| {
                thread::sleep(Duration::from_millis(20));
                arena.set_len(ARENA >> cut)
            };
            let done = (1..=CUTS).try_for_each(cut);
            bell.ring();
            done
        }
    });
    let (tell, events) = mpsc::channel();
    let mut reader = Reader {
        ring: IoUring::new(2 * DEPTH as u32)?,
        source,
        bell: Arc::clone(&bell),
        awaits_bell: false,
        events,
    };
    let mut used = Vec::new();
    while !cuts.is_finished() {
        let (tell, bell) = (tell.clone(), Arc::clone(&bell));
        // The event waits in the channel, and the ring wakes up: it is this thread that quiesces.
        let callback = move |event| {
            let _ = tell.send(event);
            bell.ring();
        };
        let pin = match arena.pin_revocable(.., PinMode::WRITE, callback) {
            // Another operation needs the pages already, or has just cut them off.
            Err(busy) if [Errno::EAGAIN, Errno::EINVAL].contains(&busy.errno()) => {
                thread::sleep(Duration::from_millis(1));
                continue;
            }
            pin => pin?,
        };
        used.push(pin.range().end);
        let revoked = match reader.use_pin(&pin, || cuts.is_finished()) {
            Ok(revoked) => revoked,
            Err(error) => {
                // Requests may be in flight.
                std::mem::forget(pin);
                return Err(error.into());
            }
        };
        drop(pin);
        if revoked {
            while reader.events.recv()? != PinEvent::MayPin {}
        }
    }
    cuts.join().expect("no panic")?;
    Ok(used)
}

/// A ring that reads a file into pinned memory.
struct Reader {
    ring: IoUring,
    source: std::fs::File,
    bell: Arc<Bell>,
    /// A request of the ring waits for the bell.
    awaits_bell: bool,
    events: Receiver<PinEvent>,
}

impl Reader {
    /// Registers the memory of a pin and reads into it, until the holder is asked to give it up, which is true, or the
    /// program is `over`. Then no request is in flight, and nothing is registered.
    fn use_pin(&mut self, pin: &FolioPin, over: impl Fn() -> bool) -> io::Result<bool> {
        let parts: Vec<PinnedPart> = pin.parts().collect();
        let buffers = parts.iter().map(|part| libc::iovec {
            iov_base: part.addr.cast(),
            iov_len: part.len,
        });
        let buffers: Vec<_> = buffers.collect();
        // SAFETY: see the module's header.
        unsafe { self.ring.submitter().register_buffers(&buffers) }?;
        let (mut in_flight, mut next, mut revoked) = (0, 0, false);
        let chunks: Vec<_> = (parts.iter().enumerate())
            .flat_map(|(buffer, part)| (0..part.len).step_by(CHUNK).map(move |at| (buffer, at)))
            .collect();
        loop {
            for event in self.events.try_iter() {
                revoked |= matches!(event, PinEvent::Revoke { .. });
            }
            let stops = revoked || over();
            if stops && in_flight == 0 {
                break;
            }
            if !self.awaits_bell {
                let poll =
                    opcode::PollAdd::new(types::Fd(self.bell.0.as_raw_fd()), libc::POLLIN as u32);
                self.submit(poll.build().user_data(BELL))?;
                self.awaits_bell = true;
            }
            while !stops && in_flight < DEPTH.min(chunks.len()) {
                let (buffer, at) = chunks[next % chunks.len()];
                let part = parts[buffer];
                let read = opcode::ReadFixed::new(
                    types::Fd(self.source.as_raw_fd()),
                    part.addr.wrapping_add(at),
                    (part.len - at).min(CHUNK) as u32,
                    buffer as u16,
                );
                self.submit(read.build())?;
                (in_flight, next) = (in_flight + 1, next + 1);
            }
            self.ring.submit_and_wait(1)?;
            let done: Vec<_> = self.ring.completion().collect();
            for done in done {
                if done.user_data() == BELL {
                    self.bell.clear();
                    self.awaits_bell = false;
                    continue;
                }
                in_flight -= 1;
                if done.result() < 0 {
                    return Err(io::Error::from_raw_os_error(-done.result()));
                }
            }
        }
        self.ring.submitter().unregister_buffers()?;
        Ok(revoked)
    }

    fn submit(&mut self, request: io_uring::squeue::Entry) -> io::Result<()> {
        // SAFETY: see the module's header.
        unsafe { self.ring.submission().push(&request) }.map_err(io::Error::other)
    }
}

/// An eventfd.
struct Bell(OwnedFd);

impl Bell {
    fn new() -> io::Result<Bell> {
        // SAFETY: always allowed.
        match unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) } {
            -1 => Err(io::Error::last_os_error()),
            // SAFETY: it is new, and nobody else's.
            fd => Ok(Bell(unsafe { OwnedFd::from_raw_fd(fd) })),
        }
    }

    fn ring(&self) {
        let one = 1_u64;
        // SAFETY: eight bytes are read from the variable. A counter that is full has been rung.
        unsafe { libc::write(self.0.as_raw_fd(), (&raw const one).cast(), 8) };
    }

    fn clear(&self) {
        let mut count = 0_u64;
        // SAFETY: eight bytes are written to the variable.
        unsafe { libc::read(self.0.as_raw_fd(), (&raw mut count).cast(), 8) };
    }
}
