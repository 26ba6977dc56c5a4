//! A multi-order index with marks and RCU readers; it dereferences no entry.
#![deny(unsafe_code)]
