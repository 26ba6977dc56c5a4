//! The store.

use bytes::Bytes;
use foliocache::Directory;
use futures_util::stream::BoxStream;
use futures_util::{StreamExt, TryStreamExt, stream};
use object_store::path::Path;
use object_store::{
    CopyOptions, Error, Extensions, GetOptions, GetRange, GetResult, GetResultPayload, ListResult,
    MultipartUpload, ObjectMeta, ObjectStore, PutMultipartOptions, PutOptions, PutPayload,
    PutResult, RenameOptions, Result,
};
use std::fmt;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::chunks::{Checked, Chunks, Known};
use crate::read::{Counters, Failure, Object, SUFFIX, Shared, generic};
use crate::write::{Change, Upload};

/// The bytes of an object that are fetched and kept together, unless the caller says otherwise.
const CHUNK_SIZE: u64 = 1 << 20;

/// How often a read begins anew because its object was replaced. After that it is passed through.
const ATTEMPTS: usize = 4;

/// A store with a read cache in front. Clones share the cache.
#[derive(Debug)]
pub struct CachedStore<S> {
    shared: Arc<Shared<S>>,
    chunk_size: u64,
    revalidate_after: Duration,
}

impl<S> Clone for CachedStore<S> {
    fn clone(&self) -> Self {
        Self {
            shared: Arc::clone(&self.shared),
            ..*self
        }
    }
}

/// Figures of a cache; from [`CachedStore::stats`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Stats {
    /// Chunks that were there.
    pub hits: u64,
    /// Chunks that were fetched from the inner store.
    pub misses: u64,
    /// Chunks that went to make room for others.
    pub evicted: u64,
    /// Chunks that are there, or on their way.
    pub chunks: u64,
    /// Their bytes on disk.
    pub bytes: u64,
    /// Calls of the local directory that failed. The inner store stood in.
    pub local_failures: u64,
}

impl<S: ObjectStore> CachedStore<S> {
    /// A cache of `inner` in a directory of its own, with at most `capacity` bytes of chunks there.
    ///
    /// The cache begins empty: chunks that are in the directory are removed. Other files are left alone. Blocks for that.
    ///
    /// # Errors
    /// Those of listing the directory and of removing files; no thread or no memory for async calls.
    pub fn new(inner: S, directory: Directory, capacity: u64) -> foliocache::Result<Self> {
        for entry in directory.read_dir(".")? {
            let name = entry?.file_name().to_owned();
            let number = name.to_str().and_then(|name| name.strip_suffix(SUFFIX));
            if number.is_some_and(|number| number.parse::<u64>().is_ok()) {
                directory.remove_file(&name)?;
            }
        }
        Ok(Self {
            shared: Arc::new(Shared {
                inner,
                directory: directory.into_async()?,
                chunks: Chunks::new(capacity),
                counters: Counters::default(),
            }),
            chunk_size: CHUNK_SIZE,
            revalidate_after: Duration::ZERO,
        })
    }

    /// How long the ETag of an object with cached chunks is believed. Zero, the default, asks the inner store at each read. Use
    /// [`Duration::MAX`] for objects that are never replaced. Changes through this store and its clones are known at once.
    #[must_use]
    pub fn revalidate_after(mut self, age: Duration) -> Self {
        self.revalidate_after = age;
        self
    }

    /// How many bytes of an object are fetched and kept together; 1 MiB unless said, and at least 4 KiB. To be chosen before the first
    /// read, the same for all clones.
    #[must_use]
    pub fn chunk_size(mut self, bytes: u64) -> Self {
        self.chunk_size = bytes.max(4096);
        self
    }

    /// The store behind.
    pub fn inner(&self) -> &S {
        &self.shared.inner
    }

    /// What became of reads.
    pub fn stats(&self) -> Stats {
        let (bytes, chunks, evicted) = self.shared.chunks.figures();
        let counters = &self.shared.counters;
        // Relaxed: see `Counters`.
        Stats {
            hits: counters.hits.load(Ordering::Relaxed),
            misses: counters.misses.load(Ordering::Relaxed),
            local_failures: counters.local_failures.load(Ordering::Relaxed),
            evicted,
            chunks,
            bytes,
        }
    }

    /// Which version an object is. None if nobody can tell one from another.
    async fn check(&self, path: &Path, extensions: &Extensions) -> Result<Option<Checked>> {
        let chunks = &self.shared.chunks;
        if let Some(checked) = chunks.believed(path, self.revalidate_after) {
            return Ok(Some(checked));
        }
        let epoch = chunks.epoch(path);
        let options = GetOptions {
            head: true,
            extensions: extensions.clone(),
            ..GetOptions::default()
        };
        let got = self.shared.inner.get_opts(path, options).await;
        if let Err(Error::NotFound { .. }) = got {
            chunks.forget(path);
        }
        let got = got?;
        let known = Known {
            meta: got.meta,
            attributes: got.attributes,
        };
        Ok(chunks.seen(path, known, epoch))
    }

    fn object(&self, path: &Path, checked: Checked, extensions: &Extensions) -> Object {
        Object {
            path: path.clone(),
            checked,
            extensions: extensions.clone(),
            chunk_size: self.chunk_size,
        }
    }

    /// A read of a version that can be told from others. None: to be passed through.
    async fn get(&self, path: &Path, options: &GetOptions) -> Result<Option<GetResult>> {
        for _ in 0..ATTEMPTS {
            let Some(checked) = self.check(path, &options.extensions).await? else {
                return Ok(None);
            };
            let known = Arc::clone(&checked.known);
            options.check_preconditions(&known.meta)?;
            let range = bytes_of(options.range.as_ref(), known.meta.size)?;
            let payload = if options.head {
                stream::empty().boxed()
            } else {
                let object = self.object(path, checked, &options.extensions);
                match self.shared.open(&object, range.clone()).await {
                    Ok(stream) => stream.boxed(),
                    Err(Failure::Changed) => continue,
                    Err(failure) => return Err(failure.told(&object)),
                }
            };
            return Ok(Some(GetResult {
                payload: GetResultPayload::Stream(payload),
                meta: known.meta.clone(),
                range,
                attributes: known.attributes.clone(),
                extensions: Extensions::default(),
            }));
        }
        Ok(None)
    }

    /// All of several ranges, of one version. None: to be passed through.
    async fn get_all(&self, path: &Path, ranges: &[Range<u64>]) -> Result<Option<Vec<Bytes>>> {
        'again: for _ in 0..ATTEMPTS {
            let extensions = Extensions::default();
            let Some(checked) = self.check(path, &extensions).await? else {
                return Ok(None);
            };
            let size = checked.known.meta.size;
            let object = self.object(path, checked, &extensions);
            let mut all = Vec::with_capacity(ranges.len());
            for range in ranges {
                let range = bytes_of(Some(&GetRange::Bounded(range.clone())), size)?;
                let opened = match self.shared.open(&object, range).await {
                    Ok(opened) => opened,
                    Err(Failure::Changed) => continue 'again,
                    Err(failure) => return Err(failure.told(&object)),
                };
                let pieces: Result<Vec<Bytes>> = opened.try_collect().await;
                match pieces {
                    Ok(pieces) => all.push(joined(pieces)),
                    Err(Error::Precondition { .. }) => continue 'again,
                    Err(error) => return Err(error),
                }
            }
            return Ok(Some(all));
        }
        Ok(None)
    }
}

/// The bytes that a request is about.
fn bytes_of(range: Option<&GetRange>, size: u64) -> Result<Range<u64>> {
    match range {
        None => Ok(0..size),
        Some(range) => range
            .as_range(size)
            .map_err(|error| generic(error.to_string())),
    }
}

/// Without a copy if it is one piece.
fn joined(mut pieces: Vec<Bytes>) -> Bytes {
    match pieces.len() {
        0 => Bytes::new(),
        1 => pieces.remove(0),
        _ => pieces.concat().into(),
    }
}

#[async_trait::async_trait]
impl<S: ObjectStore> ObjectStore for CachedStore<S> {
    async fn put_opts(
        &self,
        location: &Path,
        payload: PutPayload,
        opts: PutOptions,
    ) -> Result<PutResult> {
        let _change = Change::of(&self.shared, [location]);
        self.shared.inner.put_opts(location, payload, opts).await
    }

    async fn put_multipart_opts(
        &self,
        location: &Path,
        opts: PutMultipartOptions,
    ) -> Result<Box<dyn MultipartUpload>> {
        let inner = &self.shared.inner;
        Ok(Box::new(Upload {
            inner: inner.put_multipart_opts(location, opts).await?,
            path: location.clone(),
            shared: Arc::clone(&self.shared),
        }))
    }

    async fn get_opts(&self, location: &Path, options: GetOptions) -> Result<GetResult> {
        if options.version.is_none()
            && let Some(got) = self.get(location, &options).await?
        {
            return Ok(got);
        }
        self.shared.inner.get_opts(location, options).await
    }

    async fn get_ranges(&self, location: &Path, ranges: &[Range<u64>]) -> Result<Vec<Bytes>> {
        match self.get_all(location, ranges).await? {
            Some(all) => Ok(all),
            None => self.shared.inner.get_ranges(location, ranges).await,
        }
    }

    fn delete_stream(
        &self,
        locations: BoxStream<'static, Result<Path>>,
    ) -> BoxStream<'static, Result<Path>> {
        let (before, after) = (Arc::clone(&self.shared), Arc::clone(&self.shared));
        let locations = locations.inspect_ok(move |path| before.chunks.forget(path));
        let deleted = self.shared.inner.delete_stream(locations.boxed());
        let forget = move |result: &Result<Path>| match result {
            Ok(path) => after.chunks.forget(path),
            // Nobody says which it was, or whether it is gone.
            Err(_) => after.chunks.forget_all(),
        };
        deleted.inspect(forget).boxed()
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        self.shared.inner.list(prefix)
    }

    fn list_with_offset(
        &self,
        prefix: Option<&Path>,
        offset: &Path,
    ) -> BoxStream<'static, Result<ObjectMeta>> {
        self.shared.inner.list_with_offset(prefix, offset)
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        self.shared.inner.list_with_delimiter(prefix).await
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> Result<()> {
        let _change = Change::of(&self.shared, [to]);
        self.shared.inner.copy_opts(from, to, options).await
    }

    async fn rename_opts(&self, from: &Path, to: &Path, options: RenameOptions) -> Result<()> {
        let _change = Change::of(&self.shared, [from, to]);
        self.shared.inner.rename_opts(from, to, options).await
    }
}

impl<S: fmt::Display> fmt::Display for CachedStore<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CachedStore({})", self.shared.inner)
    }
}
