//! A process that never installs the handlers.

use foliocache_sys::usercopy;

#[test]
fn without_handlers_nothing_is_touched() {
    let nowhere = core::ptr::without_provenance_mut(16);
    assert_eq!(usercopy::fault_in_readable(nowhere, 10), 10);
    assert_eq!(usercopy::fault_in_writable(nowhere, 10), 10);
    assert!(!usercopy::handlers_installed());
}
