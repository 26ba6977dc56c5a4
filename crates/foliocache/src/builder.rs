//! Settings of a cache.

use foliocache_mm::{FaultMode as MappingFaults, Mm, MmConfig};
use foliocache_sys::usercopy;
use std::time::Duration;

use crate::cache::Cache;
use crate::error::{Error, Operation, Result};
use crate::setters::setters;
use crate::size::MemorySize;

/// The memory bound when none is given.
const DEFAULT_MEMORY: u64 = 256 << 20;

/// Settings of a new [`Cache`]; from [`Cache::builder`].
#[derive(Debug)]
#[must_use = "a builder makes nothing before `build`"]
pub struct CacheBuilder {
    memory: Result<u64>,
    fault_handlers: bool,
    config: MmConfig,
    pin_wait: Option<Duration>,
}

impl Cache {
    /// Settings of a new cache.
    pub fn builder() -> CacheBuilder {
        CacheBuilder::new()
    }
}

impl CacheBuilder {
    fn new() -> Self {
        Self {
            memory: Ok(DEFAULT_MEMORY),
            fault_handlers: false,
            config: MmConfig::new(DEFAULT_MEMORY),
            pin_wait: None,
        }
    }

    setters! {
        /// The bound on all memory of the cache, in bytes or as text such as `"512M"`: cached pages,
        /// data in flight, and the cache's own tables. Default: 256 MiB. At least [`MIN_MEMORY`](crate::MIN_MEMORY), 16 MiB to map files, and at
        /// most the machine's memory, or [`build`](Self::build) fails.
        memory(bytes: impl MemorySize) => memory = bytes.in_bytes();

        /// Whether to install handlers of SIGSEGV and SIGBUS, for the whole process and for good.
        ///
        /// With them a read or write to bad memory fails with `EFAULT`, as in the kernel. Without them, the default, it faults as in
        /// any other library. They pass signals that are not their own to the handlers that were there before.
        fault_handlers(install: bool) => fault_handlers = install;

        /// The share of the memory for pages (the bound less tables and names), in percent, that may be dirty before the cache writes it
        /// back by itself. Above 0 and below [`dirty_percent`](Self::dirty_percent). Default: 10.
        ///
        /// If programs soon dirty much of the data again that was written back for want of room, this limit rises, to
        /// thirteen sixteenths of the other one at most.
        dirty_background_percent(percent: u32) => config.dirty_background_percent = percent;

        /// The share of the memory for pages, in percent, that may be dirty before writers wait: at most 90. Directories share it by
        /// how fast they are written. Default: 40.
        ///
        /// If programs soon dirty much of the data again that was written back for want of room, this limit rises to its
        /// double: to 75 at most, to 60 in a cache of several directories. Data that changes all the time, such as an index that is
        /// being loaded, is then written less often.
        dirty_percent(percent: u32) => config.dirty_percent = percent;

        /// The age at which the cache writes dirty data back by itself. Default: 5 seconds.
        dirty_expire(age: Duration) => config.dirty_expire = age;

        /// Whether the bound shrinks while memory outside the cache is short. Default: yes.
        ///
        /// The cache reads limits and usage of the process's memory cgroup and of its ancestors, the machine's free
        /// memory, and memory stalls (PSI), as far as the kernel reports them. When other users leave less room than
        /// the bound, the bound shrinks in steps of a 64th, and whole blocks of memory are returned at once. Some
        /// seconds after there is room again, it grows back, a 16th each half second. So a process in a memory cgroup is not killed
        /// because of its cache, unless others take memory faster than the cache can return it. The kernel's clean page
        /// cache counts as room, because the kernel drops it on demand. [`CacheStats::pressure`](crate::CacheStats)
        /// reports each step and its reason.
        ///
        /// Costs a thread that looks once a second, up to ten times a second under pressure, at some
        /// 100 µs a look; 50 KiB and four descriptors outside the bound.
        external_pressure(follow: bool) => config.external_pressure = follow;

        /// How the page faults of mapped files are resolved ([`File::map`](crate::File::map)). Default:
        /// [`MappingFaults::Thread`].
        mapping_faults(mode: MappingFaults) => config.fault_mode = mode;

        /// The most bytes that one page fault of a mapped file maps, rounded down to a power of two pages, and at least one
        /// page. Default, and largest value: 2 MiB.
        ///
        /// A fault maps only neighbours that are cached, and only faults of a stream map as much. A smaller value causes more
        /// faults, and fewer dirty pages for each store.
        fault_around_bytes(bytes: u32) => config.fault_around_bytes = bytes;

        /// Whether mapped files use huge pages of 2 MiB from the kernel's pool (`vm.nr_hugepages`), if a page is free when
        /// the first file is mapped. Default: no.
        ///
        /// A fault then maps 2 MiB. In return everything about mapped files is 2 MiB large: the memory of a small file, a read on
        /// a miss, the data that one store makes dirty. Mapped files have the smaller of bound and pool. If the pool is empty they use
        /// pages of 4 KiB; [`MemoryUsage::huge`](crate::MemoryUsage) says which they use, and why.
        huge_pages(wanted: bool) => config.huge_frames = wanted;

        /// How long a call that truncates or moves pinned bytes of a file waits for short-term pins to end: see
        /// [`File::pin`](crate::File::pin). Also how long any call waits for pins of
        /// [`File::pin_revocable`](crate::File::pin_revocable) that it asks for. Default: one second.
        pin_wait(wait: Duration) => pin_wait = Some(wait);
    }

    /// Makes the cache. Reserves address space and starts its threads; memory is allocated on demand.
    ///
    /// # Errors
    /// [`Error::Setting`] for contradictory settings; a bound larger than the machine's memory; a kernel that refuses
    /// something the cache needs.
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
            let installed = usercopy::install_handlers();
            installed.map_err(Error::of_cache(Operation::InstallHandlers))?;
        }
        let mm = Mm::new(self.config)?;
        if let Some(wait) = self.pin_wait {
            mm.set_pin_wait(wait);
        }
        Ok(Cache::new(mm))
    }
}
