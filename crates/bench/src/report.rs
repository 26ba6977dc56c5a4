//! What a run found: figures, ratios, and the machine.
//!
//! # Model
//!
//! The JSON is `{"case", "host", "rows": [{"name", "variant", "threads", "value", "unit",
//! "samples"}], "ratios": {NAME: {"median", "min", "max", "control": {"median", "min", "max"}}}, "notes": [TEXT]}`. A
//! row's value is the median of its samples. A ratio near 1 (0.8 to 1.25) has a control, the same of one of its two
//! contestants against itself, unless it is one of counts or was far from 1 in the warm-up round. Rows of passes
//! over files also have `"cpu_s_per_gb": {"process", "reclaim", "background", "kernel_threads"}`, and those of reads
//! through a cache `"hit_ratio"`, and those of loaders `"device_bytes_per_byte"`. Rows of random reads and of logs have `"latency_us": {"p50", "p99", "p99_9"}`. Rows of streams have `"series"`, their figure in each interval of each round. Names of ratios are stable.

use serde::ser::Serializer;
use serde::{Serialize, ser::SerializeMap};

use crate::case::{Case, Figure, Match, Outcome, RatioPlan, Work};
use crate::host::{Host, load};
use crate::latency::Latency;
use crate::ratio::{Ratio, Target};
use crate::run::Outcomes;
use crate::settings::Settings;
use crate::stats::{median, stddev_percent};

/// What a run found. Its [`Display`](std::fmt::Display) is a table.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct Report {
    /// Name of the case.
    pub case: &'static str,
    /// What it measures, in a line.
    pub about: &'static str,
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
    /// Bytes that the process had read from the device for each byte that it read; the median.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub device_bytes_per_byte: Option<f64>,
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
    /// What one of the two against itself came to; only where the ratio is near 1.
    pub control: Option<Ratio>,
    /// What of the rows is divided.
    pub figure: Figure,
    /// The rows compared.
    pub change: Change,
    /// The rows whose ratio it is divided by.
    pub divisor: Option<Change>,
    /// The rows whose ratio it is, where that is the lesser.
    pub or: Option<Change>,
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
    pub(crate) fn new(case: &dyn Case, settings: Settings) -> Self {
        Self {
            case: case.name(),
            about: case.about(),
            host: Host::now(),
            rows: Vec::new(),
            ratios: Vec::new(),
            notes: Vec::new(),
            settings,
        }
    }

    /// Adds what a match gave.
    pub(crate) fn add(&mut self, one: &Match, outcomes: &Outcomes) {
        let first = self.rows.len();
        for (contestant, outcomes) in one.contestants.iter().zip(&outcomes.figures) {
            let samples: Vec<f64> = outcomes.iter().map(|outcome| outcome.value).collect();
            let hits: Vec<f64> = outcomes.iter().filter_map(|turn| turn.hit_ratio).collect();
            let device: Vec<f64> = outcomes.iter().filter_map(|turn| turn.device).collect();
            self.rows.push(Row {
                name: contestant.name,
                variant: contestant.variant,
                threads: contestant.work.threads(),
                value: median(&samples),
                unit: contestant.work.unit(),
                samples,
                cpu_s_per_gb: CpuPerGb::of(outcomes),
                hit_ratio: (!hits.is_empty()).then(|| median(&hits)),
                device_bytes_per_byte: (!device.is_empty()).then(|| median(&device)),
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
            let ratio = ratio(plan, outcomes, first, self.settings.samples);
            self.ratios.push(ratio);
        }
    }

    /// Says when it ended.
    pub(crate) fn finish(&mut self) {
        self.host.load_at_end = load();
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

fn ratio(plan: &RatioPlan, outcomes: &Outcomes, first: usize, rounds: usize) -> RatioReport {
    let figure = |outcome: &Outcome| plan.figure.of(outcome);
    let each: Vec<f64> = (0..rounds)
        .map(|round| plan.of_round(|who| figure(&outcomes.figures[who][round])))
        .collect();
    let ratio = Ratio::of(&each);
    let control = [plan.of, plan.to].into_iter().find_map(|who| {
        let pairs = outcomes.controls[who].iter().zip(&outcomes.figures[who]);
        let each: Vec<f64> = pairs
            .map(|(again, turn)| figure(again) / figure(turn))
            .collect();
        (!each.is_empty()).then(|| Ratio::of(&each))
    });
    let change = |(of, to)| Change {
        base: first + to,
        with: first + of,
    };
    RatioReport {
        name: plan.name,
        ratio,
        target: plan.target,
        reached: plan
            .target
            .and_then(|target| target.reached(ratio, control, rounds)),
        control: control.filter(|_| ratio.is_near_one()),
        figure: plan.figure,
        change: change((plan.of, plan.to)),
        divisor: plan.divisor.map(change),
        or: plan.or.map(change),
    }
}

/// A ratio in JSON.
#[derive(Serialize)]
struct RatioEntry {
    #[serde(flatten)]
    ratio: Ratio,
    #[serde(skip_serializing_if = "Option::is_none")]
    control: Option<Ratio>,
}

fn ratios_by_name<S: Serializer>(ratios: &[RatioReport], to: S) -> Result<S::Ok, S::Error> {
    let mut map = to.serialize_map(Some(ratios.len()))?;
    for ratio in ratios {
        let entry = RatioEntry {
            ratio: ratio.ratio,
            control: ratio.control,
        };
        map.serialize_entry(ratio.name, &entry)?;
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

    fn report(samples: usize) -> Report {
        let settings = Settings {
            samples,
            ..Settings::default()
        };
        Report::new(crate::find("pread").unwrap(), settings)
    }

    fn outcomes(figures: Vec<f64>) -> Vec<Outcome> {
        figures.into_iter().map(Outcome::plain).collect()
    }

    /// Ratios are of neighbours: two that drift together keep theirs.
    #[test]
    fn ratios_are_of_one_round() {
        let mut half = RatioPlan::new("half", 1, 0);
        half.target = Some(Target::NotWorse);
        let mut scaling = RatioPlan::new("scaling", 1, 0);
        scaling.divisor = Some((2, 0));
        let mut lesser = RatioPlan::new("lesser", 1, 0);
        lesser.or = Some((2, 0));
        let one = Match {
            contestants: vec![contestant("a"), contestant("b"), contestant("c")],
            ratios: vec![half, scaling, lesser],
            exact: false,
        };
        let base: Vec<f64> = (1..=10).map(f64::from).collect();
        let scaled = |by: f64| outcomes(base.iter().map(|value| value * by).collect());
        let mut report = report(10);
        let figures = vec![scaled(1.0), scaled(0.5), scaled(0.25)];
        let controls = vec![Vec::new(), scaled(0.2), Vec::new()];
        report.add(&one, &Outcomes { figures, controls });
        let all = |median| Ratio {
            median,
            min: median,
            max: median,
        };
        assert_eq!(report.ratio("half"), Some(&all(0.5)));
        assert_eq!(report.ratio("scaling"), Some(&all(2.0)));
        assert_eq!(report.ratio("lesser"), Some(&all(0.25)));
        assert_eq!(report.ratio("other"), None);
        assert_eq!(report.rows[0].value, 5.5);
        // Inside the interval of its control, which reaches down to 0.4; but too far from 1 to show it.
        assert_eq!(report.ratios[0].reached, Some(true));
        assert_eq!(report.ratios[0].control, None);
    }

    #[test]
    fn the_control_of_a_ratio_near_one_is_an_interval() {
        let one = Match {
            contestants: vec![contestant("a"), contestant("b")],
            ratios: vec![RatioPlan::new("near", 0, 1)],
            exact: false,
        };
        let mut report = report(2);
        let figures = vec![outcomes(vec![10.0, 10.0]), outcomes(vec![10.0, 9.0])];
        let controls = vec![outcomes(vec![9.5, 10.5]), Vec::new()];
        report.add(&one, &Outcomes { figures, controls });
        let control = report.ratios[0].control.expect("it is near 1");
        assert_eq!(
            (control.min, control.median, control.max),
            (0.95, 1.0, 1.05)
        );
        let json: serde_json::Value = serde_json::from_str(&report.json()).unwrap();
        assert_eq!(json["ratios"]["near"]["control"]["max"], 1.05);
        assert!(report.to_string().contains("0.950 to 1.050"));
    }
}
