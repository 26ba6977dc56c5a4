//! Several directories in a process that may have few files open.
//!
//! A program of its own, because it lowers the limit of the whole process.

use foliocache::Cache;
use rustix::process::{Resource, Rlimit, setrlimit};

const LIMIT: u64 = 384;
const DIRECTORIES: usize = 6;
const FILES: usize = 400;

#[test]
fn directories_share_the_descriptors_of_the_process() {
    let limit = Rlimit {
        current: Some(LIMIT),
        maximum: Some(LIMIT),
    };
    setrlimit(Resource::Nofile, limit).unwrap();
    let cache = Cache::builder().memory("64M").build().unwrap();
    let mut all = Vec::new();
    for number in 0..DIRECTORIES {
        let source = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        let directory = cache.directory(source.path()).unwrap();
        for name in 0..FILES {
            let file = directory.create(name.to_string()).unwrap();
            file.write_all_at(&[number as u8; 5000], 0).unwrap();
        }
        all.push((directory, source));
    }
    cache.sync().unwrap();
    for (number, (_, source)) in all.iter().enumerate() {
        for name in 0..FILES {
            let bytes = std::fs::read(source.path().join(name.to_string())).unwrap();
            assert!(bytes == [number as u8; 5000]);
        }
    }
}
