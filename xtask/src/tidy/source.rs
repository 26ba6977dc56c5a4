//! Rust source as the tidy checks see it: comments and literals blanked, test code marked.
//!
//! # Model
//!
//! Three views of one file, all of the same length, so that an offset into one is an offset into
//! the others:
//!
//! ```text
//! text   the file as it is
//! code   `text` with comments and the insides of literals replaced by spaces
//! live   `code` with every item under `#[cfg(test)]` replaced by spaces
//! ```
//!
//! # Invariants
//!
//! Newlines are never replaced, so line numbers agree as well.

use std::ops::Range;
use std::path::{Path, PathBuf};

/// Which of a package's folders a file lives in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Area {
    /// `src/`
    Src,
    /// `tests/`, `benches/` or `examples/`
    Outer,
}

/// One Rust file and its three views.
#[derive(Debug)]
pub(crate) struct Source {
    /// Relative to the workspace's root.
    pub(crate) path: PathBuf,
    /// The folder of the package: `sys`, `mm`, …, `xtask`.
    pub(crate) room: String,
    pub(crate) area: Area,
    /// Reached through `#[cfg(test)]` only; `true` for all of [`Area::Outer`].
    pub(crate) test: bool,
    /// The root of a crate: `lib.rs`, `main.rs`, or the path in a target.
    pub(crate) root: bool,
    pub(crate) text: String,
    pub(crate) code: String,
    pub(crate) live: String,
    /// The ranges that `live` blanks.
    pub(crate) test_regions: Vec<Range<usize>>,
}

impl Source {
    /// Views of `text`. `test` and `root` are found out later, by the module walk.
    pub(crate) fn new(path: &Path, room: &str, area: Area, text: String) -> Source {
        let code = mask(&text);
        let test_regions = test_regions(&code);
        let live = blank(&code, &test_regions);
        Source {
            path: path.to_owned(),
            room: room.to_owned(),
            area,
            test: area == Area::Outer,
            root: false,
            text,
            code,
            live,
            test_regions,
        }
    }

    /// The `//!` lines before the first item, without their `//!`.
    pub(crate) fn header(&self) -> Vec<&str> {
        let mut lines = Vec::new();
        let mut code = self.code.lines();
        for line in self.text.lines() {
            let blanked = code.next().unwrap_or("").trim();
            if let Some(doc) = line.trim_start().strip_prefix("//!") {
                lines.push(doc.trim());
            } else if !blanked.is_empty() && !blanked.starts_with("#![") {
                break;
            }
        }
        lines
    }

    /// Whether the header has a section of this name.
    pub(crate) fn has_section(&self, name: &str) -> bool {
        self.header().iter().any(|line| {
            line.starts_with('#')
                && line
                    .trim_start_matches('#')
                    .trim()
                    .eq_ignore_ascii_case(name)
        })
    }

    /// The line, from 1, of an offset.
    pub(crate) fn line(&self, offset: usize) -> usize {
        line_of(&self.text, offset)
    }

    /// Lines outside test regions.
    pub(crate) fn live_lines(&self) -> usize {
        let all = self.text.lines().count();
        let tests: usize = self
            .test_regions
            .iter()
            .map(|r| self.text[r.clone()].lines().count())
            .sum();
        all - tests.min(all)
    }
}

/// The line, from 1, of an offset into `text`.
pub(crate) fn line_of(text: &str, offset: usize) -> usize {
    text.as_bytes()[..offset.min(text.len())]
        .iter()
        .filter(|&&b| b == b'\n')
        .count()
        + 1
}

/// Whether the byte can be part of an identifier.
pub(crate) fn is_word(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'_' || byte >= 0x80
}

/// Offsets of `word` as a whole word: its neighbours belong to no identifier.
pub(crate) fn find_word(code: &str, word: &str) -> Vec<usize> {
    let bytes = code.as_bytes();
    code.match_indices(word)
        .map(|(at, _)| at)
        .filter(|&at| {
            let starts = at == 0 || !is_word(bytes[at - 1]) || !is_word(word.as_bytes()[0]);
            let end = at + word.len();
            let ends = end == bytes.len()
                || !is_word(bytes[end])
                || !is_word(word.as_bytes()[word.len() - 1]);
            starts && ends
        })
        .collect()
}

/// The offset just past the bracket that closes the one at `open`, or the end of the text.
pub(crate) fn past_closing(code: &str, open: usize) -> usize {
    let mut depth = 0usize;
    for (i, b) in code.bytes().enumerate().skip(open) {
        match b {
            b'(' | b'[' | b'{' => depth += 1,
            b')' | b']' | b'}' => {
                depth = depth.saturating_sub(1);
                if depth == 0 {
                    return i + 1;
                }
            }
            _ => {}
        }
    }
    code.len()
}

/// `code` with the ranges replaced by spaces.
pub(crate) fn blank(code: &str, ranges: &[Range<usize>]) -> String {
    let mut bytes = code.as_bytes().to_vec();
    for range in ranges {
        for b in &mut bytes[range.clone()] {
            if *b != b'\n' {
                *b = b' ';
            }
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

/// Comments and the insides of string, byte and character literals become spaces; quotes stay.
pub(crate) fn mask(text: &str) -> String {
    let bytes = text.as_bytes();
    let mut hidden = Vec::new();
    let mut i = 0;
    while i < bytes.len() {
        let rest = &bytes[i..];
        let start = i;
        if rest.starts_with(b"//") {
            i += rest.iter().position(|&b| b == b'\n').unwrap_or(rest.len());
            hidden.push(start..i);
        } else if rest.starts_with(b"/*") {
            i = past_block_comment(bytes, i);
            hidden.push(start..i);
        } else if let Some((open, hashes)) = raw_string(bytes, i) {
            let mut close = vec![b'"'];
            close.resize(hashes + 1, b'#');
            let body = i + open;
            let len = bytes[body..].windows(close.len()).position(|w| w == close);
            let end = len.map_or(bytes.len(), |len| body + len);
            hidden.push(body..end);
            i = (end + close.len()).min(bytes.len());
        } else if rest[0] == b'"' {
            i += 1;
            while i < bytes.len() && bytes[i] != b'"' {
                i += if bytes[i] == b'\\' { 2 } else { 1 };
            }
            i = i.min(bytes.len());
            hidden.push(start + 1..i);
            i += 1;
        } else if rest[0] == b'\'' {
            i = past_char_or_lifetime(bytes, i);
            if i - start > 2 && bytes[i - 1] == b'\'' {
                hidden.push(start + 1..i - 1);
            }
        } else {
            i += 1;
            // A whole identifier at once, so that the `r` of `for"` opens no raw string.
            if is_word(rest[0]) {
                while i < bytes.len() && is_word(bytes[i]) {
                    i += 1;
                }
            }
        }
    }
    blank(text, &hidden)
}

fn past_block_comment(bytes: &[u8], mut i: usize) -> usize {
    let mut depth = 0usize;
    while i < bytes.len() {
        if bytes[i..].starts_with(b"/*") {
            depth += 1;
            i += 2;
        } else if bytes[i..].starts_with(b"*/") {
            depth -= 1;
            i += 2;
            if depth == 0 {
                break;
            }
        } else {
            i += 1;
        }
    }
    i.min(bytes.len())
}

/// If a raw string opens at `i`: the length of its opening and the number of its hashes.
fn raw_string(bytes: &[u8], i: usize) -> Option<(usize, usize)> {
    let rest = &bytes[i..];
    let prefix = [&b"r"[..], b"br", b"cr"]
        .into_iter()
        .find(|p| rest.starts_with(p))?;
    let after = &rest[prefix.len()..];
    let hashes = after.iter().take_while(|&&b| b == b'#').count();
    (after.get(hashes) == Some(&b'"')).then_some((prefix.len() + hashes + 1, hashes))
}

/// Past a character literal, or past the quote of a lifetime.
fn past_char_or_lifetime(bytes: &[u8], i: usize) -> usize {
    if bytes.get(i + 1) == Some(&b'\\') {
        let mut j = i + 3;
        while j < bytes.len() && bytes[j] != b'\'' && bytes[j] != b'\n' {
            j += 1;
        }
        return (j + 1).min(bytes.len());
    }
    // One character of one to four bytes, then a quote: a literal. Anything else: a lifetime.
    let mut j = i + 2;
    while j < bytes.len() && bytes[j] & 0xC0 == 0x80 {
        j += 1;
    }
    if bytes.get(j) == Some(&b'\'') && bytes[i + 1] != b'\'' {
        j + 1
    } else {
        i + 1
    }
}

/// The items under `#[cfg(test)]` or `#[cfg(all(test, …))]`, attribute included.
fn test_regions(code: &str) -> Vec<Range<usize>> {
    let mut regions: Vec<Range<usize>> = Vec::new();
    for (at, _) in code.match_indices("#[cfg(") {
        if regions.last().is_some_and(|r| r.end > at) {
            continue;
        }
        let open = at + "#[cfg".len();
        let end = past_closing(code, open);
        if is_test_only(&code[open + 1..end - 1]) {
            regions.push(at..past_item(code, past_closing(code, at + 1)));
        }
    }
    regions
}

/// Whether a cfg predicate can hold in test builds only.
fn is_test_only(predicate: &str) -> bool {
    let predicate = predicate.trim();
    if predicate == "test" {
        return true;
    }
    let Some(all) = predicate
        .strip_prefix("all(")
        .and_then(|p| p.strip_suffix(')'))
    else {
        return false;
    };
    split_top(all).iter().any(|part| is_test_only(part))
}

/// Splits at commas that no bracket encloses.
pub(crate) fn split_top(list: &str) -> Vec<&str> {
    let (mut parts, mut depth, mut from) = (Vec::new(), 0i32, 0);
    for (i, b) in list.bytes().enumerate() {
        match b {
            b'(' | b'[' | b'{' => depth += 1,
            b')' | b']' | b'}' => depth -= 1,
            b',' if depth == 0 => {
                parts.push(&list[from..i]);
                from = i + 1;
            }
            _ => {}
        }
    }
    parts.push(&list[from..]);
    parts
}

/// The end of the item (or field, or statement) that starts after `from`.
fn past_item(code: &str, from: usize) -> usize {
    let bytes = code.as_bytes();
    let mut i = from;
    // Further attributes of the same item.
    loop {
        while i < bytes.len() && bytes[i].is_ascii_whitespace() {
            i += 1;
        }
        if !code[i..].starts_with("#[") {
            break;
        }
        i = past_closing(code, i + 1);
    }
    let item = is_item(&code[i..]);
    while i < bytes.len() {
        match bytes[i] {
            b';' => return i + 1,
            b',' if !item => return i + 1,
            // The field list or block that the item was in ends before a comma.
            b'}' | b')' | b']' => return i,
            b'{' => return past_closing(code, i),
            b'(' | b'[' => i = past_closing(code, i),
            _ => i += 1,
        }
    }
    bytes.len()
}

/// Whether an item or a statement begins here, not a field, variant or argument.
fn is_item(code: &str) -> bool {
    const WORDS: [&str; 17] = [
        "mod",
        "fn",
        "use",
        "impl",
        "struct",
        "enum",
        "const",
        "static",
        "trait",
        "type",
        "unsafe",
        "async",
        "extern",
        "let",
        "macro_rules",
        "thread_local",
        "union",
    ];
    let mut rest = code.trim_start();
    if let Some(after) = rest.strip_prefix("pub") {
        rest = after.trim_start();
        if rest.starts_with('(') {
            rest = rest[past_closing(rest, 0)..].trim_start();
        }
    }
    let word = rest.bytes().position(|b| !is_word(b)).unwrap_or(rest.len());
    WORDS.contains(&&rest[..word])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn source(text: &str) -> Source {
        Source::new(
            Path::new("crates/mm/src/a.rs"),
            "mm",
            Area::Src,
            text.to_owned(),
        )
    }

    #[test]
    fn mask_hides_comments_and_literals_only() {
        let text = concat!(
            "let a = \"std::sync\"; // std::thread\n",
            "/* a /* nested */ unsafe */ let b = 'x'; let c: &'static str = r#\"un\"safe\"#;\n",
            "let d = b\"unsafe\\\"unsafe\"; let e = '\\''; let f = 'ü'; unsafe {}\n",
        );
        let code = mask(text);
        assert_eq!(code.len(), text.len());
        assert!(!code.contains("std"));
        assert_eq!(find_word(&code, "unsafe").len(), 1);
        assert!(code.contains("&'static str"));
        assert_eq!(code.lines().count(), 3);
    }

    #[test]
    fn test_items_are_blanked() {
        let s = source(concat!(
            "//! A.\nfn live() {}\n#[cfg(test)]\n#[allow(dead_code)]\nmod tests {\n    use std::thread;\n}\n",
            "#[cfg(all(test, not(loom)))]\nuse std::sync;\n#[cfg(not(test))]\nfn also_live() {}\n",
            "struct S {\n    #[cfg(test)]\n    hook: std::sync::Mutex<u8>,\n    kept: u8,\n}\n",
        ));
        assert!(!s.live.contains("std"), "{}", s.live);
        assert!(s.live.contains("also_live") && s.live.contains("kept"));
        assert!(s.code.contains("std::thread"));
        assert_eq!(s.live_lines(), s.text.lines().count() - 5 - 2 - 2);
    }

    #[test]
    fn header_ends_at_the_first_item() {
        let s = source(
            "//! One.\n//!\n//! # Safety\n#![allow(unsafe_code)]\n\nfn a() {\n    //! # Locking\n}\n",
        );
        assert_eq!(s.header(), ["One.", "", "# Safety"]);
        assert!(s.has_section("safety") && !s.has_section("Locking"));
    }

    #[test]
    fn words_stand_alone() {
        assert_eq!(find_word("unsafe_code unsafe", "unsafe"), [12]);
    }
}
