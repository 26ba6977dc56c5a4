//! No lock without a rank.
//!
//! # Model
//!
//! In the [rooms](RANKED) whose locks all have a rank, a source names no plain `Mutex` and no plain `RwLock`: it takes those of
//! `foliocache_sync::rank`. Debug builds then check their order. Test code does not count.

use super::Violation;
use super::source::{Area, Source, find_word};

/// Crates in which every lock has a rank.
const RANKED: &[&str] = &["xarray", "vfs", "fs", "fuse"];

pub(crate) fn check(source: &Source) -> Vec<Violation> {
    if source.area != Area::Src || source.test || !RANKED.contains(&source.room.as_str()) {
        return Vec::new();
    }
    let names = ["Mutex", "RwLock"];
    let found = names.map(|name| {
        let places = find_word(&source.live, name).into_iter();
        places.map(move |at| {
            let message =
                format!("`{name}` has no rank: take `Ranked{name}` or, for a leaf, `LeafMutex`");
            Violation::new(&source.path, source.line(at), "lock rank", message)
        })
    });
    found.into_iter().flatten().collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    fn lines(room: &str, text: &str) -> Vec<usize> {
        let path = format!("crates/{room}/src/table.rs");
        let source = Source::new(Path::new(&path), room, Area::Src, text.to_owned());
        let found = check(&source);
        found.into_iter().map(|violation| violation.line).collect()
    }

    #[test]
    fn a_lock_without_a_rank_is_found() {
        let text = "//! A Mutex.\nuse foliocache_sync::{Arc, Mutex};\nuse foliocache_sync::rank::RankedMutex;\n\
                    struct Table {\n    rows: foliocache_sync::RwLock<()>,\n    ranked: RankedMutex<()>,\n}\n\
                    #[cfg(test)]\nmod tests {\n    use foliocache_sync::Mutex;\n}\n";
        assert_eq!(lines("fs", text), [2, 5]);
        assert_eq!(lines("cli", text), [0; 0]);
    }
}
