//! Reading a directory of the source.

use super::inodes::Numbers;
use super::listing::Listing;
use super::listings::Recording;
use super::node::DirNode;
use super::stats::count;
use super::{DirFs, NodeOps};
use foliocache_mm::MetadataCharge;
use foliocache_sync::Arc;
use foliocache_sync::rank::{Rank, RankedMutex};
use foliocache_sys::Errno;
use foliocache_sys::dir::DirReader;
use foliocache_sys::fd::AsFd;
use foliocache_vfs::{DirEntry, Inode, OpenDirectory, SlabArc};
use std::os::unix::ffi::OsStrExt;

/// A directory of the source that is being read.
pub(super) struct DirStream {
    state: RankedMutex<{ Rank::Stream as u8 }, State>,
    inode: SlabArc<Inode>,
    numbers: Arc<Numbers>,
    _charge: MetadataCharge,
}

enum State {
    /// From what was read before; where, and the offset that stands for it.
    Listed(Arc<Listing>, usize, u64),
    /// From the source.
    Read(Box<DirReader>, Option<Recording>),
}

impl State {
    /// In place of a listing that cannot be used.
    fn of_source(node: &DirNode) -> Result<State, Errno> {
        let fd = node.path_fd()?;
        let reader = node.shared.with_room(|| DirReader::open(fd.as_fd()))?;
        Ok(State::Read(Box::new(reader), None))
    }
}

impl DirStream {
    /// A directory whose entries are known.
    ///
    /// # Errors
    /// `EAGAIN` if they are not, or if there is no room at once; `ENOTDIR`.
    pub(super) fn open_listed(fs: &DirFs, inode: &SlabArc<Inode>) -> Result<DirStream, Errno> {
        let shared = &fs.shared;
        shared.bdi.mm().check_fork()?;
        let directory = DirNode::of(inode)?.directory().ok_or(Errno::ENOTDIR)?;
        // One that is not watched any more has no listing.
        let listing = directory.listing.get(shared.belief.now());
        let listing = listing.map_err(|_| Errno::EAGAIN)?;
        let charge = MetadataCharge::at_once(shared.bdi.mm(), size_of::<DirStream>() as u64)?;
        count(&shared.counters.directories_from_cache);
        let state = State::Listed(listing, 0, 0);
        Ok(Self::new(fs, inode, state, charge))
    }

    /// # Errors
    /// `ENOTDIR`, `EACCES`, `ENOMEM` if the bound has no room, those of `openat(2)`.
    pub(super) fn open(fs: &DirFs, inode: &SlabArc<Inode>) -> Result<DirStream, Errno> {
        let shared = &fs.shared;
        let charge = |bytes| {
            let mm = shared.bdi.mm();
            MetadataCharge::before_names(mm, bytes as u64, MetadataCharge::PATIENCE)
        };
        let now = shared.belief.now();
        let listing = match DirNode::of(inode)?.directory() {
            Some(directory) if shared.options.exclusive || shared.belief.watch(inode) => {
                Some(directory.listing.get(now))
            }
            _ => None,
        };
        let bytes = size_of::<DirStream>();
        let (state, charge) = match listing {
            Some(Ok(listing)) => {
                shared.bdi.mm().check_fork()?;
                count(&shared.counters.directories_from_cache);
                (State::Listed(listing, 0, 0), charge(bytes)?)
            }
            listing => {
                let fd = fs.directory(inode)?;
                let charge = charge(bytes + size_of::<DirReader>() + DirReader::BUFFER)?;
                count(&shared.counters.directories_read);
                let recording = listing
                    .and_then(Result::err)
                    .map(|generation| Recording::new(now, generation));
                let reader = shared.with_room(|| DirReader::open(fd.as_fd()))?;
                (State::Read(Box::new(reader), recording), charge)
            }
        };
        Ok(Self::new(fs, inode, state, charge))
    }

    fn new(fs: &DirFs, inode: &SlabArc<Inode>, state: State, charge: MetadataCharge) -> DirStream {
        DirStream {
            state: RankedMutex::new(state),
            inode: inode.clone(),
            numbers: fs.inodes.numbers().clone(),
            _charge: charge,
        }
    }
}

impl OpenDirectory for DirStream {
    fn read(&self, offset: u64, sink: &mut dyn FnMut(DirEntry<'_>) -> bool) -> Result<(), Errno> {
        let node = DirNode::of(&self.inode)?;
        let parent = node
            .named()
            .map_or(self.inode.ino(), |(parent, _)| parent.ino());
        let dev = node.identity.dev;
        let mut sink = |entry: DirEntry<'_>| {
            let ino = match entry.name.as_bytes() {
                b"." => self.inode.ino(),
                b".." => parent,
                // Unless it is a mount point: then the source, too, tells the number of what is underneath.
                _ => self.numbers.of(dev, entry.ino).unwrap_or(entry.ino),
            };
            sink(DirEntry { ino, ..entry })
        };
        let rewound_at = (offset == 0).then(|| node.shared.belief.now());
        let mut state = self.state.lock();
        if let Some(now) = rewound_at
            && let State::Listed(listing, at, reached) = &mut *state
            && *reached != 0
            && let Some(directory) = node.directory()
        {
            // It is read from the beginning again: names that were made since are to be seen.
            match directory.listing.get(now) {
                Ok(found) => (*listing, *at, *reached) = (found, 0, 0),
                Err(_) => *state = State::of_source(node)?,
            }
        }
        if let State::Listed(listing, at, reached) = &mut *state {
            let found = match offset {
                0 => Some(0),
                offset if offset == *reached => Some(*at),
                offset => listing.find(offset),
            };
            if let Some(begin) = found {
                *reached = offset;
                *at = listing.read(begin, &mut |entry| {
                    let next = entry.next_offset;
                    let taken = sink(entry);
                    if taken {
                        *reached = next;
                    }
                    taken
                });
                return Ok(());
            }
            // Of another listing: the source knows it.
            *state = State::of_source(node)?;
        }
        let State::Read(reader, recording) = &mut *state else {
            return Ok(());
        };
        recording.take_if(|recording| recording.reached != offset);
        reader.seek(offset)?;
        loop {
            let entry = match reader.next() {
                Ok(Some(entry)) => entry,
                // A directory that was removed has no entries.
                Ok(None) | Err(Errno::ENOENT) => break,
                Err(error) => return Err(error),
            };
            if !sink(entry) {
                reader.unread();
                return Ok(());
            }
            recording.take_if(|recording| !recording.push(&node.shared, &entry));
        }
        if let Some(recording) = recording.take() {
            recording.finish(&NodeOps::of(&self.inode)?.0);
        }
        Ok(())
    }

    fn is_known_at(&self, offset: u64) -> bool {
        matches!(&*self.state.lock(), State::Listed(_, _, reached) if *reached == offset)
    }

    fn fsync(&self) -> Result<(), Errno> {
        let node = DirNode::of(&self.inode)?;
        node.sync_directory(node)?;
        node.sync_name()
    }
}
