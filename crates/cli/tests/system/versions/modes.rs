//! The ways to mount that are tried.

/// A way to mount.
#[derive(Debug)]
pub(crate) struct Mode {
    pub(crate) name: &'static str,
    pub(crate) arguments: &'static [&'static str],
}

const fn mode(name: &'static str, arguments: &'static [&'static str]) -> Mode {
    Mode { name, arguments }
}

impl Mode {
    fn has(&self, argument: &str) -> bool {
        self.arguments.contains(&argument)
    }

    /// The kernel keeps the pages that it has read, and sends no open.
    pub(crate) fn is_lenient(&self) -> bool {
        self.has("all")
    }

    /// A file is in the source when it is closed.
    pub(crate) fn waits_at_close(&self) -> bool {
        self.has("close")
    }
}

/// `--writeback`, `--kernel-cache` and a bound: each value of each with several of the others. The rest is as by default.
#[rustfmt::skip]
pub(crate) const MODES: &[Mode] = &[
    mode("default", &[]),
    mode("small", &["--memory", "16M"]),
    mode("close", &["--writeback", "close"]),
    mode("close-none-small", &["--writeback", "close", "--kernel-cache", "none", "--memory", "16M"]),
    mode("close-all", &["--writeback", "close", "--kernel-cache", "all"]),
    mode("none", &["--kernel-cache", "none"]),
    mode("all-small", &["--kernel-cache", "all", "--memory", "16M"]),
    mode("delayed-small", &["--writeback", "delayed", "--memory", "16M"]),
    mode("delayed-all", &["--writeback", "delayed", "--kernel-cache", "all"]),
];
