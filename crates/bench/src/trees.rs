//! Trees of files, one for each thread, and walks through them.

use foliocache_mm::MappingCharge;
use foliocache_vfs::dcache::DENTRY_BYTES;
use foliocache_vfs::inode_bytes;
use serde::{Deserialize, Serialize};
use std::ffi::{CStr, OsStr};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use crate::error::{BenchError, set_up};
use crate::names::Make;
use crate::settings::Settings;
use crate::threads::on_threads;

/// The number of trees, one for each thread, and their size.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct Trees {
    pub(crate) threads: usize,
    dirs: usize,
    files: usize,
}

impl Trees {
    /// # Errors
    /// The settings have no size of trees.
    pub(crate) fn of(settings: &Settings) -> Result<Self, BenchError> {
        let (dirs, files) = settings.tree()?;
        Ok(Self {
            threads: settings.threads,
            dirs,
            files,
        })
    }

    /// Files of a tree.
    pub(crate) fn each(self) -> usize {
        self.dirs * self.files
    }

    /// Files of all trees.
    pub(crate) fn all_files(self) -> usize {
        self.threads * self.each()
    }

    /// Names of all trees: files, directories and the trees themselves.
    pub(crate) fn all_names(self) -> usize {
        self.threads * (self.each() + self.dirs + 1)
    }

    /// Calls `each` with the path of every `step`th file of all trees.
    pub(crate) fn each_file(
        self,
        step: usize,
        mut each: impl FnMut(&Path) -> io::Result<()>,
    ) -> io::Result<()> {
        let mut path = FilePath::new();
        for number in (0..self.all_files()).step_by(step) {
            path.set_dir(number % self.each() / self.files);
            path.set_file(number % self.files);
            each(&Path::new(&top(number / self.each())).join(path.text()))?;
        }
        Ok(())
    }

    /// The least memory that our caches take for all names.
    pub(crate) fn memory(self) -> u64 {
        let each = inode_bytes() + MappingCharge::memory_bytes() as u64 + DENTRY_BYTES;
        self.all_names() as u64 * each
    }

    pub(crate) fn make(self, tree: &(impl Make + ?Sized)) -> Result<(), BenchError> {
        set_up("trees of files", || {
            let mut path = FilePath::new();
            for top in (0..self.threads).map(top) {
                tree.dir(&top)?;
                for dir in 0..self.dirs {
                    path.set_dir(dir);
                    tree.dir(&format!("{top}/{}", path.dir()))?;
                    for file in 0..self.files {
                        path.set_file(file);
                        tree.file(&format!("{top}/{}", path.text()))?;
                    }
                }
            }
            Ok(())
        })
    }

    /// Calls `stat` with the path of each file of a tree, `laps` times over.
    fn walk(
        self,
        laps: usize,
        stat: &mut impl FnMut(&FilePath) -> io::Result<()>,
    ) -> io::Result<()> {
        let mut path = FilePath::new();
        for _ in 0..laps {
            for dir in 0..self.dirs {
                path.set_dir(dir);
                for file in 0..self.files {
                    path.set_file(file);
                    stat(&path)?;
                }
            }
        }
        Ok(())
    }

    /// Walks all trees, each by its thread, `laps` times over.
    pub(crate) fn walk_all<F>(self, users: &mut [F], laps: usize) -> io::Result<()>
    where
        F: FnMut(&FilePath) -> io::Result<()> + Send,
    {
        on_threads(users, |_, user| self.walk(laps, user)).map(drop)
    }
}

/// The name of a thread's tree.
pub(crate) fn top(thread: usize) -> String {
    format!("tree{thread}")
}

/// The path of a file in its tree, written in place: to make a new text for each stat would cost as much as
/// one of ours.
pub(crate) struct FilePath([u8; 14]);

/// Where the numbers are.
const DIR: std::ops::Range<usize> = 1..6;
const FILE: std::ops::Range<usize> = 8..13;

impl FilePath {
    fn new() -> Self {
        Self(*b"d00000/f00000\0")
    }

    fn set_dir(&mut self, number: usize) {
        write_number(&mut self.0[DIR], number);
    }

    fn set_file(&mut self, number: usize) {
        write_number(&mut self.0[FILE], number);
    }

    fn bytes(&self) -> &[u8] {
        &self.0[..FILE.end]
    }

    fn text(&self) -> &str {
        str::from_utf8(self.bytes()).expect("letters and digits")
    }

    fn dir(&self) -> &str {
        &self.text()[..DIR.end]
    }

    pub(crate) fn os_str(&self) -> &OsStr {
        OsStr::from_bytes(self.bytes())
    }

    pub(crate) fn c_str(&self) -> &CStr {
        CStr::from_bytes_with_nul(&self.0).expect("one NUL, at the end")
    }
}

/// Writes a number with zeros before it.
fn write_number(digits: &mut [u8], mut number: usize) {
    for digit in digits.iter_mut().rev() {
        *digit = b'0' + (number % 10) as u8;
        number /= 10;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_those_of_the_tree() {
        let trees = Trees {
            threads: 1,
            dirs: 2,
            files: 11,
        };
        let mut paths = Vec::new();
        let note = |path: &FilePath| {
            assert_eq!(path.c_str().to_bytes(), path.os_str().as_bytes());
            paths.push(path.text().to_owned());
            Ok(())
        };
        trees.walk_all(&mut [note], 2).unwrap();
        assert_eq!(paths.len(), 44);
        assert_eq!(paths[0], "d00000/f00000");
        assert_eq!(paths[21], "d00001/f00010");
        assert_eq!(paths[22], paths[0]);
    }
}
