//! A [`tantivy::Directory`] over a [`foliocache::Directory`]: an index whose pages are cached under a memory bound of its own.
//!
//! ```
//! use foliocache::Cache;
//! use foliocache_tantivy::FoliocacheDirectory;
//! use tantivy::schema::{Schema, TEXT};
//! use tantivy::{Index, IndexWriter, doc};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let temporary = tempfile::tempdir()?;
//! # let path = temporary.path();
//! let cache = Cache::builder().memory("64M").build()?;
//! let mut schema = Schema::builder();
//! let title = schema.add_text_field("title", TEXT);
//! let index = Index::open_or_create(FoliocacheDirectory::open(&cache, path)?, schema.build())?;
//! let mut writer: IndexWriter = index.writer_with_num_threads(1, 15_000_000)?;
//! writer.add_document(doc!(title => "The Old Man and the Sea"))?;
//! writer.commit()?; // durable
//! assert_eq!(index.reader()?.searcher().num_docs(), 1);
//! # Ok(())
//! # }
//! ```
//!
//! # Model
//!
//! ```text
//!  read_bytes(range) ──in one folio──────────────▶ a view: no copy, its folio stays
//!                    ├─else, below map_from──────▶ a view that is a copy, charged to the bound
//!                    ├─longer, or copies used up─▶ a slice of a mapping of the file: no copy, its pages may leave
//!                    └─no mapping possible───────▶ a copy on the heap, outside the bound
//! ```
//!
//! tantivy reads some ranges whole of which it needs little: all stored documents of a segment when segments are merged, a column
//! of fast fields, the terms of a field for as long as a searcher lives. Copies of them would need the memory that the bound is
//! there to save, so long ranges are mapped. A file that was mapped once is read through its mapping from then on.
//! [`FoliocacheDirectory::read_stats`] counts what was done.
//!
//! # Durability
//!
//! A terminated file has its data on the medium, and [`tantivy::Directory::sync_directory`] puts its name there: the contract of
//! tantivy. `meta.json`, which is what a commit is, is durable with its name when [`tantivy::Directory::atomic_write`] returns. So a
//! commit that returned survives a power cut.
#![deny(unsafe_code)]

mod directory;
mod error;
mod handle;
mod stats;
mod watch;
mod write;

pub use directory::FoliocacheDirectory;
pub use stats::ReadStats;

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
mod readme {}
