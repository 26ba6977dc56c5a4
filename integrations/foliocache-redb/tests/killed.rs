//! A process that commits is killed again and again: what was durable is there, nothing of a later transaction is.

mod common;

use common::{Known, Numbers, commit_one, is_durable, last, open};
use std::io::{BufRead, BufReader, Lines};
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

const ROUNDS: u64 = 20;
/// A slow machine has fewer rounds.
const ENOUGH: u64 = 6;
const AT_MOST: Duration = Duration::from_secs(20);
/// Where the process that is killed finds the database.
const CHILD: &str = "FOLIOCACHE_REDB_KILLED";

/// Commits until it is killed, and tells of each step.
fn commit(path: &Path) {
    let (_cache, db) = open(path);
    for number in last(&db) + 1.. {
        println!("\nbegun {number}");
        if commit_one(&db, number) {
            println!("\ndurable {number}");
        }
    }
}

/// The process that is killed, and what it told.
struct Victim {
    child: Child,
    lines: Lines<BufReader<ChildStdout>>,
    begun: u64,
    durable: u64,
}

impl Victim {
    fn start(path: &Path) -> Self {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "a_killed_process_loses_no_durable_transaction"])
            .arg("--nocapture")
            .env(CHILD, path)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        Self {
            child,
            lines,
            begun: 0,
            durable: 0,
        }
    }

    /// Whether there was a line.
    fn hear(&mut self) -> bool {
        // The last line may end anywhere.
        let Some(Ok(line)) = self.lines.next() else {
            return false;
        };
        let number = |told: &str| told.parse::<u64>().unwrap_or(0);
        if let Some(told) = line.strip_prefix("begun ") {
            self.begun = self.begun.max(number(told));
        } else if let Some(told) = line.strip_prefix("durable ") {
            self.durable = self.durable.max(number(told));
        }
        true
    }

    fn kill(mut self) -> (u64, u64) {
        self.child.kill().unwrap();
        while self.hear() {}
        let status = self.child.wait().unwrap();
        assert_eq!(status.code(), None, "it ended by itself: {status}");
        (self.begun, self.durable)
    }
}

#[test]
fn a_killed_process_loses_no_durable_transaction() {
    if let Some(path) = std::env::var_os(CHILD) {
        return commit(Path::new(&path));
    }
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("db");
    let seed = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    let seed = seed.as_nanos() as u64;
    println!("seed {seed}");
    let mut numbers = Numbers(seed);
    let mut known = Known::default();
    let mut before = 0;
    let start = Instant::now();
    for round in 0..ROUNDS {
        if round >= ENOUGH && start.elapsed() > AT_MOST {
            println!("{round} rounds were enough");
            break;
        }
        let mut victim = Victim::start(&path);
        // Some are killed while they open the database.
        let transactions = numbers.below(8) * numbers.below(8);
        while transactions > 0 && victim.begun < before + transactions {
            assert!(victim.hear(), "round {round}: it ended by itself");
        }
        // Anywhere in a transaction.
        std::thread::sleep(Duration::from_micros(numbers.below(30_000)));
        let (begun, durable) = victim.kill();

        let (cache, mut db) = open(&path);
        assert!(db.check_integrity().unwrap(), "round {round}");
        let found = last(&db);
        assert!(
            found >= durable.max(before) && found <= begun.max(before),
            "round {round}: {found} was the last; {durable} was durable, {begun} begun"
        );
        assert!(
            found == 0 || is_durable(found),
            "round {round}: {found} was not durable, nor anything after it"
        );
        known.go_on(found);
        known.check(&db, &format!("round {round}"));
        before = found;
        drop(db);
        cache.close().unwrap();
    }
    println!("{before} transactions");
}
