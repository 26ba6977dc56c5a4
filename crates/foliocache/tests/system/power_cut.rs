//! Power cuts of the library over real disks: ext4 and XFS on a disk that records.

use std::collections::HashMap;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::{Duration, UNIX_EPOCH};

use foliocache::{Cache, Directory, DirectoryOptions, File, IoOptions, MapAccess, Permissions};
use foliocache_sim::disk::{Cuts, Disk, Format, wanted};
use foliocache_sim::tree::{
    How, SETUP, Subject, TreeOp, TreeOracle, TreeWorkload, short_sequences,
};
use foliocache_sim::{Rng, scramble};

/// A directory through the library.
struct Library {
    dir: Directory,
    cache: Cache,
    /// Files that stay open, by the path that they have now.
    open: HashMap<String, File>,
    keep: bool,
}

impl Library {
    /// The settings that vary with the seed: memory, open files, and ways to write back.
    fn new(path: &Path, seed: u64) -> Library {
        let choice = scramble(seed);
        let mib = if choice & 1 == 0 { 16 } else { 64 };
        let cache = crate::common::cache(mib);
        let mut options = DirectoryOptions::new().batch_small_files(choice & 2 == 0);
        if choice & 4 != 0 {
            options = options.idle_files(2);
        }
        options = options.direct(choice & 24 != 0).exclusive(choice & 32 == 0);
        Library {
            dir: cache.directory_with(path, options).expect("a directory"),
            cache,
            open: HashMap::new(),
            keep: choice & 64 == 0,
        }
    }

    fn file(&mut self, path: &str) -> foliocache::Result<File> {
        if let Some(file) = self.open.get(path) {
            return file.try_clone();
        }
        let file = self.dir.open_options().read(true).write(true).open(path)?;
        if self.keep {
            self.open.insert(path.to_owned(), file.try_clone()?);
        }
        Ok(file)
    }

    fn write(&mut self, path: &str, pos: u64, bytes: &[u8], how: How) -> foliocache::Result<()> {
        let file = self.file(path)?;
        match how {
            How::Plain => file.write_all_at(bytes, pos),
            How::Uncached => {
                let mut done = 0;
                while done < bytes.len() {
                    let options = IoOptions::new().uncached(true);
                    done += file.write_at_with(&bytes[done..], pos + done as u64, options)?;
                }
                Ok(())
            }
            How::Mapped => {
                let mapping = file.map(.., MapAccess::ReadWrite)?;
                let done = mapping.write_at(bytes, pos as usize)?;
                assert_eq!(done, bytes.len());
                let pos = pos as usize;
                mapping.sync(pos..pos + bytes.len())
            }
            How::Synced => {
                file.write_all_at(bytes, pos)?;
                file.sync_range(pos..pos + bytes.len() as u64)
            }
        }
    }

    fn do_it(&mut self, operation: &TreeOp) -> foliocache::Result<()> {
        match operation {
            TreeOp::Create { path } => self.dir.create_new(path).map(drop),
            TreeOp::Mkdir { path } => self.dir.create_dir(path),
            TreeOp::Write {
                path,
                pos,
                len,
                fill,
                how,
            } => self.write(path, *pos, &fill.bytes(*pos, *len), *how),
            TreeOp::Append { path, len, fill } => {
                let file = self.file(path)?;
                let bytes = fill.bytes(file.len(), *len);
                file.append_all(&bytes).map(drop)
            }
            TreeOp::Truncate { path, size } => self.file(path)?.set_len(*size),
            TreeOp::Punch { path, pos, len } => self.file(path)?.punch_hole(*pos, *len),
            TreeOp::Rename { from, to } => {
                self.dir.rename(from, to)?;
                let inside = format!("{from}/");
                self.open
                    .retain(|path, _| path != to && !path.starts_with(&inside));
                if let Some(file) = self.open.remove(from) {
                    self.open.insert(to.clone(), file);
                }
                Ok(())
            }
            TreeOp::Link { existing, new } => self.dir.hard_link(existing, new),
            TreeOp::Unlink { path } => {
                self.dir.remove_file(path)?;
                self.open.remove(path);
                Ok(())
            }
            TreeOp::Rmdir { path } => self.dir.remove_dir(path),
            TreeOp::SyncData { path } => self.file(path)?.sync_data(),
            TreeOp::SyncAll { path } => self.file(path)?.sync_all(),
            TreeOp::SyncDir { path } => self.dir.open_dir(path)?.sync(),
            TreeOp::SyncEverything => self.cache.sync(),
        }
    }
}

impl Subject for Library {
    fn apply(&mut self, operation: &TreeOp) -> io::Result<()> {
        Ok(self.do_it(operation)?)
    }
}

#[test]
#[ignore = "system tier"]
fn synced_data_and_names_survive_a_power_cut_of_the_disk() {
    if Disk::skip() {
        return;
    }
    let (images, first) = wanted(120);
    println!("seed {first}");
    for format in Format::wanted() {
        let mut cuts = Cuts::new("the library", format, first).expect("a disk");
        let top = cuts.path().to_owned();
        let mut seed = first;
        while cuts.report().images < images / 2 {
            let length = 15 + scramble(seed) % 40;
            let workload = TreeWorkload::new(seed, TreeOracle::default());
            let operations: Vec<_> = workload.take(length as usize).collect();
            let library = |folder: &str| Library::new(&top.join(folder), seed);
            let done = cuts.run(seed, &operations, 10, library);
            done.unwrap_or_else(|error| panic!("{error}\n{}", repeat(seed)));
            seed += 1;
        }
        println!("{}: {:?}", format.name(), cuts.report());
    }
}

/// Does `act` in rounds, in a directory of each file system, and checks the state that a power cut
/// right after each of them leaves at least.
fn cut_after_each(
    options: DirectoryOptions,
    mut act: impl FnMut(&Cache, &Directory, u8),
    check: impl Fn(&Path, u8),
) {
    if Disk::skip() {
        return;
    }
    for format in Format::wanted() {
        let disk = Disk::new(format, 1).expect("a disk");
        let mounted = disk.mount().unwrap();
        let cache = crate::common::cache(16);
        let dir = cache
            .directory_with(mounted.path(), options.clone())
            .unwrap();
        let act = |round| {
            act(&cache, &dir, round);
            disk.position()
        };
        let positions: Vec<_> = (0..20).map(act).collect();
        for (round, position) in (0..).zip(positions) {
            println!("round {round} on {}", format.name());
            let copy = Disk::beside(&disk.image_at(position), 1).unwrap();
            check(copy.mount().unwrap().path(), round);
        }
    }
}

/// They change no metadata. So the log of XFS is empty, and its `syncfs` leaves them in the cache of the disk.
#[test]
#[ignore = "system tier"]
fn overwrites_in_one_tick_of_the_clock_survive_a_power_cut() {
    let mut file = None;
    cut_after_each(
        // Otherwise the file's times would be queried in between, and each write would get a new
        // one.
        DirectoryOptions::new().exclusive(true),
        |cache, dir, round| {
            if round == 0 {
                file = Some(dir.create_new("file").unwrap());
            }
            let file = file.as_ref().unwrap();
            file.write_all_at(&[round; 8192], 0).unwrap();
            cache.sync().unwrap();
        },
        |top, round| {
            let bytes = std::fs::read(top.join("file")).unwrap();
            let found = (bytes.len(), bytes.iter().all(|&byte| byte == round));
            assert_eq!(found, (8192, true));
        },
    );
}

/// The file that is synced, and so the whole batch.
#[test]
#[ignore = "system tier"]
fn a_small_new_file_of_a_batch_that_was_synced_survives_a_power_cut() {
    let name = |round, i| format!("{round}-{i}");
    cut_after_each(
        DirectoryOptions::new(),
        |_, dir, round| {
            for i in 0..10 {
                dir.write(name(round, i), [round; 5000]).unwrap();
            }
            dir.open(name(round, 3)).unwrap().sync_all().unwrap();
        },
        |top, round| {
            assert_eq!(
                std::fs::read(top.join(name(round, 3))).unwrap(),
                [round; 5000]
            )
        },
    );
}

#[test]
#[ignore = "system tier"]
fn attributes_that_were_synced_survive_a_power_cut() {
    let time = |round: u8| UNIX_EPOCH + Duration::from_secs(1_000_000 + u64::from(round));
    let name = "user.round";
    let mut file = None;
    cut_after_each(
        DirectoryOptions::new(),
        |_, dir, round| {
            if round == 0 {
                file = Some(dir.create_new("file").unwrap());
            }
            let file = file.as_ref().unwrap();
            let mode = Permissions::from_mode(0o600 + u32::from(round));
            file.set_permissions(mode).unwrap();
            file.set_modified(time(round)).unwrap();
            file.set_xattr(name, [round]).unwrap();
            file.sync_all().unwrap();
        },
        |top, round| {
            let path = top.join("file");
            let found = std::fs::metadata(&path).unwrap();
            let mode = std::fs::Permissions::mode(&found.permissions()) & 0o777;
            assert_eq!(mode, 0o600 + u32::from(round));
            assert_eq!(found.modified().unwrap(), time(round));
            let mut value = [0xff];
            rustix::fs::getxattr(&path, name, &mut value).unwrap();
            assert_eq!(value, [round]);
        },
    );
}

/// The command that repeats a run.
fn repeat(seed: u64) -> String {
    format!(
        "repeat with FOLIOCACHE_SEED={seed} cargo test --release -p foliocache --test system -- \
         power_cut:: --ignored --nocapture --test-threads=1"
    )
}

#[test]
#[ignore = "system tier"]
fn short_sequences_with_a_sync_after_each_operation_survive_power_cuts() {
    if Disk::skip() {
        return;
    }
    let (images, first) = wanted(100);
    println!("seed {first}");
    let all = short_sequences(3);
    for format in Format::wanted() {
        let mut cuts = Cuts::new("a short sequence", format, first).expect("a disk");
        let top = cuts.path().to_owned();
        let mut rng = Rng::new(first);
        // All of them in order once there is room for all.
        let everything = images / 2 >= 2 * all.len() as u64;
        let mut number = 0;
        while cuts.report().images < images / 2 {
            let at = match everything {
                true => number % all.len(),
                false => rng.below(all.len() as u64) as usize,
            };
            number += 1;
            let mut operations = SETUP();
            operations.extend(all[at].iter().cloned());
            let seed = first + number as u64;
            let library = |folder: &str| Library::new(&top.join(folder), seed);
            let done = cuts.run(seed, &operations, 2, library);
            done.unwrap_or_else(|error| panic!("sequence {at}: {error}\n{}", repeat(first)));
        }
        let of = all.len();
        println!("{}: {:?} of {of} sequences", format.name(), cuts.report());
    }
}
