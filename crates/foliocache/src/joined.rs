//! Joining paths.

use std::path::{Path, PathBuf};

/// As [`Path::join`], which allocates first for `dir` and then once more for both.
pub(crate) fn joined(dir: &Path, path: impl AsRef<Path>) -> PathBuf {
    let path = path.as_ref();
    let bytes = dir.as_os_str().len() + 1 + path.as_os_str().len();
    let mut joined = PathBuf::with_capacity(bytes);
    joined.push(dir);
    joined.push(path);
    joined
}
