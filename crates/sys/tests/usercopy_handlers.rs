//! Our handlers beside those of other libraries. Every case runs in a separate process: this
//! program, started again for one scenario.
//!
//! # Safety
//!
//! The scenarios fault on purpose; most of them die of it.
#![cfg(target_arch = "x86_64")]
#![allow(unsafe_code)]

mod usercopy_common;

use foliocache_sys::usercopy::{self, CopyFault, Side, install_handlers};
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, Output};
use std::sync::atomic::{AtomicI32, AtomicU64, AtomicUsize, Ordering};
use usercopy_common::{Memory, PAGE};

const VARIABLE: &str = "FOLIOCACHE_USERCOPY_SCENARIO";

/// Starts this program again to run `scenario`.
fn run(scenario: &str) -> Output {
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "the_child", "--nocapture", "--test-threads=1"])
        .env(VARIABLE, scenario)
        .output()
        .unwrap()
}

#[track_caller]
fn assert_survives(scenario: &str) {
    let output = run(scenario);
    assert!(output.status.success(), "{scenario}: {output:?}");
    assert!(
        String::from_utf8_lossy(&output.stdout).contains("scenario done"),
        "{output:?}"
    );
}

#[track_caller]
fn assert_dies_of(signal: i32, scenario: &str) -> Output {
    let output = run(scenario);
    assert_eq!(
        output.status.signal(),
        Some(signal),
        "{scenario}: {output:?}"
    );
    output
}

/// Not a test: the child process that [`run`] starts.
#[test]
fn the_child() {
    let Ok(scenario) = std::env::var(VARIABLE) else {
        return;
    };
    // No core files from those that die.
    let none = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: a valid limit.
    unsafe { libc::setrlimit(libc::RLIMIT_CORE, &none) };
    let (name, argument) = scenario.split_once(' ').unwrap_or((&scenario, ""));
    match name {
        "without" => assert!(copy_fault().is_err()),
        "foreign" => foreign(argument),
        "overflow" => overflow(),
        "sent" => sent(argument),
        "chain" => chain(argument),
        "oneshot" => oneshot(),
        "nested" => previous_handler_copies(),
        "late" => late(),
        "many" => many(),
        other => panic!("no scenario {other}"),
    }
    println!("scenario done");
}

fn copy_fault() -> Result<(), CopyFault> {
    let memory = Memory::new("w-");
    let mut local = [0u8; 100];
    // SAFETY: with handlers any source will do; without, dying is the point.
    unsafe { usercopy::copy(local.as_mut_ptr(), memory.at(PAGE - 60), 100) }
}

/// An access that is none of ours.
fn touch(address: *mut u8) {
    // SAFETY: none; the fault is the point.
    unsafe { address.write_volatile(1) };
}

fn action(handler: usize, flags: i32) -> libc::sigaction {
    // SAFETY: all fields are integers, and zero is a valid action.
    let mut action: libc::sigaction = unsafe { core::mem::zeroed() };
    action.sa_sigaction = handler;
    action.sa_flags = flags;
    action
}

fn set(signal: i32, action: &libc::sigaction) -> libc::sigaction {
    let mut old = self::action(libc::SIG_DFL, 0);
    // SAFETY: valid actions.
    assert_eq!(unsafe { libc::sigaction(signal, action, &mut old) }, 0);
    old
}

fn foreign(argument: &str) {
    for signal in [libc::SIGSEGV, libc::SIGBUS] {
        match argument.split(' ').next_back().unwrap() {
            "default" => drop(set(signal, &action(libc::SIG_DFL, 0))),
            "ignored" => drop(set(signal, &action(libc::SIG_IGN, 0))),
            "rust" => {}
            other => panic!("{other}"),
        }
    }
    install_handlers().unwrap();
    assert!(copy_fault().is_err());
    if argument.starts_with("bus") {
        touch(Memory::past_the_end_of_a_file().at(PAGE));
    } else {
        touch(Memory::new("-").at(5));
    }
}

#[test]
fn a_foreign_fault_dies_of_its_signal() {
    for before in ["default", "ignored", "rust"] {
        assert_dies_of(libc::SIGSEGV, &format!("foreign segv {before}"));
        assert_dies_of(libc::SIGBUS, &format!("foreign bus {before}"));
    }
}

/// Without handlers a bad pointer behaves as with memcpy. (Also the proof that the other tests pass
/// because of the handlers.)
#[test]
fn without_handlers_a_bad_pointer_kills() {
    assert_dies_of(libc::SIGSEGV, "without");
}

fn overflow() {
    install_handlers().unwrap();
    #[allow(unconditional_recursion)]
    fn deeper(depth: &mut [u8; 512]) -> u8 {
        let mut more = std::hint::black_box([depth[0]; 512]);
        deeper(&mut more) + more[511]
    }
    let thread = std::thread::spawn(|| deeper(&mut [1; 512]));
    println!("{:?}", thread.join().is_ok());
}

/// Rust's own message for a stack overflow still comes.
#[test]
fn a_stack_overflow_is_still_reported() {
    let output = assert_dies_of(libc::SIGABRT, "overflow");
    let message = String::from_utf8_lossy(&output.stderr);
    assert!(message.contains("overflowed its stack"), "{message}");
}

fn sent(argument: &str) {
    let before = if argument == "ignored" {
        libc::SIG_IGN
    } else {
        libc::SIG_DFL
    };
    set(libc::SIGSEGV, &action(before, 0));
    install_handlers().unwrap();
    let ourselves = std::process::id() as libc::pid_t;
    // SAFETY: a signal to ourselves.
    unsafe { libc::kill(ourselves, libc::SIGSEGV) };
    // Another thread may get it.
    std::thread::sleep(std::time::Duration::from_millis(200));
    assert!(copy_fault().is_err());
}

#[test]
fn a_signal_that_was_sent_is_passed_on() {
    assert_survives("sent ignored");
    assert_dies_of(libc::SIGSEGV, "sent default");
}

static SEEN: AtomicUsize = AtomicUsize::new(0);
static ADDRESS: AtomicUsize = AtomicUsize::new(0);
static MASK: AtomicU64 = AtomicU64::new(0);
static NUMBER: AtomicI32 = AtomicI32::new(0);
static PAGE_AT: AtomicUsize = AtomicUsize::new(0);

fn errno() -> &'static core::cell::Cell<i32> {
    // SAFETY: always allowed.
    let errno = unsafe { libc::__errno_location() };
    // SAFETY: this thread's own, for as long as the thread runs; the scenarios do not pass it on.
    unsafe { &*errno.cast() }
}

fn note(signal: i32) {
    SEEN.fetch_add(1, Ordering::Relaxed);
    NUMBER.store(signal, Ordering::Relaxed);
    let mut mask = 0u64;
    // SAFETY: a query with room for the kernel's set.
    let rc = unsafe {
        let none = core::ptr::null::<u64>();
        libc::syscall(
            libc::SYS_rt_sigprocmask,
            libc::SIG_BLOCK,
            none,
            &raw mut mask,
            8usize,
        )
    };
    assert_eq!(rc, 0);
    MASK.store(mask, Ordering::Relaxed);
    // Make the page accessible, so that the access goes on.
    let page = core::ptr::without_provenance_mut(PAGE_AT.load(Ordering::Relaxed));
    let prot = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: a page of the scenario's.
    unsafe { libc::mprotect(page, PAGE, prot) };
    // As a careless handler would.
    errno().set(77);
}

extern "C" fn short_form(signal: i32) {
    note(signal);
}

extern "C" fn long_form(signal: i32, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    assert!(!context.is_null());
    // SAFETY: the kernel's contract, which our handler passes on.
    let info = unsafe { &*info };
    // SAFETY: a signal that has an address.
    let address = unsafe { info.si_addr() };
    ADDRESS.store(address.addr(), Ordering::Relaxed);
    note(signal);
}

fn bit(signal: i32) -> u64 {
    1 << (signal - 1)
}

fn chain(argument: &str) {
    let long = argument.starts_with("long");
    let nodefer = argument.ends_with("nodefer");
    let handler = if long {
        long_form as *const () as usize
    } else {
        short_form as *const () as usize
    };
    let mut flags = if long {
        libc::SA_SIGINFO | libc::SA_ONSTACK
    } else {
        libc::SA_ONSTACK
    };
    flags |= if nodefer { libc::SA_NODEFER } else { 0 };
    let mut previous = action(handler, flags);
    // SAFETY: our own set.
    unsafe { libc::sigaddset(&mut previous.sa_mask, libc::SIGUSR2) };
    set(libc::SIGSEGV, &previous);
    install_handlers().unwrap();
    // A fault of ours is not for them.
    assert_eq!(
        copy_fault(),
        Err(CopyFault {
            left: 40,
            side: Side::Source
        })
    );
    assert_eq!(SEEN.load(Ordering::Relaxed), 0);

    let memory = Memory::new("-");
    PAGE_AT.store(memory.at(0).addr(), Ordering::Relaxed);
    for round in 1..=3 {
        memory.protect(0, '-');
        errno().set(1234);
        touch(memory.at(17));
        assert_eq!(errno().get(), 1234);
        assert_eq!(SEEN.load(Ordering::Relaxed), round);
        assert_eq!(NUMBER.load(Ordering::Relaxed), libc::SIGSEGV);
        if long {
            assert_eq!(ADDRESS.load(Ordering::Relaxed), memory.at(17).addr());
        }
        let mask = MASK.load(Ordering::Relaxed);
        assert_ne!(mask & bit(libc::SIGUSR2), 0, "its sa_mask is blocked");
        assert_eq!(mask & bit(libc::SIGUSR1), 0, "other signals are not");
        assert_eq!(
            mask & bit(libc::SIGSEGV) == 0,
            nodefer,
            "nor itself with SA_NODEFER"
        );
    }
    assert_eq!(
        copy_fault(),
        Err(CopyFault {
            left: 40,
            side: Side::Source
        })
    );
    assert_eq!(SEEN.load(Ordering::Relaxed), 3);
}

#[test]
fn a_handler_from_before_sees_foreign_faults_only() {
    for form in ["short", "long", "short nodefer", "long nodefer"] {
        assert_survives(&format!("chain {form}"));
    }
}

/// SA_RESETHAND: the handler from before wants one signal, the second meets the default.
fn oneshot() {
    let handler = short_form as *const () as usize;
    set(libc::SIGSEGV, &action(handler, libc::SA_RESETHAND));
    install_handlers().unwrap();
    let memory = Memory::new("-");
    PAGE_AT.store(memory.at(0).addr(), Ordering::Relaxed);
    touch(memory.at(1));
    assert!(copy_fault().is_err());
    memory.protect(0, '-');
    println!("once");
    touch(memory.at(1));
}

#[test]
fn a_handler_for_one_signal_gets_one() {
    let output = assert_dies_of(libc::SIGSEGV, "oneshot");
    assert!(String::from_utf8_lossy(&output.stdout).contains("once"));
}

extern "C" fn copying(signal: i32) {
    assert!(copy_fault().is_err());
    note(signal);
}

fn previous_handler_copies() {
    let handler = copying as *const () as usize;
    set(libc::SIGSEGV, &action(handler, libc::SA_NODEFER));
    install_handlers().unwrap();
    // On a stack large enough for two frames and the handler's calls.
    let mut stack = vec![0u8; 256 << 10];
    let large = libc::stack_t {
        ss_sp: stack.as_mut_ptr().cast(),
        ss_flags: 0,
        ss_size: stack.len(),
    };
    // SAFETY: the stack lives as long as the scenario.
    let rc = unsafe { libc::sigaltstack(&large, core::ptr::null_mut()) };
    assert_eq!(rc, 0);
    let memory = Memory::new("-");
    PAGE_AT.store(memory.at(0).addr(), Ordering::Relaxed);
    touch(memory.at(1));
    assert_eq!(SEEN.load(Ordering::Relaxed), 1);
    // SAFETY: disabling takes nothing.
    let mut off: libc::stack_t = unsafe { core::mem::zeroed() };
    off.ss_flags = libc::SS_DISABLE;
    // SAFETY: a valid request.
    let rc = unsafe { libc::sigaltstack(&off, core::ptr::null_mut()) };
    assert_eq!(rc, 0);
}

#[test]
fn a_handler_from_before_may_copy_itself() {
    assert_survives("nested");
}

static OURS: AtomicUsize = AtomicUsize::new(0);

extern "C" fn latecomer(signal: i32, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    SEEN.fetch_add(1, Ordering::Relaxed);
    type Full = extern "C" fn(i32, *mut libc::siginfo_t, *mut libc::c_void);
    // SAFETY: sigaction returned it for a handler with SA_SIGINFO.
    let ours = unsafe { core::mem::transmute::<usize, Full>(OURS.load(Ordering::Relaxed)) };
    ours(signal, info, context);
}

fn late() {
    set(libc::SIGSEGV, &action(libc::SIG_DFL, 0));
    install_handlers().unwrap();
    let flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
    let old = set(
        libc::SIGSEGV,
        &action(latecomer as *const () as usize, flags),
    );
    assert_ne!(old.sa_flags & libc::SA_SIGINFO, 0);
    OURS.store(old.sa_sigaction, Ordering::Relaxed);
    for _ in 0..10 {
        assert_eq!(
            copy_fault(),
            Err(CopyFault {
                left: 40,
                side: Side::Source
            })
        );
    }
    assert!(SEEN.load(Ordering::Relaxed) >= 10);
    // Installing again changes nothing: theirs stays in front.
    install_handlers().unwrap();
    let seen = SEEN.load(Ordering::Relaxed);
    assert!(copy_fault().is_err());
    assert!(SEEN.load(Ordering::Relaxed) > seen);
    println!("and now a foreign fault");
    touch(Memory::new("-").at(0));
}

#[test]
fn a_handler_from_later_may_chain_to_ours() {
    let output = assert_dies_of(libc::SIGSEGV, "late");
    assert!(String::from_utf8_lossy(&output.stdout).contains("and now a foreign fault"));
}

/// Eight threads install at once; ours must not become its own predecessor, which would never end.
fn many() {
    set(libc::SIGSEGV, &action(libc::SIG_DFL, 0));
    let barrier = std::sync::Barrier::new(8);
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                barrier.wait();
                install_handlers().unwrap();
                assert!(usercopy::handlers_installed());
                assert!(copy_fault().is_err());
            });
        }
    });
    println!("all eight");
    touch(Memory::new("-").at(0));
}

#[test]
fn many_threads_install_once() {
    let output = assert_dies_of(libc::SIGSEGV, "many");
    assert!(String::from_utf8_lossy(&output.stdout).contains("all eight"));
}
