//! The settings for opening a file: their defaults, and which of them go together.

use foliocache_sys::Errno;
use foliocache_vfs::{OpenFlags, OpenHow};

/// The settings before the caller chooses any.
pub(crate) const NOTHING: OpenHow = OpenHow {
    flags: OpenFlags {
        read: false,
        write: false,
        append: false,
        truncate: false,
        uncached: false,
        direct: false,
        append_only: false,
    },
    create: false,
    exclusive: false,
    follow: true,
    mode: 0o666,
};

/// The settings, completed.
///
/// # Errors
/// `EINVAL` for settings that contradict each other.
pub(crate) fn checked(mut how: OpenHow) -> Result<OpenHow, Errno> {
    let flags = &mut how.flags;
    let truncate = flags.truncate;
    flags.truncate &= !how.exclusive;
    if truncate && (!flags.write || (flags.append && !how.exclusive)) {
        return Err(Errno::EINVAL);
    }
    flags.write |= flags.append;
    how.create |= how.exclusive;
    let useless = !(flags.read || flags.write);
    if useless || (how.create && !flags.write) {
        return Err(Errno::EINVAL);
    }
    Ok(how)
}
