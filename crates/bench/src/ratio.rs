//! Ratios: measured values and their aims.

use serde::Serialize;

use crate::stats::median;

/// A ratio over the rounds of a run.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(crate) struct Ratio {
    /// The middle one.
    pub(crate) median: f64,
    /// The least.
    pub(crate) min: f64,
    /// The greatest.
    pub(crate) max: f64,
}

impl Ratio {
    /// Of the ratios of all rounds.
    pub(crate) fn of(rounds: &[f64]) -> Self {
        Self {
            median: median(rounds),
            min: rounds.iter().copied().fold(f64::INFINITY, f64::min),
            max: rounds.iter().copied().fold(f64::NEG_INFINITY, f64::max),
        }
    }

    /// Whether a control has to stand beside it.
    pub(crate) fn is_near_one(&self) -> bool {
        NEAR_ONE.contains(&self.median)
    }
}

/// Whether a ratio of one round may turn out near 1 in the end.
pub(crate) fn maybe_near_one(ratio: f64) -> bool {
    MAYBE_NEAR_ONE.contains(&ratio)
}

/// Ratios that a control has to stand beside, as far as noise alone could make them of 1.
const NEAR_ONE: std::ops::RangeInclusive<f64> = 0.8..=1.25;

/// The same, of one uncounted round: a ratio that may turn out to be near 1.
const MAYBE_NEAR_ONE: std::ops::RangeInclusive<f64> = 0.5..=2.0;

/// The pairs without which "not worse" is not said.
const ENOUGH_PAIRS: usize = 9;

/// The least share of the other's figure that is "not worse", wherever the control lies.
const NOT_WORSE: f64 = 0.97;

/// The target of a ratio. It is shown beside the ratio; a miss is no failure.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Target {
    /// The median is at least this.
    AtLeast(f64),
    /// The median is at most this.
    AtMost(f64),
    /// The median is 0.97 or more, or lies inside the interval of the control: the same
    /// against itself. Nine pairs or more.
    NotWorse,
    /// The same of times, where less is better: the median is 1/0.97 or less, or lies inside the interval.
    NotLonger,
}

impl Target {
    /// Whether `ratio` of this many `pairs` reaches it; `control` is the same contestant against
    /// itself. `None` if that is uncertain.
    pub(crate) fn reached(
        self,
        ratio: Ratio,
        control: Option<Ratio>,
        pairs: usize,
    ) -> Option<bool> {
        match self {
            Self::AtLeast(least) => Some(ratio.median >= least),
            Self::AtMost(most) => Some(ratio.median <= most),
            _ if pairs < ENOUGH_PAIRS => None,
            Self::NotWorse => {
                let floor = control.map_or(NOT_WORSE, |control| control.min.min(NOT_WORSE));
                Some(ratio.median >= floor)
            }
            Self::NotLonger => {
                let longest = 1.0 / NOT_WORSE;
                let ceiling = control.map_or(longest, |control| control.max.max(longest));
                Some(ratio.median <= ceiling)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ratio(min: f64, median: f64, max: f64) -> Ratio {
        Ratio { median, min, max }
    }

    #[test]
    fn targets() {
        let found = ratio(0.5, 0.96, 2.0);
        assert_eq!(Ratio::of(&[0.96, 2.0, 0.5]), found);
        assert_eq!(Target::AtLeast(0.95).reached(found, None, 1), Some(true));
        assert_eq!(Target::AtLeast(0.97).reached(found, None, 1), Some(false));
        assert_eq!(Target::AtMost(0.97).reached(found, None, 1), Some(true));
        assert_eq!(Target::AtMost(0.95).reached(found, None, 1), Some(false));
        let target = Target::NotWorse;
        assert_eq!(target.reached(found, None, 8), None);
        assert_eq!(target.reached(found, None, 9), Some(false));
        let wide = Some(ratio(0.9, 1.0, 1.1));
        assert_eq!(target.reached(found, wide, 9), Some(true));
        let narrow = Some(ratio(0.99, 1.0, 1.01));
        assert_eq!(target.reached(found, narrow, 9), Some(false));
        assert_eq!(
            target.reached(ratio(0.9, 0.975, 1.0), narrow, 9),
            Some(true)
        );
        let target = Target::NotLonger;
        let longer = ratio(1.0, 1.05, 1.1);
        assert_eq!(target.reached(longer, wide, 8), None);
        assert_eq!(target.reached(longer, wide, 9), Some(true));
        assert_eq!(target.reached(longer, narrow, 9), Some(false));
        assert_eq!(target.reached(found, narrow, 9), Some(true));
    }
}
