//! Files for operators besides the mount: completions, manual pages, the unit file and the lines of
//! the guide.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::{Command, Output};

/// Asks for the checks of a mount without the mount.
const FAKE: &str = "--fake";

fn foliocache() -> Command {
    Command::new(env!("CARGO_BIN_EXE_foliocache"))
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).expect("UTF-8")
}

fn succeeds(command: &mut Command) -> Output {
    let output = command.output().expect("the program starts");
    let said = text(&output.stderr);
    assert!(output.status.success(), "{command:?}: {said}");
    output
}

/// A file of the package, or of the repository beside it.
fn file(path: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(path);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// An empty folder with two directories, in place of those of an example.
struct Places(tempfile::TempDir);

impl Places {
    fn new() -> Places {
        let temp = tempfile::tempdir().unwrap();
        fs::create_dir(temp.path().join("source")).unwrap();
        fs::create_dir(temp.path().join("mount")).unwrap();
        Places(temp)
    }

    /// The words, of which the first two that are absolute paths become ours, and log files too.
    fn put_into(&self, words: &[&str]) -> Vec<String> {
        let path = |name: &str| self.0.path().join(name).display().to_string();
        let mut places = [path("source"), path("mount")].into_iter();
        let word = |word: &&str| match word.starts_with('/') {
            true => places.next().unwrap_or_else(|| path("log")),
            false => word.replace("/var/log", &path("")),
        };
        words.iter().map(word).collect()
    }
}

#[test]
fn completions_are_made_for_each_shell() {
    for shell in ["bash", "elvish", "fish", "powershell", "zsh"] {
        let output = succeeds(foliocache().args(["completions", shell]));
        let script = text(&output.stdout);
        for word in [
            "stop-timeout",
            "background",
            "ready-fd",
            "completions",
            "version",
        ] {
            assert!(script.contains(word), "{shell} lacks {word}");
        }
        for hidden in ["bench-helper", "write-back-mapped", "fsname", "sloppy"] {
            assert!(!script.contains(hidden), "{shell} has {hidden}");
        }
    }
    let output = foliocache().args(["completions", "cmd"]).output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    if let Ok(bash) = Command::new("bash").args(["-n", "/dev/null"]).status()
        && bash.success()
    {
        let temp = tempfile::tempdir().unwrap();
        let script = temp.path().join("script");
        let made = succeeds(foliocache().args(["completions", "bash"])).stdout;
        fs::write(&script, made).unwrap();
        succeeds(Command::new("bash").arg("-n").arg(script));
    }
}

#[test]
fn manual_pages_are_printed_and_written() {
    let output = succeeds(foliocache().arg("man"));
    let page = text(&output.stdout);
    assert!(page.contains(".TH foliocache 1"), "{page}");
    let temp = tempfile::tempdir().unwrap();
    succeeds(foliocache().arg("man").arg(temp.path()));
    let page = fs::read_to_string(temp.path().join("foliocache-mount.1")).unwrap();
    for word in ["Exit codes:", "Signals:", "fsname=NAME", "dirty\\-age"] {
        assert!(page.contains(word), "{word} is missing in {page}");
    }
    assert!(temp.path().join("foliocache-bench.1").exists());
    assert!(!temp.path().join("foliocache-bench-helper.1").exists());
    let nowhere = temp.path().join("no/such/folder");
    let output = foliocache().arg("man").arg(nowhere).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stderr).contains("cannot write to "));
}

#[test]
fn exit_codes_in_the_help_are_those_of_the_guide() {
    let help = succeeds(foliocache().args(["mount", "--help"])).stdout;
    let help = text(&help);
    let guide = file("../../docs/guide/mounting.md");
    for code in 0..=4 {
        assert!(help.contains(&format!("\n  {code}  ")), "{code}: {help}");
        assert!(guide.contains(&format!("\n| {code} | ")), "{code}");
    }
}

#[test]
fn unit_file_starts_the_command_as_it_is() {
    let unit = file("examples/foliocache.service");
    let setting = |name: &str| {
        let mut lines = unit.lines();
        let line = lines.find_map(|line| line.strip_prefix(name)?.strip_prefix('='));
        line.unwrap_or_else(|| panic!("no {name}")).to_owned()
    };
    let start = setting("ExecStart").replace("%%", "%");
    let words: Vec<_> = start.split(' ').collect();
    assert_eq!(words[..2], ["/usr/local/bin/foliocache", "mount"]);
    let places = Places::new();
    let arguments = places.put_into(&words[2..]);
    succeeds(foliocache().args(["mount", FAKE]).args(&arguments));
    // It would not see which process is the mount.
    assert!(!words.contains(&"--background"));
    let at = words.iter().position(|word| *word == "--stop-timeout");
    let stop_timeout: u64 = words[at.unwrap() + 1].parse().unwrap();
    let for_systemd: u64 = setting("TimeoutStopSec").parse().unwrap();
    assert!(
        for_systemd >= stop_timeout + 10,
        "the end would be cut short"
    );
    assert_eq!(setting("Type"), "notify");
    assert_eq!(setting("KillMode"), "mixed");
    assert_eq!(setting("ExecReload"), "/bin/kill -HUP $MAINPID");
    assert_eq!(setting("Restart"), "on-failure");
    assert_eq!(setting("RestartPreventExitStatus"), "2");
    let guide = file("../../docs/guide/mounting.md");
    for name in ["TimeoutStopSec", "ExecReload", "KillMode", "Type"] {
        let line = format!("{name}={}", setting(name));
        assert!(
            guide.contains(&line),
            "the guide says something else of {line}"
        );
    }
}

/// Lines of the guide's code blocks of one language.
fn lines_of_guide(language: &str) -> Vec<String> {
    let guide = file("../../docs/guide/mounting.md");
    let (mut lines, mut inside) = (Vec::new(), false);
    for line in guide.lines() {
        match line.strip_prefix("```") {
            Some(named) => inside = named == language,
            None if inside => lines.push(line.to_owned()),
            None => {}
        }
    }
    lines
}

#[test]
fn fstab_lines_of_the_guide_are_understood() {
    let lines = lines_of_guide("fstab");
    assert!(lines.len() >= 2);
    for line in lines {
        let fields: Vec<_> = line.split_whitespace().collect();
        let [_, _, "fuse.foliocache", options, "0", "0"] = fields[..] else {
            panic!("{line}");
        };
        let places = Places::new();
        let helper = places.0.path().join("mount.fuse.foliocache");
        symlink(env!("CARGO_BIN_EXE_foliocache"), &helper).unwrap();
        let words = places.put_into(&["/source", "/mount", "-f", "-o", options]);
        succeeds(Command::new(helper).args(words));
    }
}

#[test]
fn commands_of_the_guide_are_understood() {
    let commands = lines_of_guide("sh");
    let mounts: Vec<_> = commands
        .iter()
        .filter_map(|line| line.strip_prefix("foliocache mount "))
        .collect();
    assert!(mounts.len() >= 2, "{commands:?}");
    for line in mounts {
        let places = Places::new();
        let words: Vec<_> = line.split(' ').collect();
        succeeds(
            foliocache()
                .args(["mount", FAKE])
                .args(places.put_into(&words)),
        );
    }
    for command in ["completions bash", "man "] {
        let named = |line: &&String| line.starts_with(&format!("foliocache {command}"));
        assert!(commands.iter().any(|line| named(&line)), "{command}");
    }
}

#[test]
fn options_of_mount_are_refused_by_name_with_the_code_for_bad_input() {
    let places = Places::new();
    for (options, says) in [
        ("ro,no_such", "-o no_such is not known"),
        ("memory=x", "--memory x is no size"),
        ("memory=200%", "--memory 200% is no part of the memory"),
        ("sync", "-o sync cannot be had: "),
        ("dirty_age=0", "'--dirty-age <SECONDS>'"),
    ] {
        let words = places.put_into(&["/source", "/mount", "-o", options]);
        let output = foliocache().args(["mount", FAKE]).args(words).output();
        let output = output.unwrap();
        let said = text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{options}: {said}");
        assert!(said.contains(says), "{options}: {said}");
    }
}
