//! Sizes of memory as a separate type.

use serde::{Deserialize, Serialize};
use std::fmt;
use std::iter::Sum;
use std::ops::{Add, AddAssign, Sub};
use std::str::FromStr;

/// A number of bytes.
///
/// Arithmetic saturates: a wrong input must give an obviously wrong number, never a wrapped one that looks
/// plausible.
///
/// ```
/// use surefoot_platform::Bytes;
///
/// let limit: Bytes = "512MB".parse()?; // SI units are decimal,
/// assert_eq!(limit, Bytes(512_000_000));
/// let limit: Bytes = "1.5 GiB".parse()?; // IEC units and bare letters binary
/// assert_eq!(limit + Bytes::mib(512), Bytes::gib(2));
/// assert_eq!(Bytes(67_076_651_745).to_string(), "62.47 GiB");
/// # Ok::<(), surefoot_platform::bytes::ParseBytesError>(())
/// ```
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct Bytes(pub u64);

/// A string that is not a size in bytes.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{0}` is not a size: write a number of bytes or a unit, such as `10GiB`, `512MB` or `1.5 GiB`"
)]
pub struct ParseBytesError(String);

impl Bytes {
    /// Zero bytes.
    pub const ZERO: Self = Self(0);
    /// The maximum of a `u64`.
    pub const MAX: Self = Self(u64::MAX);
    /// The page size of every x86-64 kernel, the unit of TTM's limits.
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

    /// The sum, saturating at the maximum.
    #[must_use]
    pub const fn saturating_add(self, other: Self) -> Self {
        Self(self.0.saturating_add(other.0))
    }

    /// The difference, saturating at zero.
    #[must_use]
    pub const fn saturating_sub(self, other: Self) -> Self {
        Self(self.0.saturating_sub(other.0))
    }

    /// This fraction of the size, rounded down; `share` is clamped to 0..=1.
    #[must_use]
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_precision_loss,
        clippy::cast_sign_loss,
        reason = "2^53 bytes are 8 PiB, and the share is not negative"
    )]
    pub fn share(self, share: f64) -> Self {
        Self((self.0 as f64 * share.clamp(0.0, 1.0)) as u64)
    }

    /// In GiB, for comparisons such as "about half".
    #[must_use]
    #[expect(
        clippy::cast_precision_loss,
        reason = "for people and ratios; 2^53 bytes are 8 PiB"
    )]
    pub fn as_gib(self) -> f64 {
        self.0 as f64 / (1u64 << 30) as f64
    }

    /// This as a fraction of `whole`; zero if `whole` is zero.
    #[must_use]
    pub fn share_of(self, whole: Self) -> f64 {
        if whole == Self::ZERO {
            0.0
        } else {
            self.as_gib() / whole.as_gib()
        }
    }

    /// Parses a size as printed by the kernel, AMD's tools and PyTorch: `62.47 GiB`, `16151744 kB`,
    /// `8,589,934,592`, `0 bytes`, `98304MB`.
    ///
    /// Here `kB`, `MB` and `GB` are powers of 1024, because that is what these programs mean (`/proc/meminfo`
    /// prints KiB as `kB`, `amd-smi` MiB as `MB`). User input is parsed by [`FromStr`], where SI units are
    /// decimal. Returns `None` for anything else, and for a size beyond `u64` (a wrapped negative number,
    /// which PyTorch prints as `17179869184.00 GiB`).
    #[must_use]
    pub fn parse_tool_output(text: &str) -> Option<Self> {
        parse(&text.replace(',', ""), 1024)
    }
}

/// A number and a unit: a single letter (binary), with `iB` (binary), or with `B` (powers of `si`).
fn parse(text: &str, si: u64) -> Option<Bytes> {
    let text = text.trim();
    let end = text
        .find(|c: char| !(c.is_ascii_digit() || c == '.'))
        .unwrap_or(text.len());
    let (number, unit) = text.split_at(end);
    let (base, power) = match unit.trim().to_ascii_lowercase().as_str() {
        "" | "b" | "byte" | "bytes" => (1, 0),
        "k" | "ki" | "kib" => (1024, 1),
        "m" | "mi" | "mib" => (1024, 2),
        "g" | "gi" | "gib" => (1024, 3),
        "t" | "ti" | "tib" => (1024, 4),
        "kb" => (si, 1),
        "mb" => (si, 2),
        "gb" => (si, 3),
        "tb" => (si, 4),
        _ => return None,
    };
    let scale = u64::pow(base, power);
    if let Ok(whole) = number.parse::<u64>() {
        return whole.checked_mul(scale).map(Bytes);
    }
    let value = number.parse::<f64>().ok()?;
    #[expect(clippy::cast_precision_loss, reason = "at most 2^40")]
    let bytes = value * scale as f64;
    // The largest f64 below 2^64; a larger number cannot be a size.
    if !(0.0..18_446_744_073_709_550_000.0).contains(&bytes) {
        return None;
    }
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "the range is checked above"
    )]
    Some(Bytes(bytes as u64))
}

/// Parses user input: `10GiB`, `512 MB`, `2g`, or a bare number of bytes. SI units (`kB`, `MB`, `GB`, `TB`)
/// are decimal, IEC units (`KiB`, …) and bare letters binary.
impl FromStr for Bytes {
    type Err = ParseBytesError;

    fn from_str(text: &str) -> Result<Self, ParseBytesError> {
        parse(text, 1000).ok_or_else(|| ParseBytesError(text.to_owned()))
    }
}

/// Prints the largest binary unit that fits, with at most two decimals: `62.47 GiB`, `512 MiB`. A precision
/// gives exactly that many decimals: `{:.2}` prints `512.00 MiB`.
impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const UNITS: [(&str, u32); 4] = [("TiB", 40), ("GiB", 30), ("MiB", 20), ("KiB", 10)];
        // Up to 1 TiB, GiB are easier to read.
        let fits = |bits: u32| self.0 >> bits >= if bits == 40 { 2 } else { 1 };
        let text = match UNITS.iter().find(|(_, bits)| fits(*bits)) {
            None => format!("{} bytes", self.0),
            Some((unit, bits)) => {
                #[expect(clippy::cast_precision_loss, reason = "for people")]
                let value = self.0 as f64 / (1u64 << bits) as f64;
                let number = format!("{value:.*}", f.precision().unwrap_or(2));
                let number = match f.precision() {
                    None => number.trim_end_matches('0').trim_end_matches('.'),
                    Some(_) => &number,
                };
                format!("{number} {unit}")
            }
        };
        // Not `pad`, which would treat the precision as a length.
        let missing = f.width().unwrap_or(0).saturating_sub(text.len());
        match f.align() {
            Some(fmt::Alignment::Left) => write!(f, "{text}{:missing$}", ""),
            _ => write!(f, "{:missing$}{text}", ""),
        }
    }
}

impl Add for Bytes {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        self.saturating_add(other)
    }
}

impl AddAssign for Bytes {
    fn add_assign(&mut self, other: Self) {
        *self = *self + other;
    }
}

impl Sub for Bytes {
    type Output = Self;

    fn sub(self, other: Self) -> Self {
        self.saturating_sub(other)
    }
}

impl Sum for Bytes {
    fn sum<I: Iterator<Item = Self>>(sizes: I) -> Self {
        sizes.fold(Self::ZERO, Add::add)
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
            ("98304MB", Some(98304 << 20)),
            ("15773188 kB", Some(15_773_188 << 10)),
            ("17179869184.00 GiB", None),
            ("", None),
            ("N/A", None),
            ("1.2.3 GiB", None),
            ("-1", None),
        ];
        for (text, bytes) in cases {
            assert_eq!(Bytes::parse_tool_output(text), bytes.map(Bytes), "{text}");
        }
    }

    #[test]
    fn reads_what_people_write() {
        for (text, bytes) in [
            ("0", 0),
            ("1024", 1024),
            ("10GiB", 10 << 30),
            ("1.5 GiB", 3 << 29),
            ("512MB", 512_000_000),
            ("2 kB", 2000),
            ("512M", 512 << 20),
            (" 2g ", 2 << 30),
        ] {
            assert_eq!(text.parse(), Ok(Bytes(bytes)), "{text}");
        }
    }

    #[test]
    fn refuses_what_is_no_size() {
        for text in [
            "", "GiB", "-1", "ten", "10 GiBs", "inf", "nan", "1,5 GB", "1e30",
        ] {
            assert!(text.parse::<Bytes>().is_err(), "{text}");
        }
    }

    #[test]
    fn writes_sizes_for_people() {
        assert_eq!(Bytes(67_076_651_745).to_string(), "62.47 GiB");
        assert_eq!(Bytes::mib(512).to_string(), "512 MiB");
        assert_eq!(Bytes::gib(110).to_string(), "110 GiB");
        assert_eq!(Bytes::gib(2000).to_string(), "2000 GiB");
        assert_eq!(Bytes::gib(2048).to_string(), "2 TiB");
        assert_eq!(Bytes(1536).to_string(), "1.5 KiB");
        assert_eq!(Bytes(1023).to_string(), "1023 bytes");
        assert_eq!(Bytes(17).to_string(), "17 bytes");
    }

    #[test]
    fn width_pads_and_precision_fixes_the_decimals() {
        assert_eq!(format!("{:>10}", Bytes(12)), "  12 bytes");
        assert_eq!(format!("{:<10}|", Bytes(12)), "12 bytes  |");
        assert_eq!(format!("{:.2}", Bytes::gib(3)), "3.00 GiB");
        assert_eq!(format!("{:10.1}", Bytes(1536)), "   1.5 KiB");
    }

    proptest! {
        #[test]
        fn never_panics(text in "\\PC*") {
            let _ = Bytes::parse_tool_output(&text);
            let _ = text.parse::<Bytes>();
        }

        #[test]
        fn bare_numbers_are_bytes(n: u64) {
            prop_assert_eq!(Bytes::parse_tool_output(&n.to_string()), Some(Bytes(n)));
            prop_assert_eq!(n.to_string().parse(), Ok(Bytes(n)));
        }
    }
}
