//! A source whose disk refuses writes for a while.
//!
//! Needs root and a loop device: the source is an ext4 in a file on a tmpfs that is full.

use crate::common::{cache, dirfs, on_disk, pattern, run, write_all};
use foliocache_fs::{DirFs, DirFsOptions};
use foliocache_vfs::{FileSystem, OpContext, OpenFile, OpenFlags};
use std::ffi::OsStr;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::process::Command;

const MIB: usize = 1 << 20;

/// Files, and the length of each.
const FILES: usize = 64;
const LEN: usize = 64 << 10;

/// Size of the disk: large enough that its file system is not short of room, and does not reserve
/// it write by write.
const DISK_MIB: usize = 256;

/// A disk that takes data while the tmpfs under it has room.
struct Disk {
    memory: PathBuf,
    image: PathBuf,
    point: PathBuf,
    _dir: tempfile::TempDir,
}

impl Disk {
    fn new() -> Disk {
        let dir = on_disk();
        let [memory, point] = ["memory", "mounted"].map(|name| dir.path().join(name));
        std::fs::create_dir(&memory).expect("a directory");
        std::fs::create_dir(&point).expect("a directory");
        let size = format!("size={DISK_MIB}m");
        let tmpfs = ["-t", "tmpfs", "-o", &size, "none"].map(OsStr::new);
        run("mount", &[&tmpfs[..], &[memory.as_ref()]].concat());
        let image = memory.join("image");
        // Gone with all that is mounted, whatever fails below.
        let disk = Disk {
            memory,
            image,
            point,
            _dir: dir,
        };
        let file = File::create_new(&disk.image).expect("an image");
        file.set_len((DISK_MIB * MIB) as u64)
            .expect("a sparse file");
        // Without a journal, whose first error ends all writing.
        let options = ["-q", "-F", "-O", "^has_journal", "-N", "256"].map(OsStr::new);
        run(
            "mkfs.ext4",
            &[&options[..], &[disk.image.as_ref()]].concat(),
        );
        // All metadata has its place in the tmpfs: it is never refused.
        let file = File::options().read(true).write(true).open(&disk.image);
        let (file, mut metadata) = (file.expect("the image"), vec![0; MIB]);
        file.read_exact_at(&mut metadata, 0).expect("read");
        file.write_all_at(&metadata, 0).expect("write");
        disk.mount();
        disk
    }

    fn mount(&self) {
        let options = ["-o", "loop"].map(OsStr::new);
        let places: [&OsStr; 2] = [self.image.as_ref(), self.point.as_ref()];
        run("mount", &[&options[..], &places].concat());
    }

    fn unmount(&self) {
        run("umount", &[self.point.as_ref()]);
    }

    /// From now on the tmpfs has no more room than this.
    fn set_room(&self, kib: usize) {
        let size = format!("remount,size={kib}k");
        run(
            "mount",
            &["-o".as_ref(), size.as_ref(), self.memory.as_ref()],
        );
    }

    /// The disk takes nothing that it has no place for yet.
    fn fill(&self) {
        let used = std::os::unix::fs::MetadataExt::blocks(&self.image.metadata().expect("stat"));
        self.set_room((used / 2).next_multiple_of(4) as usize);
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        for point in [&self.point, &self.memory] {
            let _ = Command::new("umount").arg(point).status();
        }
    }
}

fn create(fs: &DirFs, name: &str) -> OpenFile {
    let (root, name) = (fs.root(), OsStr::new(name));
    let flags = OpenFlags::READ_WRITE;
    fs.create(&OpContext::ROOT, &root, name, 0o644, flags)
        .expect("create")
}

fn open(fs: &DirFs, name: &str) -> OpenFile {
    let inode = fs.lookup(&fs.root(), OsStr::new(name)).expect("lookup");
    fs.open(&OpContext::ROOT, &inode, OpenFlags::READ_WRITE)
        .expect("open")
}

#[test]
#[ignore = "system tier"]
fn small_files_that_the_disk_refused_are_dirty_until_it_takes_them() {
    // With descriptors for all of them, and for hardly any.
    for idle_files in [None, Some(4)] {
        let disk = Disk::new();
        let mm = cache(256);
        let mut options = DirFsOptions::default();
        options.idle_files = idle_files;
        let fs = dirfs(&mm, &disk.point, options);
        disk.fill();
        for number in 0..FILES {
            let file = create(&fs, &number.to_string());
            write_all(&file, &pattern(number as u64, LEN), 0);
        }
        assert_eq!(fs.stats().batched_files, FILES as u64);
        let files: Vec<_> = (0..FILES)
            .map(|number| open(&fs, &number.to_string()))
            .collect();
        for file in &files {
            assert!(file.fsync().is_err(), "the disk has refused data");
        }
        let dirty = fs.bdi().nr_not_durable();
        assert!(dirty >= (FILES * LEN / 4096 / 2) as u64, "{dirty} pages");

        disk.set_room(DISK_MIB << 10);
        fs.sync_fs().expect("the disk takes it");
        assert_eq!(fs.bdi().nr_not_durable(), 0);
        drop(files);
        drop(fs);
        // The medium's contents, without the kernel's cache.
        disk.unmount();
        disk.mount();
        for number in 0..FILES {
            let found = std::fs::read(disk.point.join(number.to_string())).expect("read");
            assert!(found == pattern(number as u64, LEN), "file {number}");
        }
    }
}
