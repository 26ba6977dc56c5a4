//! A recording, failing disk: a block device that real file systems are mounted from.
//!
//! # Model
//!
//! ```text
//!  ext4, XFS ── loop device ── file of a FUSE file system ── server process: log, plan of faults
//! ```
//!
//! - [`Disk::new`] makes a disk with a file system, [`Disk::mount`] mounts it. Every write, flush and discard is logged
//!   with its data.
//! - [`Disk::position`] is the present place in the log. A test notes it when something is acknowledged.
//! - [`Disk::image_at`] is the image that a power cut at a position leaves at least: everything up to the last
//!   flush before it. [`Disk::image_with`] adds a seeded choice of the writes after that flush, whole or torn.
//! - [`Disk::beside`] makes a disk whose first content is an image, and [`Disk::load`] replaces a disk's content by
//!   one. Such a disk records too: the recovery of a file system can be cut like any other run.
//! - [`Disk::faults`] has the plan of faults: the n-th read, write or flush fails, hangs, is torn, late, or a
//!   lie. [`Disk::vanish`] takes the disk away, [`DiskFaults::heal`] brings it back.
//!
//! A separate process serves the disk, see `server`. Needs root, `/dev/fuse`, loop devices and `mkfs`.
//! [`Disk::skip`] says whether `FOLIOCACHE_MISSING` lists one of them; otherwise [`Disk::new`] fails if one is
//! missing.
//!
//! # Order
//!
//! Drop the users of the file system first, then [`Mounted`], then the disk. All of them heal the disk when they
//! are dropped, so that a failed test ends.

mod content;
mod cuts;
mod export;
mod format;
mod leftover;
mod log;
mod loopdev;
mod plan;
mod protocol;
mod server;

use std::ffi::CString;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use foliocache_sync::Mutex;
use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};
use serde::{Deserialize, Serialize};

pub use self::cuts::{Cuts, Kernel, Report, wanted};
pub use self::format::Format;
use self::leftover::Folder;
use self::log::Unflushed;
use self::loopdev::LoopDevice;
pub use self::plan::DiskFaults;
pub(crate) use self::protocol::errno;
use self::protocol::{Base, DiskId, ImageId, Request};
use self::server::Server;

/// A block device of our own. Clones are the same disk.
#[derive(Clone, Debug)]
pub struct Disk(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    id: DiskId,
    format: Option<Format>,
    size: u64,
    seed: u64,
    /// `None` only while this is dropped: its descriptor keeps the file of the FUSE file system open.
    device: Mutex<Option<LoopDevice>>,
    path: PathBuf,
    server: Arc<Server>,
    folder: Folder,
}

/// The content of a disk at some moment.
#[derive(Debug)]
pub struct DiskImage {
    id: ImageId,
    format: Option<Format>,
    size: u64,
    server: Arc<Server>,
}

/// The kind of a log entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum LoggedKind {
    /// Data was written.
    Write,
    /// A range became zeros.
    Zero,
    /// Everything before it was made durable.
    Flush,
    /// A flush or a write that a fault turned into a lie, or a write that a failed flush lost.
    Nothing,
}

/// An entry of the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Logged {
    /// Its kind.
    pub kind: LoggedKind,
    /// Where, in bytes.
    pub pos: u64,
    /// How many bytes.
    pub len: u64,
}

impl Logged {
    fn without_range(kind: LoggedKind) -> Logged {
        let (pos, len) = (0, 0);
        Logged { kind, pos, len }
    }
}

impl Disk {
    /// Whether the machine is known to lack the needs of disks (`FOLIOCACHE_MISSING`). It prints which, and a test
    /// that gets `true` returns.
    pub fn skip() -> bool {
        let missing = std::env::var("FOLIOCACHE_MISSING").unwrap_or_default();
        let needs = ["root", "fuse", "mkfs"];
        let lacks = missing.split(',').find(|name| needs.contains(name));
        if let Some(need) = lacks {
            eprintln!("SKIPPED: there is no {need}");
        }
        lacks.is_some()
    }

    /// A disk with a file system. Faults that are drawn follow from `seed`.
    ///
    /// # Errors
    /// Of the server, the loop device, or `mkfs`.
    pub fn new(format: Format, seed: u64) -> io::Result<Disk> {
        Disk::with_size(format, format.size(), seed)
    }

    /// A disk of `size` bytes, otherwise as [`Disk::new`].
    ///
    /// # Errors
    /// As there.
    pub fn with_size(format: Format, size: u64, seed: u64) -> io::Result<Disk> {
        let folder = Folder::new()?;
        let file = folder.path().join("made");
        format.make(&file, size)?;
        let server = Arc::new(Server::start()?);
        let disk = Disk::create(
            server,
            folder,
            Some(format),
            size,
            seed,
            Base::File(file.clone()),
        );
        let _ = std::fs::remove_file(file);
        disk
    }

    /// A disk of zeros.
    ///
    /// # Errors
    /// Of the server or the loop device.
    pub fn blank(size: u64, seed: u64) -> io::Result<Disk> {
        let server = Arc::new(Server::start()?);
        Disk::create(server, Folder::new()?, None, size, seed, Base::Zeros)
    }

    /// Another disk, served by the same process, that begins as `image`.
    ///
    /// # Errors
    /// Of the loop device.
    pub fn beside(image: &DiskImage, seed: u64) -> io::Result<Disk> {
        let server = Arc::clone(&image.server);
        let base = Base::Image(image.id);
        Disk::create(server, Folder::new()?, image.format, image.size, seed, base)
    }

    fn create(
        server: Arc<Server>,
        folder: Folder,
        format: Option<Format>,
        size: u64,
        seed: u64,
        base: Base,
    ) -> io::Result<Disk> {
        let place = folder.path().join("fuse");
        let request = Request::Create {
            folder: place.clone(),
            size,
            seed,
            base,
        };
        let id = server.ask(&request).map_err(io::Error::other)?;
        let attached = LoopDevice::attach(&place.join(export::NAME));
        let attached = attached.inspect_err(|_| server.call(&Request::End(id)))?;
        Ok(Disk(Arc::new(Inner {
            id,
            format,
            size,
            seed,
            path: attached.path().to_owned(),
            device: Mutex::new(Some(attached)),
            server,
            folder,
        })))
    }

    /// The block device, such as `/dev/loop7`.
    pub fn device(&self) -> &Path {
        &self.0.path
    }

    /// Its size in bytes.
    pub fn size(&self) -> u64 {
        self.0.size
    }

    /// The file system that it was made with.
    pub fn format(&self) -> Option<Format> {
        self.0.format
    }

    /// Replaces the content by `image`; the log begins anew. The disk must not be mounted.
    ///
    /// # Errors
    /// If the page cache of the device cannot be emptied, for the file system on it is still in use.
    ///
    /// # Panics
    /// If the image is of another server.
    pub fn load(&self, image: &DiskImage) -> io::Result<()> {
        assert!(
            Arc::ptr_eq(&self.0.server, &image.server),
            "an image of another server"
        );
        // Dirty data in the cache goes to the old content.
        self.forget()?;
        self.call::<()>(&Request::Load(self.0.id, Base::Image(image.id)));
        self.forget()
    }

    fn forget(&self) -> io::Result<()> {
        self.0
            .device
            .lock()
            .as_ref()
            .map_or(Ok(()), LoopDevice::forget)
    }

    /// Mounts the file system; a disk has one mount at a time.
    ///
    /// # Errors
    /// Of `mount`.
    pub fn mount(&self) -> io::Result<Mounted> {
        self.mount_with(MountFlags::empty(), "")
    }

    /// Mounts with flags, and options of the file system separated by commas.
    ///
    /// # Errors
    /// Of `mount`.
    pub fn mount_with(&self, flags: MountFlags, options: &str) -> io::Result<Mounted> {
        let format = self.0.format.ok_or(io::ErrorKind::InvalidInput)?;
        let options = match options {
            "" => format.mount_options().to_owned(),
            more => format!("{},{more}", format.mount_options()),
        };
        let options = CString::new(options)?;
        let place = self.0.folder.path().join("mounted");
        mount(self.device(), &place, format.name(), flags, &*options)?;
        Ok(Mounted {
            disk: self.clone(),
            place: Some(place),
        })
    }

    /// The place in the log: how many entries there are.
    pub fn position(&self) -> u64 {
        self.call(&Request::Position(self.0.id))
    }

    /// The positions just behind each flush, in order.
    pub fn flushes(&self) -> Vec<u64> {
        self.call(&Request::Flushes(self.0.id))
    }

    /// The entries from a position on, without their data.
    pub fn logged_since(&self, position: u64) -> Vec<Logged> {
        self.call(&Request::Since(self.0.id, position))
    }

    /// Forgets the entries before the last flush at or before `position`: for tests that write much.
    pub fn trim(&self, position: u64) {
        self.call(&Request::Trim(self.0.id, position))
    }

    /// The image that a power cut at `position` leaves at least: everything up to the last flush
    /// before it, and nothing else.
    pub fn image_at(&self, position: u64) -> DiskImage {
        self.image(position, Unflushed::None)
    }

    /// An image that a power cut at `position` may leave: also some of the writes after the last flush, any of them
    /// torn into sectors. The seed chooses.
    pub fn image_with(&self, position: u64, seed: u64) -> DiskImage {
        self.image(position, Unflushed::Some(seed))
    }

    /// Everything that was written up to `position`.
    pub fn image_of_all(&self, position: u64) -> DiskImage {
        self.image(position, Unflushed::All)
    }

    fn image(&self, position: u64, unflushed: Unflushed) -> DiskImage {
        DiskImage {
            id: self.call(&Request::Cut(self.0.id, position, unflushed)),
            format: self.0.format,
            size: self.0.size,
            server: Arc::clone(&self.0.server),
        }
    }

    /// The disk's faults and counts.
    pub fn faults(&self) -> DiskFaults<'_> {
        DiskFaults(self)
    }

    /// Every operation fails from now on, hanging ones included, as if the disk had been pulled out.
    /// [`DiskFaults::heal`] brings it back.
    pub fn vanish(&self) {
        self.faults().vanish();
    }

    /// Kills the server of this disk and of those beside it: every operation fails for ever.
    pub fn kill(&self) {
        self.0.server.kill();
    }

    /// The seed of the faults.
    pub fn seed(&self) -> u64 {
        self.0.seed
    }

    fn call<T: serde::de::DeserializeOwned>(&self, request: &Request) -> T {
        self.0.server.call(request)
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        let _ = self.server.ask::<()>(&Request::Heal(self.id));
        // The device detaches itself, which closes the file on the FUSE file system.
        *self.device.lock() = None;
        let _ = self.server.ask::<()>(&Request::End(self.id));
    }
}

impl DiskImage {
    /// Bytes of the image.
    pub fn read(&self, pos: u64, len: usize) -> Vec<u8> {
        self.server.call(&Request::ReadImage(self.id, pos, len))
    }
}

impl Drop for DiskImage {
    fn drop(&mut self) {
        let _ = self.server.ask::<()>(&Request::Free(self.id));
    }
}

/// A mounted file system, unmounted with this.
#[derive(Debug)]
pub struct Mounted {
    disk: Disk,
    place: Option<PathBuf>,
}

impl Mounted {
    /// Its root.
    ///
    /// # Panics
    /// Never: it exists until the mount is given up.
    pub fn path(&self) -> &Path {
        self.place.as_deref().expect("mounted")
    }

    /// Unmounts, which writes everything to the disk.
    ///
    /// # Errors
    /// `EBUSY` while files are open.
    pub fn unmount(mut self) -> io::Result<()> {
        unmount(self.path(), UnmountFlags::empty())?;
        self.place = None;
        Ok(())
    }

    /// As [`Mounted::unmount`], for tests whose threads may close their last file a moment later.
    ///
    /// # Errors
    /// `EBUSY` if files are open for as long as `patience`.
    pub fn unmount_within(mut self, patience: Duration) -> io::Result<()> {
        let until = Instant::now() + patience;
        loop {
            match unmount(self.path(), UnmountFlags::empty()) {
                Err(rustix::io::Errno::BUSY) if Instant::now() < until => {
                    std::thread::sleep(Duration::from_millis(2));
                }
                outcome => {
                    outcome?;
                    self.place = None;
                    return Ok(());
                }
            }
        }
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        let Some(place) = self.place.take() else {
            return;
        };
        // Nothing hangs and nothing fails any more. If the server is gone, everything fails at once.
        let _ = self.disk.0.server.ask::<()>(&Request::Heal(self.disk.0.id));
        if let Err(error) = unmount(&place, UnmountFlags::empty()) {
            eprintln!(
                "{}: {error}: unmounted when it is not in use any more",
                place.display()
            );
            let _ = unmount(&place, UnmountFlags::DETACH);
        }
    }
}
