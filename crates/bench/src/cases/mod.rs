//! The cases.

mod pread;
mod pwrite;

use crate::case::Case;
use crate::error::BenchError;

/// How ours is done.
const OURS: &str = "foliocache";
/// How the kernel's is done.
const KERNEL: &str = "kernel";

/// All cases.
pub fn cases() -> &'static [&'static dyn Case] {
    &[&pwrite::Pwrite, &pread::Pread]
}

/// The case of this name.
///
/// # Errors
/// [`BenchError::UnknownCase`], which names those there are.
pub fn find(name: &str) -> Result<&'static dyn Case, BenchError> {
    let found = cases().iter().find(|case| case.name() == name);
    found.copied().ok_or_else(|| {
        let names: Vec<_> = cases().iter().map(|case| case.name()).collect();
        BenchError::UnknownCase {
            name: name.to_owned(),
            known: names.join(", "),
        }
    })
}
