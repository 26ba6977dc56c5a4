//! Which chunks of which version are where, and which go first.
//!
//! # Invariants
//!
//! 1. All chunks of an object are of the version that was seen last.
//! 2. A file has one chunk, and no name is used twice. So what is behind a name is never other bytes than it was.
//! 3. `bytes` is the length of all chunks that have a file.
//!
//! # Locking
//!
//! *Protects*: `state` everything here. *Order*: nothing is locked under it. *May block*: no; files are removed without it, see
//! [`Chunks::doomed`].

use object_store::path::Path;
use object_store::{Attributes, ObjectMeta};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::OnceCell;

/// Paths share them. A write beside a read of another path that has the same costs that read its place in the cache.
const EPOCHS: usize = 1024;

/// What an object is at one time.
#[derive(Debug)]
pub(crate) struct Known {
    pub(crate) meta: ObjectMeta,
    pub(crate) attributes: Attributes,
}

/// What tells versions of an object apart.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Identity {
    pub(crate) e_tag: String,
    version: Option<String>,
    size: u64,
}

impl Identity {
    /// None without an ETag that promises the same bytes.
    pub(crate) fn of(meta: &ObjectMeta) -> Option<Self> {
        let e_tag = meta.e_tag.clone()?;
        let is_strong = !e_tag.starts_with("W/") && e_tag != "*" && !e_tag.is_empty();
        is_strong.then(|| Self {
            e_tag,
            version: meta.version.clone(),
            size: meta.size,
        })
    }
}

/// A version of an object that was the newest at a time.
#[derive(Clone, Debug)]
pub(crate) struct Checked {
    pub(crate) known: Arc<Known>,
    pub(crate) identity: Identity,
    at: Instant,
    /// Of the writes through this store, when that was asked.
    epoch: u64,
}

/// Filled once, by one of those who need it: with the number of its file.
pub(crate) type Slot = Arc<OnceCell<u64>>;

#[derive(Debug)]
pub(crate) struct Chunks {
    capacity: u64,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    objects: HashMap<Path, Object>,
    /// When a chunk was used last.
    order: BTreeMap<u64, (Path, u64)>,
    ticks: u64,
    bytes: u64,
    evicted: u64,
    /// By the hash of a path: grows with each write through this store, because what was asked before may be old.
    epochs: Vec<u64>,
    files: u64,
    /// Files to be removed.
    doomed: BTreeSet<u64>,
}

#[derive(Debug)]
struct Object {
    checked: Checked,
    chunks: HashMap<u64, Chunk>,
}

#[derive(Debug)]
struct Chunk {
    slot: Slot,
    tick: u64,
    /// Its file and length, once it has one.
    file: Option<(u64, u64)>,
}

impl Chunks {
    pub(crate) fn new(capacity: u64) -> Self {
        Self {
            capacity,
            state: Mutex::new(State {
                objects: HashMap::new(),
                order: BTreeMap::new(),
                ticks: 0,
                bytes: 0,
                evicted: 0,
                epochs: vec![0; EPOCHS],
                files: 0,
                doomed: BTreeSet::new(),
            }),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn epoch(&self, path: &Path) -> u64 {
        *self.state().epoch(path)
    }

    /// What was said of an object at most `age` ago.
    pub(crate) fn believed(&self, path: &Path, age: Duration) -> Option<Checked> {
        let state = self.state();
        let checked = &state.objects.get(path)?.checked;
        (checked.at.elapsed() < age).then(|| checked.clone())
    }

    /// The store says what an object is. It was asked when `epoch` was the epoch. None if it has no ETag.
    pub(crate) fn seen(&self, path: &Path, known: Known, epoch: u64) -> Option<Checked> {
        let identity = Identity::of(&known.meta);
        let mut state = self.state();
        let old = state.objects.get_mut(path);
        let is_other =
            old.is_some_and(|object| Some(&object.checked.identity) != identity.as_ref());
        if is_other {
            state.forget(path);
        }
        let checked = Checked {
            known: Arc::new(known),
            identity: identity?,
            at: Instant::now(),
            epoch,
        };
        if *state.epoch(path) == epoch
            && let Some(object) = state.objects.get_mut(path)
        {
            object.checked = checked.clone();
        }
        Some(checked)
    }

    /// The slot of a chunk. One of its own if there is a newer version, or may be.
    pub(crate) fn slot(&self, path: &Path, checked: &Checked, index: u64) -> Slot {
        let mut state = self.state();
        let state = &mut *state;
        let is_old = *state.epoch(path) != checked.epoch;
        let old = state.objects.get(path).map(|object| &object.checked);
        match old {
            Some(old) if old.identity == checked.identity => {}
            Some(old) if old.at > checked.at => return Slot::default(),
            _ if is_old => return Slot::default(),
            old => {
                if old.is_some() {
                    state.forget(path);
                }
                let object = Object {
                    checked: checked.clone(),
                    chunks: HashMap::new(),
                };
                state.objects.insert(path.clone(), object);
            }
        }
        state.ticks += 1;
        let tick = state.ticks;
        let object = state.objects.get_mut(path).expect("there is one");
        let chunk = object.chunks.entry(index).or_insert_with(|| Chunk {
            slot: Slot::default(),
            tick,
            file: None,
        });
        state.order.remove(&chunk.tick);
        state.order.insert(tick, (path.clone(), index));
        chunk.tick = tick;
        Arc::clone(&chunk.slot)
    }

    /// A slot is no longer needed by somebody. If nobody could fill it, it goes.
    pub(crate) fn leave(&self, path: &Path, index: u64, slot: &Slot) {
        let mut state = self.state();
        let chunk = state.chunk(path, index, slot);
        // Those in `state` and the caller's: nobody else is about to fill it.
        if chunk.is_some_and(|chunk| chunk.file.is_none() && Arc::strong_count(slot) == 2) {
            state.remove(path, index);
        }
    }

    /// A name for a new file.
    pub(crate) fn new_file(&self) -> u64 {
        let mut state = self.state();
        state.files += 1;
        state.files
    }

    /// A chunk has its file. Others make room for it. If it is not wanted any more, its file goes.
    pub(crate) fn stored(&self, path: &Path, index: u64, slot: &Slot, file: u64, len: u64) {
        let mut state = self.state();
        match state.chunk(path, index, slot) {
            Some(chunk) => chunk.file = Some((file, len)),
            None => {
                state.doomed.insert(file);
                return;
            }
        }
        state.bytes += len;
        while state.bytes > self.capacity
            && let Some((path, index)) = state.order.values().next().cloned()
        {
            state.evicted += 1;
            state.remove(&path, index);
        }
    }

    /// The file of a chunk cannot be read.
    pub(crate) fn unreadable(&self, path: &Path, index: u64, slot: &Slot) {
        let mut state = self.state();
        if state.chunk(path, index, slot).is_some() {
            state.remove(path, index);
        }
    }

    /// An object is being changed: nothing of it is believed any more.
    pub(crate) fn forget(&self, path: &Path) {
        let mut state = self.state();
        *state.epoch(path) += 1;
        state.forget(path);
    }

    /// Some object, or several, may have been changed.
    pub(crate) fn forget_all(&self) {
        let mut state = self.state();
        state.epochs.iter_mut().for_each(|epoch| *epoch += 1);
        let paths: Vec<_> = state.objects.keys().cloned().collect();
        paths.iter().for_each(|path| state.forget(path));
    }

    /// An object is not this version any more.
    pub(crate) fn is_gone(&self, path: &Path, identity: &Identity) {
        let mut state = self.state();
        let object = state.objects.get(path);
        if object.is_some_and(|object| object.checked.identity == *identity) {
            state.forget(path);
        }
    }

    pub(crate) fn doom(&self, file: u64) {
        self.state().doomed.insert(file);
    }

    /// A file to be removed.
    pub(crate) fn doomed(&self) -> Option<u64> {
        self.state().doomed.first().copied()
    }

    /// It was removed.
    pub(crate) fn removed(&self, file: u64) {
        self.state().doomed.remove(&file);
    }

    /// Bytes of chunks that have files, their number, and chunks that made room for others.
    pub(crate) fn figures(&self) -> (u64, u64, u64) {
        let state = self.state();
        (state.bytes, state.order.len() as u64, state.evicted)
    }
}

impl State {
    fn epoch(&mut self, path: &Path) -> &mut u64 {
        let mut hasher = DefaultHasher::new();
        path.hash(&mut hasher);
        &mut self.epochs[hasher.finish() as usize % EPOCHS]
    }

    fn chunk(&mut self, path: &Path, index: u64, slot: &Slot) -> Option<&mut Chunk> {
        let chunk = self.objects.get_mut(path)?.chunks.get_mut(&index)?;
        Arc::ptr_eq(&chunk.slot, slot).then_some(chunk)
    }

    fn remove(&mut self, path: &Path, index: u64) {
        let Some(object) = self.objects.get_mut(path) else {
            return;
        };
        let chunk = object.chunks.remove(&index);
        if object.chunks.is_empty() {
            self.objects.remove(path);
        }
        chunk.into_iter().for_each(|chunk| self.drop_chunk(&chunk));
    }

    fn forget(&mut self, path: &Path) {
        let object = self.objects.remove(path);
        let chunks = object.into_iter().flat_map(|object| object.chunks);
        chunks.for_each(|(_, chunk)| self.drop_chunk(&chunk));
    }

    fn drop_chunk(&mut self, chunk: &Chunk) {
        self.order.remove(&chunk.tick);
        if let Some((file, len)) = chunk.file {
            self.bytes -= len;
            self.doomed.insert(file);
        }
    }
}
