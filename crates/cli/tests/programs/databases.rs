//! Databases on a mount whose disk loses its power, and whose mount is killed: every commit that
//! they acknowledged is there.
//!
//! # Model
//!
//! ```text
//!  recording disk ── ext4, XFS ── source ── mount ── database
//!  a commit returns ──▶ the position in the disk's log, and the row that was committed
//!  an image of a cut at some position ──▶ the kernel recovers it ──▶ the database recovers, in the directory itself
//!     ──▶ all rows up to the last one that was committed before, and the database's own check of itself
//! ```
//!
//! These belong to the programs tier, as `programs_suites` do. Half of the images end at the last flush before a
//! commit returned, the others contain some of the later writes too. `FOLIOCACHE_CUTS` sets how many each database
//! gets on each file system.

use crate::common::programs::{USER, by_user, installed};
use crate::common::{Folder, no_root_or_fuse, output, run, shell, wait_for};
use foliocache_sim::Rng;
use foliocache_sim::disk::{Disk, Format, wanted};
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// The size of the disks. The log of their writes is in memory.
const DISK_BYTES: u64 = 512 << 20;

/// Images of each database on each file system, if nothing else is wanted.
const IMAGES: u64 = 12;

/// A program that answers each line with a line.
struct Session {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Session {
    fn start(command: &mut Command) -> Session {
        let piped = command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = piped.spawn().unwrap();
        Session {
            input: child.stdin.take().unwrap(),
            output: BufReader::new(child.stdout.take().unwrap()),
            child,
        }
    }

    fn tell(&mut self, statement: &str) {
        writeln!(self.input, "{statement}").unwrap();
        self.input.flush().unwrap();
    }

    /// The line that answers `statement`.
    fn ask(&mut self, statement: &str) -> String {
        self.tell(statement);
        let mut line = String::new();
        self.output.read_line(&mut line).unwrap();
        line.trim_end().to_owned()
    }

    fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

/// A database, as a power cut finds it.
trait Database {
    const NAME: &'static str;

    /// Makes it in `place`, which belongs to the other user.
    fn make(place: &Path) -> Self;

    /// Commits row `number`.
    fn commit(&mut self, number: u64);

    /// Ends it without a word to it.
    fn kill(self);

    /// Recovers the database in `place` and checks it; the rows that it has, from 1 on.
    fn rows(place: &Path) -> Result<u64, String>;
}

/// Commits `commits` rows to a database on a mount, cuts the disk's power at some of them, and kills the mount at last.
fn survives_cuts_and_kills<D: Database>(commits: u64) {
    let (images, seed) = wanted(IMAGES);
    for format in Format::wanted() {
        let begun = Instant::now();
        // The mount is older than the disk, and goes first.
        let disk = Disk::with_size(format, DISK_BYTES, seed).expect("a disk");
        let below = disk.mount().unwrap();
        let folder = Folder::public("databases");
        shell(
            below.path(),
            &format!("mkdir -m 700 data && chown {USER}:{USER} data"),
        );
        let arguments = ["--memory", "64M", "--allow-other", "--force"];
        let mounted = folder.mount_of(below.path(), &arguments);
        let place = folder.mount_point().join("data");

        let mut database = D::make(&place);
        disk.trim(disk.position());
        let mut committed = Vec::new();
        for number in 1..=commits {
            database.commit(number);
            committed.push(disk.position());
        }

        let mut rng = Rng::new(seed);
        let mut copy: Option<Disk> = None;
        for image in 0..images {
            let at = rng.below(commits - 1) as usize;
            // The second kind may end in the middle of the next transaction or of a checkpoint.
            let (position, image) = match image % 2 {
                0 => (committed[at], disk.image_at(committed[at])),
                _ => {
                    let position = rng.between(committed[at], committed[at + 1]);
                    (position, disk.image_with(position, rng.next_u64()))
                }
            };
            let acknowledged = committed.partition_point(|&at| at <= position) as u64;
            let recovered = match copy.take() {
                Some(copy) => copy.load(&image).map(|()| copy),
                None => Disk::beside(&image, seed),
            };
            let recovered = recovered.unwrap();
            let cut = recovered.mount().unwrap();
            let rows = D::rows(&cut.path().join("data"));
            let about = format!(
                "{} on {}: a cut at {position}, where {acknowledged} rows were committed, seed {seed}",
                D::NAME,
                format.name()
            );
            let rows = rows.unwrap_or_else(|error| panic!("{about}: {error}"));
            assert!(
                (acknowledged..=commits).contains(&rows),
                "{about}: {rows} rows"
            );
            cut.unmount_within(Duration::from_secs(20)).unwrap();
            copy = Some(recovered);
        }
        drop(copy);

        database.commit(commits + 1);
        mounted.signal("KILL");
        mounted.wait();
        database.kill();
        shell(folder.top(), "umount -l mount");
        let rows = D::rows(&below.path().join("data"));
        assert_eq!(
            rows,
            Ok(commits + 1),
            "{} after the mount was killed",
            D::NAME
        );
        println!(
            "{} on {}: {commits} commits, {images} power cuts, {} s, seed {seed}",
            D::NAME,
            format.name(),
            begun.elapsed().as_secs()
        );
    }
}

/// SQLite in one of its modes of the journal: two processes take turns.
struct Sqlite<const MODE: usize> {
    turns: [Session; 2],
}

/// The mode, and the level at which a commit is durable in it.
const SQLITE_MODES: [(&str, &str); 5] = [
    ("wal", "full"),
    ("delete", "extra"),
    ("truncate", "full"),
    ("persist", "full"),
    // Durable never.
    ("wal", "off"),
];

impl<const MODE: usize> Database for Sqlite<MODE> {
    const NAME: &'static str = [
        "SQLite wal",
        "SQLite delete",
        "SQLite truncate",
        "SQLite persist",
        "SQLite without syncs",
    ][MODE];

    fn make(place: &Path) -> Self {
        let (mode, level) = SQLITE_MODES[MODE];
        let session = || {
            let mut command = by_user(place, "stdbuf");
            command.args("-oL sqlite3 -batch -bail db".split(' '));
            let mut session = Session::start(&mut command);
            assert_eq!(session.ask(&format!("pragma journal_mode={mode};")), mode);
            session.tell(&format!("pragma synchronous={level};"));
            // The other one may still end its last read.
            assert_eq!(session.ask("pragma busy_timeout=60000;"), "60000");
            // Checkpoints come often.
            assert_eq!(session.ask("pragma wal_autocheckpoint=64;"), "64");
            session
        };
        let mut first = session();
        first.tell(
            "begin; create table log(id integer primary key, fill blob); \
             create table account(id integer primary key, amount integer); create index amounts on account(amount); \
             with recursive n(i) as (select 0 union all select i + 1 from n where i < 99) \
             insert into account select i, 0 from n; commit;",
        );
        assert_eq!(first.ask("select count(*) from account;"), "100");
        Self {
            turns: [first, session()],
        }
    }

    fn commit(&mut self, number: u64) {
        let (from, to) = (number * 31 % 100, number * 17 % 100);
        let answer = self.turns[number as usize % 2].ask(&format!(
            "begin immediate; insert into log values({number}, randomblob(abs(random()) % 20000)); \
             update account set amount = amount - {number} where id = {from}; \
             update account set amount = amount + {number} where id = {to}; commit; \
             select max(id) from log;"
        ));
        assert_eq!(answer, number.to_string());
    }

    fn kill(self) {
        for session in self.turns {
            session.kill();
        }
    }

    fn rows(place: &Path) -> Result<u64, String> {
        let mut command = by_user(place, "sqlite3");
        let checked = output(command.args([
            "db",
            "pragma integrity_check; select count(*) = max(id) from log; select sum(amount) from account; \
             select max(id) from log;",
        ]));
        let text = String::from_utf8_lossy(&checked.stdout);
        match text.lines().collect::<Vec<_>>()[..] {
            ["ok", "1", "0", rows] => Ok(rows.parse().unwrap()),
            _ => Err(format!(
                "{text}{}",
                String::from_utf8_lossy(&checked.stderr)
            )),
        }
    }
}

fn no_sqlite() -> bool {
    no_root_or_fuse() || Disk::skip() || !installed("sqlite3", &["sqlite3"])
}

#[test]
#[ignore = "programs tier"]
fn sqlite_commits_to_the_wal_survive_power_cuts() {
    if !no_sqlite() {
        survives_cuts_and_kills::<Sqlite<0>>(300);
    }
}

#[test]
#[ignore = "programs tier"]
fn sqlite_commits_with_a_rollback_journal_survive_power_cuts() {
    if !no_sqlite() {
        survives_cuts_and_kills::<Sqlite<1>>(200);
        survives_cuts_and_kills::<Sqlite<2>>(200);
        survives_cuts_and_kills::<Sqlite<3>>(200);
    }
}

/// A judge that finds nothing here finds nothing elsewhere.
#[test]
#[ignore = "programs tier"]
#[should_panic(expected = "SQLite without syncs on ext4: a cut")]
fn a_database_that_syncs_nothing_loses_rows() {
    assert!(
        !no_sqlite(),
        "SQLite without syncs on ext4: a cut is not possible here"
    );
    survives_cuts_and_kills::<Sqlite<4>>(300);
}

/// PostgreSQL with pgbench beside.
struct Postgres {
    session: Session,
    pgbench: Child,
    _server: Server,
}

/// A running server, ended at once with this.
struct Server {
    /// Its process, once it runs.
    pid: Option<String>,
    /// Its socket is there, and its log.
    sockets: PathBuf,
}

/// Where PostgreSQL has its programs; `None` without it.
fn postgres_programs() -> Option<PathBuf> {
    let find = || {
        let versions = fs::read_dir("/usr/lib/postgresql").into_iter().flatten();
        let programs = versions.flatten().map(|version| version.path().join("bin"));
        programs.filter(|bin| bin.join("postgres").exists()).max()
    };
    find().or_else(|| {
        installed("pgbench", &["postgresql", "postgresql-contrib"]);
        find()
    })
}

fn postgres(place: &Path, program: &str) -> Command {
    by_user(
        place,
        postgres_programs().unwrap().join(program).to_str().unwrap(),
    )
}

impl Server {
    /// Starts it on the data in `place`, and waits until it has recovered.
    fn start(place: &Path) -> Result<Server, String> {
        // Relaxed: a number that no one else gets is all that is needed.
        static NUMBER: AtomicU64 = AtomicU64::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let name = format!("foliocache-postgres-{}-{number}", std::process::id());
        let sockets = std::env::temp_dir().join(name);
        fs::create_dir(&sockets).unwrap();
        run(Command::new("chown").arg(USER).arg(&sockets));
        let mut server = Server { pid: None, sockets };
        let options = format!(
            "-c listen_addresses= -c unix_socket_directories={} -c shared_buffers=16MB -c max_wal_size=32MB \
             -c checkpoint_timeout=30s -c recovery_init_sync_method=syncfs",
            server.sockets.display()
        );
        let log = server.sockets.join("log");
        let mut start = postgres(place, "pg_ctl");
        start.args(["-D", ".", "-w", "-t", "120", "-o", &options, "-l"]);
        start.arg(&log).arg("start").stdout(Stdio::null());
        let started = start.status().unwrap().success();
        let pid = fs::read_to_string(place.join("postmaster.pid")).unwrap_or_default();
        server.pid = pid.lines().next().map(str::to_owned);
        match started {
            true => Ok(server),
            false => Err(fs::read_to_string(log).unwrap_or_default()),
        }
    }

    fn client(&self, program: &str) -> Command {
        let mut command = postgres(&self.sockets, program);
        command
            .env("PGHOST", &self.sockets)
            .env("PGUSER", "postgres");
        command
    }

    fn query(&self, statement: &str) -> Result<String, String> {
        let mut command = self.client("psql");
        let answer = output(command.args(["-qAtX", "-c", statement, "postgres"]));
        match answer.status.success() {
            true => Ok(String::from_utf8_lossy(&answer.stdout).trim().to_owned()),
            false => Err(String::from_utf8_lossy(&answer.stderr).into_owned()),
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if let Some(pid) = &self.pid {
            // Its file of this number may be gone with the mount.
            let _ = output(Command::new("kill").args(["-s", "QUIT", pid]));
            let status = || fs::read_to_string(format!("/proc/{pid}/stat"));
            wait_for("the end of PostgreSQL", || {
                status().map_or(true, |text| text.contains(") Z "))
            });
        }
        let _ = fs::remove_dir_all(&self.sockets);
    }
}

impl Database for Postgres {
    const NAME: &'static str = "PostgreSQL";

    fn make(place: &Path) -> Self {
        run(postgres(place, "initdb")
            .args("-D . -U postgres -A trust -k -N --wal-segsize=1".split(' ')));
        let server = Server::start(place).unwrap();
        run(server
            .client("pgbench")
            .args("-q -i -s 2 postgres".split(' ')));
        server.query("create extension amcheck").unwrap();
        server
            .query("create table log(id bigint primary key, fill text)")
            .unwrap();
        server.query("checkpoint").unwrap();
        let mut psql = by_user(&server.sockets, "stdbuf");
        psql.arg("-oL")
            .arg(postgres_programs().unwrap().join("psql"));
        psql.env("PGHOST", &server.sockets)
            .env("PGUSER", "postgres");
        let session = Session::start(psql.args(["-qAtX", "postgres"]));
        let mut load = server.client("pgbench");
        load.args("-n -c 4 -T 3600 postgres".split(' '))
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        Self {
            session,
            pgbench: load.spawn().unwrap(),
            _server: server,
        }
    }

    fn commit(&mut self, number: u64) {
        let answer = self.session.ask(&format!(
            "insert into log values({number}, repeat(md5(random()::text), (random() * 100)::int)) returning id;"
        ));
        assert_eq!(answer, number.to_string());
        if number.is_multiple_of(50) {
            self.session.tell("checkpoint;");
        }
    }

    fn kill(mut self) {
        self.pgbench.kill().unwrap();
        self.pgbench.wait().unwrap();
        self.session.kill();
    }

    fn rows(place: &Path) -> Result<u64, String> {
        // Of the server that runs on the mount.
        let _ = fs::remove_file(place.join("postmaster.pid"));
        let server = Server::start(place)?;
        let mut check = server.client("pg_amcheck");
        let checked = output(check.args(["--heapallindexed", "--parent-check", "postgres"]));
        if !checked.status.success() || !checked.stdout.is_empty() {
            return Err(String::from_utf8_lossy(&checked.stdout).into_owned());
        }
        let sums = server.query(
            "select (select sum(abalance) from pgbench_accounts) = (select sum(tbalance) from pgbench_tellers) \
             and (select sum(tbalance) from pgbench_tellers) = (select sum(bbalance) from pgbench_branches) \
             and (select sum(bbalance) from pgbench_branches) = (select coalesce(sum(delta), 0) from pgbench_history)",
        )?;
        if sums != "t" {
            return Err("the sums of pgbench differ".to_owned());
        }
        let rows = server.query("select case count(*) when max(id) then max(id) end from log")?;
        rows.parse()
            .map_err(|_| "rows are missing between others".to_owned())
    }
}

#[test]
#[ignore = "programs tier"]
fn postgresql_commits_survive_power_cuts() {
    if no_root_or_fuse() || Disk::skip() || postgres_programs().is_none() {
        return;
    }
    println!(
        "{}",
        run(postgres(Path::new("/"), "postgres").arg("--version")).trim()
    );
    survives_cuts_and_kills::<Postgres>(300);
}
