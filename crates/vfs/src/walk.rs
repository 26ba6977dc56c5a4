//! Path walk: the meaning of a path, whatever the way from name to name.
//!
//! # Model
//!
//! ```text
//!            ┌── rcu: sequence numbers, no reference, nothing written ──▶ stat, or a reference at the end
//!  path ─────┤ bail: not cached, not believed any more, `..`, changed meanwhile
//!            └── reference: a reference of each dentry; asks the file system ──▶ the same
//! ```
//!
//! Both walks are one function over a [`Mode`], so the meaning of a path is written once. A super block has the two
//! modes. A path is a stack
//! of texts, the path itself and the targets of symbolic links in it; each is read component by component,
//! and `..` goes back to where the walk came from.
//!
//! # Invariants
//!
//! 1. A *beneath* walk never comes out above its start: every directory that it passes through was found
//!    below the one before, `..` goes back the same way, and an absolute path is refused. A directory
//!    that is moved out of the start meanwhile is walked on in, as if it had been moved after
//!    the walk.
//! 2. Each result was true at some moment of the call, or was believed to be: not longer than the file
//!    system allows ([`FileSystem::validity`](crate::FileSystem::validity)).
//!
//! # Locking
//!
//! The RCU walk takes none. The reference walk holds the lock of a directory, shared, while it asks the
//! file system for a name in it, so that its answer cannot be overtaken by a change of our own.
//!
//! # Differences from Linux
//!
//! `..` goes back on the way that the walk came, also where directories on it were moved meanwhile;
//! only above its start it asks where the start is. There are no mounts to cross and no magic links.

use crate::dcache::Name;
use crate::types::{FileKind, MAX_NAME};
use foliocache_sys::Errno;
use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;

/// Symbolic links followed before a walk is taken to be endless.
const MAX_LINKS: u32 = 40;

/// Longest path or target of a symbolic link, in bytes.
#[doc(alias = "PATH_MAX")]
pub(crate) const MAX_PATH: usize = 4096;

/// How a path is walked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub(crate) struct WalkFlags {
    /// A symbolic link at the end is followed.
    #[doc(alias = "LOOKUP_FOLLOW")]
    #[doc(alias = "O_NOFOLLOW")]
    pub(crate) follow: bool,
    /// The walk stays below its start: `..` at the start, absolute paths and symbolic links that
    /// lead out are refused.
    #[doc(alias = "RESOLVE_BENEATH")]
    pub(crate) beneath: bool,
}

/// Why a walk ended early.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WalkError {
    /// A component could not be passed, or is not there.
    Errno(Errno),
    /// The path leads out of the directory that it has to stay in. `EXDEV`.
    Escape,
}

impl WalkError {
    /// The error number.
    pub fn errno(self) -> Errno {
        match self {
            WalkError::Errno(errno) => errno,
            WalkError::Escape => Errno::EXDEV,
        }
    }
}

impl From<Errno> for WalkError {
    fn from(errno: Errno) -> Self {
        WalkError::Errno(errno)
    }
}

/// Why a walk in one mode cannot go on.
#[derive(Debug)]
pub(crate) enum Stop {
    /// Nothing is concluded: it has to be walked again, with references.
    Bail,
    /// The walk is over.
    Error(WalkError),
}

impl From<WalkError> for Stop {
    fn from(error: WalkError) -> Self {
        Stop::Error(error)
    }
}

impl From<Errno> for Stop {
    fn from(errno: Errno) -> Self {
        Stop::Error(errno.into())
    }
}

/// A way of getting from a directory to a name in it.
pub(crate) trait Mode: Sized {
    /// A place in the tree, which has an inode.
    type At: Clone;
    /// The text of a symbolic link.
    type Target: AsRef<[u8]>;

    /// The kind of the inode there.
    fn kind(&self, at: &Self::At) -> FileKind;
    /// Whether names may be looked up in this directory.
    fn may_search(&mut self, dir: &Self::At) -> Result<(), Stop>;
    /// Looks a name up; `ENOENT` is an error like others.
    fn child(&mut self, dir: &Self::At, name: &Name<'_>) -> Result<Self::At, Stop>;
    /// Why a name that is too long is not found.
    fn too_long(&self, dir: &Self::At) -> Stop;
    /// The directory above, for a walk that may leave its start.
    fn parent(&mut self, dir: &Self::At) -> Result<Self::At, Stop>;
    /// The root of the file system, for absolute paths; there is no way back up from it.
    fn root(&mut self) -> Result<Self::At, Stop>;
    /// The text of a symbolic link.
    fn target(&mut self, link: &Self::At) -> Result<Self::Target, Stop>;
    /// The walk goes from `dir` down to `child`, to come back by [`Mode::up`].
    fn down(&mut self, dir: Self::At);
    /// Back to where the walk came down from; `None` where it started.
    fn up(&mut self) -> Result<Option<Self::At>, Stop>;
}

/// The last name of a path.
pub(crate) enum Last {
    /// There is none: the path is the root's.
    Root,
    /// `.`
    Dot,
    /// `..`
    DotDot,
    /// A name.
    Normal(OsString),
}

/// Where a walk ended.
pub(crate) struct Walked<A> {
    /// For a walk to the last name: the directory that it is in. Otherwise, and if the last component is no name, the end
    /// of the path.
    pub(crate) at: A,
    /// For a walk to the last name: that name.
    pub(crate) last: Last,
    /// Whether the path ends with a slash, so that only a directory will do.
    pub(crate) wants_directory: bool,
}

/// One text of names.
enum Text<'p, T> {
    Path(&'p [u8]),
    Target(T),
}

impl<T: AsRef<[u8]>> Text<'_, T> {
    fn bytes(&self) -> &[u8] {
        match self {
            Text::Path(path) => path,
            Text::Target(target) => target.as_ref(),
        }
    }
}

/// The rest after a name: `None` if there are more names, else whether there is a slash.
fn rest<T: AsRef<[u8]>>(text: &[u8], pending: &[(Text<'_, T>, usize)]) -> Option<bool> {
    let texts = pending.iter().map(|(text, pos)| &text.bytes()[*pos..]);
    let mut slash = false;
    for text in texts.chain([text]) {
        if text.iter().any(|&byte| byte != b'/') {
            return None;
        }
        slash |= !text.is_empty();
    }
    Some(slash)
}

/// Checks the beginning of a text: where its walk starts.
fn start_of<M: Mode>(
    mode: &mut M,
    text: &[u8],
    flags: WalkFlags,
    at: &mut M::At,
) -> Result<(), Stop> {
    match text {
        [] => Err(Errno::ENOENT.into()),
        _ if text.len() >= MAX_PATH => Err(Errno::ENAMETOOLONG.into()),
        [b'/', ..] if flags.beneath => Err(WalkError::Escape.into()),
        [b'/', ..] => {
            *at = mode.root()?;
            Ok(())
        }
        _ => Ok(()),
    }
}

/// Where `..` leads to from `at`.
#[inline]
fn above<M: Mode>(mode: &mut M, at: &M::At, flags: WalkFlags) -> Result<M::At, Stop> {
    match mode.up()? {
        Some(above) => Ok(above),
        None if flags.beneath => Err(WalkError::Escape.into()),
        None => mode.parent(at),
    }
}

/// Walks `path` from `start`.
///
/// `to_last` says whether the walk ends before the last name, which need not exist: with [`WalkFlags::follow`],
/// before the name that symbolic links lead to, except for one with a trailing slash.
#[inline]
pub(crate) fn walk<M: Mode>(
    mode: &mut M,
    start: M::At,
    path: &[u8],
    flags: WalkFlags,
    to_last: bool,
) -> Result<Walked<M::At>, Stop> {
    let mut at = start;
    start_of(mode, path, flags, &mut at)?;
    // Texts that go on where a symbolic link ends.
    let mut pending: Vec<(Text<'_, M::Target>, usize)> = Vec::new();
    let (mut text, mut pos) = (Text::Path(path), 0);
    let mut links = 0;
    // Whether slashes have been passed since the last name.
    let mut wants_directory = false;
    let mut last = Last::Root;
    loop {
        let bytes = text.bytes();
        while bytes.get(pos) == Some(&b'/') {
            wants_directory = true;
            pos += 1;
        }
        let name = Name::first_of(&bytes[pos..]);
        let len = name.bytes().len();
        if len == 0 {
            match pending.pop() {
                Some((next, next_pos)) => {
                    (text, pos) = (next, next_pos);
                    continue;
                }
                None => break,
            }
        }
        pos += len;
        if mode.kind(&at) != FileKind::Directory {
            return Err(Errno::ENOTDIR.into());
        }
        mode.may_search(&at)?;
        wants_directory = false;
        if len <= 2 && matches!(name.bytes(), b"." | b"..") {
            last = if len == 2 { Last::DotDot } else { Last::Dot };
            if len == 2 {
                at = above(mode, &at, flags)?;
            }
            continue;
        }
        let slash = to_last.then(|| rest(&bytes[pos..], &pending)).flatten();
        let last_name = |at, slash| {
            Ok(Walked {
                at,
                last: Last::Normal(OsString::from_vec(name.bytes().to_vec())),
                wants_directory: slash,
            })
        };
        if let Some(slash) = slash
            && (slash || !flags.follow)
        {
            return last_name(at, slash);
        }
        if len > MAX_NAME {
            return Err(mode.too_long(&at));
        }
        let child = match mode.child(&at, &name) {
            Err(Stop::Error(WalkError::Errno(Errno::ENOENT))) if slash.is_some() => {
                return last_name(at, false);
            }
            child => child?,
        };
        if mode.kind(&child) == FileKind::Symlink
            && (flags.follow || rest(&bytes[pos..], &pending) != Some(false))
        {
            links += 1;
            if links > MAX_LINKS {
                return Err(Errno::ELOOP.into());
            }
            let target = mode.target(&child)?;
            start_of(mode, target.as_ref(), flags, &mut at)?;
            let after = std::mem::replace(&mut text, Text::Target(target));
            if pos < after.bytes().len() {
                pending.push((after, pos));
            }
            pos = 0;
            continue;
        }
        if slash.is_some() {
            return last_name(at, false);
        }
        mode.down(std::mem::replace(&mut at, child));
    }
    if wants_directory && mode.kind(&at) != FileKind::Directory {
        return Err(Errno::ENOTDIR.into());
    }
    Ok(Walked {
        at,
        last,
        wants_directory,
    })
}
