//! The models that shuttle runs, in one program.
#![cfg(shuttle)]

mod locks;
mod time;
mod workers;
