//! FUSE requests as no kernel would send them, to a mount's server without a mount.
//!
//! # Model
//!
//! The messages are well formed, as the kernel's are. Their numbers, names, sizes, offsets and handles are not: inodes that were
//! never looked up or were forgotten, handles that were closed, or of another file. For every request:
//!
//! 1. It is answered once, a `FORGET` never, with a length and an error number that the kernel takes.
//! 2. Nothing panics, also where the server would catch it.
//! 3. An inode that the kernel does not know has no attributes.
//! 4. Reads and sizes of a file agree with the writes and truncates that were answered.

use super::canary;
use arbitrary::{Result, Unstructured};
use foliocache_fs::MemFs;
use foliocache_fuse::{MountOptions, Served};
use foliocache_mm::{Mm, MmConfig};
use foliocache_sim::ReferenceFile;
use foliocache_sync::Arc;
use foliocache_vfs::SuperBlock;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, sockopt};
use std::collections::BTreeMap;
use std::os::fd::OwnedFd;

const HEADER: usize = 40;
const OUT_HEADER: usize = 16;
/// Bytes of an answer that names an inode, and of its attributes.
const ENTRY: usize = 128;
const ROOT: u64 = 1;
/// Bytes that one read asks for, most: an answer must fit into the socket's buffer.
const MOST: u32 = 96 << 10;
const PROBE: u64 = u64::MAX;

/// The kernel's numbers of the requests.
#[rustfmt::skip]
mod op {
    pub(super) const LOOKUP: u32 = 1;
    pub(super) const FORGET: u32 = 2;
    pub(super) const GETATTR: u32 = 3;
    pub(super) const SETATTR: u32 = 4;
    pub(super) const SYMLINK: u32 = 6;
    pub(super) const MKNOD: u32 = 8;
    pub(super) const MKDIR: u32 = 9;
    pub(super) const LINK: u32 = 13;
    pub(super) const OPEN: u32 = 14;
    pub(super) const READ: u32 = 15;
    pub(super) const WRITE: u32 = 16;
    pub(super) const RELEASE: u32 = 18;
    pub(super) const OPENDIR: u32 = 27;
    pub(super) const INIT: u32 = 26;
    pub(super) const READDIR: u32 = 28;
    pub(super) const CREATE: u32 = 35;
    pub(super) const DESTROY: u32 = 38;
    pub(super) const BATCH_FORGET: u32 = 42;
    pub(super) const FALLOCATE: u32 = 43;
    pub(super) const READDIRPLUS: u32 = 44;
    pub(super) const COPY_FILE_RANGE: u32 = 47;
    /// Those that are made below.
    pub(super) const ALL: [u32; 46] = [
        LOOKUP, LOOKUP, FORGET, GETATTR, SETATTR, SETATTR, 5, SYMLINK, MKNOD, MKDIR, 10, 11, 12, LINK, OPEN, OPEN, READ,
        READ, READ, WRITE, WRITE, WRITE, 17, RELEASE, 20, 21, 22, 23, 24, 25, OPENDIR, READDIR, 29, 30, 34, CREATE,
        CREATE, CREATE, 36, BATCH_FORGET, FALLOCATE, READDIRPLUS, 45, 46, COPY_FILE_RANGE, SETATTR,
    ];
}

/// The body of a request.
#[derive(Default)]
struct Body(Vec<u8>);

impl Body {
    fn u32(mut self, value: u32) -> Self {
        self.0.extend(value.to_ne_bytes());
        self
    }

    fn u64(mut self, value: u64) -> Self {
        self.0.extend(value.to_ne_bytes());
        self
    }

    fn name(mut self, name: &[u8]) -> Self {
        self.0.extend(name);
        self.0.push(0);
        self
    }
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_ne_bytes(bytes[at..at + 4].try_into().expect("four bytes"))
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_ne_bytes(bytes[at..at + 8].try_into().expect("eight bytes"))
}

/// The kernel's knowledge.
struct Kernel {
    socket: OwnedFd,
    buffer: Vec<u8>,
    unique: u64,
    /// Look-ups of each inode that were not forgotten.
    lookups: BTreeMap<u64, u64>,
    /// The contents of regular files, as long as all their changes are modelled.
    files: BTreeMap<u64, ReferenceFile>,
    /// Open files.
    handles: Vec<(u64, u64)>,
    directories: Vec<u64>,
    history: Vec<String>,
}

impl Drop for Kernel {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("requests: {:#?}", self.history);
        }
    }
}

impl Kernel {
    fn send(&self, op: u32, unique: u64, node: u64, body: &[u8]) {
        let mut bytes = Body::default()
            .u32((HEADER + body.len()) as u32)
            .u32(op)
            .u64(unique)
            .u64(node)
            .u32(0)
            .u32(0)
            .u32(std::process::id())
            .u32(0)
            .0;
        bytes.extend(body);
        let send = || rustix::net::send(&self.socket, &bytes, SendFlags::NOSIGNAL);
        let sent = rustix::io::retry_on_intr(send);
        assert_eq!(sent, Ok(bytes.len()), "the server has gone");
    }

    /// The next answer: to which request, the error, and the rest.
    fn receive(&mut self) -> (u64, i32, Vec<u8>) {
        // The fuzzer's own timer interrupts it.
        let received = rustix::io::retry_on_intr(|| {
            rustix::net::recv(&self.socket, &mut self.buffer[..], RecvFlags::empty())
        });
        let len = received.expect("an answer").0;
        assert!(len >= OUT_HEADER, "an answer of {len} bytes");
        let bytes = &self.buffer[..len];
        assert_eq!(u32_at(bytes, 0) as usize, len, "the length in the header");
        let error = u32_at(bytes, 4) as i32;
        assert!((-511..=0).contains(&error), "error {error}");
        assert!(error == 0 || len == OUT_HEADER, "an error with a body");
        (u64_at(bytes, 8), error, bytes[OUT_HEADER..].to_vec())
    }

    /// Sends a request. After one that has no answer follows one that has: an answer too many is seen at the next.
    fn call(
        &mut self,
        op: u32,
        node: u64,
        body: &[u8],
    ) -> Option<std::result::Result<Vec<u8>, i32>> {
        self.unique += 1;
        self.send(op, self.unique, node, body);
        if matches!(op, op::FORGET | op::BATCH_FORGET) {
            self.probe();
            return None;
        }
        let (unique, error, rest) = self.receive();
        assert_eq!(unique, self.unique, "an answer without a request");
        Some(if error == 0 { Ok(rest) } else { Err(error) })
    }

    /// All that was sent is answered, and nothing else.
    fn probe(&mut self) {
        self.send(op::GETATTR, PROBE, ROOT, &[0; 16]);
        assert_eq!(self.receive().0, PROBE, "an answer without a request");
    }

    fn node(&self, u: &mut Unstructured<'_>) -> Result<u64> {
        let n = usize::from(u.arbitrary::<u8>()?);
        let known = self.lookups.len();
        Ok(match n % 16 {
            0..=4 => ROOT,
            5..=13 if known > 0 => *self.lookups.keys().nth(n / 16 % known).unwrap_or(&ROOT),
            14 => (n / 16) as u64,
            15 => u.arbitrary()?,
            _ => ROOT,
        })
    }

    /// A handle with its inode; at times a wrong pair.
    fn file(&self, u: &mut Unstructured<'_>) -> Result<(u64, u64)> {
        let n = usize::from(u.arbitrary::<u8>()?);
        match self.handles.get(n % 8) {
            Some(&(node, fh)) if n < 240 => Ok((node, fh)),
            _ => Ok((
                self.node(u)?,
                if n % 3 == 0 {
                    u.arbitrary()?
                } else {
                    n as u64 % 12
                },
            )),
        }
    }

    fn looked_up(&mut self, node: u64) {
        if node != 0 && node != ROOT {
            *self.lookups.entry(node).or_default() += 1;
        }
    }

    fn forget(&mut self, node: u64, nlookup: u64) {
        if let Some(count) = self.lookups.get_mut(&node) {
            *count = count.saturating_sub(nlookup);
            if *count == 0 {
                self.lookups.remove(&node);
            }
        }
    }

    /// An answer that names an inode.
    fn entry(&mut self, bytes: &[u8], created: bool) -> u64 {
        let node = u64_at(bytes, 0);
        self.attributes(&bytes[40..ENTRY]);
        let is_file = node != 0 && u32_at(bytes, 40 + 60) & 0o170_000 == 0o100_000;
        if created && is_file && !self.lookups.contains_key(&node) {
            self.files.insert(node, ReferenceFile::new());
        }
        self.looked_up(node);
        node
    }

    fn attributes(&self, attr: &[u8]) {
        let (ino, size) = (u64_at(attr, 0), u64_at(attr, 8));
        assert!(size <= i64::MAX as u64, "size {size}");
        assert!(u32_at(attr, 48).max(u32_at(attr, 52)) < 1_000_000_000);
        if let Some(file) = self.files.get(&ino) {
            assert_eq!(size, file.size(), "the size of inode {ino}");
        }
    }

    /// The entries of a listing.
    fn listing(&mut self, mut bytes: &[u8], plus: bool) {
        while !bytes.is_empty() {
            if plus {
                assert!(bytes.len() >= ENTRY, "half an entry");
                let _ = self.entry(&bytes[..ENTRY], false);
                bytes = &bytes[ENTRY..];
            }
            assert!(bytes.len() >= 24, "half a name");
            let len = u32_at(bytes, 16) as usize;
            assert!((1..=255).contains(&len), "a name of {len} bytes");
            let name = &bytes[24..24 + len];
            assert!(!name.contains(&b'/') && !name.contains(&0));
            bytes = &bytes[(24 + len).next_multiple_of(8)..];
        }
    }
}

/// Names of few kinds, so that they meet, and odd ones.
fn name(u: &mut Unstructured<'_>) -> Result<Vec<u8>> {
    Ok(match u.arbitrary::<u8>()? % 16 {
        n @ 0..=8 => vec![b'a' + n % 4],
        9 => b".".to_vec(),
        10 => b"..".to_vec(),
        11 => vec![b'n'; 255],
        12 => vec![b'n'; 256],
        13 => Vec::new(),
        14 => b"a/b".to_vec(),
        _ => {
            let mut name: Vec<u8> = u.arbitrary()?;
            name.retain(|byte| *byte != 0);
            name.truncate(300);
            name
        }
    })
}

fn offset(u: &mut Unstructured<'_>) -> Result<u64> {
    Ok(match u.arbitrary::<u8>()? % 8 {
        0 | 1 => 0,
        2 | 3 => u.arbitrary::<u16>()?.into(),
        4 => u64::from(u.arbitrary::<u8>()?) << 12,
        5 => (1 << (u.arbitrary::<u8>()? % 64)) - u64::from(u.arbitrary::<u8>()? % 2),
        6 => i64::MAX as u64 - u64::from(u.arbitrary::<u16>()?),
        _ => u.arbitrary()?,
    })
}

/// The flags of an opening.
fn flags(u: &mut Unstructured<'_>) -> Result<u32> {
    let raw = u.arbitrary::<u16>()?;
    Ok(match raw % 4 {
        0 => u32::from(raw) << 4 | 2,
        _ => 2,
    })
}

fn init(kernel: &mut Kernel, u: &mut Unstructured<'_>) -> Result<()> {
    let flags = match u.arbitrary::<u8>()? {
        n if n % 2 == 0 => u32::MAX,
        // Directories are opened.
        _ => !(1 << 24),
    };
    let body = Body::default()
        .u32(7)
        .u32(40)
        .u32(128 << 10)
        .u32(flags)
        .u32(u32::MAX);
    let mut body = body.0;
    body.resize(64, 0);
    kernel.send(op::INIT, 1, 0, &body);
    Ok(())
}

#[expect(clippy::too_many_lines, reason = "one arm for each request")]
fn step(kernel: &mut Kernel, u: &mut Unstructured<'_>) -> Result<()> {
    let op = op::ALL[usize::from(u.arbitrary::<u8>()?) % op::ALL.len()];
    let (mut node, body) = (kernel.node(u)?, Body::default());
    let mut fh = 0;
    let mut size = 0;
    let mut pos = 0;
    let mut changes = None;
    let mut forgets = Vec::new();
    let body = match op {
        op::LOOKUP | 10 | 11 | 24 => body.name(&name(u)?),
        op::FORGET => {
            let n = u64::from(u.arbitrary::<u8>()? % 4);
            forgets.push((node, n));
            body.u64(n)
        }
        op::BATCH_FORGET => {
            let count = u.arbitrary::<u8>()? % 4;
            for _ in 0..count {
                forgets.push((kernel.node(u)?, u64::from(u.arbitrary::<u8>()? % 4)));
            }
            let all = forgets.iter();
            all.fold(body.u32(count.into()).u32(0), |body, (node, n)| {
                body.u64(*node).u64(*n)
            })
        }
        op::GETATTR => body.u32(0).u32(0).u64(0),
        op::SETATTR => {
            let valid = u32::from(u.arbitrary::<u16>()?) & 0x7ff;
            // Sizes beyond the kernel's largest position never occur.
            let to = offset(u)? & i64::MAX as u64;
            if valid & 8 != 0 {
                changes = Some(to);
            }
            let body = body.u32(valid).u32(0).u64(0).u64(to).u64(0);
            let body = body
                .u64(u.arbitrary()?)
                .u64(u.arbitrary()?)
                .u64(u.arbitrary()?);
            let nanoseconds = u.arbitrary::<u32>()? % 1_000_000_000;
            let body = body.u32(nanoseconds).u32(nanoseconds).u32(0);
            body.u32(u.arbitrary()?)
                .u32(0)
                .u32(u.arbitrary()?)
                .u32(u.arbitrary()?)
                .u32(0)
        }
        5 => body,
        op::SYMLINK => body.name(&name(u)?).name(&name(u)?),
        op::MKNOD => {
            let kind = [0o100_644, 0o100_644, 0o010_600, u.arbitrary()?]
                [usize::from(u.arbitrary::<u8>()? % 4)];
            body.u32(kind)
                .u32(u.arbitrary()?)
                .u32(0)
                .u32(0)
                .name(&name(u)?)
        }
        op::MKDIR => body.u32(u.arbitrary()?).u32(u.arbitrary()?).name(&name(u)?),
        12 => body.u64(kernel.node(u)?).name(&name(u)?).name(&name(u)?),
        45 => {
            let flags = u32::from(u.arbitrary::<u8>()? % 8);
            let body = body.u64(kernel.node(u)?).u32(flags).u32(0);
            body.name(&name(u)?).name(&name(u)?)
        }
        op::LINK => body.u64(kernel.node(u)?).name(&name(u)?),
        op::OPEN | op::OPENDIR => body.u32(flags(u)?).u32(0),
        op::CREATE => body
            .u32(flags(u)?)
            .u32(u.arbitrary()?)
            .u32(0o22)
            .u32(0)
            .name(&name(u)?),
        op::READ => {
            (node, fh) = kernel.file(u)?;
            (pos, size) = (offset(u)?, u.arbitrary::<u32>()? % MOST);
            body.u64(fh)
                .u64(pos)
                .u32(size)
                .u32(2)
                .u64(0)
                .u32(flags(u)?)
                .u32(0)
        }
        op::READDIR | op::READDIRPLUS => {
            size = u32::from(u.arbitrary::<u16>()?);
            let n = usize::from(u.arbitrary::<u8>()?);
            let open = kernel.directories.get(n % 4).copied();
            fh = open.unwrap_or(u64::from(n as u8 % 3));
            body.u64(fh)
                .u64(offset(u)?)
                .u32(size)
                .u32(0)
                .u64(0)
                .u32(0)
                .u32(0)
        }
        op::WRITE => {
            (node, fh) = kernel.file(u)?;
            (pos, size) = (offset(u)?, u32::from(u.arbitrary::<u16>()?));
            // Not O_APPEND: its write position is not modelled.
            let (how, flags) = (u32::from(u.arbitrary::<u8>()?) & 6, flags(u)? & !0o2000);
            let mut body = body
                .u64(fh)
                .u64(pos)
                .u32(size)
                .u32(how)
                .u64(0)
                .u32(flags)
                .u32(0);
            let byte = kernel.unique as u8 | 1;
            body.0.extend(std::iter::repeat_n(byte, size as usize));
            body
        }
        op::RELEASE | 29 => {
            (node, fh) = kernel.file(u)?;
            body.u64(fh).u32(0).u32(0).u64(0)
        }
        20 | 30 => {
            (node, fh) = kernel.file(u)?;
            body.u64(fh).u32(u.arbitrary()?).u32(0)
        }
        25 => {
            (node, fh) = kernel.file(u)?;
            body.u64(fh).u32(0).u32(0).u64(0)
        }
        21 => {
            let mut value: Vec<u8> = u.arbitrary()?;
            value.truncate(70_000);
            let mut body = body
                .u32(value.len() as u32)
                .u32(u32::from(u.arbitrary::<u8>()? % 4));
            let list: [&[u8]; 3] = [
                b"user.a",
                b"system.posix_acl_access",
                b"system.posix_acl_default",
            ];
            let odd = name(u)?;
            body = body.name(
                list.get(usize::from(u.arbitrary::<u8>()? % 5))
                    .copied()
                    .unwrap_or(&odd),
            );
            body.0.extend(value);
            body
        }
        22 => {
            let odd = name(u)?;
            let list: [&[u8]; 3] = [b"user.a", b"system.posix_acl_access", b"security.selinux"];
            let name = list
                .get(usize::from(u.arbitrary::<u8>()? % 5))
                .copied()
                .unwrap_or(&odd);
            body.u32(u.arbitrary::<u16>()?.into()).u32(0).name(name)
        }
        23 => body.u32(u.arbitrary::<u16>()?.into()).u32(0),
        34 => body.u32(u.arbitrary()?).u32(0),
        36 => body.u64(u.arbitrary()?),
        op::FALLOCATE => {
            (node, fh) = kernel.file(u)?;
            let (pos, len) = (offset(u)?, offset(u)?);
            body.u64(fh)
                .u64(pos)
                .u64(len)
                .u32(u.arbitrary::<u8>()?.into())
                .u32(0)
        }
        46 => {
            (node, fh) = kernel.file(u)?;
            body.u64(fh)
                .u64(offset(u)?)
                .u32(u32::from(u.arbitrary::<u8>()? % 6))
                .u32(0)
        }
        op::COPY_FILE_RANGE => {
            (node, fh) = kernel.file(u)?;
            let (to, to_fh) = kernel.file(u)?;
            let body = body.u64(fh).u64(offset(u)?).u64(to).u64(to_fh);
            let body = body.u64(offset(u)?).u64(offset(u)? % (1 << 20)).u64(0);
            kernel.files.remove(&to);
            for (node, _) in kernel.handles.iter().filter(|(_, fh)| *fh == to_fh) {
                kernel.files.remove(node);
            }
            body
        }
        _ => body,
    };
    let said = format!(
        "operation {op} of {node}, handle {fh}, {size} bytes at {pos}, {changes:?} {forgets:?}"
    );
    kernel.history.push(said);
    // The handle says which file it is, whatever inode is named.
    let of_handle = |kernel: &Kernel| {
        let found = kernel.handles.iter().find(|(_, handle)| *handle == fh);
        found.map(|(node, _)| *node)
    };
    if op == op::FALLOCATE
        && let Some(node) = of_handle(kernel)
    {
        kernel.files.remove(&node);
    }
    if let Some(to) = changes
        && let Some(file) = kernel.files.get_mut(&node)
    {
        // The rest is checked with the new size, or not at all.
        let before = file.clone();
        file.truncate(to);
        if let Some(Err(_)) = kernel.call(op, node, &body.0) {
            kernel.files.insert(node, before);
        }
        return Ok(());
    }
    let known = node == ROOT || kernel.lookups.contains_key(&node);
    let answer = kernel.call(op, node, &body.0);
    for (node, n) in forgets {
        kernel.forget(node, n);
    }
    let Some(Ok(bytes)) = answer else {
        return Ok(());
    };
    assert!(
        known || !matches!(op, op::GETATTR | op::SETATTR | op::LOOKUP),
        "an unknown inode {node} was found"
    );
    match op {
        op::LOOKUP | op::LINK => _ = kernel.entry(&bytes, false),
        op::SYMLINK | op::MKNOD | op::MKDIR => _ = kernel.entry(&bytes, true),
        op::GETATTR | op::SETATTR => kernel.attributes(&bytes[16..]),
        op::OPEN => {
            kernel.handles.push((node, u64_at(&bytes, 0)));
            // With O_TRUNC, which the kernel leaves away, it is cut.
            if u32_at(&body.0, 0) & 0o1000 != 0 {
                kernel.files.remove(&node);
            }
        }
        op::OPENDIR => kernel.directories.push(u64_at(&bytes, 0)),
        op::CREATE => {
            let node = kernel.entry(&bytes, true);
            kernel.handles.push((node, u64_at(&bytes, ENTRY)));
        }
        op::RELEASE => kernel.handles.retain(|(_, handle)| *handle != fh),
        op::READ => {
            assert!(bytes.len() <= size as usize, "more than was asked for");
            if let Some(file) = of_handle(kernel).and_then(|node| kernel.files.get(&node)) {
                let same = bytes == file.read(pos, size as usize);
                assert!(same, "{size} bytes at {pos}");
                assert!(!canary(), "the canary of requests was found");
            }
        }
        op::WRITE => {
            let n = u32_at(&bytes, 0) as usize;
            assert!(n <= size as usize);
            if let Some(file) = of_handle(kernel).and_then(|node| kernel.files.get_mut(&node)) {
                file.write(pos, &body.0[HEADER..HEADER + n]);
            }
        }
        op::READDIR | op::READDIRPLUS => {
            assert!(bytes.len() <= size as usize, "more than was asked for");
            kernel.listing(&bytes, op == op::READDIRPLUS);
        }
        _ => {}
    }
    Ok(())
}

pub(crate) fn run(bytes: &[u8]) {
    let mut config = MmConfig::new(8 << 20);
    config.external_pressure = false;
    let mm = Mm::new(config).expect("a cache");
    let fs = Arc::new(MemFs::new(&mm).expect("a file system"));
    let names = Arc::new(SuperBlock::new(fs, &mm));
    let sockets = rustix::net::socketpair(
        AddressFamily::UNIX,
        SocketType::SEQPACKET,
        SocketFlags::CLOEXEC,
        None,
    );
    let (ours, theirs) = sockets.expect("sockets");
    for socket in [&ours, &theirs] {
        // Room for a few of the largest messages. The system's default may be its limit already.
        let _ = sockopt::set_socket_send_buffer_size(socket, 1 << 20);
    }
    let mut u = Unstructured::new(bytes);
    let mut kernel = Kernel {
        socket: ours,
        buffer: vec![0; 1 << 20],
        unique: 1,
        lookups: BTreeMap::new(),
        files: BTreeMap::new(),
        handles: Vec::new(),
        directories: Vec::new(),
        history: Vec::new(),
    };
    if init(&mut kernel, &mut u).is_err() {
        return;
    }
    let served = Served::new(&names, theirs, &MountOptions::new("fuzz")).expect("it begins");
    assert_eq!(kernel.receive().0, 1, "the answer to the first message");
    while !u.is_empty() && kernel.history.len() < 120 {
        if step(&mut kernel, &mut u).is_err() {
            break;
        }
    }
    kernel.probe();
    assert_eq!(served.stats().panics, 0);
    kernel.unique += 1;
    kernel.send(op::DESTROY, kernel.unique, 0, &[]);
    assert_eq!(kernel.receive().0, kernel.unique);
    served.join().expect("it ends in order");
}
