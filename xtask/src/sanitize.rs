//! The fuzz tier, short runs of the fuzz targets; and the sanitize tier, unit tests under the address sanitizer and Miri.
//!
//! # Model
//!
//! | tier | step | what |
//! |---|---|---|
//! | fuzz | fuzz | each target of `crates/fuzz` for [`SECONDS`], from the inputs in its `corpus` |
//! | sanitize | address sanitizer | the tests beside the code of the packages that have unsafe code, and some of their other tests |
//! | sanitize | Miri | the index, the locks and the folio's state word, with a few seeds |
//! | both | canaries | a run of each kind that must fail: one that finds nothing there finds nothing elsewhere |
//!
//! Fuzz targets and their canaries run two at a time, after the first, which builds. Each uses one thread.
//!
//! The address sanitizer and the fuzzer share one build: the same flags, in a separate target directory. Both are
//! the stable compiler's, with `RUSTC_BOOTSTRAP`. Miri needs a nightly, [`NIGHTLY`].

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use crate::runner::cargo;
use crate::setup::Need;
use crate::tiers::{Action, Step, Tier};

/// The toolchain that has Miri. It is installed when it is not there.
pub(crate) const NIGHTLY: &str = "nightly-2026-05-20";

/// The fuzz targets, each with its canary's message.
const TARGETS: [(&str, &str); 4] = [
    ("index", "the canary of index was found"),
    ("file", "the canary of file was found"),
    ("paths", "the canary of paths was found"),
    ("requests", "the canary of requests was found"),
];

/// How long a target runs in the tier.
const SECONDS: u64 = 10;

/// How long a canary may take to be found.
const CANARY_SECONDS: u64 = 180;

/// Build scripts and macros of the host are left alone where a target is named.
const HOST: &str = "x86_64-unknown-linux-gnu";

/// The address sanitizer, and counters at each branch and comparison for the fuzzer.
const FLAGS: &str = "--cfg asan --cfg fuzzing -Zsanitizer=address -Cpasses=sancov-module \
     -Cllvm-args=-sanitizer-coverage-level=4 -Cllvm-args=-sanitizer-coverage-inline-8bit-counters \
     -Cllvm-args=-sanitizer-coverage-pc-table -Cllvm-args=-sanitizer-coverage-trace-compares -Ccodegen-units=4";

/// Our own handlers of SIGSEGV and SIGBUS are under test. The runtime of Rust keeps memory to the
/// end.
const OPTIONS: &str =
    "detect_leaks=0:quarantine_size_mb=16:handle_segv=0:handle_sigbus=0:use_sigaltstack=0";

/// Under the address sanitizer: the tests of the packages with unsafe code. Left out are a test whose child has no room for the
/// sanitizer's own memory, two that measure stacks, which its frames fill, and the canary.
const SANITIZED: &str = "test --locked --no-fail-fast --target x86_64-unknown-linux-gnu -p foliocache-sync -p foliocache-xarray \
     -p foliocache-sys -p foliocache-mm -p foliocache-vfs --lib --test edges --test threads --test dir --test fd --test fork \
     --test inline_faults --test uring_engine --test usercopy --test usercopy_handlers --test usercopy_without_handlers \
     --test mapping --test views --test pins -- --skip without_memory_for_a_stack_a_fault_waits_for_one \
     --skip nested_in_signal_handlers --skip stack_and_errno_of_the_handler";

/// Tests that Miri runs. It knows neither `sigfillset`, which the background threads use, nor memory that is mapped from a file.
const MIRI: [(&str, &str); 3] = [
    (
        "Miri, locks",
        "-p foliocache-sync --lib -- lockref:: once:: padded:: rank::",
    ),
    (
        "Miri, index",
        "-p foliocache-xarray --test edges -- a_slot_reference",
    ),
    (STATE_WORDS, "-p foliocache-mm --lib -- folio::state"),
];

/// The step that runs with several seeds.
const STATE_WORDS: &str = "Miri, state words";

fn words(text: &str) -> Vec<String> {
    text.split_whitespace().map(str::to_owned).collect()
}

fn step(tier: Tier, name: String, action: Action, minutes: u64) -> Step {
    Step {
        tier,
        name,
        action,
        env: Vec::new(),
        limit: Duration::from_secs(minutes * 60),
        needs: &[],
        must_test: false,
        side_by_side: false,
    }
}

/// The environment of the sanitized build.
fn sanitized(target: &Path) -> Vec<(String, String)> {
    let folder = target.join("sanitize").display().to_string();
    [
        ("RUSTC_BOOTSTRAP", "1"),
        ("RUSTFLAGS", FLAGS),
        ("CARGO_TARGET_DIR", &folder),
        ("ASAN_OPTIONS", OPTIONS),
    ]
    .map(|(name, value)| (name.to_owned(), value.to_owned()))
    .to_vec()
}

fn miri(arguments: &str, finds: Option<&'static str>, name: &str, target: &Path) -> Step {
    let arguments = format!("run {NIGHTLY} cargo miri test --locked {arguments}");
    let action = Action::Program {
        program: "rustup".to_owned(),
        arguments: words(&arguments),
        finds,
    };
    let folder = target.join("miri").display().to_string();
    // Of a race each seed shows another side.
    let seeds = match name {
        STATE_WORDS => "-Zmiri-many-seeds=0..8",
        _ => "",
    };
    let mut step = step(Tier::Sanitize, name.to_owned(), action, 10);
    step.env = vec![
        ("CARGO_TARGET_DIR".to_owned(), folder),
        // Resolving the names of a stack takes Miri seconds.
        ("RUST_BACKTRACE".to_owned(), "0".to_owned()),
        (
            "MIRIFLAGS".to_owned(),
            format!("-Zmiri-disable-isolation -Zmiri-ignore-leaks {seeds}"),
        ),
    ];
    step.needs = &[Need::Miri];
    // A canary passes when it fails; the filter of names may match nothing.
    step.must_test = finds.is_none();
    step
}

/// The arguments of a fuzz target, for cargo.
fn fuzz_arguments(name: &str, target: &Path, rest: &[String]) -> Vec<String> {
    let mut arguments = words(&format!(
        "test --locked --target {HOST} -p foliocache-fuzz --test fuzz --"
    ));
    arguments.extend(words("-handle_segv=0 -handle_bus=0 -handle_fpe=0"));
    // The address sanitizer keeps shadows, and dead memory for a while.
    arguments.extend(words(
        "-rss_limit_mb=3072 -timeout=60 -max_len=1024 -len_control=0",
    ));
    let found = target.join("fuzz").join(name).display().to_string();
    arguments.push(format!("-artifact_prefix={found}-"));
    arguments.extend_from_slice(rest);
    arguments
}

/// Where inputs that reach something new are kept, below `kept`, and where those of the repository are, for a program in
/// `crates/fuzz`. The first folder is written to.
fn corpora(name: &str, kept: &str, target: &Path) -> Vec<String> {
    let kept = target.join(kept).join(name).display().to_string();
    let create = "-create_missing_dirs=1".to_owned();
    vec![create, kept, format!("corpus/{name}")]
}

fn fuzz_step(name: &str, finds: Option<&'static str>, target: &Path) -> Step {
    let seconds = match finds {
        None => SECONDS,
        Some(_) => CANARY_SECONDS,
    };
    let mut rest = vec![format!("-max_total_time={seconds}")];
    let kept = match finds {
        None => "fuzz",
        Some(_) => "fuzz-canary",
    };
    rest.extend(corpora(name, kept, target));
    let title = match finds {
        None => format!("fuzz {name}"),
        Some(_) => format!("canary, fuzz {name}"),
    };
    let action = Action::Program {
        program: cargo(),
        arguments: fuzz_arguments(name, target, &rest),
        finds,
    };
    let mut step = step(Tier::Fuzz, title, action, 10);
    step.env = sanitized(target);
    step.env
        .push(("FOLIOCACHE_FUZZ".to_owned(), name.to_owned()));
    if finds.is_some() {
        step.env
            .push(("FOLIOCACHE_FUZZ_CANARY".to_owned(), "1".to_owned()));
    }
    step.needs = &[Need::CxxCompiler];
    step
}

/// The steps of the fuzz tier.
pub(crate) fn fuzz_steps(target: &Path) -> Vec<Step> {
    let both = |(name, finds)| [Some(finds), None].map(|finds| fuzz_step(name, finds, target));
    let mut steps: Vec<_> = TARGETS.into_iter().flat_map(both).collect();
    // The first one builds for all. Each has one thread.
    for step in &mut steps[1..] {
        step.side_by_side = true;
    }
    steps
}

/// The steps of the sanitize tier.
pub(crate) fn steps(target: &Path) -> Vec<Step> {
    let mut steps = Vec::new();
    let mut unit = step(
        Tier::Sanitize,
        "address sanitizer".to_owned(),
        Action::Cargo(words(SANITIZED)),
        15,
    );
    unit.env = sanitized(target);
    unit.must_test = true;
    steps.push(unit);
    let canary =
        "test --locked --target x86_64-unknown-linux-gnu -p foliocache-sync --test asan_canary";
    let action = Action::Program {
        program: cargo(),
        arguments: words(canary),
        finds: Some("AddressSanitizer: heap-use-after-free"),
    };
    let name = "canary, address sanitizer".to_owned();
    let mut canary = step(Tier::Sanitize, name, action, 5);
    canary.env = sanitized(target);
    steps.push(canary);
    let canary = "-p foliocache-sync --test miri_canary";
    steps.push(miri(
        canary,
        Some("Undefined Behavior: Data race"),
        "canary, Miri",
        target,
    ));
    for (name, arguments) in MIRI {
        steps.push(miri(arguments, None, name, target));
    }
    steps
}

/// Why Miri counts as missing, after an attempt to install it.
pub(crate) fn no_miri() -> Option<String> {
    let runs = || {
        let mut command = Command::new("rustup");
        command.args(["run", NIGHTLY, "cargo", "miri", "--version"]);
        command.output().is_ok_and(|out| out.status.success())
    };
    if runs() {
        return None;
    }
    println!("installing {NIGHTLY} for Miri");
    let arguments = format!("toolchain install {NIGHTLY} --profile minimal -c miri -c rust-src");
    let installed = Command::new("rustup").args(words(&arguments)).output();
    match installed {
        Ok(_) if runs() => None,
        Ok(out) => {
            let said = String::from_utf8_lossy(&out.stderr);
            let last = said.trim().lines().last().unwrap_or_default();
            Some(format!("{NIGHTLY} could not be installed: {last}"))
        }
        Err(error) => Some(format!("`rustup`: {error}")),
    }
}

/// `fuzz TARGET [--minutes N | --canary | FILE...]`: whether nothing was found.
pub(crate) fn fuzz(arguments: &[String], root: &Path, target: &Path) -> Result<bool, String> {
    let usage = || {
        let names = TARGETS.map(|(name, _)| name).join(", ");
        format!("fuzz TARGET [--minutes N | --canary | FILE...]; TARGET is one of {names}")
    };
    let (name, options) = arguments.split_first().ok_or_else(usage)?;
    if !TARGETS.iter().any(|(known, _)| known == name) {
        return Err(usage());
    }
    let mut canary = false;
    let rest = match options {
        [] => minutes(name, target, "5")?,
        [option, n] if option == "--minutes" => minutes(name, target, n)?,
        [option] if option == "--canary" => {
            canary = true;
            corpora(name, "fuzz-canary", target)
        }
        files if files.iter().all(|file| !file.starts_with('-')) => {
            let absolute = |file: &String| std::path::absolute(file).map_err(|e| e.to_string());
            let files: Result<Vec<_>, _> = files.iter().map(absolute).collect();
            files?
                .iter()
                .map(|file| file.display().to_string())
                .collect()
        }
        _ => return Err(usage()),
    };
    let mut command = Command::new(cargo());
    command
        .args(fuzz_arguments(name, target, &rest))
        .current_dir(root)
        .envs(sanitized(target))
        .env("FOLIOCACHE_FUZZ", name);
    if canary {
        command.env("FOLIOCACHE_FUZZ_CANARY", "1");
    }
    let status = command.status().map_err(|e| format!("cargo: {e}"))?;
    Ok(status.success())
}

fn minutes(name: &str, target: &Path, n: &str) -> Result<Vec<String>, String> {
    let n: u64 = n
        .parse()
        .map_err(|_| format!("`{n}` is no number of minutes"))?;
    let mut rest = vec![format!("-max_total_time={}", n * 60)];
    rest.extend(corpora(name, "fuzz", target));
    Ok(rest)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_kind_of_check_has_a_canary_that_must_fail() {
        let nowhere = Path::new("/nowhere");
        let steps = [steps(nowhere), fuzz_steps(nowhere)].concat();
        let canaries: Vec<_> = steps
            .iter()
            .filter(|step| matches!(&step.action, Action::Program { finds: Some(_), .. }))
            .map(|step| step.name.as_str())
            .collect();
        for kind in [
            "address sanitizer",
            "Miri",
            "fuzz index",
            "fuzz file",
            "fuzz paths",
            "fuzz requests",
        ] {
            assert!(canaries.contains(&&*format!("canary, {kind}")), "{kind}");
        }
    }

    #[test]
    fn steps_with_filters_of_names_fail_when_no_test_runs() {
        for step in steps(Path::new("/nowhere")) {
            assert_eq!(step.must_test, !step.name.starts_with("canary"), "{step}");
        }
    }

    #[test]
    fn each_canary_of_the_fuzzer_has_a_text_of_its_own() {
        for (name, text) in TARGETS {
            assert_eq!(text, format!("the canary of {name} was found"));
        }
    }

    #[test]
    fn an_unknown_target_is_refused() {
        let nowhere = Path::new("/nowhere");
        for bad in [
            &["nothing"][..],
            &["index", "--minute"],
            &["index", "--minutes", "x"],
            &[],
        ] {
            assert!(
                fuzz(&crate::owned(bad), nowhere, nowhere).is_err(),
                "{bad:?}"
            );
        }
    }
}
