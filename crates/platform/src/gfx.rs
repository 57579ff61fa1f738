//! GPU architectures: their names, and facts about each.
//!
//! The same chip has five spellings: `gfx90a` (most programs), `90010` (KFD), `9.0.10`
//! (`HSA_OVERRIDE_GFX_VERSION`), `gfx90a:sramecc+:xnack-` (HIP, with features) and `gfx9010` (`rocm-smi` 6.1,
//! a formatting bug). [`Gfx`] represents all of them.

use serde::{Serialize, Serializer};
use std::fmt;
use std::str::FromStr;

/// A GPU architecture, such as `gfx1151`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Gfx {
    /// 9 for Vega and CDNA, 10 to 12 for RDNA.
    pub major: u8,
    /// The generation.
    pub minor: u8,
    /// The chip, written as one hexadecimal digit.
    pub stepping: u8,
}

impl Gfx {
    /// From its three numbers, in the decimal spelling of `HSA_OVERRIDE_GFX_VERSION`.
    #[must_use]
    pub const fn new(major: u8, minor: u8, stepping: u8) -> Self {
        Self {
            major,
            minor,
            stepping,
        }
    }

    /// From `gfx_target_version` of KFD: `major * 10000 + minor * 100 + stepping`
    /// (libhsakmt.h). Zero is a CPU.
    #[must_use]
    pub fn from_target_version(version: u64) -> Option<Self> {
        let part = |value: u64| u8::try_from(value).ok();
        let gfx = Self::new(
            part(version / 10_000)?,
            part(version / 100 % 100)?,
            part(version % 100)?,
        );
        gfx.is_plausible().then_some(gfx)
    }

    /// From the value of `HSA_OVERRIDE_GFX_VERSION`, by the rule of libhsakmt:
    /// `sscanf("%u.%u.%u%c") == 3` with major ≤ 63 and the others ≤ 255.
    #[must_use]
    pub fn from_override(text: &str) -> Option<Self> {
        let mut parts = text.split('.').map(|part| {
            let digits = !part.is_empty() && part.bytes().all(|b| b.is_ascii_digit());
            digits.then(|| part.parse::<u8>().ok()).flatten()
        });
        let gfx = Self::new(parts.next()??, parts.next()??, parts.next()??);
        (parts.next().is_none() && gfx.major <= 63).then_some(gfx)
    }

    /// The spelling of `HSA_OVERRIDE_GFX_VERSION`.
    #[must_use]
    pub fn as_override(self) -> String {
        format!("{}.{}.{}", self.major, self.minor, self.stepping)
    }

    /// Every architecture named in a text, in order of appearance, each once.
    #[must_use]
    pub fn find_all(text: &str) -> Vec<Self> {
        let mut found = Vec::new();
        for (start, _) in text.match_indices("gfx") {
            // `gfx11-generic` is a family, and `libgfx90` is part of a word.
            if text[..start].ends_with(|c: char| c.is_ascii_alphanumeric()) {
                continue;
            }
            let rest = &text[start..];
            let end = rest
                .find(|c: char| !c.is_ascii_alphanumeric())
                .unwrap_or(rest.len());
            let Ok(gfx) = rest[..end].parse() else {
                continue;
            };
            if !found.contains(&gfx) {
                found.push(gfx);
            }
        }
        found
    }

    /// KFD has never supported or printed chips outside this range.
    fn is_plausible(self) -> bool {
        (6..=15).contains(&self.major) && self.minor < 16 && self.stepping < 16
    }

    /// Facts about it; `None` if unknown.
    #[must_use]
    pub fn architecture(self) -> Option<&'static Architecture> {
        ARCHITECTURES.iter().find(|known| known.gfx == self)
    }

    /// Older than Vega: current ROCm has no code for it.
    #[must_use]
    pub fn is_too_old(self) -> bool {
        self.major < 9
    }

    /// RDNA 2 (`gfx103x`): no bf16 arithmetic in hardware, no hipBLASLt kernels.
    #[must_use]
    pub fn is_rdna2(self) -> bool {
        self.major == 10 && self.minor == 3
    }

    /// `gfx115x`: Strix Point, Strix Halo, Krackan.
    #[must_use]
    pub fn is_rdna35(self) -> bool {
        self.major == 11 && self.minor == 5
    }
}

/// `"gfx"`, the major number in decimal, the others in hexadecimal.
impl fmt::Display for Gfx {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "gfx{}{:x}{:x}", self.major, self.minor, self.stepping)
    }
}

/// A string that is not the name of an architecture.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not a GPU architecture such as `gfx1151`")]
pub struct ParseGfxError;

/// Parses `gfx1151`, with optional features after a colon, and the decimal spelling of `rocm-smi` 6.1
/// (`gfx11003`).
impl FromStr for Gfx {
    type Err = ParseGfxError;

    fn from_str(text: &str) -> Result<Self, ParseGfxError> {
        let name = text.trim().split(':').next().unwrap_or_default();
        let digits = name.strip_prefix("gfx").ok_or(ParseGfxError)?;
        if !digits.bytes().all(|b| b.is_ascii_hexdigit()) {
            return Err(ParseGfxError);
        }
        // Byte indices are safe from here on: everything is ASCII.
        let decimal = |range: std::ops::Range<usize>| {
            digits
                .get(range)
                .and_then(|d| d.parse::<u8>().ok())
                .ok_or(ParseGfxError)
        };
        let hexadecimal = |at: usize| {
            digits
                .get(at..=at)
                .and_then(|d| u8::from_str_radix(d, 16).ok())
                .ok_or(ParseGfxError)
        };
        let two_digit_major = digits.starts_with('1');
        let gfx = match (digits.len(), two_digit_major) {
            (3, false) => Self::new(decimal(0..1)?, hexadecimal(1)?, hexadecimal(2)?),
            (4, true) => Self::new(decimal(0..2)?, hexadecimal(2)?, hexadecimal(3)?),
            (4, false) => Self::new(decimal(0..1)?, decimal(1..2)?, decimal(2..4)?),
            (5, true) => Self::new(decimal(0..2)?, decimal(2..3)?, decimal(3..5)?),
            _ => return Err(ParseGfxError),
        };
        if gfx.is_plausible() {
            Ok(gfx)
        } else {
            Err(ParseGfxError)
        }
    }
}

impl Serialize for Gfx {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// The form factors in which a chip is sold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FormFactor {
    /// Only as a card.
    Discrete,
    /// Only inside an APU.
    Apu,
    /// Both: `gfx942` is MI300X and MI300A.
    Either,
}

/// The effect of `HSA_OVERRIDE_GFX_VERSION` on an architecture for which the wheel has no code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Override {
    /// Wheels have native code: an override can only break it.
    Never,
    /// This value makes an upstream wheel work, on Linux.
    Works(&'static str),
    /// No value is safe; what happens if one is tried.
    Unsafe(&'static str),
    /// Older than Vega: no library of current ROCm has code for its family.
    TooOld,
}

/// Facts about one architecture.
#[derive(Debug)]
pub struct Architecture {
    /// Its name, such as `gfx1151`.
    pub gfx: Gfx,
    /// Product names.
    pub products: &'static str,
    /// Card or APU.
    pub sold_as: FormFactor,
    /// Whether AMD's multi-architecture index has `torch[device-<gfx>]`.
    pub device_wheel: bool,
    /// The effect of an override.
    pub override_value: Override,
}

/// Sources: LLVM's AMDGPU usage page, uv's `uv-torch` backend table, TheRock's
/// `SUPPORTED_GPUS.md`, and for the overrides the reports named in each line.
const ARCHITECTURES: &[Architecture] = {
    use FormFactor::{Apu, Discrete, Either};
    use Override::{Never, TooOld, Unsafe, Works};
    const fn row(
        (major, minor, stepping): (u8, u8, u8),
        products: &'static str,
        sold_as: FormFactor,
        device_wheel: bool,
        override_value: Override,
    ) -> Architecture {
        Architecture {
            gfx: Gfx::new(major, minor, stepping),
            products,
            sold_as,
            device_wheel,
            override_value,
        }
    }
    &[
        row(
            (6, 0, 0),
            "Radeon HD 7900/R9 280 (Tahiti)",
            Discrete,
            false,
            TooOld,
        ),
        row(
            (6, 0, 1),
            "Radeon HD 7700/7800/R7 260X/R9 270 (Pitcairn, Cape Verde)",
            Discrete,
            false,
            TooOld,
        ),
        row(
            (6, 0, 2),
            "Radeon HD 8500/8600/R7 240/250 (Oland, Hainan)",
            Discrete,
            false,
            TooOld,
        ),
        row((7, 0, 0), "A-series APU (Kaveri)", Apu, false, TooOld),
        row(
            (7, 0, 1),
            "Radeon R9 290/390 (Hawaii)",
            Discrete,
            false,
            TooOld,
        ),
        row((7, 0, 3), "A-series APU (Kabini)", Apu, false, TooOld),
        row(
            (7, 0, 4),
            "Radeon R7 260/R7 360 (Bonaire)",
            Discrete,
            false,
            TooOld,
        ),
        row((8, 0, 1), "A-series APU (Carrizo)", Apu, false, TooOld),
        row(
            (8, 0, 2),
            "Radeon R9 285/380 (Tonga), R7 M (Iceland)",
            Discrete,
            false,
            TooOld,
        ),
        row(
            (8, 0, 3),
            "Radeon RX 400/500 (Polaris), R9 Fury (Fiji)",
            Discrete,
            false,
            TooOld,
        ),
        row(
            (8, 0, 5),
            "Radeon R9 380X (Tonga Pro)",
            Discrete,
            false,
            TooOld,
        ),
        row((8, 1, 0), "A-series APU (Stoney)", Apu, false, TooOld),
        row(
            (9, 0, 0),
            "Radeon RX Vega 56/64, Instinct MI25",
            Discrete,
            true,
            Never,
        ),
        row(
            (9, 0, 2),
            "Ryzen 2000/3000 APU (Vega)",
            Apu,
            false,
            Unsafe("no library has code for it"),
        ),
        row(
            (9, 0, 4),
            "Radeon Pro Vega 16/20 (Vega 12)",
            Discrete,
            false,
            Unsafe("no library has code for it"),
        ),
        row(
            (9, 0, 6),
            "Radeon VII, Instinct MI50/MI60",
            Discrete,
            true,
            Never,
        ),
        row((9, 0, 8), "Instinct MI100", Discrete, true, Never),
        row(
            (9, 0, 9),
            "Ryzen 3000 APU (Vega)",
            Apu,
            false,
            Unsafe("no library has code for it"),
        ),
        row((9, 0, 10), "Instinct MI210/MI250", Discrete, true, Never),
        row(
            (9, 0, 12),
            "Ryzen 4000/5000 APU (Vega)",
            Apu,
            false,
            Unsafe("9.0.0 runs on many of these machines, and hangs on some"),
        ),
        row((9, 4, 2), "Instinct MI300", Either, true, Never),
        row((9, 5, 0), "Instinct MI350", Discrete, true, Never),
        row(
            (10, 1, 0),
            "Radeon RX 5600/5700",
            Discrete,
            true,
            Unsafe("10.3.0 segfaults since torch 2.0 (pytorch #106728)"),
        ),
        row(
            (10, 1, 1),
            "Radeon Pro 5600M",
            Discrete,
            true,
            Unsafe("10.3.0 segfaults since torch 2.0 (pytorch #106728)"),
        ),
        row(
            (10, 1, 2),
            "Radeon RX 5500",
            Discrete,
            true,
            Unsafe("10.3.0 segfaults since torch 2.0 (pytorch #106728)"),
        ),
        row(
            (10, 1, 3),
            "AMD BC-250",
            Apu,
            false,
            Unsafe("no library has code for it"),
        ),
        row(
            (10, 3, 0),
            "Radeon RX 6800/6900/6950",
            Discrete,
            true,
            Never,
        ),
        row(
            (10, 3, 1),
            "Radeon RX 6700/6750",
            Discrete,
            true,
            Works("10.3.0"),
        ),
        row(
            (10, 3, 2),
            "Radeon RX 6600/6650",
            Discrete,
            true,
            Works("10.3.0"),
        ),
        row(
            (10, 3, 3),
            "Steam Deck (Van Gogh)",
            Apu,
            true,
            Unsafe("10.3.0 runs, but training computes wrong gradients (unsloth PR #8412)"),
        ),
        row(
            (10, 3, 4),
            "Radeon RX 6400/6500",
            Discrete,
            true,
            Works("10.3.0"),
        ),
        row((10, 3, 5), "Radeon 660M/680M", Apu, true, Works("10.3.0")),
        row(
            (10, 3, 6),
            "Ryzen 7000/9000 desktop graphics",
            Apu,
            true,
            Works("10.3.0"),
        ),
        row((11, 0, 0), "Radeon RX 7900", Discrete, true, Never),
        row(
            (11, 0, 1),
            "Radeon RX 7700/7800 XT",
            Discrete,
            true,
            Works("11.0.0"),
        ),
        row(
            (11, 0, 2),
            "Radeon RX 7600",
            Discrete,
            true,
            Works("11.0.0"),
        ),
        row(
            (11, 0, 3),
            "Radeon 740M/760M/780M, Ryzen Z1",
            Apu,
            true,
            Unsafe(
                "11.0.0 gives page faults and hangs, 11.0.2 \"invalid device function\" (ROCm #3207)",
            ),
        ),
        row(
            (11, 5, 0),
            "Radeon 880M/890M (Strix Point)",
            Apu,
            true,
            Unsafe("11.0.0 ends in HSA_STATUS_ERROR_INVALID_ISA (ROCmLibs-for-gfx1103 #37)"),
        ),
        row(
            (11, 5, 1),
            "Radeon 8040S/8050S/8060S (Strix Halo)",
            Apu,
            true,
            Never,
        ),
        row(
            (11, 5, 2),
            "Radeon 840M/860M (Krackan)",
            Apu,
            true,
            Unsafe("no value is known to work"),
        ),
        row(
            (11, 5, 3),
            "Radeon 820M (Krackan)",
            Apu,
            true,
            Unsafe("no value is known to work"),
        ),
        row((12, 0, 0), "Radeon RX 9060", Discrete, true, Never),
        row(
            (12, 0, 1),
            "Radeon RX 9070, Radeon AI PRO R9700",
            Discrete,
            true,
            Never,
        ),
    ]
};

/// All architectures with known facts.
#[must_use]
pub fn known() -> &'static [Architecture] {
    ARCHITECTURES
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn kfd_numbers_become_names() {
        let cases = [
            (90_010, "gfx90a"),
            (90_012, "gfx90c"),
            (90_402, "gfx942"),
            (90_500, "gfx950"),
            (100_301, "gfx1031"),
            (110_003, "gfx1103"),
            (110_501, "gfx1151"),
            (120_001, "gfx1201"),
        ];
        for (version, name) in cases {
            assert_eq!(
                Gfx::from_target_version(version)
                    .map(|gfx| gfx.to_string())
                    .as_deref(),
                Some(name)
            );
        }
        assert_eq!(Gfx::from_target_version(0), None);
        assert_eq!(Gfx::from_target_version(u64::MAX), None);
    }

    #[test]
    fn features_and_the_decimal_bug_are_read() {
        assert_eq!("gfx1100:sramecc-:xnack-".parse(), Ok(Gfx::new(11, 0, 0)));
        assert_eq!("gfx11003".parse(), Ok(Gfx::new(11, 0, 3)));
        assert_eq!("gfx11501".parse(), Ok(Gfx::new(11, 5, 1)));
        assert_eq!("gfx9010".parse(), Ok(Gfx::new(9, 0, 10)));
        for wrong in [
            "gfx",
            "gfx11",
            "gfx11-generic",
            "gfx115100",
            "11.0.0",
            "gfx1g31",
            "gfxé31",
        ] {
            assert_eq!(wrong.parse::<Gfx>(), Err(ParseGfxError), "{wrong}");
        }
    }

    #[test]
    fn override_values_follow_the_rule_of_libhsakmt() {
        assert_eq!(Gfx::from_override("10.3.0"), Some(Gfx::new(10, 3, 0)));
        for wrong in [
            "gfx1031", "10.3", "10.3.0.1", "10.3.a", "", "64.0.0", "10.3.256", "10.3.0 ",
        ] {
            assert_eq!(Gfx::from_override(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn works_overrides_are_values_that_work() {
        for known in known() {
            if let Override::Works(value) = known.override_value {
                let target = Gfx::from_override(value).expect(value);
                assert!(
                    target
                        .architecture()
                        .is_some_and(|t| t.override_value == Override::Never),
                    "{value}"
                );
            }
        }
    }

    #[test]
    fn finds_names_in_running_text() {
        let text = "amdgcn-amd-amdhsa--gfx1031, gfx11-generic libgfx906.so gfx1031 (0x1031)";
        assert_eq!(Gfx::find_all(text), [Gfx::new(10, 3, 1)]);
    }

    proptest! {
        #[test]
        fn parsing_never_panics(text in "(gfx)?\\PC{0,12}") {
            let _ = text.parse::<Gfx>();
            let _ = Gfx::from_override(&text);
            let _ = Gfx::find_all(&text);
        }

        #[test]
        fn names_round_trip(index in 0..ARCHITECTURES.len()) {
            let gfx = ARCHITECTURES[index].gfx;
            prop_assert_eq!(gfx.to_string().parse(), Ok(gfx));
            prop_assert_eq!(Gfx::from_override(&gfx.as_override()), Some(gfx));
        }
    }
}
