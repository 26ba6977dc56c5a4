//! A memory cgroup that a test made.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

/// A memory cgroup, of version 1 or 2, below the root; goes away with the value, once it is empty.
pub(crate) struct MemoryGroup {
    dir: PathBuf,
    v2: bool,
}

/// Whether tests of memory cgroups are to be skipped; says so then.
pub(crate) fn no_memory_cgroups() -> bool {
    let known = std::env::var("FOLIOCACHE_MISSING").unwrap_or_default();
    let missing = known.split(',').any(|name| name == "memcg");
    if missing {
        eprintln!("skipped: no memory cgroups");
    }
    missing
}

impl MemoryGroup {
    /// A group without a limit.
    pub(crate) fn new(name: &str) -> MemoryGroup {
        let v1 = Path::new("/sys/fs/cgroup/memory");
        let v2 = !v1.exists();
        let top = if v2 { Path::new("/sys/fs/cgroup") } else { v1 };
        let dir = top.join(format!("foliocache-{name}-{}", std::process::id()));
        fs::create_dir(&dir).unwrap();
        MemoryGroup { dir, v2 }
    }

    /// Allows `bytes` and no swap.
    pub(crate) fn limit(&self, bytes: u64) {
        let limit = self.file("memory.limit_in_bytes", "memory.max");
        fs::write(limit, bytes.to_string()).unwrap();
        // A machine without swap lacks the file.
        let _ = fs::write(
            self.file("memory.memsw.limit_in_bytes", "memory.swap.max"),
            if self.v2 { 0 } else { bytes }.to_string(),
        );
    }

    /// Bytes charged to it now.
    pub(crate) fn usage(&self) -> u64 {
        let text =
            fs::read_to_string(self.file("memory.usage_in_bytes", "memory.current")).unwrap();
        text.trim().parse().unwrap()
    }

    /// Processes in it that the kernel killed for lack of memory.
    pub(crate) fn kills(&self) -> u64 {
        let text = fs::read_to_string(self.file("memory.oom_control", "memory.events")).unwrap();
        let line = text.lines().find(|line| line.starts_with("oom_kill "));
        line.unwrap()
            .split(' ')
            .nth(1)
            .unwrap()
            .trim()
            .parse()
            .unwrap()
    }

    /// A command that runs `command` within the group.
    pub(crate) fn run(&self, command: &Command) -> Command {
        let mut inside = Command::new("sh");
        inside.args(["-euc", "echo $$ > \"$0\"; exec \"$@\""]);
        inside.arg(self.dir.join("cgroup.procs"));
        inside.arg(command.get_program()).args(command.get_args());
        inside
    }

    fn file(&self, v1: &str, v2: &str) -> PathBuf {
        self.dir.join(if self.v2 { v2 } else { v1 })
    }
}

impl Drop for MemoryGroup {
    fn drop(&mut self) {
        // A process that left it may still be exiting.
        let start = Instant::now();
        while fs::remove_dir(&self.dir).is_err() && start.elapsed() < Duration::from_secs(10) {
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}
