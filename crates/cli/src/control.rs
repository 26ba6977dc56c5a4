//! `foliocache status` and `foliocache set`: questions to a running mount through a Unix socket.
//!
//! # Model
//!
//! ```text
//!  status, set ──▶ /proc/self/mountinfo: which mount is it? ──▶ socket of its device number ──▶ the mount's process
//!     one line of JSON: a request  ─────────────────────────────────────────────────────────▶
//!     ◀───────────────────────────────────────────────────────── one line of JSON: an answer
//! ```
//!
//! The socket lies in `/run/foliocache` for root and in `$XDG_RUNTIME_DIR/foliocache` for other users, a directory
//! that only its user can enter. Its name is the mount's device number, which no two mounts share at a time. It is
//! bound under a temporary name and renamed once it listens, so a socket that refuses a connection belongs to a
//! killed process. It stays as long as the dead mount, and the next mount that starts removes it.
//!
//! Neither side touches the mount, whose source may hang.
//!
//! # Locking
//!
//! Each connection has its thread, at most [`MAX_CONNECTIONS`] at a time. A process that makes or removes a socket holds a lock
//! (flock) of the directory meanwhile: one that found a killed mount's socket would else remove that of a new mount, which
//! took the same name.

use crate::check::FS_TYPE;
use crate::figures::Asked;
use crate::log::say;
use crate::memory;
use crate::status::show;
use crate::{BAD_INPUT, FAILED, Outcome, spawn};
use clap::Args;
use foliocache_sys::credentials::effective_user;
use foliocache_sys::dir::mount::{self as mounts, MountInfo};
use foliocache_sys::peer::peer_user;
use serde_json::{Value, json};
use std::fs::{self, DirBuilder, File};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::{Duration, Instant};

/// Requests that are answered at a time.
const MAX_CONNECTIONS: usize = 8;

/// Longest request, in bytes.
const MAX_REQUEST: u64 = 4096;

/// Longest answer, in bytes.
const MAX_ANSWER: u64 = 1 << 20;

/// Longest that the mount waits for a client.
const CLIENT_PATIENCE: Duration = Duration::from_secs(2);

/// Longest that a mount waits for another that starts or ends.
const LOCK_PATIENCE: Duration = Duration::from_secs(1);

/// Longest that a client waits for the mount.
const PATIENCE: Duration = Duration::from_secs(10);

/// How long a change of the bound may take before the answer says that it goes on.
const SHRINK_PATIENCE: Duration = Duration::from_secs(1);

/// Arguments of `foliocache status`.
#[derive(Args)]
pub(crate) struct StatusArguments {
    /// Where the mount is.
    #[arg(value_name = "MOUNTPOINT")]
    mount_point: PathBuf,
    /// Print one JSON object; docs/guide/statistics.md explains each field.
    #[arg(long)]
    json: bool,
}

/// Arguments of `foliocache set`.
#[derive(Args)]
pub(crate) struct SetArguments {
    /// Where the mount is.
    #[arg(value_name = "MOUNTPOINT")]
    mount_point: PathBuf,
    /// The setting to change: memory=SIZE, with SIZE as for mount --memory.
    #[arg(value_name = "NAME=VALUE")]
    setting: String,
}

/// Runs `foliocache status`.
pub(crate) fn status(arguments: &StatusArguments) -> Outcome {
    let form = if arguments.json { "json" } else { "text" };
    let answer = ask(&arguments.mount_point, &json!({"status": form}))?;
    show_answer(&answer)
}

/// Runs `foliocache set`.
pub(crate) fn set(arguments: &SetArguments) -> Outcome {
    let Some(("memory", size)) = arguments.setting.split_once('=') else {
        let line = format!("{}: only memory=SIZE can be set", arguments.setting);
        return Err((BAD_INPUT, line));
    };
    // As text: a percentage refers to the memory that the mount's process may use.
    let answer = ask(&arguments.mount_point, &json!({"memory": size}))?;
    show_answer(&answer)
}

/// Prints an answer on standard output. A closed output is no error.
fn show_answer(answer: &Value) -> Outcome {
    let text = match answer {
        // File names may contain terminal escapes. JSON escapes them.
        Value::String(text) => text.replace(|c: char| c.is_control() && c != '\n', "?"),
        other => format!("{other:#}"),
    };
    let _ = writeln!(io::stdout(), "{text}");
    Ok(ExitCode::SUCCESS)
}

/// Has the mount at a place answer.
fn ask(mount_point: &Path, request: &Value) -> Result<Value, (u8, String)> {
    let shown = mount_point.display();
    let mounted = mounts::mount_at(mount_point)
        .map_err(|errno| (BAD_INPUT, format!("{shown}: {}", errno.description())))?;
    let mounted = match mounted {
        Some(mounted) if mounted.fs_type == FS_TYPE => mounted,
        Some(other) => {
            let line = format!(
                "{shown} is no mount of foliocache, but of type {}",
                other.fs_type
            );
            return Err((BAD_INPUT, line));
        }
        None => return Err((BAD_INPUT, format!("nothing is mounted at {shown}"))),
    };
    let mut stream = connect(&mounted).map_err(|line| (FAILED, format!("{shown}: {line}")))?;
    let failed = |error: io::Error| {
        let why = match error.kind() {
            io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => {
                format!(
                    "no answer within {} s: its process may be stopped",
                    PATIENCE.as_secs()
                )
            }
            _ => error.to_string(),
        };
        (FAILED, format!("{shown}: {why}"))
    };
    let answer = exchange(&mut stream, request).map_err(failed)?;
    let unread = || (FAILED, format!("{shown}: the answer was cut off"));
    let mut answer: Value = serde_json::from_str(&answer).map_err(|_| unread())?;
    match answer.get("error").and_then(Value::as_str) {
        Some(line) => {
            let exit = answer["exit"]
                .as_u64()
                .and_then(|exit| exit.try_into().ok());
            Err((exit.unwrap_or(FAILED), line.to_owned()))
        }
        None => Ok(answer["answer"].take()),
    }
}

fn exchange(stream: &mut UnixStream, request: &Value) -> io::Result<String> {
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    stream.write_all(format!("{request}\n").as_bytes())?;
    let mut answer = String::new();
    BufReader::new(stream.take(MAX_ANSWER)).read_line(&mut answer)?;
    Ok(answer)
}

/// Connects to the process behind a mount.
fn connect(mounted: &MountInfo) -> Result<UnixStream, String> {
    let name = socket_name(mounted);
    let mut directories: Vec<_> = runtime_directory().into_iter().collect();
    if effective_user() == 0 {
        // Another user's.
        let users = fs::read_dir("/run/user").into_iter().flatten().flatten();
        directories.extend(users.map(|user| user.path().join("foliocache")));
    }
    let mut why = "its process answers no questions: only root and the user who mounted it can ask";
    for directory in directories {
        match UnixStream::connect(directory.join(&name)) {
            Ok(stream) => return Ok(stream),
            Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
                why = "the foliocache that served it has ended: unmount it";
            }
            Err(_) => {}
        }
    }
    Err(why.to_owned())
}

fn socket_name(mounted: &MountInfo) -> String {
    let (major, minor) = mounted.device;
    format!("mount-{major}-{minor}.sock")
}

/// Whether a name is one of [`socket_name`]'s.
fn is_socket_name(name: &str) -> bool {
    name.starts_with("mount-") && name.ends_with(".sock")
}

/// Where this user's sockets are.
fn runtime_directory() -> Option<PathBuf> {
    if effective_user() == 0 {
        return Some("/run/foliocache".into());
    }
    let own = std::env::var_os("XDG_RUNTIME_DIR").filter(|path| !path.is_empty());
    let own = own.map_or_else(
        || format!("/run/user/{}", effective_user()).into(),
        PathBuf::from,
    );
    own.is_absolute().then(|| own.join("foliocache"))
}

/// The socket of a mount. Its file is removed with the value.
///
/// The kernel may give the device number to a new mount before the process of the old one has ended. The new one's socket
/// has taken the name then, and keeps it.
pub(crate) struct Control {
    path: PathBuf,
    /// Device and inode number. No other file has both while the socket is open.
    file: (u64, u64),
}

impl Control {
    /// Answers from now on.
    ///
    /// # Errors
    /// Why it cannot; the mount works without it.
    pub(crate) fn start(asked: &Arc<Asked>) -> Result<Control, String> {
        let point = &asked.facts.mount_point;
        let mounted = mounts::mount_at(point).map_err(|errno| errno.to_string())?;
        let mounted = mounted.ok_or_else(|| format!("{} is not mounted", point.display()))?;
        let directory = runtime_directory().ok_or("XDG_RUNTIME_DIR is no absolute path")?;
        let at = |error: io::Error| format!("{}: {error}", directory.display());
        let mounted_name = socket_name(&mounted);
        make_private(&directory).map_err(at)?;
        let (listener, control) = Control::take_name(&directory, &mounted_name).map_err(at)?;
        let asked = Arc::clone(asked);
        spawn("control", move || serve(&listener, &asked))?;
        Ok(control)
    }

    /// Binds a socket under `name`, after killed mounts' ones are removed.
    fn take_name(directory: &Path, name: &str) -> io::Result<(UnixListener, Control)> {
        let lock = lock(directory);
        if lock.is_some() {
            remove_stale(directory);
        }
        Control::at(directory.join(name))
    }

    /// Binds a socket, and replaces a file of that name.
    fn at(path: PathBuf) -> io::Result<(UnixListener, Control)> {
        let starting = path.with_file_name(format!("starting-{}.sock", std::process::id()));
        // Of a killed process that had the same number.
        let _ = fs::remove_file(&starting);
        let listener = UnixListener::bind(&starting)?;
        fs::set_permissions(&starting, fs::Permissions::from_mode(0o600))?;
        let file = file_at(&starting)?;
        fs::rename(&starting, &path)?;
        Ok((listener, Control { path, file }))
    }
}

impl Drop for Control {
    fn drop(&mut self) {
        let _lock = self.path.parent().and_then(lock);
        if file_at(&self.path).is_ok_and(|file| file == self.file) {
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// Has other processes wait that make or remove sockets in a directory, until the result is dropped. `None` where it cannot be had,
/// for a process that was stopped may hold it: no mount waits for another for long.
fn lock(directory: &Path) -> Option<File> {
    let (lock, begun) = (File::open(directory).ok()?, Instant::now());
    while lock.try_lock().is_err() {
        if begun.elapsed() > LOCK_PATIENCE {
            return None;
        }
        thread::sleep(Duration::from_millis(1));
    }
    Some(lock)
}

/// Device and inode number.
fn file_at(path: &Path) -> io::Result<(u64, u64)> {
    let about = fs::symlink_metadata(path)?;
    Ok((about.dev(), about.ino()))
}

/// Makes a directory that only this user can enter, or makes sure that it is one.
fn make_private(directory: &Path) -> io::Result<()> {
    match DirBuilder::new().mode(0o700).create(directory) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
        _ => {}
    }
    let about = fs::symlink_metadata(directory)?;
    if about.is_dir() && about.uid() == effective_user() && about.mode() & 0o077 == 0 {
        return Ok(());
    }
    Err(io::Error::other(
        "is no directory that only its user can enter",
    ))
}

/// Removes the sockets of killed processes: nothing listens there, and their mounts are gone.
///
/// While the mount exists, its socket shows `status` that the process has ended.
///
/// Context: [`lock`] held.
fn remove_stale(directory: &Path) {
    let Ok(mounted) = mounts::mounts() else {
        return;
    };
    let mounted: Vec<_> = mounted.iter().map(socket_name).collect();
    for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let is_stale =
            |name: &str| is_socket_name(name) && !mounted.iter().any(|other| other == name);
        if !name.to_str().is_some_and(is_stale) {
            continue;
        }
        if let Err(error) = UnixStream::connect(entry.path())
            && error.kind() == io::ErrorKind::ConnectionRefused
        {
            let _ = fs::remove_file(entry.path());
        }
    }
}

fn serve(listener: &UnixListener, asked: &Arc<Asked>) {
    let connections = Arc::new(AtomicUsize::new(0));
    loop {
        let Ok((stream, _)) = listener.accept() else {
            // Out of descriptors, most likely.
            thread::sleep(Duration::from_millis(100));
            continue;
        };
        let busy = Busy::new(&connections);
        let asked = Arc::clone(asked);
        // Without a thread the connection is closed, which tells the client.
        // A client that has gone needs no answer.
        let _ = spawn("control-answer", move || answer(&stream, &asked, busy));
    }
}

/// One connection.
struct Busy(Arc<AtomicUsize>, usize);

impl Busy {
    fn new(connections: &Arc<AtomicUsize>) -> Busy {
        // Relaxed: a number.
        let before = connections.fetch_add(1, Ordering::Relaxed);
        Busy(Arc::clone(connections), before)
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Reads a request and answers it.
fn answer(stream: &UnixStream, asked: &Asked, busy: Busy) -> io::Result<()> {
    stream.set_read_timeout(Some(CLIENT_PATIENCE))?;
    stream.set_write_timeout(Some(CLIENT_PATIENCE))?;
    let user = peer_user(stream.as_fd())?;
    let answered = if user != 0 && user != effective_user() {
        Err(failed("only root and the user who mounted it can ask"))
    } else if busy.1 >= MAX_CONNECTIONS {
        Err(failed("too many questions at a time: ask again"))
    } else {
        let mut line = String::new();
        BufReader::new(stream.take(MAX_REQUEST)).read_line(&mut line)?;
        respond(&line, asked)
    };
    let answer = match answered {
        Ok(answer) => json!({"answer": answer}),
        Err((exit, line)) => json!({"error": line, "exit": exit}),
    };
    let mut stream = stream;
    stream.write_all(format!("{answer}\n").as_bytes())
}

/// An error that is not the request's fault: the exit status, and the line to show.
fn failed(line: impl Into<String>) -> (u8, String) {
    (FAILED, line.into())
}

/// Carries out a request.
///
/// # Errors
/// The exit status for the client, and the line to show.
fn respond(line: &str, asked: &Asked) -> Result<Value, (u8, String)> {
    let not_known = || failed("this foliocache does not know the request");
    let request: Value = serde_json::from_str(line).map_err(|_| not_known())?;
    if let Some(form) = request.get("status").and_then(Value::as_str) {
        let now = asked.snapshot().map_err(failed)?;
        return Ok(match form {
            "text" => asked.text(&now).into(),
            _ => asked.json(&now),
        });
    }
    let size = request.get("memory").and_then(Value::as_str);
    let size = size.ok_or_else(not_known)?;
    let bound = memory::bound("memory", size).map_err(|line| (BAD_INPUT, line))?;
    set_memory(asked, &bound).map(Value::from).map_err(failed)
}

/// Changes the bound; returns the progress so far.
fn set_memory(asked: &Asked, bound: &memory::Bound) -> Result<String, String> {
    let bytes = bound.bytes;
    let before = asked.snapshot()?.cache.pressure.configured_bytes;
    let (tell, told) = mpsc::channel();
    let cache = asked.cache.clone();
    // The receiver is gone when it takes longer than it waits.
    spawn("set-memory", move || _ = tell.send(cache.set_memory(bytes)))?;
    if let Ok(Err(error)) = told.recv_timeout(SHRINK_PATIENCE) {
        return Err(error.to_string());
    }
    let now = asked.snapshot()?.cache;
    let in_use = now.memory.total_bytes();
    let mut text = format!(
        "memory bound {}{}, was {}; in use {}",
        show(bytes),
        bound.of,
        show(before),
        show(in_use),
    );
    if now.pressure.effective_bytes < bytes {
        text += &format!(
            "; memory is short outside: {} is kept",
            show(now.pressure.effective_bytes)
        );
    }
    if in_use > bytes {
        text += ": more is given back as data is written or no longer in use";
    }
    say(&format!("by request: {text}"));
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicBool;

    #[test]
    fn only_sockets_without_a_listener_are_removed() {
        let temp = tempfile::tempdir().unwrap();
        let at = |name: &str| temp.path().join(name);
        drop(UnixListener::bind(at("mount-0-1.sock")).unwrap());
        drop(UnixListener::bind(at("other.sock")).unwrap());
        let _live = UnixListener::bind(at("mount-0-2.sock")).unwrap();
        fs::write(at("mount-0-3.sock.txt"), "x").unwrap();
        remove_stale(temp.path());
        let mut left: Vec<_> = fs::read_dir(temp.path())
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        left.sort();
        assert_eq!(left, ["mount-0-2.sock", "mount-0-3.sock.txt", "other.sock"]);
    }

    #[test]
    fn a_socket_that_took_the_name_of_another_outlives_it() {
        let temp = tempfile::tempdir().unwrap();
        let path = temp.path().join("mount-0-1.sock");
        let (_old_listener, old) = Control::at(path.clone()).unwrap();
        let (_listener, new) = Control::at(path.clone()).unwrap();
        drop(old);
        UnixStream::connect(&path).unwrap();
        drop(new);
        assert_eq!(fs::read_dir(temp.path()).unwrap().count(), 0);
    }

    /// The other mount finds the socket of a killed one, whose name a new mount takes before that is removed.
    #[test]
    fn a_new_socket_is_not_removed_in_place_of_a_killed_mounts_one() {
        let temp = tempfile::tempdir().unwrap();
        let name = "mount-0-1.sock";
        let ended = AtomicBool::new(false);
        thread::scope(|scope| {
            scope.spawn(|| {
                while !ended.load(Ordering::Relaxed) {
                    let locked = lock(temp.path()).unwrap();
                    remove_stale(temp.path());
                    drop(locked);
                    thread::sleep(Duration::from_micros(20));
                }
            });
            for _ in 0..1000 {
                drop(UnixListener::bind(temp.path().join("killed")).unwrap());
                fs::rename(temp.path().join("killed"), temp.path().join(name)).unwrap();
                let (_listener, control) = Control::take_name(temp.path(), name).unwrap();
                thread::sleep(Duration::from_micros(20));
                let there = file_at(&control.path).ok() == Some(control.file);
                ended.store(!there, Ordering::Relaxed);
                assert!(there);
            }
            ended.store(true, Ordering::Relaxed);
        });
    }

    #[test]
    fn a_mount_that_is_stopped_while_it_starts_stops_no_other() {
        let temp = tempfile::tempdir().unwrap();
        drop(UnixListener::bind(temp.path().join("mount-0-2.sock")).unwrap());
        let held = lock(temp.path()).unwrap();
        let (_listener, control) = Control::take_name(temp.path(), "mount-0-1.sock").unwrap();
        UnixStream::connect(&control.path).unwrap();
        assert!(temp.path().join("mount-0-2.sock").exists());
        drop(control);
        drop(held);
        let names = fs::read_dir(temp.path()).unwrap();
        assert_eq!(names.count(), 1, "its own is removed, and no other");
    }

    #[test]
    fn a_directory_that_others_can_enter_is_refused() {
        let temp = tempfile::tempdir().unwrap();
        let directory = temp.path().join("foliocache");
        make_private(&directory).unwrap();
        assert_eq!(fs::metadata(&directory).unwrap().mode() & 0o777, 0o700);
        make_private(&directory).unwrap();
        fs::set_permissions(&directory, fs::Permissions::from_mode(0o755)).unwrap();
        let error = make_private(&directory).unwrap_err();
        assert!(error.to_string().contains("only its user"), "{error}");
    }
}
