//! A number of bytes that cannot be mixed up with a number of elements.

use std::fmt;
use std::iter::Sum;
use std::ops::{Add, AddAssign, Sub};
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// A size in bytes. Prints with binary units (`1.50 GiB`), reads `10GiB`, `512 MB` or a bare number.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct Bytes(pub u64);

/// A text that is no size in bytes.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{0}` is not a size: write a number of bytes or a unit, such as `10GiB`, `512MB` or `1.5 GiB`"
)]
pub struct NotASize(String);

impl Bytes {
    /// Nothing.
    pub const ZERO: Bytes = Bytes(0);

    /// Binary gigabytes.
    pub const fn gib(count: u64) -> Bytes {
        Bytes(count << 30)
    }

    /// Binary megabytes.
    pub const fn mib(count: u64) -> Bytes {
        Bytes(count << 20)
    }

    /// What is left of `self` after `other` is taken away, never below zero.
    pub fn saturating_sub(self, other: Bytes) -> Bytes {
        Bytes(self.0.saturating_sub(other.0))
    }

    /// The sum, or the largest size when it does not fit.
    pub fn saturating_add(self, other: Bytes) -> Bytes {
        Bytes(self.0.saturating_add(other.0))
    }

    /// This share of the size, rounded down; `share` is clamped to 0..=1.
    pub fn share(self, share: f64) -> Bytes {
        // f64 keeps 53 bits: a size of 4 PiB is still exact to the byte.
        Bytes((self.0 as f64 * share.clamp(0.0, 1.0)) as u64)
    }
}

impl Add for Bytes {
    type Output = Bytes;

    fn add(self, other: Bytes) -> Bytes {
        self.saturating_add(other)
    }
}

impl AddAssign for Bytes {
    fn add_assign(&mut self, other: Bytes) {
        *self = *self + other;
    }
}

impl Sub for Bytes {
    type Output = Bytes;

    fn sub(self, other: Bytes) -> Bytes {
        self.saturating_sub(other)
    }
}

impl Sum for Bytes {
    fn sum<I: Iterator<Item = Bytes>>(sizes: I) -> Bytes {
        sizes.fold(Bytes::ZERO, Add::add)
    }
}

impl fmt::Display for Bytes {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        const UNITS: [&str; 4] = ["KiB", "MiB", "GiB", "TiB"];
        if self.0 < 1024 {
            return formatter.pad(&format!("{} B", self.0));
        }
        let mut value = self.0 as f64 / 1024.0;
        let mut unit = 0;
        while value >= 1024.0 && unit + 1 < UNITS.len() {
            value /= 1024.0;
            unit += 1;
        }
        formatter.pad(&format!("{value:.2} {}", UNITS[unit]))
    }
}

impl FromStr for Bytes {
    type Err = NotASize;

    fn from_str(text: &str) -> Result<Bytes, NotASize> {
        let refused = || NotASize(text.to_owned());
        let trimmed = text.trim();
        let unit_at = trimmed
            .find(|symbol: char| symbol.is_ascii_alphabetic())
            .unwrap_or(trimmed.len());
        let (number, unit) = trimmed.split_at(unit_at);
        let factor = match unit.to_ascii_lowercase().as_str() {
            "" | "b" => 1.0,
            "kb" => 1e3,
            "mb" => 1e6,
            "gb" => 1e9,
            "tb" => 1e12,
            "k" | "kib" => 1024.0,
            "m" | "mib" => 1024.0 * 1024.0,
            "g" | "gib" => 1024.0 * 1024.0 * 1024.0,
            "t" | "tib" => 1024.0 * 1024.0 * 1024.0 * 1024.0,
            _ => return Err(refused()),
        };
        let value: f64 = number.trim().parse().map_err(|_| refused())?;
        if !value.is_finite() || value < 0.0 {
            return Err(refused());
        }
        Ok(Bytes((value * factor) as u64))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_what_people_write() {
        for (text, bytes) in [
            ("0", 0),
            ("1024", 1024),
            ("10GiB", 10 << 30),
            ("1.5 GiB", 3 << 29),
            ("512MB", 512_000_000),
            (" 2g ", 2 << 30),
        ] {
            assert_eq!(text.parse(), Ok(Bytes(bytes)), "{text}");
        }
    }

    #[test]
    fn refuses_what_is_no_size() {
        for text in ["", "GiB", "-1", "ten", "10 GiBs", "inf", "nan"] {
            assert!(text.parse::<Bytes>().is_err(), "{text}");
        }
    }

    #[test]
    fn prints_with_the_unit_that_fits() {
        assert_eq!(Bytes(1023).to_string(), "1023 B");
        assert_eq!(Bytes(1536).to_string(), "1.50 KiB");
        assert_eq!(Bytes::gib(3).to_string(), "3.00 GiB");
        assert_eq!(format!("{:>10}", Bytes(12)), "      12 B");
    }
}
