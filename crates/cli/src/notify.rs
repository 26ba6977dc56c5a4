//! Reports the state of the mount to a supervisor such as systemd (sd_notify(3)).
//!
//! # Model
//!
//! ```text
//!  READY ──▶ RELOADING, READY at each SIGHUP ──▶ STOPPING, and more time for as long as data is written
//! ```
//!
//! The supervisor names a socket in `NOTIFY_SOCKET`. The variable is removed at the start, so that child processes do not inherit
//! it. The crates for this protocol read the variable at each message, so they cannot be used here.

use foliocache_sys::clock::monotonic_ns;
use foliocache_sys::process::take_variable;
use std::ffi::OsStr;
use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::time::Duration;

/// Longest that a message waits for a supervisor that does not read.
const PATIENCE: Duration = Duration::from_secs(1);

/// Extension of the supervisor's stop timeout with each message. A message is sent every few seconds.
const MORE_TIME: Duration = Duration::from_secs(30);

/// The supervisor, if there is one.
#[derive(Default)]
pub(crate) struct Supervisor(Option<(UnixDatagram, SocketAddr)>);

impl Supervisor {
    /// Takes the socket from the environment. To be called before the first thread is started.
    ///
    /// # Errors
    /// The line to show, if there is a socket that cannot be used.
    pub(crate) fn take() -> Result<Supervisor, String> {
        const NAME: &str = "NOTIFY_SOCKET";
        let cannot = |why: &dyn std::fmt::Display| format!("{NAME} cannot be used: {why}");
        let place = take_variable(NAME).map_err(|errno| cannot(&errno))?;
        let Some(place) = place.filter(|place| !place.is_empty()) else {
            return Ok(Supervisor(None));
        };
        Supervisor::at(&place).map_err(|error| cannot(&error))
    }

    fn at(place: &OsStr) -> io::Result<Supervisor> {
        let address = match place.as_bytes() {
            [b'@', name @ ..] => SocketAddr::from_abstract_name(name)?,
            [b'/', ..] => SocketAddr::from_pathname(place)?,
            _ => {
                return Err(io::Error::other(
                    "it is neither a path nor an abstract name",
                ));
            }
        };
        let socket = UnixDatagram::unbound()?;
        socket.set_write_timeout(Some(PATIENCE))?;
        Ok(Supervisor(Some((socket, address))))
    }

    /// The mount serves.
    pub(crate) fn ready(&self, status: &str) {
        let pid = std::process::id();
        self.send(&format!(
            "READY=1\nMAINPID={pid}\nSTATUS={}",
            one_line(status)
        ));
    }

    /// A reload begins.
    pub(crate) fn reloading(&self) {
        let now = monotonic_ns() / 1000;
        self.send(&format!("RELOADING=1\nMONOTONIC_USEC={now}"));
    }

    /// The reload has ended.
    pub(crate) fn reloaded(&self) {
        self.send("READY=1");
    }

    /// The mount ends, or goes on ending.
    pub(crate) fn stopping(&self, status: &str) {
        let more = MORE_TIME.as_micros();
        self.send(&format!(
            "STOPPING=1\nEXTEND_TIMEOUT_USEC={more}\nSTATUS={}",
            one_line(status)
        ));
    }

    fn send(&self, text: &str) {
        if let Some((socket, address)) = &self.0
            && let Err(error) = socket.send_to_addr(text.as_bytes(), address)
        {
            tracing::warn!(%error, "the supervisor cannot be told");
        }
    }
}

/// A line break would begin another message.
fn one_line(text: &str) -> String {
    text.replace('\n', " ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn received(socket: &UnixDatagram) -> String {
        let mut buffer = [0; 500];
        let n = socket.recv(&mut buffer).unwrap();
        String::from_utf8(buffer[..n].to_vec()).unwrap()
    }

    #[test]
    fn messages_reach_sockets_with_a_path_and_with_an_abstract_name() {
        let temp = tempfile::tempdir().unwrap();
        let path = temp.path().join("socket");
        let name = format!("@foliocache-test-{}", std::process::id());
        let abstract_address = SocketAddr::from_abstract_name(&name.as_bytes()[1..]).unwrap();
        let sockets = [
            (path.as_os_str(), UnixDatagram::bind(&path).unwrap()),
            (
                OsStr::new(&name),
                UnixDatagram::bind_addr(&abstract_address).unwrap(),
            ),
        ];
        for (place, socket) in sockets {
            let supervisor = Supervisor::at(place).unwrap();
            supervisor.ready("two\nlines");
            let pid = std::process::id();
            assert_eq!(
                received(&socket),
                format!("READY=1\nMAINPID={pid}\nSTATUS=two lines")
            );
            supervisor.reloading();
            assert!(received(&socket).starts_with("RELOADING=1\nMONOTONIC_USEC="));
            supervisor.stopping("writing");
            assert_eq!(
                received(&socket),
                "STOPPING=1\nEXTEND_TIMEOUT_USEC=30000000\nSTATUS=writing"
            );
        }
    }

    #[test]
    fn places_that_are_no_sockets_are_refused() {
        for place in ["relative", "vsock:2:1234", &format!("/{}", "x".repeat(200))] {
            assert!(Supervisor::at(OsStr::new(place)).is_err(), "{place}");
        }
    }
}
