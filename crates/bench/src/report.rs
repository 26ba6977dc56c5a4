//! The result of a run: figures, ratios, and the machine.
//!
//! # Model
//!
//! The JSON is `{"case", "host", "rows": [{"name", "variant", "threads", "value", "unit",
//! "samples"}], "ratios": {NAME: {"median", "min", "max", "control": {"median", "min", "max"}}}, "notes": [TEXT]}`. A
//! row's value is the median of its samples. A ratio near 1 (0.8 to 1.25), or undecided, has a control, the same of one of its two
//! contestants against itself, unless it is one of counts or was far from 1 in the warm-up round. Rows of passes
//! over files also have `"cpu_s_per_gb": {"process", "reclaim", "background", "kernel_threads"}`, and those of reads
//! through a cache `"hit_ratio"`, and those of loaders `"device_bytes_per_byte"`. Rows of random reads and of logs have `"latency_us": {"p50", "p99", "p99_9"}`. Rows of streams have `"series"`, their figure in each interval of each round. Names of ratios are stable.

use serde::ser::Serializer;
use serde::{Serialize, ser::SerializeMap};

use crate::case::{Case, Match, Outcome, RatioPlan};
use crate::cost::Cost;
use crate::host::{Host, load};
use crate::latency::Latency;
use crate::ratio::{Ratio, Verdict};
use crate::run::Outcomes;
use crate::settings::Settings;
use crate::stats::{median, stddev_percent};

/// The result of a run. Its [`Display`](std::fmt::Display) is a table.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct Report {
    pub(crate) case: &'static str,
    pub(crate) about: &'static str,
    pub(crate) host: Host,
    pub(crate) rows: Vec<Row>,
    #[serde(serialize_with = "ratios_by_name")]
    pub(crate) ratios: Vec<RatioReport>,
    /// Omissions and their causes.
    pub(crate) notes: Vec<String>,
    pub(crate) settings: Settings,
}

/// The figures of one contestant.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Row {
    /// The work.
    pub(crate) name: String,
    /// How.
    pub(crate) variant: &'static str,
    pub(crate) threads: usize,
    /// The median of the samples; of all threads together.
    pub(crate) value: f64,
    /// Unit of value and samples.
    pub(crate) unit: &'static str,
    /// One figure a round.
    pub(crate) samples: Vec<f64>,
    /// The processor time for the bytes that were moved.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) cpu_s_per_gb: Option<CpuPerGb>,
    /// The share of reads that found their page in the cache, from 0 to 1; the median.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) hit_ratio: Option<f64>,
    /// Bytes that the process had read from the device for each byte that it read; the median.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) device_bytes_per_byte: Option<f64>,
    /// How long an operation took; medians of the rounds' percentiles.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) latency_us: Option<Latency>,
    /// The figure in each interval (`Settings::interval`) of each round, one after another.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) series: Vec<f64>,
}

/// Processor seconds for each 10⁹ bytes; medians.
#[derive(Clone, Copy, Debug, Serialize)]
pub(crate) struct CpuPerGb {
    /// Of the process that did the work, in the program and in the kernel.
    pub(crate) process: f64,
    /// The part of `process` in the cache's thread that reclaims.
    pub(crate) reclaim: f64,
    /// The part of `process` in the cache's other threads and in workers of rings.
    pub(crate) background: f64,
    /// Of the kernel's own threads meanwhile; of the whole machine, so others' work is in it.
    pub(crate) kernel_threads: f64,
}

/// The median of a figure, where rounds have it.
fn middle(outcomes: &[Outcome], of: impl Fn(&Outcome) -> Option<f64>) -> Option<f64> {
    let all: Vec<f64> = outcomes.iter().filter_map(of).collect();
    (!all.is_empty()).then(|| median(&all))
}

fn cpu_per_gb(outcomes: &[Outcome]) -> Option<CpuPerGb> {
    let of = |seconds: fn(&Cost) -> f64| {
        let per_gb = |(cost, bytes): (Cost, u64)| seconds(&cost) / (bytes as f64 / 1e9);
        middle(outcomes, |turn| turn.cost.map(per_gb))
    };
    Some(CpuPerGb {
        process: of(|cost| cost.process)?,
        reclaim: of(|cost| cost.reclaim)?,
        background: of(|cost| cost.background)?,
        kernel_threads: of(|cost| cost.kernel_threads)?,
    })
}

fn latency(outcomes: &[Outcome]) -> Option<Latency> {
    let of = |percentile: fn(Latency) -> f64| middle(outcomes, |turn| turn.latency.map(percentile));
    Some(Latency {
        p50: of(|latency| latency.p50)?,
        p99: of(|latency| latency.p99)?,
        p99_9: of(|latency| latency.p99_9)?,
    })
}

impl Row {
    /// Intervals of the series in each round.
    pub(crate) fn intervals(&self) -> usize {
        self.series.len() / self.samples.len()
    }

    /// Standard deviation of the samples in percent of their mean.
    pub(crate) fn stddev_percent(&self) -> f64 {
        stddev_percent(&self.samples)
    }
}

/// A ratio of a report.
#[derive(Clone, Debug)]
pub(crate) struct RatioReport {
    pub(crate) plan: RatioPlan,
    /// Where the rows of its match begin.
    first: usize,
    /// The ratio.
    pub(crate) ratio: Ratio,
    /// How it stands to its target, if it has one.
    pub(crate) verdict: Option<Verdict>,
    /// One of the two against itself; only where the ratio is near 1, or where it decides the verdict.
    pub(crate) control: Option<Ratio>,
}

impl Report {
    pub(crate) fn new(case: &Case, settings: Settings) -> Self {
        Self {
            case: case.name,
            about: case.about,
            host: Host::now(),
            rows: Vec::new(),
            ratios: Vec::new(),
            notes: Vec::new(),
            settings,
        }
    }

    /// Adds the results of a match.
    pub(crate) fn add(&mut self, one: &Match, outcomes: &Outcomes) {
        let first = self.rows.len();
        for (contestant, outcomes) in one.contestants.iter().zip(&outcomes.figures) {
            let samples: Vec<f64> = outcomes.iter().map(|outcome| outcome.value).collect();
            self.rows.push(Row {
                name: contestant.name.clone(),
                variant: contestant.variant,
                threads: contestant.work.threads(),
                value: median(&samples),
                unit: contestant.work.unit(),
                samples,
                cpu_s_per_gb: cpu_per_gb(outcomes),
                hit_ratio: middle(outcomes, |turn| turn.hit_ratio),
                device_bytes_per_byte: middle(outcomes, |turn| turn.device),
                latency_us: latency(outcomes),
                series: outcomes
                    .iter()
                    .flat_map(|turn| turn.series.clone())
                    .collect(),
            });
        }
        for plan in &one.ratios {
            let ratio = ratio(plan, outcomes, first, one.rounds(self.settings.samples));
            self.ratios.push(ratio);
        }
    }

    /// Says when it ended.
    pub(crate) fn finish(&mut self) {
        self.host.load_at_end = load();
    }

    /// The rows of a ratio: dividend and divisor.
    pub(crate) fn rows_of(&self, ratio: &RatioReport, (of, to): (usize, usize)) -> [&Row; 2] {
        [of, to].map(|who| &self.rows[ratio.first + who])
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
    let target = plan.target;
    let verdict = target.map(|target| target.verdict(ratio, control, rounds));
    let is_shown = ratio.is_near_one() || verdict == Some(Verdict::Undecided);
    RatioReport {
        plan: plan.clone(),
        first,
        ratio,
        verdict,
        control: control.filter(|_| is_shown),
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
    for report in ratios {
        let RatioReport { ratio, control, .. } = *report;
        map.serialize_entry(&report.plan.name, &RatioEntry { ratio, control })?;
    }
    map.end()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::case::{ratios, repeat};
    use crate::ratio::Target;

    fn contestants(variants: &[&'static str]) -> Match {
        let mut one = Match::default();
        for variant in variants {
            one.operations("work", variant, vec![repeat(|| Ok(()))]);
        }
        one
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
        let mut one = contestants(&["a", "b", "c"]);
        ratios! { one;
            "half" => "b" / "a", aim(Target::NotWorse);
            "scaling" => 1 / 0, over((2, 0));
            "lesser" => 1 / 0, or(2, 0);
            "no such contestant" => "b" / "d";
        }
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
        let of = |name: &str| {
            let found = report.ratios.iter().find(|ratio| ratio.plan.name == name);
            found.map(|found| &found.ratio)
        };
        assert_eq!(of("half"), Some(&all(0.5)));
        assert_eq!(of("scaling"), Some(&all(2.0)));
        assert_eq!(of("lesser"), Some(&all(0.25)));
        assert_eq!(of("no such contestant"), None);
        assert_eq!(report.rows[0].value, 5.5);
        // Inside the interval of its control, which reaches down to 0.4; but too far from 1 to show it.
        assert_eq!(report.ratios[0].verdict, Some(Verdict::Reached));
        assert_eq!(report.ratios[0].control, None);
    }

    #[test]
    fn the_control_of_a_ratio_near_one_is_an_interval() {
        let mut one = contestants(&["a", "b"]);
        ratios! { one; "near" => 0 / 1; }
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
