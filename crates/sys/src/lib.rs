//! The one room of foliocache that makes system calls.
#![deny(unsafe_code)]
