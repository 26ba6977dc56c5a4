//! The unit tests, linked into one program. A test that needs a separate process is a program
//! beside it.

mod dir;
mod fd;
mod support;
mod uring_engine;
mod uring_writes;
