//! Tests of the frame space as a whole.
