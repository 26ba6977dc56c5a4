//! The Rust code in the documents: `cargo test --doc -p foliocache-guide` compiles it.
//!
//! # Model
//!
//! Each document with Rust code is the documentation of a module here, so each block is a doctest. The package is
//! not published, because a published one cannot include files outside of its directory. `cargo xtask tidy` finds
//! documents that are not listed.
#![deny(unsafe_code)]

#[cfg(doctest)]
mod documents {
    #[doc = include_str!("../../../README.md")]
    mod readme {}

    #[doc = include_str!("../../../docs/mapping.md")]
    mod mapping {}

    #[doc = include_str!("../../../docs/pinning.md")]
    mod pinning {}

    #[doc = include_str!("../../../docs/guide/choosing-a-bound.md")]
    mod choosing_a_bound {}

    #[doc = include_str!("../../../docs/guide/durability.md")]
    mod durability {}

    #[doc = include_str!("../../../docs/guide/porting.md")]
    mod porting {}

    #[doc = include_str!("../../../docs/guide/sharing.md")]
    mod sharing {}
}
