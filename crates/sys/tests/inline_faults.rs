//! Faults that are resolved on the faulting thread. Every case that changes the process, or dies, runs in a
//! separate process: this program, started again for one scenario.
//!
//! # Safety
//!
//! The rig owns its mappings for as long as it lives; bytes in them are accessed as atomics, or by the instructions
//! under test. The scenarios that die do so on purpose.
#![cfg(target_arch = "x86_64")]
#![allow(unsafe_code)]

use foliocache_sys::memory::{PAGE_SIZE, ReservedRange, SharedMemory, WindowAccess, WindowArea};
use foliocache_sys::testing::thread_can_fault;
use foliocache_sys::userfaultfd::{
    Access, Handler, InlineFaults, ResolveFault, Userfaultfd, resolve_inline,
};
use foliocache_sys::{Errno, inside, usercopy};
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::os::unix::process::ExitStatusExt;
use std::panic::AssertUnwindSafe;
use std::process::{Command, Output};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU8, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Barrier, Mutex, OnceLock};
use std::time::{Duration, Instant};

const SC: Ordering = Ordering::SeqCst;

/// A window with the resolver of its faults: the first byte of a page holds its number.
struct Rig {
    range: ReservedRange,
    memory: SharedMemory,
    area: WindowArea,
    faults: Userfaultfd,
    /// Faults, and those of them that were writes.
    calls: AtomicU64,
    writes: AtomicU64,
    /// Pages from here on are not resolved.
    refused: AtomicUsize,
    /// Runs in each call.
    extra: OnceLock<Box<dyn Fn(usize) + Send + Sync>>,
    /// Bytes of stack that a call uses.
    depth: AtomicUsize,
    mask: AtomicU64,
}

/// A rig with its faults resolved.
struct Window {
    rig: Arc<Rig>,
    inline: Option<InlineFaults>,
}

impl std::ops::Deref for Window {
    type Target = Rig;

    fn deref(&self) -> &Rig {
        &self.rig
    }
}

fn window(pages: usize) -> Window {
    let rig = Rig::new(pages);
    let inline =
        resolve_inline(rig.area.addresses(), Box::new(Resolver(Arc::clone(&rig)))).unwrap();
    Window {
        rig,
        inline: Some(inline),
    }
}

fn byte<'a>(start: *mut u8, at: usize) -> &'a AtomicU8 {
    // SAFETY: callers pass a place in a mapping that outlives the byte.
    unsafe { AtomicU8::from_ptr(start.wrapping_add(at)) }
}

impl Rig {
    fn new(pages: usize) -> Arc<Rig> {
        let faults = Userfaultfd::open(Handler::Signal).unwrap();
        let len = pages * PAGE_SIZE;
        let range = ReservedRange::reserve(len).unwrap();
        // SAFETY: the range is private to this test.
        let memory = unsafe { SharedMemory::over(&range, 0..len, false) }.unwrap();
        let area = WindowArea::reserve(len).unwrap();
        let access = WindowAccess::ReadWrite;
        // SAFETY: a new area; the tests are ready for its faults.
        unsafe { area.map(0, &memory, 0..len as u64, access, Some(&faults)) }.unwrap();
        Arc::new(Rig {
            range,
            memory,
            area,
            faults,
            calls: AtomicU64::new(0),
            writes: AtomicU64::new(0),
            refused: AtomicUsize::new(usize::MAX),
            extra: OnceLock::new(),
            depth: AtomicUsize::new(0),
            mask: AtomicU64::new(0),
        })
    }

    /// The first byte of a page, through the window.
    fn at(&self, page: usize) -> &AtomicU8 {
        let start = std::ptr::with_exposed_provenance_mut(self.area.addresses().start);
        byte(start, page * PAGE_SIZE)
    }

    fn direct(&self, page: usize) -> &AtomicU8 {
        byte(self.range.as_ptr(), page * PAGE_SIZE)
    }

    fn page(&self, page: usize) -> Range<usize> {
        let start = self.area.addresses().start + page * PAGE_SIZE;
        start..start + PAGE_SIZE
    }

    fn zap(&self, page: usize) {
        let at = page * PAGE_SIZE;
        self.area.zap(at..at + PAGE_SIZE).unwrap();
    }

    /// Has each call do this first, with the number of its page.
    fn also(&self, extra: impl Fn(usize) + Send + Sync + 'static) {
        assert!(self.extra.set(Box::new(extra)).is_ok());
    }

    fn calls(&self) -> u64 {
        self.calls.load(SC)
    }
}

struct Resolver(Arc<Rig>);

impl std::ops::Deref for Resolver {
    type Target = Rig;

    fn deref(&self) -> &Rig {
        &self.0
    }
}

impl ResolveFault for Resolver {
    fn resolve(&self, address: usize, write: bool) -> bool {
        let page = (address - self.area.addresses().start) / PAGE_SIZE;
        self.calls.fetch_add(1, SC);
        self.writes.fetch_add(u64::from(write), SC);
        self.mask.store(signal_mask(), SC);
        if let Some(extra) = self.extra.get() {
            extra(page);
        }
        use_stack(self.depth.load(SC));
        spoil_registers();
        errno().set(77);
        if page >= self.refused.load(SC) {
            return false;
        }
        // The number of a page never changes, so it may be stored while others read it.
        self.direct(page).store(page as u8, SC);
        let access = match write {
            true => Access::Write,
            false => Access::Read,
        };
        match self.faults.map(self.page(page), access).stopped {
            // It is mapped for reading, or another thread was faster.
            Some(Errno::EEXIST) if write => self.faults.allow_writes(self.page(page)).is_ok(),
            Some(Errno::EEXIST) | None => true,
            Some(_) => false,
        }
    }
}

/// Uses this much stack, a KiB at a time.
fn use_stack(depth: usize) -> u8 {
    let here = std::hint::black_box([1u8; 1024]);
    match depth.checked_sub(1024) {
        Some(rest) => use_stack(rest) + here[rest % 1024],
        None => here[0],
    }
}

/// As any code may that is called.
fn spoil_registers() {
    if std::is_x86_feature_detected!("avx") {
        // SAFETY: the machine has the instruction.
        unsafe { std::arch::asm!("vzeroall", clobber_abi("C")) };
    }
    let downwards = 0x3f80u32;
    // SAFETY: sets a rounding mode; nothing here computes.
    unsafe { std::arch::asm!("ldmxcsr [{}]", in(reg) &downwards) };
}

fn errno() -> &'static std::cell::Cell<i32> {
    // SAFETY: always allowed.
    let errno = unsafe { libc::__errno_location() };
    // SAFETY: this thread's own, for as long as the thread runs; the tests do not pass it on.
    unsafe { &*errno.cast() }
}

fn signal_mask() -> u64 {
    let mut mask = 0u64;
    let (none, old) = (std::ptr::null::<u64>(), &raw mut mask);
    // SAFETY: a query with room for the kernel's set.
    let rc = unsafe { libc::syscall(libc::SYS_rt_sigprocmask, libc::SIG_BLOCK, none, old, 8usize) };
    assert_eq!(rc, 0);
    mask
}

fn bit(signal: i32) -> u64 {
    1 << (signal - 1)
}

#[test]
fn a_touch_is_resolved_where_it_happens() {
    let window = window(16);
    errno().set(1234);
    assert_eq!(window.at(3).load(SC), 3);
    assert_eq!((window.calls(), window.writes.load(SC)), (1, 0));
    assert_eq!(window.at(3).load(SC), 3);
    assert_eq!(window.calls(), 1, "it is mapped");
    window.at(3).store(9, SC);
    assert_eq!((window.calls(), window.writes.load(SC)), (2, 1));
    assert_eq!(window.direct(3).load(SC), 9);
    window.at(4).store(8, SC);
    assert_eq!((window.calls(), window.writes.load(SC)), (3, 2));
    assert_eq!(errno().get(), 1234);
    assert_eq!(window.memory.resident(), Ok(2 * PAGE_SIZE as u64));
}

#[test]
fn registers_are_kept_over_a_fault() {
    let window = window(4);
    let avx = std::is_x86_feature_detected!("avx");
    let (mut low, mut high) = ([0u8; 32], [0u8; 32]);
    let values: [u8; 32] = std::array::from_fn(|i| i as u8 + 1);
    let mut mxcsr = 0u32;
    let mut read: u64;
    // SAFETY: loads and stores of the arguments; the window's page is resolved.
    unsafe {
        std::arch::asm!(
            "test {avx:e}, {avx:e}",
            "jz 2f",
            "vmovdqu ymm0, [{values}]",
            "vmovdqu ymm15, [{values}]",
            "movzx {read:e}, byte ptr [{page}]",
            "vmovdqu [{low}], ymm0",
            "vmovdqu [{high}], ymm15",
            "vzeroupper",
            "jmp 3f",
            "2:",
            "movdqu xmm0, [{values}]",
            "movdqu xmm15, [{values}]",
            "movzx {read:e}, byte ptr [{page}]",
            "movdqu [{low}], xmm0",
            "movdqu [{high}], xmm15",
            "3:",
            "stmxcsr [{mxcsr}]",
            avx = in(reg) u64::from(avx),
            values = in(reg) values.as_ptr(),
            page = in(reg) window.at(2).as_ptr(),
            low = in(reg) low.as_mut_ptr(),
            high = in(reg) high.as_mut_ptr(),
            mxcsr = in(reg) &mut mxcsr,
            read = out(reg) read,
            out("xmm0") _, out("xmm15") _,
        );
    }
    let kept = if avx { 32 } else { 16 };
    assert_eq!((window.calls(), read), (1, 2));
    assert_eq!(low[..kept], values[..kept]);
    assert_eq!(high[..kept], values[..kept]);
    assert_eq!(mxcsr & 0x7f80, 0x1f80, "rounding and masks");
}

/// Runs `body` on a thread of `stack` bytes without Rust's alternate stack, but with one of `alternate` bytes.
fn on_small_thread(stack: usize, alternate: usize, body: &(dyn Fn() + Sync)) {
    struct Job<'a> {
        alternate: usize,
        body: &'a (dyn Fn() + Sync),
    }
    extern "C" fn start(job: *mut libc::c_void) -> *mut libc::c_void {
        // SAFETY: the pointer passed below, whose target lives until the join.
        let job = unsafe { &*job.cast::<Job<'_>>() };
        let mut memory = vec![0u8; job.alternate];
        if job.alternate > 0 {
            let stack = libc::stack_t {
                ss_sp: memory.as_mut_ptr().cast(),
                ss_flags: 0,
                ss_size: job.alternate,
            };
            // SAFETY: the memory lives as long as the thread uses it.
            assert_eq!(unsafe { libc::sigaltstack(&stack, null_mut()) }, 0);
        }
        (job.body)();
        null_mut()
    }
    let job = Job { alternate, body };
    let mut attributes = std::mem::MaybeUninit::<libc::pthread_attr_t>::uninit();
    let attributes = attributes.as_mut_ptr();
    let mut thread = 0;
    let job = (&raw const job).cast_mut().cast();
    // SAFETY: room for attributes.
    assert_eq!(unsafe { libc::pthread_attr_init(attributes) }, 0);
    // SAFETY: initialised just now.
    let set = unsafe { libc::pthread_attr_setstacksize(attributes, stack) };
    assert_eq!(set, 0);
    // SAFETY: the job lives until the thread is joined.
    let made = unsafe { libc::pthread_create(&mut thread, attributes, start, job) };
    assert_eq!(made, 0);
    // SAFETY: joined once.
    assert_eq!(unsafe { libc::pthread_join(thread, null_mut()) }, 0);
    // SAFETY: initialised above.
    unsafe { libc::pthread_attr_destroy(attributes) };
}

#[test]
fn small_stacks_are_enough_for_a_resolver_that_needs_more() {
    let window = window(64);
    // Most of the 256 KiB; debug builds need more than is counted.
    window.depth.store(100 << 10, SC);
    for (round, (stack, alternate)) in [(1 << 20, 8 << 10), (1 << 20, 0), (16 << 10, 0)]
        .into_iter()
        .enumerate()
    {
        let page = 2 * round;
        on_small_thread(stack, alternate, &|| {
            assert_eq!(window.at(page).load(SC), page as u8);
            window.at(page + 1).store(1, SC);
        });
        assert_eq!(window.calls(), 2 * round as u64 + 2);
    }
    assert_eq!(window.at(60).load(SC), 60, "this thread's, Rust's");
}

/// More calls at once than stacks are kept.
#[test]
fn a_hundred_faults_wait_at_once() {
    let window = window(100);
    let all = Barrier::new(100);
    window.also(move |_| {
        all.wait();
    });
    std::thread::scope(|scope| {
        for page in 0..100 {
            let window = &window;
            scope.spawn(move || assert_eq!(window.at(page).load(SC), page as u8));
        }
    });
    assert_eq!(window.calls(), 100);
}

#[test]
fn all_signals_are_blocked_in_a_resolver() {
    let window = window(1);
    window.at(0).load(SC);
    let never = bit(libc::SIGKILL) | bit(libc::SIGSTOP);
    assert_eq!(window.mask.load(SC), !never);
    assert_ne!(signal_mask(), !never);
}

static TOUCHED: AtomicPtr<u8> = AtomicPtr::new(null_mut());
static SEEN: AtomicUsize = AtomicUsize::new(0);

extern "C" fn touches(_: i32) {
    let page = byte(TOUCHED.load(SC), 0);
    SEEN.store(usize::from(page.load(SC)), SC);
}

fn action(handler: usize, flags: i32) -> libc::sigaction {
    // SAFETY: zero is the default action.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
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

#[test]
fn a_signal_handler_may_touch_a_window() {
    let window = window(8);
    for (page, flags) in [(5, 0), (6, libc::SA_ONSTACK)] {
        TOUCHED.store(window.at(page).as_ptr(), SC);
        set(libc::SIGUSR1, &action(touches as *const () as usize, flags));
        // SAFETY: a signal to this thread.
        unsafe { libc::raise(libc::SIGUSR1) };
        assert_eq!(SEEN.load(SC), page);
    }
    assert_eq!(window.calls(), 2);
}

/// The caller of the copy holds locks; faulting in is done without.
#[test]
fn a_copy_ends_at_a_fault_and_faulting_in_resolves_it() {
    let window = window(16);
    let _inside = inside::enter();
    for (page, len) in [(0, 1), (4, 64), (8, 5000)] {
        let mut buffer = vec![0u8; len];
        let source = window.at(page).as_ptr();
        let pages = len.div_ceil(PAGE_SIZE) as u64;
        let calls = window.calls();
        // SAFETY: the source is in the window, and the buffer as long.
        let copy =
            |buffer: &mut Vec<u8>| unsafe { usercopy::copy(buffer.as_mut_ptr(), source, len) };
        assert_eq!(copy(&mut buffer).map_err(|fault| fault.left), Err(len));
        assert_eq!(window.calls(), calls, "not while locks may be held");
        assert_eq!(usercopy::fault_in_readable(source, len), 0);
        assert_eq!(window.calls(), calls + pages);
        assert_eq!((copy(&mut buffer), buffer[0]), (Ok(()), page as u8));
        let writes = window.writes.load(SC);
        // SAFETY: `source` is a window of the rig, and a fault there is an error.
        let zeroed = unsafe { usercopy::zero(source, len) };
        assert_eq!(zeroed.map_err(|fault| fault.left), Err(len), "read-only");
        assert_eq!(usercopy::fault_in_writable(source, len), 0);
        assert_eq!(window.writes.load(SC), writes + pages);
        // SAFETY: `source` is a window of the rig, and a fault there is an error.
        assert_eq!(unsafe { usercopy::zero(source, len) }, Ok(()));
    }
    window.refused.store(12, SC);
    let calls = window.calls();
    assert_eq!(usercopy::fault_in_readable(window.at(12).as_ptr(), 9), 9);
    assert_eq!(window.calls(), calls + 1, "asked, and refused");
}

#[test]
fn a_removal_waits_for_the_call_under_way() {
    let mut window = window(4);
    let (entered, over) = (Arc::new(Barrier::new(2)), Arc::new(AtomicBool::new(false)));
    window.also({
        let (entered, over) = (Arc::clone(&entered), Arc::clone(&over));
        move |_| {
            entered.wait();
            std::thread::sleep(Duration::from_millis(100));
            over.store(true, SC);
        }
    });
    let inline = window.inline.take();
    std::thread::scope(|scope| {
        scope.spawn(|| assert_eq!(window.at(1).load(SC), 1));
        entered.wait();
        assert!(!over.load(SC));
        drop(inline);
        assert!(over.load(SC));
    });
    assert_eq!(Arc::strong_count(&window.rig), 1, "the resolver is let go");
}

/// The last user of a cache may be a fault.
#[test]
fn a_removal_by_the_resolver_itself_does_not_wait_for_it() {
    let mut window = window(4);
    let inline = Mutex::new(window.inline.take());
    window.also(move |_| drop(inline.lock().unwrap().take()));
    assert_eq!(window.at(1).load(SC), 1);
    assert_eq!(window.calls(), 1);
    assert_eq!(Arc::strong_count(&window.rig), 1);
}

#[test]
fn threads_fault_at_once_at_random_pages() {
    const PAGES: usize = 200;
    let window = window(PAGES);
    let until = |calls| window.calls() < calls;
    std::thread::scope(|scope| {
        for seed in 0..8u64 {
            let window = &window;
            scope.spawn(move || {
                let mut random = seed * 2 + 1;
                while until(100_000) {
                    random = random
                        .wrapping_mul(6_364_136_223_846_793_005)
                        .wrapping_add(1);
                    let page = (random >> 33) as usize % PAGES;
                    match random >> 62 {
                        0 => window.at(page).store(page as u8, SC),
                        1 => window.at(page).store(page as u8, Ordering::Relaxed),
                        _ => assert_eq!(window.at(page).load(SC), page as u8),
                    }
                    window.zap(page);
                }
            });
        }
        // Other areas come and go meanwhile.
        scope.spawn(|| {
            while until(100_000) {
                let other = self::window(2);
                assert_eq!(other.at(1).load(SC), 1);
                assert_eq!(other.calls(), 1);
            }
        });
    });
}

#[test]
fn a_thread_that_blocks_sigbus_says_so() {
    std::thread::spawn(|| {
        assert!(thread_can_fault());
        block_sigbus();
        assert!(!thread_can_fault());
    })
    .join()
    .unwrap();
}

fn block_sigbus() {
    let mask = bit(libc::SIGBUS);
    let (new, none) = (&raw const mask, null_mut::<u64>());
    // SAFETY: a set of the kernel's size.
    let rc = unsafe { libc::syscall(libc::SYS_rt_sigprocmask, libc::SIG_BLOCK, new, none, 8usize) };
    assert_eq!(rc, 0);
}

const VARIABLE: &str = "FOLIOCACHE_INLINE_SCENARIO";

/// Starts this program again to run `scenario`.
fn run(scenario: &str) -> Output {
    Command::new(std::env::current_exe().unwrap())
        .args([
            "--exact",
            "the_inline_child",
            "--nocapture",
            "--test-threads=1",
        ])
        .env(VARIABLE, scenario)
        .output()
        .unwrap()
}

#[track_caller]
fn assert_survives(scenario: &str) {
    let output = run(scenario);
    let done = String::from_utf8_lossy(&output.stdout).contains("scenario done");
    assert!(output.status.success() && done, "{scenario}: {output:?}");
}

/// Dies of the signal, with the message on its standard error.
#[track_caller]
fn assert_dies_of(signal: i32, message: &str, scenario: &str) {
    let output = run(scenario);
    assert_eq!(
        output.status.signal(),
        Some(signal),
        "{scenario}: {output:?}"
    );
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(stderr.contains(message), "{scenario}: {stderr}");
    let done = String::from_utf8_lossy(&output.stdout).contains("scenario done");
    assert!(!done, "{scenario}");
}

/// Not a test: the child process that [`run`] starts.
#[test]
fn the_inline_child() {
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
    match &scenario[..] {
        "host before" => host_before(),
        "host after" => host_after(),
        "refused" => refused(),
        "panic" => panics(),
        "blocked" => blocked(),
        "inside" => touched_inside(),
        "fork" => forked(),
        "all areas" => all_areas(),
        "no memory" => no_memory(),
        other => panic!("no scenario {other}"),
    }
    println!("scenario done");
}

/// Two pages of a file that has one.
fn past_the_end_of_a_file() -> *mut u8 {
    let file = tempfile::tempfile().unwrap();
    file.set_len(PAGE_SIZE as u64).unwrap();
    let (prot, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED);
    // SAFETY: a new mapping.
    let start = unsafe { libc::mmap(null_mut(), 2 * PAGE_SIZE, prot, flags, file.as_raw_fd(), 0) };
    assert_ne!(start, libc::MAP_FAILED);
    start.cast::<u8>().wrapping_add(PAGE_SIZE)
}

static ADDRESS: AtomicUsize = AtomicUsize::new(0);
static HANDLED: AtomicUsize = AtomicUsize::new(0);
static OURS: AtomicUsize = AtomicUsize::new(0);

fn address_of(info: *mut libc::siginfo_t) -> usize {
    // SAFETY: the kernel's contract, which our handler passes on.
    let info = unsafe { &*info };
    // SAFETY: a signal that has an address.
    unsafe { info.si_addr() }.addr()
}

/// A host's handler, which makes the page accessible.
extern "C" fn host(_: i32, info: *mut libc::siginfo_t, _: *mut libc::c_void) {
    HANDLED.fetch_add(1, SC);
    ADDRESS.store(address_of(info), SC);
    let page = std::ptr::without_provenance_mut(address_of(info) & !(PAGE_SIZE - 1));
    let prot = libc::PROT_READ | libc::PROT_WRITE;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED;
    // SAFETY: a page of the scenario's.
    unsafe { libc::mmap(page, PAGE_SIZE, prot, flags, -1, 0) };
}

fn touch(place: *mut u8) -> u8 {
    byte(place, 0).load(SC)
}

fn host_before() {
    let flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
    set(libc::SIGBUS, &action(host as *const () as usize, flags));
    let window = window(8);
    assert_eq!(window.at(3).load(SC), 3);
    assert_eq!(HANDLED.load(SC), 0, "ours is not for them");
    let place = past_the_end_of_a_file();
    assert_eq!(touch(place), 0);
    assert_eq!((HANDLED.load(SC), ADDRESS.load(SC)), (1, place.addr()));
    assert_eq!(window.at(4).load(SC), 4);
    assert_eq!((HANDLED.load(SC), window.calls()), (1, 2));
    // Faults that are not resolved go to the previous handler.
    window.refused.store(5, SC);
    assert_eq!(window.at(5).load(SC), 0);
    assert_eq!((HANDLED.load(SC), window.calls()), (2, 3));
}

/// Its own signals end here, the others go on to ours.
extern "C" fn latecomer(signal: i32, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    if address_of(info) == TOUCHED.load(SC).addr() {
        return host(signal, info, context);
    }
    type Full = extern "C" fn(i32, *mut libc::siginfo_t, *mut libc::c_void);
    // SAFETY: sigaction returned it for a handler with SA_SIGINFO.
    let ours = unsafe { std::mem::transmute::<usize, Full>(OURS.load(SC)) };
    ours(signal, info, context);
}

fn host_after() {
    let window = window(8);
    // Blocks no other signal, and runs on the stack of the thread.
    let later = action(latecomer as *const () as usize, libc::SA_SIGINFO);
    OURS.store(set(libc::SIGBUS, &later).sa_sigaction, SC);
    let mask = signal_mask();
    assert_eq!(window.at(3).load(SC), 3);
    let never = bit(libc::SIGKILL) | bit(libc::SIGSTOP);
    assert_eq!(window.mask.load(SC), !never, "blocked nevertheless");
    assert_eq!(signal_mask(), mask);
    TOUCHED.store(past_the_end_of_a_file(), SC);
    assert_eq!(touch(TOUCHED.load(SC)), 0);
    assert_eq!(HANDLED.load(SC), 1);
    assert_eq!(window.at(4).load(SC), 4);
    assert_eq!((HANDLED.load(SC), window.calls()), (1, 2));
}

#[test]
fn handlers_of_the_host_get_their_own_signals() {
    assert_survives("host before");
    assert_survives("host after");
}

fn refused() {
    let window = window(8);
    window.refused.store(2, SC);
    assert_eq!(window.at(1).load(SC), 1);
    println!("and now");
    window.at(2).load(SC);
}

#[test]
fn an_unresolved_fault_kills_the_program_with_sigbus() {
    assert_dies_of(libc::SIGBUS, "", "refused");
}

fn panics() {
    let window = window(8);
    window.also(|page| assert_ne!(page, 2, "the resolver's own words"));
    assert_eq!(window.at(1).load(SC), 1);
    let page = AssertUnwindSafe(window.at(2));
    let touched = std::panic::catch_unwind(move || { page }.load(SC));
    println!("{touched:?}");
}

#[test]
fn a_panic_in_a_resolver_ends_the_process_with_a_message() {
    assert_dies_of(libc::SIGABRT, "the resolver's own words", "panic");
    let message = "foliocache: a panic while the fault of a mapping was resolved";
    assert_dies_of(libc::SIGABRT, message, "panic");
}

fn blocked() {
    let window = window(8);
    assert_eq!(window.at(1).load(SC), 1);
    block_sigbus();
    assert!(!thread_can_fault());
    window.at(2).load(SC);
}

#[test]
fn a_thread_that_blocks_sigbus_dies_of_it() {
    assert_dies_of(libc::SIGBUS, "", "blocked");
}

fn touched_inside() {
    let window = window(8);
    {
        let _inside = inside::enter();
        std::thread::scope(|scope| {
            scope.spawn(|| assert_eq!(window.at(1).load(SC), 1));
        });
    }
    assert_eq!(window.at(2).load(SC), 2);
    let _inside = inside::enter();
    assert_eq!(window.at(2).load(SC), 2, "it is mapped");
    TOUCHED.store(window.at(3).as_ptr(), SC);
    set(libc::SIGUSR1, &action(touches as *const () as usize, 0));
    // SAFETY: a signal to this thread.
    unsafe { libc::raise(libc::SIGUSR1) };
}

#[test]
fn a_handler_that_touches_a_window_inside_a_call_of_the_cache_ends_the_process() {
    let message = "foliocache: a mapping was touched inside a call of the cache";
    assert_dies_of(libc::SIGABRT, message, "inside");
}

/// Runs `child` in a forked child and returns its wait status.
fn in_child(child: impl FnOnce() -> i32) -> i32 {
    // SAFETY: the child calls only functions allowed after `fork`, and leaves by `_exit`.
    match unsafe { libc::fork() } {
        0 => {
            let code = child();
            // SAFETY: always allowed.
            unsafe { libc::_exit(code) }
        }
        pid => {
            let mut status = 0;
            // SAFETY: `status` is ours.
            assert_eq!(unsafe { libc::waitpid(pid, &mut status, 0) }, pid);
            status
        }
    }
}

fn forked() {
    let mut window = window(8);
    window.at(1).store(7, SC);
    for page in [1, 2] {
        let status = in_child(|| {
            window.at(page).store(9, SC);
            0
        });
        assert!(libc::WIFSIGNALED(status), "page {page}: {status}");
        assert_eq!(libc::WTERMSIG(status), libc::SIGSEGV);
    }
    assert_eq!((window.at(1).load(SC), window.direct(1).load(SC)), (7, 7));
    assert_eq!(window.calls(), 1);
    // Other memory of the child's in the same place.
    let other = past_the_end_of_a_file();
    let status = in_child(|| {
        let page = window.at(3).as_ptr();
        let flags = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;
        let (other, page) = (other.cast(), page.cast::<libc::c_void>());
        // SAFETY: a page of the child's, to a hole.
        let moved = unsafe { libc::mremap(other, PAGE_SIZE, PAGE_SIZE, flags, page) };
        if moved != page {
            return 1;
        }
        i32::from(window.at(3).load(SC))
    });
    assert!(libc::WIFSIGNALED(status), "{status}");
    assert_eq!(libc::WTERMSIG(status), libc::SIGBUS, "a plain one");
    // A child that ends the area does not wait for a call of the parent's.
    let entered = Arc::new(Barrier::new(2));
    let (here, over) = (Arc::clone(&entered), Arc::clone(&entered));
    window.also(move |_| {
        here.wait();
        over.wait();
    });
    let inline = window.inline.take();
    std::thread::scope(|scope| {
        scope.spawn(|| assert_eq!(window.at(4).load(SC), 4));
        entered.wait();
        let started = Instant::now();
        let status = in_child(|| {
            // SAFETY: the child's own copy, which it drops once.
            drop(unsafe { std::ptr::read(&inline) });
            0
        });
        assert_eq!(status, 0);
        assert!(started.elapsed() < Duration::from_secs(10));
        entered.wait();
    });
}

#[test]
fn a_forked_child_has_no_windows_and_leaves_the_parents_alone() {
    assert_survives("fork");
}

fn all_areas() {
    let rig = Rig::new(1);
    let one =
        |number: usize| resolve_inline(number..number + 1, Box::new(Resolver(Arc::clone(&rig))));
    assert_eq!(one(usize::MAX - 1).map(drop), Ok(()));
    assert_eq!(
        resolve_inline(5..5, Box::new(Resolver(Arc::clone(&rig)))).err(),
        Some(Errno::EINVAL)
    );
    let mut all = Vec::new();
    while let Ok(area) = one(1 + all.len()) {
        all.push(area);
    }
    assert_eq!(all.len(), 64);
    assert_eq!(one(1).err(), Some(Errno::ENOSPC));
    drop(all);
    assert_eq!(one(1).map(drop), Ok(()));
}

#[test]
fn areas_are_limited_and_their_places_used_again() {
    assert_survives("all areas");
}

/// Without memory for another stack a call waits for one.
fn no_memory() {
    let window = window(64);
    window.also(|_| std::thread::sleep(Duration::from_millis(1)));
    let start = Barrier::new(9);
    std::thread::scope(|scope| {
        for thread in 0..8 {
            let (window, start) = (&window, &start);
            scope.spawn(move || {
                // The allocator maps memory for each thread.
                std::hint::black_box(vec![0u8; 100_000]);
                start.wait();
                start.wait();
                for page in 8 * thread..8 * thread + 8 {
                    assert_eq!(window.at(page).load(SC), page as u8);
                }
            });
        }
        let none = libc::rlimit {
            rlim_cur: 0,
            rlim_max: libc::RLIM_INFINITY,
        };
        start.wait();
        // SAFETY: a valid limit: from now on nothing more is mapped.
        assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_AS, &none) }, 0);
        start.wait();
    });
    assert_eq!(window.calls(), 64);
}

#[test]
fn without_memory_for_a_stack_a_fault_waits_for_one() {
    assert_survives("no memory");
}
