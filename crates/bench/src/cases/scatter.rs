//! Pages written here and there, and made durable together, as a database does at a commit or a checkpoint. Default
//! settings, over a directory of the local disk, with the usual soft limit of 1,024 descriptors.
//!
//! # Model
//!
//! Again and again, in a completely cached file: 1 to 5,000 writes of 4 KiB at random places, then `fdatasync`.
//! Beside it the kernel's buffered calls, and ours with `exclusive`. Each side has a separate file.

use foliocache_sys::fd::OFlags;

use crate::cases::prelude::*;
use crate::logs::{Shape, Side, log};

const EXCLUSIVE: &str = "foliocache, dirfs, exclusive";

/// The file takes this part of the memory.
const MEMORY_PER_FILE: u64 = 4;

/// Pages that are made durable together, row, aim.
const ROUNDS: [(usize, &str, f64); 5] = [
    (1, "write 1 page of 4 KiB, fdatasync", 1.0),
    (10, "write 10 pages of 4 KiB, fdatasync", 1.0),
    (100, "write 100 pages of 4 KiB, fdatasync", 1.0),
    (1_000, "write 1,000 pages of 4 KiB, fdatasync", 1.1),
    (5_000, "write 5,000 pages of 4 KiB, fdatasync", 1.1),
];

pub(super) fn plan(settings: &Settings) -> Result<Plan, BenchError> {
    let memory = settings.bound()?;
    let folder = Folder::on_disk(settings)?;
    let len = memory / MEMORY_PER_FILE;
    check_room(folder.path(), 4 * len, 16)?;
    let sides = set_up("a file", || {
        Ok([
            (DIRFS, Side::ours(&folder, "shared", memory, false)?),
            (KERNEL, Side::kernel(&folder, "kernel", OFlags::empty())?),
            (EXCLUSIVE, Side::ours(&folder, "exclusive", memory, true)?),
        ])
    })?;
    let mut matches = Vec::new();
    for (pages, name, least) in ROUNDS {
        let shape = Shape {
            record: PAGE,
            together: pages,
            threads: 1,
            overwrite: Some(len),
            time: Duration::from_secs_f64(settings.seconds),
        };
        let mut one = Match::default();
        for (variant, side) in &sides {
            one.add(name, variant, log(side, shape, "pages/s"));
        }
        ratios! { one;
            format!("scatter{pages}_vs_kernel") => DIRFS / KERNEL, at_least(least);
            format!("scatter{pages}_p99_vs_kernel") => DIRFS / KERNEL, of_p99();
            format!("scatter{pages}_exclusive_vs_shared") => EXCLUSIVE / DIRFS;
        }
        matches.push(one);
    }
    let description = folder.describe();
    Ok(Plan::at(matches, folder, description))
}
