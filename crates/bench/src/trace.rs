//! Which pages are read: zipf by rank, scattered over the file; scans; loops.
//!
//! # Model
//!
//! Popularity of rank r is 1/r^θ (Gray et al., *Quickly generating billion-record synthetic
//! databases*, SIGMOD 1994). Ranks are given to pages by a random order, so that popular pages are
//! not neighbours. The same seed gives the same trace, in whatever process.

use crate::place::Random;

/// Skew of the popularity; 0.99 is what the usual benchmarks of stores take.
const THETA: f64 = 0.99;

/// Ranks with a popularity of 1/r^θ.
pub(crate) struct Zipf {
    pages: f64,
    zeta: f64,
    alpha: f64,
    eta: f64,
    /// The page of each rank.
    order: Vec<u32>,
}

impl Zipf {
    /// Over so many pages, at least two.
    pub(crate) fn new(pages: u32, random: &mut Random) -> Self {
        let zeta: f64 = (1..=pages).map(|rank| f64::from(rank).powf(-THETA)).sum();
        let two = 1.0 + 0.5_f64.powf(THETA);
        let n = f64::from(pages);
        let mut order: Vec<u32> = (0..pages).collect();
        for last in (1..order.len()).rev() {
            order.swap(last, random.below(last + 1));
        }
        Self {
            pages: n,
            zeta,
            alpha: 1.0 / (1.0 - THETA),
            eta: (1.0 - (2.0 / n).powf(1.0 - THETA)) / (1.0 - two / zeta),
            order,
        }
    }

    /// The next page.
    pub(crate) fn page(&self, random: &mut Random) -> u32 {
        let u = random.unit();
        let uz = u * self.zeta;
        let rank = if uz < 1.0 {
            0
        } else if uz < 1.0 + 0.5_f64.powf(THETA) {
            1
        } else {
            (self.pages * (self.eta * u - self.eta + 1.0).powf(self.alpha)) as usize
        };
        self.order[rank.min(self.order.len() - 1)]
    }
}

/// Zipf over the first `pages` pages, and between runs of it a scan over some of those behind: as
/// many accesses in scans as in the rest. A scan goes on where the last one ended and begins again
/// at `end`.
pub(crate) fn zipf_and_scan(pages: u32, end: u32, run: usize, len: usize, seed: u64) -> Vec<u32> {
    let mut random = Random(seed);
    let zipf = Zipf::new(pages, &mut random);
    let mut scan = (pages..end).cycle();
    let mut trace = Vec::with_capacity(len + 2 * run);
    while trace.len() < len {
        trace.extend((0..run).map(|_| zipf.page(&mut random)));
        trace.extend(scan.by_ref().take(run));
    }
    trace.truncate(len);
    trace
}

/// Page after page, over and over.
pub(crate) fn cycle(pages: u32, len: usize) -> Vec<u32> {
    (0..pages).cycle().take(len).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn popularity_falls_with_the_rank() {
        let mut random = Random(1);
        let zipf = Zipf::new(1000, &mut random);
        let mut counts = vec![0_u32; 1000];
        for _ in 0..200_000 {
            counts[zipf.page(&mut random) as usize] += 1;
        }
        let of_rank = |rank: usize| f64::from(counts[zipf.order[rank] as usize]);
        // 1/r^0.99 over a zeta of 7.73: the first has 12.9 percent.
        assert!((of_rank(0) / 200_000.0 - 0.129).abs() < 0.01);
        assert!((of_rank(0) / of_rank(9) - 9.8).abs() < 2.0);
        let mut order = zipf.order.clone();
        order.sort_unstable();
        assert!(order.into_iter().eq(0..1000), "each page has one rank");
    }

    #[test]
    fn half_of_the_mix_is_scans() {
        let trace = zipf_and_scan(100, 500, 10, 10_000, 3);
        assert_eq!(trace.len(), 10_000);
        assert_eq!(trace.iter().filter(|&&page| page >= 100).count(), 5_000);
        assert_eq!(
            trace[10..20],
            [100, 101, 102, 103, 104, 105, 106, 107, 108, 109]
        );
        assert_eq!(trace, zipf_and_scan(100, 500, 10, 10_000, 3));
        assert_eq!(cycle(3, 7), [0, 1, 2, 0, 1, 2, 0]);
    }
}
