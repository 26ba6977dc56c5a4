//! Page traces: zipf by rank, scattered over the file; scans; loops; access patterns of databases, web caches and
//! builds; and traces from files.
//!
//! # Model
//!
//! Popularity of rank r is 1/r^θ (Gray et al., *Quickly generating billion-record synthetic
//! databases*, SIGMOD 1994). Ranks are given to pages by a random order, so that popular pages are
//! not neighbours. The same seed gives the same trace, in whatever process.
//!
//! A trace file is a text with an access in each line: the number of a page, or that of the first page and the
//! number of pages. A `#` starts a comment, and an empty line is no access. Only the identity of pages matters, so
//! they are renumbered.

use std::collections::HashMap;
use std::io::BufRead;

use crate::place::Random;

/// Skew of the popularity; 0.99 is usual in benchmarks of stores.
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
    /// Over `pages` pages, at least two.
    pub(crate) fn new(pages: u32, random: &mut Random) -> Self {
        let zeta: f64 = (1..=pages).map(|rank| f64::from(rank).powf(-THETA)).sum();
        let two = 1.0 + 0.5_f64.powf(THETA);
        let n = f64::from(pages);
        let mut order: Vec<u32> = (0..pages).collect();
        random.shuffle(&mut order);
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
        self.order[self.rank(random)]
    }

    /// The rank of the next page.
    fn rank(&self, random: &mut Random) -> usize {
        let u = random.unit();
        let uz = u * self.zeta;
        let rank = if uz < 1.0 {
            0
        } else if uz < 1.0 + 0.5_f64.powf(THETA) {
            1
        } else {
            (self.pages * (self.eta * u - self.eta + 1.0).powf(self.alpha)) as usize
        };
        rank.min(self.order.len() - 1)
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

/// Leaves of an inner page of a b-tree, and pages with rows for each leaf.
const FAN_OUT: u32 = 100;
const ROWS: u32 = 4;

/// A database: look-ups by key in a b-tree, zipf by key, from the root to a page with the row; and in between a scan of a
/// range of keys with all their rows, about a third of the accesses. So many pages in all.
pub(crate) fn database(pages: u32, len: usize, seed: u64) -> Vec<u32> {
    const LOOK_UPS: u32 = 500;
    const SCANNED: u32 = 200;
    let mut random = Random(seed);
    let leaves = (pages / (1 + ROWS) * 99 / 100).max(2);
    let inner = leaves.div_ceil(FAN_OUT);
    let zipf = Zipf::new(leaves, &mut random);
    // The root, the inner pages, the leaves, the rows.
    let leaf_page = |leaf: u32| 1 + inner + leaf;
    let row_page = |leaf: u32, row: u32| 1 + inner + leaves + leaf * ROWS + row;
    let mut trace = Vec::with_capacity(len);
    while trace.len() < len {
        for _ in 0..LOOK_UPS {
            let (leaf, row) = (zipf.page(&mut random), random.below(ROWS as usize) as u32);
            let way = [0, 1 + leaf / FAN_OUT, leaf_page(leaf), row_page(leaf, row)];
            trace.extend(way);
        }
        let first = random.below(leaves as usize) as u32;
        for leaf in (first..leaves).take(SCANNED as usize) {
            trace.push(leaf_page(leaf));
            trace.extend((0..ROWS).map(|row| row_page(leaf, row)));
        }
    }
    trace.truncate(len);
    trace
}

/// A web cache: objects of one to eight pages, zipf by object, of which ever others become popular. So many pages in all.
pub(crate) fn web(pages: u32, len: usize, seed: u64) -> Vec<u32> {
    /// One object in this many requests changes its place with another.
    const SHIFT: usize = 500;
    const MOST_PAGES: u32 = 8;
    let mut random = Random(seed);
    let objects = (pages / MOST_PAGES).max(2);
    let mut zipf = Zipf::new(objects, &mut random);
    let mut trace = Vec::with_capacity(len + MOST_PAGES as usize);
    for request in 1.. {
        let object = zipf.page(&mut random);
        // The same each time.
        let size = Random(u64::from(object)).below(MOST_PAGES as usize) as u32 + 1;
        let first = object * MOST_PAGES;
        trace.extend(first..first + size);
        if request % SHIFT == 0 {
            let popular = zipf.rank(&mut random);
            let any = random.below(objects as usize);
            zipf.order.swap(popular, any);
        }
        if trace.len() >= len {
            break;
        }
    }
    trace.truncate(len);
    trace
}

/// Builds of a program: each of its sources is read once, with some headers, zipf by header, and its object file written;
/// at the end all objects are read. The next build is of a tenth of the sources, and of all objects. So many pages in all.
pub(crate) fn build(pages: u32, len: usize, seed: u64) -> Vec<u32> {
    /// Pages of a source, a header, an object; headers of a source.
    const SOURCE: u32 = 6;
    const HEADER: u32 = 2;
    const OBJECT: u32 = 4;
    const INCLUDED: usize = 40;
    let mut random = Random(seed);
    // A quarter of the pages are headers.
    let headers = (pages / 4 / HEADER).max(2);
    let sources = ((pages - headers * HEADER) / (SOURCE + OBJECT)).max(1);
    let zipf = Zipf::new(headers, &mut random);
    let source_page = |source: u32| headers * HEADER + source * SOURCE;
    let object_page = |source: u32| headers * HEADER + sources * SOURCE + source * OBJECT;
    let mut trace = Vec::with_capacity(len);
    let mut all = true;
    while trace.len() < len {
        for source in 0..sources {
            if all || random.below(10) == 0 {
                trace.extend(source_page(source)..source_page(source) + SOURCE);
                for _ in 0..INCLUDED {
                    let header = zipf.page(&mut random) * HEADER;
                    trace.extend(header..header + HEADER);
                }
                trace.extend(object_page(source)..object_page(source) + OBJECT);
            }
        }
        trace.extend(object_page(0)..object_page(sources));
        all = false;
    }
    trace.truncate(len);
    trace
}

/// A trace that is given, its pages numbered by their first access.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Given {
    pub(crate) accesses: Vec<u32>,
    /// Different ones.
    pub(crate) pages: u32,
}

/// Accesses that a given trace may have.
const MOST_ACCESSES: u64 = 500_000_000;

impl Given {
    /// # Errors
    /// It cannot be read, or is none: the line and the reason, in words.
    pub(crate) fn read(text: impl BufRead) -> Result<Self, String> {
        let mut numbers = HashMap::new();
        let mut accesses = Vec::new();
        for (line, number) in text.lines().zip(1..) {
            let wrong = |why: &str| format!("line {number}: {why}");
            let line = line.map_err(|error| wrong(&error.to_string()))?;
            let access = line.split('#').next().unwrap_or_default();
            let mut fields = access.split_ascii_whitespace();
            let Some(page) = fields.next() else {
                continue;
            };
            let parse = |field: &str| {
                let number = field.parse::<u64>();
                number.map_err(|error| wrong(&format!("{field:?}: {error}")))
            };
            let first = parse(page)?;
            let count = fields.next().map_or(Ok(1), parse)?;
            if fields.next().is_some() {
                return Err(wrong("more than a page and a count"));
            }
            if count == 0 {
                return Err(wrong("no page is read"));
            }
            let end = first.checked_add(count);
            let end = end.ok_or_else(|| wrong("the pages have no numbers"))?;
            if accesses.len() as u64 + count > MOST_ACCESSES {
                return Err(wrong("more than 500 million accesses"));
            }
            for page in first..end {
                let next = numbers.len() as u32;
                accesses.push(*numbers.entry(page).or_insert(next));
            }
        }
        if accesses.len() < LEAST_ACCESSES {
            return Err(format!("a trace has {LEAST_ACCESSES} accesses or more"));
        }
        Ok(Self {
            accesses,
            pages: numbers.len() as u32,
        })
    }
}

/// Fewer say nothing: a quarter of them are not counted.
const LEAST_ACCESSES: usize = 100;

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

    /// How many different pages there are, and the share of the accesses that the most popular tenth of them has.
    fn shape(trace: &[u32]) -> (usize, f64) {
        let mut counts: HashMap<u32, usize> = HashMap::new();
        for page in trace {
            *counts.entry(*page).or_default() += 1;
        }
        let mut counts: Vec<usize> = counts.into_values().collect();
        counts.sort_unstable_by(|a, b| b.cmp(a));
        let tenth: usize = counts[..counts.len().div_ceil(10)].iter().sum();
        (counts.len(), tenth as f64 / trace.len() as f64)
    }

    #[test]
    fn generators_stay_within_their_pages_and_repeat() {
        type Generator = fn(u32, usize, u64) -> Vec<u32>;
        let generators: [(Generator, f64, f64); 3] =
            [(database, 0.3, 0.9), (web, 0.3, 0.9), (build, 0.3, 0.9)];
        for (generator, least, most) in generators {
            let trace = generator(10_000, 200_000, 7);
            assert_eq!(trace.len(), 200_000);
            assert!(trace.iter().all(|&page| page < 10_000));
            assert_eq!(trace, generator(10_000, 200_000, 7));
            assert_ne!(trace, generator(10_000, 200_000, 8));
            let (pages, tenth) = shape(&trace);
            assert!(pages > 4_000, "{pages}");
            assert!((least..most).contains(&tenth), "{tenth}");
        }
    }

    #[test]
    fn a_look_up_goes_from_the_root_to_a_row() {
        let trace = database(10_000, 4_000, 1);
        let inner = 1 + 1980 / FAN_OUT;
        for way in trace[..2_000].chunks(4) {
            assert!(way[0] == 0 && (1..=inner).contains(&way[1]), "{way:?}");
            assert!(way[1] < way[2] && way[2] < way[3], "{way:?}");
        }
        let scan = &trace[2_000..2_020];
        assert!(scan.chunks(5).all(|leaf| leaf[2] == leaf[1] + 1));
        assert!(scan[5] == scan[0] + 1, "{scan:?}");
    }

    #[test]
    fn popular_pages_of_the_web_trace_change_over_time() {
        let trace = web(80_000, 1_000_000, 3);
        let most_popular = |part: &[u32]| {
            let mut counts: HashMap<u32, usize> = HashMap::new();
            part.iter()
                .for_each(|page| *counts.entry(*page).or_default() += 1);
            let mut pages: Vec<_> = counts.into_iter().collect();
            pages.sort_unstable_by_key(|&(page, count)| (std::cmp::Reverse(count), page));
            pages.truncate(100);
            pages.into_iter().map(|(page, _)| page).collect::<Vec<_>>()
        };
        let (early, late) = (
            most_popular(&trace[..200_000]),
            most_popular(&trace[800_000..]),
        );
        let kept = early.iter().filter(|page| late.contains(page)).count();
        assert!(kept < 60, "{kept} of 100");
    }

    fn given(text: &str) -> Result<Given, String> {
        let filled: String = (0..LEAST_ACCESSES).map(|_| "7\n").collect();
        Given::read(format!("{text}\n{filled}").as_bytes())
    }

    #[test]
    fn given_traces_are_lines_of_pages() {
        let trace = given("# a comment\n\n  900719925474  # far away\n5 3\n\t6\r\n").unwrap();
        // 900719925474; 5, 6, 7; 6; and 7 from the filling.
        assert_eq!(trace.accesses[..5], [0, 1, 2, 3, 2]);
        assert_eq!(trace.accesses[5..], [3; LEAST_ACCESSES]);
        assert_eq!(trace.pages, 4);
    }

    #[test]
    fn bad_traces_are_refused_with_their_line() {
        for (text, why) in [
            ("1\nx", "line 2: \"x\": invalid digit"),
            ("-1", "line 1: \"-1\": invalid digit"),
            ("1.5", "line 1: \"1.5\": invalid digit"),
            (
                "99999999999999999999",
                "line 1: \"99999999999999999999\": number too large",
            ),
            ("1 2 3", "line 1: more than a page and a count"),
            ("1 0", "line 1: no page is read"),
            (
                "# x\n18446744073709551615 2",
                "line 2: the pages have no numbers",
            ),
            ("1 999999999", "line 1: more than 500 million"),
        ] {
            let said = given(text).unwrap_err();
            assert!(said.starts_with(why), "{text:?}: {said}");
        }
        for text in ["", "1\n2\n"] {
            let said = Given::read(text.as_bytes()).unwrap_err();
            assert_eq!(said, "a trace has 100 accesses or more");
        }
        let said = Given::read(&b"1\n\xff\n"[..]).unwrap_err();
        assert!(said.starts_with("line 2: "), "{said}");
    }
}
