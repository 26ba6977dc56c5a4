//! The benchmark cases of foliocache, each against the kernel within one run.
#![deny(unsafe_code)]
