//! A store of vectors in one file, larger than the memory: finds the candidates nearest to a query.
//!
//! An index (a graph, an inverted file; here, chance) names the candidates of each query, and their vectors are
//! fetched in one batch. Beside it the same fetches one by one. Printed are the queries a second.
//!
//! ```text
//! vector_store DIRECTORY [VECTORS [MEMORY [SECONDS]]]
//! ```
//!
//! Unless given: 1,000,000 vectors of 128 bytes, 32M of memory, 5 seconds for each way after one of warming up. The vectors stay in
//! the directory for the next run.

use foliocache::{Advice, Cache, Directory, File, MemorySize};
use std::error::Error;
use std::time::{Duration, Instant};

const DIMENSIONS: usize = 128;
const CANDIDATES: usize = 256;

type Vector = [u8; DIMENSIONS];

/// The vectors of a file, one after another.
struct Store {
    file: File,
    vectors: u64,
    /// Where candidates are fetched to.
    fetched: Vec<Vector>,
}

impl Store {
    fn new(file: File) -> Result<Self, foliocache::Error> {
        // The neighbours of a candidate are no candidates.
        file.advise(Advice::Random, ..)?;
        Ok(Self {
            vectors: file.len() / DIMENSIONS as u64,
            file,
            fetched: vec![[0; DIMENSIONS]; CANDIDATES],
        })
    }

    /// The candidate that is nearest to `query`, its vectors fetched in one batch.
    fn nearest(&mut self, query: &Vector, candidates: &[u64]) -> Result<u64, foliocache::Error> {
        let mut requests: Vec<_> = candidates
            .iter()
            .zip(&mut self.fetched)
            .map(|(id, vector)| self.file.read_request(vector, id * DIMENSIONS as u64))
            .collect();
        File::read_batch(&mut requests)?;
        drop(requests);
        Ok(best(query, candidates, &self.fetched))
    }

    /// The same, one by one.
    fn nearest_singly(
        &mut self,
        query: &Vector,
        candidates: &[u64],
    ) -> Result<u64, foliocache::Error> {
        for (id, vector) in candidates.iter().zip(&mut self.fetched) {
            self.file.read_exact_at(vector, id * DIMENSIONS as u64)?;
        }
        Ok(best(query, candidates, &self.fetched))
    }
}

fn best(query: &Vector, candidates: &[u64], vectors: &[Vector]) -> u64 {
    let distance = |vector: &Vector| -> u32 {
        let pairs = query.iter().zip(vector);
        pairs.map(|(a, b)| u32::from(a.abs_diff(*b)).pow(2)).sum()
    };
    let nearest = candidates.iter().zip(vectors);
    let nearest = nearest.min_by_key(|(_, vector)| distance(vector));
    *nearest.expect("there are candidates").0
}

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let directory = arguments.first().ok_or("which directory?")?;
    let or = |at: usize, default: &str| {
        let given: Option<&String> = arguments.get(at);
        given.map_or(default, String::as_str).to_owned()
    };
    let vectors: u64 = or(1, "1000000").parse()?;
    let memory = or(2, "32M").as_str().in_bytes()?;
    let seconds = Duration::from_secs_f64(or(3, "5").parse()?);
    let cache = Cache::builder().memory(memory).build()?;
    let file = open_or_make(&cache.directory(directory)?, vectors)?;
    let mut store = Store::new(file)?;
    println!(
        "{} vectors, {} MiB; {} MiB of memory; {CANDIDATES} candidates a query",
        store.vectors,
        store.file.len() >> 20,
        memory >> 20
    );
    let mut random = Random(42);
    for warming_up in [true, false] {
        for (name, nearest) in [
            ("one by one", Store::nearest_singly as Nearest),
            ("in a batch", Store::nearest),
        ] {
            let end = match warming_up {
                true => Duration::from_secs(1).min(seconds),
                false => seconds,
            };
            let (begin, mut queries) = (Instant::now(), 0);
            while begin.elapsed() < end {
                let query = random.vector();
                let candidates: Vec<u64> = (0..CANDIDATES)
                    .map(|_| random.next() % store.vectors)
                    .collect();
                nearest(&mut store, &query, &candidates)?;
                queries += 1;
            }
            if !warming_up {
                let rate = f64::from(queries) / begin.elapsed().as_secs_f64();
                println!("{name}: {rate:8.1} queries/s");
            }
        }
    }
    println!("hit ratio {:.2}", store.file.stats()?.hit_ratio());
    Ok(())
}

type Nearest = fn(&mut Store, &Vector, &[u64]) -> Result<u64, foliocache::Error>;

/// The file of the vectors, which is made unless it is there.
fn open_or_make(directory: &Directory, vectors: u64) -> Result<File, foliocache::Error> {
    let name = format!("vectors-{vectors}");
    if !directory.exists(&name)? {
        let mut random = Random(7);
        let file = directory.create(&name)?;
        for _ in 0..vectors {
            file.append(&random.vector())?;
        }
        file.sync_all()?;
        file.advise(Advice::DontNeed, ..)?;
    }
    directory.open(&name)
}

/// Numbers by chance (xorshift).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn vector(&mut self) -> Vector {
        std::array::from_fn(|_| self.next() as u8)
    }
}
