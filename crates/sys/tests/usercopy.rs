//! The copy in a process with handlers: kinds of faults, threads, signals, stacks.
//!
//! # Safety
//!
//! Handlers are installed before the first copy; memory that is accessible belongs to the test.
#![cfg(target_arch = "x86_64")]
#![allow(unsafe_code)]

mod usercopy_common;

use foliocache_sys::usercopy::{self, CopyFault, Side, install_handlers};
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicUsize, Ordering};
use usercopy_common::{Memory, NOWHERE, PAGE, pattern};

fn copy(dst: *mut u8, src: *const u8, len: usize) -> Result<(), CopyFault> {
    // SAFETY: see the header.
    unsafe { usercopy::copy(dst, src, len) }
}

fn zero(dst: *mut u8, len: usize) -> Result<(), CopyFault> {
    // SAFETY: see the header.
    unsafe { usercopy::zero(dst, len) }
}

fn fault(left: usize, side: Side) -> Result<(), CopyFault> {
    Err(CopyFault { left, side })
}

/// How often to repeat a test of a rare race.
fn rounds(default: usize) -> usize {
    let scale = std::env::var("FOLIOCACHE_STRESS")
        .ok()
        .and_then(|n| n.parse().ok());
    default * scale.unwrap_or(1)
}

#[test]
fn past_the_end_of_a_mapped_file() {
    install_handlers().unwrap();
    let file = Memory::past_the_end_of_a_file();
    let buffer = Memory::new("ww");
    file.fill(0, PAGE, 1);
    buffer.fill(0, 2 * PAGE, 2);
    assert_eq!(
        copy(buffer.at(0), file.at(10), 2 * PAGE - 10),
        fault(PAGE, Side::Source)
    );
    for i in 0..PAGE - 10 {
        assert_eq!(buffer.read(i), pattern(i + 10, 1));
    }
    assert_eq!(buffer.read(PAGE - 10), pattern(PAGE - 10, 2));
    assert_eq!(
        copy(file.at(1), buffer.at(PAGE), PAGE),
        fault(1, Side::Destination)
    );
    for i in 1..PAGE {
        assert_eq!(file.read(i), pattern(i + PAGE - 1, 2));
    }
    assert_eq!(zero(file.at(PAGE - 3), 100), fault(97, Side::Destination));
    assert_eq!(zero(file.at(PAGE), 1), fault(1, Side::Destination));
}

#[test]
fn addresses_that_are_none() {
    install_handlers().unwrap();
    let len = 40 * PAGE;
    let buffer = Memory::new(&"w".repeat(40));
    buffer.fill(0, len, 1);
    for address in NOWHERE {
        let nowhere: *mut u8 = core::ptr::without_provenance_mut(address);
        for len in [1, 2, 8, 16, 17, 64, 65, 129, 300, PAGE, 3 * PAGE, len] {
            assert_eq!(
                copy(buffer.at(0), nowhere, len),
                fault(len, Side::Source),
                "{address:x}"
            );
            let result = copy(nowhere, buffer.at(0), len);
            assert_eq!(result, fault(len, Side::Destination), "{address:x}");
            assert_eq!(
                zero(nowhere, len),
                fault(len, Side::Destination),
                "{address:x}"
            );
        }
    }
    for i in 0..len {
        assert_eq!(buffer.read(i), pattern(i, 1));
    }
}

/// From the last addresses of the lower half into the gap, where a fault has no address at all.
#[test]
fn into_the_gap() {
    install_handlers().unwrap();
    let buffer = Memory::new("w");
    let edge: *mut u8 = core::ptr::without_provenance_mut(0x7fff_ffff_fff0);
    for len in [1, 16, 17, 100, PAGE] {
        assert_eq!(copy(buffer.at(0), edge, len), fault(len, Side::Source));
        assert_eq!(copy(edge, buffer.at(0), len), fault(len, Side::Destination));
    }
}

#[test]
fn a_hole_in_two_megabytes() {
    install_handlers().unwrap();
    let pages = 512;
    let (src, dst) = (
        Memory::new(&"w".repeat(pages)),
        Memory::new(&"w".repeat(pages)),
    );
    src.fill(0, pages * PAGE, 5);
    for hole in [0, 1, 200, 511] {
        for (memory, side) in [(&src, Side::Source), (&dst, Side::Destination)] {
            assert_eq!(zero(dst.at(0), pages * PAGE), Ok(()));
            memory.protect(hole, '-');
            // The misaligned copy ends in the same byte of the memory.
            let skip = 3;
            let result = copy(dst.at(skip), src.at(skip), pages * PAGE - skip);
            let copied = (hole * PAGE).saturating_sub(skip);
            assert_eq!(result, fault(pages * PAGE - skip - copied, side));
            memory.protect(hole, 'w');
            for i in 0..pages * PAGE {
                let wanted = if (skip..skip + copied).contains(&i) {
                    pattern(i, 5)
                } else {
                    0
                };
                assert_eq!(dst.read(i), wanted, "byte {i}, hole {hole}, {side:?}");
            }
        }
    }
    assert_eq!(copy(dst.at(0), src.at(0), pages * PAGE), Ok(()));
    assert_eq!(dst.read(pages * PAGE - 1), pattern(pages * PAGE - 1, 5));
}

#[test]
fn fault_in_answers_with_handlers() {
    install_handlers().unwrap();
    usercopy_common::fault_in_answers();
}

#[test]
fn eight_threads_at_once() {
    install_handlers().unwrap();
    std::thread::scope(|scope| {
        for thread in 0..8 {
            scope.spawn(move || {
                let (src, dst) = (Memory::new("w-"), Memory::new("ww-"));
                src.fill(0, PAGE, thread);
                for round in 0..rounds(1000) {
                    let reach = 1 + (round * 37 + thread) % 2000;
                    let result = copy(dst.at(thread), src.at(PAGE - reach), reach + 50);
                    assert_eq!(result, fault(50, Side::Source));
                    assert_eq!(dst.read(thread + reach - 1), pattern(PAGE - 1, thread));
                    let result = copy(dst.at(2 * PAGE - reach), src.at(0), reach + 50);
                    assert_eq!(result, fault(50, Side::Destination));
                }
            });
        }
    });
}

/// A page that comes and goes while it is copied: every count is one that was true at some time.
#[test]
fn a_page_that_comes_and_goes() {
    install_handlers().unwrap();
    let (src, dst) = (Memory::new("www"), Memory::new("www"));
    src.fill(0, 3 * PAGE, 9);
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                src.protect(1, '-');
                src.protect(1, 'w');
            }
        });
        let mut whole = 0;
        for round in 0..rounds(3000) {
            let skip = round % 64;
            let len = 3 * PAGE - skip;
            let copied = match copy(dst.at(0), src.at(skip), len) {
                Ok(()) => len,
                Err(CopyFault { left, side }) => {
                    assert_eq!(side, Side::Source);
                    len - left
                }
            };
            whole += usize::from(copied == len);
            let in_the_page = (PAGE - skip..2 * PAGE - skip).contains(&copied);
            assert!(copied == len || in_the_page, "{copied} of {len}");
            for i in [0, copied / 2, copied - 1] {
                assert_eq!(dst.read(i), pattern(i + skip, 9));
            }
        }
        stop.store(true, Ordering::Relaxed);
        println!("{whole} copies met no fault");
    });
}

static NESTED: AtomicUsize = AtomicUsize::new(0);
static WRONG: AtomicUsize = AtomicUsize::new(0);
static EDGE: AtomicPtr<u8> = AtomicPtr::new(core::ptr::null_mut());

/// Copies 100 bytes into its own stack, of which 40 exist.
extern "C" fn copy_in_a_handler(_: i32) {
    let mut local = [0u8; 100];
    let src = EDGE.load(Ordering::Relaxed).wrapping_sub(40);
    if copy(local.as_mut_ptr(), src, 100) != fault(60, Side::Source) || local[39] == 0 {
        WRONG.fetch_add(1, Ordering::Relaxed);
    }
    NESTED.fetch_add(1, Ordering::Relaxed);
}

fn handle(signal: i32, flags: i32) {
    // SAFETY: all fields are integers, and zero is a valid action.
    let mut action: libc::sigaction = unsafe { core::mem::zeroed() };
    action.sa_sigaction = copy_in_a_handler as *const () as usize;
    action.sa_flags = flags | libc::SA_RESTART;
    // `NESTED` is counted before a handler has returned. One of the two on top of the other, with a
    // fault in it, would be three frames of the kernel, and Rust's alternate stack has room for two.
    for other in [libc::SIGUSR1, libc::SIGUSR2] {
        // SAFETY: the set is ours.
        unsafe { libc::sigaddset(&mut action.sa_mask, other) };
    }
    // SAFETY: the handler only copies and counts.
    let rc = unsafe { libc::sigaction(signal, &action, core::ptr::null_mut()) };
    assert_eq!(rc, 0);
}

/// Handlers that run in the middle of a copy, or of our own handler, and take faults themselves, once
/// on the ordinary stack and once on Rust's alternate stack.
#[test]
fn nested_in_signal_handlers() {
    install_handlers().unwrap();
    let edge = Memory::new("w-");
    edge.fill(0, PAGE, 4);
    EDGE.store(edge.at(PAGE), Ordering::Relaxed);
    handle(libc::SIGUSR1, 0);
    handle(libc::SIGUSR2, libc::SA_ONSTACK);
    let stop = AtomicBool::new(false);
    let target = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        let worker = scope.spawn(|| {
            // SAFETY: always allowed.
            target.store(unsafe { libc::pthread_self() } as usize, Ordering::Release);
            let (src, dst) = (Memory::new("ww-"), Memory::new("www"));
            src.fill(0, 2 * PAGE, 6);
            let mut round = 0;
            while !stop.load(Ordering::Relaxed) {
                round += 1;
                let skip = round % 4000;
                let len = 3 * PAGE - skip;
                let result = copy(dst.at(0), src.at(skip), len);
                assert_eq!(result, fault(PAGE, Side::Source));
                for i in [0, 1000, 2 * PAGE - skip - 1] {
                    assert_eq!(dst.read(i), pattern(i + skip, 6));
                }
            }
        });
        while target.load(Ordering::Acquire) == 0 {
            std::thread::yield_now();
        }
        let thread = target.load(Ordering::Acquire) as libc::pthread_t;
        for round in 0..rounds(2000) {
            let signal = [libc::SIGUSR1, libc::SIGUSR2][round % 2];
            let seen = NESTED.load(Ordering::Relaxed);
            // SAFETY: the thread lives until `stop`.
            let rc = unsafe { libc::pthread_kill(thread, signal) };
            assert_eq!(rc, 0);
            while NESTED.load(Ordering::Relaxed) == seen && !worker.is_finished() {
                std::thread::yield_now();
            }
        }
        stop.store(true, Ordering::Relaxed);
    });
    assert!(NESTED.load(Ordering::Relaxed) >= rounds(2000));
    assert_eq!(WRONG.load(Ordering::Relaxed), 0);
}

/// The handler leaves room on a small alternate stack: beyond the kernel's own frame it needs less
/// than a kilobyte. It also leaves errno alone.
#[test]
fn stack_and_errno_of_the_handler() {
    install_handlers().unwrap();
    std::thread::spawn(|| {
        const FILL: u8 = 0xa5;
        let mut stack = vec![FILL; 64 << 10];
        let ours = libc::stack_t {
            ss_sp: stack.as_mut_ptr().cast(),
            ss_flags: 0,
            ss_size: stack.len(),
        };
        // SAFETY: zero is a valid value of every field.
        let mut rusts: libc::stack_t = unsafe { core::mem::zeroed() };
        // SAFETY: the stack outlives its use: the old one is put back below.
        let rc = unsafe { libc::sigaltstack(&ours, &mut rusts) };
        assert_eq!(rc, 0);
        assert_eq!(
            rusts.ss_flags & libc::SS_DISABLE,
            0,
            "Rust gives its threads such a stack"
        );
        let edge = Memory::new("w-");
        let mut local = [0u8; 300];
        // SAFETY: this thread's errno.
        let errno = unsafe { libc::__errno_location() };
        // SAFETY: this thread's errno.
        unsafe { errno.write(4321) };
        let result = copy(local.as_mut_ptr(), edge.at(PAGE - 200), 300);
        // SAFETY: this thread's errno.
        assert_eq!(unsafe { errno.read() }, 4321);
        assert_eq!(result, fault(100, Side::Source));
        // SAFETY: Rust's stack is still there.
        let rc = unsafe { libc::sigaltstack(&rusts, core::ptr::null_mut()) };
        assert_eq!(rc, 0);
        let used = stack.len() - stack.iter().take_while(|&&byte| byte == FILL).count();
        // SAFETY: a plain query.
        let frame = unsafe { libc::getauxval(libc::AT_MINSIGSTKSZ) } as usize;
        println!("{used} bytes of stack used; the kernel's frame may need {frame}");
        assert!(used > 0, "ran on the alternate stack");
        assert!(
            used < frame.max(2048) + 1024,
            "{used} bytes, of which the kernel {frame}"
        );
        // And with the handlers that Rust installed.
        assert_eq!(
            copy(local.as_mut_ptr(), edge.at(PAGE), 1),
            fault(1, Side::Source)
        );
    })
    .join()
    .unwrap();
}
