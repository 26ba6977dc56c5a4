//! Power cuts of a mount over real disks: ext4 and XFS on a disk that records.

use crate::common::Folder;
use foliocache_sim::disk::{Cuts, Disk, Format, Kernel, wanted};
use foliocache_sim::scramble;
use foliocache_sim::tree::{TreeOracle, TreeWorkload};

#[test]
#[ignore = "system tier"]
fn data_and_names_synced_on_a_mount_survive_a_power_cut_of_the_disk() {
    if Disk::skip() {
        return;
    }
    let (images, first) = wanted(90);
    println!("seed {first}");
    for format in Format::wanted() {
        // The mount is older than the disk, and goes first.
        let mut cuts = Cuts::new("a mount", format, first).expect("a disk");
        let mut seed = first;
        let folder = Folder::new(&format!("power-cut-{}", format.name()));
        for arguments in [
            &[][..],
            &["--kernel-cache", "all"],
            &["--writeback", "close"],
        ] {
            let arguments = [&["--memory", "32M"], arguments].concat();
            let mounted = folder.mount_of(cuts.path(), &arguments);
            let until = cuts.report().images + images / 6;
            while cuts.report().images < until {
                let length = 15 + scramble(seed) % 40;
                let workload = TreeWorkload::new(seed, TreeOracle::default());
                let operations: Vec<_> = workload.take(length as usize).collect();
                let point = folder.mount_point();
                let mount = |name: &str| Kernel::new(&point.join(name), seed % 2 == 0);
                let done = cuts.run(seed, &operations, 8, mount);
                done.unwrap_or_else(|error| {
                    panic!(
                        "{error}\nrepeat with FOLIOCACHE_SEED={seed} cargo test --release -p foliocache-cli \
                         --test system -- power_cut_mount:: --ignored --nocapture (mount {arguments:?})"
                    )
                });
                seed += 1;
            }
            drop(mounted);
        }
        println!("{}: {:?}", format.name(), cuts.report());
    }
}
