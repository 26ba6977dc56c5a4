//! Figures as a person reads them: sizes in units, numbers in groups of three, aligned lines.

use foliocache_sync::time::Duration;
use std::fmt;

use crate::types::PAGE_SHIFT;

/// Bytes in the largest unit that leaves a number of at least one, with one decimal place where it says something:
/// `1.5 KiB`, `512 MiB`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bytes(pub u64);

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let units = ["B", "KiB", "MiB", "GiB", "TiB"];
        let step = (self.0.max(1).ilog2() / 10).min(4);
        let value = self.0 as f64 / (1u64 << (10 * step)) as f64;
        let unit = units[step as usize];
        if step == 0 || value >= 100.0 || value.fract() == 0.0 {
            write!(f, "{value:.0} {unit}")
        } else {
            write!(f, "{value:.1} {unit}")
        }
    }
}

/// Pages of 4 KiB, shown as bytes.
pub(crate) const fn pages(pages: u64) -> Bytes {
    Bytes(pages << PAGE_SHIFT)
}

/// A number in groups of three digits: `1,234,567`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Count(pub u64);

impl fmt::Display for Count {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let digits = self.0.to_string();
        let first = (digits.len() - 1) % 3 + 1;
        f.write_str(&digits[..first])?;
        for group in digits.as_bytes()[first..].chunks(3) {
            // Digits are ASCII.
            write!(f, ",{}", String::from_utf8_lossy(group))?;
        }
        Ok(())
    }
}

/// A time with two or three digits that say something: `1.5 ms`, `12 s`, `3 h 20 min`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Time(pub Duration);

impl fmt::Display for Time {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let seconds = self.0.as_secs();
        match seconds {
            0 if self.0.is_zero() => f.write_str("0 s"),
            0 => {
                let nanoseconds = self.0.subsec_nanos();
                let (value, unit) = match nanoseconds {
                    0..1_000 => (f64::from(nanoseconds), "ns"),
                    1_000..1_000_000 => (f64::from(nanoseconds) / 1e3, "µs"),
                    _ => (f64::from(nanoseconds) / 1e6, "ms"),
                };
                match value >= 9.95 || value.fract() == 0.0 {
                    true => write!(f, "{value:.0} {unit}"),
                    false => write!(f, "{value:.1} {unit}"),
                }
            }
            1..10 => write!(f, "{:.1} s", self.0.as_secs_f64()),
            10..120 => write!(f, "{seconds} s"),
            120..7_200 => write!(f, "{} min {} s", seconds / 60, seconds % 60),
            7_200..172_800 => write!(f, "{} h {} min", seconds / 3_600, seconds / 60 % 60),
            _ => write!(f, "{} d {} h", seconds / 86_400, seconds / 3_600 % 24),
        }
    }
}

/// Writes one line for each name and value, the values below one another. There is no line end after the last.
///
/// # Errors
/// Those of the formatter.
pub fn lines(f: &mut fmt::Formatter<'_>, lines: &[(&str, String)]) -> fmt::Result {
    let width = lines.iter().map(|(name, _)| name.chars().count()).max();
    for (at, (name, value)) in lines.iter().enumerate() {
        if at > 0 {
            f.write_str("\n")?;
        }
        write!(f, "{name:width$}  {value}", width = width.unwrap_or(0))?;
    }
    Ok(())
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    #[test]
    fn figures_are_shown_in_units_and_groups() {
        for (bytes, text) in [
            (0, "0 B"),
            (1023, "1023 B"),
            (512 << 20, "512 MiB"),
            (1536, "1.5 KiB"),
            (150 << 30 | 1 << 29, "150 GiB"),
            (3 << 40, "3 TiB"),
        ] {
            assert_eq!(Bytes(bytes).to_string(), text);
        }
        for (count, text) in [
            (0, "0"),
            (999, "999"),
            (1000, "1,000"),
            (12_345_678, "12,345,678"),
        ] {
            assert_eq!(Count(count).to_string(), text);
        }
        for (time, text) in [
            (Duration::ZERO, "0 s"),
            (Duration::from_nanos(999), "999 ns"),
            (Duration::from_micros(1500), "1.5 ms"),
            (Duration::from_millis(20), "20 ms"),
            (Duration::from_millis(2300), "2.3 s"),
            (Duration::from_secs(12), "12 s"),
            (Duration::from_secs(200), "3 min 20 s"),
            (Duration::from_secs(12_000), "3 h 20 min"),
            (Duration::from_secs(200_000), "2 d 7 h"),
        ] {
            assert_eq!(Time(time).to_string(), text);
        }
    }
}
