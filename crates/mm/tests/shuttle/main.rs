//! The models that shuttle runs, in one program.
#![cfg(shuttle)]

mod fault;
mod frames;
mod group;
mod linear;
mod looks;
mod mm;
mod names;
mod pins;
mod uncached;
mod yielding_store;
