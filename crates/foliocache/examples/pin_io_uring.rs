//! Copies a file into a directory of the cache through its own ring, straight into pinned folios.
//!
//! ```text
//! pin_io_uring SOURCE DIRECTORY
//! ```
//!
//! The source is read with `O_DIRECT`: the device writes to the cache's own memory, and nothing is copied. The bytes are
//! the new file's as they arrive, and durable after the sync.
//!
//! # Safety
//!
//! A ring is handed addresses of pinned memory. The pins are dropped when all its requests have ended.
#![allow(unsafe_code)]

use foliocache::{Cache, PinMode};
use io_uring::{IoUring, opcode, types};
use std::error::Error;
use std::fs::OpenOptions;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

/// Requests in flight.
const DEPTH: u32 = 64;

/// Bytes that are pinned at a time.
const STEP: u64 = 8 << 20;

/// Of a request.
const CHUNK: usize = 256 << 10;

/// The alignment of direct I/O.
const BLOCK: u64 = 4096;

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<_> = std::env::args_os().skip(1).collect();
    let [source, directory] = &arguments[..] else {
        return Err("pin_io_uring SOURCE DIRECTORY".into());
    };
    let name = Path::new(source).file_name().ok_or("which file?")?;
    let source = OpenOptions::new()
        .read(true)
        .custom_flags(libc::O_DIRECT)
        .open(source)?;
    let len = source.metadata()?.len();
    let cache = Cache::builder().memory("64M").build()?;
    let file = cache.directory(directory)?.create(name)?;
    let mut ring = IoUring::new(DEPTH)?;
    // Whole blocks, until the end is cut off again.
    file.set_len(len.next_multiple_of(BLOCK))?;
    for start in (0..len).step_by(STEP as usize) {
        let end = (start + STEP).min(file.len());
        let pin = file.pin(start..end, PinMode::WRITE)?;
        let (mut in_flight, mut read) = (0, 0);
        for part in pin.parts() {
            for at in (0..part.len).step_by(CHUNK) {
                let bytes = (part.len - at).min(CHUNK);
                let request = opcode::Read::new(
                    types::Fd(source.as_raw_fd()),
                    part.addr.wrapping_add(at),
                    bytes as u32,
                );
                let request = request.offset(part.pos + at as u64).build();
                if in_flight == DEPTH {
                    read += reap(&mut ring)?;
                    in_flight -= 1;
                }
                // SAFETY: see the module's header.
                unsafe { ring.submission().push(&request) }?;
                ring.submit()?;
                in_flight += 1;
            }
        }
        for _ in 0..in_flight {
            read += reap(&mut ring)?;
        }
        if read < end.min(len) - start {
            return Err("the source became shorter".into());
        }
    }
    file.set_len(len)?;
    file.sync_all()?;
    println!(
        "{len} bytes, {} of them cached",
        file.stats()?.resident_pages * BLOCK
    );
    Ok(())
}

/// Waits for a request; returns its bytes. An error ends the program with the ring, before any pin.
fn reap(ring: &mut IoUring) -> Result<u64, io::Error> {
    ring.submit_and_wait(1)?;
    let done = ring.completion().next().expect("one was waited for");
    match done.result() {
        bytes if bytes >= 0 => Ok(bytes as u64),
        error => Err(io::Error::from_raw_os_error(-error)),
    }
}
