//! How a cache is to be made.

use foliocache_mm::{FaultMode, Mm, MmConfig};
use foliocache_sys::usercopy;
use std::time::Duration;

use crate::cache::Cache;
use crate::error::{Error, Operation, Result};
use crate::size::MemorySize;

/// The memory bound when none is given.
const DEFAULT_MEMORY: u64 = 256 << 20;

/// How a [`Cache`] is to be made; from [`Cache::builder`].
#[derive(Debug)]
#[must_use = "a builder makes nothing before `build`"]
pub struct CacheBuilder {
    memory: Result<u64>,
    fault_handlers: bool,
    config: MmConfig,
    pin_wait: Option<Duration>,
}

impl CacheBuilder {
    pub(crate) fn new() -> Self {
        Self {
            memory: Ok(DEFAULT_MEMORY),
            fault_handlers: false,
            config: MmConfig::new(DEFAULT_MEMORY),
            pin_wait: None,
        }
    }

    /// The bound on all memory of the cache, in bytes or as text such as `"512M"`: cached pages,
    /// whatever is in flight, and the cache's own tables. 256 MiB unless said.
    pub fn memory(mut self, bytes: impl MemorySize) -> Self {
        self.memory = bytes.in_bytes();
        self
    }

    /// Whether to install handlers of SIGSEGV and SIGBUS, for the whole process and for good.
    ///
    /// With them, bad memory handed to a read or write ends it with `EFAULT`, as it does in the
    /// kernel; without them, which is the default, it faults as in any other library. They pass on
    /// what is not theirs to the handlers that were there before.
    pub fn fault_handlers(mut self, install: bool) -> Self {
        self.fault_handlers = install;
        self
    }

    /// The share of the memory, in percent, that may be dirty before it is written back without
    /// anybody asking. 10 unless said.
    pub fn dirty_background_percent(mut self, percent: u32) -> Self {
        self.config.dirty_background_percent = percent;
        self
    }

    /// The share of the memory, in percent, that may be dirty before writers wait. 40 unless said.
    pub fn dirty_percent(mut self, percent: u32) -> Self {
        self.config.dirty_percent = percent;
        self
    }

    /// How long data stays dirty before it is written back without anybody asking. 5 seconds
    /// unless said.
    pub fn dirty_expire(mut self, age: Duration) -> Self {
        self.config.dirty_expire = age;
        self
    }

    /// Whether the bound gives way while memory is short outside the cache. It does unless said.
    ///
    /// Read for it: limits and usage of the process's memory cgroup and those above it, the
    /// machine's free memory, and stalls for want of memory (PSI), each where the kernel has it.
    /// When the room that others leave becomes less than the bound, the bound is lowered to it in
    /// steps of a 16th and whole blocks of memory go back at once; some seconds after there is room
    /// again it grows back, step by step. So a process in a memory cgroup is not killed for what
    /// its cache holds, unless others take the room faster than memory can be given back. The
    /// kernel's own clean page cache counts as room: it makes way by itself.
    /// [`CacheStats::pressure`](crate::CacheStats) tells what was done and why.
    ///
    /// Costs a thread that looks once a second, up to ten times a second under pressure, at some
    /// 100 µs a look; 50 KiB and four descriptors outside the bound.
    pub fn external_pressure(mut self, follow: bool) -> Self {
        self.config.external_pressure = follow;
        self
    }

    /// Who resolves the page faults of mapped files ([`File::map`](crate::File::map)).
    /// [`MappingFaults::Thread`](crate::MappingFaults::Thread) unless said.
    pub fn mapping_faults(mut self, mode: FaultMode) -> Self {
        self.config.fault_mode = mode;
        self
    }

    /// Most bytes that one page fault of a mapped file puts into the page tables, rounded down to a power of two
    /// pages and at least one page. 2 MiB unless said, which is the most.
    ///
    /// Only what is cached already is mapped along, and only sequential faults come to as much. Less of it makes
    /// more faults, and fewer pages dirty by a store.
    pub fn fault_around_bytes(mut self, bytes: u32) -> Self {
        self.config.fault_around_bytes = bytes;
        self
    }

    /// Whether mapped files are to have huge pages of 2 MiB out of the kernel's pool (`vm.nr_hugepages`), if it has one
    /// free when the first file is mapped. No unless said.
    ///
    /// A fault maps 2 MiB then. In return everything about mapped files is of 2 MiB: what a small file takes, what a
    /// miss reads, what a store makes dirty. They have what is less, of bound and pool. Where the pool is empty they have
    /// pages of 4 KiB; [`MemoryUsage::huge`](crate::MemoryUsage) says what they have, and why.
    pub fn huge_pages(mut self, wanted: bool) -> Self {
        self.config.huge_frames = wanted;
        self
    }

    /// How long a call that cuts off or moves pinned bytes of a file waits for short-term pins to end: see
    /// [`File::pin`](crate::File::pin). A second unless said.
    pub fn pin_wait(mut self, wait: Duration) -> Self {
        self.pin_wait = Some(wait);
        self
    }

    /// Makes the cache. Reserves address space and starts its threads; memory is taken as it is
    /// needed.
    ///
    /// # Errors
    /// A setting that makes no sense; more memory than the machine has; a kernel that refuses
    /// something that the cache needs.
    pub fn build(mut self) -> Result<Cache> {
        self.config.limit = self.memory?;
        let (background, limit) = (
            self.config.dirty_background_percent,
            self.config.dirty_percent,
        );
        if background == 0 || background >= limit || limit > 90 {
            return Err(Error::Setting(format!(
                "dirty limits of {background} and {limit} percent: the first must be above 0 and \
                 below the second, the second at most 90"
            )));
        }
        if self.fault_handlers {
            usercopy::install_handlers().map_err(|errno| Error::Cache {
                operation: Operation::InstallHandlers,
                errno,
            })?;
        }
        let mm = Mm::new(self.config)?;
        if let Some(wait) = self.pin_wait {
            mm.set_pin_wait(wait);
        }
        Ok(Cache::new(mm))
    }
}
