//! A read cache in front of any [`ObjectStore`](object_store::ObjectStore): parts of objects on a local disk, their pages in
//! memory of a fixed size.
//!
//! ```
//! use foliocache::Cache;
//! use foliocache_object_store::CachedStore;
//! use object_store::memory::InMemory;
//! use object_store::{ObjectStoreExt, path::Path};
//!
//! # #[tokio::main]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let temporary = tempfile::tempdir()?;
//! # let scratch = temporary.path();
//! let cache = Cache::builder().memory("64M").build()?; // the most memory for pages
//! let bucket = InMemory::new(); // S3, for instance
//! let store = CachedStore::new(bucket, cache.directory(scratch)?, 10 << 30)?; // at most 10 GiB of disk
//! store.put(&Path::from("table/part-1"), "rows".into()).await?;
//! let rows = store.get_range(&Path::from("table/part-1"), 1..3).await?; // from the bucket
//! let again = store.get_range(&Path::from("table/part-1"), 1..3).await?; // from the cache
//! assert_eq!((&rows[..], &again[..]), (&b"ow"[..], &b"ow"[..]));
//! # Ok(())
//! # }
//! ```
//!
//! # Model
//!
//! ```text
//!  get ──which version is it?──▶ believed, or asked of the inner store (HEAD)
//!   └─chunk by chunk──▶ a file of the directory ──▶ a view of its pages: no copy
//!                  └───▶ missing: one GET with If-Match ──▶ to the caller, and into a file
//! ```
//!
//! A chunk is 1 MiB of an object and has a file of its own, which is never changed. Its key is path, ETag, version and size. The
//! chunks that were unused longest go when all have more than the capacity. Pages of the files are cached by foliocache, within the memory
//! bound; the others are on the disk.
//!
//! # Which bytes are served
//!
//! - Each read asks the inner store for the object's ETag, unless [`CachedStore::revalidate_after`] allows to believe what it said
//!   before. Chunks of another ETag are dropped at once. So by default a read returns what the store has when it begins.
//! - A missing chunk is fetched with `If-Match`. If the object was replaced meanwhile, the read begins anew. Once the caller has
//!   bytes, a replaced object is an [`Error::Precondition`](object_store::Error::Precondition): bytes of two versions are never mixed.
//! - Objects without a strong ETag, and requests for a version, are passed through.
//! - Writes are passed through. What is cached of their objects is dropped before and after.
//! - A failure of the local disk is no error of a read: the inner store is asked.
//!
//! # Memory
//!
//! Besides the bound: chunks on their way (up to four for each read), and some 200 bytes for each chunk on disk. [`Bytes`](bytes::Bytes) that
//! a caller keeps hold pages of the cache inside the bound; once they hold half of it, others are copies outside it.
#![deny(unsafe_code)]

mod chunks;
mod read;
mod store;
mod write;

pub use store::{CachedStore, Stats};

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
mod readme {}
