//! Operations on one cached file over a store whose writes may fail, against the reference file.
//!
//! # Model
//!
//! The index has few pages around those places where a folio, a node of the index or a grain ends, so that operations meet. Reads
//! never fail, so every call has one right answer. A write of the store may fail: then the file's bytes are the same as before,
//! `fsync` says so, and after the store is well again everything comes to it.

use super::canary;
use arbitrary::{Result, Unstructured};
use foliocache_mm::{
    AddressSpace, BackingDevInfo, BdiKind, Iocb, IovIter, Mm, MmConfig, ReadaheadState, Request,
    SlabArc, View, read_batch,
};
use foliocache_sim::{Effect, Faults, FaultyBackend, Fill, OpSet, ReferenceFile, Rule};
use foliocache_sync::Arc;
use foliocache_sys::Errno;

const PAGE: u64 = foliocache_mm::PAGE_SIZE as u64;

/// Less than the longest files, so that some are evicted.
const LIMIT: u64 = 6 << 20;

/// Bytes of a file, most.
const MOST: u64 = 12 << 20;

struct Run {
    mapping: SlabArc<AddressSpace>,
    backend: Arc<FaultyBackend>,
    handle: ReadaheadState,
    reference: ReferenceFile,
    views: Vec<(View, Vec<u8>)>,
    history: Vec<String>,
    fills: u64,
}

/// A position near a boundary.
fn pos(u: &mut Unstructured<'_>) -> Result<u64> {
    let base = match u.arbitrary::<u8>()? % 8 {
        0..=2 => u64::from(u.arbitrary::<u8>()? % 6) * PAGE,
        3 => u64::from(u.arbitrary::<u8>()?) * PAGE,
        4 => u64::from(u.arbitrary::<u8>()? % 80) * (32 << 10),
        5 => u64::from(u.arbitrary::<u8>()? % 6) * (2 << 20),
        6 => PAGE << (u.arbitrary::<u8>()? % 12),
        _ => u64::from(u.arbitrary::<u16>()?),
    };
    let delta = match u.arbitrary::<u8>()? % 4 {
        0 | 1 => 0,
        2 => i64::from(u.arbitrary::<i8>()?),
        _ => i64::from(u.arbitrary::<i16>()?),
    };
    Ok(base.saturating_add_signed(delta).min(MOST))
}

fn len(u: &mut Unstructured<'_>) -> Result<usize> {
    Ok(match u.arbitrary::<u8>()? % 8 {
        0 | 1 => usize::from(u.arbitrary::<u8>()?),
        2 | 3 => usize::from(u.arbitrary::<u16>()?),
        4 | 5 => (usize::from(u.arbitrary::<u8>()? % 20) + 1) * PAGE as usize,
        6 => (usize::from(u.arbitrary::<u8>()? % 16) + 1) * (32 << 10) + 1,
        _ => 1 << (u.arbitrary::<u8>()? % 20),
    })
}

impl Run {
    fn iocb(&self, u: &mut Unstructured<'_>, pos: u64) -> Result<Iocb> {
        let how = u.arbitrary::<u8>()?;
        Ok(Iocb {
            uncached: how % 8 == 1,
            direct: how % 8 == 2,
            ..Iocb::at(pos)
        })
    }

    fn step(&mut self, u: &mut Unstructured<'_>) -> Result<()> {
        let kind = u.arbitrary::<u8>()? % 16;
        match kind {
            0..=3 => self.write(u),
            4..=6 => self.read(u),
            7 => self.read_batch(u),
            8 => self.view(u),
            9 | 10 => {
                let size = pos(u)?;
                self.history.push(format!("truncate {size}"));
                self.mapping.truncate(size).expect("truncate");
                self.reference.truncate(size);
                Ok(())
            }
            11 | 12 => {
                let (pos, len) = (pos(u)?, len(u)? as u64);
                self.history.push(format!("punch {pos} {len}"));
                let done = self.mapping.punch_hole(pos, len);
                assert_eq!(done, self.reference.punch_hole(pos, len));
                Ok(())
            }
            13 => {
                self.history.push("fsync".to_owned());
                self.fsync();
                Ok(())
            }
            14 => self.fault(u),
            _ => {
                let (pos, len) = (pos(u)?, len(u)? as u64);
                self.history.push(format!("invalidate {pos} {len}"));
                // Clean pages alone leave the cache.
                let _ = self.mapping.invalidate(pos, len);
                Ok(())
            }
        }
    }

    fn write(&mut self, u: &mut Unstructured<'_>) -> Result<()> {
        let (pos, len) = (pos(u)?, len(u)?);
        let mut iocb = self.iocb(u, pos)?;
        iocb.append = u.arbitrary::<u8>()? % 8 == 0;
        self.history.push(format!("write {len} {iocb:?}"));
        self.fills += 1;
        let pos = if iocb.append {
            self.reference.size()
        } else {
            pos
        };
        let bytes = Fill(self.fills).bytes(pos, len);
        let direct = iocb.direct;
        let done = self.mapping.write(&mut iocb, &mut IovIter::source(&bytes));
        match done {
            Ok(done) => {
                // A direct write may end early, at the store's error.
                assert!(done == len || direct, "{done} of {len} bytes");
                let mut written = &bytes[..done];
                if canary() && len as u64 > PAGE && pos % PAGE == PAGE - 1 {
                    super::plant("file");
                    written = &written[..done - 1];
                }
                self.reference.write(pos, written);
            }
            Err(Errno::EIO) if direct => {
                // The store may have taken a part of it: nothing more can be said of these bytes.
                self.settle(pos, len, &bytes);
            }
            Err(error) => panic!("write: {error}"),
        }
        Ok(())
    }

    /// After a direct write that failed each byte is old or new.
    fn settle(&mut self, pos: u64, len: usize, new: &[u8]) {
        self.backend.faults().heal();
        let found = self.bytes(&mut Iocb::at(pos), len);
        let old = self.reference.read(pos, len);
        for (at, byte) in found.iter().enumerate() {
            let old = old.get(at).copied().unwrap_or(0);
            assert!(*byte == old || *byte == new[at], "byte {at} of {len}");
        }
        self.reference.write(pos, &found);
    }

    fn bytes(&self, iocb: &mut Iocb, len: usize) -> Vec<u8> {
        let mut bytes = vec![0xa5; len];
        let mut to = IovIter::destination(&mut bytes);
        let n = self.mapping.read(&self.handle, iocb, &mut to);
        bytes.truncate(n.expect("read"));
        bytes
    }

    fn read(&mut self, u: &mut Unstructured<'_>) -> Result<()> {
        let (pos, len) = (pos(u)?, len(u)?);
        let mut iocb = self.iocb(u, pos)?;
        self.history.push(format!("read {len} {iocb:?}"));
        let found = self.bytes(&mut iocb, len);
        assert_eq_bytes(&found, &self.reference.read(pos, len));
        Ok(())
    }

    fn read_batch(&mut self, u: &mut Unstructured<'_>) -> Result<()> {
        let mut parts = Vec::new();
        for _ in 0..=u.arbitrary::<u8>()? % 6 {
            parts.push((pos(u)?, vec![0xa5; len(u)?]));
        }
        let lens: Vec<_> = parts.iter().map(|(pos, to)| (*pos, to.len())).collect();
        self.history.push(format!("batch {lens:?}"));
        let mut requests: Vec<_> = parts
            .iter_mut()
            .map(|(pos, to)| Request::new(&self.mapping, &self.handle, Iocb::at(*pos), to))
            .collect();
        read_batch(&mut requests);
        for (request, (pos, len)) in requests.iter().zip(lens) {
            let n = request.result().expect("a read of a batch");
            let expected = self.reference.read(pos, len);
            assert_eq_bytes(&request.bytes()[..n], &expected);
        }
        Ok(())
    }

    fn view(&mut self, u: &mut Unstructured<'_>) -> Result<()> {
        let (pos, len) = (pos(u)?, len(u)?);
        self.history.push(format!("view {pos} {len}"));
        let view = self.mapping.view(&self.handle, &mut Iocb::at(pos), len);
        let view = view.expect("view");
        let expected = self.reference.read(pos, view.len());
        assert_eq_bytes(&view, &expected);
        let ends = pos >= self.reference.size() || len == 0;
        assert_eq!(view.is_empty(), ends, "a view of {len} bytes at {pos}");
        if self.views.len() >= 4 {
            drop(self.views.remove(0));
        }
        self.views.push((view, expected));
        Ok(())
    }

    fn fsync(&self) {
        let cursor = self.mapping.sample_wb_err();
        match self.mapping.fsync(&cursor) {
            Ok(()) => {
                let durable = self.backend.durable();
                let differ = durable.first_difference(self.reference.image());
                assert_eq!(differ, None, "not durable after a good fsync");
            }
            Err(Errno::EIO) => {}
            Err(error) => panic!("fsync: {error}"),
        }
    }

    fn fault(&mut self, u: &mut Unstructured<'_>) -> Result<()> {
        let times = u64::from(u.arbitrary::<u8>()? % 4);
        self.history.push(format!("{times} faults"));
        match times {
            0 => self.backend.faults().heal(),
            times => {
                let on = OpSet::WRITE | OpSet::FLUSH | OpSet::WRITE_INODE;
                let rule = Rule::new(on, Effect::Fail(Errno::EIO)).times(times);
                let _ = self.backend.faults().add(rule);
            }
        }
        Ok(())
    }

    fn check(&self) {
        assert_eq!(self.mapping.size(), self.reference.size());
        for (view, expected) in &self.views {
            assert_eq_bytes(view, expected);
        }
    }

    /// Everything is read once more, then made durable.
    fn finish(&self) {
        let size = self.reference.size() as usize;
        let found = self.bytes(&mut Iocb::at(0), size + 10);
        assert_eq_bytes(&found, &self.reference.read(0, size));
        self.backend.faults().heal();
        self.fsync();
        // The store works now: the first sync may report an earlier failure, the second must not.
        let cursor = self.mapping.sample_wb_err();
        assert_eq!(self.mapping.fsync(&cursor), Ok(()));
        let stats = self.mapping.stats();
        let left = stats.dirty_pages + stats.writeback_pages + stats.unstable_pages;
        assert_eq!((left, stats.failed_pages), (0, 0), "left after an fsync");
        let broken = self.backend.broken_contract();
        assert!(broken.is_empty(), "{broken:#?}");
    }
}

#[track_caller]
fn assert_eq_bytes(found: &[u8], expected: &[u8]) {
    let differ = found.iter().zip(expected).position(|(a, b)| a != b);
    assert_eq!(differ, None, "the first byte that is wrong");
    assert_eq!(found.len(), expected.len(), "bytes");
}

/// Prints the steps so far when one panics.
impl Drop for Run {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("steps: {:#?}", self.history);
        }
    }
}

pub(crate) fn run(bytes: &[u8]) {
    let mut config = MmConfig::new(LIMIT);
    config.external_pressure = false;
    let mm = Mm::new(config).expect("a cache");
    let bdi = BackingDevInfo::new(&mm, "fuzz", BdiKind::Storage).expect("a file system");
    let backend = FaultyBackend::new("fuzz", &Faults::new(0));
    let mut run = Run {
        mapping: AddressSpace::new(&bdi, Arc::clone(&backend) as _, 0),
        backend,
        handle: ReadaheadState::new(),
        reference: ReferenceFile::new(),
        views: Vec::new(),
        history: Vec::new(),
        fills: 0,
    };
    let mut u = Unstructured::new(bytes);
    while !u.is_empty() && run.history.len() < 200 {
        if run.step(&mut u).is_err() {
            break;
        }
        run.check();
    }
    run.finish();
}
