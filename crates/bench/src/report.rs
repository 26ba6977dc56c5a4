//! What a run found: figures, ratios, and the machine.
//!
//! # Model
//!
//! The JSON is `{"case", "host", "rows": [{"name", "variant", "threads", "value", "unit",
//! "samples"}], "ratios": {NAME: {"median", "min", "max"}}, "notes": [TEXT]}`. A row's value is the
//! median of its samples. Rows of passes over files also have `"cpu_s_per_gb": {"process",
//! "reclaim", "background", "kernel_threads"}`, and those of reads through a cache `"hit_ratio"`. Rows of random reads and of logs have `"latency_us":
//! {"p50", "p99", "p99_9"}`. Rows of streams have `"series"`, their figure in each interval of each round. Names of ratios are stable.

use serde::ser::Serializer;
use serde::{Serialize, ser::SerializeMap};

use crate::case::{Figure, Match, Outcome, RatioPlan, Work};
use crate::host::Host;
use crate::latency::Latency;
use crate::ratio::{Ratio, Target};
use crate::settings::Settings;
use crate::stats::{median, stddev_percent};

/// What a run found. Its [`Display`](std::fmt::Display) is a table.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct Report {
    /// Name of the case.
    pub case: &'static str,
    /// Where it ran.
    pub host: Host,
    /// The figures.
    pub rows: Vec<Row>,
    /// The ratios.
    #[serde(serialize_with = "ratios_by_name")]
    pub ratios: Vec<RatioReport>,
    /// What the reader should know: what was left out and why.
    pub notes: Vec<String>,
    /// The settings that it ran with.
    pub settings: Settings,
}

/// The figures of one contestant.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct Row {
    /// What was done.
    pub name: &'static str,
    /// How.
    pub variant: &'static str,
    /// By so many threads.
    pub threads: usize,
    /// The median of the samples; of all threads together.
    pub value: f64,
    /// Unit of value and samples.
    pub unit: &'static str,
    /// One figure a round.
    pub samples: Vec<f64>,
    /// What moving the bytes cost the processor.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpu_s_per_gb: Option<CpuPerGb>,
    /// The share of reads that found their page in the cache, from 0 to 1; the median.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hit_ratio: Option<f64>,
    /// How long an operation took; medians of the rounds' percentiles.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub latency_us: Option<Latency>,
    /// The figure in each interval (`Settings::interval`) of each round, one after another.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub series: Vec<f64>,
}

/// Processor seconds for each 10⁹ bytes; medians.
#[derive(Clone, Copy, Debug, Serialize)]
#[non_exhaustive]
pub struct CpuPerGb {
    /// Of the process that did the work, in the program and in the kernel.
    pub process: f64,
    /// The part of `process` in the cache's thread that reclaims.
    pub reclaim: f64,
    /// The part of `process` in the cache's other threads and in workers of rings.
    pub background: f64,
    /// Of the kernel's own threads meanwhile; of the whole machine, so others' work is in it.
    pub kernel_threads: f64,
}

impl CpuPerGb {
    fn of(outcomes: &[Outcome]) -> Option<Self> {
        let each = |seconds: fn(&crate::cost::Cost) -> f64| {
            let costs = outcomes.iter().filter_map(|outcome| outcome.cost);
            let each: Vec<f64> = costs
                .map(|(cost, bytes)| seconds(&cost) / (bytes as f64 / 1e9))
                .collect();
            (!each.is_empty()).then(|| median(&each))
        };
        Some(Self {
            process: each(|cost| cost.process)?,
            reclaim: each(|cost| cost.reclaim)?,
            background: each(|cost| cost.background)?,
            kernel_threads: each(|cost| cost.kernel_threads)?,
        })
    }
}

/// The medians of the rounds' percentiles.
fn latency(outcomes: &[Outcome]) -> Option<Latency> {
    let all: Vec<Latency> = outcomes.iter().filter_map(|turn| turn.latency).collect();
    let middle = |of: fn(&Latency) -> f64| median(&all.iter().map(of).collect::<Vec<_>>());
    (!all.is_empty()).then(|| Latency {
        p50: middle(|latency| latency.p50),
        p99: middle(|latency| latency.p99),
        p99_9: middle(|latency| latency.p99_9),
    })
}

impl Row {
    /// Standard deviation of the samples in percent of their mean.
    pub fn stddev_percent(&self) -> f64 {
        stddev_percent(&self.samples)
    }
}

/// A ratio of a report.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct RatioReport {
    /// Its name, stable.
    pub name: &'static str,
    /// What was found.
    pub ratio: Ratio,
    /// What is to be reached.
    pub target: Option<Target>,
    /// Whether it was reached; None without a target, or where it cannot be said.
    pub reached: Option<bool>,
    /// The rows compared; None where it is not of their values.
    pub change: Option<Change>,
}

/// Two rows, by their place in [`Report::rows`].
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Change {
    /// What it is compared with.
    pub base: usize,
    /// What is compared.
    pub with: usize,
}

impl Report {
    pub(crate) fn new(case: &'static str, settings: Settings) -> Self {
        Self {
            case,
            host: Host::now(),
            rows: Vec::new(),
            ratios: Vec::new(),
            notes: Vec::new(),
            settings,
        }
    }

    /// Adds what a match gave: for each contestant, the outcome of each round.
    pub(crate) fn add(&mut self, one: &Match, outcomes: &[Vec<Outcome>]) {
        let first = self.rows.len();
        for (contestant, outcomes) in one.contestants.iter().zip(outcomes) {
            let samples: Vec<f64> = outcomes.iter().map(|outcome| outcome.value).collect();
            let hits: Vec<f64> = outcomes.iter().filter_map(|turn| turn.hit_ratio).collect();
            self.rows.push(Row {
                name: contestant.name,
                variant: contestant.variant,
                threads: contestant.work.threads(),
                value: median(&samples),
                unit: contestant.work.unit(),
                samples,
                cpu_s_per_gb: CpuPerGb::of(outcomes),
                hit_ratio: (!hits.is_empty()).then(|| median(&hits)),
                latency_us: latency(outcomes),
                series: outcomes
                    .iter()
                    .flat_map(|turn| turn.series.iter().copied())
                    .collect(),
            });
            if let Work::Pass { pass, .. } = &contestant.work {
                self.notes.extend(pass.note());
            }
        }
        for plan in &one.ratios {
            self.ratios.push(ratio(plan, outcomes, first));
        }
    }

    /// Says which targets were reached, now that the controls are known.
    pub(crate) fn finish(&mut self) {
        let controls = self.ratios.clone();
        for ratio in &mut self.ratios {
            let control = ratio.target.and_then(Target::control);
            let control = control.and_then(|name| controls.iter().find(|c| c.name == name));
            ratio.reached = ratio.target.and_then(|target| {
                let control = control.map(|control| control.ratio);
                target.reached(ratio.ratio, control, self.settings.samples)
            });
        }
    }

    /// The ratio of this name.
    pub fn ratio(&self, name: &str) -> Option<&Ratio> {
        let found = self.ratios.iter().find(|ratio| ratio.name == name)?;
        Some(&found.ratio)
    }

    /// The report as one JSON object, on one line.
    pub fn json(&self) -> String {
        serde_json::to_string(self).expect("a report has nothing that JSON lacks")
    }
}

fn ratio(plan: &RatioPlan, outcomes: &[Vec<Outcome>], first: usize) -> RatioReport {
    let rounds = outcomes[plan.of].len();
    let each: Vec<f64> = (0..rounds)
        .map(|round| plan.of_round(|who| plan.figure.of(&outcomes[who][round])))
        .collect();
    RatioReport {
        name: plan.name,
        ratio: Ratio::of(&each),
        target: plan.target,
        reached: None,
        change: (plan.figure == Figure::Value).then_some(Change {
            base: first + plan.to,
            with: first + plan.of,
        }),
    }
}

fn ratios_by_name<S: Serializer>(ratios: &[RatioReport], to: S) -> Result<S::Ok, S::Error> {
    let mut map = to.serialize_map(Some(ratios.len()))?;
    for ratio in ratios {
        map.serialize_entry(ratio.name, &ratio.ratio)?;
    }
    map.end()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::case::{Contestant, repeat};

    fn contestant(variant: &'static str) -> Contestant {
        Contestant {
            name: "work",
            variant,
            work: Work::Operations(vec![repeat(|| Ok(()))]),
        }
    }

    /// Ratios are of neighbours: two that drift together keep theirs.
    #[test]
    fn ratios_are_of_one_round() {
        let mut not_worse = RatioPlan::new("not_worse", 1, 0);
        not_worse.target = Some(Target::NotWorse { control: "aa" });
        let mut scaling = RatioPlan::new("scaling", 1, 0);
        scaling.control = Some((2, 0));
        let mut lesser = RatioPlan::new("lesser", 1, 0);
        lesser.or = Some((2, 0));
        let one = Match {
            contestants: vec![contestant("a"), contestant("b"), contestant("c")],
            ratios: vec![not_worse, RatioPlan::new("aa", 2, 0), scaling, lesser],
        };
        let base: Vec<f64> = (1..=9).map(f64::from).collect();
        let scaled = |by: f64| base.iter().map(|value| value * by).collect();
        let figures: [Vec<f64>; 3] = [base.clone(), scaled(0.5), scaled(0.25)];
        let figures = figures.map(|all| all.into_iter().map(Outcome::plain).collect());
        let mut report = Report::new("sample", Settings::default());
        report.add(&one, &figures);
        report.finish();
        let all = |median| Ratio {
            median,
            min: median,
            max: median,
        };
        assert_eq!(report.ratio("not_worse"), Some(&all(0.5)));
        assert_eq!(report.ratio("aa"), Some(&all(0.25)));
        assert_eq!(report.ratio("scaling"), Some(&all(2.0)));
        assert_eq!(report.ratio("lesser"), Some(&all(0.25)));
        assert_eq!(report.ratio("other"), None);
        assert_eq!(report.rows[0].value, 5.0);
        // Inside the interval of its control, which reaches down to 0.25.
        assert_eq!(report.ratios[0].reached, Some(true));
    }
}
