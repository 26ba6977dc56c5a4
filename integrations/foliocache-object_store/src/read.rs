//! Chunks of an object: from their files, or from the inner store.

use bytes::Bytes;
use foliocache::{AsyncDirectory, AsyncFile, Directory, Errno};
use futures_util::{Stream, StreamExt, TryStreamExt, stream};
use object_store::path::Path;
use object_store::{Error, Extensions, GetOptions, GetRange, ObjectStore, Result};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::chunks::{Checked, Chunks, Identity, Slot};

/// The chunks of one read that are on their way at once.
pub(crate) const AHEAD: usize = 4;

/// What all clones and streams of a store share.
#[derive(Debug)]
pub(crate) struct Shared<S> {
    pub(crate) inner: S,
    pub(crate) directory: AsyncDirectory,
    pub(crate) chunks: Chunks,
    pub(crate) counters: Counters,
}

/// Relaxed throughout: read for their values alone.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    pub(crate) hits: AtomicU64,
    pub(crate) misses: AtomicU64,
    pub(crate) local_failures: AtomicU64,
}

impl Counters {
    fn count(counter: &AtomicU64) {
        // Relaxed: see the type.
        counter.fetch_add(1, Ordering::Relaxed);
    }
}

/// Why a chunk was not had.
#[derive(Debug)]
pub(crate) enum Failure {
    /// The object is another version by now.
    Changed,
    Store(Error),
    /// It was had, but could not be kept.
    NotKept,
}

/// A version of an object, to be read in chunks.
#[derive(Clone, Debug)]
pub(crate) struct Object {
    pub(crate) path: Path,
    pub(crate) checked: Checked,
    pub(crate) extensions: Extensions,
    pub(crate) chunk_size: u64,
}

/// A part of a chunk.
pub(crate) struct Part {
    index: u64,
    /// Within the chunk.
    range: Range<u64>,
    from: Source,
}

enum Source {
    Fetched(Bytes),
    /// With the slot that said so.
    Kept(AsyncFile, Slot),
}

/// The name of a file that has a chunk.
pub(crate) fn name(file: u64) -> String {
    format!("{file}{SUFFIX}")
}

/// With which all of them end.
pub(crate) const SUFFIX: &str = ".chunk";

impl Object {
    fn identity(&self) -> &Identity {
        &self.checked.identity
    }

    /// The bytes of a chunk.
    fn bytes_of(&self, index: u64) -> Range<u64> {
        let start = index * self.chunk_size;
        start..(start + self.chunk_size).min(self.checked.known.meta.size)
    }

    /// The chunks that have a part of a range, with that part.
    fn parts(&self, range: Range<u64>) -> impl Iterator<Item = (u64, Range<u64>)> + use<> {
        let size = self.chunk_size;
        // No chunk has a part of nothing.
        let first = if range.is_empty() {
            range.end.div_ceil(size)
        } else {
            range.start / size
        };
        let indexes = first..range.end.div_ceil(size);
        indexes.map(move |index| {
            let first = index * size;
            let start = range.start.max(first) - first;
            (index, start..range.end.min(first + size) - first)
        })
    }
}

/// Leaves a slot when it is dropped.
struct Attempt<'a> {
    chunks: &'a Chunks,
    path: &'a Path,
    index: u64,
    slot: Slot,
}

impl Drop for Attempt<'_> {
    fn drop(&mut self) {
        self.chunks.leave(self.path, self.index, &self.slot);
    }
}

/// Removes a file that nobody took over.
struct NewFile<'a> {
    chunks: &'a Chunks,
    file: Option<u64>,
}

impl Drop for NewFile<'_> {
    fn drop(&mut self) {
        if let Some(file) = self.file {
            self.chunks.doom(file);
        }
    }
}

impl<S: ObjectStore> Shared<S> {
    /// The parts of a range that come first, ready to be read, and those that follow.
    pub(crate) async fn open(
        self: &Arc<Self>,
        object: &Object,
        range: Range<u64>,
    ) -> Result<impl Stream<Item = Result<Bytes>> + Send + 'static + use<S>, Failure> {
        let mut parts = object.parts(range);
        let first: Vec<_> = parts.by_ref().take(AHEAD).collect();
        let first = stream::iter(first).map(|(index, range)| self.part(object, index, range));
        let first: Vec<_> = first.buffered(AHEAD).try_collect().await?;
        let (this, of) = (Arc::clone(self), object.clone());
        let rest = stream::iter(parts).map(move |(index, range)| {
            let (this, of) = (Arc::clone(&this), of.clone());
            async move { this.part(&of, index, range).await }
        });
        let (this, of) = (Arc::clone(self), object.clone());
        let read = stream::iter(first.into_iter().map(Ok))
            .chain(rest.buffered(AHEAD))
            .then(move |part| {
                let (this, of) = (Arc::clone(&this), of.clone());
                async move {
                    let read = match part {
                        Ok(part) => this.read(&of, part).await,
                        Err(failure) => Err(failure),
                    };
                    read.map_err(|failure| failure.told(&of))
                }
            });
        let pieces = read.map_ok(|pieces| stream::iter(pieces.into_iter().map(Ok)));
        Ok(pieces.try_flatten())
    }

    /// A part, once its chunk is there.
    async fn part(&self, object: &Object, index: u64, range: Range<u64>) -> Result<Part, Failure> {
        // It has the only reference of this read, so that the last reader who gives up is known.
        let attempt = Attempt {
            chunks: &self.chunks,
            path: &object.path,
            index,
            slot: self.chunks.slot(&object.path, &object.checked, index),
        };
        let slot = &attempt.slot;
        let mut fetched = None;
        let kept = {
            let fetched = &mut fetched;
            let fill = || async move {
                let bytes = self.fetch(object, index).await?;
                *fetched = Some(bytes.clone());
                let mut file = self.keep(&bytes).await.ok_or(Failure::NotKept)?;
                let number = file.file.take().expect("it is new");
                let len = bytes.len() as u64;
                self.chunks.stored(&object.path, index, slot, number, len);
                Ok(number)
            };
            slot.get_or_try_init(fill).await.copied()
        };
        self.sweep().await;
        let from = match (fetched, kept) {
            (Some(bytes), _) => Source::Fetched(bytes),
            (None, Ok(file)) => match self.directory.open(name(file)).await {
                Ok(file) => {
                    Counters::count(&self.counters.hits);
                    Source::Kept(file, Arc::clone(slot))
                }
                Err(error) => {
                    // Not there: it had to make room just now.
                    if error.errno() != Errno::ENOENT {
                        Counters::count(&self.counters.local_failures);
                    }
                    self.chunks.unreadable(&object.path, index, slot);
                    Source::Fetched(self.fetch(object, index).await?)
                }
            },
            (None, Err(failure)) => return Err(failure),
        };
        Ok(Part { index, range, from })
    }

    /// A chunk, from the inner store.
    async fn fetch(&self, object: &Object, index: u64) -> Result<Bytes, Failure> {
        Counters::count(&self.counters.misses);
        let range = object.bytes_of(index);
        let options = GetOptions {
            if_match: Some(object.identity().e_tag.clone()),
            range: Some(GetRange::Bounded(range.clone())),
            extensions: object.extensions.clone(),
            ..GetOptions::default()
        };
        let got = self.inner.get_opts(&object.path, options).await;
        let changed = || {
            self.chunks.is_gone(&object.path, object.identity());
            Failure::Changed
        };
        match got {
            // Not all stores heed If-Match.
            Ok(got) if Identity::of(&got.meta).as_ref() != Some(object.identity()) => {
                Err(changed())
            }
            Ok(got) => {
                let bytes = got.bytes().await.map_err(Failure::Store)?;
                if bytes.len() as u64 == range.end - range.start {
                    return Ok(bytes);
                }
                let message = format!("{} bytes came for {range:?}", bytes.len());
                Err(Failure::Store(generic(message)))
            }
            Err(Error::Precondition { .. } | Error::NotFound { .. }) => Err(changed()),
            Err(error) => Err(Failure::Store(error)),
        }
    }

    /// Puts a chunk into a file of its own. None if the disk is against it.
    async fn keep(&self, bytes: &[u8]) -> Option<NewFile<'_>> {
        let number = self.chunks.new_file();
        let new = NewFile {
            chunks: &self.chunks,
            file: Some(number),
        };
        let write = async {
            let make =
                move |directory: &Directory| directory.create_new(name(number))?.into_async();
            let file = self.directory.run(make).await?;
            file.write_all_at(bytes, 0).await
        };
        match write.await {
            Ok(()) => Some(new),
            Err(_) => {
                Counters::count(&self.counters.local_failures);
                None
            }
        }
    }

    /// The bytes of a part, where they lie in the cache.
    async fn read(&self, object: &Object, part: Part) -> Result<Vec<Bytes>, Failure> {
        let within = |bytes: Bytes| {
            let range = part.range.start as usize..part.range.end as usize;
            vec![bytes.slice(range)]
        };
        let (file, slot) = match part.from {
            Source::Fetched(bytes) => return Ok(within(bytes)),
            Source::Kept(file, slot) => (file, slot),
        };
        let (mut pieces, mut at) = (Vec::new(), part.range.start);
        while at < part.range.end {
            match file.view(at..part.range.end).await {
                Ok(view) if !view.is_empty() => {
                    at += view.len() as u64;
                    pieces.push(Bytes::from_owner(view));
                }
                // Others cut the file, or it cannot be read.
                _ => {
                    Counters::count(&self.counters.local_failures);
                    self.chunks.unreadable(&object.path, part.index, &slot);
                    return self.fetch(object, part.index).await.map(within);
                }
            }
        }
        Ok(pieces)
    }

    /// Removes the files that are not needed any more. What cannot be removed is tried again by the next.
    pub(crate) async fn sweep(&self) {
        while let Some(file) = self.chunks.doomed() {
            let remove = move |directory: &Directory| directory.remove_file(name(file));
            match self.directory.run(remove).await {
                Err(error) if error.errno() != Errno::ENOENT => {
                    Counters::count(&self.counters.local_failures);
                    return;
                }
                _ => self.chunks.removed(file),
            }
        }
    }
}

impl Failure {
    /// What a caller gets who has bytes of the object already.
    pub(crate) fn told(self, object: &Object) -> Error {
        match self {
            Self::Store(error) => error,
            Self::NotKept => generic("a chunk was not kept".to_owned()),
            Self::Changed => Error::Precondition {
                path: object.path.to_string(),
                source: "the object was replaced while it was read".into(),
            },
        }
    }
}

pub(crate) fn generic(message: String) -> Error {
    Error::Generic {
        store: "foliocache",
        source: message.into(),
    }
}
