//! Runs of numbers, taken first fit and joined again when they are given back.

use std::collections::BTreeMap;
use std::ops::Range;

/// Free runs: where each begins, and how long it is. No two adjoin.
#[derive(Debug, Default)]
pub(crate) struct Runs(BTreeMap<u32, u32>);

impl Runs {
    pub(crate) fn new(all: Range<u32>) -> Self {
        let mut runs = Self::default();
        if !all.is_empty() {
            runs.0.insert(all.start, all.end - all.start);
        }
        runs
    }

    /// Takes the first free run of `len` numbers.
    pub(crate) fn take(&mut self, len: u32) -> Option<Range<u32>> {
        let (&start, &free) = self.0.iter().find(|&(_, &free)| free >= len)?;
        self.0.remove(&start);
        if free > len {
            self.0.insert(start + len, free - len);
        }
        Some(start..start + len)
    }

    /// Gives a run back, which is not free.
    pub(crate) fn give_back(&mut self, mut run: Range<u32>) {
        if let Some((&start, &len)) = self.0.range(..run.start).next_back()
            && start + len == run.start
        {
            run.start = start;
        }
        if let Some(len) = self.0.remove(&run.end) {
            run.end += len;
        }
        self.0.insert(run.start, run.end - run.start);
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    #[test]
    fn runs_are_taken_first_fit_and_join_when_they_come_back() {
        let mut runs = Runs::new(10..30);
        let taken: Vec<_> = [5, 5, 10].map(|len| runs.take(len)).into();
        assert_eq!(taken, [Some(10..15), Some(15..20), Some(20..30)]);
        assert_eq!(runs.take(1), None);
        runs.give_back(10..15);
        runs.give_back(20..30);
        assert_eq!(runs.take(11), None, "the runs do not adjoin");
        assert_eq!(runs.take(6), Some(20..26));
        runs.give_back(20..26);
        runs.give_back(15..20);
        assert_eq!(runs.take(20), Some(10..30));
        assert_eq!(Runs::new(3..3).take(1), None);
    }
}
