//! Simulation for foliocache's tests: a faulty backend with live and durable images, and a reference model.
#![deny(unsafe_code)]
