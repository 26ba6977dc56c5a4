//! Microseconds per fault that is resolved inline: the signal, one `UFFDIO_CONTINUE` of one page, and the way back.
//!
//! Beside it: the call alone, and a fault of the kernel's own on the same memory. Medians over rounds of 512 pages.
//!
//! `cargo run --release -p foliocache-sys --example fault_speed [ROUNDS]`
//!
//! # Safety
//!
//! Every byte that is touched lies in a mapping that lives until the end.
#![allow(unsafe_code)]

use foliocache_sys::memory::{PAGE_SIZE, ReservedRange, SharedMemory, WindowAccess, WindowArea};
use foliocache_sys::userfaultfd::{Access, Handler, ResolveFault, Userfaultfd, resolve_inline};
use std::ops::Range;
use std::sync::Arc;
use std::time::Instant;

const PAGES: usize = 512;

/// Maps the page, as little as a resolver can do.
struct Mapper {
    faults: Userfaultfd,
    access: Access,
}

struct Resolver(Arc<Mapper>);

impl Mapper {
    fn map(&self, pages: Range<usize>) -> bool {
        self.faults.map(pages, self.access).stopped.is_none()
    }
}

impl ResolveFault for Resolver {
    fn resolve(&self, address: usize, _write: bool) -> bool {
        let page = address & !(PAGE_SIZE - 1);
        self.0.map(page..page + PAGE_SIZE)
    }
}

fn pages(area: &WindowArea) -> impl Iterator<Item = usize> {
    area.addresses().step_by(PAGE_SIZE).take(PAGES)
}

fn touch(address: usize) {
    let place = std::ptr::with_exposed_provenance::<u8>(address);
    // SAFETY: see the header.
    std::hint::black_box(unsafe { place.read_volatile() });
}

fn main() {
    let rounds = std::env::args()
        .nth(1)
        .map_or(200, |text| text.parse().expect("rounds"));
    let len = PAGES * PAGE_SIZE;
    let range = ReservedRange::reserve(len).unwrap();
    // SAFETY: the range is private to this function.
    let memory = unsafe { SharedMemory::over(&range, 0..len, false) }.unwrap();
    range.populate(0..len).unwrap();
    let window = |faults: Option<&Userfaultfd>| {
        let area = WindowArea::reserve(len).unwrap();
        let access = WindowAccess::ReadWrite;
        // SAFETY: a new area; its faults are resolved before it is touched.
        unsafe { area.map(0, &memory, 0..len as u64, access, faults) }.unwrap();
        area
    };
    let mapper = |access| {
        let faults = Userfaultfd::open(Handler::Signal).unwrap();
        Arc::new(Mapper { faults, access })
    };
    let (read, write) = (mapper(Access::Read), mapper(Access::Write));
    let areas = [
        Some(&read.faults),
        Some(&write.faults),
        Some(&write.faults),
        None,
    ]
    .map(window);
    let resolve = |area: &WindowArea, mapper| {
        let resolver = Box::new(Resolver(Arc::clone(mapper)));
        resolve_inline(area.addresses(), resolver).unwrap()
    };
    let _inline = [resolve(&areas[0], &read), resolve(&areas[1], &write)];
    let map = |address| assert!(write.map(address..address + PAGE_SIZE));
    let ways: [(&str, &dyn Fn(usize)); 4] = [
        ("inline, mapped for reading", &touch),
        ("inline, mapped for writing", &touch),
        ("UFFDIO_CONTINUE alone", &map),
        ("a fault of the kernel's", &touch),
    ];
    let mut times = [const { Vec::new() }; 4];
    for _ in 0..rounds {
        for (way, (area, times)) in ways.iter().zip(areas.iter().zip(&mut times)) {
            area.zap(0..len).unwrap();
            let started = Instant::now();
            pages(area).for_each(way.1);
            times.push(started.elapsed().as_secs_f64() * 1e6 / PAGES as f64);
        }
    }
    for (way, times) in ways.iter().zip(&mut times) {
        times.sort_by(f64::total_cmp);
        println!("{:28} {:6.2} µs", way.0, times[times.len() / 2]);
    }
}
