//! The user at the other end of a Unix socket.

use std::os::fd::BorrowedFd;

use crate::Errno;

/// The effective user of the process that connected `socket`, a connected Unix socket, as it was then.
///
/// # Errors
///
/// Those of `getsockopt(2)`.
pub fn peer_user(socket: BorrowedFd<'_>) -> Result<u32, Errno> {
    Ok(rustix::net::sockopt::socket_peercred(socket)?.uid.as_raw())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsFd;
    use std::os::unix::net::UnixStream;

    #[test]
    fn the_peer_of_a_pair_is_this_user() {
        let (one, _two) = UnixStream::pair().unwrap();
        let user = crate::credentials::effective_user();
        assert_eq!(peer_user(one.as_fd()), Ok(user));
    }
}
