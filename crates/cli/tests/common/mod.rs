//! A mount made by a test, and helpers to examine it from outside.
#![allow(dead_code, reason = "each test file uses its part")]

pub(crate) mod memcg;
pub(crate) mod programs;

use rustix::fs::{Mode, OFlags, openat};
use rustix::mount::{FsMountFlags, FsOpenFlags, MountAttrFlags, fsconfig_create, fsmount, fsopen};
use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, Write};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// Longest that anything here may take.
const PATIENCE: Duration = Duration::from_secs(120);

/// A folder with a source and a mount point; removed with the value, after its mounts.
pub(crate) struct Folder {
    top: PathBuf,
}

impl Folder {
    pub(crate) fn new(name: &str) -> Folder {
        Folder::below(Path::new(env!("CARGO_TARGET_TMPDIR")), name)
    }

    /// A folder that every user can reach, with an additional directory `plain`.
    pub(crate) fn public(name: &str) -> Folder {
        let folder = Folder::below(&std::env::temp_dir(), &format!("foliocache-{name}"));
        fs::create_dir(folder.plain()).unwrap();
        shell(&folder.top, "chmod 755 . source mount plain");
        folder
    }

    fn below(parent: &Path, name: &str) -> Folder {
        let top = parent.join(format!("{name}-{}", std::process::id()));
        let folder = Folder { top };
        folder.clean();
        fs::create_dir_all(folder.source()).unwrap();
        fs::create_dir_all(folder.mount_point()).unwrap();
        folder
    }

    /// A directory like the source that is not mounted, to compare with.
    pub(crate) fn plain(&self) -> PathBuf {
        self.top.join("plain")
    }

    pub(crate) fn top(&self) -> &Path {
        &self.top
    }

    pub(crate) fn source(&self) -> PathBuf {
        self.top.join("source")
    }

    pub(crate) fn mount_point(&self) -> PathBuf {
        self.top.join("mount")
    }

    /// Whether something is mounted at the mount point.
    pub(crate) fn is_mounted(&self) -> bool {
        let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap();
        let point = format!(" {} ", self.mount_point().display());
        mounts.lines().any(|line| line.contains(&point))
    }

    /// Waits until the mount has answered every request of the kernel, also those that no program waits for, such as the
    /// release of a closed file.
    pub(crate) fn wait_for_answers(&self) {
        let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap();
        let point = format!(" {} ", self.mount_point().display());
        let line = mounts.lines().rfind(|line| line.contains(&point)).unwrap();
        let device = line.split(' ').nth(2).unwrap().strip_prefix("0:").unwrap();
        // The control file system need not be mounted: a mount of our own is in no tree.
        let control = fsopen("fusectl", FsOpenFlags::FSOPEN_CLOEXEC).unwrap();
        fsconfig_create(control.as_fd()).unwrap();
        let (flags, attributes) = (FsMountFlags::FSMOUNT_CLOEXEC, MountAttrFlags::empty());
        let connections = fsmount(control.as_fd(), flags, attributes).unwrap();
        let (file, flags) = (format!("{device}/waiting"), OFlags::CLOEXEC);
        wait_for("the answers of the mount", || {
            let waiting = openat(&connections, &file, flags, Mode::empty()).unwrap();
            io::read_to_string(File::from(waiting)).unwrap() == "0\n"
        });
    }

    /// Mounts the source at the mount point, with `arguments`.
    pub(crate) fn mount(&self, arguments: &[&str]) -> Mounted {
        Mounted::start(&mut self.mount_command(arguments))
    }

    /// The command that mounts the source at the mount point, with `arguments`.
    pub(crate) fn mount_command(&self, arguments: &[&str]) -> Command {
        self.mount_command_of(&self.source(), arguments)
    }

    /// As [`Folder::mount`], of another source.
    pub(crate) fn mount_of(&self, source: &Path, arguments: &[&str]) -> Mounted {
        Mounted::start(&mut self.mount_command_of(source, arguments))
    }

    fn mount_command_of(&self, source: &Path, arguments: &[&str]) -> Command {
        let mut command = foliocache();
        command.arg("mount").arg(source).arg(self.mount_point());
        command.args(arguments);
        command
    }

    fn clean(&self) {
        for place in [self.mount_point(), self.source()] {
            // As often as something is mounted there.
            while run_quietly(Command::new("umount").arg("-l").arg(&place)) {}
        }
        let _ = fs::remove_dir_all(&self.top);
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        self.clean();
    }
}

/// Whether there is no root or no FUSE, without which a test is to be skipped; says so then.
pub(crate) fn no_root_or_fuse() -> bool {
    lacks(&["fuse", "root"])
}

/// Whether one of `needs` is missing, without which a test is to be skipped; says so then.
pub(crate) fn lacks(needs: &[&str]) -> bool {
    let known = std::env::var("FOLIOCACHE_MISSING").unwrap_or_default();
    let missing = known.split(',').find(|name| needs.contains(name));
    if let Some(missing) = missing {
        eprintln!("SKIPPED: there is no {missing}");
    }
    missing.is_some()
}

fn run_quietly(command: &mut Command) -> bool {
    let done = command.stdout(Stdio::null()).stderr(Stdio::null()).status();
    done.is_ok_and(|status| status.success())
}

/// The command under test.
pub(crate) fn foliocache() -> Command {
    Command::new(env!("CARGO_BIN_EXE_foliocache"))
}

/// A running `foliocache mount`; killed if the test does not end it.
pub(crate) struct Mounted {
    child: Child,
    lines: Arc<Mutex<Vec<String>>>,
    reader: Option<JoinHandle<()>>,
}

/// How a `foliocache mount` ended.
pub(crate) struct Ended {
    pub(crate) code: Option<i32>,
    pub(crate) lines: Vec<String>,
}

impl Mounted {
    /// Starts `command` and waits until it says that it is mounted.
    pub(crate) fn start(command: &mut Command) -> Mounted {
        let mut mounted = Mounted::begin(command);
        mounted.wait_until_mounted();
        mounted
    }

    /// Starts `command`, which may have to wait before it mounts.
    pub(crate) fn begin(command: &mut Command) -> Mounted {
        let mut child = command.stderr(Stdio::piped()).spawn().unwrap();
        let stderr = BufReader::new(child.stderr.take().unwrap());
        let lines = Arc::new(Mutex::new(Vec::new()));
        let sink = Arc::clone(&lines);
        let reader = thread::spawn(move || {
            for line in stderr.lines().map_while(Result::ok) {
                sink.lock().unwrap().push(line);
            }
        });
        Mounted {
            child,
            lines,
            reader: Some(reader),
        }
    }

    /// Waits until it says that it is mounted.
    pub(crate) fn wait_until_mounted(&mut self) {
        wait_for("the mount", || {
            if self.child.try_wait().unwrap().is_some() {
                panic!("it ended: {:?}", self.lines());
            }
            self.lines()
                .iter()
                .any(|line| line.contains(" is mounted on "))
        });
    }

    /// The fixed base that it printed, in bytes.
    pub(crate) fn fixed_base(&self) -> u64 {
        let lines = self.lines();
        let line = lines.iter().find(|line| line.contains("fixed base"));
        let text = line.unwrap().split("fixed base ").nth(1).unwrap();
        let mut words = text.split(' ');
        let number: f64 = words.next().unwrap().parse().unwrap();
        assert_eq!(words.next(), Some("MiB"));
        (number * f64::from(1 << 20)) as u64
    }

    pub(crate) fn lines(&self) -> Vec<String> {
        self.lines.lock().unwrap().clone()
    }

    /// Waits for a line with `text`.
    pub(crate) fn wait_for_line(&self, text: &str) {
        let start = Instant::now();
        loop {
            // Looked at before the lines: the last one may just have come.
            let has_ended = self.reader.as_ref().is_none_or(JoinHandle::is_finished);
            let lines = self.lines();
            if lines.iter().any(|line| line.contains(text)) {
                return;
            }
            assert!(!has_ended, "it ended without {text:?}: {lines:#?}");
            assert!(start.elapsed() < PATIENCE, "no {text:?} in {lines:#?}");
            thread::sleep(Duration::from_millis(10));
        }
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    pub(crate) fn signal(&self, name: &str) {
        let pid = self.pid().to_string();
        assert!(run_quietly(Command::new("kill").args(["-s", name, &pid])));
    }

    /// Waits for its end.
    pub(crate) fn wait(mut self) -> Ended {
        let mut status = None;
        wait_for("the end of the mount", || {
            status = self.child.try_wait().unwrap();
            status.is_some()
        });
        self.reader.take().unwrap().join().unwrap();
        Ended {
            code: status.unwrap().code(),
            lines: self.lines(),
        }
    }

    /// Asks it to end and waits for that.
    pub(crate) fn end(self, signal: &str) -> Ended {
        self.signal(signal);
        self.wait()
    }

    /// Ends it and expects that nothing was lost.
    pub(crate) fn end_well(self) {
        let ended = self.end("TERM");
        assert_eq!(ended.code, Some(0), "{:?}", ended.lines);
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        if let Ok(None) = self.child.try_wait() {
            // A stopped one would keep whoever waits for it from ending.
            let pid = self.pid().to_string();
            run_quietly(Command::new("kill").args(["-s", "CONT", &pid]));
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}

/// A small tmpfs as the source, whose free space is used up from outside, and a mount of it with 300 KB of data
/// that were accepted before.
pub(crate) fn full_source(name: &str, arguments: &[&str]) -> (Folder, Mounted) {
    let folder = Folder::new(name);
    run(Command::new("mount")
        .args(["-t", "tmpfs", "-o", "size=1M", "none"])
        .arg(folder.source()));
    let arguments = [&["--writeback", "delayed"], arguments].concat();
    let mounted = folder.mount(&arguments);
    // A write that finds out that room is short may be written at once. The next one has asked, and stays in the cache.
    let mut first = File::create(folder.mount_point().join("first")).unwrap();
    first.write_all(b"1").unwrap();
    first.sync_all().unwrap();
    fs::write(folder.mount_point().join("file"), vec![b'x'; 300_000]).unwrap();
    // It ends with the error that nothing is left.
    let _ = output(
        Command::new("sh")
            .args(["-c", "cat /dev/zero > filler"])
            .current_dir(folder.source()),
    );
    (folder, mounted)
}

/// Waits until `done` says so.
pub(crate) fn wait_for(what: &str, mut done: impl FnMut() -> bool) {
    let start = Instant::now();
    while !done() {
        assert!(start.elapsed() < PATIENCE, "waited too long for {what}");
        thread::sleep(Duration::from_millis(10));
    }
}

/// Runs a command and expects success; returns its standard output.
pub(crate) fn run(command: &mut Command) -> String {
    let output = output(command);
    assert!(
        output.status.success(),
        "{command:?} failed: {}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    String::from_utf8_lossy(&output.stdout).into_owned()
}

pub(crate) fn output(command: &mut Command) -> Output {
    command
        .output()
        .unwrap_or_else(|error| panic!("{command:?}: {error}"))
}

/// Runs a shell script in `folder` and expects success.
pub(crate) fn shell(folder: &Path, script: &str) -> String {
    run(Command::new("sh")
        .arg("-euc")
        .arg(script)
        .current_dir(folder))
}

/// A field of the process's memory, in bytes.
pub(crate) fn memory_of(pid: u32, field: &str) -> u64 {
    let text = fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).unwrap();
    let line = text.lines().find(|line| line.starts_with(field)).unwrap();
    let number = line.split_whitespace().nth(1).unwrap();
    number.parse::<u64>().unwrap() * 1024
}

/// Bytes of a file that are in the kernel's cache.
pub(crate) fn in_kernel_cache(file: &Path) -> u64 {
    run(Command::new("fincore")
        .args(["-b", "-n", "-r", "-o", "RES"])
        .arg(file))
    .trim()
    .parse()
    .unwrap()
}

/// `bytes` bytes that are different everywhere, and differ with `seed`.
pub(crate) fn pattern(bytes: usize, seed: u64) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    (0..bytes)
        .map(|_| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state as u8
        })
        .collect()
}

/// Compiles a C program; the system tests need a C compiler.
pub(crate) fn compile(source: &Path, program: &Path) {
    run(Command::new("cc")
        .args(["-O1", "-Wall", "-o"])
        .arg(program)
        .arg(source));
}

/// The contents of a file, empty if it cannot be read.
pub(crate) fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_default()
}

/// Whether the mount still serves programs.
pub(crate) fn goes_on(folder: &Folder) {
    let file = folder.mount_point().join("still-there");
    fs::write(&file, "data").unwrap();
    assert_eq!(fs::read(&file).unwrap(), b"data");
    fs::remove_file(&file).unwrap();
}
