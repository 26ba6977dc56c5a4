//! Many threads and much data, in one program.
#![cfg(not(any(loom, shuttle)))]

mod dcache;
mod icache;
