//! A file system in memory with hooks, for mounts in tests.
#![allow(dead_code, reason = "each test file uses its part")]

use foliocache_fs::MemFs;
use foliocache_fuse::{Mount, MountOptions};
use foliocache_mm::{AddressSpaceOperations, BackingDevInfo, Mm, MmConfig};
use foliocache_sync::Arc;
use foliocache_sys::Errno;
use foliocache_vfs::{
    Attr, Attributes, FileKind, FileSystem, Generation, Inode, New, OpContext, OpenDirectory,
    OpenFile, OpenFlags, Remove, RenameMode, SetAttr, SlabArc, StatFs, SuperBlock, XattrMode,
};
use std::ffi::{OsStr, OsString};
use std::fs;
use std::path::{Path, PathBuf};

#[path = "../../../foliocache/src/testing.rs"]
mod testing;

/// Whether root or FUSE is missing, so that the test must be skipped; then it prints so.
pub(crate) fn no_root_or_fuse() -> bool {
    let known = std::env::var("FOLIOCACHE_MISSING").unwrap_or_default();
    let missing = known
        .split(',')
        .find(|name| ["fuse", "root"].contains(name));
    if let Some(missing) = missing {
        eprintln!("SKIPPED: there is no {missing}");
    }
    missing.is_some()
}

/// Called before each look-up with the file system in memory and the name; its error is the answer.
pub(crate) type BeforeLookup =
    Box<dyn Fn(&dyn FileSystem, &OsStr) -> Result<(), Errno> + Send + Sync>;

/// Files in memory, further files over other stores at the top, and a hook.
pub(crate) struct HookedFs {
    pub(crate) memory: MemFs,
    /// Names at the top that lead to other inodes, with their attributes.
    pub(crate) extra: Vec<(OsString, SlabArc<Inode>)>,
    pub(crate) before_lookup: BeforeLookup,
}

impl HookedFs {
    pub(crate) fn new(mm: &Arc<Mm>) -> HookedFs {
        HookedFs {
            memory: MemFs::new(mm).unwrap(),
            extra: Vec::new(),
            before_lookup: Box::new(|_, _| Ok(())),
        }
    }

    fn is_extra(&self, inode: &SlabArc<Inode>) -> bool {
        self.extra
            .iter()
            .any(|(_, extra)| SlabArc::ptr_eq(extra, inode))
    }
}

/// Methods that forward to the file system in a field.
macro_rules! delegate {
    ($inner:ident: $(fn $name:ident(&self $(, $arg:ident: $type:ty)*) -> $result:ty;)*) => {
        $(fn $name(&self $(, $arg: $type)*) -> $result {
            self.$inner.$name($($arg),*)
        })*
    };
}

/// The methods that both test file systems forward to a field.
macro_rules! delegate_to {
    ($inner:ident) => {
        delegate! { $inner:
            fn kind(&self) -> &'static str;
            fn permissions(&self) -> &Arc<Generation>;
            fn root(&self) -> SlabArc<Inode>;
            fn setattr(&self, ctx: &OpContext, inode: &SlabArc<Inode>, set: &SetAttr) -> Result<Attr, Errno>;
            fn create(
                &self, ctx: &OpContext, dir: &SlabArc<Inode>, name: &OsStr, mode: u32, flags: OpenFlags
            ) -> Result<OpenFile, Errno>;
            fn make(&self, ctx: &OpContext, dir: &SlabArc<Inode>, name: &OsStr, new: New<'_>) -> Result<SlabArc<Inode>, Errno>;
            fn readlink(&self, inode: &SlabArc<Inode>) -> Result<OsString, Errno>;
            fn link(&self, inode: &SlabArc<Inode>, dir: &SlabArc<Inode>, name: &OsStr) -> Result<(), Errno>;
            fn remove(&self, dir: &SlabArc<Inode>, name: &OsStr, what: Remove) -> Result<(), Errno>;
            fn rename(
                &self, from_dir: &SlabArc<Inode>, from: &OsStr, to_dir: &SlabArc<Inode>, to: &OsStr, mode: RenameMode
            ) -> Result<(), Errno>;
            fn opendir(&self, inode: &SlabArc<Inode>) -> Result<Box<dyn OpenDirectory>, Errno>;
            fn statfs(&self) -> Result<StatFs, Errno>;
            fn sync_fs(&self) -> Result<(), Errno>;
            fn getxattr(&self, inode: &SlabArc<Inode>, name: &OsStr) -> Result<Vec<u8>, Errno>;
            fn setxattr(&self, inode: &SlabArc<Inode>, name: &OsStr, value: Option<&[u8]>, mode: XattrMode) -> Result<(), Errno>;
            fn listxattr(&self, inode: &SlabArc<Inode>) -> Result<Vec<OsString>, Errno>;
        }
    };
}

impl FileSystem for HookedFs {
    fn lookup(&self, dir: &SlabArc<Inode>, name: &OsStr) -> Result<SlabArc<Inode>, Errno> {
        (self.before_lookup)(&self.memory, name)?;
        match self.extra.iter().find(|(extra, _)| extra == name) {
            Some((_, inode)) => Ok(inode.clone()),
            None => self.memory.lookup(dir, name),
        }
    }

    fn getattr(&self, inode: &SlabArc<Inode>) -> Result<Attr, Errno> {
        match self.is_extra(inode) {
            true => {
                let attributes = Attributes {
                    size: inode.open_mapping()?.size(),
                    mode: 0o666,
                    nlink: 1,
                    ..*self.memory.getattr(&self.root())?
                };
                Ok(attributes.of(inode.ino(), FileKind::Regular))
            }
            false => self.memory.getattr(inode),
        }
    }

    fn open(
        &self,
        ctx: &OpContext,
        inode: &SlabArc<Inode>,
        flags: OpenFlags,
    ) -> Result<OpenFile, Errno> {
        match self.is_extra(inode) {
            true => OpenFile::new(inode.clone(), flags, *ctx),
            false => self.memory.open(ctx, inode, flags),
        }
    }

    delegate_to!(memory);
}

impl HookedFs {
    /// Makes `name` at the top a file of `size` bytes over `store`.
    pub(crate) fn add_store(
        &mut self,
        bdi: &Arc<BackingDevInfo>,
        name: &str,
        store: Arc<dyn AddressSpaceOperations>,
        size: u64,
    ) {
        // Outside the numbers of files in memory.
        let number = (1 << 40) + self.extra.len() as u64;
        let inode = testing::inode_over(bdi, number, store, size);
        self.extra.push((name.into(), inode));
    }
}

/// A mount for one test, accessible to every user. It ends with the value.
pub(crate) struct Mounted {
    pub(crate) mount: Option<Mount>,
    pub(crate) point: PathBuf,
}

impl Mounted {
    pub(crate) fn new(name: &str, mm: &Arc<Mm>, fs: HookedFs) -> Mounted {
        let name = format!("foliocache-{name}-{}", std::process::id());
        let point = std::env::temp_dir().join(name);
        fs::create_dir_all(&point).unwrap();
        let mut options = MountOptions::new("test");
        options.allow_other = true;
        let names = Arc::new(SuperBlock::new(Arc::new(fs), mm));
        let mount = Mount::new(names, &point, &options).unwrap();
        Mounted {
            mount: Some(mount),
            point,
        }
    }

    pub(crate) fn mount(&self) -> &Mount {
        self.mount.as_ref().unwrap()
    }

    pub(crate) fn at(&self, name: &str) -> PathBuf {
        self.point.join(name)
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        drop(self.mount.take());
        let _ = fs::remove_dir(&self.point);
    }
}

/// A cache with a bound of 64 MiB.
pub(crate) fn mm() -> Arc<Mm> {
    Mm::new(MmConfig::new(64 << 20)).unwrap()
}

/// The exit status and standard error of `script`, run by an unprivileged user in `place`.
pub(crate) fn shell_as_user(place: &Path, script: &str) -> (Option<i32>, String) {
    use std::os::unix::process::CommandExt;
    let done = std::process::Command::new("sh")
        .args(["-c", script])
        .current_dir(place)
        .env("LC_ALL", "C")
        .uid(65534)
        .gid(65534)
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&done.stderr).into_owned();
    (done.status.code(), said)
}
