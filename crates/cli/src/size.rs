//! Sizes of memory as text.

/// `bytes` in the largest unit that leaves a number of at least one, with one decimal place where
/// it says something.
pub(crate) fn show(bytes: u64) -> String {
    let units = ["B", "KiB", "MiB", "GiB", "TiB"];
    let step = (bytes.max(1).ilog2() / 10).min(4);
    let value = bytes as f64 / (1u64 << (10 * step)) as f64;
    let unit = units[step as usize];
    if step == 0 || value >= 100.0 || value.fract() == 0.0 {
        format!("{value:.0} {unit}")
    } else {
        format!("{value:.1} {unit}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_shown() {
        for (bytes, text) in [
            (0, "0 B"),
            (1023, "1023 B"),
            (512 << 20, "512 MiB"),
            (1536, "1.5 KiB"),
            (150 << 30 | 1 << 29, "150 GiB"),
            (3 << 40, "3 TiB"),
        ] {
            assert_eq!(show(bytes), text);
        }
    }
}
