//! The same operations on this service and on opendal's own `fs`: the same answers, and the same files.

use foliocache::Cache;
use opendal::services::Fs;
use opendal::{Buffer, EntryMode, Error, ErrorKind, Operator, Result};
use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Few, so that operations meet. Some are of a file and of a directory.
const FILES: [&str; 7] = ["a", "b", "d", "d/a", "d/b", "d/e/a", "f/g/h"];
const DIRECTORIES: [&str; 6] = ["/", "a/", "d/", "d/e/", "f/", "f/g/"];
const OPERATIONS: usize = 200;
const ROUNDS: u64 = 6;
/// A slow machine has fewer rounds.
const AT_MOST: Duration = Duration::from_secs(20);

/// Numbers that follow from a seed (splitmix64).
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % end
    }

    fn of<'a>(&mut self, names: &[&'a str]) -> &'a str {
        names[self.below(names.len() as u64) as usize]
    }

    fn bytes(&mut self) -> Vec<u8> {
        let len = match self.below(8) {
            0 => 0,
            1 => self.below(3_000_000),
            _ => self.below(20_000),
        };
        let first = self.below(256);
        (0..len).map(|at| (first + at * at / 7) as u8).collect()
    }
}

#[derive(Debug)]
enum Operation {
    Write {
        path: &'static str,
        pieces: Vec<Vec<u8>>,
        append: bool,
        if_not_exists: bool,
    },
    Abandon(&'static str),
    Read(&'static str),
    Range(&'static str, u64, u64),
    Stat(&'static str),
    List(&'static str, bool),
    MakeDir(&'static str),
    Delete(&'static str),
    DeleteAll(&'static str),
    Copy(&'static str, &'static str),
    Rename(&'static str, &'static str),
}

impl Operation {
    fn any(numbers: &mut Numbers) -> Self {
        match numbers.below(16) {
            0..=3 => {
                let pieces = (0..1 + numbers.below(3)).map(|_| numbers.bytes());
                let pieces = pieces.collect();
                let path = numbers.of(&FILES);
                let how = numbers.below(4);
                Self::Write {
                    path,
                    pieces,
                    append: how == 0,
                    if_not_exists: how == 1,
                }
            }
            4 => Self::Abandon(numbers.of(&FILES)),
            5 => Self::Read(numbers.of(&FILES)),
            6 | 7 => {
                let start = numbers.below(25_000);
                Self::Range(numbers.of(&FILES), start, start + numbers.below(9_000))
            }
            8 => Self::Stat(numbers.of(&FILES)),
            9 => Self::Stat(numbers.of(&DIRECTORIES)),
            10 => Self::List(numbers.of(&DIRECTORIES), numbers.below(2) == 0),
            11 => Self::MakeDir(numbers.of(&DIRECTORIES)),
            12 => Self::Delete(numbers.of(&FILES)),
            13 if numbers.below(3) == 0 => Self::DeleteAll(numbers.of(&DIRECTORIES[1..])),
            13 | 14 => Self::Copy(numbers.of(&FILES), numbers.of(&FILES)),
            _ => Self::Rename(numbers.of(&FILES), numbers.of(&FILES)),
        }
    }

    async fn on(&self, operator: &Operator) -> Result<String> {
        let described = |read: Buffer| {
            let bytes = read.to_vec();
            let sum = |sum: u64, byte: &u8| sum.wrapping_mul(31).wrapping_add(u64::from(*byte));
            format!("{} bytes, {:x}", bytes.len(), bytes.iter().fold(7, sum))
        };
        match self {
            Self::Write {
                path,
                pieces,
                append,
                if_not_exists,
            } => {
                let writer = operator.writer_with(path).append(*append);
                let mut writer = writer.if_not_exists(*if_not_exists).await?;
                for piece in pieces {
                    writer.write(piece.clone()).await?;
                }
                writer.close().await.map(|_| String::new())
            }
            // Nothing is there before the first byte.
            Self::Abandon(path) => operator.writer(path).await.map(|_| String::new()),
            Self::Read(path) => operator.read(path).await.map(described),
            Self::Range(path, start, end) => {
                let read = operator.read_with(path).range(*start..*end).await;
                read.map(described)
            }
            Self::Stat(path) => {
                let metadata = operator.stat(path).await?;
                let len = match metadata.mode() {
                    EntryMode::FILE => metadata.content_length(),
                    _ => 0,
                };
                Ok(format!("{:?} {len}", metadata.mode()))
            }
            Self::List(path, recursive) => {
                let entries = operator.list_with(path).recursive(*recursive).await?;
                let entries = entries.iter();
                let mut paths: Vec<_> = entries.map(|entry| entry.path().to_owned()).collect();
                paths.sort();
                Ok(paths.join(" "))
            }
            Self::MakeDir(path) => operator.create_dir(path).await.map(|()| String::new()),
            Self::Delete(path) => operator.delete(path).await.map(|()| String::new()),
            Self::DeleteAll(path) => {
                let deleted = operator.delete_with(path).recursive(true).await;
                deleted.map(|()| String::new())
            }
            Self::Copy(from, to) => operator.copy(from, to).await.map(|_| String::new()),
            Self::Rename(from, to) => operator.rename(from, to).await.map(|_| String::new()),
        }
    }
}

/// What the answers have in common. `fs` gives `Unexpected` where this service knows more, and for what it deletes below a file,
/// where there is nothing.
fn same(operation: &Operation, ours: &Result<String>, fs: &Result<String>) -> bool {
    let deletes = matches!(operation, Operation::Delete(_) | Operation::DeleteAll(_));
    let moves = matches!(operation, Operation::Copy(..) | Operation::Rename(..));
    match (ours, fs) {
        (Ok(ours), Ok(fs)) => ours == fs,
        (Ok(_), Err(fs)) if deletes => fs.kind() == ErrorKind::Unexpected,
        // It looks at the target's directories first.
        (Err(_), Err(fs)) if moves && fs.kind() == ErrorKind::AlreadyExists => true,
        (Err(ours), Err(fs)) => ours.kind() == fs.kind() || fs.kind() == ErrorKind::Unexpected,
        _ => false,
    }
}

/// All files and directories below a folder; directories have no content.
fn content(top: &Path) -> BTreeMap<String, Option<Vec<u8>>> {
    let mut found = BTreeMap::new();
    let mut folders = vec![top.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            let name = path.strip_prefix(top).unwrap().to_str().unwrap().to_owned();
            let bytes = match path.is_dir() {
                true => {
                    folders.push(path);
                    None
                }
                false => Some(std::fs::read(&path).unwrap()),
            };
            found.insert(name, bytes);
        }
    }
    found
}

/// `fs` leaves the directories behind that it made for an operation which failed then.
fn forget_made_directories(ours: &Path, fs: &Path) {
    for name in ["f/g", "f", "d/e", "d"] {
        if !ours.join(name).exists() {
            // One that has entries stays, and is found by the comparison.
            let _ = std::fs::remove_dir(fs.join(name));
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn answers_and_files_are_those_of_opendals_fs() {
    let seed = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    let seed = seed.as_nanos() as u64;
    let start = Instant::now();
    for round in 0..ROUNDS {
        if start.elapsed() > AT_MOST {
            println!("{round} rounds were enough");
            break;
        }
        let seed = seed + round;
        println!("seed {seed}");
        let mut numbers = Numbers(seed);
        let sources = [(); 2].map(|()| tempfile::tempdir().unwrap());
        let cache = Cache::builder().memory("16M").build().unwrap();
        let directory = cache.directory(sources[0].path()).unwrap();
        let ours = foliocache_opendal::operator(directory).unwrap();
        let fs = Fs::default().root(sources[1].path().to_str().unwrap());
        let fs = Operator::new(fs).unwrap();
        for number in 0..OPERATIONS {
            let operation = Operation::any(&mut numbers);
            let answers: [Result<String, Error>; 2] =
                [operation.on(&ours).await, operation.on(&fs).await];
            let [mine, theirs] = &answers;
            assert!(
                same(&operation, mine, theirs),
                "seed {seed}, operation {number}: {operation:?}\nours: {mine:?}\nfs: {theirs:?}"
            );
            if theirs.is_err() {
                forget_made_directories(sources[0].path(), sources[1].path());
            }
        }
        // All was closed, so it is in the source.
        let [ours, fs] = sources.each_ref().map(|source| content(source.path()));
        let names: [Vec<_>; 2] = [&ours, &fs].map(|found| found.keys().collect());
        assert_eq!(names[0], names[1], "seed {seed}");
        assert!(ours == fs, "seed {seed}: contents differ");
    }
}
