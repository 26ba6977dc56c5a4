//! The CUDA driver, loaded at run time, and memory that is registered with it.
//!
//! # Model
//!
//! ```text
//!   Registration::new:  open the library ─▶ retain the primary context of a device
//!   register, end:      make the context current ─▶ call the driver for each range ─▶ make it not current
//!   drop:               release the context
//! ```
//!
//! The primary context is the one that the CUDA runtime and its libraries use. Memory is registered for all
//! contexts of the process. The library stays open, because the driver has its own threads.
//!
//! # Invariants
//!
//! 1. The entry points of a [`Driver`] live as long as the process, and have the types that `cuda.h` (11.0 and later) gives
//!    them.
//! 2. Each range in the list of a [`Registration`] is registered.
//! 3. The context of a [`Context`] is retained once for it.
//!
//! # Safety
//!
//! The driver is called by invariant 1, with pointers to variables of ours, and with memory that the callers of
//! [`Registration::register`] answer for.
#![allow(unsafe_code)]

use foliocache::Errno;
use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::fmt;
use std::ptr;

/// The driver's library, by the name that it has everywhere.
pub(crate) const LIBRARY: &CStr = c"libcuda.so.1";

/// Numbers of `cuda.h`.
mod number {
    use super::{c_int, c_uint};

    pub(super) const SUCCESS: c_int = 0;
    pub(super) const INVALID_VALUE: c_int = 1;
    pub(super) const OUT_OF_MEMORY: c_int = 2;
    pub(super) const NO_DEVICE: c_int = 100;
    pub(super) const INVALID_DEVICE: c_int = 101;
    pub(super) const ALREADY_REGISTERED: c_int = 712;
    /// Registered for all contexts.
    pub(super) const PORTABLE: c_uint = 1;
    /// Has addresses for the device.
    pub(super) const DEVICEMAP: c_uint = 2;
}

/// A failure of the GPU driver.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum DriverError {
    /// The driver's library, or a function of it, is missing. With the dynamic loader's message.
    NoDriver(String),
    /// The device does not exist.
    NoDevice {
        /// The number of the device.
        device: i32,
        /// The driver's name of the error.
        name: String,
    },
    /// A call failed.
    Call {
        /// The function of the driver.
        call: &'static str,
        /// The driver's number of the error.
        code: i32,
        /// The driver's name of the error.
        name: String,
    },
}

impl DriverError {
    /// The error number that is nearest.
    pub fn errno(&self) -> Errno {
        match self {
            Self::NoDriver(_) | Self::NoDevice { .. } => Errno::ENODEV,
            Self::Call { code, .. } => match *code {
                number::INVALID_VALUE => Errno::EINVAL,
                number::OUT_OF_MEMORY => Errno::ENOMEM,
                number::ALREADY_REGISTERED => Errno::EBUSY,
                _ => Errno::EIO,
            },
        }
    }
}

impl fmt::Display for DriverError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoDriver(why) => write!(f, "no GPU driver: {why}"),
            Self::NoDevice { device, name } => write!(f, "no GPU {device}: {name}"),
            Self::Call { call, name, .. } => write!(f, "the GPU driver: {call}: {name}"),
        }
    }
}

impl std::error::Error for DriverError {}

macro_rules! driver {
    ($($function:ident = $symbol:literal ($($argument:ty),*);)*) => {
        /// The entry points that are used.
        #[derive(Clone, Copy)]
        struct Driver {
            $($function: unsafe extern "C" fn($($argument),*) -> c_int,)*
        }

        impl Driver {
            fn load(library: &CStr) -> Result<Driver, DriverError> {
                let library = open(library)?;
                Ok(Driver {
                    $($function: {
                        let found = symbol(library, $symbol)?;
                        // SAFETY: invariant 1: the function has this type, and an address is as large as a pointer.
                        unsafe {
                            std::mem::transmute::<*mut c_void, unsafe extern "C" fn($($argument),*) -> c_int>(found)
                        }
                    },)*
                })
            }
        }
    };
}

driver! {
    init = c"cuInit" (c_uint);
    error_name = c"cuGetErrorName" (c_int, *mut *const c_char);
    device_get = c"cuDeviceGet" (*mut c_int, c_int);
    primary_retain = c"cuDevicePrimaryCtxRetain" (*mut *mut c_void, c_int);
    primary_release = c"cuDevicePrimaryCtxRelease_v2" (c_int);
    push_current = c"cuCtxPushCurrent_v2" (*mut c_void);
    pop_current = c"cuCtxPopCurrent_v2" (*mut *mut c_void);
    register = c"cuMemHostRegister_v2" (*mut c_void, usize, c_uint);
    unregister = c"cuMemHostUnregister" (*mut c_void);
    device_pointer = c"cuMemHostGetDevicePointer_v2" (*mut u64, *mut c_void, c_uint);
}

fn open(library: &CStr) -> Result<*mut c_void, DriverError> {
    // SAFETY: a string that ends. Code that runs when it is loaded is the driver's.
    let found = unsafe { libc::dlopen(library.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
    (!found.is_null()).then_some(found).ok_or_else(no_driver)
}

fn symbol(library: *mut c_void, name: &CStr) -> Result<*mut c_void, DriverError> {
    // SAFETY: the library is open, and stays so.
    let found = unsafe { libc::dlsym(library, name.as_ptr()) };
    (!found.is_null()).then_some(found).ok_or_else(no_driver)
}

/// The dynamic loader's message about this thread's last failure.
fn no_driver() -> DriverError {
    // SAFETY: always allowed.
    let said = unsafe { libc::dlerror() };
    DriverError::NoDriver(text(said).unwrap_or_else(|| "it cannot be loaded".to_owned()))
}

/// A copy of a string that C keeps for us until the next call at least.
fn text(string: *const c_char) -> Option<String> {
    // SAFETY: a null pointer is seen to; else the loader and the driver give strings that end.
    let string = (!string.is_null()).then(|| unsafe { CStr::from_ptr(string) });
    string.map(|string| string.to_string_lossy().into_owned())
}

impl Driver {
    fn name(&self, code: c_int) -> String {
        let mut name = ptr::null();
        // SAFETY: see the module's header.
        let known = unsafe { (self.error_name)(code, &mut name) } == number::SUCCESS;
        let name = known.then(|| text(name)).flatten();
        name.unwrap_or_else(|| format!("CUDA error {code}"))
    }

    fn check(&self, call: &'static str, code: c_int) -> Result<(), DriverError> {
        match code {
            number::SUCCESS => Ok(()),
            _ => Err(DriverError::Call {
                call,
                code,
                name: self.name(code),
            }),
        }
    }
}

/// The primary context of a device, retained until the drop.
struct Context {
    driver: Driver,
    device: c_int,
    /// Invariant 3.
    handle: *mut c_void,
}

// SAFETY: the driver's contexts are for all threads, and the handle is only a name for one.
unsafe impl Send for Context {}
// SAFETY: the driver's contexts are for all threads, and the handle is only a name for one.
unsafe impl Sync for Context {}

impl Context {
    fn retain(library: &CStr, device: i32) -> Result<Context, DriverError> {
        let driver = Driver::load(library)?;
        let no_device = |error| match error {
            DriverError::Call { code, name, .. }
                if [number::NO_DEVICE, number::INVALID_DEVICE].contains(&code) =>
            {
                DriverError::NoDevice { device, name }
            }
            error => error,
        };
        let mut found = 0;
        // SAFETY: see the module's header.
        let done = driver.check("cuInit", unsafe { (driver.init)(0) });
        done.map_err(no_device)?;
        // SAFETY: see the module's header.
        let done = unsafe { (driver.device_get)(&mut found, device) };
        driver.check("cuDeviceGet", done).map_err(no_device)?;
        let mut handle = ptr::null_mut();
        // SAFETY: see the module's header; the driver named the device.
        let done = unsafe { (driver.primary_retain)(&mut handle, found) };
        driver.check("cuDevicePrimaryCtxRetain", done)?;
        Ok(Context {
            driver,
            device: found,
            handle,
        })
    }

    /// Makes it this thread's current one for a while.
    fn enter(&self) -> Result<Current<'_>, DriverError> {
        // SAFETY: see the module's header; invariant 3.
        let done = unsafe { (self.driver.push_current)(self.handle) };
        self.driver.check("cuCtxPushCurrent", done)?;
        Ok(Current(&self.driver))
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        // SAFETY: see the module's header; invariant 3. A drop cannot report a failure.
        unsafe { (self.driver.primary_release)(self.device) };
    }
}

/// A context is the thread's current one until the drop.
struct Current<'a>(&'a Driver);

impl Drop for Current<'_> {
    fn drop(&mut self) {
        // SAFETY: see the module's header. A drop cannot report a failure.
        unsafe { (self.0.pop_current)(&mut ptr::null_mut()) };
    }
}

/// Memory that is registered with the driver, for a device's use.
///
/// Dropping it releases the context, and unregisters nothing: see [`Registration::end`].
pub(crate) struct Registration {
    context: Context,
    /// Where each range begins, for us and for the device; invariant 2.
    ranges: Vec<(usize, u64)>,
}

impl Registration {
    /// Loads the driver and retains the primary context of a device; registers nothing yet. Blocks: the first context of
    /// a device takes the driver up to a second.
    pub(crate) fn new(library: &CStr, device: i32) -> Result<Registration, DriverError> {
        Ok(Registration {
            context: Context::retain(library, device)?,
            ranges: Vec::new(),
        })
    }

    /// Registers ranges of memory. After an error some of them may be registered. Blocks in the driver.
    ///
    /// # Safety
    /// Until [`Registration::end`] returns `Ok` the memory stays mapped and is not reused. There is no reference to
    /// it while a device may write to it.
    pub(crate) unsafe fn register(
        &mut self,
        ranges: impl Iterator<Item = (*mut u8, usize)>,
    ) -> Result<(), DriverError> {
        let _current = self.context.enter()?;
        let driver = self.context.driver;
        for (addr, len) in ranges {
            let flags = number::PORTABLE | number::DEVICEMAP;
            // SAFETY: the caller's contract.
            let done = unsafe { (driver.register)(addr.cast(), len, flags) };
            driver.check("cuMemHostRegister", done)?;
            self.ranges.push((addr.expose_provenance(), 0));
            let mut device_addr = 0;
            // SAFETY: see the module's header; invariant 2.
            let done = unsafe { (driver.device_pointer)(&mut device_addr, addr.cast(), 0) };
            driver.check("cuMemHostGetDevicePointer", done)?;
            if let Some(range) = self.ranges.last_mut() {
                range.1 = device_addr;
            }
        }
        Ok(())
    }

    /// Where the device finds each range, in the order in which they were registered.
    pub(crate) fn device_addrs(&self) -> impl Iterator<Item = u64> + '_ {
        self.ranges.iter().map(|range| range.1)
    }

    /// Unregisters everything. Blocks in the driver. After an error the driver may have some of the memory still.
    pub(crate) fn end(&mut self) -> Result<(), DriverError> {
        if self.ranges.is_empty() {
            return Ok(());
        }
        let _current = self.context.enter()?;
        let driver = self.context.driver;
        let mut ended = Ok(());
        for (addr, _) in self.ranges.drain(..) {
            // SAFETY: see the module's header; invariant 2.
            let done = unsafe { (driver.unregister)(ptr::with_exposed_provenance_mut(addr)) };
            ended = ended.and(driver.check("cuMemHostUnregister", done));
        }
        ended
    }
}
