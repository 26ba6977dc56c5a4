//! The command line as mount(8) and /etc/fstab write it.
//!
//! # Model
//!
//! ```text
//!  mount.fuse.foliocache SOURCE MOUNTPOINT -o OPTIONS   ┐  mount --background -o OPTIONS
//!  foliocache SOURCE MOUNTPOINT -o OPTIONS (mount.fuse) ┴▶       -- SOURCE MOUNTPOINT
//!                                                                  │
//!  -o ro,memory=1G  ──▶ --read-only --memory=1G  ──────────────────┴▶ parsed as any command line
//! ```
//!
//! Each option becomes an argument and stands before the others, of which the last counts: an argument of the command line wins.

use crate::log::say;
use crate::{Arguments, Command};
use clap::error::ErrorKind;
use clap::{Args, CommandFactory, Parser};
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::Path;

/// The part of the long help on `-o`.
pub(crate) const HELP: &str = "\
Options of -o, named as in mount(8) and /etc/fstab. The last of several wins, and an argument beside -o wins over all:
  ro, rw                  With and without --read-only.
  allow_other, force, one_file_system, verbose, memory=, kernel_cache=, writeback=, dirty_age=, stop_timeout=,
  log_file=, metrics=
                          The argument of that name.
  fsname=NAME             Show NAME as the source in the list of mounts.
  uid=N, gid=N, umask=M   Show this owner and group for all files, and all permissions but those in the octal mask. The kernel
                          checks permissions by what is shown. SOURCE keeps its own: a new file belongs to its creator
                          there; chown and chmod change SOURCE, but not what is shown. With umask, access control lists
                          are ignored.
  noexec, exec            Forbid or allow running programs from the mount.
  default_permissions     Always on: the kernel checks permissions.
  nosuid, nodev           Always on. suid and dev are accepted and have no effect.
  noatime, relatime, async, defaults, auto, noauto, user, users, owner, group, _netdev, nofail, x-… and similar
                          Accepted without effect here; some are for mount(8) itself.
  Write \\, for a comma in a value.
  mount -t fuse.foliocache, and lines of that type in /etc/fstab, need a symbolic link to this program at
  /sbin/mount.fuse.foliocache. Such mounts go to the background.";

/// Options that are accepted and change nothing, alone or in front of a value.
#[rustfmt::skip]
const ACCEPTED: [&str; 37] = [
    "async", "atime", "auto", "comment", "default_permissions", "defaults", "dev", "diratime", "group",
    "iversion", "lazytime", "loud", "mand", "_netdev", "noatime", "noauto", "nodev", "nodiratime", "nofail",
    "nogroup", "noiversion", "nolazytime", "nomand", "noowner", "norelatime", "nostrictatime", "nosuid",
    "nouser", "nousers", "owner", "relatime", "_rnetdev", "silent", "strictatime", "suid", "user", "users",
];

/// Options that cannot be had, and why.
#[rustfmt::skip]
const REFUSED: [(&str, &str); 8] = [
    ("remount", "a mount is not changed in place: unmount it and mount it again"),
    ("sync", "writes are not made durable one by one: writeback=close has them in SOURCE at each close"),
    ("dirsync", "changes of names are not made durable one by one: fsync of the directory does that"),
    ("nonempty", "MOUNTPOINT must be empty: what is in it would be hidden"),
    ("auto_unmount", "it is not needed: the process unmounts when it ends, and the next mount cleans up after a kill"),
    ("allow_root", "there is allow_other: the kernel checks permissions"),
    ("direct_io", "the kernel's cache is chosen by kernel_cache="),
    ("auto_cache", "the kernel's cache is chosen by kernel_cache="),
];

/// Options that become the argument of the same name, with a value.
#[rustfmt::skip]
const WITH_VALUE: [&str; 11] = [
    "memory", "kernel_cache", "writeback", "dirty_age", "stop_timeout", "log_file", "metrics", "fsname",
    "uid", "gid", "umask",
];

/// The same, without a value.
const WITHOUT_VALUE: [&str; 4] = ["allow_other", "force", "one_file_system", "verbose"];

/// Settings that only `-o` and mount(8) make; `--help` does not show them.
#[derive(Args)]
pub(crate) struct OnlyOptions {
    #[arg(long, hide = true)]
    pub(crate) fsname: Option<String>,
    #[arg(long, hide = true)]
    pub(crate) uid: Option<u32>,
    #[arg(long, hide = true)]
    pub(crate) gid: Option<u32>,
    #[arg(long, hide = true, value_parser = umask)]
    pub(crate) umask: Option<u16>,
    #[arg(long, hide = true)]
    pub(crate) no_exec: bool,
    /// Unknown options are no error.
    #[arg(long, hide = true)]
    sloppy: bool,
    /// Only look whether it could be mounted.
    #[arg(long, hide = true)]
    pub(crate) fake: bool,
}

fn umask(text: &str) -> Result<u16, String> {
    let mask = u16::from_str_radix(text, 8).ok();
    mask.filter(|mask| *mask <= 0o777)
        .ok_or_else(|| "it is an octal number up to 777".to_owned())
}

/// Parses the command line of this process.
///
/// # Errors
/// The error of clap or of an option. Help and version are errors too.
pub(crate) fn parse(words: Vec<OsString>) -> Result<Arguments, clap::Error> {
    let refused = |line: String| clap::Error::raw(ErrorKind::ValueValidation, format!("{line}\n"));
    let mut words = as_mount_command(words).map_err(refused)?;
    let arguments = Arguments::try_parse_from(&words)?;
    let Command::Mount(mount) = &arguments.command else {
        return Ok(arguments);
    };
    if mount.options.is_empty() {
        return Ok(arguments);
    }
    let (flags, unknown) = flags(&mount.options).map_err(refused)?;
    for name in unknown {
        let line = format!("-o {name} is not known; `foliocache mount --help` lists what is");
        match mount.only_options.sloppy {
            true => say(&format!("{line}: ignored")),
            false => return Err(refused(line)),
        }
    }
    // Nothing in front of the subcommand takes a value.
    let command = words.iter().position(|word| word == "mount");
    let at = command.map_or(words.len(), |at| at + 1);
    words.splice(at..at, flags.into_iter().map(OsString::from));
    Arguments::try_parse_from(words)
}

/// The arguments for `-o`, and the options that are not known.
fn flags(options: &[String]) -> Result<(Vec<String>, Vec<String>), String> {
    let (mut flags, mut unknown) = (Vec::new(), Vec::new());
    let (mut read_only, mut no_exec) = (false, false);
    for option in options.iter().flat_map(|list| split(list)) {
        let (name, value) = match option.split_once('=') {
            Some((name, value)) => (name, Some(value)),
            None => (option.as_str(), None),
        };
        let flag = || name.replace('_', "-");
        match (name, value) {
            ("", None) => {}
            ("ro" | "rw", None) => read_only = name == "ro",
            ("exec" | "noexec", None) => no_exec = name == "noexec",
            ("subtype", Some("foliocache")) => {}
            ("subtype", Some(_)) => {
                return Err(format!(
                    "-o {option}: the type of the mount is fuse.foliocache, by which a mount that was killed is found"
                ));
            }
            (_, Some(value)) if WITH_VALUE.contains(&name) => {
                flags.push(format!("--{}={value}", flag()));
            }
            (_, None) if WITHOUT_VALUE.contains(&name) => flags.push(format!("--{}", flag())),
            _ if WITH_VALUE.contains(&name) || name == "subtype" => {
                return Err(format!("-o {name} needs a value: {name}=…"));
            }
            _ if WITHOUT_VALUE.contains(&name)
                || ["ro", "rw", "exec", "noexec"].contains(&name) =>
            {
                return Err(format!("-o {option}: {name} takes no value"));
            }
            _ if ACCEPTED.contains(&name) || name.starts_with("x-") || name.starts_with("X-") => {}
            _ => match REFUSED.iter().find(|(refused, _)| *refused == name) {
                Some((_, why)) => return Err(format!("-o {name} cannot be had: {why}")),
                None => unknown.push(name.to_owned()),
            },
        }
    }
    if read_only {
        flags.push("--read-only".to_owned());
    }
    if no_exec {
        flags.push("--no-exec".to_owned());
    }
    Ok((flags, unknown))
}

/// Splits at commas that have no backslash in front.
fn split(list: &str) -> Vec<String> {
    let (mut parts, mut part) = (Vec::new(), String::new());
    let mut characters = list.chars().peekable();
    while let Some(character) = characters.next() {
        match character {
            ',' => parts.push(std::mem::take(&mut part)),
            '\\' if matches!(characters.peek(), Some(',' | '\\')) => {
                part.extend(characters.next());
            }
            _ => part.push(character),
        }
    }
    parts.push(part);
    parts
}

/// The words of `foliocache mount` for a call by mount(8) or mount.fuse, other words as they are.
fn as_mount_command(words: Vec<OsString>) -> Result<Vec<OsString>, String> {
    let name = |word: &OsString| Path::new(word).file_name().map(OsStr::to_owned);
    let called = words.first().and_then(name).unwrap_or_default();
    if !called.as_bytes().starts_with(b"mount.") && !is_from_mount_fuse(&words) {
        return Ok(words);
    }
    let mut made: Vec<OsString> = ["foliocache", "mount", "--background"]
        .map(Into::into)
        .into();
    let mut places = Vec::new();
    let mut rest = words.into_iter().skip(1);
    while let Some(word) = rest.next() {
        let bytes = word.as_bytes();
        match bytes {
            b"--help" | b"-h" => {
                return Ok(["foliocache", "mount", "--help"].map(Into::into).into());
            }
            b"--version" | b"-V" => return Ok(["foliocache", "--version"].map(Into::into).into()),
            [b'-', letters @ ..] if !letters.is_empty() => {
                helper_flags(letters, &mut rest, &mut made)?
            }
            _ => places.push(match bytes.strip_prefix(b"foliocache#") {
                Some(source) => OsString::from_vec(source.to_vec()),
                None => word,
            }),
        }
    }
    if places.len() != 2 {
        return Err(format!("{} takes SOURCE and MOUNTPOINT", called.display()));
    }
    made.push("--".into());
    made.extend(places);
    Ok(made)
}

/// Whether this is how mount.fuse calls a file system's program: `foliocache SOURCE MOUNTPOINT -o …`.
fn is_from_mount_fuse(words: &[OsString]) -> bool {
    let Some([first, _, rest @ ..]) = words.get(1..) else {
        return false;
    };
    let is_flag = |word: &OsString, flag: &[u8]| word.as_bytes().starts_with(flag);
    let is_command = || {
        let command = Arguments::command();
        first == "help" || command.find_subcommand(first).is_some()
    };
    rest.iter().any(|word| is_flag(word, b"-o")) && !is_flag(first, b"-") && !is_command()
}

/// Letters behind one `-`, of which some take a value.
fn helper_flags(
    letters: &[u8],
    rest: &mut impl Iterator<Item = OsString>,
    made: &mut Vec<OsString>,
) -> Result<(), String> {
    for (at, letter) in letters.iter().enumerate() {
        let mut value = || match &letters[at + 1..] {
            [] => rest
                .next()
                .ok_or_else(|| format!("-{} needs a value", char::from(*letter))),
            behind => Ok(OsString::from_vec(behind.to_vec())),
        };
        match letter {
            // There is no /etc/mtab to leave alone.
            b'n' => {}
            b's' => made.push("--sloppy".into()),
            b'f' => made.push("--fake".into()),
            b'v' => made.push("--verbose".into()),
            b'r' => made.extend(["-o", "ro"].map(OsString::from)),
            b'w' => made.extend(["-o", "rw"].map(OsString::from)),
            b'o' => {
                made.push("-o".into());
                made.push(value()?);
                return Ok(());
            }
            b't' => {
                let kind = value()?;
                if kind != "fuse" && !kind.as_bytes().ends_with(b"foliocache") {
                    return Err(format!(
                        "-t {}: this mounts fuse.foliocache",
                        kind.display()
                    ));
                }
                return Ok(());
            }
            b'N' => {
                return Err(
                    "-N is not supported: run the command in the namespace, with nsenter(1)"
                        .to_owned(),
                );
            }
            _ => return Err(format!("-{} is not known", char::from(*letter))),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mount::MountArguments;

    fn parsed(words: &[&str]) -> Result<MountArguments, String> {
        let words = words.iter().map(OsString::from).collect();
        match parse(words).map_err(|error| error.to_string())?.command {
            Command::Mount(mount) => Ok(mount),
            _ => Err("another command".to_owned()),
        }
    }

    fn with_options(options: &str) -> Result<MountArguments, String> {
        parsed(&["foliocache", "mount", "/s", "/m", "-o", options])
    }

    #[test]
    fn options_are_arguments() {
        let mount = with_options(
            "rw,ro,allow_other,memory=10%,kernel_cache=all,dirty_age=7,stop_timeout=3,writeback=close,\
             log_file=/a\\,b,fsname=name,uid=1000,gid=100,umask=027,noexec,verbose,force,_netdev,x-systemd.after=/s,user=me",
        )
        .unwrap();
        assert!(mount.read_only && mount.allow_other && mount.force);
        assert_eq!((mount.memory.as_str(), mount.verbose), ("10%", 1));
        assert_eq!((mount.dirty_age, mount.stop_timeout), (7, 3));
        assert_eq!(mount.log_file.as_deref(), Some(Path::new("/a,b")));
        let only = &mount.only_options;
        assert_eq!(only.fsname.as_deref(), Some("name"));
        assert_eq!(
            (only.uid, only.gid, only.umask),
            (Some(1000), Some(100), Some(0o027))
        );
        assert!(only.no_exec && !mount.background);
        let mount = with_options("ro,noexec,rw,exec,memory=1G,memory=2G,defaults").unwrap();
        assert!(!mount.read_only && !mount.only_options.no_exec);
        assert_eq!(mount.memory, "2G");
    }

    #[test]
    fn argument_beside_the_options_wins() {
        let words = [
            "foliocache",
            "mount",
            "-o",
            "memory=1G,ro",
            "--memory",
            "2G",
            "/s",
            "/m",
        ];
        let mount = parsed(&words).unwrap();
        assert_eq!(mount.memory, "2G");
        assert!(mount.read_only);
    }

    #[test]
    fn options_that_cannot_be_had_are_refused_by_name() {
        for (options, says) in [
            ("ro,no_such", "-o no_such is not known"),
            ("memory", "-o memory needs a value: memory=…"),
            ("ro=1", "ro takes no value"),
            ("allow_other=1", "allow_other takes no value"),
            ("umask=8", "octal number"),
            ("umask=1777", "octal number"),
            ("uid=me", "invalid digit"),
            ("dirty_age=0", "0 is not in 1..=3600"),
            ("kernel_cache=some", "possible values: none, mapped, all"),
            ("subtype=other", "the type of the mount is fuse.foliocache"),
            ("remount,ro", "unmount it and mount it again"),
            ("sync", "writeback=close"),
            ("nonempty", "must be empty"),
        ] {
            let said = with_options(options).err().unwrap();
            assert!(said.contains(says), "{options}: {said}");
        }
    }

    #[test]
    fn options_have_one_meaning_each_and_are_in_the_help() {
        let names = || {
            let known = WITH_VALUE.iter().chain(&WITHOUT_VALUE).chain(&ACCEPTED);
            known.copied().chain(REFUSED.map(|(name, _)| name))
        };
        for name in names() {
            assert_eq!(names().filter(|other| *other == name).count(), 1, "{name}");
        }
        for name in WITH_VALUE.iter().chain(&WITHOUT_VALUE) {
            assert!(HELP.contains(name), "{name}");
        }
    }

    #[test]
    fn mount_calls_it_as_a_helper() {
        for words in [
            &[
                "/sbin/mount.fuse.foliocache",
                "/s",
                "/m",
                "-n",
                "-sv",
                "-o",
                "rw,memory=1G",
            ][..],
            &[
                "mount.foliocache",
                "-t",
                "fuse.foliocache",
                "/s",
                "-orw,memory=1G,no_such",
                "-s",
                "-v",
                "/m",
            ],
            &[
                "/usr/bin/foliocache",
                "/s",
                "/m",
                "-o",
                "rw,dev,suid,memory=1G,verbose",
            ],
            &["mount.fuse", "foliocache#/s", "/m", "-o", "memory=1G", "-v"],
        ] {
            let mount = parsed(words).unwrap();
            assert!(mount.background && !mount.read_only, "{words:?}");
            assert_eq!(
                (mount.memory.as_str(), mount.verbose),
                ("1G", 1),
                "{words:?}"
            );
            assert_eq!(mount.source, Path::new("/s"));
            assert_eq!(mount.mount_point, Path::new("/m"));
        }
        assert!(
            parsed(&["mount.foliocache", "/s", "/m", "-f"])
                .unwrap()
                .only_options
                .fake
        );
        assert!(
            parsed(&["mount.foliocache", "-r", "/s", "/m"])
                .unwrap()
                .read_only
        );
        // Names may begin with a dash, and be those of commands.
        let mount = parsed(&["mount.foliocache", "mount", "bench"]).unwrap();
        assert_eq!(mount.source, Path::new("mount"));
    }

    #[test]
    fn calls_of_a_helper_that_cannot_be_understood_are_refused() {
        for (words, says) in [
            (
                &["mount.foliocache", "/s"][..],
                "takes SOURCE and MOUNTPOINT",
            ),
            (
                &["mount.foliocache", "/s", "/m", "/x"],
                "takes SOURCE and MOUNTPOINT",
            ),
            (&["mount.foliocache", "/s", "/m", "-o"], "-o needs a value"),
            (&["mount.foliocache", "/s", "/m", "-q"], "-q is not known"),
            (&["mount.foliocache", "/s", "/m", "-N", "x"], "nsenter"),
            (
                &["mount.foliocache", "/s", "/m", "-t", "ext4"],
                "this mounts fuse.foliocache",
            ),
            (
                &["mount.foliocache", "/s", "/m", "-o", "no_such"],
                "-o no_such is not known",
            ),
            // A command that does not exist is not taken for a source.
            (
                &["foliocache", "mont", "/s", "/m"],
                "unrecognized subcommand",
            ),
        ] {
            let said = parsed(words).err().unwrap();
            assert!(said.contains(says), "{words:?}: {said}");
        }
    }
}
