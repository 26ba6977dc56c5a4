//! Pins that are registered with the GPU driver: with one that a C compiler makes for the test, and with the machine's.
//!
//! # Safety
//!
//! Functions of libraries are called with the types that `cuda.h` and `fake_cuda.c` give them. Memory is written by the
//! driver while it is pinned for that, and no reference to it exists.
#![allow(unsafe_code)]

#[path = "../../foliocache/tests/common/disk.rs"]
mod disk;
#[path = "../examples/revocable.rs"]
mod revocable;

use disk::{Disk, is_alone, run_alone};
use foliocache::{Errno, File, FolioPin, PinEvent, PinMode};
use foliocache_cuda::{Cause, CudaPin, DriverError, Error};
use std::cell::RefCell;
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::mem::transmute_copy;
use std::process::Command;
use std::ptr;
use std::sync::mpsc;
use std::time::Duration;
use tempfile::TempDir;

const MIB: usize = 1 << 20;
const LEN: usize = 5 * MIB;
const LONG: PinMode = PinMode::WRITE.long_term();
/// The offset that `fake_cuda.c` adds.
const DEVICE_ADDRS: u64 = 1 << 48;

/// A call of the fake driver, and whether the file was pinned at that time.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Call {
    name: String,
    addr: usize,
    len: usize,
    pinned: bool,
}

/// A call's name, its number among those of the name, from 0, and the error that it returns.
type Failure = (&'static str, usize, c_int);

/// A failure, the error's text, its number, and the calls that were made.
type Case<'a> = (Failure, &'a str, Errno, &'a [&'a str]);

/// The behaviour of this thread's fake driver.
#[derive(Default)]
struct Script {
    calls: Vec<Call>,
    failure: Option<Failure>,
    file: Option<File>,
}

thread_local! {
    static SCRIPT: RefCell<Script> = RefCell::default();
}

extern "C" fn hook(name: *const c_char, addr: *const c_void, len: usize) -> c_int {
    // SAFETY: the fake driver's strings.
    let name = unsafe { CStr::from_ptr(name) }.to_str().unwrap().to_owned();
    SCRIPT.with_borrow_mut(|script| {
        let before = script.calls.iter().filter(|call| call.name == name).count();
        let pinned = |file: &File| !file.pinned().unwrap().is_empty();
        let fails = script.failure.filter(|f| (f.0, f.1) == (&*name, before));
        script.calls.push(Call {
            pinned: script.file.as_ref().is_some_and(pinned),
            addr: addr.addr(),
            name,
            len,
        });
        fails.map_or(0, |failure| failure.2)
    })
}

/// A driver that only records its calls.
struct Fake {
    library: CString,
    _dir: TempDir,
}

impl Fake {
    /// `None` where the machine is known to lack a C compiler.
    fn new() -> Option<Fake> {
        if disk::lacks("cc") {
            return None;
        }
        let dir = disk::on_disk();
        let library = dir.path().join("libfake_cuda.so");
        let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fake_cuda.c");
        let compiler = Command::new("cc")
            .args(["-shared", "-fPIC", "-Wall", "-Werror", source, "-o"])
            .arg(&library)
            .output();
        let compiled = compiler.expect("a C compiler");
        let said = String::from_utf8_lossy(&compiled.stderr);
        assert!(compiled.status.success(), "{said}");
        let library = CString::new(library.to_str().unwrap()).unwrap();
        let variable = function(open(&library), c"fake_hook").cast();
        // SAFETY: it has this type, and is not in use yet.
        unsafe { *variable = hook as extern "C" fn(_, _, _) -> _ };
        Some(Fake { library, _dir: dir })
    }

    /// Registers a pin of `file`.
    fn register(&self, file: &File) -> Result<CudaPin, Error> {
        let pin = file.pin(.., LONG).unwrap();
        register_with(&self.library, pin)
    }
}

fn register_with(library: &CStr, pin: FolioPin) -> Result<CudaPin, Error> {
    // SAFETY: see the module's header.
    unsafe { foliocache_cuda::register_with(library, pin, 0) }
}

/// Lets a call of this thread's driver fail from now on; forgets the calls so far.
fn fail(name: &'static str, number: usize, code: c_int) {
    SCRIPT.with_borrow_mut(|script| {
        script.calls.clear();
        script.failure = Some((name, number, code));
    });
}

fn calls() -> Vec<Call> {
    SCRIPT.with_borrow(|script| script.calls.clone())
}

fn names(calls: &[Call]) -> Vec<&str> {
    calls.iter().map(|call| &*call.name).collect()
}

fn open(library: &CStr) -> *mut c_void {
    // SAFETY: see the module's header.
    unsafe { libc::dlopen(library.as_ptr(), libc::RTLD_NOW) }
}

fn function(library: *mut c_void, name: &CStr) -> *mut c_void {
    // SAFETY: the library is open, and stays so.
    let found = unsafe { libc::dlsym(library, name.as_ptr()) };
    assert!(!found.is_null(), "{name:?}");
    found
}

/// A file of several folios, watched by the fake driver of this thread.
fn watched(disk: &Disk) -> File {
    let file = disk.dir.create("arena").unwrap();
    file.write_all_at(&vec![b'c'; LEN], 0).unwrap();
    let watched = disk.dir.open("arena").unwrap();
    SCRIPT.with_borrow_mut(|script| script.file = Some(watched));
    file
}

#[test]
fn parts_are_registered_once_and_unregistered_before_the_pin_ends() {
    let Some(fake) = Fake::new() else { return };
    let disk = Disk::new(32);
    let file = watched(&disk);
    let gpu = fake.register(&file).unwrap();
    let parts: Vec<_> = gpu.pin().parts().collect();
    assert!(parts.len() > 1, "{parts:?}");
    let found: Vec<_> = (gpu.parts().map(|p| (p.device_addr, p.len, p.pos))).collect();
    let expected = (parts.iter()).map(|p| (DEVICE_ADDRS + p.addr.addr() as u64, p.len, p.pos));
    assert_eq!(found, expected.collect::<Vec<_>>());
    assert_eq!(gpu.pin().range(), 0..LEN as u64);

    let call = |name: &str, addr: usize, len: usize| Call {
        name: name.to_owned(),
        addr,
        len,
        pinned: true,
    };
    let mut expected = vec![
        call("cuInit", 0, 0),
        call("cuDeviceGet", 0, 0),
        call("cuDevicePrimaryCtxRetain", 0, 0),
        call("cuCtxPushCurrent", 0, 0),
    ];
    for part in &parts {
        expected.push(call("cuMemHostRegister", part.addr.addr(), part.len));
        expected.push(call("cuMemHostGetDevicePointer", part.addr.addr(), 0));
    }
    expected.push(call("cuCtxPopCurrent", 0, 0));
    assert_eq!(calls(), expected);

    drop(gpu);
    expected.push(call("cuCtxPushCurrent", 0, 0));
    for part in &parts {
        expected.push(call("cuMemHostUnregister", part.addr.addr(), 0));
    }
    expected.push(call("cuCtxPopCurrent", 0, 0));
    let mut release = call("cuDevicePrimaryCtxRelease", 0, 0);
    // The memory has been freed by now.
    release.pinned = false;
    expected.push(release);
    assert_eq!(calls(), expected);
    assert_eq!(file.pinned().unwrap(), []);
    SCRIPT.take();
}

#[test]
fn a_failed_registration_is_undone_and_named_in_the_error() {
    let Some(fake) = Fake::new() else { return };
    let disk = Disk::new(32);
    let file = watched(&disk);
    let (retain, release) = ("cuDevicePrimaryCtxRetain", "cuDevicePrimaryCtxRelease");
    let (push, pop) = ("cuCtxPushCurrent", "cuCtxPopCurrent");
    let (register, unregister) = ("cuMemHostRegister", "cuMemHostUnregister");
    let address = "cuMemHostGetDevicePointer";
    let begun = ["cuInit", "cuDeviceGet", retain];
    let cases: &[Case] = &[
        (
            ("cuInit", 0, 100),
            "no GPU 0: CUDA_ERROR_NO_DEVICE",
            Errno::ENODEV,
            &["cuInit"],
        ),
        (
            ("cuDeviceGet", 0, 101),
            "no GPU 0: CUDA_ERROR_INVALID_DEVICE",
            Errno::ENODEV,
            &begun[..2],
        ),
        (
            (retain, 0, 2),
            "cuDevicePrimaryCtxRetain: CUDA_ERROR_OUT_OF_MEMORY",
            Errno::ENOMEM,
            &begun,
        ),
        (
            (push, 0, 999),
            "cuCtxPushCurrent: CUDA error 999",
            Errno::EIO,
            &[&begun[..], &[push, release]].concat(),
        ),
        (
            (register, 1, 712),
            "cuMemHostRegister: CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED",
            Errno::EBUSY,
            &[
                &begun[..],
                &[push, register, address, register, pop],
                &[push, unregister, pop, release],
            ]
            .concat(),
        ),
        (
            (address, 0, 1),
            "cuMemHostGetDevicePointer: CUDA error 1",
            Errno::EINVAL,
            &[
                &begun[..],
                &[push, register, address, pop],
                &[push, unregister, pop, release],
            ]
            .concat(),
        ),
    ];
    for &((call, number, code), told, errno, expected) in cases {
        fail(call, number, code);
        let error = fake.register(&file).unwrap_err();
        let text = error.to_string();
        assert_eq!(error.errno(), errno, "{text}");
        for word in [told, "arena", "bytes 0..5242880"] {
            assert!(text.contains(word), "{text}");
        }
        let calls = calls();
        assert_eq!(names(&calls), expected, "{text}");
        let unregistered = calls.iter().filter(|call| call.name == unregister);
        assert!(unregistered.clone().all(|call| call.pinned), "{calls:?}");
        assert_eq!(file.pinned().unwrap(), [], "{text}");
    }
    SCRIPT.take();
}

#[test]
fn short_term_pins_are_not_registered() {
    let Some(fake) = Fake::new() else { return };
    let disk = Disk::new(32);
    let file = watched(&disk);
    let pin = file.pin(.., PinMode::WRITE).unwrap();
    let error = register_with(&fake.library, pin).unwrap_err();
    assert_eq!(error.errno(), Errno::EINVAL);
    assert!(error.to_string().contains("short-term"), "{error}");
    assert!(matches!(error.cause, Cause::ShortTerm));
    assert_eq!(calls(), []);
    assert_eq!(file.pinned().unwrap(), []);
    SCRIPT.take();
}

#[test]
fn memory_that_the_driver_does_not_give_back_stays_pinned() {
    let Some(fake) = Fake::new() else { return };
    let disk = Disk::new(32);
    let file = watched(&disk);
    for (call, number) in [("cuMemHostUnregister", 1), ("cuCtxPushCurrent", 1)] {
        fail(call, number, 999);
        let gpu = fake.register(&file).unwrap();
        let parts = gpu.parts().count();
        drop(gpu);
        let ended = calls();
        let ended = ended.iter().filter(|c| c.name == "cuMemHostUnregister");
        let expected = [parts, 0][usize::from(call == "cuCtxPushCurrent")];
        assert_eq!(ended.count(), expected, "the others are given back");
        assert!(!file.pinned().unwrap().is_empty(), "{call}");
        assert_eq!(file.set_len(0).unwrap_err().errno(), Errno::EBUSY);
    }
    SCRIPT.take();
}

#[test]
fn libraries_that_are_no_driver_are_named() {
    let disk = Disk::new(32);
    let file = watched(&disk);
    for (library, told) in [
        (c"libno_such_driver.so.1", "libno_such_driver.so.1"),
        (c"libc.so.6", "cuInit"),
    ] {
        let pin = file.pin(.., LONG).unwrap();
        let error = register_with(library, pin).unwrap_err();
        assert_eq!(error.errno(), Errno::ENODEV);
        let text = error.to_string();
        assert!(text.contains("no GPU driver"), "{text}");
        assert!(text.contains(told) && text.contains("arena"), "{text}");
        assert_eq!(file.pinned().unwrap(), []);
    }
    SCRIPT.take();
}

/// The driver's functions with which a device writes memory.
fn write_by_device(library: &CStr, gpu: &CudaPin, byte: u8) {
    let library = open(library);
    macro_rules! call {
        ($name:literal($($argument:expr => $ty:ty),*)) => {{
            let found = function(library, $name);
            // SAFETY: see the module's header.
            let typed: unsafe extern "C" fn($($ty),*) -> c_int = unsafe { transmute_copy(&found) };
            // SAFETY: see the module's header.
            assert_eq!(unsafe { typed($($argument),*) }, 0, "{:?}", $name);
        }};
    }
    let (mut device, mut context) = (0, ptr::null_mut());
    call!(c"cuDeviceGet"(&mut device => *mut c_int, 0 => c_int));
    call!(c"cuDevicePrimaryCtxRetain"(&mut context => *mut *mut c_void, device => c_int));
    call!(c"cuCtxPushCurrent_v2"(context => *mut c_void));
    for part in gpu.parts() {
        call!(c"cuMemsetD8_v2"(part.device_addr => u64, byte => u8, part.len => usize));
    }
    call!(c"cuCtxSynchronize"());
    call!(c"cuCtxPopCurrent_v2"(&mut context => *mut *mut c_void));
    call!(c"cuDevicePrimaryCtxRelease_v2"(device => c_int));
}

/// A device's writes are in the file, and in its source after a sync.
fn a_device_writes(disk: &Disk, file: &File, library: &CStr, gpu: CudaPin) {
    assert_eq!(gpu.parts().map(|part| part.len).sum::<usize>(), LEN);
    write_by_device(library, &gpu, b'g');
    let mut read = vec![0; LEN];
    file.read_exact_at(&mut read, 0).unwrap();
    assert!(read.iter().all(|&byte| byte == b'g'));
    assert_eq!(file.set_len(0).unwrap_err().errno(), Errno::EBUSY);
    drop(gpu);
    file.sync_data().unwrap();
    assert!(std::fs::read(disk.in_source("arena")).unwrap() == read);
    file.set_len(0).unwrap();
}

#[test]
fn bytes_written_by_a_gpu_are_in_the_file() {
    let Some(fake) = Fake::new() else { return };
    let disk = Disk::new(32);
    let file = watched(&disk);
    let gpu = fake.register(&file).unwrap();
    a_device_writes(&disk, &file, &fake.library, gpu);
    SCRIPT.take();
}

/// The same with this machine's driver; without one the test says so.
#[test]
fn a_real_gpu_writes_into_the_file_or_its_absence_is_reported() {
    const LIBRARY: &CStr = c"libcuda.so.1";
    let disk = Disk::new(32);
    let file = watched(&disk);
    let pin: FolioPin = file.pin(.., LONG).unwrap();
    let error = match foliocache_cuda::register(pin, 0) {
        Ok(gpu) => return a_device_writes(&disk, &file, LIBRARY, gpu),
        Err(error) => error,
    };
    let text = error.to_string();
    assert_eq!(error.errno(), Errno::ENODEV, "{text}");
    match error.cause {
        Cause::Driver(DriverError::NoDriver(_)) => {
            assert!(open(LIBRARY).is_null(), "it can be loaded: {text}");
            assert!(text.contains("no GPU driver: libcuda.so.1"), "{text}");
        }
        Cause::Driver(DriverError::NoDevice { .. }) => {
            let there = std::fs::exists("/dev/nvidia0").unwrap();
            assert!(!there, "there is one: {text}");
        }
        cause => panic!("{cause}"),
    }
    assert!(text.contains("arena"), "{text}");
    assert_eq!(file.pinned().unwrap(), []);
    file.set_len(0).unwrap();
}

#[test]
fn a_child_of_fork_leaves_the_driver_alone() {
    if disk::lacks("cc") {
        return;
    }
    let said = run_alone("registered_and_forked");
    assert!(said.contains("the child was told"), "{said}");
}

#[test]
fn registered_and_forked() {
    if !is_alone() {
        return;
    }
    let Some(fake) = Fake::new() else { return };
    let disk = Disk::new(32);
    let file = watched(&disk);
    let gpu = fake.register(&file).unwrap();
    let other = file.pin(.., LONG).unwrap();
    let before = calls();
    // SAFETY: the child allocates (which glibc allows), accesses the memory under test, and leaves
    // by `_exit`.
    let pid = unsafe { libc::fork() };
    if pid == 0 {
        // A child that hangs is a failure too.
        // SAFETY: always allowed.
        unsafe { libc::alarm(30) };
        let told = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            assert_eq!(gpu.parts().count(), 0);
            drop(gpu);
            let error = register_with(&fake.library, other).unwrap_err();
            assert_eq!(error.errno(), Errno::ECHILD, "{error}");
            assert_eq!(calls(), before, "nothing is told to the driver");
        }));
        // SAFETY: always allowed.
        unsafe { libc::_exit(i32::from(told.is_err())) };
    }
    let mut status = 0;
    // SAFETY: the child is ours.
    assert_eq!(unsafe { libc::waitpid(pid, &mut status, 0) }, pid);
    assert_eq!(status, 0);
    println!("the child was told");
    assert_eq!(calls(), before);
    assert!(gpu.parts().count() > 1);
    drop(gpu);
    drop(other);
    assert_eq!(file.pinned().unwrap(), []);
    SCRIPT.take();
}

/// The example, with the fake driver.
#[test]
fn a_gpu_gives_its_memory_up_while_others_need_it() {
    let Some(fake) = Fake::new() else { return };
    let disk = Disk::new(32);
    let file = disk.dir.create("arena").unwrap();
    let watched = disk.dir.open("arena").unwrap();
    SCRIPT.with_borrow_mut(|script| script.file = Some(watched));
    let used = revocable::run(&file, &fake.library).unwrap();
    assert!(
        used.len() > 1 && used.is_sorted_by(|a, b| a > b),
        "{used:?}"
    );
    assert_eq!(file.len(), revocable::LEN >> revocable::CUTS);
    assert_eq!(file.pinned().unwrap(), []);
    let calls = calls();
    let named = |name| names(&calls).iter().filter(|call| **call == name).count();
    assert_eq!(named("cuMemHostRegister"), named("cuMemHostUnregister"));
    let unregistered = calls.iter().filter(|c| c.name == "cuMemHostUnregister");
    assert!(unregistered.into_iter().all(|call| call.pinned));
    SCRIPT.take();
}

/// A registration that is not given up in time keeps its memory.
#[test]
fn a_registration_that_is_not_given_up_stays() {
    let Some(fake) = Fake::new() else { return };
    let source = disk::on_disk();
    let cache = foliocache::Cache::builder().memory("32M");
    let cache = cache.pin_wait(Duration::from_millis(20)).build().unwrap();
    let dir = cache.directory(source.path()).unwrap();
    let file = dir.create("arena").unwrap();
    file.set_len(LEN as u64).unwrap();
    let (tell, events) = mpsc::channel();
    let callback = move |event| _ = tell.send(event);
    let pin = file.pin_revocable(.., PinMode::WRITE, callback).unwrap();
    let gpu = register_with(&fake.library, pin).unwrap();
    assert_eq!(file.set_len(0).unwrap_err().errno(), Errno::EBUSY);
    let next = || events.recv_timeout(Duration::from_secs(60)).unwrap();
    assert!(matches!(next(), PinEvent::Revoke { .. }));
    assert_eq!(next(), PinEvent::MayPin);
    write_by_device(&fake.library, &gpu, b'g');
    drop(gpu);
    file.set_len(1).unwrap();
    let mut byte = [0];
    file.read_exact_at(&mut byte, 0).unwrap();
    assert_eq!(byte, *b"g");
    SCRIPT.take();
}
