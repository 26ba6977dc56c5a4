//! [`planted!`](crate::planted!): places where a bug can be put in, so that the tests are tested.
//!
//! # Model
//!
//! A *planted bug* is a condition in the code, `planted!(name)`, under which the code does something wrong. In an
//! ordinary build it is the constant `false`, so the bug and the condition are not there. With `--cfg planted` it is true
//! if `FOLIOCACHE_PLANTED` is the name. So one build has all bugs, and each run of a test program at most one.
//!
//! `cargo xtask planted` makes that build, plants the bugs one after another, and expects of each that its test fails.
//! The list of bugs, each with its test, is `xtask/src/planted/list.rs`.

/// Whether this bug is planted; see the module's header. `false`, a constant, unless built with `--cfg planted`.
#[doc(hidden)]
#[macro_export]
macro_rules! planted {
    ($name:ident) => {
        cfg!(planted) && $crate::is_planted(stringify!($name))
    };
}

/// Whether the environment names this bug.
#[doc(hidden)]
pub fn is_planted(name: &str) -> bool {
    // Of `std` in models too: it does not change, so no interleaving depends on it.
    static PLANTED: std::sync::OnceLock<Option<std::ffi::OsString>> = std::sync::OnceLock::new();
    let planted = PLANTED.get_or_init(|| std::env::var_os("FOLIOCACHE_PLANTED"));
    planted.as_deref().is_some_and(|planted| planted == name)
}
