//! Every path of the routines against a model, with either side ending at every place.
//!
//! # Safety
//!
//! Handlers are installed first, and every pointer is into an [`Arena`] of the test: either memory
//! that it owns, or one of the protected pages around it.
#![allow(unsafe_code)]

use super::arch::{self, Path};
use super::*;
use rustix::mm::{MapFlags, MprotectFlags, ProtFlags, mmap_anonymous, mprotect, munmap};

const PAGE: usize = 4096;
const NEVER: usize = usize::MAX;

/// Some pages of memory between two pages that cannot be accessed.
struct Arena {
    start: *mut u8,
    pages: usize,
}

impl Arena {
    fn new(pages: usize) -> Arena {
        let len = (pages + 2) * PAGE;
        let prot = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping.
        let start = unsafe { mmap_anonymous(core::ptr::null_mut(), len, prot, MapFlags::PRIVATE) };
        let start = start.unwrap().cast::<u8>();
        for guard in [start, start.wrapping_add(len - PAGE)] {
            // SAFETY: a page of the new mapping.
            unsafe { mprotect(guard.cast(), PAGE, MprotectFlags::empty()) }.unwrap();
        }
        Arena { start, pages }
    }

    /// The first accessible byte.
    fn first(&self) -> *mut u8 {
        self.start.wrapping_add(PAGE)
    }

    /// The first byte of the upper guard.
    fn end(&self) -> *mut u8 {
        self.first().wrapping_add(self.pages * PAGE)
    }

    #[allow(clippy::mut_from_ref, reason = "one borrow at a time in these tests")]
    fn bytes(&self) -> &mut [u8] {
        // SAFETY: mapped, ours, and borrowed for one statement at a time.
        unsafe { core::slice::from_raw_parts_mut(self.first(), self.pages * PAGE) }
    }
}

impl Drop for Arena {
    fn drop(&mut self) {
        // SAFETY: our mapping.
        unsafe { munmap(self.start.cast(), (self.pages + 2) * PAGE) }.unwrap();
    }
}

/// All ways through the routines on this machine.
fn paths() -> Vec<(Path, usize)> {
    let mut paths = vec![(Path::Sse, NEVER), (Path::Sse, 129)];
    if std::is_x86_feature_detected!("avx") {
        paths.extend([(Path::Avx, NEVER), (Path::Avx, 129)]);
    } else {
        eprintln!("no AVX here: its path is not tested");
    }
    paths
}

fn pattern(at: usize) -> u8 {
    (at as u32).wrapping_mul(2_654_435_761).to_be_bytes()[0] | 1
}

fn source(pages: usize) -> Arena {
    let arena = Arena::new(pages);
    for (at, byte) in arena.bytes().iter_mut().enumerate() {
        *byte = pattern(at);
    }
    arena
}

/// One copy against the model: with `reach` bytes accessible on the side that ends, exactly these are
/// copied, and nothing else of the destination changes.
#[track_caller]
fn check_copy(
    (path, rep): (Path, usize),
    (src_arena, src): (&Arena, *mut u8),
    (dst_arena, dst): (&Arena, *mut u8),
    len: usize,
    expected: Result<(), CopyFault>,
) {
    // The part of the destination that exists, with a margin to see stores outside.
    let lower = dst.addr().saturating_sub(64).max(dst_arena.first().addr());
    let upper = (dst.addr() + len + 64).min(dst_arena.end().addr());
    let window = lower - dst_arena.first().addr()..upper.max(lower) - dst_arena.first().addr();
    dst_arena.bytes()[window.clone()].fill(0);
    // SAFETY: handlers are installed, and everything accessible is ours.
    let result = unsafe { arch::copy_by(path, rep, dst, src, len) }.result();
    let what = || format!("{path:?} rep {rep} len {len} src {src:?} dst {dst:?}");
    assert_eq!(result, expected, "{}", what());
    let copied = len - result.map_or_else(|fault| fault.left, |()| 0);
    for at in window {
        let address = dst_arena.first().addr() + at;
        let offset = address.wrapping_sub(dst.addr());
        let wanted = if offset < copied {
            src_arena.bytes()[src.addr() + offset - src_arena.first().addr()]
        } else {
            0
        };
        assert_eq!(dst_arena.bytes()[at], wanted, "byte {offset} of {}", what());
    }
}

fn lengths() -> impl Iterator<Item = usize> {
    let large = [
        255, 256, 257, 300, 511, 640, 1000, 4095, 4096, 4097, 8191, 9000,
    ];
    (0..=161).chain(large)
}

#[test]
fn whole_copies_of_all_lengths_and_alignments() {
    let (src, dst) = (source(4), Arena::new(4));
    for path in paths() {
        for len in lengths() {
            for align in 0..64 {
                let from = (&src, src.first().wrapping_add(align * 7 % 64));
                let to = (&dst, dst.first().wrapping_add(64 + align));
                check_copy(path, from, to, len, Ok(()));
            }
        }
    }
}

/// Places for the end of the accessible part, in a copy of `len` bytes.
fn reaches(len: usize) -> Vec<usize> {
    let mut reaches = vec![0, 1, 2, 7, 8, 15, 16, 31, 33, 64, 65, 127, 128, 129, 200];
    reaches.extend([
        len / 3,
        len / 2,
        len.saturating_sub(33),
        len.saturating_sub(16),
    ]);
    reaches.extend([len.saturating_sub(2), len.saturating_sub(1)]);
    reaches.retain(|&reach| reach < len);
    reaches.sort_unstable();
    reaches.dedup();
    reaches
}

#[test]
fn the_source_ends_anywhere() {
    install_handlers().unwrap();
    let (src, dst) = (source(4), Arena::new(4));
    for path in paths() {
        for len in lengths() {
            for reach in reaches(len) {
                for align in [0, 1, 3, 8, 15, 16, 17, 31, 33, 63] {
                    let from = (&src, src.end().wrapping_sub(reach));
                    let to = (&dst, dst.first().wrapping_add(64 + align));
                    let fault = CopyFault {
                        left: len - reach,
                        side: Side::Source,
                    };
                    check_copy(path, from, to, len, Err(fault));
                }
            }
        }
    }
}

#[test]
fn the_destination_ends_anywhere() {
    install_handlers().unwrap();
    let (src, dst) = (source(4), Arena::new(4));
    for path in paths() {
        for len in lengths() {
            for reach in reaches(len) {
                for align in [0, 1, 3, 8, 15, 16, 17, 31, 33, 63] {
                    let from = (&src, src.first().wrapping_add(64 + align));
                    let to = (&dst, dst.end().wrapping_sub(reach));
                    let fault = CopyFault {
                        left: len - reach,
                        side: Side::Destination,
                    };
                    check_copy(path, from, to, len, Err(fault));
                }
            }
        }
    }
}

/// The range begins in a page that is not there and goes on in one that is: nothing is copied.
#[test]
fn a_start_before_the_memory() {
    install_handlers().unwrap();
    let (src, dst) = (source(4), Arena::new(4));
    for path in paths() {
        for len in lengths().filter(|&len| len > 0) {
            for before in [1, 2, 15, 16, 31, 40, 127, 200]
                .into_iter()
                .filter(|&n| n <= len)
            {
                let low = (&src, src.first().wrapping_sub(before));
                let to = (&dst, dst.first().wrapping_add(64));
                let fault = CopyFault {
                    left: len,
                    side: Side::Source,
                };
                check_copy(path, low, to, len, Err(fault));

                let from = (&src, src.first().wrapping_add(64));
                let low = (&dst, dst.first().wrapping_sub(before));
                let fault = CopyFault {
                    left: len,
                    side: Side::Destination,
                };
                check_copy(path, from, low, len, Err(fault));
            }
        }
    }
}

#[test]
fn zero_ends_anywhere() {
    install_handlers().unwrap();
    let dst = Arena::new(4);
    for (path, rep) in paths() {
        for len in lengths() {
            for reach in reaches(len).into_iter().chain([len]) {
                for align in [0, 1, 5, 16, 31] {
                    // The last case has room: it ends before the guard, at some alignment.
                    let margin = if reach == len { 64 + align } else { 0 };
                    let start = dst.end().wrapping_sub(reach + margin);
                    let at = start.addr() - dst.first().addr();
                    let window = at - 64..(at + len + 64).min(4 * PAGE);
                    dst.bytes()[window.clone()].fill(0xaa);
                    // SAFETY: handlers are installed, and everything accessible is ours.
                    let result = unsafe { arch::zero_by(path, rep, start, len) }.result();
                    let left = len - reach;
                    let side = Side::Destination;
                    let wanted = if left == 0 {
                        Ok(())
                    } else {
                        Err(CopyFault { left, side })
                    };
                    assert_eq!(result, wanted, "{path:?} rep {rep} len {len} reach {reach}");
                    for i in window {
                        let zeroed = (at..at + reach).contains(&i);
                        assert_eq!(
                            dst.bytes()[i],
                            if zeroed { 0 } else { 0xaa },
                            "{len} {reach}"
                        );
                    }
                }
            }
        }
    }
}

/// Both unreachable: the source is read first, so the error names it.
#[test]
fn both_sides_missing_names_the_source() {
    install_handlers().unwrap();
    let arena = Arena::new(1);
    for (path, rep) in paths() {
        for len in [1, 16, 64, 200, 4096] {
            // SAFETY: handlers are installed, and nothing of it is accessible.
            let outcome = unsafe { arch::copy_by(path, rep, arena.end(), arena.end(), len) };
            let fault = CopyFault {
                left: len,
                side: Side::Source,
            };
            assert_eq!(outcome.result(), Err(fault));
        }
    }
}

/// The canary: a table that resolves nothing, or everything, would make the other tests meaningless
/// or hide crashes of other code.
#[test]
fn the_fixup_ranges_are_neither_empty_nor_everything() {
    let ranges = arch::ranges();
    assert_eq!(ranges.len(), 4);
    for range in &ranges {
        assert!(range.len() > 64 && range.len() < 1024, "{range:x?}");
        for ip in [range.start, range.start + 20, range.end - 1] {
            let target = arch::fixup(ip).expect("inside");
            assert!(!ranges.iter().any(|range| range.contains(&target)));
        }
    }
    let foreign = the_fixup_ranges_are_neither_empty_nor_everything as *const () as usize;
    assert_eq!(arch::fixup(foreign), None);
    assert_eq!(arch::fixup(0), None);
    assert_eq!(arch::fixup(usize::MAX), None);
}

/// A readable, read-only page copied onto itself: the address alone would not reveal the side, nor
/// where the ranges overlap.
#[test]
fn overlapping_ranges_name_the_right_side() {
    install_handlers().unwrap();
    let arena = source(2);
    let second = arena.first().wrapping_add(PAGE);
    // SAFETY: a page of ours.
    unsafe { mprotect(second.cast(), PAGE, MprotectFlags::READ) }.unwrap();
    for (path, rep) in paths() {
        for len in [1, 8, 40, 100, 200, 1000] {
            // The destination cannot be written at once, at the place where the source is or begins.
            for behind in [0, 1, 16, 33, 200] {
                let src = second.wrapping_add(behind);
                // SAFETY: handlers are installed, and everything accessible is ours.
                let result = unsafe { arch::copy_by(path, rep, second, src, len) }.result();
                let fault = CopyFault {
                    left: len,
                    side: Side::Destination,
                };
                assert_eq!(
                    result,
                    Err(fault),
                    "{path:?} rep {rep} len {len} behind {behind}"
                );
            }
        }
    }
}

/// The ordinary case takes one signal: a source, or a destination, that begins in a missing page.
#[test]
fn a_fault_at_the_next_byte_is_resolved_at_once() {
    let [avx, sse, ..] = arch::ranges();
    for range in [avx, sse] {
        let ip = range.start + 16;
        let registers = [0x10_000, 0x20_000, 0x20_100];
        let source = arch::shortcut(ip, registers, 0x10_000).expect("the source");
        let destination = arch::shortcut(ip, registers, 0x20_000).expect("the destination");
        assert_ne!(source, destination);
        // Further on, the bytes before the fault have to be copied first.
        assert_eq!(arch::shortcut(ip, registers, 0x11_000), None);
        // Overlapping, and not at one of these instructions.
        assert_eq!(
            arch::shortcut(ip, [0x20_080, 0x20_000, 0x20_100], 0x20_080),
            None
        );
        assert_eq!(arch::shortcut(range.end + 4096, registers, 0x10_000), None);
    }
}
