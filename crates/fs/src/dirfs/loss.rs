//! Reports of data that is lost, or will be, when no caller is left to return an error to.
//!
//! # Model
//!
//! A report goes to the log, with the target [`LOSS_TARGET`]. A program without a log finds it on standard error.

use super::DirFs;
use foliocache_mm::{AddressSpace, SlabArc};
use std::io::{self, Write};
use tracing::subscriber::NoSubscriber;

/// The target of log messages about lost data.
pub const LOSS_TARGET: &str = "foliocache::loss";

/// The fate of data that could not be written.
#[derive(Clone, Copy)]
enum Fate {
    /// It is gone.
    Lost,
    /// It is tried again, for as long as the file system has a handle.
    Kept,
}

impl DirFs {
    /// Gives up all data that is not in the source, and says so.
    pub(super) fn lose(&self) {
        for file in self.shared.bdi.dirty_files() {
            let size = file.size();
            let bytes = file.discard_dirty().min(size);
            tell(&file, bytes, Fate::Lost);
        }
    }

    /// Says which files have data that could not be written.
    pub(super) fn tell_unwritten(&self) {
        let mut files = self.shared.bdi.dirty_files();
        files.retain(|file| file.writeback_error().is_some());
        for file in files {
            let bytes = file.bytes_not_durable();
            tell(&file, bytes, Fate::Kept);
        }
    }
}

fn tell(file: &SlabArc<AddressSpace>, bytes: u64, fate: Fate) {
    if bytes == 0 {
        return;
    }
    let (name, errno) = (file.name(), file.writeback_error());
    let why = errno.map_or("not written".to_owned(), |errno| errno.to_string());
    let message = match fate {
        Fate::Lost => "lost",
        Fate::Kept => "not in its directory, and lost if the process ends now",
    };
    tracing::error!(target: LOSS_TARGET, file = name, bytes, why, "{message}");
    if tracing::dispatcher::get_default(|listener| listener.is::<NoSubscriber>()) {
        // Without standard error there is no other place to report it.
        let _ = writeln!(
            io::stderr(),
            "foliocache: {message}: {name}: {bytes} bytes: {why}"
        );
    }
}
