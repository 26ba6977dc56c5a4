//! The models that shuttle runs, in one program.
#![cfg(shuttle)]

mod belief;
mod names;
mod prefix;
mod written;
