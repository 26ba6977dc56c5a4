//! A database on a disk that loses its power: what a commit said is durable is there, nothing of a later transaction is, and redb's check
//! of itself passes.
//!
//! # Model
//!
//! ```text
//!  recording disk ── ext4, XFS ── the cache ── redb
//!  a durable commit returns ──▶ the position in the disk's log
//!  an image of a cut at some position ──▶ the kernel recovers it ──▶ redb opens the file through a cache
//!     ──▶ the last transaction is one that may be the last; the integrity check; every key and value
//! ```
//!
//! Half of the images end at the last flush before a commit returned. The others are cut between two commits, and have
//! some of the writes that no flush covers. `FOLIOCACHE_CUTS` says how many each file system gets, `FOLIOCACHE_SEED` repeats a run.
//!
//! A disk whose flushes are lies shows that the test finds a flush that is missing.

mod common;

use common::{Known, commit_one, is_durable, last, open};
use foliocache_sim::disk::{Disk, Format, wanted};
use foliocache_sim::{Effect, OpSet, Rng, Rule};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;

/// Transactions of a run.
const TRANSACTIONS: u64 = 120;
/// Images of each file system, if nothing else is wanted.
const IMAGES: u64 = 40;
/// The size of the disks. The log of what is written to them is in memory.
const DISK_BYTES: u64 = 512 << 20;

/// A run of the database: its disk, and what was acknowledged when.
struct Run {
    /// The position in the log, and the durable transaction that had returned by then.
    durable: Vec<(u64, u64)>,
    disk: Disk,
    format: Format,
    seed: u64,
}

impl Run {
    /// Commits transactions. With `lie`, the disk's flushes are lies from the middle on.
    fn new(format: Format, seed: u64, lie: bool) -> Run {
        let disk = Disk::with_size(format, DISK_BYTES, seed).expect("a disk");
        let mounted = disk.mount().unwrap();
        let (cache, db) = open(&mounted.path().join("db"));
        let mut durable = vec![(disk.position(), 0)];
        for number in 1..=TRANSACTIONS {
            if lie && number == TRANSACTIONS / 2 {
                disk.faults().add(Rule::new(OpSet::FLUSH, Effect::Lie));
            }
            if commit_one(&db, number) {
                durable.push((disk.position(), number));
            }
        }
        drop(db);
        cache.close().unwrap();
        // Closed, the file has all of them.
        durable.push((
            disk.position(),
            *durable.last().map(|(_, number)| number).unwrap(),
        ));
        drop(mounted);
        Run {
            durable,
            disk,
            format,
            seed,
        }
    }

    /// Recovers `images` images and checks them.
    fn check(&self, images: u64) {
        let mut rng = Rng::new(self.seed);
        let mut copy: Option<Disk> = None;
        for image in 0..images {
            let at = rng.below(self.durable.len() as u64 - 1) as usize;
            let (position, image) = match image % 2 {
                0 => (self.durable[at].0, self.disk.image_at(self.durable[at].0)),
                _ => {
                    let position = rng.between(self.durable[at].0, self.durable[at + 1].0);
                    let image = self.disk.image_with(position, rng.next_u64());
                    (position, image)
                }
            };
            // Positions may be equal, where a commit had nothing to flush.
            let returned = self.durable.partition_point(|&(at, _)| at <= position);
            let acknowledged = self.durable[returned.saturating_sub(1)].1;
            let recovered = match copy.take() {
                Some(copy) => copy.load(&image).map(|()| copy),
                None => Disk::beside(&image, self.seed),
            };
            let recovered = recovered.unwrap();
            let mounted = recovered.mount().unwrap();
            let about = format!(
                "{}, seed {}: a cut at {position}, where transaction {acknowledged} was durable",
                self.format.name(),
                self.seed
            );
            check(&mounted.path().join("db"), acknowledged, &about);
            drop(mounted);
            copy = Some(recovered);
        }
        println!(
            "{}: {images} images, {:?}",
            self.format.name(),
            self.durable.last()
        );
    }
}

/// Opens the database, which recovers it, and compares.
fn check(path: &Path, acknowledged: u64, about: &str) {
    if acknowledged == 0 && !path.exists() {
        return;
    }
    let (cache, mut db) = open(path);
    assert!(db.check_integrity().unwrap(), "{about}");
    let found = last(&db);
    assert!(
        (acknowledged..=TRANSACTIONS).contains(&found),
        "{about}: {found} is the last"
    );
    assert!(
        found == 0 || is_durable(found),
        "{about}: {found} was not durable, nor anything after it"
    );
    let mut known = Known::default();
    known.go_on(found);
    known.check(&db, about);
    drop(db);
    cache.close().unwrap();
}

#[test]
#[ignore = "programs tier"]
fn a_power_cut_loses_no_durable_transaction() {
    if Disk::skip() {
        return;
    }
    let (images, seed) = wanted(IMAGES);
    println!("seed {seed}");
    for format in Format::wanted() {
        Run::new(format, seed, false).check(images);
    }
}

#[test]
#[ignore = "programs tier"]
fn flushes_that_do_nothing_are_found() {
    if Disk::skip() {
        return;
    }
    let (_, seed) = wanted(IMAGES);
    println!("seed {seed}");
    let run = Run::new(Format::Ext4, seed, true);
    let found = catch_unwind(AssertUnwindSafe(|| run.check(IMAGES)));
    assert!(found.is_err(), "no image lacks a transaction");
}
