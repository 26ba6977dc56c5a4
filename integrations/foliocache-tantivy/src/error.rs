//! Errors of the cache as those of tantivy.

use foliocache::{Errno, Error};
use std::io;
use std::path::Path;
use std::sync::Arc;
use tantivy::directory::error::{DeleteError, OpenDirectoryError, OpenReadError, OpenWriteError};

/// The error with its text, which names file and range. Its kind is that of the cause, and `downcast` has it back.
pub(crate) fn io_error(error: Error) -> io::Error {
    let kind = io::Error::from(error.clone()).kind();
    io::Error::new(kind, error)
}

pub(crate) fn open_directory(error: Error, path: &Path) -> OpenDirectoryError {
    let directory_path = path.to_owned();
    match error.errno() {
        Errno::ENOENT => OpenDirectoryError::DoesNotExist(directory_path),
        Errno::ENOTDIR => OpenDirectoryError::NotADirectory(directory_path),
        _ => OpenDirectoryError::wrap_io_error(io_error(error), directory_path),
    }
}

pub(crate) fn open_read(error: Error, path: &Path) -> OpenReadError {
    match error.errno() {
        Errno::ENOENT => OpenReadError::FileDoesNotExist(path.to_owned()),
        _ => OpenReadError::wrap_io_error(io_error(error), path.to_owned()),
    }
}

pub(crate) fn open_write(error: Error, path: &Path) -> OpenWriteError {
    match error.errno() {
        Errno::EEXIST => OpenWriteError::FileAlreadyExists(path.to_owned()),
        _ => OpenWriteError::wrap_io_error(io_error(error), path.to_owned()),
    }
}

pub(crate) fn delete(error: Error, path: &Path) -> DeleteError {
    match error.errno() {
        Errno::ENOENT => DeleteError::FileDoesNotExist(path.to_owned()),
        _ => DeleteError::IoError {
            io_error: Arc::new(io_error(error)),
            filepath: path.to_owned(),
        },
    }
}
