//! The foliocache command.
fn main() {}
