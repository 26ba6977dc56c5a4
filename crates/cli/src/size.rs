//! Sizes of memory as text.

/// Bytes of `512M`, `1G`, `64MiB` or `1048576`; `None` for what is no size. Units are powers of
/// 1024.
pub(crate) fn parse(text: &str) -> Option<u64> {
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let (number, unit) = text.split_at(digits);
    let shift = match unit.to_ascii_lowercase().as_str() {
        "" | "b" => 0,
        "k" | "kib" => 10,
        "m" | "mib" => 20,
        "g" | "gib" => 30,
        "t" | "tib" => 40,
        _ => return None,
    };
    number.parse::<u64>().ok()?.checked_mul(1 << shift)
}

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
    fn sizes_are_understood() {
        for (text, bytes) in [
            ("512M", 512 << 20),
            ("1G", 1 << 30),
            ("64MiB", 64 << 20),
            ("64mib", 64 << 20),
            ("1048576", 1 << 20),
            ("7k", 7 << 10),
            ("2T", 2 << 40),
            ("0", 0),
        ] {
            assert_eq!(parse(text), Some(bytes), "{text}");
        }
    }

    #[test]
    fn what_is_no_size_is_refused() {
        for text in [
            "",
            "M",
            "-1M",
            "1.5G",
            "12 M",
            "12X",
            "12%",
            "99999999999G",
            "0x10",
        ] {
            assert_eq!(parse(text), None, "{text}");
        }
    }

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
