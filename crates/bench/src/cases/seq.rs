//! Whole files, one request after another: reading, writing, and sixteen readers at once.
//!
//! # Model
//!
//! A file four times the memory bound, so that no pass finds anything of the one before. Each pass
//! begins with the file in no cache and goes through it once.
//!
//! | match | contestants |
//! |---|---|
//! | read | ours; `O_DIRECT` at depth 1 and at its fastest; the kernel's cache in a cgroup of the bound's size |
//! | write | ours and `O_DIRECT`, both depths, over blocks that are there, fdatasync included |
//! | streams | one reader; sixteen, each in its part, request by request in turn; sixteen threads |
//!
//! A request is 1 MiB. `O_DIRECT` at depth 1 makes the same requests as our caller; at the other depth an io_uring
//! keeps as many in flight as is fastest here, found before the match. On the disk first, then on a [compressed
//! disk in memory](crate::zram), which is faster than any disk, so that the path to it dominates. The streams ask
//! for 128 KiB, as programs do: a larger request would hide missing readahead.
//!
//! Sixteen buffers do not fit into the processor's nearest caches as one does: on zram, where nothing else takes
//! time, `O_DIRECT` itself slows down with sixteen streams. Its remaining speed is the divisor there.

use crate::cases::prelude::*;
use crate::file_bed::{By, DIRECT, FileBed};
use crate::streams::Shape;

/// Bytes of a request where streams are many.
const STREAM_REQUEST: usize = 128 << 10;

pub(super) fn plan(settings: &Settings) -> Result<Plan, BenchError> {
    let len = FILE_PER_MEMORY * settings.bound()?;
    let mut plan = Plan::default();
    on_disk_and_zram(&mut plan, settings, [len; 2], |place, at, plan| {
        let bed = FileBed::new(place, settings, len)?;
        let shape = Shape {
            threads: 1,
            in_turn: 1,
            len,
            request: MIB,
            time: None,
        };
        let ours = By::Ours { uncached: false };
        let buffered = By::Kernel { dont_cache: false };
        for (write, verb, row, id, least) in [
            (false, "reads", "read 1 MiB", "read", at.pick(0.95, 0.75)),
            (true, "writes", "write 1 MiB, fdatasync", "write", 0.9),
        ] {
            let (depth, fastest) = bed.fastest_depth(shape, write)?;
            plan.notes.push(format!(
                "O_DIRECT {verb} on {}: fastest with {depth} requests under way",
                at.name()
            ));
            let mut contestants = vec![
                (OURS, ours),
                (DIRECT, By::Direct),
                (fastest, By::Ring { depth }),
            ];
            contestants.extend((!write).then_some((BUFFERED, buffered)));
            let mut one = at.new_match();
            bed.add(&mut one, row, contestants, (shape, write));
            let least = (!write || !at.zram).then_some(least);
            ratios! { one;
                format!("seq_{id}_vs_direct_depth1") => OURS / DIRECT, at_least(least);
                format!("seq_{id}_vs_direct") => 0 / 2;
                "seq_read_vs_kernel_buffered" => OURS / BUFFERED;
            }
            plan.matches.push(one);
        }
        let streams = [
            ("one stream", ours, 1, 1),
            ("16 streams in turn", ours, 1, 16),
            ("16 streams", ours, 16, 1),
            ("O_DIRECT, one stream", By::Direct, 1, 1),
            ("O_DIRECT, 16 streams in turn", By::Direct, 1, 16),
        ];
        let mut one = at.new_match();
        for (variant, by, threads, in_turn) in streams.into_iter().take(at.pick(3, 5)) {
            let shape = Shape {
                threads,
                in_turn,
                request: STREAM_REQUEST,
                ..shape
            };
            bed.add(&mut one, "read 128 KiB", [(variant, by)], (shape, false));
        }
        ratios! { one;
            "streams16_vs_one" => 1 / 0, over(at.pick(None, Some((4, 3)))), at_least(0.9);
            "streams16_threads_vs_one" => 2 / 0;
            "streams16_direct_vs_one" => "O_DIRECT, 16 streams in turn" / "O_DIRECT, one stream";
        }
        plan.matches.push(one);
        Ok(())
    })?;
    Ok(plan)
}
