//! As many mappings at once as a process may have, and then one more.
//!
//! Runs in a separate process, which takes 700 MiB.

use crate::common::{is_alone, run_alone};
use foliocache::{Cache, Error, MapAccess, MapError, Mapping, MappingFaults};
use rustix::process::{Resource, Rlimit, setrlimit};
use std::fs;
use std::sync::atomic::Ordering::Relaxed;

const AT_ONCE: usize = 30_000;

/// Descriptors that a process usually may have.
const DESCRIPTORS: u64 = 1024;

#[test]
#[ignore = "system tier"]
fn thirty_thousand_files_are_mapped_at_once_and_one_too_many_is_refused() {
    let said = run_alone("many_mappings::many_at_once");
    println!("{said}");
}

fn areas_of_process() -> usize {
    let maps = fs::read_to_string("/proc/self/maps").expect("maps");
    maps.lines().count()
}

fn byte(file: usize) -> u8 {
    (file % 251) as u8 + 1
}

#[test]
#[ignore = "system tier"]
fn many_at_once() {
    if !is_alone() {
        return;
    }
    let limit = Rlimit {
        current: Some(DESCRIPTORS),
        maximum: Some(DESCRIPTORS),
    };
    setrlimit(Resource::Nofile, limit).expect("a limit");
    let most = fs::read_to_string("/proc/sys/vm/max_map_count").expect("a setting");
    let most: usize = most.trim().parse().expect("a number");
    for mode in [MappingFaults::Thread, MappingFaults::Inline] {
        let cache = Cache::builder().memory("1G").mapping_faults(mode);
        let cache = cache.external_pressure(false).build().expect("a cache");
        let memory = cache.memfs().expect("a file system");
        let map = |at: usize| {
            let file = memory.create(format!("f{at}"))?;
            file.set_len(10_000)?;
            let mapping = file.map(.., MapAccess::ReadWrite)?;
            mapping.as_atomics().expect("it is for stores")[9_999].store(byte(at), Relaxed);
            Ok::<_, Error>(mapping)
        };
        let before = areas_of_process();
        let mut all: Vec<Mapping> = (0..AT_ONCE).map(|at| map(at).expect("it fits")).collect();
        let check = |all: &[Mapping]| {
            for (at, mapping) in all.iter().enumerate() {
                let bytes = mapping.as_atomics().expect("it is for stores");
                assert_eq!(bytes[9_999].load(Relaxed), byte(at), "file {at}");
                assert_eq!(bytes[0].load(Relaxed), 0, "file {at}");
            }
        };
        check(&all);
        println!(
            "{mode:?}: {AT_ONCE} files in {} areas, {:?}",
            areas_of_process(),
            cache.stats().expect("statistics").memory
        );
        // Where more are allowed it is memory that ends.
        if most < 3 * AT_ONCE {
            let error = loop {
                match map(all.len()) {
                    Ok(mapping) => all.push(mapping),
                    Err(error) => break error,
                }
            };
            assert!(error.to_string().contains("vm.max_map_count"), "{error}");
            let Error::Map { cause, .. } = error else {
                panic!("{error}");
            };
            assert!(matches!(cause, MapError::TooManyMappings), "{cause}");
            check(&all);
            // Some that go make room for another.
            all.truncate(all.len() - 10);
            all.push(map(all.len()).expect("there is room"));
            check(&all);
        }
        let nr = all.len();
        drop(all);
        assert!(areas_of_process() < before + 100);
        for at in (0..nr).step_by(7) {
            let mut found = [0; 10_000];
            let file = memory.open(format!("f{at}")).expect("it is there");
            file.read_exact_at(&mut found, 0).expect("a read");
            assert_eq!((found[0], found[9_999]), (0, byte(at)), "file {at}");
        }
    }
}
