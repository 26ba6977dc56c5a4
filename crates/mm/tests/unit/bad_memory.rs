//! Memory of a caller that cannot be reached, and a signal handler that watches it.
//!
//! The handler is installed after the one of `usercopy`, so it sees each fault first: it counts the
//! fault, and passes it on or makes the page accessible, as the watch says.
//!
//! # Safety
//!
//! A [`Memory`] owns its mapping. The handler uses atomics and `mprotect` alone, and chains to what
//! was there before.
#![allow(unsafe_code)]

use std::ffi::c_void;
use std::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock};
use std::time::{Duration, Instant};

pub(crate) const PAGE: usize = 4096;

/// A mapping of anonymous pages.
pub(crate) struct Memory {
    start: *mut u8,
    len: usize,
}

// SAFETY: an address range; the tests order their accesses.
unsafe impl Send for Memory {}
// SAFETY: as above.
unsafe impl Sync for Memory {}

impl Memory {
    /// So many pages, readable and writable, zero, where nobody else maps: what a test unmaps stays
    /// unmapped.
    pub(crate) fn new(pages: usize) -> Self {
        static NEXT: AtomicUsize = AtomicUsize::new(1 << 40);
        let len = pages * PAGE;
        // Relaxed: only has to differ.
        let at = NEXT.fetch_add(1 << 30, Ordering::Relaxed);
        let at = std::ptr::with_exposed_provenance_mut(at);
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED_NOREPLACE;
        let prot = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a new mapping.
        let start = unsafe { libc::mmap(at, len, prot, flags, -1, 0) };
        assert_eq!(start, at, "{}", std::io::Error::last_os_error());
        Self {
            start: start.cast(),
            len,
        }
    }

    /// Pages that hold `bytes`.
    pub(crate) fn holding(bytes: &[u8]) -> Self {
        let memory = Self::new(bytes.len().div_ceil(PAGE));
        // SAFETY: the mapping is as long and writable.
        unsafe { memory.start.copy_from(bytes.as_ptr(), bytes.len()) };
        memory
    }

    pub(crate) fn at(&self, offset: usize) -> *mut u8 {
        self.start.wrapping_add(offset)
    }

    fn protect(&self, from: usize, prot: i32) {
        // SAFETY: pages of ours.
        let rc = unsafe { libc::mprotect(self.at(from).cast(), self.len - from, prot) };
        assert_eq!(rc, 0);
    }

    /// Makes all from page offset `from` on inaccessible.
    pub(crate) fn forbid(&self, from: usize) {
        self.protect(from, libc::PROT_NONE);
    }

    pub(crate) fn allow(&self, from: usize) {
        self.protect(from, libc::PROT_READ | libc::PROT_WRITE);
    }

    /// Puts a hole where the pages from `from` on were.
    pub(crate) fn unmap(&self, from: usize) {
        // SAFETY: our part of the address space, which nobody touches but through `usercopy`.
        let rc = unsafe { libc::munmap(self.at(from).cast(), self.len - from) };
        assert_eq!(rc, 0);
    }

    /// A copy of the bytes, which must be accessible.
    pub(crate) fn bytes(&self) -> Vec<u8> {
        // SAFETY: the tests call it where all of it is readable and nobody writes.
        unsafe { std::slice::from_raw_parts(self.start, self.len) }.to_vec()
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        self.unmap(0);
    }
}

static START: AtomicUsize = AtomicUsize::new(0);
static END: AtomicUsize = AtomicUsize::new(0);
/// Faults passed on before one is resolved.
static PASS: AtomicUsize = AtomicUsize::new(0);
/// The fault at which all of the memory becomes inaccessible.
static FORBID: AtomicUsize = AtomicUsize::new(usize::MAX);
/// 0: no hook; 1: the fault that will be resolved waits; 2: go on.
static GATE: AtomicUsize = AtomicUsize::new(0);
const MOST: usize = 64;
static FAULTS: AtomicUsize = AtomicUsize::new(0);
/// Address of the page and of the instruction, for each fault.
static SEEN: [[AtomicUsize; 2]; MOST] =
    [const { [AtomicUsize::new(0), AtomicUsize::new(0)] }; MOST];
static CHAIN: AtomicPtr<libc::sigaction> = AtomicPtr::new(std::ptr::null_mut());

/// What the handler does with the faults in a piece of memory; one at a time in a process.
pub(crate) struct Watch {
    _turn: MutexGuard<'static, ()>,
}

/// A fault that the handler saw.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Seen {
    /// Offset of the page in the memory.
    pub(crate) page: usize,
    /// Address of the instruction.
    pub(crate) at: usize,
}

impl Watch {
    /// Passes each fault on.
    pub(crate) fn pass_all(memory: &Memory) -> Self {
        Self::new(memory, usize::MAX, 0)
    }

    /// Passes `pass` faults on and makes the page of the next one accessible, and so on.
    pub(crate) fn resolve_after(memory: &Memory, pass: usize) -> Self {
        Self::new(memory, pass, 0)
    }

    /// As [`Watch::resolve_after`], and the first fault to be resolved waits for [`Watch::open`].
    pub(crate) fn gated(memory: &Memory, pass: usize) -> Self {
        Self::new(memory, pass, 1)
    }

    /// Passes each fault on, and makes all of the memory inaccessible at the fault with this number.
    pub(crate) fn forbid_at(memory: &Memory, fault: usize) -> Self {
        let watch = Self::new(memory, usize::MAX, 0);
        FORBID.store(fault, Ordering::SeqCst);
        watch
    }

    fn new(memory: &Memory, pass: usize, gate: usize) -> Self {
        static ONE: Mutex<()> = Mutex::new(());
        static INSTALLED: OnceLock<()> = OnceLock::new();
        let guard = ONE.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        INSTALLED.get_or_init(|| {
            foliocache_sys::usercopy::install_handlers().unwrap();
            install();
        });
        FAULTS.store(0, Ordering::SeqCst);
        PASS.store(pass, Ordering::SeqCst);
        GATE.store(gate, Ordering::SeqCst);
        START.store(memory.at(0).addr(), Ordering::SeqCst);
        END.store(memory.at(memory.len).addr(), Ordering::SeqCst);
        Self { _turn: guard }
    }

    /// The faults so far.
    pub(crate) fn faults(&self) -> Vec<Seen> {
        let count = FAULTS.load(Ordering::SeqCst);
        assert!(count <= MOST, "{count} faults");
        let start = START.load(Ordering::SeqCst);
        (0..count)
            .map(|fault| {
                let [page, at] = [0, 1].map(|field| SEEN[fault][field].load(Ordering::SeqCst));
                Seen {
                    page: page - start,
                    at,
                }
            })
            .collect()
    }

    /// Waits until so many faults happened.
    pub(crate) fn wait_for(&self, faults: usize) {
        let start = Instant::now();
        while FAULTS.load(Ordering::SeqCst) < faults {
            assert!(start.elapsed() < Duration::from_secs(30), "no fault came");
            std::thread::yield_now();
        }
    }

    /// Lets the fault that waits be resolved.
    pub(crate) fn open(&self) {
        let before = GATE.swap(2, Ordering::SeqCst);
        assert_eq!(before, 1, "the gate was not opened in time: a deadlock");
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        END.store(0, Ordering::SeqCst);
        FORBID.store(usize::MAX, Ordering::SeqCst);
    }
}

fn install() {
    // SAFETY: an all-zero action is a valid one to be overwritten.
    let mut old: libc::sigaction = unsafe { std::mem::zeroed() };
    // SAFETY: as above.
    let mut new: libc::sigaction = unsafe { std::mem::zeroed() };
    new.sa_sigaction = handler as *const () as usize;
    new.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK | libc::SA_NODEFER;
    // SAFETY: reads the action that is there.
    let rc = unsafe { libc::sigaction(libc::SIGSEGV, std::ptr::null(), &mut old) };
    assert_eq!(rc, 0);
    CHAIN.store(Box::into_raw(Box::new(old)), Ordering::SeqCst);
    // SAFETY: the handler is async-signal-safe and finds its predecessor in place.
    let rc = unsafe { libc::sigaction(libc::SIGSEGV, &new, std::ptr::null_mut()) };
    assert_eq!(rc, 0);
}

/// Seconds of the monotonic clock; async-signal-safe.
fn now() -> i64 {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: a place for the answer.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut time) };
    time.tv_sec
}

extern "C" fn handler(signal: i32, info: *mut libc::siginfo_t, context: *mut c_void) {
    // SAFETY: the kernel passes a valid info.
    let fault = unsafe { &*info };
    // SAFETY: the signal is one that has an address.
    let address = unsafe { fault.si_addr() }.addr();
    let (start, end) = (START.load(Ordering::SeqCst), END.load(Ordering::SeqCst));
    if (start..end).contains(&address) {
        let page = address & !(PAGE - 1);
        let context = context.cast::<libc::ucontext_t>();
        // SAFETY: the kernel passes a valid context.
        let at = unsafe { (*context).uc_mcontext.gregs[libc::REG_RIP as usize] };
        let fault = FAULTS.load(Ordering::SeqCst);
        if let Some(seen) = SEEN.get(fault) {
            seen[0].store(page, Ordering::SeqCst);
            seen[1].store(at as usize, Ordering::SeqCst);
        }
        FAULTS.store(fault + 1, Ordering::SeqCst);
        if fault == FORBID.load(Ordering::SeqCst) {
            let memory = std::ptr::with_exposed_provenance_mut::<c_void>(start);
            // SAFETY: the watched memory.
            unsafe { libc::mprotect(memory, end - start, libc::PROT_NONE) };
        }
        if fault >= PASS.load(Ordering::SeqCst) {
            // A gate that nobody opens is a deadlock: go on, so that the test fails and ends.
            let waiting_since = now();
            while GATE.load(Ordering::SeqCst) == 1 {
                if now() > waiting_since + 20 {
                    GATE.store(3, Ordering::SeqCst);
                }
            }
            let prot = libc::PROT_READ | libc::PROT_WRITE;
            let page = std::ptr::with_exposed_provenance_mut::<c_void>(page);
            // SAFETY: a page of the watched memory.
            unsafe { libc::mprotect(page, PAGE, prot) };
            return;
        }
    }
    // SAFETY: set before this handler was, and never freed.
    let next = unsafe { (*CHAIN.load(Ordering::SeqCst)).sa_sigaction };
    // SAFETY: the action of `usercopy`, which has SA_SIGINFO and may be called by who was installed
    // later.
    let next: extern "C" fn(i32, *mut libc::siginfo_t, *mut c_void) =
        unsafe { std::mem::transmute(next) };
    next(signal, info, context);
}
