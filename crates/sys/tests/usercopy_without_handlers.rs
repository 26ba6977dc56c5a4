//! The same answers in a process that never installs the handlers.

mod usercopy_common;

use foliocache_sys::usercopy;

#[test]
fn fault_in_answers_without_handlers() {
    assert!(!usercopy::handlers_installed());
    usercopy_common::fault_in_answers();
    assert!(!usercopy::handlers_installed());
}
