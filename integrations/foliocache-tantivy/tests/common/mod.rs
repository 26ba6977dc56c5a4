//! What the tests of this crate share.
#![allow(
    dead_code,
    missing_docs,
    unreachable_pub,
    reason = "every test file uses a part of it"
)]

use foliocache::{Cache, MappingFaults};
use foliocache_tantivy::FoliocacheDirectory;
use std::path::Path;
use std::time::{Duration, Instant};
use tantivy::collector::{Count, TopDocs};
use tantivy::query::QueryParser;
use tantivy::schema::{FAST, INDEXED, STORED, Schema, TEXT, Value};
use tantivy::{Directory, Index, TantivyDocument};
use tempfile::TempDir;

/// A cache of `mib` MiB, whose mappings need no privilege.
pub fn cache(mib: u64) -> Cache {
    let builder = Cache::builder()
        .memory(mib << 20)
        .mapping_faults(MappingFaults::Inline);
    builder.build().expect("a cache")
}

/// An empty directory on the disk that holds the build.
pub fn on_disk() -> TempDir {
    let top = std::env::var_os("FOLIOCACHE_TEST_DIR");
    let top = top.unwrap_or_else(|| env!("CARGO_TARGET_TMPDIR").into());
    tempfile::tempdir_in(top).expect("a directory")
}

/// A directory of its own, empty.
pub fn directory(mib: u64) -> (Cache, FoliocacheDirectory, TempDir) {
    let (cache, source) = (cache(mib), on_disk());
    let directory = FoliocacheDirectory::open(&cache, source.path()).expect("a directory");
    (cache, directory, source)
}

/// Makes a file with these bytes.
pub fn write(directory: &dyn Directory, path: impl AsRef<Path>, bytes: &[u8]) {
    use std::io::Write;
    use tantivy::directory::TerminatingWrite;
    let mut writer = directory.open_write(path.as_ref()).expect("a new file");
    writer.write_all(bytes).unwrap();
    writer.terminate().unwrap();
}

/// Bytes that differ by position and by `seed`.
pub fn pattern(seed: u64, len: usize) -> Vec<u8> {
    (0..len as u64)
        .map(|at| ((at + seed * 0x9e37_79b9).wrapping_mul(0xff51_afd7_ed55_8ccd) >> 56) as u8)
        .collect()
}

/// Waits until `is_so`, and fails if it never is.
pub fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(60);
    while !is_so() {
        assert!(Instant::now() < deadline, "never: {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// The bytes that each document has beside its text. They are stored, and make the index large at little cost.
pub const RAW: usize = 600;

/// A number, a text and bytes, all stored.
pub fn schema() -> Schema {
    let mut schema = Schema::builder();
    schema.add_u64_field("id", FAST | INDEXED | STORED);
    schema.add_text_field("body", TEXT | STORED);
    schema.add_bytes_field("raw", STORED);
    schema.build()
}

/// The document with this number. Its words follow from the number: `a` words are frequent, `z` words rare.
pub fn document(schema: &Schema, id: u64) -> TantivyDocument {
    use std::fmt::Write;
    let mut body = String::new();
    for nth in 0..24u64 {
        let mixed = (id * 31 + nth + 1).wrapping_mul(0xff51_afd7_ed55_8ccd);
        let bits = mixed >> 40;
        // The smaller the number, the more frequent the word.
        let word = bits % (1 << (1 + (mixed >> 20) % 14));
        write!(body, "w{word} ").unwrap();
    }
    write!(body, "only{id}").unwrap();
    let mut document = TantivyDocument::new();
    document.add_u64(schema.get_field("id").unwrap(), id);
    document.add_text(schema.get_field("body").unwrap(), body);
    document.add_bytes(schema.get_field("raw").unwrap(), &pattern(id, RAW));
    document
}

/// The bits of a score, the number of a document, and its text.
pub type Found = (u32, u64, String);

/// All that a search says: how many there are, the best of them with their scores, and their text. Which of equals are among the best
/// depends on the order of segments.
pub fn answers(index: &Index, queries: &[&str], best: usize) -> Vec<(usize, Vec<Found>)> {
    let (schema, reader) = (index.schema(), index.reader().unwrap());
    let field = |name| schema.get_field(name).unwrap();
    let (id, body, raw) = (field("id"), field("body"), field("raw"));
    let searcher = reader.searcher();
    let parser = QueryParser::for_index(index, vec![body]);
    let answer = |query: &&str| {
        let query = parser.parse_query(query).unwrap();
        let best = TopDocs::with_limit(best).order_by_score();
        let (count, best) = searcher.search(&query, &(Count, best)).unwrap();
        let mut best: Vec<_> = best
            .into_iter()
            .map(|(score, address)| {
                let document: TantivyDocument = searcher.doc(address).unwrap();
                let number = document.get_first(id).unwrap().as_u64().unwrap();
                let text = document.get_first(body).unwrap().as_str().unwrap();
                let bytes = document.get_first(raw).unwrap().as_bytes().unwrap();
                assert!(bytes == pattern(number, RAW), "document {number}");
                (score.to_bits(), number, text.to_owned())
            })
            .collect();
        best.sort();
        (count, best)
    };
    queries.iter().map(answer).collect()
}

/// The numbers of all documents, in order, from the fast field.
pub fn ids(index: &Index) -> Vec<u64> {
    let searcher = index.reader().unwrap().searcher();
    let mut ids = Vec::new();
    for segment in searcher.segment_readers() {
        let column = segment.fast_fields().u64("id").unwrap();
        let alive = segment.doc_ids_alive();
        ids.extend(alive.map(|document| column.first(document).unwrap()));
    }
    ids.sort_unstable();
    ids
}
