//! The instructions of the copy, and what to do when one of them faults.
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
//! A wide access that faults says neither at which byte nor, for an address that is no address at
//! all, on which side. So the first fault only leads to a loop over single bytes, which gets to the
//! very byte; there the faulting *instruction* tells the side. `zero` goes the same way with one side.
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

/// What a routine returns, in `rax` and `rdx`.
#[repr(C)]
pub(super) struct Outcome {
    /// Bytes not copied; zero means that all went well, and then `side` means nothing.
    pub(super) left: usize,
    /// 1 for the source, 2 for the destination.
    pub(super) side: usize,
}

pub(super) const SOURCE: usize = 1;

core::arch::global_asm!(
    r#"
    .pushsection .text.foliocache_usercopy_v0, "ax", @progbits
    .macro FC_LABEL name
        .globl foliocache_uc0_\name
        .hidden foliocache_uc0_\name
        foliocache_uc0_\name:
    .endm
    .macro FC_FUNCTION name
        .globl foliocache_uc0_\name
        .hidden foliocache_uc0_\name
        .type foliocache_uc0_\name, @function
        foliocache_uc0_\name:
    .endm

    # (rdi = destination, rsi = source, rdx = length, rcx = length from which on to use rep movsb)
    .p2align 6
    FC_FUNCTION copy_avx
    .cfi_startproc
    cmp rdx, 128
    jbe .Lfc_copy_small
    lea r8, [rdi + rdx]
    cmp rdx, rcx
    jae .Lfc_copy_rep
    lea r9, [rsi + rdx]
    vmovdqu ymm0, [rsi]
    vmovdqu [rdi], ymm0
    # On to the next multiple of 32 of the destination: 1 to 32 bytes, all just copied.
    mov rax, rdi
    or rax, 31
    inc rax
    sub rax, rdi
    add rsi, rax
    add rdi, rax
    lea rax, [r8 - 128]
    cmp rdi, rax
    jae .Lfc_copy_avx_tail
    .p2align 5
.Lfc_copy_avx_loop:
    vmovdqu ymm0, [rsi]
    vmovdqu ymm1, [rsi + 32]
    vmovdqu ymm2, [rsi + 64]
    vmovdqu ymm3, [rsi + 96]
    vmovdqa [rdi], ymm0
    vmovdqa [rdi + 32], ymm1
    vmovdqa [rdi + 64], ymm2
    vmovdqa [rdi + 96], ymm3
    sub rsi, -128
    sub rdi, -128
    cmp rdi, rax
    jb .Lfc_copy_avx_loop
.Lfc_copy_avx_tail:
    # The last 128 bytes, of which some may be copied already.
    vmovdqu ymm0, [r9 - 128]
    vmovdqu ymm1, [r9 - 96]
    vmovdqu ymm2, [r9 - 64]
    vmovdqu ymm3, [r9 - 32]
    vmovdqu [r8 - 128], ymm0
    vmovdqu [r8 - 96], ymm1
    vmovdqu [r8 - 64], ymm2
    vmovdqu [r8 - 32], ymm3
    vzeroupper
    xor eax, eax
    ret
    FC_LABEL copy_avx_end
    .cfi_endproc

    # The same with 16 bytes at a time. Everything short, and rep movsb, is here.
    .p2align 6
    FC_FUNCTION copy_sse
    .cfi_startproc
    cmp rdx, 128
    ja .Lfc_copy_large
.Lfc_copy_small:
    lea r8, [rdi + rdx]
    cmp rdx, 16
    jb .Lfc_copy_0_15
    cmp rdx, 32
    ja .Lfc_copy_33_128
    movups xmm0, [rsi]
    movups xmm1, [rsi + rdx - 16]
    movups [rdi], xmm0
    movups [rdi + rdx - 16], xmm1
    xor eax, eax
    ret
.Lfc_copy_33_128:
    cmp rdx, 64
    ja .Lfc_copy_65_128
    movups xmm0, [rsi]
    movups xmm1, [rsi + 16]
    movups xmm2, [rsi + rdx - 32]
    movups xmm3, [rsi + rdx - 16]
    movups [rdi], xmm0
    movups [rdi + 16], xmm1
    movups [rdi + rdx - 32], xmm2
    movups [rdi + rdx - 16], xmm3
    xor eax, eax
    ret
.Lfc_copy_65_128:
    movups xmm0, [rsi]
    movups xmm1, [rsi + 16]
    movups xmm2, [rsi + 32]
    movups xmm3, [rsi + 48]
    movups xmm4, [rsi + rdx - 64]
    movups xmm5, [rsi + rdx - 48]
    movups xmm6, [rsi + rdx - 32]
    movups xmm7, [rsi + rdx - 16]
    movups [rdi], xmm0
    movups [rdi + 16], xmm1
    movups [rdi + 32], xmm2
    movups [rdi + 48], xmm3
    movups [rdi + rdx - 64], xmm4
    movups [rdi + rdx - 48], xmm5
    movups [rdi + rdx - 32], xmm6
    movups [rdi + rdx - 16], xmm7
    xor eax, eax
    ret
.Lfc_copy_0_15:
    cmp edx, 8
    jb .Lfc_copy_0_7
    mov rax, [rsi]
    mov rcx, [rsi + rdx - 8]
    mov [rdi], rax
    mov [rdi + rdx - 8], rcx
    xor eax, eax
    ret
.Lfc_copy_0_7:
    cmp edx, 4
    jb .Lfc_copy_0_3
    mov eax, [rsi]
    mov ecx, [rsi + rdx - 4]
    mov [rdi], eax
    mov [rdi + rdx - 4], ecx
    xor eax, eax
    ret
.Lfc_copy_0_3:
    cmp edx, 1
    jb .Lfc_copy_done
    je .Lfc_copy_1
    movzx eax, word ptr [rsi]
    movzx ecx, byte ptr [rsi + rdx - 1]
    mov [rdi], ax
    mov [rdi + rdx - 1], cl
    xor eax, eax
    ret
.Lfc_copy_1:
    movzx eax, byte ptr [rsi]
    mov [rdi], al
.Lfc_copy_done:
    xor eax, eax
    ret
.Lfc_copy_large:
    lea r8, [rdi + rdx]
    cmp rdx, rcx
    jae .Lfc_copy_rep
    lea r9, [rsi + rdx]
    movups xmm0, [rsi]
    movups [rdi], xmm0
    mov rax, rdi
    or rax, 15
    inc rax
    sub rax, rdi
    add rsi, rax
    add rdi, rax
    lea rax, [r8 - 64]
    .p2align 5
.Lfc_copy_sse_loop:
    movups xmm0, [rsi]
    movups xmm1, [rsi + 16]
    movups xmm2, [rsi + 32]
    movups xmm3, [rsi + 48]
    movaps [rdi], xmm0
    movaps [rdi + 16], xmm1
    movaps [rdi + 32], xmm2
    movaps [rdi + 48], xmm3
    add rsi, 64
    add rdi, 64
    cmp rdi, rax
    jb .Lfc_copy_sse_loop
    movups xmm0, [r9 - 64]
    movups xmm1, [r9 - 48]
    movups xmm2, [r9 - 32]
    movups xmm3, [r9 - 16]
    movups [r8 - 64], xmm0
    movups [r8 - 48], xmm1
    movups [r8 - 32], xmm2
    movups [r8 - 16], xmm3
    xor eax, eax
    ret
.Lfc_copy_rep:
    # rep movsb is at its best from a destination that starts a cache line.
    movups xmm0, [rsi]
    movups xmm1, [rsi + 16]
    movups xmm2, [rsi + 32]
    movups xmm3, [rsi + 48]
    movups [rdi], xmm0
    movups [rdi + 16], xmm1
    movups [rdi + 32], xmm2
    movups [rdi + 48], xmm3
    mov rax, rdi
    or rax, 63
    inc rax
    sub rax, rdi
    add rsi, rax
    add rdi, rax
    mov rcx, r8
    sub rcx, rdi
    rep movsb
    xor eax, eax
    ret
    FC_LABEL copy_sse_end
    .cfi_endproc

    # Where a fault in the two above goes on.
    .p2align 4
    FC_FUNCTION bytes_avx
    .cfi_startproc
    vzeroupper
    FC_LABEL bytes
    mov ecx, 256
2:  cmp rdi, r8
    jae 3f
    FC_LABEL bytes_load
    mov al, [rsi]
    FC_LABEL bytes_store
    mov [rdi], al
    inc rsi
    inc rdi
    dec ecx
    jnz 2b
    # Whatever was missing is there now: fast again, with the rest.
    mov rdx, r8
    sub rdx, rdi
    mov rcx, -1
    jmp foliocache_uc0_copy_sse
3:  xor eax, eax
    ret
    FC_LABEL source_fault
    mov rax, r8
    sub rax, rdi
    mov edx, 1
    ret
    FC_LABEL destination_fault
    mov rax, r8
    sub rax, rdi
    mov edx, 2
    ret
    .cfi_endproc

    # (rdi = destination, rdx = length, rcx = length from which on to use rep stosb)
    .p2align 6
    FC_FUNCTION zero_avx
    .cfi_startproc
    cmp rdx, 128
    jbe foliocache_uc0_zero_sse
    cmp rdx, rcx
    jae .Lfc_zero_rep
    lea r8, [rdi + rdx]
    vpxor xmm0, xmm0, xmm0
    vmovdqu [rdi], ymm0
    or rdi, 31
    inc rdi
    lea rax, [r8 - 128]
    cmp rdi, rax
    jae .Lfc_zero_avx_tail
    .p2align 5
.Lfc_zero_avx_loop:
    vmovdqa [rdi], ymm0
    vmovdqa [rdi + 32], ymm0
    vmovdqa [rdi + 64], ymm0
    vmovdqa [rdi + 96], ymm0
    sub rdi, -128
    cmp rdi, rax
    jb .Lfc_zero_avx_loop
.Lfc_zero_avx_tail:
    vmovdqu [r8 - 128], ymm0
    vmovdqu [r8 - 96], ymm0
    vmovdqu [r8 - 64], ymm0
    vmovdqu [r8 - 32], ymm0
    vzeroupper
    xor eax, eax
    ret
    FC_LABEL zero_avx_end
    .cfi_endproc

    .p2align 6
    FC_FUNCTION zero_sse
    .cfi_startproc
    lea r8, [rdi + rdx]
    pxor xmm0, xmm0
    cmp rdx, 16
    jb .Lfc_zero_0_15
    cmp rdx, rcx
    jae .Lfc_zero_rep
    movups [rdi], xmm0
    or rdi, 15
    inc rdi
    lea rax, [r8 - 16]
    cmp rdi, rax
    jae 3f
2:  movaps [rdi], xmm0
    add rdi, 16
    cmp rdi, rax
    jb 2b
3:  movups [r8 - 16], xmm0
    xor eax, eax
    ret
.Lfc_zero_rep:
    lea r8, [rdi + rdx]
    mov rcx, rdx
    xor eax, eax
    rep stosb
    ret
.Lfc_zero_0_15:
    xor eax, eax
    cmp edx, 8
    jb 4f
    mov [rdi], rax
    mov [rdi + rdx - 8], rax
    ret
4:  cmp edx, 4
    jb 5f
    mov [rdi], eax
    mov [rdi + rdx - 4], eax
    ret
5:  cmp edx, 1
    jb 6f
    mov [rdi], al
    mov [rdi + rdx - 1], al
    cmp edx, 3
    jb 6f
    mov [rdi + 1], al
6:  ret
    FC_LABEL zero_sse_end
    .cfi_endproc

    .p2align 4
    FC_FUNCTION zero_bytes_avx
    .cfi_startproc
    vzeroupper
    FC_LABEL zero_bytes
    mov ecx, 256
2:  cmp rdi, r8
    jae 3f
    FC_LABEL zero_bytes_store
    mov byte ptr [rdi], 0
    inc rdi
    dec ecx
    jnz 2b
    mov rdx, r8
    sub rdx, rdi
    mov rcx, -1
    jmp foliocache_uc0_zero_sse
3:  xor eax, eax
    ret
    .cfi_endproc

    # (rdi = address) -> 0, or 1 after a fault
    .p2align 4
    FC_FUNCTION touch_read
    .cfi_startproc
    mov al, [rdi]
    xor eax, eax
    ret
    .cfi_endproc
    .p2align 4
    FC_FUNCTION touch_write
    .cfi_startproc
    lock or byte ptr [rdi], 0
    xor eax, eax
    ret
    FC_LABEL touch_fault
    mov eax, 1
    ret
    .cfi_endproc

    .purgem FC_LABEL
    .purgem FC_FUNCTION
    .popsection
    "#
);

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
        pub(super) fn touch_write(at: *mut u8) -> usize;
    }

    macro_rules! labels {
        ($($name:ident = $symbol:literal,)*) => {
            unsafe extern "C" {
                $(#[link_name = $symbol] pub(super) safe static $name: u8;)*
            }
        };
    }
    labels! {
        COPY_AVX = "foliocache_uc0_copy_avx",
        COPY_AVX_END = "foliocache_uc0_copy_avx_end",
        COPY_SSE = "foliocache_uc0_copy_sse",
        COPY_SSE_END = "foliocache_uc0_copy_sse_end",
        BYTES_AVX = "foliocache_uc0_bytes_avx",
        BYTES = "foliocache_uc0_bytes",
        BYTES_LOAD = "foliocache_uc0_bytes_load",
        BYTES_STORE = "foliocache_uc0_bytes_store",
        SOURCE_FAULT = "foliocache_uc0_source_fault",
        DESTINATION_FAULT = "foliocache_uc0_destination_fault",
        ZERO_AVX = "foliocache_uc0_zero_avx",
        ZERO_AVX_END = "foliocache_uc0_zero_avx_end",
        ZERO_SSE = "foliocache_uc0_zero_sse",
        ZERO_SSE_END = "foliocache_uc0_zero_sse_end",
        ZERO_BYTES_AVX = "foliocache_uc0_zero_bytes_avx",
        ZERO_BYTES = "foliocache_uc0_zero_bytes",
        ZERO_BYTES_STORE = "foliocache_uc0_zero_bytes_store",
        TOUCH_READ = "foliocache_uc0_touch_read",
        TOUCH_WRITE = "foliocache_uc0_touch_write",
        TOUCH_FAULT = "foliocache_uc0_touch_fault",
    }
}

/// Where to go on after a fault at instruction `ip`, or `None` when the instruction is not ours.
///
/// Async-signal-safe: compares addresses, nothing else.
pub(super) fn fixup(ip: usize) -> Option<usize> {
    macro_rules! at {
        ($label:ident) => {
            (&raw const symbols::$label).addr()
        };
    }
    let within = |start: usize, end: usize| ip.wrapping_sub(start) < end - start;
    if within(at!(COPY_AVX), at!(COPY_AVX_END)) {
        Some(at!(BYTES_AVX))
    } else if within(at!(COPY_SSE), at!(COPY_SSE_END)) {
        Some(at!(BYTES))
    } else if ip == at!(BYTES_LOAD) {
        Some(at!(SOURCE_FAULT))
    } else if ip == at!(BYTES_STORE) || ip == at!(ZERO_BYTES_STORE) {
        Some(at!(DESTINATION_FAULT))
    } else if within(at!(ZERO_AVX), at!(ZERO_AVX_END)) {
        Some(at!(ZERO_BYTES_AVX))
    } else if within(at!(ZERO_SSE), at!(ZERO_SSE_END)) {
        Some(at!(ZERO_BYTES))
    } else if ip == at!(TOUCH_READ) || ip == at!(TOUCH_WRITE) {
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
        at(&symbols::COPY_AVX)..at(&symbols::COPY_AVX_END),
        at(&symbols::COPY_SSE)..at(&symbols::COPY_SSE_END),
        at(&symbols::ZERO_AVX)..at(&symbols::ZERO_AVX_END),
        at(&symbols::ZERO_SSE)..at(&symbols::ZERO_SSE_END),
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

/// The path of this machine and the lengths from which on `rep movsb` and `rep stosb` take over,
/// packed: bit 0 known, bit 1 AVX, bits 8 to 31 the length for `movsb` and 32 to 55 for `stosb`, in
/// units of 64 bytes (all ones: never).
///
/// Relaxed everywhere: the value is a pure function of the machine, so whoever does not see it yet
/// computes the same.
static TUNING: AtomicUsize = AtomicUsize::new(0);

const KNOWN: usize = 1;
const AVX: usize = 2;
const NEVER: usize = (1 << 24) - 1;

fn from_tuning(tuning: usize, shift: u32) -> usize {
    match tuning >> shift & NEVER {
        NEVER => usize::MAX,
        units => units * 64,
    }
}

#[cold]
fn tune() -> usize {
    use core::arch::x86_64::__cpuid_count;
    let erms = __cpuid_count(0, 0).eax >= 7 && __cpuid_count(7, 0).ebx & (1 << 9) != 0;
    let (movsb, stosb) = if erms {
        (REP_MOVSB / 64, REP_STOSB / 64)
    } else {
        (NEVER, NEVER)
    };
    let avx = if std::is_x86_feature_detected!("avx") {
        AVX
    } else {
        0
    };
    let tuning = KNOWN | avx | movsb << 8 | stosb << 32;
    TUNING.store(tuning, Ordering::Relaxed);
    tuning
}

#[inline]
fn tuning() -> usize {
    match TUNING.load(Ordering::Relaxed) {
        0 => tune(),
        known => known,
    }
}

/// With enhanced `rep movsb`, the length from which on it copies faster than the loops.
pub(super) const REP_MOVSB: usize = 64 << 10;
/// The same for `rep stosb`.
pub(super) const REP_STOSB: usize = 4 << 10;

/// # Safety
///
/// As [`super::copy`].
#[inline]
pub(super) unsafe fn copy(dst: *mut u8, src: *const u8, len: usize) -> Outcome {
    let tuning = tuning();
    let path = if tuning & AVX != 0 {
        Path::Avx
    } else {
        Path::Sse
    };
    // SAFETY: the caller's contract, and the machine has the path.
    unsafe { copy_by(path, from_tuning(tuning, 8), dst, src, len) }
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
    let tuning = tuning();
    let path = if tuning & AVX != 0 {
        Path::Avx
    } else {
        Path::Sse
    };
    // SAFETY: the caller's contract, and the machine has the path.
    unsafe { zero_by(path, from_tuning(tuning, 32), dst, len) }
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

/// Stores the byte at `at` back as it is, in one atomic operation; false when that faults.
///
/// # Safety
///
/// Handlers are installed, or the byte is writable.
pub(super) unsafe fn touch_write(at: *mut u8) -> bool {
    // SAFETY: the caller's contract.
    unsafe { symbols::touch_write(at) == 0 }
}

/// The instruction pointer of a machine context, to be read and replaced.
pub(super) fn instruction_pointer(context: &mut libc::ucontext_t) -> &mut i64 {
    &mut context.uc_mcontext.gregs[libc::REG_RIP as usize]
}
