//! The tests of the unit tier, in one program: it is linked once. What needs a process of its own is a program beside it.

mod bench;
mod bench_files;
mod operating;
