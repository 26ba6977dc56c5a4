//! A read of memory that was freed: if this passes, the address sanitizer is not looking. `cargo xtask test` runs it as a step
//! that must fail.
#![cfg(asan)]
#![allow(unsafe_code, reason = "it is wrong on purpose")]

#[test]
fn memory_is_read_after_it_was_freed() {
    let pointer = Box::into_raw(Box::new(7_u8));
    // SAFETY: from `Box::into_raw`.
    drop(unsafe { Box::from_raw(pointer) });
    // SAFETY: wrong on purpose.
    let byte = unsafe { std::hint::black_box(pointer).read_volatile() };
    println!("read {byte}");
}
