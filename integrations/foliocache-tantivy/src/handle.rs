//! An open file of an index, and the ways in which its bytes are handed out.
//!
//! # Invariants
//!
//! 1. A file is mapped only while no writer of this directory has it. tantivy's files are written once, so nothing of
//!    this crate changes a mapped file.
//!
//! # Safety
//!
//! A mapping is handed out as a plain slice. That needs invariant 1, and that nobody else changes the file, which is the premise
//! of [`FoliocacheDirectory`](crate::FoliocacheDirectory): the cache locks the directory against other caches, and programs that write
//! there all the same break an index in any case.
#![allow(unsafe_code)]

use foliocache::{Errno, File, MapAccess, Mapping};
use stable_deref_trait::StableDeref;
use std::fmt;
use std::io;
use std::ops::{Deref, Range};
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};
use tantivy::HasLen;
use tantivy::directory::{FileHandle, OwnedBytes};

use crate::directory::Shared;
use crate::error::io_error;

/// An open file.
pub(crate) struct Handle {
    file: File,
    path: PathBuf,
    /// The length when it was opened, which is the length for good.
    len: usize,
    /// The least length of a range that is mapped; none for never.
    map_from: Option<usize>,
    /// The file as one slice, once a range of it was long.
    whole: OnceLock<OwnedBytes>,
    shared: Arc<Shared>,
}

impl Handle {
    pub(crate) fn new(
        file: File,
        path: PathBuf,
        map_from: Option<usize>,
        shared: &Arc<Shared>,
    ) -> io::Result<Self> {
        let len = usize::try_from(file.len())
            .map_err(|_| io::Error::from(io::ErrorKind::FileTooLarge))?;
        Ok(Self {
            file,
            path,
            len,
            map_from,
            whole: OnceLock::new(),
            shared: Arc::clone(shared),
        })
    }

    /// The file as one slice, unless the kernel, the settings or a writer are against it.
    fn mapped(&self) -> Option<&OwnedBytes> {
        if let Some(whole) = self.whole.get() {
            return Some(whole);
        }
        self.map_from?;
        if !self.shared.may_map(&self.path) {
            return None;
        }
        match self.file.map(..self.len as u64, MapAccess::Read) {
            Ok(mapping) => Some(self.whole.get_or_init(|| OwnedBytes::new(Whole(mapping)))),
            Err(error) => {
                self.shared.not_mapped(&error);
                None
            }
        }
    }

    fn copy(&self, range: Range<usize>) -> io::Result<OwnedBytes> {
        let mut bytes = Vec::new();
        bytes.try_reserve_exact(range.len())?;
        bytes.resize(range.len(), 0);
        let read = self.file.read_exact_at(&mut bytes, range.start as u64);
        read.map_err(io_error)?;
        self.shared.counters.copied_to_heap(bytes.len());
        Ok(OwnedBytes::new(HeapCopy {
            bytes,
            shared: Arc::clone(&self.shared),
        }))
    }
}

impl FileHandle for Handle {
    fn read_bytes(&self, range: Range<usize>) -> io::Result<OwnedBytes> {
        if range.start > range.end || range.end > self.len {
            let message = format!(
                "bytes {range:?} of {}, which has {}",
                self.path.display(),
                self.len
            );
            return Err(io::Error::new(io::ErrorKind::InvalidInput, message));
        }
        if range.is_empty() {
            return Ok(OwnedBytes::empty());
        }
        let is_long = self.map_from.is_some_and(|least| range.len() >= least);
        let mut whole = self.whole.get();
        if whole.is_none() && is_long {
            whole = self.mapped();
        }
        if whole.is_none() {
            match self.file.view_exact(range.start as u64..range.end as u64) {
                Ok(view) => {
                    self.shared.counters.viewed(view.is_copy());
                    return Ok(OwnedBytes::new(view));
                }
                // Copies have their quarter of the bound.
                Err(error) if error.errno() == Errno::ENOBUFS => whole = self.mapped(),
                // What cannot be reclaimed has the memory. A touch of a mapping might find none either.
                Err(error) if error.errno() == Errno::ENOMEM => {}
                Err(error) => return Err(io_error(error)),
            }
        }
        match whole {
            Some(whole) => {
                self.shared.counters.mapped();
                Ok(whole.slice(range))
            }
            None => self.copy(range),
        }
    }
}

impl HasLen for Handle {
    fn len(&self) -> usize {
        self.len
    }
}

impl fmt::Debug for Handle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Handle")
            .field("path", &self.path)
            .field("len", &self.len)
            .field("is_mapped", &self.whole.get().is_some())
            .finish_non_exhaustive()
    }
}

/// A mapped file.
struct Whole(Mapping);

impl Deref for Whole {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: the module's premise, and invariant 1.
        unsafe { self.0.as_slice() }
    }
}

// SAFETY: the addresses of a mapping are the same until it is dropped, wherever the `Mapping` itself moves.
unsafe impl StableDeref for Whole {}

/// Bytes outside the bound.
struct HeapCopy {
    bytes: Vec<u8>,
    shared: Arc<Shared>,
}

impl Deref for HeapCopy {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes
    }
}

// SAFETY: the bytes are those of a vector that nobody changes.
unsafe impl StableDeref for HeapCopy {}

impl Drop for HeapCopy {
    fn drop(&mut self) {
        self.shared.counters.freed_from_heap(self.bytes.len());
    }
}
