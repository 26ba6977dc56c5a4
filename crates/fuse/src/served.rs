//! A mount's server without a mount: its requests come from a socket, as the fuzz target writes them.
//!
//! # Model
//!
//! ```text
//!  test ──request──▶ socket ──▶ one reader ──▶ the file system
//!       ◀──answer───
//! ```
//!
//! The socket keeps messages apart (`SOCK_SEQPACKET`), as the kernel's device does. The kernel is not there, so nothing is told to
//! it: it is not asked to forget inodes, and hears of no changes. One reader serves every request itself, so that the same
//! requests have the same answers.

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

/// So many that the one reader there is may serve everything, see [`crate::service`].
const READERS: usize = 3;

/// Serves requests until `DESTROY` comes, or nobody has the other end.
pub struct Served {
    session: BackgroundSession,
    workers: Arc<Workers<Job>>,
    panics: Arc<Panics>,
    counters: Arc<Counters>,
}

impl Served {
    /// Begins to serve. The first message that waits in `socket` must be `INIT`.
    ///
    /// # Errors
    /// Without it, and if no thread can be started.
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

    /// Waits for its end.
    ///
    /// # Errors
    /// Of the last message: one that no kernel sends ends it.
    pub fn join(self) -> io::Result<()> {
        let done = self.session.join();
        self.workers.wait_idle();
        self.workers.stop();
        done
    }
}
