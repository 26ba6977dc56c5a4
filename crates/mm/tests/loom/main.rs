//! The models that loom runs, in one program.
#![cfg(loom)]

mod folio;
mod read_hit;
mod relied;
mod room;
mod split;
