//! Why a benchmark could not run.

use std::io;

/// Why a benchmark could not run.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BenchError {
    /// No case has this name.
    #[error("no case is called {name:?}; there are {known}")]
    UnknownCase {
        /// The requested name.
        name: String,
        /// The names there are.
        known: String,
    },
    /// A setting makes no sense.
    #[error("{0}")]
    Setting(&'static str),
    /// The machine cannot do it, and why.
    #[error("{0}")]
    Refused(String),
    /// Something that the case needs could not be made.
    #[error("cannot set up {what}: {source}")]
    Setup {
        /// The thing that was to be made.
        what: String,
        /// The cause.
        source: io::Error,
    },
    /// An operation that is measured failed, so there is nothing to report.
    #[error("{contestant} failed: {source}")]
    Failed {
        /// The contestant.
        contestant: &'static str,
        /// The cause.
        source: io::Error,
    },
}

/// Turns an error of the setup into a [`BenchError`].
pub(crate) trait OrSetup<T> {
    fn setting_up(self, what: impl Into<String>) -> Result<T, BenchError>;
}

impl<T, E: Into<io::Error>> OrSetup<T> for Result<T, E> {
    fn setting_up(self, what: impl Into<String>) -> Result<T, BenchError> {
        self.map_err(|error| BenchError::setup(what, error))
    }
}

/// Makes something that a case needs.
pub(crate) fn set_up<T>(
    what: impl Into<String>,
    make: impl FnOnce() -> io::Result<T>,
) -> Result<T, BenchError> {
    make().setting_up(what)
}

impl BenchError {
    pub(crate) fn setup(what: impl Into<String>, source: impl Into<io::Error>) -> Self {
        Self::Setup {
            what: what.into(),
            source: source.into(),
        }
    }
}
