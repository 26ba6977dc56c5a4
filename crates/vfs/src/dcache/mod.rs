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
//! | file | what it is |
//! |---|---|
//! | `name` | [`Name`]: a path component, hashed |
//! | `dentry` | [`Dentry`]: the layout, and what walkers under RCU read |
//! | `guard` | its lock, and the list of children |
//! | `inode` | [`DentryInode`]: what is asked of an inode |
//! | `reference` | [`DentryRef`], how a dentry ends, and what then waits for a grace period |
//! | `cache` | [`DentryCache`]: looking up |
//! | `change` | adding, giving and taking inodes |
//! | `rename` | moves |
//! | `evict` | the clock hand, prune, invalidate |
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
//! `Dentry` (parent before child), `HashBucket`, and the limbo's leaf. None of them sleeps. What an inode's
//! destructor takes is taken with none of them held.
//!
//! # Differences from Linux
//!
//! See the files. What is missing: mount points, hashing and comparing by a file system's own rules, and
//! `DCACHE_DISCONNECTED`: a file system that opens by handle has no dentries for it.

mod cache;
mod change;
mod dentry;
mod evict;
mod guard;
mod hint;
mod inode;
mod name;
mod reference;
mod rename;
#[cfg(all(test, not(any(loom, shuttle))))]
mod tests;

pub use cache::{DENTRY_BYTES, DentryCache, DentryStats};
pub use dentry::Dentry;
pub use evict::Tell;
pub use inode::{AliasSlot, DentryInode};
pub use name::Name;
pub(crate) use name::{all_words, last_slash, mix, tail_word};
pub use reference::DentryRef;
pub(crate) use rename::comes_first;
