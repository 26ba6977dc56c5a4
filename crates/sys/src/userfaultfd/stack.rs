//! Stacks for code that a signal handler runs: an alternate stack may have 8 KiB, a thread's own 16.
//!
//! # Model
//!
//! A stack is mapped when none is free, and kept for the next call. Without memory for another one, a call waits.
//!
//! # Invariants
//!
//! 1. A stack is in `FREE`, or owned by one value.
//!
//! # Memory ordering
//!
//! The Release exchange that puts a stack into `FREE` pairs with the Acquire swap that takes it: its last use is
//! over. The Relaxed load before is a hint.
//!
//! # Safety
//!
//! The assembly switches to a stack that is not in use, by invariant 1, and back.
#![allow(unsafe_code)]

use crate::Errno;
use crate::page::PAGE_SIZE;
use core::ptr::null_mut;
use core::sync::atomic::{AtomicPtr, Ordering};
use rustix::mm::{MapFlags, MprotectFlags, ProtFlags, mmap_anonymous, mprotect, munmap};

/// Bytes of a stack, with the guard page below it.
const LEN: usize = (256 << 10) + PAGE_SIZE;

/// Starts of the stacks that are kept, or null. Invariant 1.
static FREE: [AtomicPtr<u8>; 64] = [const { AtomicPtr::new(null_mut()) }; 64];

core::arch::global_asm!(
    r#"
.pushsection .text.foliocache_call_on_stack, "ax", @progbits
.globl foliocache_v0_call_on_stack
.hidden foliocache_v0_call_on_stack
.type foliocache_v0_call_on_stack, @function
# (rdi = argument, rsi = function, rdx = end of the stack)
.p2align 4
foliocache_v0_call_on_stack:
    .cfi_startproc
    push rbp
    .cfi_def_cfa_offset 16
    .cfi_offset rbp, -16
    mov rbp, rsp
    .cfi_def_cfa_register rbp
    mov rsp, rdx
    call rsi
    mov rsp, rbp
    pop rbp
    .cfi_def_cfa rsp, 8
    ret
    .cfi_endproc
.popsection
"#
);

unsafe extern "C" {
    #[link_name = "foliocache_v0_call_on_stack"]
    fn call_on_stack(argument: *mut u8, function: unsafe extern "C" fn(*mut u8), end: *mut u8);
}

/// A stack with one owner; it is unmapped when it is dropped.
#[derive(Debug)]
pub(super) struct Stack(*mut u8);

impl Stack {
    /// One that is kept, or a new one. Async-signal-safe.
    pub(super) fn take() -> Stack {
        loop {
            let kept = FREE.iter().find_map(|slot| {
                let full = !slot.load(Ordering::Relaxed).is_null();
                let taken = full.then(|| slot.swap(null_mut(), Ordering::Acquire));
                taken.filter(|start| !start.is_null())
            });
            if let Some(start) = kept {
                return Stack(start);
            }
            match Stack::new() {
                Ok(stack) => return stack,
                Err(_) => rustix::thread::sched_yield(),
            }
        }
    }

    pub(super) fn new() -> Result<Stack, Errno> {
        let access = ProtFlags::READ | ProtFlags::WRITE;
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE | MapFlags::STACK;
        // SAFETY: a new mapping.
        let start = unsafe { mmap_anonymous(null_mut(), LEN, access, flags) }?;
        let stack = Stack(start.cast());
        // SAFETY: its first page, which is not in use.
        unsafe { mprotect(start, PAGE_SIZE, MprotectFlags::empty()) }?;
        Ok(stack)
    }

    /// Keeps it for others, where there is room. Async-signal-safe.
    pub(super) fn give(self) {
        let free = |slot: &AtomicPtr<u8>| {
            slot.load(Ordering::Relaxed).is_null()
                && slot
                    .compare_exchange(null_mut(), self.0, Ordering::Release, Ordering::Relaxed)
                    .is_ok()
        };
        if FREE.iter().any(free) {
            core::mem::forget(self);
        }
    }

    /// Calls a function with the whole of the stack.
    ///
    /// # Safety
    ///
    /// The function may be called with this argument, and does not unwind.
    pub(super) unsafe fn call(&self, argument: *mut u8, function: unsafe extern "C" fn(*mut u8)) {
        // SAFETY: the end is aligned to a page, and the stack unused; the caller's contract for the rest.
        unsafe { call_on_stack(argument, function, self.0.wrapping_add(LEN)) };
    }
}

impl Drop for Stack {
    fn drop(&mut self) {
        // SAFETY: the stack belongs to this value and is not in use.
        let unmapped = unsafe { munmap(self.0.cast(), LEN) };
        debug_assert!(unmapped.is_ok());
    }
}
