//! The test tiers: which commands each consists of, found from the tree.
//!
//! # Model
//!
//! A tier is a list of [`Step`]s. The name of a test's program gives its tier: a folder in a package's `tests/`,
//! whose files are linked once, or a file beside it for tests that need a separate process:
//!
//! | program | where it runs |
//! |---|---|
//! | `loom`, `loom_*` | model tier, built with `--cfg loom` (begins with `#![cfg(loom)]`) |
//! | `shuttle`, `shuttle_*` | model tier, built with `--cfg shuttle` |
//! | `shuttle_simulation` | also fresh seeds of it, by `cargo xtask simulate` |
//! | `system`, `system_*` | system tier, by `cargo xtask system`, with the build of the unit tier; each test is `#[ignore = "system tier"]` |
//! | `stress`, `stress_*` | unit tier in small; system tier, with the same build, `FOLIOCACHE_STRESS=30` |
//! | `programs` | programs tier, release build, only when it is named; each test is `#[ignore = "programs tier"]`. Of `integrations/`, all tests run there |
//! | `asan_*`, `miri_*` | sanitize tier alone: canaries, only when it is named (begin with `#![cfg(asan)]`, `#![cfg(miri)]`) |
//! | `unit` and any other | unit tier, like tests beside the code and in the documentation |
//!
//! The tests of the unit, model and system tiers are built with all planted bugs in them, of which none is planted. So the step
//! that plants them builds nothing.

use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::Value;

use crate::on::OTHER;
use crate::programs::Call;
use crate::sanitize;
use crate::setup::Need;
use crate::tidy::{array, string};

/// The version of fsx that the system tests run, as FOLIOCACHE_FSX.
const FSX: &str = "0.3.2";

/// The version of pjdfstest that the system tests run, as FOLIOCACHE_PJDFSTEST.
const PJDFSTEST: &str = "0.2.2";

/// Tests of the programs `unit` that also run on other file systems, and as another user: parts of
/// their paths.
const ON: &[&str] = &[
    "watch::",
    "not_watched::",
    "watched_logs::",
    "dirfs::",
    "log::",
    "unopened::",
    "closed::",
    "files::",
    "names::",
    "std_like::",
    "trees::",
];

/// Cargo's arguments to build and run the tests of the unit and system tiers.
const UNITS: &str = "test --workspace --locked";

/// The test that `cargo xtask simulate` runs.
const SIMULATION: &str = "shuttle_simulation";

/// Fresh schedules of the drivers of the simulation on each run. Of the bugs that were planted, the rarest shows in one of 117.
/// See "Schedules that replay" in `docs/reliability.md`.
const SCHEDULES: &[(&str, u64)] = &[("mm", 10_000), ("vfs", 2_000)];

/// A group of tests that need the same kind of build.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Tier {
    Tidy,
    Unit,
    Model,
    Fuzz,
    System,
    Sanitize,
    Programs,
}

impl Tier {
    /// The tiers that run by default.
    pub(crate) const ALL: [Tier; 5] = [
        Tier::Tidy,
        Tier::Unit,
        Tier::Model,
        Tier::Fuzz,
        Tier::System,
    ];
    /// The tiers that run only by name.
    const NAMED: [Tier; 2] = [Tier::Sanitize, Tier::Programs];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Tier::Tidy => "tidy",
            Tier::Unit => "unit",
            Tier::Model => "model",
            Tier::Fuzz => "fuzz",
            Tier::System => "system",
            Tier::Sanitize => "sanitize",
            Tier::Programs => "programs",
        }
    }

    pub(crate) fn from_name(name: &str) -> Option<Tier> {
        let mut all = Tier::ALL.into_iter().chain(Tier::NAMED);
        all.find(|tier| tier.name() == name)
    }

    /// The argument of `--tier`.
    pub(crate) fn from_argument(name: Option<&String>) -> Result<Tier, String> {
        let name = name.ok_or("--tier needs a name")?;
        Tier::from_name(name).ok_or(format!("there is no tier `{name}`"))
    }

    /// The needs of the tier's tests.
    pub(crate) fn needs(self) -> &'static [Need] {
        match self {
            Tier::Tidy | Tier::Model => &[],
            Tier::Programs => &[Need::Compiler, Need::Make, Need::Fuse, Need::Root],
            Tier::Fuzz => &[Need::CxxCompiler, Need::Userfaultfd, Need::Root],
            Tier::Sanitize => &[
                Need::Miri,
                Need::IoUring,
                Need::Userfaultfd,
                Need::Root,
                Need::Tmpfs,
            ],
            Tier::Unit => &[
                Need::Compiler,
                Need::IoUring,
                Need::Userfaultfd,
                Need::Fanotify,
                Need::Fincore,
                Need::MemoryCgroup,
                Need::Root,
                Need::Tmpfs,
            ],
            Tier::System => &[
                Need::Compiler,
                Need::Make,
                Need::Fuse,
                Need::IoUring,
                Need::Userfaultfd,
                Need::MemoryCgroup,
                Need::Root,
                Need::Mkfs,
                Need::Fincore,
            ],
        }
    }
}

/// The action of a step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Action {
    /// `cargo` with these arguments.
    Cargo(Vec<String>),
    /// Another program, or `cargo` in a run that must fail and say something.
    Program {
        program: String,
        arguments: Vec<String>,
        /// A canary: the text that its output must contain.
        finds: Option<&'static str>,
    },
    /// xtask's own checks.
    Tidy,
    /// Nothing can be run, and that is a failure: no test of the kind was found.
    NoTests(String),
}

/// One command of a tier.
#[derive(Clone, Debug)]
pub(crate) struct Step {
    pub(crate) tier: Tier,
    pub(crate) name: String,
    pub(crate) action: Action,
    pub(crate) env: Vec<(String, String)>,
    /// It is over after this long, whatever it does.
    pub(crate) limit: Duration,
    /// Without these the step as a whole cannot run.
    pub(crate) needs: &'static [Need],
    /// A run in which not one test passed is a failure; not seen under `--verbose`.
    pub(crate) must_test: bool,
    /// It may run at the same time as its neighbours, if they may too.
    pub(crate) side_by_side: bool,
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (name, value) in &self.env {
            if value.contains(' ') {
                write!(f, "{name}=\"{value}\" ")?;
            } else {
                write!(f, "{name}={value} ")?;
            }
        }
        match &self.action {
            Action::Cargo(arguments) => write!(f, "cargo {}", arguments.join(" ")),
            Action::Program {
                program, arguments, ..
            } => {
                let name = Path::new(program).file_name().unwrap_or_default();
                write!(f, "{} {}", name.display(), arguments.join(" "))
            }
            Action::Tidy => write!(f, "cargo xtask tidy"),
            Action::NoTests(pattern) => write!(f, "(no file named tests/{pattern}.rs)"),
        }
    }
}

impl Step {
    fn cargo(tier: Tier, name: &str, arguments: &str, minutes: u64) -> Step {
        Step {
            tier,
            name: name.to_owned(),
            action: Action::Cargo(arguments.split_whitespace().map(str::to_owned).collect()),
            env: Vec::new(),
            limit: Duration::from_secs(minutes * 60),
            needs: &[],
            must_test: arguments.starts_with("test "),
            side_by_side: false,
        }
    }

    fn env(mut self, name: &str, value: impl Into<String>) -> Step {
        self.env.push((name.to_owned(), value.into()));
        self
    }

    /// Its build of our crates contains the planted bugs. A bug is active only if the environment
    /// names it.
    fn with_bugs(mut self) -> Step {
        self.env.push(with_bugs());
        self
    }

    fn needs(mut self, needs: &'static [Need]) -> Step {
        self.needs = needs;
        self
    }

    /// Each test program of the step runs on a separate file system, see [`on`](crate::on).
    fn runs_on(&mut self, kind: &str, user: Option<&str>) {
        let mut runner = vec![this_program(), "on".to_owned(), kind.to_owned()];
        runner.extend(
            user.into_iter()
                .flat_map(|user| ["--as".to_owned(), user.to_owned()]),
        );
        let runner = format!("target.'cfg(unix)'.runner={runner:?}");
        if let Action::Cargo(arguments) = &mut self.action {
            arguments.splice(1..1, ["--config".to_owned(), runner]);
        }
    }
}

/// The workspace as the tiers see it.
pub(crate) struct Workspace {
    /// cargo's target directory.
    pub(crate) target: PathBuf,
    /// Our packages and the names of their integration tests.
    packages: Vec<(String, Vec<String>)>,
}

impl Workspace {
    /// Reads the answer of `cargo metadata`.
    pub(crate) fn new(metadata: &Value) -> Workspace {
        let tests = |package: &Value| {
            array(package, "targets")
                .iter()
                .filter(|target| array(target, "kind").iter().any(|kind| kind == "test"))
                .map(|target| string(target, "name").to_owned())
                .collect()
        };
        let packages = array(metadata, "packages")
            .iter()
            .filter(|package| package["source"].is_null())
            .map(|package| (string(package, "name").to_owned(), tests(package)))
            .collect();
        Workspace {
            target: PathBuf::from(string(metadata, "target_directory")),
            packages,
        }
    }

    /// Packages with a test program of this kind.
    fn with_tests(&self, kind: &str) -> Vec<&str> {
        self.packages
            .iter()
            .filter(|(_, tests)| tests.iter().any(|test| is_of_kind(test, kind)))
            .map(|(name, _)| name.as_str())
            .collect()
    }

    /// The test programs of this kind, as `package::program`.
    pub(crate) fn tests(&self, kind: &str) -> Vec<String> {
        let named = |(name, tests): &(String, Vec<String>)| {
            let ours: Vec<_> = tests
                .iter()
                .filter(|test| is_of_kind(test, kind))
                .map(|test| format!("{name}::{test}"))
                .collect();
            ours
        };
        self.packages.iter().flat_map(named).collect()
    }

    /// Where a program that is installed for the tests is, or will be after its step.
    fn tool(&self, name: &str) -> PathBuf {
        self.target.join("tools/bin").join(name)
    }

    /// The steps of a tier in the order in which they run.
    pub(crate) fn steps(&self, tier: Tier) -> Vec<Step> {
        match tier {
            Tier::Tidy => tidy(),
            Tier::Unit => vec![Step::cargo(tier, "tests", UNITS, 30).with_bugs()],
            // The bugs come last: they share the builds of the models.
            Tier::Model => [
                vec![self.model("loom"), self.model("shuttle")],
                self.simulations(SCHEDULES),
                vec![planted()],
            ]
            .concat(),
            Tier::Fuzz => sanitize::fuzz_steps(&self.target),
            Tier::System => self.system(),
            Tier::Sanitize => sanitize::steps(&self.target),
            Tier::Programs => [vec![self.programs()], integrations()].concat(),
        }
    }

    /// Builds the models of a checker. All users build alike, so they are built once.
    pub(crate) fn models(&self, checker: &str) -> Call {
        let packages = select(&self.with_tests(checker));
        let environment = [
            ("RUSTFLAGS", format!("--cfg {checker}")),
            // A separate folder: alternating flags would rebuild everything each time.
            ("CARGO_TARGET_DIR", path(&self.target.join(checker))),
        ];
        let environment = environment.map(|(name, value)| (name.to_owned(), value));
        let environment = environment.into_iter().chain([with_bugs()]);
        let arguments = format!("test --locked --profile model {packages}");
        (arguments, environment.collect())
    }

    fn model(&self, checker: &str) -> Step {
        let pattern = format!("{checker}*");
        if self.with_tests(checker).is_empty() {
            return no_tests(Tier::Model, checker, &pattern);
        }
        let (arguments, environment) = self.models(checker);
        let arguments = format!("{arguments} --test {pattern}");
        let mut step = Step::cargo(Tier::Model, checker, &arguments, 20);
        step.env.extend(environment);
        if checker == "loom" && std::env::var_os("LOOM_MAX_PREEMPTIONS").is_none() {
            return step.env("LOOM_MAX_PREEMPTIONS", "2");
        }
        step
    }

    /// Fresh schedules of the cache: this many of each driver.
    fn simulations(&self, schedules: &[(&str, u64)]) -> Vec<Step> {
        if self.tests(SIMULATION).is_empty() {
            return Vec::new();
        }
        let simulate = |(driver, seeds): &(&str, u64)| {
            let name = format!("simulation, {driver}");
            let arguments = format!("xtask simulate --driver {driver} --seeds {seeds}");
            Step::cargo(Tier::Model, &name, &arguments, 10)
        };
        schedules.iter().map(simulate).collect()
    }

    /// Suites of other programs, which take hours.
    fn programs(&self) -> Step {
        let with = self.with_tests("programs");
        if with.is_empty() {
            return no_tests(Tier::Programs, "programs", "programs*");
        }
        let arguments = format!(
            "test --locked --release {} --test programs* -- --include-ignored --nocapture --test-threads=1",
            select(&with)
        );
        Step::cargo(Tier::Programs, "programs", &arguments, 6 * 60)
    }

    fn system(&self) -> Vec<Step> {
        const MOUNT: &[Need] = &[Need::Compiler, Need::Make, Need::Fuse];
        let tier = Tier::System;
        let mut steps = Vec::new();
        for (name, version) in [("fsx", FSX), ("pjdfstest", PJDFSTEST)] {
            if self.tool(name).exists() {
                continue;
            }
            let arguments = format!(
                "install {name} --version {version} --locked --root {} --target-dir {}",
                self.target.join("tools").display(),
                self.target.join("tools/build").display()
            );
            let step = Step::cargo(tier, &format!("install {name}"), &arguments, 15);
            // They run for less long than a compiler that does its best.
            let step = step.env("CARGO_PROFILE_RELEASE_LTO", "off");
            let step = step.env("CARGO_PROFILE_RELEASE_OPT_LEVEL", "1");
            let step = step.env("CARGO_PROFILE_RELEASE_CODEGEN_UNITS", "16");
            steps.push(step.needs(MOUNT));
        }
        // The build of the unit tier, with the features of the workspace.
        if self.with_tests("system").is_empty() {
            steps.push(no_tests(tier, "tests", "system*"));
        } else {
            let mut step = Step::cargo(tier, "tests", "xtask system", 40).needs(MOUNT);
            step.must_test = true;
            let step = step.env("FOLIOCACHE_FSX", path(&self.tool("fsx")));
            steps.push(step.env("FOLIOCACHE_PJDFSTEST", path(&self.tool("pjdfstest"))));
        }
        if !self.with_tests("unit").is_empty() {
            // Benchmarks need a different place, and another user's working directory takes no
            // files.
            let skip = "--skip bench_ --skip paths_are_relative_to_the_working_directory";
            let arguments = format!("{UNITS} --test unit -- {} {skip}", ON.join(" "));
            for (kind, user) in [("xfs", None), ("xfs", Some(OTHER)), ("ext4", Some(OTHER))] {
                let name = format!(
                    "tests on {kind} as {}",
                    user.map_or("root", |_| "another user")
                );
                let mut step =
                    Step::cargo(tier, &name, &arguments, 10).needs(&[Need::Root, Need::Mkfs]);
                step = step.with_bugs();
                step.runs_on(kind, user);
                steps.push(step);
            }
        }
        if !self.with_tests("stress").is_empty() {
            let arguments = format!("{UNITS} --test stress*");
            let step = Step::cargo(tier, "stress", &arguments, 20).with_bugs();
            steps.push(step.env("FOLIOCACHE_STRESS", "30"));
        }
        steps
    }
}

fn tidy() -> Vec<Step> {
    let own = Step {
        action: Action::Tidy,
        ..Step::cargo(Tier::Tidy, "edges, absences", "", 1)
    };
    let clippy = "clippy --workspace --all-targets --locked -- -D warnings";
    let doc = "doc --workspace --no-deps --locked";
    // Verifying the packages would take as long as a full build.
    let packages = "package --workspace --no-verify --offline --allow-dirty --quiet";
    vec![
        Step::cargo(Tier::Tidy, "format", "fmt --all --check", 2),
        own,
        Step::cargo(Tier::Tidy, "clippy", clippy, 15),
        Step::cargo(Tier::Tidy, "documentation", doc, 10).env("RUSTDOCFLAGS", "-D warnings"),
        Step::cargo(Tier::Tidy, "packages", packages, 5),
        Step::cargo(Tier::Tidy, "least versions", "xtask least-versions", 5),
    ]
}

/// The workspace of the adapters for engines. Its tests build the engines, and run their test
/// suites.
fn integrations() -> Vec<Step> {
    let cargo = |name: &str, arguments: &str, minutes| {
        let (command, rest) = arguments.split_once(' ').unwrap_or((arguments, ""));
        let arguments = format!("{command} --manifest-path integrations/Cargo.toml {rest}");
        let name = format!("integrations, {name}");
        Step::cargo(Tier::Programs, &name, &arguments, minutes)
    };
    let clippy = "clippy --workspace --all-targets --locked -- -D warnings";
    let tests = "test --workspace --locked -- --include-ignored --nocapture --test-threads=1";
    vec![
        cargo("format", "fmt --all --check", 2),
        cargo("clippy", clippy, 15),
        cargo("tests", tests, 90),
        cargo(
            "benchmarks, tiny",
            "test --workspace --locked --benches",
            15,
        ),
    ]
}

/// Bugs are planted, and the tests of the unit and model tiers have to find them.
fn planted() -> Step {
    let arguments = "xtask planted --tier unit --tier model";
    Step::cargo(Tier::Model, "planted bugs", arguments, 20)
}

/// A tier that finds none of its tests proves nothing, and must not look as if it did.
fn no_tests(tier: Tier, name: &str, pattern: &str) -> Step {
    let action = Action::NoTests(pattern.to_owned());
    Step {
        action,
        ..Step::cargo(tier, name, "", 1)
    }
}

/// Whether a test program is of a kind: has its name, or a name that begins with it.
fn is_of_kind(program: &str, kind: &str) -> bool {
    let rest = program.strip_prefix(kind);
    rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('_'))
}

/// `cargo`'s options for `packages`.
fn select(packages: &[&str]) -> String {
    packages
        .iter()
        .map(|name| format!("-p {name}"))
        .collect::<Vec<_>>()
        .join(" ")
}

/// Builds the tests of the unit and system tiers.
pub(crate) fn units() -> Call {
    (UNITS.to_owned(), vec![with_bugs()])
}

/// The variable that has cargo call this program to compile packages of ours, and this program: see
/// [`compile`](crate::planted::compile).
fn with_bugs() -> (String, String) {
    ("RUSTC_WORKSPACE_WRAPPER".to_owned(), this_program())
}

fn this_program() -> String {
    path(&std::env::current_exe().unwrap_or_default())
}

fn path(path: &Path) -> String {
    path.display().to_string()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn workspace(tests: &[(&str, &[&str])]) -> Workspace {
        let packages: Vec<_> = tests
            .iter()
            .map(|(name, tests)| {
                let targets: Vec<_> = tests
                    .iter()
                    .map(|t| json!({ "name": t, "kind": ["test"] }))
                    .collect();
                json!({ "name": name, "source": null, "targets": targets })
            })
            .collect();
        Workspace::new(&json!({ "packages": packages, "target_directory": "/nowhere/target" }))
    }

    fn commands(steps: &[Step]) -> Vec<String> {
        steps.iter().map(Step::to_string).collect()
    }

    #[test]
    fn models_are_found_by_name() {
        let w = workspace(&[
            (
                "foliocache-sync",
                &["loom", "loom_slot", "shuttle_wait", "stress"],
            ),
            ("foliocache-xarray", &["loom_reader", "loomed"]),
            ("foliocache-fs", &["shared"]),
        ]);
        let steps = commands(&w.steps(Tier::Model));
        assert_eq!(steps.len(), 3, "{steps:?}");
        assert!(
            steps[0].contains("RUSTFLAGS=\"--cfg loom\" CARGO_TARGET_DIR=/nowhere/target/loom")
        );
        assert!(steps[0].ends_with("-p foliocache-sync -p foliocache-xarray --test loom*"));
        assert!(steps[1].ends_with("-p foliocache-sync --test shuttle*"));
        assert_eq!(steps[2], "cargo xtask planted --tier unit --tier model");
        assert_eq!(
            w.tests("loom"),
            [
                "foliocache-sync::loom",
                "foliocache-sync::loom_slot",
                "foliocache-xarray::loom_reader"
            ]
        );
    }

    #[test]
    fn a_simulation_runs_fresh_seeds() {
        let w = workspace(&[("foliocache-sim", &["shuttle_simulation"])]);
        let steps = commands(&w.simulations(&[("vfs", 2_000)]));
        let command = "cargo xtask simulate --driver vfs --seeds 2000";
        assert!(steps.iter().any(|step| step == command), "{steps:?}");
    }

    #[test]
    fn a_tier_without_tests_fails() {
        let w = workspace(&[("foliocache-cli", &["arguments"])]);
        let empty = |tier| {
            let is_empty = |s: &Step| matches!(s.action, Action::NoTests(_));
            w.steps(tier).iter().filter(|s| is_empty(s)).count()
        };
        assert_eq!(empty(Tier::Model), 2);
        assert_eq!(empty(Tier::System), 1);
    }

    #[test]
    fn system_tests_get_their_programs() {
        let w = workspace(&[("foliocache-cli", &["system_mount"]), ("a", &["stress_a"])]);
        let steps = commands(&w.steps(Tier::System));
        assert_eq!(steps.len(), 4, "{steps:?}");
        assert!(steps[0].contains(" cargo install fsx "));
        assert!(steps[1].contains(" cargo install pjdfstest "));
        assert!(steps[2].contains(
            "FOLIOCACHE_FSX=/nowhere/target/tools/bin/fsx \
             FOLIOCACHE_PJDFSTEST=/nowhere/target/tools/bin/pjdfstest cargo xtask system"
        ));
        assert!(steps[3].contains(" FOLIOCACHE_STRESS=30 "));
    }

    #[test]
    fn integrations_run_only_if_they_are_named() {
        let w = workspace(&[("foliocache-cli", &["programs_suites"])]);
        let steps = commands(&w.steps(Tier::Programs));
        let tests = "cargo test --manifest-path integrations/Cargo.toml --workspace --locked -- ";
        assert!(
            steps.iter().any(|step| step.starts_with(tests)),
            "{steps:?}"
        );
        for tier in Tier::ALL {
            let steps = commands(&w.steps(tier));
            assert!(!steps.iter().any(|step| step.contains("integrations")));
        }
    }

    #[test]
    fn tiers_whose_tests_compile_c_need_a_compiler() {
        for tier in [Tier::Unit, Tier::System] {
            assert!(tier.needs().contains(&Need::Compiler), "{}", tier.name());
        }
    }

    #[test]
    fn tiers_have_names() {
        for tier in Tier::ALL.into_iter().chain(Tier::NAMED) {
            assert_eq!(Tier::from_name(tier.name()), Some(tier));
        }
        assert!(Tier::NAMED.iter().all(|tier| !Tier::ALL.contains(tier)));
        assert_eq!(Tier::from_name("all"), None);
    }
}
