//! Figures in the documents are those of the benchmarks' tables.
//!
//! # Model
//!
//! `docs/performance.md` has the tables that `bench` wrote. A row of a ratio begins with its name:
//! ``| `pin_vs_reference` | what | 6.41 | 6.35 to 6.44 | …``. A figure elsewhere names its row:
//! ``6.4 times (`pin_vs_reference`)`` in a sentence, or, in a table, in the next cell, which holds the name alone.
//! It must lie in the row's range, as far as it is rounded. Each figure of README.md names a row, or a section of
//! `docs/performance.md`.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::path::Path;

use super::{Tree, Violation};

/// Where the tables are.
const TABLES: &str = "docs/performance.md";

/// The heading of the figures that must name a row.
const FIGURES: &str = "## Figures";

/// The ranges of each row: two benchmarks may have a row of one name.
type Rows<'a> = BTreeMap<&'a str, Vec<RangeInclusive<f64>>>;

/// All checks of figures in `tree`.
pub(super) fn check(tree: &Tree) -> Vec<Violation> {
    let Some(tables) = tree.read(Path::new(TABLES)) else {
        return Vec::new();
    };
    let rows = rows(&tables);
    let mut found = Vec::new();
    let documents = |path: &&Path| path.extension().is_some_and(|e| e == "md");
    for path in tree
        .files
        .iter()
        .map(|path| path.as_path())
        .filter(documents)
    {
        let text = tree.read(path).unwrap_or_default();
        found.extend(compare(path, &text, &rows));
        if path == Path::new("README.md") {
            found.extend(without_row(path, &text, &rows));
        }
    }
    found
}

/// The rows of ratios in the tables.
fn rows(tables: &str) -> Rows<'_> {
    let mut rows = Rows::new();
    for line in tables.lines() {
        let cells: Vec<_> = line.split('|').map(str::trim).collect();
        let ["", name, _what, _median, range, _, ..] = cells[..] else {
            continue;
        };
        let name = name
            .strip_prefix('`')
            .and_then(|name| name.strip_suffix('`'));
        let ends = range.split_once(" to ");
        let ends = ends.and_then(|(least, most)| Some((number(least)?, number(most)?)));
        if let (Some(name), Some((least, most))) = (name, ends) {
            rows.entry(name).or_default().push(least..=most);
        }
    }
    rows
}

fn number(text: &str) -> Option<f64> {
    text.replace(',', "").parse().ok()
}

/// Figures that are not within the range of the row that they name.
fn compare(path: &Path, text: &str, rows: &Rows<'_>) -> Vec<Violation> {
    let mut found = Vec::new();
    let report = |at: usize, message| {
        let line = 1 + text[..at].matches('\n').count();
        Violation::new(path, line, "figures", message)
    };
    for (at, name) in references(text, rows) {
        // A row that is named before its figure, or without one.
        let Some(figure) = figure_before(&text[..at]) else {
            continue;
        };
        let decimals = figure
            .split_once('.')
            .map_or(0, |(_, decimals)| decimals.len());
        let rounding = 0.5001 * 0.1_f64.powi(i32::try_from(decimals).unwrap_or(i32::MAX));
        let value = number(figure).unwrap_or(f64::NAN);
        let fits = |range: &RangeInclusive<f64>| {
            (range.start() - rounding..=range.end() + rounding).contains(&value)
        };
        if !rows[name].iter().any(fits) {
            let ranges = &rows[name];
            found.push(report(
                at,
                format!("{figure} is not in the range of `{name}`, {ranges:?}"),
            ));
        }
    }
    found
}

/// The rows that a text names as those of figures, and where.
fn references<'a>(text: &'a str, rows: &Rows<'_>) -> Vec<(usize, &'a str)> {
    let mut found = Vec::new();
    for (at, _) in text.match_indices('`') {
        let (before, after) = (&text[..at], &text[at + 1..]);
        let Some((name, after)) = after.split_once('`') else {
            break;
        };
        let in_sentence = before.ends_with('(');
        let first_in_line = before.rfind('\n').map_or(0, |end| end + 1) + "| ".len() == at;
        let is_cell = before.ends_with("| ") && after.starts_with(" |") && !first_in_line;
        if rows.contains_key(name) && (in_sentence || is_cell) {
            found.push((at, name));
        }
    }
    found
}

/// The last number of a text, in the sentence or in the cell of a table that it ends with.
fn figure_before(text: &str) -> Option<&str> {
    let text = text.strip_suffix('(').or_else(|| text.strip_suffix("| "))?;
    let begins = ["\n\n", ". ", ".\n", "| "].map(|end| text.rfind(end).map_or(0, |at| at + 2));
    let scope = &text[begins.into_iter().max()?..];
    let is_part = |c: char| c.is_ascii_alphanumeric() || "._,`".contains(c);
    let mut words = scope.rsplit(|c| !is_part(c));
    words.find_map(|word| {
        let word = word.trim_matches([',', '.']);
        number(word).map(|_| word)
    })
}

/// Rows of the table of README's figures that name neither a row nor a section.
fn without_row(path: &Path, text: &str, rows: &Rows<'_>) -> Vec<Violation> {
    let lines = text.lines().enumerate();
    let section = lines.skip_while(|(_, line)| *line != FIGURES).skip(1);
    let section = section.take_while(|(_, line)| !line.starts_with("## "));
    // The first two are the heading.
    let table = section.filter(|(_, line)| line.starts_with('|')).skip(2);
    let without = table.filter(|(_, line)| {
        references(line, rows).is_empty() && !line.contains("](docs/performance.md#")
    });
    let report = |(at, _)| {
        let message = format!("a figure names a row of {TABLES}, or links to its section");
        Violation::new(path, at + 1, "figures", message)
    };
    without.map(report).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROWS: &str = "| | what | ratio | range | itself | aim |\n|---|---|---|---|---|---|\n\
        | `reads_vs_kernel` | reads | 12.1 | 12.1 to 12.8 | | |\n\
        | `made_vs_kernel` | made | 0.66 | 0.24 to 1.31 | 0.9 to 1.1 | ≥ 0.8, MISSED |\n\
        | `writes` | counted | 1,003 | 1,003 to 1,003 | | |\n\n\
        | work | by | figure | p50 | CPU | hits |\n| `reads` | us | 1 | 2 | 3 | |\n";

    fn lines(text: &str) -> Vec<usize> {
        let found = compare(Path::new("docs/a.md"), text, &rows(ROWS));
        found.into_iter().map(|violation| violation.line).collect()
    }

    #[test]
    fn rows_are_those_of_ratios() {
        let rows = rows(ROWS);
        let names: Vec<_> = rows.keys().copied().collect();
        assert_eq!(names, ["made_vs_kernel", "reads_vs_kernel", "writes"]);
        assert_eq!(rows["writes"], [1003.0..=1003.0]);
    }

    #[test]
    fn figures_are_within_the_range_of_their_row() {
        assert_eq!(
            lines("Reads are 12 (`reads_vs_kernel`) times as fast.\n"),
            [0; 0]
        );
        assert_eq!(
            lines("Of 4 KiB. 14 times\nas fast (`reads_vs_kernel`)"),
            [2]
        );
        assert_eq!(
            lines("12.80 (`reads_vs_kernel`), 0.2 (`made_vs_kernel`)"),
            [0; 0]
        );
        assert_eq!(
            lines("12.1 (`reads_vs_kernel`), 1.4 (`made_vs_kernel`)"),
            [1]
        );
        assert_eq!(lines("1,003 calls (`writes`)"), [0; 0]);
    }

    #[test]
    fn names_without_a_figure_say_nothing() {
        assert_eq!(
            lines("`reads_vs_kernel` was 40 elsewhere, see `made_vs_kernel`.\n"),
            [0; 0]
        );
        assert_eq!(
            lines("40 (`other_row`), 40. Fast (`reads_vs_kernel`)"),
            [0; 0]
        );
        assert_eq!(lines(ROWS), [0; 0]);
    }

    #[test]
    fn a_table_has_the_row_in_the_next_cell() {
        assert_eq!(lines("| read 4 KiB | 12.4 | `reads_vs_kernel` |\n"), [0; 0]);
        assert_eq!(
            lines("| a | 1 | 2 |\n| read 4 KiB | 14 | `reads_vs_kernel` |\n"),
            [2]
        );
        assert_eq!(
            lines("| made | 0.66, **slower** | `made_vs_kernel` |\n"),
            [0; 0]
        );
    }

    #[test]
    fn each_figure_of_the_readme_names_its_row() {
        let lines = |text| {
            let found = without_row(Path::new("README.md"), text, &rows(ROWS));
            found
                .into_iter()
                .map(|violation| violation.line)
                .collect::<Vec<_>>()
        };
        let table = "# a\n## Figures\n\n| | ratio | row |\n|---|---|---|\n\
            | read | 12.1 | `reads_vs_kernel` |\n| read | 12.1 | |\n\
            | mount | 0.05 | [fio](docs/performance.md#through-a-mount) |\n\n## More\n| a | 1 | |\n";
        assert_eq!(lines(table), [7]);
    }
}
