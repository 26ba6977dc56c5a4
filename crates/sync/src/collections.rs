//! Hash maps whose order is the same in each execution of a model.
//!
//! # Model
//!
//! The maps and sets of `std`. In the normal build they have random keys, as those have. In a model the keys are fixed, since
//! an execution must depend on nothing but the schedule. Make them with `default()`: `new()` is for random keys alone.

/// As that of `std`; with fixed keys in a model.
pub type HashMap<K, V> = std::collections::HashMap<K, V, Keys>;

/// As that of `std`; with fixed keys in a model.
pub type HashSet<T> = std::collections::HashSet<T, Keys>;

#[cfg(not(any(loom, shuttle)))]
type Keys = std::hash::RandomState;
#[cfg(any(loom, shuttle))]
type Keys = std::hash::BuildHasherDefault<std::hash::DefaultHasher>;
