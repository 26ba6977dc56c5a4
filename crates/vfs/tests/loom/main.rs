//! The models that loom runs, in one program.
#![cfg(loom)]

mod dcache;
mod generation;
mod hash;
mod icache;
mod slab;
