//! The libFuzzer program for all targets: `FOLIOCACHE_FUZZ` names the target. Without `--cfg
//! fuzzing` it does nothing.
#![cfg_attr(fuzzing, no_main)]
#![cfg_attr(
    not(fuzzing),
    allow(dead_code, reason = "the targets have no driver here")
)]

#[path = "../../fs/tests/namespace_beside_tmpfs/steps.rs"]
#[allow(dead_code, reason = "the paths are others here")]
mod steps;
mod targets;
#[path = "../../fs/tests/namespace_beside_tmpfs/world.rs"]
mod world;

#[cfg(fuzzing)]
mod driver {
    use crate::targets::{Target, wanted};
    use std::sync::OnceLock;

    static TARGET: OnceLock<Target> = OnceLock::new();

    libfuzzer_sys::fuzz_target!(
        init: {
            TARGET.get_or_init(wanted);
        },
        |bytes: &[u8]| {
            let target = TARGET.get_or_init(wanted);
            target.run(bytes);
        }
    );
}

#[cfg(not(fuzzing))]
fn main() {
    println!("run by `cargo xtask fuzz`; the inputs in `corpus` are run by the tests of that name");
}
