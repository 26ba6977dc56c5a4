//! A GPU fills a file of the cache again and again, in place, and gives the file's pages up while others need them.
//!
//! ```text
//! revocable
//! ```
//!
//! Another thread halves the file three times. Without the callback it would get `EBUSY` as long as the memory is
//! registered.
//!
//! # Safety
//!
//! The driver's functions have the types that `cuda.h` gives them. The GPU writes to memory only while it is registered:
//! [`Gpu::fill`] waits until its work is done.
#![allow(unsafe_code)]

use foliocache::{Cache, Errno, File, FolioPin, PinEvent, PinMode};
use foliocache_cuda::{CudaPart, CudaPin};
use std::error::Error;
use std::ffi::{CStr, c_int, c_uint, c_void};
use std::mem::transmute_copy;
use std::ptr;
use std::sync::mpsc::{self, Receiver, TryRecvError};
use std::thread;
use std::time::Duration;

/// Bytes of the file.
pub(crate) const LEN: u64 = 4 << 20;

/// Times that the file is halved.
pub(crate) const CUTS: u32 = 3;

#[allow(dead_code, reason = "a test runs the rest")]
fn main() -> Result<(), Box<dyn Error>> {
    let cache = Cache::builder().memory("64M").build()?;
    let file = cache.memfs()?.create("arena")?;
    let used = run(&file, c"libcuda.so.1")?;
    println!("the GPU had these bytes of the file, one after another: {used:?}");
    Ok(())
}

/// Has the first GPU fill `file`, while another thread halves it; returns how long the file was each time that the GPU got it. The
/// driver is loaded from `library`.
pub(crate) fn run(file: &File, library: &CStr) -> Result<Vec<u64>, Box<dyn Error>> {
    file.set_len(LEN)?;
    let gpu = Gpu::new(library)?;
    let other = file.try_clone()?;
    let cuts = thread::spawn(move || -> Result<(), foliocache::Error> {
        for cut in 1..=CUTS {
            thread::sleep(Duration::from_millis(20));
            other.set_len(LEN >> cut)?;
        }
        Ok(())
    });
    let (tell, events) = mpsc::channel();
    let mut used = Vec::new();
    while !cuts.is_finished() {
        // The callback only passes the event on: this thread knows when the GPU is done.
        let tell = tell.clone();
        let callback = move |event| _ = tell.send(event);
        let pin = match file.pin_revocable(.., PinMode::WRITE, callback) {
            // Another operation needs the pages already, or has just cut them off.
            Err(busy) if [Errno::EAGAIN, Errno::EINVAL].contains(&busy.errno()) => {
                thread::sleep(Duration::from_millis(1));
                continue;
            }
            pin => pin?,
        };
        used.push(pin.range().end);
        let memory = register(library, pin)?;
        let revoked = gpu.work(&memory, &events, || cuts.is_finished())?;
        // The GPU is done. This unregisters the memory, then unpins it.
        drop(memory);
        if revoked {
            while events.recv()? != PinEvent::MayPin {}
        }
    }
    cuts.join().expect("no panic")?;
    file.sync_data()?;
    Ok(used)
}

fn register(library: &CStr, pin: FolioPin) -> Result<CudaPin, foliocache_cuda::Error> {
    // SAFETY: see the module's header.
    unsafe { foliocache_cuda::register_with(library, pin, 0) }
}

/// The driver, with the first GPU as this thread's.
struct Gpu {
    library: *mut c_void,
}

/// Calls a function of the driver.
macro_rules! call {
    ($library:expr, $name:literal ($($argument:expr => $ty:ty),*)) => {{
        let found = function($library, $name)?;
        // SAFETY: see the module's header.
        let typed: unsafe extern "C" fn($($ty),*) -> c_int = unsafe { transmute_copy(&found) };
        // SAFETY: see the module's header.
        match unsafe { typed($($argument),*) } {
            0 => {}
            code => return Err(format!("{:?}: CUDA error {code}", $name).into()),
        }
    }};
}

impl Gpu {
    /// Makes the first GPU this thread's, until the process ends.
    fn new(library: &CStr) -> Result<Gpu, Box<dyn Error>> {
        // SAFETY: see the module's header.
        let library = unsafe { libc::dlopen(library.as_ptr(), libc::RTLD_NOW) };
        if library.is_null() {
            return Err("no GPU driver".into());
        }
        let (mut device, mut context) = (0, ptr::null_mut());
        call!(library, c"cuInit"(0 => c_uint));
        call!(library, c"cuDeviceGet"(&mut device => *mut c_int, 0 => c_int));
        call!(library, c"cuDevicePrimaryCtxRetain"(&mut context => *mut *mut c_void, device => c_int));
        call!(library, c"cuCtxPushCurrent_v2"(context => *mut c_void));
        Ok(Gpu { library })
    }

    /// Fills the memory until the holder of the pin is asked to give it up, which is true, or the program is `over`.
    fn work(
        &self,
        memory: &CudaPin,
        events: &Receiver<PinEvent>,
        over: impl Fn() -> bool,
    ) -> Result<bool, Box<dyn Error>> {
        for byte in (0..=u8::MAX).cycle() {
            match events.try_recv() {
                Ok(PinEvent::Revoke { .. }) => return Ok(true),
                // A pin that was kept too long stays.
                Ok(_) | Err(TryRecvError::Empty) => {}
                Err(gone) => return Err(gone.into()),
            }
            if over() {
                break;
            }
            memory.parts().try_for_each(|part| self.fill(part, byte))?;
        }
        Ok(false)
    }

    /// Fills a part, and waits until that is done.
    fn fill(&self, part: CudaPart, byte: u8) -> Result<(), Box<dyn Error>> {
        call!(self.library, c"cuMemsetD8_v2"(part.device_addr => u64, byte => u8, part.len => usize));
        call!(self.library, c"cuCtxSynchronize"());
        Ok(())
    }
}

/// A function of the driver.
fn function(library: *mut c_void, name: &CStr) -> Result<*mut c_void, Box<dyn Error>> {
    // SAFETY: the library is open, and stays so.
    let found = unsafe { libc::dlsym(library, name.as_ptr()) };
    match found.is_null() {
        true => Err(format!("the driver has no {name:?}").into()),
        false => Ok(found),
    }
}
