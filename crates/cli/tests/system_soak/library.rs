//! The library's side: a directory of a cache, and every way that it has of reading and writing a file.
//!
//! # Safety
//!
//! Pinned memory is accessed within the parts of a pin that lives, by volatile accesses alone. The files are of one thread.
#![allow(unsafe_code)]

use crate::place::{Handle, Kind, Place};
use crate::work::{Context, Done, patiently, same};
use foliocache::{
    Advice, AsyncFile, Directory, Errno, Error, File, FileKind, IoOptions, MapAccess, Mapping,
    PinMode, RenameMode, View,
};
use foliocache_sim::Rng;
use std::future::Future;
use std::io::{IoSlice, IoSliceMut, Read, Seek, SeekFrom, Write};
use std::path::PathBuf;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Poll, Wake, Waker};
use std::thread::{self, Thread};

/// Runs a future on this thread.
pub(crate) fn block_on<T>(future: impl Future<Output = T>) -> T {
    struct Unpark(Thread);
    impl Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    let mut context = std::task::Context::from_waker(&waker);
    let mut future = pin!(future);
    loop {
        match future.as_mut().poll(&mut context) {
            Poll::Ready(value) => return value,
            Poll::Pending => thread::park(),
        }
    }
}

/// Whether the cache may refuse this when memory is short or much of it is pinned: then the caller
/// takes another way.
pub(crate) fn is_refusal(error: &Error) -> bool {
    [Errno::ENOBUFS, Errno::ENOMEM, Errno::EBUSY, Errno::EAGAIN].contains(&error.errno())
}

/// A directory through the library.
pub(crate) struct Library {
    pub(crate) directory: Directory,
    /// The directory itself.
    pub(crate) source: Option<PathBuf>,
    /// Whether the kernel resolves faults of mappings for us.
    pub(crate) maps: bool,
    /// No file becomes larger, in bytes.
    pub(crate) largest: u64,
}

impl Place for Library {
    fn open(&self, path: &str) -> Done<Box<dyn Handle + '_>> {
        let mut options = self.directory.open_options();
        let options = options.read(true).write(true).create(true);
        let file = patiently(|| options.open(path));
        let file = file.context(|| format!("open {path}"))?;
        Ok(Box::new(LibraryHandle {
            appending: None,
            futures: None,
            mapping: None,
            views: Vec::new(),
            place: self,
            path: path.to_owned(),
            file,
        }))
    }

    fn read(&self, path: &str) -> Done<Vec<u8>> {
        patiently(|| self.directory.read(path)).context(|| format!("read {path}"))
    }

    fn write(&self, path: &str, bytes: &[u8]) -> Done {
        let done = patiently(|| self.directory.write(path, bytes));
        done.context(|| format!("write {path}"))
    }

    fn copy(&self, from: &str, to: &str) -> Done {
        let done = patiently(|| self.directory.copy(from, to));
        done.map(drop).context(|| format!("copy {from} to {to}"))
    }

    fn create_dir(&self, path: &str) -> Done {
        let done = patiently(|| self.directory.create_dir(path));
        done.context(|| format!("create_dir {path}"))
    }

    fn rename(&self, from: &str, to: &str) -> Done {
        let done = patiently(|| self.directory.rename(from, to));
        done.context(|| format!("rename {from} to {to}"))
    }

    fn exchange(&self, a: &str, b: &str) -> Done {
        let done = patiently(|| self.directory.rename_with(a, b, RenameMode::Exchange));
        done.context(|| format!("exchange {a} and {b}"))
    }

    fn hard_link(&self, existing: &str, new: &str) -> Done {
        let done = patiently(|| self.directory.hard_link(existing, new));
        done.context(|| format!("link {existing} as {new}"))
    }

    fn symlink(&self, target: &str, link: &str) -> Done {
        let done = patiently(|| self.directory.symlink(target, link));
        done.context(|| format!("symlink {link}"))
    }

    fn read_link(&self, path: &str) -> Done<String> {
        let target = patiently(|| self.directory.read_link(path));
        let target = target.context(|| format!("read_link {path}"))?;
        Ok(target.to_string_lossy().into_owned())
    }

    fn remove_file(&self, path: &str) -> Done {
        let done = patiently(|| self.directory.remove_file(path));
        done.context(|| format!("remove_file {path}"))
    }

    fn remove_dir(&self, path: &str) -> Done {
        let done = patiently(|| self.directory.remove_dir(path));
        done.context(|| format!("remove_dir {path}"))
    }

    fn remove_dir_all(&self, path: &str) -> Done {
        let done = patiently(|| self.directory.remove_dir_all(path));
        done.context(|| format!("remove_dir_all {path}"))
    }

    fn list(&self, path: &str) -> Done<Vec<String>> {
        let names = patiently(|| self.directory.read_dir(path));
        let names = names.context(|| format!("read_dir {path}"))?;
        let names: Result<Vec<_>, _> = names
            .map(|entry| entry.map(|entry| entry.file_name().to_string_lossy().into_owned()))
            .collect();
        let mut names = names.context(|| format!("read_dir {path}"))?;
        names.sort();
        Ok(names)
    }

    fn kind(&self, path: &str) -> Done<Kind> {
        let found = patiently(|| self.directory.symlink_metadata(path));
        let found = found.context(|| format!("metadata of {path}"))?;
        match found.file_type() {
            FileKind::Directory => Ok(Kind::Directory),
            FileKind::Symlink => Ok(Kind::Link),
            FileKind::Regular => Ok(Kind::File(found.len())),
            other => Err(format!("{path} is {other:?}")),
        }
    }

    fn sync_dir(&self, path: &str) -> Done {
        let directory = patiently(|| self.directory.open_dir(path));
        let done = directory.and_then(|directory| directory.sync());
        done.context(|| format!("sync {path}"))
    }

    fn source(&self, path: &str) -> Option<PathBuf> {
        Some(self.source.as_ref()?.join(path))
    }

    fn is_mount(&self) -> bool {
        false
    }
}

/// An open file with all that may be had of it, each made when it is first needed.
struct LibraryHandle<'a> {
    appending: Option<File>,
    futures: Option<AsyncFile>,
    mapping: Option<Mapping>,
    /// Views with their expected bytes.
    views: Vec<(View, Vec<u8>)>,
    place: &'a Library,
    path: String,
    file: File,
}

impl LibraryHandle<'_> {
    fn futures(&mut self) -> Result<&AsyncFile, Error> {
        if self.futures.is_none() {
            let made = patiently(|| self.file.try_clone()?.into_async())?;
            self.futures = Some(made);
        }
        Ok(self.futures.as_ref().expect("was just made"))
    }

    /// A mapping of the file as large as it may become; `None` where it cannot be had now.
    fn mapping(&mut self) -> Result<Option<&Mapping>, Error> {
        if !self.place.maps {
            return Ok(None);
        }
        if self.mapping.is_none() {
            let mapped = self.file.map(..self.place.largest, MapAccess::ReadWrite);
            self.mapping = match mapped {
                Ok(mapping) => Some(mapping),
                Err(error) if is_refusal(&error) => return Ok(None),
                Err(error) => return Err(error),
            };
        }
        Ok(self.mapping.as_ref())
    }

    fn read_plainly(&self, pos: u64, len: usize, options: IoOptions) -> Result<Vec<u8>, Error> {
        let mut bytes = vec![0; len];
        let mut done = 0;
        while done < len {
            match self
                .file
                .read_at_with(&mut bytes[done..], pos + done as u64, options)?
            {
                0 => break,
                n => done += n,
            }
        }
        bytes.truncate(done);
        Ok(bytes)
    }

    /// Bytes of the range that lie in the file.
    fn within(&self, pos: u64, len: usize) -> usize {
        (self.file.len().saturating_sub(pos)).min(len as u64) as usize
    }

    fn read_views(&mut self, pos: u64, len: usize, keep: bool) -> Result<Vec<u8>, Error> {
        let mut bytes = Vec::new();
        while bytes.len() < len {
            let at = pos + bytes.len() as u64;
            let view = self.file.view(at..pos + len as u64)?;
            if view.is_empty() {
                break;
            }
            bytes.extend_from_slice(&view);
            if keep && self.views.len() < 4 && view.len() <= 64 << 10 {
                let copy = view.to_vec();
                self.views.push((view, copy));
            }
        }
        Ok(bytes)
    }

    fn read_batch(&self, pos: u64, len: usize, rng: &mut Rng) -> Result<Vec<u8>, Error> {
        let mut bytes = vec![0; len];
        let piece = rng.between(64, 20_000) as usize;
        let mut at = pos;
        let mut requests = Vec::new();
        for buffer in bytes.chunks_mut(piece) {
            let (here, len) = (at, buffer.len());
            at += len as u64;
            requests.push(self.file.read_request(buffer, here));
        }
        File::read_batch(&mut requests)?;
        let mut read = 0;
        for request in &requests {
            read += request.result()?;
        }
        drop(requests);
        bytes.truncate(read);
        Ok(bytes)
    }

    fn read_pinned(&self, pos: u64, len: usize) -> Result<Option<Vec<u8>>, Error> {
        let pinned = match self.file.pin(pos..pos + len as u64, PinMode::READ) {
            Ok(pinned) => pinned,
            Err(error) if is_refusal(&error) => return Ok(None),
            Err(error) => return Err(error),
        };
        let mut bytes = Vec::with_capacity(len);
        for part in pinned.parts() {
            for i in 0..part.len {
                // SAFETY: the byte is within the part.
                let address = unsafe { part.addr.add(i) };
                // SAFETY: the pin lives, so the part is memory.
                bytes.push(unsafe { address.read_volatile() });
            }
        }
        Ok(Some(bytes))
    }

    /// Writes as a device does, into pinned memory.
    fn write_pinned(&self, pos: u64, bytes: &[u8]) -> Result<bool, Error> {
        let range = pos..pos + bytes.len() as u64;
        let pinned = match self.file.pin(range, PinMode::WRITE) {
            Ok(pinned) => pinned,
            Err(error) if is_refusal(&error) => return Ok(false),
            Err(error) => return Err(error),
        };
        for part in pinned.parts() {
            let from = (part.pos - pos) as usize;
            for (i, &byte) in bytes[from..from + part.len].iter().enumerate() {
                // SAFETY: the byte is within the part.
                let address = unsafe { part.addr.add(i) };
                // SAFETY: the pin lives, and is for devices that write.
                unsafe { address.write_volatile(byte) };
            }
        }
        Ok(true)
    }

    fn read_mapped(&mut self, pos: u64, len: usize) -> Result<Option<Vec<u8>>, Error> {
        let len = self.within(pos, len);
        let Some(mapping) = self.mapping()? else {
            return Ok(None);
        };
        let atomics = mapping.as_atomics().expect("is mapped for stores");
        let from = (pos as usize).min(atomics.len());
        let bytes = atomics[from..].iter().take(len);
        // Relaxed: the file is this thread's.
        Ok(Some(
            bytes.map(|byte| byte.load(Ordering::Relaxed)).collect(),
        ))
    }

    fn write_mapped(&mut self, pos: u64, bytes: &[u8]) -> Result<bool, Error> {
        let Some(mapping) = self.mapping()? else {
            return Ok(false);
        };
        let atomics = mapping.as_atomics().expect("is mapped for stores");
        for (cell, &byte) in atomics[pos as usize..].iter().zip(bytes) {
            // Relaxed: the file is this thread's.
            cell.store(byte, Ordering::Relaxed);
        }
        Ok(true)
    }

    fn try_read(
        &mut self,
        pos: u64,
        len: usize,
        rng: &mut Rng,
    ) -> Result<(Vec<u8>, &'static str), Error> {
        let plain = IoOptions::new();
        let within = self.within(pos, len);
        match rng.below(12) {
            0 => {
                let bytes = self.read_plainly(pos, len, plain.uncached(true))?;
                return Ok((bytes, "uncached read"));
            }
            1 => {
                let bytes = self.read_plainly(pos, len, plain.direct(true))?;
                return Ok((bytes, "direct read"));
            }
            2 => {
                let (mut a, mut b) = (vec![0; len / 3], vec![0; len - len / 3]);
                let mut slices = [IoSliceMut::new(&mut a), IoSliceMut::new(&mut b)];
                let read = self.file.read_vectored_at(&mut slices, pos)?;
                if read == within {
                    a.extend(b);
                    a.truncate(read);
                    return Ok((a, "vectored read"));
                }
            }
            3 | 4 => {
                let keep = rng.one_in(1, 2);
                return Ok((self.read_views(pos, len, keep)?, "view"));
            }
            5 => return Ok((self.read_batch(pos, len, rng)?, "batch")),
            6 if within > 0 => {
                if let Some(bytes) = self.read_pinned(pos, within)? {
                    return Ok((bytes, "pin for reads"));
                }
            }
            7 | 8 => {
                if let Some(bytes) = self.read_mapped(pos, len)? {
                    return Ok((bytes, "loads of a mapping"));
                }
            }
            9 => {
                let mut bytes = vec![0; within];
                block_on(self.futures()?.read_exact_at(&mut bytes, pos))?;
                return Ok((bytes, "async read"));
            }
            10 => {
                let mut cursor = &self.file;
                let seek = cursor.seek(SeekFrom::Start(pos));
                let mut bytes = Vec::new();
                let read = seek.and_then(|_| cursor.take(len as u64).read_to_end(&mut bytes));
                if read.is_ok() {
                    return Ok((bytes, "read at a cursor"));
                }
            }
            _ => {}
        }
        Ok((self.read_plainly(pos, len, plain)?, "read"))
    }

    fn write_plainly(&self, mut pos: u64, mut bytes: &[u8], how: IoOptions) -> Result<(), Error> {
        while !bytes.is_empty() {
            let n = self.file.write_at_with(bytes, pos, how)?;
            bytes = &bytes[n..];
            pos += n as u64;
        }
        Ok(())
    }

    fn try_write(&mut self, pos: u64, bytes: &[u8], rng: &mut Rng) -> Result<&'static str, Error> {
        let plain = IoOptions::new();
        let within = !bytes.is_empty() && self.within(pos, bytes.len()) == bytes.len();
        match rng.below(10) {
            0 => {
                self.write_plainly(pos, bytes, plain.uncached(true))?;
                return Ok("uncached write");
            }
            1 => {
                self.write_plainly(pos, bytes, plain.direct(true))?;
                return Ok("direct write");
            }
            2 => {
                let (a, b) = bytes.split_at(bytes.len() / 3);
                let slices = [IoSlice::new(a), IoSlice::new(b)];
                let done = self.file.write_vectored_at(&slices, pos)?;
                self.write_plainly(pos + done as u64, &bytes[done..], plain)?;
                return Ok("vectored write");
            }
            3 if within && self.write_pinned(pos, bytes)? => return Ok("pin for writes"),
            4 | 5 if within && self.write_mapped(pos, bytes)? => return Ok("stores to a mapping"),
            6 => {
                block_on(self.futures()?.write_all_at(bytes, pos))?;
                return Ok("async write");
            }
            7 => {
                let mut cursor = &self.file;
                let seek = cursor.seek(SeekFrom::Start(pos));
                if seek.and_then(|_| cursor.write_all(bytes)).is_ok() {
                    return Ok("write at a cursor");
                }
            }
            _ => {}
        }
        self.write_plainly(pos, bytes, plain)?;
        Ok("write")
    }

    fn check_views(&mut self, rng: &mut Rng) -> Done {
        if self.views.is_empty() || !rng.one_in(1, 4) {
            return Ok(());
        }
        let (view, expected) = self
            .views
            .swap_remove(rng.below(self.views.len() as u64) as usize);
        same(&view, &expected, || format!("a kept view of {}", self.path))
    }

    fn try_disturb(&mut self, rng: &mut Rng) -> Result<&'static str, Error> {
        let len = self.file.len();
        match rng.below(9) {
            0 => self.file.advise(Advice::DontNeed, ..)?,
            1 => self.file.advise(Advice::WillNeed, ..len.min(256 << 10))?,
            2 => self.file.advise(Advice::Random, ..)?,
            3 => self.file.advise(Advice::Sequential, ..)?,
            4 if len > 0 => {
                let pos = rng.below(len);
                // A store in memory gives no space away.
                match self.file.allocate(pos, rng.between(1, len - pos)) {
                    Err(error) if error.errno() != Errno::EOPNOTSUPP => return Err(error),
                    _ => return Ok("allocation"),
                }
            }
            5 => {
                self.file.seek_data(0)?;
                self.file.seek_hole(0)?;
                return Ok("data and holes");
            }
            6 => {
                self.mapping = None;
                self.futures = None;
                self.appending = None;
                return Ok("handles closed");
            }
            7 => {
                self.file.metadata()?;
                self.file.stats()?;
            }
            _ => {
                self.file = self
                    .place
                    .directory
                    .open_options()
                    .read(true)
                    .write(true)
                    .open(&self.path)?
            }
        }
        Ok("advice and the like")
    }
}

impl Handle for LibraryHandle<'_> {
    fn read(&mut self, pos: u64, len: usize, rng: &mut Rng) -> Done<(Vec<u8>, &'static str)> {
        self.check_views(rng)?;
        let read = patiently(|| self.try_read(pos, len, rng));
        read.context(|| format!("read {len} bytes at {pos} of {}", self.path))
    }

    fn write(&mut self, pos: u64, bytes: &[u8], rng: &mut Rng) -> Done<&'static str> {
        self.check_views(rng)?;
        let written = patiently(|| self.try_write(pos, bytes, rng));
        written.context(|| format!("write {} bytes at {pos} of {}", bytes.len(), self.path))
    }

    fn append(&mut self, bytes: &[u8], rng: &mut Rng) -> Done {
        let mut append = || -> Result<(), Error> {
            if rng.one_in(1, 3) {
                block_on(self.futures()?.append_all(bytes.to_vec()))?;
                return Ok(());
            }
            if self.appending.is_none() {
                let appending = patiently(|| self.place.directory.append(&self.path))?;
                self.appending = Some(appending);
            }
            let appending = self.appending.as_ref().expect("was just made");
            appending.append_all(bytes).map(drop)
        };
        append().context(|| format!("append {} bytes to {}", bytes.len(), self.path))
    }

    fn set_len(&mut self, len: u64) -> Done {
        let done = patiently(|| self.file.set_len(len));
        done.context(|| format!("set_len {len} of {}", self.path))
    }

    fn punch(&mut self, pos: u64, len: u64) -> Done {
        let done = patiently(|| self.file.punch_hole(pos, len));
        done.context(|| format!("punch {len} bytes at {pos} of {}", self.path))
    }

    fn sync(&mut self, datasync: bool, rng: &mut Rng) -> Done<&'static str> {
        let mut sync = || match rng.below(4) {
            0 => {
                block_on(self.futures()?.sync_data())?;
                Ok("async sync")
            }
            1 => {
                self.file.sync_range(..)?;
                Ok("sync of a range")
            }
            _ if datasync => {
                self.file.sync_data()?;
                Ok("sync_data")
            }
            _ => {
                self.file.sync_all()?;
                Ok("sync_all")
            }
        };
        sync().map_err(|error: Error| format!("sync of {}: {error}", self.path))
    }

    fn len(&mut self) -> Done<u64> {
        Ok(self.file.len())
    }

    fn disturb(&mut self, rng: &mut Rng) -> Done<&'static str> {
        let done = patiently(|| self.try_disturb(rng));
        done.context(|| format!("advice for {}", self.path))
    }
}
