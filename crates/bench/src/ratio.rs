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

/// The ends of a control from a machine that is quiet enough to tell ratios near the aim apart.
const QUIET: (f64, f64) = (0.9, 1.1);

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

/// How a ratio stands to its target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    Reached,
    Missed,
    /// There are too few pairs to say.
    TooFew,
    /// One contestant differs from itself by so much that the ratio may be on either side.
    Undecided,
}

impl Verdict {
    fn of(is_reached: bool) -> Self {
        if is_reached {
            Self::Reached
        } else {
            Self::Missed
        }
    }
}

impl Target {
    /// Whether `ratio` of this many `pairs` reaches it; `control` is the same contestant against itself.
    pub(crate) fn verdict(self, ratio: Ratio, control: Option<Ratio>, pairs: usize) -> Verdict {
        let noise = control.filter(|control| control.min < QUIET.0 || control.max > QUIET.1);
        let may_be = |aim: f64| {
            noise.is_some_and(|noise| {
                (ratio.median * noise.min..=ratio.median * noise.max).contains(&aim)
            })
        };
        match self {
            Self::AtLeast(aim) | Self::AtMost(aim) if may_be(aim) => Verdict::Undecided,
            Self::AtLeast(least) => Verdict::of(ratio.median >= least),
            Self::AtMost(most) => Verdict::of(ratio.median <= most),
            _ if pairs < ENOUGH_PAIRS => Verdict::TooFew,
            Self::NotWorse | Self::NotLonger if may_be(1.0) => Verdict::Undecided,
            Self::NotWorse => {
                let floor = control.map_or(NOT_WORSE, |control| control.min.min(NOT_WORSE));
                Verdict::of(ratio.median >= floor)
            }
            Self::NotLonger => {
                let longest = 1.0 / NOT_WORSE;
                let ceiling = control.map_or(longest, |control| control.max.max(longest));
                Verdict::of(ratio.median <= ceiling)
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
        assert_eq!(
            Target::AtLeast(0.95).verdict(found, None, 1),
            Verdict::Reached
        );
        assert_eq!(
            Target::AtLeast(0.97).verdict(found, None, 1),
            Verdict::Missed
        );
        assert_eq!(
            Target::AtMost(0.97).verdict(found, None, 1),
            Verdict::Reached
        );
        assert_eq!(
            Target::AtMost(0.95).verdict(found, None, 1),
            Verdict::Missed
        );
        let target = Target::NotWorse;
        assert_eq!(target.verdict(found, None, 8), Verdict::TooFew);
        assert_eq!(target.verdict(found, None, 9), Verdict::Missed);
        let wide = Some(ratio(0.9, 1.0, 1.1));
        assert_eq!(target.verdict(found, wide, 9), Verdict::Reached);
        let narrow = Some(ratio(0.99, 1.0, 1.01));
        assert_eq!(target.verdict(found, narrow, 9), Verdict::Missed);
        assert_eq!(
            target.verdict(ratio(0.9, 0.975, 1.0), narrow, 9),
            Verdict::Reached
        );
        let target = Target::NotLonger;
        let longer = ratio(1.0, 1.05, 1.1);
        assert_eq!(target.verdict(longer, wide, 8), Verdict::TooFew);
        assert_eq!(target.verdict(longer, wide, 9), Verdict::Reached);
        assert_eq!(target.verdict(longer, narrow, 9), Verdict::Missed);
        assert_eq!(target.verdict(found, narrow, 9), Verdict::Reached);
    }

    #[test]
    fn noise_that_reaches_over_the_aim_decides_nothing() {
        let noise = Some(ratio(0.75, 1.0, 1.19));
        let verdict = |target: Target, median| target.verdict(ratio(0.5, median, 5.0), noise, 9);
        assert_eq!(verdict(Target::AtLeast(0.97), 1.06), Verdict::Undecided);
        assert_eq!(verdict(Target::AtLeast(0.97), 0.9), Verdict::Undecided);
        assert_eq!(verdict(Target::AtLeast(0.97), 0.8), Verdict::Missed);
        assert_eq!(verdict(Target::AtLeast(0.97), 1.4), Verdict::Reached);
        assert_eq!(verdict(Target::AtMost(1.5), 1.9), Verdict::Undecided);
        assert_eq!(verdict(Target::AtMost(1.5), 1.2), Verdict::Reached);
        assert_eq!(verdict(Target::NotWorse, 0.95), Verdict::Undecided);
        assert_eq!(verdict(Target::NotWorse, 0.7), Verdict::Missed);
        assert_eq!(verdict(Target::NotLonger, 1.6), Verdict::Missed);
    }
}
