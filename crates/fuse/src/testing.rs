//! A mount's server without a mount: its requests come from a socket, written by the fuzz target.
//!
//! # Model
//!
//! ```text
//!  test ──request──▶ socket ──▶ one reader ──▶ the file system
//!       ◀──answer───
//! ```
//!
//! The socket preserves message boundaries (`SOCK_SEQPACKET`), as the kernel's device does. There is no kernel, so
//! nothing is sent to it unasked: no requests to forget inodes, no changes. One reader serves every request itself,
//! so equal requests have equal answers.

use crate::conn::FuseConn;
use crate::options::MountOptions;
use crate::service::{Job, Server};
use crate::stats::{Counters, FuseStats};
use foliocache_sync::Arc;
use foliocache_sync::background::Panics;
use foliocache_sync::workers::Workers;
use foliocache_sys::fd::OwnedFd;
use foliocache_vfs::SuperBlock;
use fuser::{BackgroundSession, Config, Session, SessionACL};
use std::io;

/// Enough that the only real reader may serve everything, see [`crate::service`].
const READERS: usize = 3;

/// Serves requests until `DESTROY`, or until the other end is closed.
pub struct Served {
    session: BackgroundSession,
    workers: Arc<Workers<Job>>,
    panics: Arc<Panics>,
    counters: Arc<Counters>,
}

impl Served {
    /// Starts to serve. The first message in `socket` must be `INIT`.
    ///
    /// # Errors
    /// If `INIT` is missing, or no thread can be started.
    pub fn new(
        names: &Arc<SuperBlock>,
        socket: OwnedFd,
        options: &MountOptions,
    ) -> io::Result<Served> {
        let mut options = options.clone();
        options.threads = READERS;
        let conn = Arc::new(FuseConn::new(names, &options).map_err(io::Error::from)?);
        // As with a kernel that can be asked to forget.
        conn.nodes.keep_names();
        let (panics, counters) = (Arc::clone(&conn.panics), Arc::clone(&conn.counters));
        let server = Server::new(conn, READERS);
        let workers = Arc::clone(&server.workers);
        let mut config = Config::default();
        config.n_threads = Some(1);
        let session = Session::from_fd(server, socket, SessionACL::All, config)?.spawn()?;
        Ok(Served {
            session,
            workers,
            panics,
            counters,
        })
    }

    /// Its statistics.
    pub fn stats(&self) -> FuseStats {
        FuseStats {
            panics: self.panics.count(),
            ..self.counters.snapshot()
        }
    }

    /// Waits until it has ended.
    ///
    /// # Errors
    /// The error of the last message: a malformed one ends the server.
    pub fn join(self) -> io::Result<()> {
        let done = self.session.join();
        self.workers.wait_idle();
        self.workers.stop();
        done
    }
}
