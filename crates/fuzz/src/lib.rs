//! Fuzz targets of foliocache. The library is empty: the targets are in `tests/targets`, since they use crates that
//! only tests may use.
//!
//! # Model
//!
//! | target | input | judge |
//! |---|---|---|
//! | `index` | operations on an `XArray` | a `BTreeMap` |
//! | `file` | operations on a cached file over a store whose writes may fail | `ReferenceFile`, byte by byte |
//! | `paths` | calls with odd paths on `memfs` and `dirfs` | the kernel's tmpfs |
//! | `requests` | FUSE requests with odd numbers, names and handles | one valid answer each, file contents, no panic |
//!
//! `tests/fuzz.rs` is libFuzzer's program, one for all targets; `cargo xtask fuzz TARGET` builds and runs it.
//! `tests/corpus.rs` runs the inputs in `corpus` with an ordinary build, and has the fuzzer's findings as named
//! tests.
#![deny(unsafe_code)]
