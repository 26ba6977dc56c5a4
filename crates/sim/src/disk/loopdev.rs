//! Loop devices: a file as a block device.
//!
//! # Model
//!
//! A device is attached until its last descriptor and its last mount are gone (`LO_FLAGS_AUTOCLEAR`), so a
//! killed test leaves one no longer than its mount. Sectors have 512 bytes. I/O is direct: the loop device keeps
//! nothing in the page cache of its file.
//!
//! # Safety
//!
//! Each request to the kernel is passed the type that it reads, by the kernel's own definitions.
#![allow(unsafe_code)]

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};

use linux_raw_sys::loop_device::{
    LO_FLAGS_AUTOCLEAR, LO_FLAGS_DIRECT_IO, LOOP_CLR_FD, LOOP_CONFIGURE, LOOP_CTL_GET_FREE,
    loop_config,
};
use rustix::io::Errno;
use rustix::ioctl::{Ioctl, IoctlOutput, NoArg, Opcode, Setter, ioctl};

/// Flushes and drops the page cache of a block device.
const BLKFLSBUF: Opcode = 0x1261;

/// How often another process may take the free device that the kernel offered.
const ATTEMPTS: usize = 100;

/// Asks for the number of a free device, which is made if need be.
struct GetFree;

// SAFETY: the request takes no argument and answers with a number, as the implementation says.
unsafe impl Ioctl for GetFree {
    type Output = i32;
    const IS_MUTATING: bool = false;

    fn opcode(&self) -> Opcode {
        LOOP_CTL_GET_FREE
    }

    fn as_ptr(&mut self) -> *mut std::ffi::c_void {
        std::ptr::null_mut()
    }

    unsafe fn output_from_ptr(
        out: IoctlOutput,
        _: *mut std::ffi::c_void,
    ) -> rustix::io::Result<i32> {
        Ok(out)
    }
}

/// An attached loop device.
#[derive(Debug)]
pub(super) struct LoopDevice {
    device: File,
    path: PathBuf,
}

fn open(path: &Path) -> io::Result<File> {
    OpenOptions::new().read(true).write(true).open(path)
}

impl LoopDevice {
    /// Makes a file a block device.
    pub(super) fn attach(backing: &Path) -> io::Result<LoopDevice> {
        let file = open(backing)?;
        let control = open(Path::new("/dev/loop-control"))?;
        for _ in 0..ATTEMPTS {
            // SAFETY: see `GetFree`.
            let number = unsafe { ioctl(&control, GetFree) }?;
            let path = PathBuf::from(format!("/dev/loop{number}"));
            let device = open(&path)?;
            match configure(&device, &file) {
                Ok(()) => return Ok(LoopDevice { device, path }),
                // Another process took it first.
                Err(Errno::BUSY) => continue,
                Err(error) => return Err(error.into()),
            }
        }
        Err(Errno::BUSY.into())
    }

    /// The block device.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Drops the page cache of the device, whose file has other content now.
    pub(super) fn forget(&self) -> io::Result<()> {
        // SAFETY: the request takes no argument.
        let request = unsafe { NoArg::<BLKFLSBUF>::new() };
        // SAFETY: the request takes no argument.
        Ok(unsafe { ioctl(&self.device, request) }?)
    }
}

fn configure(device: &File, file: &File) -> rustix::io::Result<()> {
    // SAFETY: the structure consists of numbers, for all of which zero is valid.
    let mut config: loop_config = unsafe { std::mem::zeroed() };
    config.fd = file.as_raw_fd() as u32;
    config.block_size = 512;
    config.info.lo_flags = LO_FLAGS_AUTOCLEAR as u32 | LO_FLAGS_DIRECT_IO as u32;
    // SAFETY: the request reads a `loop_config`.
    let request = unsafe { Setter::<{ LOOP_CONFIGURE as Opcode }, loop_config>::new(config) };
    // SAFETY: the request reads a `loop_config`.
    unsafe { ioctl(device, request) }
}

/// Detaches the devices whose file lies below `folder`.
pub(super) fn detach_below(folder: &Path) {
    for entry in std::fs::read_dir("/sys/block")
        .into_iter()
        .flatten()
        .flatten()
    {
        let file = std::fs::read_to_string(entry.path().join("loop/backing_file"));
        let ours = file.is_ok_and(|file| Path::new(file.trim_end()).starts_with(folder));
        let Some(device) = ours.then(|| Path::new("/dev").join(entry.file_name())) else {
            continue;
        };
        if let Ok(device) = open(&device) {
            // SAFETY: the request takes no argument.
            let request = unsafe { NoArg::<{ LOOP_CLR_FD as Opcode }>::new() };
            // SAFETY: the request takes no argument. A failure is retried by the next run.
            let _ = unsafe { ioctl(&device, request) };
        }
    }
}
