//! The instructions of the copy (in `x86_64.s`), and the action when one of them faults.
//!
//! # Model
//!
//! Every routine keeps the place it has reached in registers, so that a fault needs no unwinding:
//! the handler only replaces the instruction pointer ([`fixup`]).
//!
//! ```text
//! copy_sse, copy_avx ──fault──▶ bytes ──fault at its load──▶  returns (left, source)
//!  (fast, wide)                (exact) ──fault at its store─▶ returns (left, destination)
//!        ▲                        │
//!        └── 256 bytes went well ─┘
//! ```
//!
//! A wide access that faults reveals neither the byte nor, for a non-canonical address, the side. So the first
//! fault only leads to a loop over single bytes, which stops at the exact byte; there the faulting *instruction*
//! reveals the side. `zero` does the same with one side. If the fault is at the very next byte, and has an address,
//! the loop is skipped.
//!
//! # Invariants
//!
//! 1. At every instruction of `copy_*` and `bytes` that touches memory: all bytes of the destination
//!    below `rdi` are copied, `rsi` is the source of `rdi`, and `r8` is the end of the destination.
//!    Wide accesses go upwards, and all loads of a step come before its stores, so bytes at and
//!    above the place of a fault are unchanged.
//! 2. The routines use no stack and call nothing, so that the return address is at `rsp` throughout
//!    and a new instruction pointer is all that a fixup needs.
//! 3. The upper halves of the `ymm` registers are in use only in `copy_avx` and `zero_avx`, and a
//!    fault there clears them first.
//!
//! # Safety
//!
//! The functions are called through [`copy`], [`zero`], [`touch_read`] and [`touch_write`], whose
//! contracts are those of `super::copy` and so on. The labels are only compared and jumped to.
#![allow(unsafe_code)]

use core::sync::atomic::{AtomicUsize, Ordering};

/// The result of a routine, in `rax` and `rdx`.
#[repr(C)]
pub(super) struct Outcome {
    /// Bytes not copied; zero means that all went well, and then `side` means nothing.
    pub(super) left: usize,
    /// 1 for the source, 2 for the destination.
    pub(super) side: usize,
}

pub(super) const SOURCE: usize = 1;

core::arch::global_asm!(include_str!("x86_64.s"));

/// The routines, and the labels at which one ends or a fault goes on.
mod symbols {
    use super::Outcome;

    unsafe extern "C" {
        #[link_name = "foliocache_uc0_copy_avx"]
        pub(super) fn copy_avx(dst: *mut u8, src: *const u8, len: usize, rep: usize) -> Outcome;
        #[link_name = "foliocache_uc0_copy_sse"]
        pub(super) fn copy_sse(dst: *mut u8, src: *const u8, len: usize, rep: usize) -> Outcome;
        #[link_name = "foliocache_uc0_zero_avx"]
        pub(super) fn zero_avx(dst: *mut u8, unused: usize, len: usize, rep: usize) -> Outcome;
        #[link_name = "foliocache_uc0_zero_sse"]
        pub(super) fn zero_sse(dst: *mut u8, unused: usize, len: usize, rep: usize) -> Outcome;
        #[link_name = "foliocache_uc0_touch_read"]
        pub(super) fn touch_read(at: *const u8) -> usize;
        #[link_name = "foliocache_uc0_touch_write"]
        pub(super) fn touch_write(at: *const u8) -> usize;
    }

    // A symbol must not be declared twice, as a function and as a label, so labels have their own.
    macro_rules! labels {
        ($($name:ident = $symbol:literal,)*) => {
            unsafe extern "C" {
                $(#[link_name = $symbol] pub(super) safe static $name: u8;)*
            }
        };
    }
    labels! {
        COPY_AVX_START = "foliocache_uc0_copy_avx_start",
        COPY_AVX_END = "foliocache_uc0_copy_avx_end",
        COPY_SSE_START = "foliocache_uc0_copy_sse_start",
        COPY_SSE_END = "foliocache_uc0_copy_sse_end",
        BYTES_AVX = "foliocache_uc0_bytes_avx",
        BYTES = "foliocache_uc0_bytes",
        BYTES_LOAD = "foliocache_uc0_bytes_load",
        BYTES_STORE = "foliocache_uc0_bytes_store",
        SOURCE_FAULT = "foliocache_uc0_source_fault",
        SOURCE_FAULT_AVX = "foliocache_uc0_source_fault_avx",
        DESTINATION_FAULT_AVX = "foliocache_uc0_destination_fault_avx",
        DESTINATION_FAULT = "foliocache_uc0_destination_fault",
        ZERO_AVX_START = "foliocache_uc0_zero_avx_start",
        ZERO_AVX_END = "foliocache_uc0_zero_avx_end",
        ZERO_SSE_START = "foliocache_uc0_zero_sse_start",
        ZERO_SSE_END = "foliocache_uc0_zero_sse_end",
        ZERO_BYTES_AVX = "foliocache_uc0_zero_bytes_avx",
        ZERO_BYTES = "foliocache_uc0_zero_bytes",
        ZERO_BYTES_STORE = "foliocache_uc0_zero_bytes_store",
        TOUCH_READ_AT = "foliocache_uc0_touch_read_at",
        TOUCH_WRITE_AT = "foliocache_uc0_touch_write_at",
        TOUCH_FAULT = "foliocache_uc0_touch_fault",
    }
}

macro_rules! at {
    ($label:ident) => {
        (&raw const symbols::$label).addr()
    };
}

/// Lets the interrupted code go on where its fault leads, if it is ours; else changes nothing and
/// returns false. `address` is the place of the fault, where the kernel is exact about it.
///
/// Async-signal-safe: reads and writes registers, nothing else.
pub(super) fn resolve(context: &mut libc::ucontext_t, address: Option<usize>) -> bool {
    let register = |number: i32| context.uc_mcontext.gregs[number as usize] as usize;
    let ip = register(libc::REG_RIP);
    let reached = [libc::REG_RSI, libc::REG_RDI, libc::REG_R8].map(register);
    let direct = address.and_then(|address| shortcut(ip, reached, address));
    let Some(target) = direct.or_else(|| fixup(ip)) else {
        return false;
    };
    context.uc_mcontext.gregs[libc::REG_RIP as usize] = target as i64;
    true
}

/// Whether a page fault may be resolved where it happened: not if it happened in a copy. Returns whether it is a
/// write, and whether the instruction is outside our routines.
///
/// Async-signal-safe: reads registers, nothing else.
pub(super) fn may_be_resolved(context: &libc::ucontext_t) -> Option<(bool, bool)> {
    const PAGE_FAULT: usize = 14;
    const WRITE: usize = 1 << 1;
    let register = |number: i32| context.uc_mcontext.gregs[number as usize] as usize;
    let target = fixup(register(libc::REG_RIP));
    let touch = target == Some(at!(TOUCH_FAULT));
    let resolvable = register(libc::REG_TRAPNO) == PAGE_FAULT && (touch || target.is_none());
    resolvable.then(|| (register(libc::REG_ERR) & WRITE != 0, !touch))
}

/// The exit past `bytes` if the next byte to be copied is the one that faulted, which saves a second signal:
/// usually the source of a copy begins in a missing page. By invariant 1 that byte is at `rsi` or at `rdi`; where
/// the two ranges overlap, the address does not tell which.
pub(super) fn shortcut(ip: usize, [rsi, rdi, end]: [usize; 3], address: usize) -> Option<usize> {
    let avx = (at!(COPY_AVX_START)..at!(COPY_AVX_END)).contains(&ip);
    let sse = (at!(COPY_SSE_START)..at!(COPY_SSE_END)).contains(&ip);
    if !(avx || sse) || rsi.abs_diff(rdi) < end.wrapping_sub(rdi) {
        return None;
    }
    match (address == rsi, address == rdi) {
        (true, false) if avx => Some(at!(SOURCE_FAULT_AVX)),
        (true, false) => Some(at!(SOURCE_FAULT)),
        (false, true) if avx => Some(at!(DESTINATION_FAULT_AVX)),
        (false, true) => Some(at!(DESTINATION_FAULT)),
        _ => None,
    }
}

/// Where to go on after a fault at instruction `ip`, or `None` when the instruction is not ours.
///
/// Async-signal-safe: compares addresses, nothing else.
pub(super) fn fixup(ip: usize) -> Option<usize> {
    let within = |start: usize, end: usize| ip.wrapping_sub(start) < end - start;
    if within(at!(COPY_AVX_START), at!(COPY_AVX_END)) {
        Some(at!(BYTES_AVX))
    } else if within(at!(COPY_SSE_START), at!(COPY_SSE_END)) {
        Some(at!(BYTES))
    } else if ip == at!(BYTES_LOAD) {
        Some(at!(SOURCE_FAULT))
    } else if ip == at!(BYTES_STORE) || ip == at!(ZERO_BYTES_STORE) {
        Some(at!(DESTINATION_FAULT))
    } else if within(at!(ZERO_AVX_START), at!(ZERO_AVX_END)) {
        Some(at!(ZERO_BYTES_AVX))
    } else if within(at!(ZERO_SSE_START), at!(ZERO_SSE_END)) {
        Some(at!(ZERO_BYTES))
    } else if ip == at!(TOUCH_READ_AT) || ip == at!(TOUCH_WRITE_AT) {
        Some(at!(TOUCH_FAULT))
    } else {
        None
    }
}

/// The instructions of the wide routines, for the tests.
#[cfg(test)]
pub(super) fn ranges() -> [core::ops::Range<usize>; 4] {
    let at = |label: &'static u8| core::ptr::from_ref(label).addr();
    [
        at(&symbols::COPY_AVX_START)..at(&symbols::COPY_AVX_END),
        at(&symbols::COPY_SSE_START)..at(&symbols::COPY_SSE_END),
        at(&symbols::ZERO_AVX_START)..at(&symbols::ZERO_AVX_END),
        at(&symbols::ZERO_SSE_START)..at(&symbols::ZERO_SSE_END),
    ]
}

/// Which instructions copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Path {
    /// 16 bytes at a time, on every x86-64.
    Sse,
    /// 32 bytes at a time.
    Avx,
}

/// The length from which `rep movsb` is this machine's fastest copy, with bit 0 set if it has AVX;
/// zero until it is first needed.
///
/// Relaxed everywhere: the value is a pure function of the machine, so whoever does not see it yet
/// computes the same.
static TUNING: AtomicUsize = AtomicUsize::new(0);

const AVX: usize = 1;
/// No length at all.
const NEVER: usize = usize::MAX & !AVX;

#[cold]
fn tune() -> usize {
    use core::arch::x86_64::__cpuid_count;
    let erms = __cpuid_count(0, 0).eax >= 7 && __cpuid_count(7, 0).ebx & (1 << 9) != 0;
    let rep = if erms { REP_MOVSB } else { NEVER };
    let avx = if std::is_x86_feature_detected!("avx") {
        AVX
    } else {
        0
    };
    TUNING.store(rep | avx, Ordering::Relaxed);
    rep | avx
}

/// The path for long copies, and the length from which on to use `rep`.
#[inline]
fn tuning() -> (Path, usize) {
    let tuning = match TUNING.load(Ordering::Relaxed) {
        0 => tune(),
        known => known,
    };
    match tuning & AVX {
        0 => (Path::Sse, tuning),
        _ => (Path::Avx, tuning),
    }
}

/// With enhanced `rep movsb`, the length from which on it copies faster than the loops.
const REP_MOVSB: usize = 12 << 10;

/// # Safety
///
/// As [`super::copy`].
#[inline]
pub(super) unsafe fn copy(dst: *mut u8, src: *const u8, len: usize) -> Outcome {
    if len <= 128 {
        // SAFETY: the caller's contract.
        return unsafe { symbols::copy_sse(dst, src, len, NEVER) };
    }
    let (path, rep) = tuning();
    // SAFETY: the caller's contract, and the machine has the path.
    unsafe { copy_by(path, rep, dst, src, len) }
}

/// # Safety
///
/// As [`super::copy`], and `path` is one that the machine has.
#[inline]
pub(super) unsafe fn copy_by(
    path: Path,
    rep: usize,
    dst: *mut u8,
    src: *const u8,
    len: usize,
) -> Outcome {
    match path {
        // SAFETY: the caller's contract.
        Path::Sse => unsafe { symbols::copy_sse(dst, src, len, rep) },
        // SAFETY: the caller's contract.
        Path::Avx => unsafe { symbols::copy_avx(dst, src, len, rep) },
    }
}

/// # Safety
///
/// As [`super::zero`].
#[inline]
pub(super) unsafe fn zero(dst: *mut u8, len: usize) -> Outcome {
    let (path, rep) = tuning();
    // SAFETY: the caller's contract, and the machine has the path.
    unsafe { zero_by(path, rep, dst, len) }
}

/// # Safety
///
/// As [`super::zero`], and `path` is one that the machine has.
#[inline]
pub(super) unsafe fn zero_by(path: Path, rep: usize, dst: *mut u8, len: usize) -> Outcome {
    match path {
        // SAFETY: the caller's contract.
        Path::Sse => unsafe { symbols::zero_sse(dst, 0, len, rep) },
        // SAFETY: the caller's contract.
        Path::Avx => unsafe { symbols::zero_avx(dst, 0, len, rep) },
    }
}

/// Loads the byte at `at`; false when that faults.
///
/// # Safety
///
/// Handlers are installed, or the byte is readable.
pub(super) unsafe fn touch_read(at: *const u8) -> bool {
    // SAFETY: the caller's contract.
    unsafe { symbols::touch_read(at) == 0 }
}

/// Stores the byte at `at` back unchanged, in one atomic operation; false when that faults.
///
/// # Safety
///
/// Handlers are installed, or the byte is writable.
pub(super) unsafe fn touch_write(at: *const u8) -> bool {
    // SAFETY: the caller's contract.
    unsafe { symbols::touch_write(at) == 0 }
}
