//! The dentry cache: which name in which directory leads to which inode, and which names do not exist.
//!
//! # Model
//!
//! ```text
//!  DentryCache ──hash──▶ Dentry ──inode──▶ SlabArc<I>, or null: a negative dentry
//!                          │ ▲
//!                   parent ▼ │ children
//!                        Dentry, up to a root, which holds the cache
//! ```
//!
//! Each file knows those above it in this table, and none below:
//!
//! | file | what it is |
//! |---|---|
//! | `name`, `hint` | [`Name`]: a path component, hashed; addresses to prefetch |
//! | `dentry` | [`Dentry`] and the types that it refers to: the layout, and what walkers under RCU read; [`DentryInode`]: what is asked of an inode |
//! | `guard` | its lock, and the list of children |
//! | `reference` | [`DentryRef`], how a dentry ends, and what then waits for a grace period |
//! | `cache` | [`DentryCache`]: looking up |
//! | `evict` | the clock hand, prune, invalidate; room for a new dentry; the end of the cache |
//! | `rename` | moves |
//! | `change` | adding, giving and taking inodes |
//!
//! A walk under RCU:
//!
//! ```text
//!  rcu = read_lock(); dir = start; seq = dir.read_begin()
//!  for each name:
//!      (child, child_seq) = lookup_rcu(dir, name)?          nothing: go on with references
//!      inode = child.inode_rcu()
//!      child.read_retry(child_seq) or dir.read_retry(seq)?  changed: likewise
//!      dir, seq = child, child_seq
//!  attributes of the inode, or child.try_get(seq) to keep it
//! ```
//!
//! The directory's number is checked *after* the child was found, so that at one moment both were true: the
//! directory had its place, and the child was in it.
//!
//! # Locking
//!
//! From outside to inside: the directories' own locks, which the callers hold; `DentryWalk`, `DentryRename`,
//! `Dentry` (parent before child), `HashBucket`, and the limbo's leaf. None of them sleeps. None is held when an inode's
//! destructor runs.
//!
//! # Differences from Linux
//!
//! See the files. Missing are mount points, hashing and comparing by a file system's own rules, and
//! `DCACHE_DISCONNECTED`: a file system that opens by handle has no dentries for it.

mod cache;
mod change;
mod dentry;
mod evict;
mod guard;
mod hint;
mod name;
mod reference;
mod rename;
#[cfg(any(loom, shuttle, feature = "testing"))]
mod testing;
#[cfg(all(test, not(any(loom, shuttle))))]
mod tests;

pub use cache::{DENTRY_BYTES, DentryCache};
pub use dentry::{AliasSlot, Dentry, DentryInode};
pub use evict::Tell;
pub use name::Name;
pub(crate) use name::{all_words, last_slash, mix, tail_word};
pub use reference::DentryRef;
pub(crate) use rename::comes_first;
#[cfg(any(loom, shuttle, feature = "testing"))]
pub use testing::DentryStats;
