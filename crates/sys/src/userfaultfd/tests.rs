//! Windows of a memfd, with each way to receive a fault.

use super::*;
use crate::memory::{PAGE_SIZE, ReservedRange, SharedMemory, WindowAccess, WindowArea};
use crate::usercopy;
use std::process::Command;
use std::sync::atomic::{AtomicU8, Ordering};

impl Fault {
    /// Whether the memfd has the page and the page tables have not.
    fn minor(&self) -> bool {
        self.flags & u64::from(raw::UFFD_PAGEFAULT_FLAG_MINOR) != 0
    }

    /// Whether the page is mapped for reading alone.
    fn write_protected(&self) -> bool {
        self.flags & u64::from(raw::UFFD_PAGEFAULT_FLAG_WP) != 0
    }
}

const PAGES: usize = 64;

/// Shared memory, and all of it through a window.
struct Rig {
    range: ReservedRange,
    memory: SharedMemory,
    window: WindowArea,
    faults: Userfaultfd,
}

impl Rig {
    fn new(handler: Handler) -> Rig {
        usercopy::install_handlers().unwrap();
        let faults = Userfaultfd::open(handler).unwrap();
        let len = PAGES * PAGE_SIZE;
        let range = ReservedRange::reserve(len).unwrap();
        // SAFETY: the range is private to this test.
        let memory = unsafe { SharedMemory::over(&range, 0..len, false) }.unwrap();
        let window = WindowArea::reserve(len).unwrap();
        let access = WindowAccess::ReadWrite;
        // SAFETY: a new area, and the tests are ready for faults of the window.
        unsafe { window.map(0, &memory, 0..len as u64, access, Some(&faults)) }.unwrap();
        Rig {
            range,
            memory,
            window,
            faults,
        }
    }

    fn direct(&self) -> *mut u8 {
        self.range.as_ptr()
    }

    fn through_window(&self) -> *mut u8 {
        ptr::with_exposed_provenance_mut(self.window.addresses().start)
    }

    /// Addresses of pages of the window.
    fn pages(&self, from: usize, to: usize) -> Range<usize> {
        let at = |page: usize| self.window.addresses().start + page * PAGE_SIZE;
        at(from)..at(to)
    }

    /// Gives the memfd these pages, filled with their number.
    fn fill(&self, pages: Range<usize>) {
        for page in pages {
            self.byte(self.direct(), page)
                .store(page as u8, Ordering::SeqCst);
        }
    }

    fn byte(&self, mapping: *mut u8, page: usize) -> &AtomicU8 {
        assert!(page < PAGES);
        // SAFETY: within a mapping that lives as long as the rig.
        unsafe { AtomicU8::from_ptr(mapping.wrapping_add(page * PAGE_SIZE)) }
    }

    /// Reads a byte of the window; `None` after a SIGBUS.
    fn read(&self, page: usize) -> Option<u8> {
        let mut byte = 0;
        let from = self.byte(self.through_window(), page).as_ptr();
        // SAFETY: the byte is a local; a fault of the source is returned as an error.
        let copied = unsafe { usercopy::copy(&mut byte, from, 1) };
        copied.ok().map(|()| byte)
    }

    fn write(&self, page: usize, byte: u8) -> bool {
        let to = self.byte(self.through_window(), page).as_ptr();
        // SAFETY: the byte is a local; a fault of the target is returned as an error.
        unsafe { usercopy::copy(to, &byte, 1) }.is_ok()
    }
}

#[test]
fn a_page_is_there_once_it_is_mapped() {
    let rig = Rig::new(Handler::Signal);
    rig.fill(1..4);
    assert_eq!(rig.read(0), None, "a hole");
    assert_eq!(rig.read(1), None, "not mapped yet");
    let three = 3 * PAGE_SIZE as u64;
    assert_eq!(
        rig.memory.resident(),
        Ok(three),
        "a touch of the window makes no page"
    );
    let all = Progress {
        bytes: 2 * PAGE_SIZE,
        stopped: None,
    };
    assert_eq!(rig.faults.map(rig.pages(1, 3), Access::Write), all);
    assert_eq!(
        (rig.read(1), rig.read(2), rig.read(3)),
        (Some(1), Some(2), None)
    );
    assert!(rig.write(2, 7));
    assert_eq!(rig.byte(rig.direct(), 2).load(Ordering::SeqCst), 7);
}

#[test]
fn a_map_says_how_far_it_came() {
    let rig = Rig::new(Handler::Signal);
    let map = |from, to| {
        let Progress { bytes, stopped } = rig.faults.map(rig.pages(from, to), Access::Write);
        (bytes / PAGE_SIZE, stopped)
    };
    rig.fill(0..8);
    rig.fill(9..16);
    assert_eq!(map(0, 16), (8, Some(Errno::EAGAIN)), "a hole in the middle");
    assert_eq!(map(8, 16), (0, Some(Errno::EFAULT)), "a hole at the start");
    assert_eq!(map(0, 8), (0, Some(Errno::EEXIST)), "mapped already");
    rig.fill(8..9);
    assert_eq!(map(10, 11), (1, None));
    assert_eq!(
        map(8, 16),
        (2, Some(Errno::EAGAIN)),
        "one in the middle is mapped"
    );
    assert_eq!(map(11, 16), (5, None));
    assert_eq!(map(PAGES, PAGES + 1).0, 0, "not ours");
}

#[test]
fn a_copy_adds_missing_pages_to_the_memfd_and_changes_no_present_one() {
    let rig = Rig::new(Handler::Signal);
    rig.fill(1..2);
    let bytes = [7; 2 * PAGE_SIZE];
    let copy = |page, access| {
        let to = rig.pages(page, page + 2).start;
        let Progress { bytes, stopped } = rig.faults.copy(to, &bytes, access);
        (bytes / PAGE_SIZE, stopped)
    };
    assert_eq!(copy(0, Access::Read), (1, Some(Errno::EAGAIN)));
    assert_eq!((rig.read(0), rig.write(0, 9)), (Some(7), false));
    assert_eq!(copy(1, Access::Write), (0, Some(Errno::EEXIST)));
    assert_eq!(rig.faults.map(rig.pages(1, 2), Access::Read).stopped, None);
    assert_eq!(rig.read(1), Some(1));
    assert_eq!(copy(2, Access::Write), (2, None));
    assert!(rig.write(3, 9));
    assert_eq!(rig.byte(rig.direct(), 2).load(Ordering::SeqCst), 7);
    assert_eq!(rig.byte(rig.direct(), 3).load(Ordering::SeqCst), 9);
}

#[test]
fn a_page_that_is_mapped_for_reading_is_not_written() {
    let rig = Rig::new(Handler::Signal);
    rig.fill(0..4);
    assert_eq!(rig.faults.map(rig.pages(0, 2), Access::Read).stopped, None);
    assert_eq!(rig.read(1), Some(1));
    assert!(!rig.write(1, 9));
    rig.faults.allow_writes(rig.pages(1, 2)).unwrap();
    assert!(rig.write(1, 9) && !rig.write(0, 9));
    rig.faults.write_protect(rig.pages(0, 4)).unwrap();
    assert!(!rig.write(1, 9));
    // Pages that are not mapped are not protected, and the request leaves no trace.
    assert_eq!(rig.faults.map(rig.pages(2, 3), Access::Write).stopped, None);
    assert!(rig.write(2, 9));
}

#[test]
fn a_poisoned_page_is_bad_memory_until_it_is_zapped_or_mapped() {
    let rig = Rig::new(Handler::Thread);
    rig.fill(0..4);
    assert_eq!(rig.faults.map(rig.pages(2, 3), Access::Write).stopped, None);
    let Progress { bytes, stopped } = rig.faults.poison(rig.pages(0, 4));
    assert_eq!((bytes / PAGE_SIZE, stopped), (2, Some(Errno::EAGAIN)));
    // No thread answers: a fault that went to one would never end.
    assert_eq!((rig.read(1), rig.read(2)), (None, Some(2)));
    assert!(!rig.write(1, 9));
    // Either of the two ends it.
    assert_eq!(rig.faults.map(rig.pages(1, 2), Access::Write).stopped, None);
    assert!(rig.write(1, 9));
    rig.window.zap(0..PAGE_SIZE).unwrap();
    let again = rig.faults.poison(rig.pages(0, 1));
    assert_eq!((again.bytes, rig.read(0)), (PAGE_SIZE, None));
}

#[test]
fn a_write_protected_page_leaves_a_mark_until_writes_are_allowed() {
    let rig = Rig::new(Handler::Signal);
    rig.fill(0..2);
    assert_eq!(rig.faults.map(rig.pages(0, 2), Access::Read).stopped, None);
    rig.window.zap(0..2 * PAGE_SIZE).unwrap();
    assert_eq!(
        rig.faults.poison(rig.pages(0, 1)).stopped,
        Some(Errno::EEXIST)
    );
    assert_eq!(rig.faults.map(rig.pages(1, 2), Access::Write).stopped, None);
    assert!(rig.write(1, 9), "the mark protects nothing");
    rig.faults.allow_writes(rig.pages(0, 1)).unwrap();
    assert_eq!(
        (rig.read(0), rig.write(0, 9)),
        (None, false),
        "nor does it map"
    );
    assert_eq!(rig.faults.poison(rig.pages(0, 1)).stopped, None);
}

#[test]
fn a_zapped_page_is_mapped_again_with_its_bytes() {
    let rig = Rig::new(Handler::Signal);
    rig.fill(0..3);
    assert_eq!(rig.faults.map(rig.pages(0, 3), Access::Write).stopped, None);
    assert!(rig.write(1, 9));
    rig.window.zap(PAGE_SIZE..3 * PAGE_SIZE).unwrap();
    assert_eq!(
        (rig.read(0), rig.read(1), rig.read(2)),
        (Some(0), None, None)
    );
    assert_eq!(rig.faults.map(rig.pages(1, 3), Access::Read).stopped, None);
    assert_eq!((rig.read(1), rig.read(2)), (Some(9), Some(2)));
}

#[test]
fn a_punched_page_is_gone_from_the_window() {
    let rig = Rig::new(Handler::Signal);
    rig.fill(0..2);
    assert_eq!(rig.faults.map(rig.pages(0, 2), Access::Write).stopped, None);
    // SAFETY: the page is not in use.
    unsafe { rig.memory.punch(0..PAGE_SIZE as u64) }.unwrap();
    assert_eq!((rig.read(0), rig.read(1)), (None, Some(1)));
}

#[test]
fn a_thread_is_told_of_each_kind_of_fault() {
    let rig = Rig::new(Handler::Thread);
    let (stopped, stop) = rustix::pipe::pipe().unwrap();
    rig.fill(1..3);
    let mut seen = Vec::new();
    std::thread::scope(|scope| {
        let rig = &rig;
        let handler = scope.spawn(move || {
            let mut seen = Vec::new();
            while !rig.faults.wait(&stopped).unwrap() {
                let Some(fault) = rig.faults.next_fault().unwrap() else {
                    continue;
                };
                let page = (fault.address - rig.window.addresses().start) / PAGE_SIZE;
                seen.push((page, fault.missing(), fault.minor(), fault.write()));
                if fault.missing() {
                    rig.fill(page..page + 1);
                }
                if fault.write_protected() {
                    rig.faults.allow_writes(rig.pages(page, page + 1)).unwrap();
                    continue;
                }
                let access = match fault.write() {
                    true => Access::Write,
                    false => Access::Read,
                };
                let mapped = rig.faults.map(rig.pages(page, page + 1), access);
                assert_eq!(mapped.stopped, None);
            }
            seen
        });
        for (page, write) in [(0, false), (1, false), (1, true), (2, true)] {
            let byte = rig.byte(rig.through_window(), page);
            match write {
                true => byte.store(5, Ordering::SeqCst),
                false => assert_eq!(byte.load(Ordering::SeqCst), page as u8),
            }
        }
        // A system call waits for the handler too.
        let null = std::fs::File::open("/dev/zero").unwrap();
        let buffer = rig.byte(rig.through_window(), 3).as_ptr();
        // SAFETY: the byte belongs to this test and has no other user.
        let buffer = unsafe { std::slice::from_raw_parts_mut(buffer, 1) };
        assert_eq!(rustix::io::read(&null, buffer), Ok(1));
        drop(stop);
        seen = handler.join().unwrap();
    });
    assert_eq!(seen[0], (0, true, false, false));
    assert_eq!(seen[1], (1, false, true, false));
    assert_eq!(seen[2], (1, false, false, true), "write-protected");
    assert_eq!(seen[3], (2, false, true, true));
    assert_eq!(seen[4], (3, true, false, true));
}

#[test]
fn invalid_window_ranges_are_refused() {
    let faults = Userfaultfd::open(Handler::Signal).unwrap();
    let rig = Rig::new(Handler::Signal);
    // SAFETY: nothing becomes a window.
    let register = |range| unsafe { faults.register(range) };
    assert_eq!(register(rig.pages(0, 1)), Err(Errno::EBUSY));
    assert_eq!(register(0..PAGE_SIZE), Err(Errno::EINVAL));
    let odd = rig.pages(0, 1);
    assert_eq!(register(odd.start + 1..odd.end), Err(Errno::EINVAL));
    let direct = rig.direct().addr()..rig.direct().addr() + PAGE_SIZE;
    assert_eq!(rig.faults.write_protect(direct), Err(Errno::ENOENT));
}

/// The constants of the installed headers; older headers lack some.
#[test]
fn numbers_are_those_of_the_kernels_header() {
    let missing = std::env::var("FOLIOCACHE_MISSING").unwrap_or_default();
    if missing.split(',').any(|name| name == "cc") {
        return eprintln!("SKIPPED: there is no cc");
    }
    let names = [
        ("UFFD_API", u64::from(raw::UFFD_API)),
        ("UFFDIO_API", u64::from(opcode::UFFDIO_API)),
        ("UFFDIO_REGISTER", u64::from(opcode::UFFDIO_REGISTER)),
        ("UFFDIO_UNREGISTER", u64::from(opcode::UFFDIO_UNREGISTER)),
        ("UFFDIO_WAKE", u64::from(opcode::UFFDIO_WAKE)),
        ("UFFDIO_CONTINUE", u64::from(opcode::UFFDIO_CONTINUE)),
        ("UFFDIO_COPY", u64::from(opcode::UFFDIO_COPY)),
        ("UFFDIO_COPY_MODE_WP", WRITE_PROTECTED),
        (
            "UFFDIO_WRITEPROTECT",
            u64::from(opcode::UFFDIO_WRITEPROTECT),
        ),
        ("UFFDIO_WRITEPROTECT_MODE_WP", PROTECT),
        (
            "USERFAULTFD_IOC_NEW",
            u64::from(New(UserfaultfdFlags::empty()).opcode()),
        ),
        ("UFFD_USER_MODE_ONLY", u64::from(raw::UFFD_USER_MODE_ONLY)),
        ("UFFD_EVENT_PAGEFAULT", u64::from(raw::UFFD_EVENT_PAGEFAULT)),
        ("UFFD_FEATURE_SIGBUS", u64::from(raw::UFFD_FEATURE_SIGBUS)),
        ("sizeof(struct uffd_msg)", MESSAGE as u64),
        ("offsetof(struct uffd_msg, arg.pagefault.flags)", 8),
        ("offsetof(struct uffd_msg, arg.pagefault.address)", 16),
        ("UFFDIO_CONTINUE_MODE_WP", WRITE_PROTECTED),
        ("UFFDIO_POISON", u64::from(POISON)),
        ("UFFD_FEATURE_POISON", u64::from(raw::UFFD_FEATURE_POISON)),
    ];
    let newer = [
        "UFFDIO_CONTINUE_MODE_WP",
        "UFFDIO_POISON",
        "UFFD_FEATURE_POISON",
    ];
    let mut program = String::from(
        "#include <sys/ioctl.h>\n#include <linux/fs.h>\n#include <linux/userfaultfd.h>\n#include <stddef.h>\n",
    );
    for (name, value) in names {
        let check = format!("_Static_assert({name} == {value}ull, \"{name}\");\n");
        match newer.contains(&name) {
            true => program += &format!("#ifdef {name}\n{check}#endif\n"),
            false => program += &check,
        }
    }
    let dir = tempfile::tempdir().unwrap();
    let source = dir.path().join("numbers.c");
    std::fs::write(&source, program).unwrap();
    let compiler = Command::new("cc")
        .arg("-fsyntax-only")
        .arg(&source)
        .output();
    let compiled = compiler.expect("a C compiler");
    assert!(
        compiled.status.success(),
        "{}",
        String::from_utf8_lossy(&compiled.stderr)
    );
}

#[test]
fn without_privilege_only_signals_are_allowed() {
    let setting = std::fs::read_to_string("/proc/sys/vm/unprivileged_userfaultfd").unwrap();
    let thread = std::thread::spawn(|| {
        // Capabilities are each thread's own.
        let none = rustix::thread::CapabilitySet::empty();
        let sets = rustix::thread::CapabilitySets {
            effective: none,
            permitted: none,
            inheritable: none,
        };
        rustix::thread::set_capabilities(None, sets).unwrap();
        [Handler::Thread, Handler::Signal].map(|handler| Userfaultfd::open(handler).map(drop))
    });
    let [by_thread, by_signal] = thread.join().unwrap();
    assert_eq!(by_signal, Ok(()));
    if setting.trim() == "0"
        && rustix::fs::access("/dev/userfaultfd", rustix::fs::Access::READ_OK).is_err()
    {
        assert_eq!(by_thread, Err(OpenError::Forbidden));
    }
}
