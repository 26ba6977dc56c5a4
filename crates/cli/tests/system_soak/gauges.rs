//! The resources of processes at rest, and whether they grew.

use crate::work::{Context, Done};
use std::fmt;
use std::fs;

/// Growth that is no leak, over many rounds. The allocator's reserve differs from round to round, as do the
/// descriptors that are kept for names, and threads that wait for more work.
const ALLOWED: Sample = Sample {
    memory: 12 << 20,
    threads: 4,
    descriptors: 16,
};

/// The same over few rounds, of which the first does much for the first time.
const ALLOWED_AT_FIRST: Sample = Sample {
    memory: 96 << 20,
    threads: 16,
    descriptors: 96,
};

/// Rounds from which on growth is judged by medians.
const MANY: usize = 12;

/// The resources of a process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Sample {
    /// Bytes of memory that no file of a disk is behind.
    pub(crate) memory: u64,
    pub(crate) threads: u64,
    pub(crate) descriptors: u64,
}

impl fmt::Display for Sample {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{:.1} MiB, {} threads, {} descriptors",
            self.memory as f64 / f64::from(1 << 20),
            self.threads,
            self.descriptors
        )
    }
}

/// The resources of the process now.
pub(crate) fn sample(pid: u32) -> Done<Sample> {
    let folder = format!("/proc/{pid}");
    let status = fs::read_to_string(format!("{folder}/status"));
    let status = status.context(|| folder.clone())?;
    let field = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name));
        let number = line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok());
        number.ok_or_else(|| format!("{folder}/status has no {name}"))
    };
    let count = |name: &str| -> Done<u64> {
        let entries = fs::read_dir(format!("{folder}/{name}"));
        Ok(entries.context(|| folder.clone())?.count() as u64)
    };
    Ok(Sample {
        memory: (field("RssAnon:")? + field("RssShmem:")?) * 1024,
        threads: count("task")?,
        // Of ourselves, the one of the listing is among them each time.
        descriptors: count("fd")?,
    })
}

/// The samples of one process, one for each rest.
#[derive(Debug, Default)]
pub(crate) struct Series {
    pub(crate) name: String,
    samples: Vec<Sample>,
}

fn median(samples: &[Sample], of: impl Fn(&Sample) -> u64) -> u64 {
    let mut values: Vec<_> = samples.iter().map(of).collect();
    values.sort_unstable();
    values[values.len() / 2]
}

impl Series {
    pub(crate) fn new(name: String) -> Series {
        Series {
            name,
            samples: Vec::new(),
        }
    }

    pub(crate) fn push(&mut self, sample: Sample) {
        self.samples.push(sample);
    }

    /// The figures early and late: in the second and the last quarter of many rounds, else in the
    /// first round and the last.
    fn early_and_late(&self) -> Option<(Sample, Sample)> {
        let n = self.samples.len();
        if n < MANY {
            return Some((*self.samples.first()?, *self.samples.last()?));
        }
        let of = |part: &[Sample]| Sample {
            memory: median(part, |sample| sample.memory),
            threads: median(part, |sample| sample.threads),
            descriptors: median(part, |sample| sample.descriptors),
        };
        Some((
            of(&self.samples[n / 4..n / 2]),
            of(&self.samples[n - n / 4..]),
        ))
    }

    /// The figures that grew beyond the allowance.
    pub(crate) fn growth(&self) -> Option<String> {
        let (early, late) = self.early_and_late()?;
        let allowed = match self.samples.len() < MANY {
            true => ALLOWED_AT_FIRST,
            false => ALLOWED,
        };
        let grew = late.memory > early.memory + allowed.memory
            || late.threads > early.threads + allowed.threads
            || late.descriptors > early.descriptors + allowed.descriptors;
        grew.then(|| format!("{} grew: at rest {early} early, {late} late", self.name))
    }
}

impl fmt::Display for Series {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.early_and_late() {
            Some((early, late)) => write!(f, "{}: at rest {early} early, {late} late", self.name),
            None => write!(f, "{}: never at rest", self.name),
        }
    }
}

#[test]
#[ignore = "system tier"]
fn growth_of_a_process_is_told() {
    let mut series = Series::new("process".to_owned());
    for i in 0..40 {
        series.push(Sample {
            memory: (50 << 20) + ((i % 7) << 20),
            threads: 9,
            descriptors: 30,
        });
    }
    assert_eq!(series.growth(), None);
    let with = |change: fn(u64, &mut Sample)| {
        let mut samples = series.samples.clone();
        for (i, sample) in samples.iter_mut().enumerate() {
            change(i as u64, sample);
        }
        let name = series.name.clone();
        Series { name, samples }.growth()
    };
    assert!(with(|i, sample| sample.memory += i << 20).is_some());
    assert!(with(|i, sample| sample.threads += i / 4).is_some());
    assert!(with(|i, sample| sample.descriptors += i).is_some());
}
