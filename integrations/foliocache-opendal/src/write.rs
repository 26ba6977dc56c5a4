//! Writers: of new content, and at the end of a file.

use foliocache::{AsyncDirectory, AsyncFile, Directory, Errno, RenameMode};
use opendal::raw::oio;
use opendal::{Buffer, Error, ErrorKind, Metadata, MetadataBuilder, Result};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::error;

/// The end of the names of files that are being written.
pub(crate) const HIDDEN: &str = ".foliocache-opendal";

/// What a writer does with the file that may be there.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mode {
    Replace,
    IfAbsent,
    Append,
}

/// A file that is being written.
pub(crate) struct Writer {
    directory: Arc<AsyncDirectory>,
    path: PathBuf,
    mode: Mode,
    file: Option<AsyncFile>,
    /// The hidden name, as long as the file has it.
    hidden: Option<PathBuf>,
    len: u64,
}

impl Writer {
    pub(crate) fn new(directory: Arc<AsyncDirectory>, path: PathBuf, mode: Mode) -> Self {
        Self {
            directory,
            path,
            mode,
            file: None,
            hidden: None,
            len: 0,
        }
    }

    /// The file, made at the first use.
    async fn file(&mut self) -> Result<&AsyncFile> {
        if self.file.is_none() {
            make_parents(&self.directory, &self.path).await?;
            let file = match self.mode {
                Mode::Append => {
                    let path = self.path.clone();
                    let open = move |directory: &Directory| directory.append(path)?.into_async();
                    self.directory.run(open).await
                }
                Mode::Replace | Mode::IfAbsent => {
                    // Before it exists, so that it is removed if this future is dropped.
                    let hidden = self.hidden.insert(hidden_name(&self.path)).clone();
                    let make =
                        move |directory: &Directory| directory.create_new(hidden)?.into_async();
                    self.directory.run(make).await
                }
            };
            self.file = Some(file.map_err(error::of)?);
        }
        Ok(self.file.as_ref().expect("it is there"))
    }
}

impl oio::Write for Writer {
    async fn write(&mut self, buffer: Buffer) -> Result<()> {
        let (mode, mut at) = (self.mode, self.len);
        let file = self.file().await?;
        match mode {
            // In one run, also beside other writers.
            Mode::Append => {
                at += buffer.len() as u64;
                let done = file.append_all(buffer.to_bytes()).await;
                done.map_err(error::of)?;
            }
            Mode::Replace | Mode::IfAbsent => {
                for bytes in buffer {
                    file.write_all_at(&bytes, at).await.map_err(error::of)?;
                    at += bytes.len() as u64;
                }
            }
        }
        self.len = at;
        Ok(())
    }

    async fn close(&mut self) -> Result<Metadata> {
        self.file().await?;
        let file = self.file.as_ref().expect("it is there");
        if let Some(hidden) = &self.hidden {
            // The bytes are on the medium before the name shows them.
            file.sync_data().await.map_err(error::of)?;
            let mode = match self.mode {
                Mode::IfAbsent => RenameMode::NoReplace,
                Mode::Replace | Mode::Append => RenameMode::Replace,
            };
            rename(&self.directory, hidden, &self.path, mode).await?;
            self.hidden = None;
        }
        file.sync_all().await.map_err(error::of)?;
        let metadata = file.metadata().await.map_err(error::of)?;
        self.file = None;
        Ok(described(&metadata))
    }

    async fn abort(&mut self) -> Result<()> {
        if self.mode == Mode::Append {
            return Err(error::unsupported());
        }
        self.file = None;
        if let Some(hidden) = &self.hidden {
            let hidden = hidden.clone();
            let remove = move |directory: &Directory| directory.remove_file(hidden);
            match self.directory.run(remove).await {
                Err(error) if error.errno() != Errno::ENOENT => return Err(error::of(error)),
                _ => self.hidden = None,
            }
        }
        Ok(())
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        if let Some(hidden) = &self.hidden {
            // A drop cannot report a failure. A list does not show the file.
            drop(self.directory.blocking().remove_file(hidden));
        }
    }
}

/// Renames. A path that exists breaks the caller's condition, if that is one.
pub(crate) async fn rename(
    directory: &AsyncDirectory,
    from: &Path,
    to: &Path,
    mode: RenameMode,
) -> Result<()> {
    let (from, to) = (from.to_owned(), to.to_owned());
    let rename = move |directory: &Directory| directory.rename_with(from, to, mode);
    let renamed = directory.run(rename).await;
    renamed.map_err(|error| match error.errno() {
        Errno::EEXIST if mode == RenameMode::NoReplace => {
            Error::new(ErrorKind::ConditionNotMatch, "the path exists").set_source(error)
        }
        _ => error::of(error),
    })
}

/// The attributes of a file or directory in opendal's terms.
pub(crate) fn described(metadata: &foliocache::Metadata) -> Metadata {
    let mut builder = match metadata.is_dir() {
        true => MetadataBuilder::dir(),
        false => MetadataBuilder::file(metadata.len()),
    };
    let modified = metadata.modified().ok();
    if let Some(time) = modified.and_then(|time| time.try_into().ok()) {
        builder.last_modified(time);
    }
    builder.build()
}

/// Makes the directories above `path`.
pub(crate) async fn make_parents(directory: &AsyncDirectory, path: &Path) -> Result<()> {
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => {
            let parent = parent.to_owned();
            let make = move |directory: &Directory| directory.create_dir_all(parent);
            let made = directory.run(make).await;
            made.map_err(error::of)
        }
        _ => Ok(()),
    }
}

fn hidden_name(path: &Path) -> PathBuf {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    // Relaxed: the numbers differ, and order nothing.
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    // A name of its own, short enough for any path. Two processes with the same number are not at work at the same time, and what one
    // left behind that was killed is not replaced: the next number is.
    let since = std::time::SystemTime::UNIX_EPOCH.elapsed();
    let nanos = since.unwrap_or_default().as_nanos();
    path.with_file_name(format!(".{}-{nanos}-{number}{HIDDEN}", std::process::id()))
}
