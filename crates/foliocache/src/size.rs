//! Sizes of memory, as numbers and as text.

use crate::error::{Error, Result};

/// A size of memory in bytes: a number, or text such as `"512M"`.
///
/// Text is a whole number with one of the units `K`, `M`, `G` and `T` (powers of 1024, also written
/// `KiB` and so on), or without one for bytes. A number is a `u64`, a `u32` or a `usize`: a literal needs its type, as in
/// `64_u64 << 20`.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is no size of memory",
    note = "a size is a `u64`, `u32` or `usize`, as in `64_u64 << 20`, or text, as in `\"64M\"`"
)]
pub trait MemorySize {
    /// The size in bytes.
    ///
    /// # Errors
    /// Text that is no size.
    fn in_bytes(self) -> Result<u64>;
}

impl MemorySize for u64 {
    fn in_bytes(self) -> Result<u64> {
        Ok(self)
    }
}

impl MemorySize for u32 {
    fn in_bytes(self) -> Result<u64> {
        Ok(self.into())
    }
}

impl MemorySize for usize {
    fn in_bytes(self) -> Result<u64> {
        Ok(self as u64)
    }
}

impl MemorySize for &str {
    fn in_bytes(self) -> Result<u64> {
        parse(self).ok_or_else(|| {
            Error::Setting(format!(
                "{self:?} is no size: a whole number and one of K, M, G, T is, such as 512M"
            ))
        })
    }
}

impl MemorySize for String {
    fn in_bytes(self) -> Result<u64> {
        self.as_str().in_bytes()
    }
}

fn parse(text: &str) -> Option<u64> {
    let text = text.trim();
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let (number, unit) = text.split_at(digits);
    let shift = match unit.trim_start().to_ascii_lowercase().as_str() {
        "" | "b" => 0,
        "k" | "kib" => 10,
        "m" | "mib" => 20,
        "g" | "gib" => 30,
        "t" | "tib" => 40,
        _ => return None,
    };
    number.parse::<u64>().ok()?.checked_mul(1 << shift)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes() {
        assert_eq!((64_u64 << 20).in_bytes().unwrap(), 64 << 20);
        assert_eq!((64_usize << 20).in_bytes().unwrap(), 64 << 20);
        assert_eq!(u32::MAX.in_bytes().unwrap(), u32::MAX.into());
        for (text, bytes) in [
            ("4096", 4096),
            ("512M", 512 << 20),
            ("512MiB", 512 << 20),
            (" 1 g", 1 << 30),
            ("3k", 3072),
            ("2T", 2 << 40),
        ] {
            assert_eq!(text.in_bytes().unwrap(), bytes, "{text}");
        }
        for text in ["", "M", "1.5G", "-1", "5MB", "99999999999T", "10 M x"] {
            let error = MemorySize::in_bytes(text).unwrap_err();
            assert!(error.to_string().contains("is no size"), "{text}");
        }
    }
}
