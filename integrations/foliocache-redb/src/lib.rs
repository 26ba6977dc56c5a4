//! [redb](https://docs.rs/redb) on [foliocache](https://docs.rs/foliocache): a database whose file is cached under a hard memory bound.
//!
//! ```
//! use foliocache::Cache;
//! use foliocache_redb::FolioBackend;
//! use redb::{Builder, TableDefinition};
//!
//! const ACCOUNTS: TableDefinition<&str, u64> = TableDefinition::new("accounts");
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let temporary = tempfile::tempdir()?;
//! # let path = temporary.path().join("accounts.redb");
//! let cache = Cache::builder().memory("64M").build()?;
//! let backend = FolioBackend::create(&cache, &path)?;
//! let db = Builder::new().set_cache_size(8 << 20).create_with_backend(backend)?;
//!
//! let transaction = db.begin_write()?;
//! transaction.open_table(ACCOUNTS)?.insert("alice", 100)?;
//! transaction.commit()?; // durable now, or an error
//!
//! drop(db); // closes the file
//! cache.close()?;
//! # Ok(())
//! # }
//! ```
//!
//! # Two caches
//!
//! redb has a cache of its own, of parsed pages: [`Builder::set_cache_size`](redb::Builder::set_cache_size), 1 GiB if nothing is said. It is
//! not part of foliocache's bound. Some MiB for the upper levels of the trees are a good choice; give the rest to the [`Cache`](foliocache::Cache).
//!
//! # Statistics
//!
//! redb owns the backend. To see hits and misses, keep another handle:
//!
//! ```
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let temporary = tempfile::tempdir()?;
//! # let path = temporary.path().join("accounts.redb");
//! # let cache = foliocache::Cache::builder().memory("64M").build()?;
//! let backend = foliocache_redb::FolioBackend::create(&cache, &path)?;
//! let file = backend.file().try_clone()?;
//! let db = redb::Builder::new().create_with_backend(backend)?;
//! println!("{}", file.stats()?);
//! # drop(db);
//! # Ok(())
//! # }
//! ```

mod backend;

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
mod readme {}

pub use backend::{FolioBackend, cause};
