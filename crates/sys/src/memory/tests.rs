//! Tests of the reserved range: its cost, the memory it gives back, its use after that.
//!
//! # Safety
//!
//! Pointers are used inside the active part of a range that the test owns.
#![allow(unsafe_code)]

use super::*;

const MIB: usize = 1 << 20;

/// Resident pages of a part, by mincore(2) (anonymous memory: those that are mapped or swapped out).
fn resident_pages(range: &ReservedRange, part: Range<usize>) -> usize {
    let (start, len) = range.part(part).unwrap();
    let mut map = vec![0u8; len / PAGE_SIZE];
    // SAFETY: the vector has a byte for each page of the part, which is mapped.
    let rc = unsafe { libc::mincore(start, len, map.as_mut_ptr()) };
    assert_eq!(rc, 0, "{}", Errno::last_os_error());
    map.iter().filter(|&&byte| byte & 1 != 0).count()
}

fn write(range: &ReservedRange, offset: usize, value: u8) {
    // SAFETY: callers pass an offset in an active part.
    unsafe { range.as_ptr().wrapping_add(offset).write_volatile(value) }
}

fn read(range: &ReservedRange, offset: usize) -> u8 {
    // SAFETY: callers pass an offset in an active part.
    unsafe { range.as_ptr().wrapping_add(offset).read_volatile() }
}

#[test]
fn a_terabyte_costs_nothing() {
    let range = ReservedRange::reserve(1 << 40).unwrap();
    assert_eq!(range.len(), 1 << 40);
    assert_eq!(range.as_ptr() as usize % HUGE_PAGE_SIZE, 0);
    range.activate(0..1 << 30, true).unwrap();
    // Both sides of the end of the active part.
    assert_eq!(resident_pages(&range, 0..2 << 30), 0);
}

#[test]
fn memory_given_back_is_free_and_reads_zero() {
    let range = ReservedRange::reserve(64 * MIB).unwrap();
    range.activate(0..32 * MIB, true).unwrap();
    range.populate(0..32 * MIB).unwrap();
    assert_eq!(resident_pages(&range, 0..32 * MIB), 32 * MIB / PAGE_SIZE);
    for offset in (0..32 * MIB).step_by(PAGE_SIZE) {
        write(&range, offset, 7);
    }
    // Populating again changes nothing.
    range.populate(0..32 * MIB).unwrap();
    assert_eq!(read(&range, 5 * PAGE_SIZE), 7);

    // SAFETY: the range is private to this test.
    unsafe { range.give_back(2 * MIB..6 * MIB) }.unwrap();
    assert_eq!(resident_pages(&range, 2 * MIB..6 * MIB), 0);
    assert_eq!(resident_pages(&range, 0..32 * MIB), 28 * MIB / PAGE_SIZE);
    for offset in (2 * MIB..6 * MIB).step_by(PAGE_SIZE) {
        assert_eq!(read(&range, offset), 0);
        write(&range, offset, 9);
    }
    assert_eq!(read(&range, 2 * MIB - PAGE_SIZE), 7);
    assert_eq!(read(&range, 6 * MIB), 7);
    assert_eq!(read(&range, 4 * MIB), 9);
}

#[test]
fn populated_memory_is_huge_where_the_kernel_has_huge_pages() {
    let enabled = std::fs::read_to_string("/sys/kernel/mm/transparent_hugepage/enabled");
    if enabled.is_ok_and(|enabled| enabled.contains("[never]")) {
        eprintln!("transparent huge pages are off: nothing to check");
        return;
    }
    let range = ReservedRange::reserve(64 * MIB).unwrap();
    range.activate(0..64 * MIB, true).unwrap();
    range.populate(0..64 * MIB).unwrap();
    let smaps = std::fs::read_to_string("/proc/self/smaps").unwrap();
    let header = format!("{:x}-", range.as_ptr() as usize);
    let start = smaps
        .find(&header)
        .expect("the range is a mapping of its own");
    let ours = Resident::parse(&smaps[start..]);
    assert_eq!(ours.anonymous, 64 * MIB as u64);
    // A machine short of free huge pages may mix; none at all would mean that the advice is wrong.
    assert!(ours.anon_huge_pages >= 32 * MIB as u64, "{ours:?}");
}

#[test]
fn ranges_outside_are_refused() {
    let range = ReservedRange::reserve(1).unwrap();
    assert_eq!(range.len(), HUGE_PAGE_SIZE);
    let len = range.len();
    assert_eq!(
        range.activate(0..len + PAGE_SIZE, false),
        Err(Errno::EINVAL)
    );
    assert_eq!(range.activate(1..PAGE_SIZE, false), Err(Errno::EINVAL));
    assert_eq!(range.populate(0..PAGE_SIZE - 1), Err(Errno::EINVAL));
    let backwards = Range {
        start: PAGE_SIZE,
        end: 0,
    };
    assert_eq!(range.activate(backwards, false), Err(Errno::EINVAL));
    assert_eq!(ReservedRange::reserve(0).unwrap_err(), Errno::EINVAL);
    assert_eq!(
        ReservedRange::reserve(usize::MAX).unwrap_err(),
        Errno::EINVAL
    );
    assert!(range.contains(range.as_ptr()));
    assert!(!range.contains(range.as_ptr().wrapping_add(len)));
    assert!(!range.contains(range.as_ptr().wrapping_sub(1)));
}

/// A part that is not active cannot be populated, and the attempt sends no signal.
#[test]
fn populate_needs_an_active_part() {
    let range = ReservedRange::reserve(4 * MIB).unwrap();
    assert!(matches!(
        range.populate(0..PAGE_SIZE),
        Err(Errno::EFAULT | Errno::ENOMEM)
    ));
}

#[test]
fn totals_are_plausible() {
    assert!(total_memory() > 64 * MIB as u64);
    let resident = Resident::of_process().unwrap();
    assert!(resident.pss > 0);
    assert!(Resident::of_process().unwrap().anonymous < total_memory());
}
