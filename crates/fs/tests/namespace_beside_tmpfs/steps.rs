//! The steps that run on both, and a generator of random ones.

use foliocache_vfs::RenameMode;
use std::ffi::OsString;

/// Places that are held open.
pub(crate) const HELD: usize = 4;

/// A path with where it begins.
#[derive(Clone, Debug)]
pub(crate) struct At {
    /// One of the places held open; else the top.
    pub(crate) start: Option<usize>,
    pub(crate) path: OsString,
}

/// A path from the top.
pub(crate) fn at(path: &str) -> At {
    At {
        start: None,
        path: path.into(),
    }
}

/// A path from one of the places held open.
pub(crate) fn from(slot: usize, path: &str) -> At {
    At {
        start: Some(slot),
        path: path.into(),
    }
}

/// One call.
#[derive(Clone, Debug)]
pub(crate) enum Step {
    /// Opens for writing.
    Open {
        at: At,
        create: bool,
        exclusive: bool,
        truncate: bool,
        follow: bool,
    },
    Mkdir(At, u32),
    Fifo(At, u32),
    Symlink(OsString, At),
    Link {
        from: At,
        follow: bool,
        to: At,
    },
    Unlink(At),
    Rmdir(At),
    Rename {
        from: At,
        to: At,
        mode: RenameMode,
    },
    Stat {
        at: At,
        follow: bool,
    },
    Readlink(At),
    Readdir(At),
    Truncate(At, u64),
    Chmod(At, u32),
    /// Holds a place, instead of the one held before.
    Hold(usize, At),
    /// The attributes of the held place.
    StatHeld(usize),
}

/// Numbers from a seed.
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    pub(crate) fn below(&mut self, below: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        ((self.0 >> 16) % below as u64) as usize
    }

    /// True one time in `n`.
    pub(crate) fn one_in(&mut self, n: usize) -> bool {
        self.below(n) == 0
    }

    fn mode(&mut self) -> u32 {
        [0o755, 0o700, 0o644, 0o600, 0o777, 0o000][self.below(6)]
    }
}

/// Where a source of paths and of targets makes the difference between the tests.
pub(crate) trait Paths {
    fn path(&mut self, random: &mut Random) -> At;
    fn target(&mut self, random: &mut Random) -> OsString;
    /// Whether a file may be created through a symbolic link.
    const FOLLOW_TO_MAKE: bool;
}

/// Anywhere.
pub(crate) struct Anywhere;

impl Anywhere {
    fn text(random: &mut Random) -> String {
        let mut path = String::new();
        for _ in 0..=[0, 0, 1, 1, 2, 3][random.below(6)] {
            match random.below(40) {
                0 => path.push_str(&"n".repeat(255)),
                1 => path.push_str(&"n".repeat(256)),
                2 | 3 => path.push('.'),
                4 | 5 => path.push_str(".."),
                word => path.push_str(["a", "b", "c", "d", "e"][word % 5]),
            }
            path.push_str(["/", "/", "/", "//"][random.below(4)]);
        }
        if !random.one_in(8) {
            path.truncate(path.trim_end_matches('/').len());
        }
        path
    }
}

impl Paths for Anywhere {
    const FOLLOW_TO_MAKE: bool = true;

    fn path(&mut self, random: &mut Random) -> At {
        let start = random.one_in(5).then(|| random.below(HELD));
        let path = match random.below(200) {
            0 => String::new(),
            1 => "a/".repeat(2100),
            2..8 if start.is_some() => format!("../{}", Self::text(random)),
            _ => Self::text(random),
        };
        let path = path.into();
        At { start, path }
    }

    fn target(&mut self, random: &mut Random) -> OsString {
        let target = match random.below(60) {
            0 => String::new(),
            1 => "x".repeat(4095),
            2 => "x".repeat(4096),
            _ => Self::text(random),
        };
        target.into()
    }
}

/// A random step.
pub(crate) fn step<P: Paths>(random: &mut Random, paths: &mut P) -> Step {
    let at = paths.path(random);
    match random.below(100) {
        0..14 => {
            let exclusive = random.one_in(3);
            Step::Open {
                at,
                create: true,
                exclusive,
                truncate: random.one_in(2),
                follow: P::FOLLOW_TO_MAKE && random.one_in(2),
            }
        }
        14..18 => Step::Open {
            at,
            create: false,
            exclusive: false,
            truncate: random.one_in(2),
            follow: random.one_in(2),
        },
        18..34 => Step::Mkdir(at, random.mode()),
        34..36 => Step::Fifo(at, random.mode()),
        36..42 => Step::Symlink(paths.target(random), at),
        42..48 => Step::Link {
            from: at,
            follow: random.one_in(2),
            to: paths.path(random),
        },
        48..53 => Step::Unlink(at),
        53..57 => Step::Rmdir(at),
        57..77 => Step::Rename {
            from: at,
            to: paths.path(random),
            mode: [
                RenameMode::Replace,
                RenameMode::Replace,
                RenameMode::NoReplace,
                RenameMode::Exchange,
            ][random.below(4)],
        },
        77..85 => Step::Stat {
            at,
            follow: random.one_in(2),
        },
        85..87 => Step::Readlink(at),
        87..91 => Step::Readdir(at),
        91..93 => Step::Truncate(at, random.below(20_000) as u64),
        93..95 => Step::Chmod(at, random.mode()),
        95..98 => Step::Hold(random.below(HELD), at),
        _ => Step::StatHeld(random.below(HELD)),
    }
}
