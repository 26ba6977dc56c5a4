//! The walk under RCU, and the prefixes that each thread remembers: directories that its last paths went through.
//!
//! # Model
//!
//! ```text
//!  usr/share/doc/packages/library/readme.txt
//!  └────────── prefix ──────────┘ └─ last ─┘
//!  (start, prefix, credentials) ──▶ the dentry, as long as nothing of what led there has changed
//! ```
//!
//! Programs look at many names in few directories. A walk under RCU costs the same for each directory on
//! the way, also if it passed them a moment ago; this is one comparison for all of them.
//!
//! A prefix is remembered when it is walked a second time, if everything on the way is cached and there is
//! no symbolic link and no `..` in it. A slot holds one prefix and gives way to the next that falls there.
//!
//! No dentry is held: an entry is an address, and valid only while the [`Generation`]s of the places of directories
//! and of their permissions have not changed since the prefix was walked. Any directory that moves, goes or gets
//! another mode costs each entry a walk.
//!
//! # Invariants
//!
//! 1. An entry is the result of a walk that began after its two numbers were read. All names on the way are believed
//!    until `until`.
//! 2. The address of an entry is followed only in a read section, after both numbers of its file system were found
//!    unchanged: an entry keeps the generation of places, so no other generation can have its address.
//!
//! # Differences from Linux
//!
//! There is none of this there. Tsai et al., "How to Get More Value From Your File System Directory Cache"
//! (SOSP 2015), remember checked prefixes per credentials in one table for all processors, found by a hash of the
//! whole path, and count changes in each dentry on the way.
//!
//! # Safety
//!
//! By invariant 2 and the contract of [`DentryCache::places`](crate::dcache::DentryCache::places): the dentry
//! lives, or dies after the end of the read section.
#![allow(unsafe_code)]

#[cfg(any(loom, shuttle, feature = "testing"))]
mod testing;

use super::rcu_walk::{RcuAt, RcuMode};
use crate::credentials::Credentials;
use crate::dcache::{Dentry, Name, all_words, last_slash, mix, tail_word};
use crate::generation::Generation;
use crate::inode::Inode;
use crate::types::{FileKind, MAX_NAME};
use crate::walk::{MAX_PATH, Mode, Stop, WalkFlags, walk};
use foliocache_mm::slab;
use foliocache_sync::Arc;
use std::cell::RefCell;
use std::ptr::{self, NonNull};

/// Longest prefix that is remembered, in bytes.
const MAX_PREFIX: usize = WORDS * 8;

const WORDS: usize = 14;
/// Prefixes that a thread remembers: 7 KiB, outside the memory bound, once a thread has walked a path.
const SLOTS: usize = 32;

foliocache_sync::thread_local! {
    static PREFIXES: RefCell<Option<Box<[Slot; SLOTS]>>> = const { RefCell::new(None) };
}

/// A place for a prefix.
#[derive(Default)]
struct Slot {
    /// Of the prefix that fell here last: it is remembered if it comes again.
    hash: u64,
    entry: Option<Entry>,
}

struct Entry {
    hash: u64,
    /// The generation of its file system's directories, and its number then.
    places: (Arc<Generation>, u64),
    permissions: u64,
    /// When it has to be walked again.
    until: u64,
    start: *const Dentry<Inode>,
    dentry: NonNull<Dentry<Inode>>,
    credentials: Option<Credentials>,
    len: usize,
    /// The text, filled up with zeros.
    words: [u64; WORDS],
}

#[cold]
#[inline(never)]
fn new_slots() -> Box<[Slot; SLOTS]> {
    Box::default()
}

/// Picks the slot, and distinguishes most prefixes. Everything is compared before anything depends
/// on it.
#[inline(always)]
fn hash_of(mode: &RcuMode<'_>, start: &Dentry<Inode>, prefix: &[u8]) -> u64 {
    let who = mode.credentials.map_or(0, Credentials::tag);
    let mut hash = slab::place(ptr::from_ref(start)) as u64 ^ (prefix.len() as u64) << 56 ^ who;
    all_words(prefix, tail_word, |_, word| {
        hash = hash.rotate_left(27) ^ word;
        true
    });
    mix(hash)
}

/// A path without its last name, and that name; `None` where there is nothing to be gained.
#[inline(always)]
fn split(path: &[u8]) -> Option<(&[u8], &[u8])> {
    let slash = last_slash(path)?;
    let (prefix, last) = (&path[..slash], &path[slash + 1..]);
    let remembered = (1..=MAX_PREFIX).contains(&prefix.len());
    (remembered && !last.is_empty() && path.len() < MAX_PATH).then_some((prefix, last))
}

/// The directory of the last name of `path`, and that name, if the directory is remembered from an earlier walk or
/// becomes so now.
#[inline(always)]
fn find<'g, 'p>(
    mode: &RcuMode<'g>,
    start: RcuAt<'g>,
    path: &'p [u8],
    flags: WalkFlags,
) -> Option<(RcuAt<'g>, &'p [u8])> {
    let (prefix, last) = split(path)?;
    if flags.beneath && path[0] == b'/' {
        return None;
    }
    let hash = hash_of(mode, start.dentry, prefix);
    // The thread may be ending, or a signal handler may walk in the middle of a walk.
    let dentry = PREFIXES.try_with(|slots| {
        let mut slots = slots.try_borrow_mut().ok()?;
        let slots = slots.get_or_insert_with(new_slots);
        let slot = &mut slots[hash as usize % SLOTS];
        match &slot.entry {
            Some(entry) if entry.is(mode, start.dentry, hash, prefix) => Some(entry.dentry),
            _ => slot.look(mode, start, hash, prefix),
        }
    });
    let dentry = dentry.ok()??;
    // SAFETY: invariant 2: `is` has looked, or `look` has just found it in this read section.
    let dentry = unsafe { dentry.as_ref() };
    Some((mode.at(dentry)?, last))
}

impl<'g> RcuMode<'g> {
    /// The end of `path`.
    #[inline(always)]
    pub(crate) fn walk(
        mut self,
        start: &'g Dentry<Inode>,
        path: &[u8],
        flags: WalkFlags,
    ) -> Result<RcuAt<'g>, Stop> {
        let start = self.at(start).ok_or(Stop::Bail)?;
        match find(&self, start, path, flags) {
            Some((dir, name)) => match self.plain_child(&dir, name, flags) {
                Some(end) => end,
                None => self.walk_all(dir, name, flags),
            },
            None => self.walk_all(start, path, flags),
        }
    }

    #[inline(never)]
    fn walk_all(
        &mut self,
        start: RcuAt<'g>,
        path: &[u8],
        flags: WalkFlags,
    ) -> Result<RcuAt<'g>, Stop> {
        Ok(walk(self, start, path, flags, false)?.at)
    }

    /// The end of a path of one name, as the walk has it; `None` if it takes more than a look-up.
    #[inline(always)]
    fn plain_child(
        &mut self,
        dir: &RcuAt<'g>,
        name: &[u8],
        flags: WalkFlags,
    ) -> Option<Result<RcuAt<'g>, Stop>> {
        let plain = name.len() <= MAX_NAME && name != b"." && name != b"..";
        if !plain || self.kind(dir) != FileKind::Directory {
            return None;
        }
        let child = self
            .may_search(dir)
            .and_then(|()| self.child(dir, &Name::new(name)));
        match child {
            Ok(child) if flags.follow && self.kind(&child) == FileKind::Symlink => None,
            child => Some(child),
        }
    }
}

impl Entry {
    /// Whether this is the entry of a prefix, and still true.
    #[inline(always)]
    fn is(
        &self,
        mode: &RcuMode<'_>,
        start: *const Dentry<Inode>,
        hash: u64,
        prefix: &[u8],
    ) -> bool {
        let same_credentials = || match (&self.credentials, mode.credentials) {
            (Some(ours), Some(theirs)) => ours.same(theirs),
            (None, None) => true,
            _ => false,
        };
        let (places, number) = &self.places;
        self.hash == hash
            // The directories are where they were, in the file system of this walk.
            && Arc::ptr_eq(places, mode.sb.dcache().places())
            && places.is(*number)
            && mode.sb.permissions().is(self.permissions)
            && mode.now < self.until
            && ptr::eq(self.start, start)
            && self.len == prefix.len()
            && all_words(prefix, tail_word, |at, word| self.words[at] == word)
            && same_credentials()
    }
}

impl Slot {
    /// Walks a prefix that comes the second time, and remembers where it led; in this read section that is
    /// true also if it is not remembered.
    #[cold]
    #[inline(never)]
    fn look<'g>(
        &mut self,
        mode: &RcuMode<'g>,
        start: RcuAt<'g>,
        hash: u64,
        prefix: &[u8],
    ) -> Option<NonNull<Dentry<Inode>>> {
        if self.hash != hash {
            self.hash = hash;
            return None;
        }
        // Before the walk: invariant 1.
        let places = mode.sb.dcache().places();
        let number = places.to_remember()?;
        let permissions = mode.sb.permissions().to_remember()?;
        let mut plain = RcuMode::<true>::new(mode.sb, mode.credentials, mode.now, mode.rcu);
        let flags = WalkFlags {
            follow: true,
            beneath: false,
        };
        let end = walk(&mut plain, start, prefix, flags, false).ok()?.at;
        // A file with the name may go without a number changing.
        if plain.kind(&end) != FileKind::Directory {
            return None;
        }
        let mut words = [0; WORDS];
        all_words(prefix, tail_word, |at, word| {
            words[at] = word;
            true
        });
        self.entry = Some(Entry {
            hash,
            places: (Arc::clone(places), number),
            permissions,
            until: plain.until,
            start: ptr::from_ref(start.dentry),
            dentry: NonNull::from(end.dentry),
            credentials: mode.credentials.cloned(),
            len: prefix.len(),
            words,
        });
        Some(NonNull::from(end.dentry))
    }
}
