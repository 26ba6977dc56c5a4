//! The unit tests, linked into one program. A test that needs a separate process is a program
//! beside it.

mod bench;
mod bench_files;
mod operating;
