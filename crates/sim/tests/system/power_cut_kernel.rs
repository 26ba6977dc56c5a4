//! Power cuts of the kernel's own ext4 and XFS: the judge is held against file systems that are known to keep their promises, and
//! against subjects that are known not to.

use std::io;

use foliocache_sim::disk::{Cuts, Disk, Format, Kernel, wanted};
use foliocache_sim::tree::{SETUP, Subject, TreeOp, TreeOracle, TreeWorkload, short_sequences};

/// Images of one run.
const IMAGES: u64 = 6;

#[test]
#[ignore = "system tier"]
fn the_kernels_file_systems_keep_their_promises() {
    if Disk::skip() {
        return;
    }
    let (images, first) = wanted(24);
    println!("seed {first}");
    for format in Format::wanted() {
        let mut cuts = Cuts::new("the kernel", format, first).expect("a disk");
        let top = cuts.path().to_owned();
        let mut seed = first;
        while cuts.report().images < images / 2 {
            let workload = TreeWorkload::new(seed, TreeOracle::default());
            let operations: Vec<_> = workload.take(40).collect();
            let kernel = |folder: &str| Kernel::new(&top.join(folder), seed % 2 == 0);
            let done = cuts.run(seed, &operations, IMAGES, kernel);
            done.unwrap_or_else(|error| panic!("{error}"));
            seed += 1;
        }
        println!("{}: {:?}", format.name(), cuts.report());
    }
}

/// Leaves something out.
struct Forgetful<F> {
    kernel: Kernel,
    forgets: F,
}

impl<F: Fn(&TreeOp) -> bool> Subject for Forgetful<F> {
    fn apply(&mut self, operation: &TreeOp) -> io::Result<()> {
        match (self.forgets)(operation) {
            true => Ok(()),
            false => self.kernel.apply(operation),
        }
    }
}

/// Runs short sequences with a forgetful subject until one is found out.
fn is_found_out(format: Format, what: &str, forgets: fn(&TreeOp) -> bool) {
    let mut cuts = Cuts::new("a forgetful kernel", format, 1).expect("a disk");
    let top = cuts.path().to_owned();
    let mut tried = 0;
    for mut sequence in short_sequences(1) {
        sequence.splice(0..0, SETUP());
        if !sequence[SETUP().len()..].iter().any(forgets) {
            continue;
        }
        tried += 1;
        let subject = |folder: &str| Forgetful {
            kernel: Kernel::new(&top.join(folder), false),
            forgets,
        };
        if let Err(error) = cuts.run(1, &sequence, 2, subject) {
            println!(
                "{}, {what}: found by sequence {tried}: {error}",
                format.name()
            );
            return;
        }
    }
    panic!(
        "{}, {what}: {tried} sequences did not find it",
        format.name()
    );
}

#[test]
#[ignore = "system tier"]
fn a_sync_that_is_left_out_is_found() {
    if Disk::skip() {
        return;
    }
    for format in Format::wanted() {
        is_found_out(format, "no sync of data", |op| {
            matches!(op, TreeOp::SyncData { .. })
        });
        is_found_out(format, "no sync of files", |op| {
            matches!(op, TreeOp::SyncAll { .. })
        });
        is_found_out(format, "no sync of directories", |op| {
            matches!(op, TreeOp::SyncDir { .. })
        });
    }
}
