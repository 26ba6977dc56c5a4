//! The mount's side: the command over a directory, and files on it as any program uses them.
//!
//! # Safety
//!
//! Mappings of files on the mount are accessed within their length and within the file, which is of one thread.
#![allow(unsafe_code)]

use crate::place::{Handle, Kind, Place};
use crate::work::{Context, Done, patiently};
use foliocache_sim::Rng;
use rustix::fs::{FallocateFlags, RenameFlags, fallocate, renameat_with};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use serde_json::Value;
use std::fs::{self, File, OpenOptions};
use std::io::{BufRead, BufReader, Read, Seek, SeekFrom, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

/// `O_DIRECT` on this architecture.
const O_DIRECT: i32 = rustix::fs::OFlags::DIRECT.bits() as i32;

/// Longest for a mount to come and to go.
const PATIENCE: Duration = Duration::from_secs(120);

/// The most files that a mount's process may have open.
const OPEN_FILES: u32 = 400;

/// The command under test.
pub(crate) fn program() -> PathBuf {
    match std::env::var_os("FOLIOCACHE_SOAK_PROGRAM") {
        Some(program) => program.into(),
        None => env!("CARGO_BIN_EXE_foliocache").into(),
    }
}

/// Runs the command, and returns its output.
fn call(arguments: &[&str]) -> Done<String> {
    let output = Command::new(program()).args(arguments).output();
    let output = output.context(|| format!("foliocache {arguments:?}"))?;
    match output.status.success() {
        true => Ok(String::from_utf8_lossy(&output.stdout).into_owned()),
        false => Err(format!(
            "foliocache {arguments:?}: {}: {}",
            output.status,
            String::from_utf8_lossy(&output.stderr).trim()
        )),
    }
}

/// A mount of the command; killed when it is dropped.
pub(crate) struct Mount {
    child: Child,
    pub(crate) source: PathBuf,
    pub(crate) point: PathBuf,
    /// Programs may map files for stores.
    pub(crate) maps: bool,
    lines: Arc<Mutex<Vec<String>>>,
}

impl Mount {
    /// Mounts `source` at `point` and waits until it serves.
    pub(crate) fn new(
        source: &Path,
        point: &Path,
        memory: &str,
        kernel_cache: &str,
    ) -> Done<Mount> {
        // The mount keeps descriptors for names up to an eighth of this limit, which separates a
        // leak from kept ones.
        let mut command = Command::new("prlimit");
        command
            .arg(format!("--nofile={OPEN_FILES}:{OPEN_FILES}"))
            .arg(program());
        command.arg("mount").arg(source).arg(point);
        command.args(["--memory", memory, "--kernel-cache", kernel_cache]);
        let mut child = command
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .context(|| "foliocache mount".to_owned())?;
        let lines = Arc::new(Mutex::new(Vec::new()));
        let sink = Arc::clone(&lines);
        let stderr = BufReader::new(child.stderr.take().expect("is piped"));
        thread::spawn(move || {
            for line in stderr.lines().map_while(Result::ok) {
                let mut lines = sink.lock().unwrap();
                // Its last lines say why it ended.
                if lines.len() > 200 {
                    lines.remove(0);
                }
                lines.push(line);
            }
        });
        let mount = Mount {
            child,
            source: source.to_owned(),
            point: point.to_owned(),
            maps: kernel_cache != "none",
            lines,
        };
        let begun = Instant::now();
        while !mount
            .lines()
            .iter()
            .any(|line| line.contains(" is mounted on "))
        {
            if begun.elapsed() > PATIENCE {
                return Err(format!("the mount does not come: {:?}", mount.lines()));
            }
            thread::sleep(Duration::from_millis(10));
        }
        Ok(mount)
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    pub(crate) fn lines(&self) -> Vec<String> {
        self.lines.lock().unwrap().clone()
    }

    pub(crate) fn status(&self) -> Done<Value> {
        let text = call(&["status", &self.point.to_string_lossy(), "--json"])?;
        serde_json::from_str(&text).context(|| format!("status: {text}"))
    }

    pub(crate) fn set_memory(&self, bytes: u64) -> Done {
        let setting = format!("memory={bytes}");
        call(&["set", &self.point.to_string_lossy(), &setting]).map(drop)
    }

    /// Writes everything back.
    pub(crate) fn sync(&self) -> Done {
        self.signal("USR2")
    }

    fn signal(&self, name: &str) -> Done {
        let pid = self.pid().to_string();
        let status = Command::new("kill").args(["-s", name, &pid]).status();
        match status.context(|| "kill".to_owned())?.success() {
            true => Ok(()),
            false => Err(format!(
                "process {pid} of the mount is gone: {:?}",
                self.lines()
            )),
        }
    }

    /// Ends it and expects that nothing was lost.
    pub(crate) fn end(mut self) -> Done {
        self.signal("TERM")?;
        let begun = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait().context(|| "mount".to_owned())? {
                return match status.success() {
                    true => Ok(()),
                    false => Err(format!("the mount ended with {status}: {:?}", self.lines())),
                };
            }
            if begun.elapsed() > PATIENCE {
                return Err(format!("the mount does not end: {:?}", self.lines()));
            }
            thread::sleep(Duration::from_millis(20));
        }
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        if let Ok(None) = self.child.try_wait() {
            let _ = self.child.kill();
            let _ = self.child.wait();
            let mut command = Command::new("umount");
            let _ = command
                .arg("-l")
                .arg(&self.point)
                .stderr(Stdio::null())
                .status();
        }
    }
}

impl Mount {
    fn at(&self, path: &str) -> PathBuf {
        self.point.join(path)
    }
}

impl Place for Mount {
    fn open(&self, path: &str) -> Done<Box<dyn Handle + '_>> {
        let mut options = OpenOptions::new();
        let file = options.read(true).write(true).create(true).truncate(false);
        let file = patiently(|| file.open(self.at(path))).context(|| format!("open {path}"))?;
        Ok(Box::new(MountHandle {
            path: self.at(path),
            maps: self.maps,
            file,
        }))
    }

    fn read(&self, path: &str) -> Done<Vec<u8>> {
        patiently(|| fs::read(self.at(path))).context(|| format!("read {path} on the mount"))
    }

    fn write(&self, path: &str, bytes: &[u8]) -> Done {
        let done = patiently(|| fs::write(self.at(path), bytes));
        done.context(|| format!("write {path} on the mount"))
    }

    fn copy(&self, from: &str, to: &str) -> Done {
        let done = patiently(|| fs::copy(self.at(from), self.at(to)));
        done.map(drop)
            .context(|| format!("copy {from} to {to} on the mount"))
    }

    fn create_dir(&self, path: &str) -> Done {
        let done = patiently(|| fs::create_dir(self.at(path)));
        done.context(|| format!("create_dir {path} on the mount"))
    }

    fn rename(&self, from: &str, to: &str) -> Done {
        let done = patiently(|| fs::rename(self.at(from), self.at(to)));
        done.context(|| format!("rename {from} to {to} on the mount"))
    }

    fn exchange(&self, a: &str, b: &str) -> Done {
        let here = rustix::fs::CWD;
        let done =
            patiently(|| renameat_with(here, self.at(a), here, self.at(b), RenameFlags::EXCHANGE));
        done.context(|| format!("exchange {a} and {b} on the mount"))
    }

    fn hard_link(&self, existing: &str, new: &str) -> Done {
        let done = patiently(|| fs::hard_link(self.at(existing), self.at(new)));
        done.context(|| format!("link {existing} as {new} on the mount"))
    }

    fn symlink(&self, target: &str, link: &str) -> Done {
        let done = patiently(|| symlink(target, self.at(link)));
        done.context(|| format!("symlink {link} on the mount"))
    }

    fn read_link(&self, path: &str) -> Done<String> {
        let target = patiently(|| fs::read_link(self.at(path)));
        let target = target.context(|| format!("read_link {path} on the mount"))?;
        Ok(target.to_string_lossy().into_owned())
    }

    fn remove_file(&self, path: &str) -> Done {
        let done = patiently(|| fs::remove_file(self.at(path)));
        done.context(|| format!("remove_file {path} on the mount"))
    }

    fn remove_dir(&self, path: &str) -> Done {
        let done = patiently(|| fs::remove_dir(self.at(path)));
        done.context(|| format!("remove_dir {path} on the mount"))
    }

    fn remove_dir_all(&self, path: &str) -> Done {
        let done = patiently(|| fs::remove_dir_all(self.at(path)));
        done.context(|| format!("remove_dir_all {path} on the mount"))
    }

    fn list(&self, path: &str) -> Done<Vec<String>> {
        list(&self.at(path))
    }

    fn kind(&self, path: &str) -> Done<Kind> {
        kind(&self.at(path))
    }

    fn sync_dir(&self, path: &str) -> Done {
        let done =
            patiently(|| File::open(self.at(path))).and_then(|directory| directory.sync_all());
        done.context(|| format!("sync {path} on the mount"))
    }

    fn source(&self, path: &str) -> Option<PathBuf> {
        Some(self.source.join(path))
    }

    fn is_mount(&self) -> bool {
        true
    }
}

/// The names in a directory, sorted.
pub(crate) fn list(path: &Path) -> Done<Vec<String>> {
    let names = || -> std::io::Result<Vec<String>> {
        let names = fs::read_dir(path)?;
        names
            .map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned()))
            .collect()
    };
    let mut names = patiently(names).context(|| format!("read_dir {}", path.display()))?;
    names.sort();
    Ok(names)
}

/// The kind of file at a name.
pub(crate) fn kind(path: &Path) -> Done<Kind> {
    let found = patiently(|| path.symlink_metadata());
    let found = found.context(|| format!("metadata of {}", path.display()))?;
    Ok(match found.file_type() {
        kind if kind.is_dir() => Kind::Directory,
        kind if kind.is_symlink() => Kind::Link,
        _ => Kind::File(found.len()),
    })
}

/// A file on a mount.
struct MountHandle {
    path: PathBuf,
    maps: bool,
    file: File,
}

/// The largest unit in which direct I/O is aligned.
const PAGE: usize = 4096;

/// `len` bytes of `buffer` that begin at a multiple of the page size, as direct I/O wants them.
fn aligned(buffer: &mut Vec<u8>, len: usize) -> &mut [u8] {
    buffer.resize(len + PAGE, 0);
    let skip = buffer.as_ptr().align_offset(PAGE);
    &mut buffer[skip..skip + len]
}

impl MountHandle {
    fn reads(&self, file: &File, pos: u64, bytes: &mut [u8]) -> std::io::Result<usize> {
        let mut done = 0;
        while done < bytes.len() {
            match file.read_at(&mut bytes[done..], pos + done as u64)? {
                0 => break,
                n => done += n,
            }
        }
        Ok(done)
    }

    /// Runs `act` with a shared mapping of the file's first `len` bytes.
    fn mapped<T>(&self, len: usize, act: impl FnOnce(*mut u8) -> T) -> std::io::Result<T> {
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        let anywhere = std::ptr::null_mut();
        // SAFETY: the addresses are new ones.
        let mapped = unsafe { mmap(anywhere, len, protection, MapFlags::SHARED, &self.file, 0) }?;
        let result = act(mapped.cast());
        // SAFETY: the mapping was made above, and nothing of it was kept.
        unsafe { munmap(mapped, len) }?;
        Ok(result)
    }

    fn try_read(
        &mut self,
        pos: u64,
        len: usize,
        rng: &mut Rng,
    ) -> std::io::Result<(Vec<u8>, &'static str)> {
        let size = self.file.metadata()?.len();
        let within = size.saturating_sub(pos).min(len as u64) as usize;
        let mut bytes = vec![0; len];
        match rng.below(8) {
            0 => {
                let direct = OpenOptions::new()
                    .read(true)
                    .custom_flags(O_DIRECT)
                    .open(&self.path)?;
                let first = pos / 4096 * 4096;
                let pages = (pos + len as u64 - first).div_ceil(4096) as usize;
                let mut buffer = Vec::new();
                let buffer = aligned(&mut buffer, pages * PAGE);
                let read = self.reads(&direct, first, buffer)?;
                let skip = (pos - first) as usize;
                let end = read.min(skip + len);
                let found = buffer.get(skip..end).unwrap_or_default().to_vec();
                return Ok((found, "direct read on a mount"));
            }
            1 | 2 if self.maps && within > 0 => {
                let end = pos as usize + within;
                let found = self.mapped(end, |address| {
                    bytes.truncate(within);
                    // SAFETY: the mapping has `end` bytes.
                    let from = unsafe { address.add(pos as usize) };
                    // SAFETY: `within` bytes from there on are in the mapping and in the file,
                    // which only this worker changes.
                    unsafe { std::ptr::copy_nonoverlapping(from, bytes.as_mut_ptr(), within) };
                    bytes
                })?;
                return Ok((found, "loads of a mapping on a mount"));
            }
            3 => {
                let mut other = File::open(&self.path)?;
                other.seek(SeekFrom::Start(pos))?;
                bytes.clear();
                other.take(len as u64).read_to_end(&mut bytes)?;
                return Ok((bytes, "read on a mount through another handle"));
            }
            _ => {}
        }
        let read = self.reads(&self.file, pos, &mut bytes)?;
        bytes.truncate(read);
        Ok((bytes, "read on a mount"))
    }

    fn try_write(
        &mut self,
        pos: u64,
        bytes: &[u8],
        rng: &mut Rng,
    ) -> std::io::Result<&'static str> {
        let end = pos + bytes.len() as u64;
        let within = !bytes.is_empty() && end <= self.file.metadata()?.len();
        match rng.below(8) {
            0 => {
                let direct = OpenOptions::new()
                    .write(true)
                    .custom_flags(O_DIRECT)
                    .open(&self.path)?;
                let mut buffer = Vec::new();
                let buffer = aligned(&mut buffer, bytes.len());
                buffer.copy_from_slice(bytes);
                direct.write_all_at(buffer, pos)?;
                return Ok("direct write on a mount");
            }
            1 | 2 if self.maps && within => {
                self.mapped(end as usize, |address| {
                    // SAFETY: the mapping ends at `end`.
                    let to = unsafe { address.add(pos as usize) };
                    // SAFETY: the bytes from there on are in the mapping and in the file, which
                    // only this worker changes.
                    unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), to, bytes.len()) };
                })?;
                return Ok("stores to a mapping on a mount");
            }
            3 => {
                let mut other = OpenOptions::new().write(true).open(&self.path)?;
                other.seek(SeekFrom::Start(pos))?;
                other.write_all(bytes)?;
                return Ok("write on a mount through another handle");
            }
            _ => {}
        }
        self.file.write_all_at(bytes, pos)?;
        Ok("write on a mount")
    }

    fn about(&self, what: &str) -> String {
        format!("{what} {}", self.path.display())
    }
}

impl Handle for MountHandle {
    fn read(&mut self, pos: u64, len: usize, rng: &mut Rng) -> Done<(Vec<u8>, &'static str)> {
        let read = patiently(|| self.try_read(pos, len, rng));
        read.context(|| self.about(&format!("read {len} bytes at {pos} of")))
    }

    fn write(&mut self, pos: u64, bytes: &[u8], rng: &mut Rng) -> Done<&'static str> {
        let written = patiently(|| self.try_write(pos, bytes, rng));
        written.context(|| self.about(&format!("write {} bytes at {pos} of", bytes.len())))
    }

    fn append(&mut self, bytes: &[u8], _: &mut Rng) -> Done {
        let appending = patiently(|| OpenOptions::new().append(true).open(&self.path));
        let done = appending.and_then(|mut file| file.write_all(bytes));
        done.context(|| self.about("append to"))
    }

    fn set_len(&mut self, len: u64) -> Done {
        self.file.set_len(len).context(|| self.about("set_len of"))
    }

    fn punch(&mut self, pos: u64, len: u64) -> Done {
        let mode = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        let done = fallocate(self.file.as_fd(), mode, pos, len);
        done.context(|| self.about("punch"))
    }

    fn sync(&mut self, datasync: bool, _: &mut Rng) -> Done<&'static str> {
        let done = match datasync {
            true => self.file.sync_data(),
            false => self.file.sync_all(),
        };
        done.context(|| self.about("fsync of"))?;
        Ok("fsync on a mount")
    }

    fn len(&mut self) -> Done<u64> {
        let found = self.file.metadata();
        Ok(found.context(|| self.about("metadata of"))?.len())
    }

    fn disturb(&mut self, rng: &mut Rng) -> Done<&'static str> {
        let len = self.len()?;
        let act = || -> std::io::Result<&'static str> {
            match rng.below(4) {
                0 if len > 0 => {
                    let pos = rng.below(len);
                    let part = rng.between(1, len - pos);
                    fallocate(self.file.as_fd(), FallocateFlags::empty(), pos, part)?;
                    Ok("allocation on a mount")
                }
                1 => {
                    let mut options = OpenOptions::new();
                    self.file = options.read(true).write(true).open(&self.path)?;
                    Ok("open on a mount")
                }
                2 => {
                    let advice = rustix::fs::Advice::DontNeed;
                    rustix::fs::fadvise(self.file.as_fd(), 0, None, advice)?;
                    Ok("advice on a mount")
                }
                _ => {
                    fs::metadata(&self.path)?;
                    Ok("metadata on a mount")
                }
            }
        };
        patiently(act).context(|| format!("advice for {}", self.path.display()))
    }
}
