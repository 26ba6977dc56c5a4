//! The settings for opening a file: their defaults, and which of them go together.

use foliocache_sys::Errno;
use foliocache_vfs::OpenHow;

use crate::error::Operation;

/// The setters of options for opening a file, as those of [`std::fs::OpenOptions`]. They change the field `how`.
/// `$umask` says when the umask was read.
macro_rules! setters {
    ($umask:literal) => {
        crate::setters::setters! {
            by reference;
            /// Whether the file can be read.
            read(read: bool) => how.flags.read = read;

            /// Whether the file can be written.
            write(write: bool) => how.flags.write = write;

            /// Whether every write goes to the end of the file at that moment. Implies `write`.
            append(append: bool) => how.flags.append = append;

            /// Whether the file is truncated to length 0. Needs `write`.
            truncate(truncate: bool) => how.flags.truncate = truncate;

            /// Whether a missing file is created. Needs `write` or `append`. Through a dangling symbolic link the
            /// target of the link is created.
            create(create: bool) => how.create = create;

            /// Whether the file is created, and must not exist yet, not even as a symbolic link. Needs `write` or
            /// `append`; `create` and `truncate` have no effect then.
            create_new(create_new: bool) => how.exclusive = create_new;

            /// Whether all reads and writes through the handle are [uncached](crate::IoOptions::uncached).
            uncached(uncached: bool) => how.flags.uncached = uncached;

            /// Whether all reads and writes through the handle are [direct](crate::IoOptions::direct).
            direct(direct: bool) => how.flags.direct = direct;

            /// Permission bits of a new file, 0o666 by default, less the umask that the process had when
            #[doc = $umask]
            mode(mode: u32) => how.mode = mode;
        }
    };
}
pub(crate) use setters;

/// The settings before the caller chooses any.
pub(crate) fn nothing() -> OpenHow {
    OpenHow {
        follow: true,
        mode: 0o666,
        ..OpenHow::default()
    }
}

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

/// The operation of an open, for its errors.
pub(crate) fn operation(how: &OpenHow) -> Operation {
    match how.create || how.exclusive {
        true => Operation::Create,
        false => Operation::Open,
    }
}
