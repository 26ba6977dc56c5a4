//! A log on tokio that survives crashes: every record whose append returned is there afterwards.
//!
//! ```text
//! crash_safe_log DIRECTORY          logs from a process of its own, kills it, recovers, and compares
//! crash_safe_log DIRECTORY write    logs until it is killed, and prints each record once it is safe
//! ```
//!
//! # How it works
//!
//! A record is its length, a checksum and its bytes:
//!
//! ```text
//!   length (4)   checksum (4)   bytes (length)   length (4)   checksum (4)   …
//! ```
//!
//! - **Append.** Tasks hand their records to one task, which takes all that are there as a *group*, appends them in one run
//!   and makes the file durable once for all of them. Only then do the appends return. While it waits for the disk the next
//!   group gathers.
//! - **Recovery.** Records are read until one is torn or its checksum is wrong. No later append has returned,
//!   because a group becomes durable as a whole before its appends return. The bad record is cut off, so that new
//!   records follow good ones.
//! - **Errors.** After a failed sync it is not known which records are durable. The log takes no more records; it is opened again.

use foliocache::{AsyncDirectory, AsyncFile, Cache};
use std::collections::BTreeSet;
use std::error::Error;
use std::io::{self, BufRead, BufReader, ErrorKind};
use std::path::Path;
use std::process::{Command, Stdio};
use tokio::io::AsyncReadExt;
use tokio::sync::{mpsc, oneshot};

/// Bytes before those of a record.
const HEADER: usize = 8;

/// Longest record, in bytes.
const MOST: usize = 1 << 20;

/// Most records of a group.
const GROUP: usize = 1024;

/// Records that are shown to be safe before the process is killed.
const RECORDS: usize = 500;

/// Tasks that log.
const TASKS: u32 = 16;

type Record = (Vec<u8>, oneshot::Sender<()>);

/// An open log. Clones append to the same one.
#[derive(Clone)]
pub(crate) struct Log {
    records: mpsc::Sender<Record>,
}

impl Log {
    /// Opens or makes the log `name`; returns its records, in order.
    ///
    /// # Errors
    /// Those of the directory.
    pub(crate) async fn open(
        directory: &AsyncDirectory,
        name: &str,
    ) -> Result<(Self, Vec<Vec<u8>>), Box<dyn Error>> {
        let name = name.to_owned();
        let open = directory.run(move |directory| {
            let mut options = directory.open_options();
            options.read(true).append(true).create(true);
            options.open(name)?.into_async()
        });
        let file = open.await?;
        let (found, end) = recover(&file).await?;
        if end < file.len() {
            file.run(move |file| file.set_len(end)).await?;
        }
        // The name and the new length must be durable before a record relies on them.
        file.sync_all().await?;
        let (records, queue) = mpsc::channel(GROUP);
        tokio::spawn(commit(file, queue));
        Ok((Self { records }, found))
    }

    /// Appends a record; it is durable when this returns.
    ///
    /// If the future is dropped the record may be in the log or not, as after a crash.
    ///
    /// # Errors
    /// The log could not be written: whether the record is in it shows when it is opened again.
    pub(crate) async fn append(&self, bytes: &[u8]) -> io::Result<()> {
        if bytes.len() > MOST {
            return Err(ErrorKind::InvalidInput.into());
        }
        let mut record = Vec::with_capacity(HEADER + bytes.len());
        record.extend((bytes.len() as u32).to_le_bytes());
        record.extend(checksum(bytes).to_le_bytes());
        record.extend(bytes);
        let (safe, is_safe) = oneshot::channel();
        let closed = |_| io::Error::other("the log failed and is closed");
        self.records
            .send((record, safe))
            .await
            .map_err(|_| closed(()))?;
        is_safe.await.map_err(|_| closed(()))
    }
}

/// Appends records in groups, until there are none or something fails.
async fn commit(file: AsyncFile, mut queue: mpsc::Receiver<Record>) {
    let mut group = Vec::new();
    while queue.recv_many(&mut group, GROUP).await > 0 {
        let bytes: Vec<u8> = group
            .iter()
            .flat_map(|(record, _)| record)
            .copied()
            .collect();
        let done = match file.append_all(bytes).await {
            Ok(_) => file.sync_data().await,
            Err(error) => Err(error),
        };
        if let Err(error) = done {
            // The waiting appends fail, because their senders are dropped.
            eprintln!("the log is closed: {error}");
            return;
        }
        for (_, safe) in group.drain(..) {
            // Its append may have been given up.
            let _ = safe.send(());
        }
    }
}

/// The good records from the beginning of the file on, and where they end.
async fn recover(file: &AsyncFile) -> io::Result<(Vec<Vec<u8>>, u64)> {
    let mut reader = tokio::io::BufReader::new(file.clone().into_tokio());
    let (mut records, mut end) = (Vec::new(), 0);
    loop {
        match next_record(&mut reader).await {
            Ok(Some(record)) => {
                end += (HEADER + record.len()) as u64;
                records.push(record);
            }
            Ok(None) => return Ok((records, end)),
            Err(error) if error.kind() == ErrorKind::UnexpectedEof => return Ok((records, end)),
            Err(error) => return Err(error),
        }
    }
}

/// The next record, or `None` at a torn one.
async fn next_record(reader: &mut (impl AsyncReadExt + Unpin)) -> io::Result<Option<Vec<u8>>> {
    let len = reader.read_u32_le().await? as usize;
    let expected = reader.read_u32_le().await?;
    if len > MOST {
        return Ok(None);
    }
    let mut record = vec![0; len];
    reader.read_exact(&mut record).await?;
    Ok((checksum(&record) == expected).then_some(record))
}

/// CRC-32 of the length and the bytes. A header of zeros, as a file has after its size reached the disk and its
/// bytes did not, is wrong.
fn checksum(bytes: &[u8]) -> u32 {
    let len = (bytes.len() as u32).to_le_bytes();
    let step = |crc: u32, &byte: &u8| {
        let mut crc = crc ^ u32::from(byte);
        for _ in 0..8 {
            crc = (crc >> 1) ^ (0xedb8_8320 & (crc & 1).wrapping_neg());
        }
        crc
    };
    !len.iter().chain(bytes).fold(!0, step)
}

fn runtime() -> io::Result<tokio::runtime::Runtime> {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .build()
}

async fn open_in(cache: &Cache, path: &Path) -> Result<(Log, Vec<Vec<u8>>), Box<dyn Error>> {
    Log::open(&cache.directory(path)?.into_async()?, "log").await
}

/// Logs until the process is killed. Prints each record once it is safe.
///
/// # Errors
/// The log failed.
pub(crate) fn write(path: &Path) -> Result<(), Box<dyn Error>> {
    let cache = Cache::builder().memory("16M").build()?;
    runtime()?.block_on(async {
        let (log, found) = open_in(&cache, path).await?;
        let tasks: Vec<_> = (0..TASKS)
            .map(|task| {
                let (log, before) = (log.clone(), found.len());
                tokio::spawn(async move {
                    for number in 0.. {
                        let record =
                            format!("{before}-{task}-{number} {}", "x".repeat(number % 300));
                        log.append(record.as_bytes()).await?;
                        println!("{}", record.trim_end_matches('x'));
                    }
                    io::Result::Ok(())
                })
            })
            .collect();
        for task in tasks {
            task.await??;
        }
        Ok(())
    })
}

/// Has `writer`, which runs [`write`], log to `path`, and kills it once it has shown that some records are safe. Then all of
/// them must be in the log. Does so twice, the second time after the end of the log was torn. Returns how many
/// records there were.
///
/// # Errors
/// A record is missing; or something else went wrong.
pub(crate) fn kill_and_recover(
    path: &Path,
    writer: impl Fn() -> Command,
) -> Result<usize, Box<dyn Error>> {
    let mut safe = BTreeSet::new();
    for round in 0..2 {
        let mut process = writer().stdout(Stdio::piped()).spawn()?;
        let output = process.stdout.take().ok_or("no output")?;
        let mut nr_safe = 0;
        for line in BufReader::new(output).lines() {
            // The output that it printed before it was killed is read to the end.
            if let Some(record) = line?.strip_suffix(' ') {
                let record = record.rsplit(' ').next().unwrap_or(record);
                safe.insert(record.to_owned());
                nr_safe += 1;
            }
            if nr_safe == RECORDS {
                process.kill()?;
            }
        }
        process.wait()?;
        if nr_safe < RECORDS {
            return Err(format!("it ended after {nr_safe} records").into());
        }
        if round == 0 {
            // A crash of the machine may leave the half of a group.
            let torn = std::fs::read(path.join("log"))?;
            let torn = [&torn[..], &1000_u32.to_le_bytes(), b"sum, half of it"].concat();
            std::fs::write(path.join("log"), torn)?;
        }
    }
    let cache = Cache::builder().memory("16M").build()?;
    let found = runtime()?.block_on(async {
        let (log, found) = open_in(&cache, path).await?;
        log.append(b"it goes on").await?;
        Ok::<_, Box<dyn Error>>(found)
    })?;
    let names = found
        .iter()
        .filter_map(|record| Some(std::str::from_utf8(record).ok()?.split_once(' ')?.0));
    let names: BTreeSet<&str> = names.collect();
    if names.len() != found.len() {
        return Err("a record is there twice, or is none".into());
    }
    match safe.iter().find(|record| !names.contains(record.as_str())) {
        Some(lost) => Err(format!("record {lost} was safe, and is lost").into()),
        None => Ok(found.len()),
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args_os().skip(1);
    let path = arguments.next().ok_or("which directory?")?;
    if arguments.next().is_some() {
        return write(path.as_ref());
    }
    let program = std::env::current_exe()?;
    let writer = || {
        let mut command = Command::new(&program);
        command.arg(&path).arg("write");
        command
    };
    let records = kill_and_recover(path.as_ref(), writer)?;
    println!("{records} records after two kills, and none is missing that was said to be safe");
    Ok(())
}
