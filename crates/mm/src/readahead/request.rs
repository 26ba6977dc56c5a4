//! A request of a reader: the pages from where it missed to its end.

/// Pages of a request, from where it missed to its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Request {
    pub(super) first: u64,
    pub(super) last: u64,
}

impl Request {
    pub(super) fn pages(self) -> u64 {
        self.last - self.first + 1
    }
}
