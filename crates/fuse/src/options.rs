//! Options of a mount.

use crate::shown::Shown;
use foliocache_vfs::SuperBlock;

/// The file data that the kernel keeps in its own cache, beyond our bound.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum KernelCache {
    /// Only pages of running programs and other private mappings, while the file is open. Every `read` and `write` is a request.
    /// Shared mappings fail (`ENODEV`).
    None,
    /// Only mapped files, and only while they are open. Every `read` and `write` is a request, so data is held once, within our
    /// bound.
    #[default]
    Mapped,
    /// Everything, as for other file systems: pages stay until the kernel needs their memory or the file changes. A repeated read
    /// makes no request, and most data is held twice. Every write is a request.
    ///
    /// If the mounting process may open any file (`CAP_DAC_OVERRIDE`), the kernel sends neither `OPEN` nor
    /// `RELEASE` for existing files. So if another process removes or replaces a file in the source while a program
    /// has it open, only its cached part can be read. A file counts as closed after a second without a request.
    All,
}

/// Options of a mount.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct MountOptions {
    /// The source in the mount table.
    pub name: String,
    /// Mount read-only.
    pub read_only: bool,
    /// Give users other than the mounting one access.
    pub allow_other: bool,
    /// Threads that read requests. At least two of them never wait: if more operations would have to wait, further threads
    /// are started.
    pub threads: usize,
    /// The file data that the kernel keeps.
    pub kernel_cache: KernelCache,
    /// Owner, group and permissions that replace those of the source.
    pub shown: Shown,
    /// Forbid running programs from the mount.
    pub no_exec: bool,
}

impl MountOptions {
    /// The defaults, under the name `name`.
    pub fn new(name: impl Into<String>) -> MountOptions {
        MountOptions {
            name: name.into(),
            read_only: false,
            allow_other: false,
            threads: 8,
            kernel_cache: KernelCache::default(),
            shown: Shown::default(),
            no_exec: false,
        }
    }

    /// Whether a mount of `names` refuses every change.
    pub(crate) fn is_read_only(&self, names: &SuperBlock) -> bool {
        self.read_only || names.fs().read_only()
    }
}
