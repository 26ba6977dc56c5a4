//! Synchronisation for foliocache: the std, loom and shuttle facade, RCU, seqcount, lockref and ranked locks.
#![deny(unsafe_code)]
