//! Sizes of memory, as a type of their own.

use serde::{Deserialize, Serialize};
use std::fmt;

/// A number of bytes.
///
/// Arithmetic saturates: a size that was reported wrongly must end as a wrong
/// number that is plainly wrong, never as a wrapped one that looks right.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct Bytes(pub u64);

impl Bytes {
    /// No bytes.
    pub const ZERO: Self = Self(0);
    /// Every byte a `u64` can count.
    pub const MAX: Self = Self(u64::MAX);
    /// The page size of every x86-64 kernel, which is what TTM counts in.
    pub const PAGE: Self = Self(4096);

    /// `n` KiB.
    #[must_use]
    pub const fn kib(n: u64) -> Self {
        Self(n.saturating_mul(1 << 10))
    }

    /// `n` MiB.
    #[must_use]
    pub const fn mib(n: u64) -> Self {
        Self(n.saturating_mul(1 << 20))
    }

    /// `n` GiB.
    #[must_use]
    pub const fn gib(n: u64) -> Self {
        Self(n.saturating_mul(1 << 30))
    }

    /// `n` pages of 4 KiB, the unit of `ttm.pages_limit`.
    #[must_use]
    pub const fn pages(n: u64) -> Self {
        Self(n.saturating_mul(Self::PAGE.0))
    }

    /// The sum, or the largest number there is.
    #[must_use]
    pub const fn saturating_add(self, other: Self) -> Self {
        Self(self.0.saturating_add(other.0))
    }

    /// The difference, or zero.
    #[must_use]
    pub const fn saturating_sub(self, other: Self) -> Self {
        Self(self.0.saturating_sub(other.0))
    }

    /// In GiB, for judgements such as "about half".
    #[must_use]
    #[expect(
        clippy::cast_precision_loss,
        reason = "for people and ratios; 2^53 bytes are 8 PiB"
    )]
    pub fn as_gib(self) -> f64 {
        self.0 as f64 / (1u64 << 30) as f64
    }

    /// This as a share of `whole`; zero when the whole is.
    #[must_use]
    pub fn share_of(self, whole: Self) -> f64 {
        if whole == Self::ZERO {
            0.0
        } else {
            self.as_gib() / whole.as_gib()
        }
    }

    /// Reads a size as drivers, tools and PyTorch write them: `62.47 GiB`,
    /// `16151744 kB`, `8,589,934,592`, `0 bytes`, `98304MB`.
    ///
    /// `KB`, `MB` and `GB` count in powers of 1024, because that is what every AMD
    /// tool that writes them means. A bare number is bytes. Returns `None` for
    /// anything else, and for a size beyond `u64` (a wrapped negative number, which
    /// PyTorch prints as `17179869184.00 GiB`).
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let text = text.trim();
        let end = text
            .find(|c: char| !(c.is_ascii_digit() || c == '.' || c == ','))
            .unwrap_or(text.len());
        let (number, unit) = text.split_at(end);
        let number: String = number.chars().filter(|&c| c != ',').collect();
        let scale: u64 = match unit.trim().to_ascii_lowercase().as_str() {
            "" | "b" | "byte" | "bytes" => 1,
            "k" | "ki" | "kb" | "kib" => 1 << 10,
            "m" | "mi" | "mb" | "mib" => 1 << 20,
            "g" | "gi" | "gb" | "gib" => 1 << 30,
            "t" | "ti" | "tb" | "tib" => 1 << 40,
            _ => return None,
        };
        if let Ok(whole) = number.parse::<u64>() {
            return whole.checked_mul(scale).map(Self);
        }
        let value = number.parse::<f64>().ok()?;
        #[expect(clippy::cast_precision_loss, reason = "a power of two")]
        let bytes = value * scale as f64;
        // The largest f64 below 2^64; from there on the number was never a size.
        if !(0.0..18_446_744_073_709_550_000.0).contains(&bytes) {
            return None;
        }
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "the range is checked above"
        )]
        Some(Self(bytes as u64))
    }
}

/// Two decimals at most, in the largest unit that fits: `62.47 GiB`, `512 MiB`.
impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const UNITS: [(&str, u32); 4] = [("TiB", 40), ("GiB", 30), ("MiB", 20), ("KiB", 10)];
        for (unit, bits) in UNITS {
            let scale = 1u64 << bits;
            // A machine of 1 TiB and less is read in GiB.
            if self.0 >= scale && (bits < 40 || self.0 >= scale * 2) {
                #[expect(clippy::cast_precision_loss, reason = "for people")]
                let value = self.0 as f64 / scale as f64;
                let text = format!("{value:.2}");
                let text = text.trim_end_matches('0').trim_end_matches('.');
                return write!(f, "{text} {unit}");
            }
        }
        write!(f, "{} bytes", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn reads_sizes_as_tools_write_them() {
        let cases = [
            ("62.47 GiB", Some(67_076_651_745)),
            ("780.24 MiB", Some(818_140_938)),
            ("0 bytes", Some(0)),
            ("8,589,934,592", Some(8_589_934_592)),
            ("98304M", Some(98304 << 20)),
            ("15773188 kB", Some(15_773_188 << 10)),
            ("17179869184.00 GiB", None),
            ("", None),
            ("N/A", None),
            ("1.2.3 GiB", None),
            ("-1", None),
        ];
        for (text, bytes) in cases {
            assert_eq!(Bytes::parse(text), bytes.map(Bytes), "{text}");
        }
    }

    #[test]
    fn writes_sizes_for_people() {
        assert_eq!(Bytes(67_076_651_745).to_string(), "62.47 GiB");
        assert_eq!(Bytes::mib(512).to_string(), "512 MiB");
        assert_eq!(Bytes::gib(110).to_string(), "110 GiB");
        assert_eq!(Bytes(17).to_string(), "17 bytes");
    }

    proptest! {
        #[test]
        fn never_panics(text in "\\PC*") {
            let _ = Bytes::parse(&text);
        }

        #[test]
        fn bare_numbers_are_bytes(n: u64) {
            prop_assert_eq!(Bytes::parse(&n.to_string()), Some(Bytes(n)));
        }
    }
}
