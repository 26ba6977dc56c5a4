//! The kernel's error numbers as a type.
//!
//! # Model
//!
//! An [`Errno`] is a number between 1 and 4095, the range in which the kernel returns errors. It is
//! as cheap as the number, total (every number can be carried, also those without a name here), and
//! the one currency in which a backend, the cache and its front doors (FUSE, C) exchange failures.
//!
//! # Invariants
//!
//! 1. `1 ≤ raw() ≤ 4095`, so `Option<Errno>` and `Result<(), Errno>` cost no more than the number,
//!    and `-raw()` is a valid answer to the kernel.

use std::fmt;
use std::num::NonZeroU16;

/// An error number of the kernel, between 1 and 4095.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Errno(NonZeroU16);

/// The largest number that the kernel uses for an error.
const MAX_ERRNO: i32 = 4095;

const fn known(raw: i32) -> Errno {
    assert!(raw >= 1 && raw <= MAX_ERRNO);
    match NonZeroU16::new(raw as u16) {
        Some(number) => Errno(number),
        None => unreachable!(),
    }
}

macro_rules! errnos {
    ($($name:ident $text:literal,)*) => {
        /// The numbers that a file system uses, by their usual names.
        impl Errno {
            $(
                #[doc = concat!($text, ".")]
                pub const $name: Errno = known(libc::$name);
            )*
        }

        /// Name and text of every number that has them, for [`Errno::name`] and `Display`.
        const TABLE: &[(Errno, &str, &str)] = &[$((Errno::$name, stringify!($name), $text),)*];
    };
}

errnos! {
    EPERM "Operation not permitted",
    ENOENT "No such file or directory",
    ESRCH "No such process",
    EINTR "Interrupted system call",
    EIO "Input/output error",
    ENXIO "No such device or address",
    E2BIG "Argument list too long",
    EBADF "Bad file descriptor",
    ECHILD "No child processes",
    EAGAIN "Resource temporarily unavailable",
    ENOMEM "Cannot allocate memory",
    EACCES "Permission denied",
    EFAULT "Bad address",
    ENOTBLK "Block device required",
    EBUSY "Device or resource busy",
    EEXIST "File exists",
    EXDEV "Invalid cross-device link",
    ENODEV "No such device",
    ENOTDIR "Not a directory",
    EISDIR "Is a directory",
    EINVAL "Invalid argument",
    ENFILE "Too many open files in system",
    EMFILE "Too many open files",
    ENOTTY "Inappropriate ioctl for device",
    ETXTBSY "Text file busy",
    EFBIG "File too large",
    ENOSPC "No space left on device",
    ESPIPE "Illegal seek",
    EROFS "Read-only file system",
    EMLINK "Too many links",
    EPIPE "Broken pipe",
    EDOM "Numerical argument out of domain",
    ERANGE "Numerical result out of range",
    EDEADLK "Resource deadlock avoided",
    ENAMETOOLONG "File name too long",
    ENOLCK "No locks available",
    ENOSYS "Function not implemented",
    ENOTEMPTY "Directory not empty",
    ELOOP "Too many levels of symbolic links",
    ENODATA "No data available",
    ETIME "Timer expired",
    ENOLINK "Link has been severed",
    EPROTO "Protocol error",
    EBADMSG "Bad message",
    EOVERFLOW "Value too large for defined data type",
    EILSEQ "Invalid or incomplete multibyte or wide character",
    EOPNOTSUPP "Operation not supported",
    ENOBUFS "No buffer space available",
    ENOTCONN "Transport endpoint is not connected",
    ESHUTDOWN "Cannot send after transport endpoint shutdown",
    ETIMEDOUT "Connection timed out",
    ECONNREFUSED "Connection refused",
    EHOSTUNREACH "No route to host",
    EALREADY "Operation already in progress",
    EINPROGRESS "Operation now in progress",
    ECONNABORTED "Software caused connection abort",
    ECONNRESET "Connection reset by peer",
    ESTALE "Stale file handle",
    EUCLEAN "Structure needs cleaning",
    EREMOTEIO "Remote I/O error",
    EDQUOT "Disk quota exceeded",
    ENOMEDIUM "No medium found",
    ECANCELED "Operation canceled",
    EOWNERDEAD "Owner died",
    ENOTRECOVERABLE "State not recoverable",
}

impl Errno {
    /// The error with this number. A number that is no errno (zero, negative, above 4095) can only
    /// come from a bug elsewhere, and becomes [`Errno::EIO`]: a failure stays a failure.
    pub const fn from_raw(raw: i32) -> Errno {
        if raw >= 1 && raw <= MAX_ERRNO {
            known(raw)
        } else {
            Errno::EIO
        }
    }

    /// The number, positive.
    pub const fn raw(self) -> i32 {
        self.0.get() as i32
    }

    /// The name as in `errno.h` (`"EIO"`), or `"E?"` for a number that has no name here.
    pub fn name(self) -> &'static str {
        self.entry().map_or("E?", |(_, name, _)| name)
    }

    /// The usual text (`"Input/output error"`), or `"Unknown error"`.
    pub fn description(self) -> &'static str {
        self.entry().map_or("Unknown error", |(_, _, text)| text)
    }

    /// The result of a libc call, or the error that it left behind if that is `-1`.
    pub(crate) fn result(returned: libc::c_int) -> Result<libc::c_int, Errno> {
        match returned {
            -1 => Err(Errno::last_os_error()),
            value => Ok(value),
        }
    }

    /// The error that the last failed libc call of this thread left behind.
    pub fn last_os_error() -> Errno {
        std::io::Error::last_os_error().into()
    }

    fn entry(self) -> Option<&'static (Errno, &'static str, &'static str)> {
        TABLE.iter().find(|(errno, ..)| *errno == self)
    }
}

impl fmt::Display for Errno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.entry() {
            Some((_, name, text)) => write!(f, "{name}: {text}"),
            None => write!(f, "errno {}: Unknown error", self.raw()),
        }
    }
}

impl fmt::Debug for Errno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.entry() {
            Some((_, name, _)) => f.write_str(name),
            None => write!(f, "Errno({})", self.raw()),
        }
    }
}

impl std::error::Error for Errno {}

impl From<rustix::io::Errno> for Errno {
    fn from(errno: rustix::io::Errno) -> Errno {
        Errno::from_raw(errno.raw_os_error())
    }
}

impl From<Errno> for rustix::io::Errno {
    fn from(errno: Errno) -> rustix::io::Errno {
        rustix::io::Errno::from_raw_os_error(errno.raw())
    }
}

impl From<Errno> for std::io::Error {
    fn from(errno: Errno) -> std::io::Error {
        std::io::Error::from_raw_os_error(errno.raw())
    }
}

impl From<std::io::Error> for Errno {
    /// The number inside, or the nearest one by kind where the error never was a number; EIO where
    /// no kind fits.
    fn from(error: std::io::Error) -> Errno {
        if let Some(raw) = error.raw_os_error() {
            return Errno::from_raw(raw);
        }
        // Of several numbers of one kind the last is the usual one: `EACCES`, `EOPNOTSUPP`.
        let is_it = |entry: &&(Errno, _, _)| std::io::Error::from(entry.0).kind() == error.kind();
        TABLE
            .iter()
            .rfind(is_it)
            .map_or(Errno::EIO, |entry| entry.0)
    }
}

#[cfg(test)]
mod tests {
    use super::Errno;

    #[test]
    fn names_and_texts() {
        assert_eq!(Errno::EIO.to_string(), "EIO: Input/output error");
        assert_eq!(format!("{:?}", Errno::ENOSPC), "ENOSPC");
        assert_eq!(Errno::ECHILD.name(), "ECHILD");
        assert_eq!(
            Errno::from_raw(4000).to_string(),
            "errno 4000: Unknown error"
        );
        assert_eq!(Errno::from_raw(4000).raw(), 4000);
    }

    /// Our texts are those of the C library, so that a message reads the same everywhere.
    #[test]
    fn texts_agree_with_the_c_library() {
        for (errno, name, text) in super::TABLE {
            let os = std::io::Error::from(*errno).to_string();
            assert_eq!(os, format!("{text} (os error {})", errno.raw()), "{name}");
        }
    }

    #[test]
    fn no_number_is_lost_and_nonsense_stays_an_error() {
        for raw in 1..=4095 {
            assert_eq!(Errno::from_raw(raw).raw(), raw);
            let io: std::io::Error = Errno::from_raw(raw).into();
            assert_eq!(Errno::from(io), Errno::from_raw(raw));
            let r: rustix::io::Errno = Errno::from_raw(raw).into();
            assert_eq!(Errno::from(r), Errno::from_raw(raw));
        }
        for raw in [0, -1, -5, 4096, i32::MAX, i32::MIN] {
            assert_eq!(Errno::from_raw(raw), Errno::EIO);
        }
    }

    #[test]
    fn kinds_without_a_number() {
        use std::io::{Error, ErrorKind};
        for (kind, errno) in [
            (ErrorKind::PermissionDenied, Errno::EACCES),
            (ErrorKind::AlreadyExists, Errno::EEXIST),
            (ErrorKind::WouldBlock, Errno::EAGAIN),
            (ErrorKind::InvalidInput, Errno::EINVAL),
            (ErrorKind::TimedOut, Errno::ETIMEDOUT),
            (ErrorKind::Interrupted, Errno::EINTR),
            (ErrorKind::Unsupported, Errno::EOPNOTSUPP),
            (ErrorKind::OutOfMemory, Errno::ENOMEM),
            (ErrorKind::BrokenPipe, Errno::EPIPE),
            (ErrorKind::StorageFull, Errno::ENOSPC),
            (ErrorKind::QuotaExceeded, Errno::EDQUOT),
            (ErrorKind::FileTooLarge, Errno::EFBIG),
            (ErrorKind::ResourceBusy, Errno::EBUSY),
            (ErrorKind::NotADirectory, Errno::ENOTDIR),
            (ErrorKind::IsADirectory, Errno::EISDIR),
            (ErrorKind::DirectoryNotEmpty, Errno::ENOTEMPTY),
            (ErrorKind::ReadOnlyFilesystem, Errno::EROFS),
            (ErrorKind::StaleNetworkFileHandle, Errno::ESTALE),
            (ErrorKind::CrossesDevices, Errno::EXDEV),
            (ErrorKind::TooManyLinks, Errno::EMLINK),
        ] {
            assert_eq!(Errno::from(Error::from(kind)), errno, "{kind}");
        }
        assert_eq!(Errno::from(Error::from(ErrorKind::NotFound)), Errno::ENOENT);
        assert_eq!(Errno::from(Error::other("x")), Errno::EIO);
        assert_eq!(
            Errno::from(Error::from(ErrorKind::UnexpectedEof)),
            Errno::EIO
        );
    }

    #[test]
    fn an_option_costs_nothing() {
        assert_eq!(size_of::<Option<Errno>>(), size_of::<Errno>());
    }
}
