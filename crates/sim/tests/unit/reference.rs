//! The cache against the reference model and against the kernel's own tmpfs: the same seeded
//! operations, the same answers.

use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;

use crate::common::{Handle, MIB, cache, first_seed, scaled, storage};
use foliocache_mm::Mm;
use foliocache_sim::{Answer, Faults, FaultyBackend, Mix, Operation, ReferenceFile, Workload};
use foliocache_sync::Arc;
use proptest::prelude::*;

/// A file on tmpfs, as a second opinion.
struct Tmpfs(std::fs::File);

impl Tmpfs {
    fn new() -> Self {
        Self(tempfile::tempfile_in("/dev/shm").expect("a file on tmpfs"))
    }

    fn size(&self) -> u64 {
        self.0.metadata().expect("fstat").len()
    }

    fn apply(&self, operation: &Operation) -> Answer {
        let write = |pos: u64, bytes: Vec<u8>| {
            self.0.write_all_at(&bytes, pos).expect("write to tmpfs");
            Answer::Written(bytes.len())
        };
        match *operation {
            Operation::Write { pos, len, fill } => write(pos, fill.bytes(pos, len)),
            Operation::Append { len, fill } => {
                let pos = self.size();
                write(pos, fill.bytes(pos, len))
            }
            Operation::Read { pos, len } => {
                let mut bytes = vec![0; len];
                let mut read = 0;
                while read < len {
                    match self
                        .0
                        .read_at(&mut bytes[read..], pos + read as u64)
                        .expect("read")
                    {
                        0 => break,
                        n => read += n,
                    }
                }
                bytes.truncate(read);
                Answer::Bytes(bytes)
            }
            Operation::Truncate { size } => {
                self.0.set_len(size).expect("truncate");
                Answer::Done
            }
            Operation::PunchHole { pos, len } => {
                foliocache_sys::fd::punch_hole(self.0.as_fd(), pos, len).expect("punch a hole");
                Answer::Done
            }
            Operation::Fsync { .. } => {
                self.0.sync_all().expect("fsync");
                Answer::Done
            }
        }
    }
}

/// One file, three ways.
struct Trio {
    handle: Handle,
    backend: Arc<FaultyBackend>,
    reference: ReferenceFile,
    tmpfs: Tmpfs,
    name: String,
    history: Vec<Operation>,
}

impl Trio {
    fn new(mm: &Arc<Mm>, name: String) -> Self {
        let backend = FaultyBackend::new(&name, &Faults::new(0));
        let bdi = storage(mm, &name);
        Self {
            handle: Handle::open(&bdi, Arc::clone(&backend) as _, 0),
            backend,
            reference: ReferenceFile::new(),
            tmpfs: Tmpfs::new(),
            name,
            history: Vec::new(),
        }
    }

    fn apply(&mut self, operation: Operation) {
        self.history.push(operation);
        let expected = self.reference.apply(&operation);
        let tmpfs = self.tmpfs.apply(&operation);
        assert!(
            tmpfs == expected,
            "{}: the reference is wrong at {operation:?}",
            self.name
        );
        let found = match operation {
            // Every other read is a batch of its parts.
            Operation::Read { pos, len } if self.history.len().is_multiple_of(2) => {
                self.handle.read_in_parts(pos, len).map(Answer::Bytes)
            }
            operation => self.handle.apply(&operation),
        };
        match (&found, &expected) {
            (Ok(found), expected) if found == expected => {}
            (Ok(Answer::Bytes(found)), Answer::Bytes(expected)) => {
                let at = found.iter().zip(expected).position(|(a, b)| a != b);
                self.fail(&format!(
                    "{operation:?} read {} bytes of {}, wrong from {at:?}",
                    found.len(),
                    expected.len()
                ));
            }
            _ => self.fail(&format!("{operation:?} answered {found:?}")),
        }
        if self.handle.mapping.size() != self.reference.size() {
            self.fail(&format!(
                "{operation:?} left size {}",
                self.handle.mapping.size()
            ));
        }
    }

    fn fail(&self, what: &str) -> ! {
        let last = self.history.len().saturating_sub(12);
        panic!(
            "{}, operation {}: {what}\nthe last operations: {:#?}\nthe last of the backend:\n{}",
            self.name,
            self.history.len(),
            &self.history[last..],
            self.backend.faults().trace_text(20)
        );
    }

    /// Everything read once more, then made durable and compared where it lies.
    fn finish(self) {
        let size = self.reference.size() as usize;
        if self.handle.read(0, size + 10) != self.reference.read(0, size) {
            self.fail("the whole file differs at the end");
        }
        self.handle.fsync().expect("fsync without faults");
        if let Some(at) = self
            .backend
            .durable()
            .first_difference(self.reference.image())
        {
            self.fail(&format!(
                "the medium differs at byte {at} after the last fsync"
            ));
        }
        let broken = self.backend.broken_contract();
        assert!(broken.is_empty(), "{}: {broken:#?}", self.name);
        let stats = self.handle.mapping.stats();
        assert_eq!(
            (
                stats.dirty_pages,
                stats.writeback_pages,
                stats.unstable_pages,
                stats.failed_pages
            ),
            (0, 0, 0, 0),
            "{}: nothing is left to do after an fsync",
            self.name
        );
    }
}

/// Seeded workloads over files of up to `max_size` bytes under a bound of `limit` bytes.
fn run(limit: u64, max_size: u64, files: u64, operations: u64) {
    let mm = cache(limit);
    let first = first_seed(1);
    for seed in first..first + files {
        let mut trio = Trio::new(&mm, format!("limit {limit}, seed {seed}"));
        let mix = Mix::general(max_size, 256 << 10);
        for operation in Workload::new(seed, mix).take(operations as usize) {
            trio.apply(operation);
        }
        trio.finish();
    }
}

#[test]
fn with_room() {
    run(256 * MIB, 4 * MIB, 4, scaled(2500));
}

#[test]
fn under_constant_eviction() {
    run(8 * MIB, 24 * MIB, 4, scaled(2500));
}

#[test]
fn under_the_least_bound() {
    run(
        foliocache_mm::MIN_LIMIT.max(4 * MIB),
        16 * MIB,
        3,
        scaled(1500),
    );
}

/// Many small files at once, so that eviction takes pages of one that another operation needs.
#[test]
fn many_files_under_one_bound() {
    let mm = cache(8 * MIB);
    let mix = Mix::general(2 * MIB, 64 << 10);
    let mut files: Vec<(Trio, Workload)> = (0..12)
        .map(|seed| {
            let trio = Trio::new(&mm, format!("file {seed}"));
            (trio, Workload::new(first_seed(100) + seed, mix))
        })
        .collect();
    for _ in 0..scaled(500) {
        for (trio, workload) in &mut files {
            let operation = workload.next().expect("a workload is endless");
            trio.apply(operation);
        }
    }
    for (trio, _) in files {
        trio.finish();
    }
}

/// Positions far apart, up to where an index needs its greatest height.
#[test]
fn sparse_files() {
    let mm = cache(16 * MIB);
    let mut trio = Trio::new(&mm, "sparse".into());
    let fill = foliocache_sim::Fill(9);
    for shift in [12, 13, 18, 24, 30, 36, 40, 42] {
        for pos in [(1_u64 << shift) - 3, (1 << shift) + 4096 * 63 + 1] {
            trio.apply(Operation::Write {
                pos,
                len: 5000,
                fill,
            });
            trio.apply(Operation::Read {
                pos: pos - 100,
                len: 9000,
            });
        }
    }
    trio.apply(Operation::PunchHole {
        pos: 1 << 13,
        len: (1 << 40) - (1 << 13),
    });
    for shift in [12, 24, 40, 42] {
        trio.apply(Operation::Read {
            pos: (1 << shift) - 4096,
            len: 20_000,
        });
    }
    trio.apply(Operation::Truncate {
        size: (1 << 36) + 7,
    });
    trio.apply(Operation::Truncate { size: 1 << 43 });
    trio.apply(Operation::Read {
        pos: (1 << 36) - 9,
        len: 5000,
    });
    trio.apply(Operation::Truncate { size: 10_000 });
    trio.finish();
}

fn operation() -> impl Strategy<Value = Operation> {
    // Small numbers around page and file edges, where mistakes live.
    let pos = prop_oneof![
        0_u64..20_000,
        (0_u64..5, -2_i64..3)
            .prop_map(|(page, delta)| { (page * 4096).saturating_add_signed(delta) })
    ];
    let len = prop_oneof![1_usize..100, 4094_usize..4099, 1_usize..14_000];
    let fill = any::<u64>().prop_map(foliocache_sim::Fill);
    prop_oneof![
        5 => (pos.clone(), len.clone(), fill.clone())
            .prop_map(|(pos, len, fill)| Operation::Write { pos, len, fill }),
        2 => (len.clone(), fill).prop_map(|(len, fill)| Operation::Append { len, fill }),
        5 => (pos.clone(), len.clone()).prop_map(|(pos, len)| Operation::Read { pos, len }),
        2 => pos.clone().prop_map(|size| Operation::Truncate { size }),
        2 => (pos, len).prop_map(|(pos, len)| Operation::PunchHole { pos, len: len as u64 }),
        1 => any::<bool>().prop_map(|datasync| Operation::Fsync { datasync }),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: scaled(96) as u32,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn short_histories(operations in prop::collection::vec(operation(), 1..40)) {
        let mm = cache(4 * MIB);
        let mut trio = Trio::new(&mm, "proptest".into());
        for operation in operations {
            trio.apply(operation);
        }
        trio.finish();
    }
}
