//! The service.

use foliocache::{AsyncDirectory, Directory, Errno, RenameMode};
use opendal::raw::oio::{PositionRead, Write};
use opendal::raw::{
    OpCopy, OpCreateDir, OpDelete, OpList, OpPresign, OpRead, OpRename, OpStat, OpWrite,
    RpCreateDir, RpPresign, RpRename, RpStat, Service, ServiceInfo, oio,
};
use opendal::{
    Builder, Capability, Error, ErrorKind, Metadata, OperationContext, Operator, Result,
};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::error;
use crate::list::Lister;
use crate::read::Reader;
use crate::write::{Mode, Writer, described, make_parents, rename};

/// The scheme of the service.
pub const SCHEME: &str = "foliocache";

/// Bytes that a copy has in views at a time.
const COPIED_AT_ONCE: usize = 1 << 20;

/// An operator over a directory of the cache.
///
/// # Errors
/// No thread or no memory for async calls; `ECHILD` after a fork.
pub fn operator(directory: Directory) -> Result<Operator> {
    Operator::new(Foliocache::default().directory(directory))
}

/// The service before it is built.
#[derive(Debug, Default)]
pub struct Foliocache {
    directory: Option<Directory>,
}

impl Foliocache {
    /// The directory, which is the root of all paths.
    #[must_use]
    pub fn directory(mut self, directory: Directory) -> Self {
        self.directory = Some(directory);
        self
    }
}

impl Builder for Foliocache {
    type Config = ();

    fn build(self) -> Result<impl Service> {
        let missing = || Error::new(ErrorKind::ConfigInvalid, "the service has no directory");
        let directory = self.directory.ok_or_else(missing)?;
        Ok(Backend {
            directory: Arc::new(directory.into_async().map_err(error::of)?),
        })
    }
}

#[derive(Debug)]
struct Backend {
    directory: Arc<AsyncDirectory>,
}

/// A path of opendal, in the directory.
fn within(path: &str) -> PathBuf {
    match path.trim_matches('/') {
        "" => PathBuf::from("."),
        path => PathBuf::from(path),
    }
}

impl Service for Backend {
    type Reader = oio::PositionReader<Reader>;
    type Writer = Writer;
    type Lister = Lister;
    type Deleter = oio::OneShotDeleter<Deleter>;
    type Copier = oio::OneShotCopier;
    type Composer = ();

    fn info(&self) -> ServiceInfo {
        let path = self.directory.blocking().path().to_string_lossy();
        ServiceInfo::new(SCHEME, "/", path)
    }

    fn capability(&self) -> Capability {
        Capability {
            stat: true,
            read: true,
            write: true,
            write_can_multi: true,
            write_can_empty: true,
            write_can_append: true,
            write_with_if_not_exists: true,
            create_dir: true,
            delete: true,
            delete_with_recursive: true,
            copy: true,
            copy_with_if_not_exists: true,
            list: true,
            rename: true,
            rename_with_if_not_exists: true,
            shared: true,
            ..Capability::default()
        }
    }

    async fn create_dir(
        &self,
        _: &OperationContext,
        path: &str,
        _: OpCreateDir,
    ) -> Result<RpCreateDir> {
        let path = within(path);
        let make = move |directory: &Directory| directory.create_dir_all(path);
        let made = self.directory.run(make).await;
        made.map_err(error::of)?;
        Ok(RpCreateDir::default())
    }

    async fn stat(&self, _: &OperationContext, path: &str, _: OpStat) -> Result<RpStat> {
        let metadata = self.directory.metadata(within(path)).await;
        let metadata = metadata.map_err(error::of)?;
        match path.ends_with('/') && !metadata.is_dir() {
            true => Err(Error::new(ErrorKind::NotFound, "it is a file")),
            false => Ok(RpStat::new(described(&metadata))),
        }
    }

    fn read(&self, _: &OperationContext, path: &str, _: OpRead) -> Result<Self::Reader> {
        Ok(oio::PositionReader::new(Reader {
            directory: Arc::clone(&self.directory),
            path: within(path),
        }))
    }

    fn write(&self, _: &OperationContext, path: &str, how: OpWrite) -> Result<Self::Writer> {
        let mode = match (how.append(), how.if_not_exists()) {
            (true, true) => return Err(error::unsupported()),
            (true, false) => Mode::Append,
            (false, true) => Mode::IfAbsent,
            (false, false) => Mode::Replace,
        };
        let directory = Arc::clone(&self.directory);
        Ok(Writer::new(directory, within(path), mode))
    }

    fn delete(&self, _: &OperationContext) -> Result<Self::Deleter> {
        Ok(oio::OneShotDeleter::new(Deleter {
            directory: Arc::clone(&self.directory),
        }))
    }

    fn list(&self, _: &OperationContext, path: &str, _: OpList) -> Result<Self::Lister> {
        let directory = Arc::clone(&self.directory);
        Ok(Lister::new(directory, path.to_owned(), within(path)))
    }

    fn copy(
        &self,
        _: &OperationContext,
        from: &str,
        to: &str,
        how: OpCopy,
    ) -> Result<Self::Copier> {
        let mode = match how.if_not_exists() {
            true => Mode::IfAbsent,
            false => Mode::Replace,
        };
        let (directory, from, to) = (Arc::clone(&self.directory), within(from), within(to));
        // A new future at each try: a layer may try again.
        Ok(oio::OneShotCopier::new_with(move || {
            copy(Arc::clone(&directory), from.clone(), to.clone(), mode)
        }))
    }

    async fn rename(
        &self,
        _: &OperationContext,
        from: &str,
        to: &str,
        how: OpRename,
    ) -> Result<RpRename> {
        let (from, to) = (within(from), within(to));
        // A missing source makes no directories.
        let found = self.directory.metadata(&from).await;
        found.map_err(error::of)?;
        make_parents(&self.directory, &to).await?;
        let mode = match how.if_not_exists() {
            true => RenameMode::NoReplace,
            false => RenameMode::Replace,
        };
        rename(&self.directory, &from, &to, mode).await?;
        for path in [&from, &to] {
            let parent = path.parent();
            let parent = parent.filter(|parent| !parent.as_os_str().is_empty());
            let parent = parent.unwrap_or(Path::new("."));
            let parent = parent.to_owned();
            let sync = move |directory: &Directory| directory.open_dir(parent)?.sync();
            self.directory.run(sync).await.map_err(error::of)?;
        }
        Ok(RpRename::default())
    }

    async fn presign(&self, _: &OperationContext, _: &str, _: OpPresign) -> Result<RpPresign> {
        Err(error::unsupported())
    }
}

/// The bytes go through the cache, into a file that is renamed once it has all of them.
async fn copy(
    directory: Arc<AsyncDirectory>,
    from: PathBuf,
    to: PathBuf,
    mode: Mode,
) -> Result<Metadata> {
    let reader = Reader {
        directory: Arc::clone(&directory),
        path: from,
    };
    let source = reader.open().await?;
    let mut writer = Writer::new(directory, to, mode);
    let mut at = 0;
    loop {
        let piece = Reader::read_at(&source, at, COPIED_AT_ONCE).await?;
        match piece.len() as u64 {
            0 => return writer.close().await,
            len => at += len,
        }
        writer.write(piece).await?;
    }
}

/// Removes files and directories. What is missing is removed already.
pub(crate) struct Deleter {
    directory: Arc<AsyncDirectory>,
}

impl oio::OneShotDelete for Deleter {
    async fn delete_once(&self, path: String, how: OpDelete) -> Result<()> {
        let at = within(&path);
        let remove = move |directory: &Directory| match (how.recursive(), path.ends_with('/')) {
            (true, _) => match directory.remove_dir_all(&at) {
                Err(error) if error.errno() == Errno::ENOTDIR => directory.remove_file(&at),
                removed => removed,
            },
            (false, true) => directory.remove_dir(&at),
            // As `fs`: an empty directory, too.
            (false, false) => match directory.remove_file(&at) {
                Err(error) if error.errno() == Errno::EISDIR => directory.remove_dir(&at),
                removed => removed,
            },
        };
        match self.directory.run(remove).await {
            // Below a file there is nothing.
            Err(error) if matches!(error.errno(), Errno::ENOENT | Errno::ENOTDIR) => Ok(()),
            removed => removed.map_err(error::of),
        }
    }
}
