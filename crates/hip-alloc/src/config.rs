//! `HIP_ALLOC_CONF`: settings in the syntax of `PYTORCH_ALLOC_CONF`.
//!
//! `key:value,key:value`; spaces around keys and values are ignored, and so is a comma at
//! the end. An unknown key or value is an error at every request: a setting that is
//! silently ignored costs its user days.

use crate::pool::{Keep, PoolConfig};
use crate::units::MIB;
use std::ffi::OsStr;
use std::fmt;

/// The runtime that provides accelerator memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Backend {
    /// The runtime that the process has loaded and that has a device, else host memory.
    #[default]
    Auto,
    /// AMD's runtime, `libamdhip64`.
    Hip,
    /// NVIDIA's runtime, `libcudart`.
    Cuda,
    /// Host memory in place of a device.
    Host,
    /// Addresses without memory: for tests of programs that never touch it.
    Sim,
}

/// How much memory is left free for other programs if CPU and GPU share memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Reserve {
    /// A sixteenth of the memory, at least 2 GiB and at most 8 GiB.
    #[default]
    Auto,
    /// This many bytes.
    Bytes(u64),
}

/// How much is held beyond live memory, for the next requests.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Warmup {
    /// At most an eighth of live memory and 1 GiB; nothing on the host.
    #[default]
    Auto,
    /// This many bytes, from the start.
    Bytes(u64),
}

/// Whether something is mapped behind every request, for kernels that read past the end of their operand.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Guard {
    /// On GPUs whose kernels are known to do that: gfx12 (RDNA 4).
    #[default]
    Auto,
    /// Everywhere.
    On,
    /// Nowhere.
    Off,
}

/// Bytes behind every block with a guard. The kernels of hipBLASLt for gfx12 read up to this far.
const GUARD: u64 = 4096;

/// All settings of `HIP_ALLOC_CONF`, with their defaults.
#[derive(Clone, PartialEq, Debug)]
pub struct Config {
    /// `warmup_mb`: what may always be held beyond live memory.
    pub warmup: Warmup,
    /// `keep`: how much memory stays in empty blocks.
    pub keep: Keep,
    /// `max_split_size_mb`: larger requests go directly to the driver. Bytes.
    pub max_split: u64,
    /// `guard`: whether something is mapped behind every request.
    pub guard: Guard,
    /// `reserve_mb`: left free for other programs.
    pub reserve: Reserve,
    /// `backend`: the runtime that provides accelerator memory.
    pub backend: Backend,
}

impl Default for Config {
    fn default() -> Self {
        let pool = PoolConfig::default();
        Config {
            warmup: Warmup::Auto,
            keep: Keep::Auto,
            max_split: pool.max_split_bytes,
            guard: Guard::Auto,
            reserve: Reserve::Auto,
            backend: Backend::Auto,
        }
    }
}

/// An invalid setting, and what would be valid.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    /// The key is unknown.
    #[error("HIP_ALLOC_CONF: unknown key `{key}`; the keys are {}", Keys)]
    UnknownKey {
        /// The text as the user wrote it.
        key: String,
    },
    /// The key, or its value, was one of an earlier version.
    #[error("HIP_ALLOC_CONF: `{setting}` is gone: {instead}")]
    Gone {
        /// The text as the user wrote it.
        setting: String,
        /// What to use now.
        instead: &'static str,
    },
    /// The value is not allowed.
    #[error("HIP_ALLOC_CONF: `{key}` cannot be `{value}`; allowed: {allowed}")]
    Value {
        /// The text as the user wrote it.
        key: String,
        /// The text as the user wrote it.
        value: String,
        /// The allowed values.
        allowed: String,
    },
    /// The variable is not valid UTF-8.
    #[error("HIP_ALLOC_CONF: `{text}` is not UTF-8 text")]
    NotText {
        /// With invalid UTF-8 replaced.
        text: String,
    },
    /// A part without a colon.
    #[error("HIP_ALLOC_CONF: `{part}` has no value; write `key:value,key:value`")]
    NoValue {
        /// The text as the user wrote it.
        part: String,
    },
}

/// The kind of value of a key.
enum Kind {
    /// A whole number of units (bytes each), from and to.
    Size(fn(&mut Config) -> &mut u64, u64, u64, u64),
    Reserve,
    Warmup,
    Keep,
    Guard,
    Backend,
}

/// 1 TiB in MiB: more than any device has.
const MOST_MIB: u64 = 1 << 20;

const KEYS: [(&str, Kind); 6] = [
    ("keep", Kind::Keep),
    ("guard", Kind::Guard),
    ("warmup_mb", Kind::Warmup),
    (
        "max_split_size_mb",
        Kind::Size(|config| &mut config.max_split, MIB, 1, MOST_MIB),
    ),
    ("reserve_mb", Kind::Reserve),
    ("backend", Kind::Backend),
];

/// Keys of earlier versions, and what to use now.
const GONE_KEYS: [(&str, &str); 4] = [
    ("tail_padding_kb", "write `guard:on`"),
    (
        "mapped",
        "leave it out; blocks are returned as a whole, and `keep:off` returns them at once",
    ),
    (
        "block_mb",
        "leave it out; `warmup_mb` is what is allocated at the start",
    ),
    (
        "large_block_mb",
        "leave it out; `max_split_size_mb` is the largest request that shares a block",
    ),
];

const KEEPS: [(&str, Keep); 2] = [("auto", Keep::Auto), ("off", Keep::Off)];

const GUARDS: [(&str, Guard); 3] = [
    ("auto", Guard::Auto),
    ("on", Guard::On),
    ("off", Guard::Off),
];

const BACKENDS: [(&str, Backend); 5] = [
    ("auto", Backend::Auto),
    ("hip", Backend::Hip),
    ("cuda", Backend::Cuda),
    ("host", Backend::Host),
    ("sim", Backend::Sim),
];

impl Config {
    /// Reads the value of `HIP_ALLOC_CONF`.
    pub fn from_variable(value: Option<&OsStr>) -> Result<Config, ConfigError> {
        let Some(value) = value else {
            return Ok(Config::default());
        };
        let text = value.to_str().ok_or_else(|| ConfigError::NotText {
            text: value.to_string_lossy().into_owned(),
        })?;
        Config::parse(text)
    }

    /// Parses settings; keys that do not occur keep their defaults.
    pub fn parse(text: &str) -> Result<Config, ConfigError> {
        let mut config = Config::default();
        for part in text
            .split(',')
            .map(str::trim)
            .filter(|part| !part.is_empty())
        {
            let (key, value) = part.split_once(':').ok_or_else(|| ConfigError::NoValue {
                part: part.to_owned(),
            })?;
            config.set(key.trim(), value.trim())?;
        }
        Ok(config)
    }

    /// The part that the pool needs. `granule`: alignment and unit of spans; `needs_guard`: whether the device's
    /// kernels read past the end of an operand.
    pub fn pool(&self, granule: u64, needs_guard: bool) -> PoolConfig {
        let default = PoolConfig::default();
        let (warmup_bytes, floor_part) = match self.warmup {
            Warmup::Auto => (default.warmup_bytes, default.floor_part),
            Warmup::Bytes(bytes) => (bytes, 0),
        };
        PoolConfig {
            granule,
            warmup_bytes,
            floor_part,
            keep: self.keep,
            max_split_bytes: self.max_split,
            guard: match self.guard {
                Guard::On => GUARD,
                Guard::Auto if needs_guard => GUARD,
                Guard::Auto | Guard::Off => 0,
            },
        }
    }

    fn set(&mut self, key: &str, value: &str) -> Result<(), ConfigError> {
        if let Some((_, instead)) = GONE_KEYS.iter().find(|(name, _)| *name == key) {
            let setting = key.to_owned();
            return Err(ConfigError::Gone { setting, instead });
        }
        let Some((_, kind)) = KEYS.iter().find(|(name, _)| *name == key) else {
            return Err(ConfigError::UnknownKey {
                key: key.to_owned(),
            });
        };
        let wrong = |allowed: String| ConfigError::Value {
            key: key.to_owned(),
            value: value.to_owned(),
            allowed,
        };
        match kind {
            Kind::Size(field, unit, least, most) => match value.parse::<u64>() {
                Ok(number) if (*least..=*most).contains(&number) => *field(self) = number * unit,
                _ => return Err(wrong(format!("whole numbers from {least} to {most}"))),
            },
            Kind::Reserve => {
                let bytes = mib_or(&[("auto", None)], value, Some).map_err(wrong)?;
                self.reserve = bytes.map_or(Reserve::Auto, Reserve::Bytes);
            }
            Kind::Warmup => {
                self.warmup =
                    mib_or(&[("auto", Warmup::Auto)], value, Warmup::Bytes).map_err(wrong)?;
            }
            Kind::Keep => match (value, value.parse::<u64>()) {
                ("none", _) | (_, Ok(0)) => return Err(gone_keep(value, "write `keep:off`")),
                ("step", _) | (_, Ok(_)) => return Err(gone_keep(value, "write `keep:auto`")),
                _ => self.keep = named(&KEEPS, value).map_err(wrong)?,
            },
            Kind::Guard => self.guard = named(&GUARDS, value).map_err(wrong)?,
            Kind::Backend => self.backend = named(&BACKENDS, value).map_err(wrong)?,
        }
        Ok(())
    }
}

fn gone_keep(value: &str, instead: &'static str) -> ConfigError {
    let setting = format!("keep:{value}");
    ConfigError::Gone { setting, instead }
}

/// The value with this name, or of a number of MiB; the error lists what is allowed.
fn mib_or<T: Copy>(names: &[(&str, T)], value: &str, bytes: fn(u64) -> T) -> Result<T, String> {
    match value.parse::<u64>() {
        Ok(number) if number <= MOST_MIB => Ok(bytes(number * MIB)),
        _ => named(names, value)
            .map_err(|names| format!("{names}, or whole numbers from 0 to {MOST_MIB}")),
    }
}

/// The value with this name; the error lists all names.
fn named<T: Copy>(values: &[(&str, T)], name: &str) -> Result<T, String> {
    let found = values.iter().find(|(known, _)| *known == name);
    found.map(|(_, value)| *value).ok_or_else(|| {
        let names: Vec<_> = values.iter().map(|(name, _)| format!("`{name}`")).collect();
        names.join(", ")
    })
}

/// The names of all keys, for a message.
struct Keys;

impl fmt::Display for Keys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<_> = KEYS.iter().map(|(name, _)| format!("`{name}`")).collect();
        f.write_str(&names.join(", "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn an_empty_text_is_the_default() {
        assert_eq!(Config::parse(""), Ok(Config::default()));
        assert_eq!(Config::parse(" , "), Ok(Config::default()));
    }

    #[test]
    fn every_key_is_read() {
        let config = Config::parse(
            "keep:off,guard:on,warmup_mb:512, max_split_size_mb:64,reserve_mb:3000,backend:host",
        );
        assert_eq!(
            config,
            Ok(Config {
                warmup: Warmup::Bytes(512 * MIB),
                keep: Keep::Off,
                guard: Guard::On,
                max_split: 64 * MIB,
                reserve: Reserve::Bytes(3000 * MIB),
                backend: Backend::Host,
            })
        );
    }

    #[test]
    fn an_unknown_key_is_named_with_those_there_are() {
        let message = Config::parse("max_split_mb:1").unwrap_err().to_string();
        assert!(message.contains("unknown key `max_split_mb`"), "{message}");
        assert!(message.contains("`max_split_size_mb`"), "{message}");
    }

    #[test]
    fn a_value_out_of_range_is_named_with_the_range() {
        let message = Config::parse("max_split_size_mb:0")
            .unwrap_err()
            .to_string();
        assert_eq!(
            message,
            "HIP_ALLOC_CONF: `max_split_size_mb` cannot be `0`; allowed: whole numbers from 1 to 1048576"
        );
    }

    #[test]
    fn what_is_kept_has_names() {
        for (value, keep) in KEEPS {
            let config = Config::parse(&format!("keep:{value}")).unwrap();
            assert_eq!(config.pool(512, false).keep, keep);
        }
        let message = Config::parse("keep:all").unwrap_err().to_string();
        assert!(message.contains("allowed: `auto`, `off`"), "{message}");
    }

    #[test]
    fn a_guard_is_there_where_it_is_needed_or_wanted() {
        let guard = |text: &str, needed| Config::parse(text).unwrap().pool(512, needed).guard;
        assert_eq!((guard("", false), guard("", true)), (0, GUARD));
        assert_eq!(
            (guard("guard:on", false), guard("guard:on", true)),
            (GUARD, GUARD)
        );
        assert_eq!(
            (guard("guard:off", false), guard("guard:off", true)),
            (0, 0)
        );
    }

    #[test]
    fn settings_of_earlier_versions_are_answered_with_those_of_today() {
        for (text, instead) in [
            ("keep:none", "`keep:off`"),
            ("keep:0", "`keep:off`"),
            ("keep:step", "`keep:auto`"),
            ("keep:300", "`keep:auto`"),
            ("tail_padding_kb:4", "`guard:on`"),
            ("mapped:on", "`keep:off`"),
            ("block_mb:128", "`warmup_mb`"),
            ("large_block_mb:128", "`max_split_size_mb`"),
        ] {
            let message = Config::parse(text).unwrap_err().to_string();
            assert!(
                message.contains("is gone") && message.contains(instead),
                "{message}"
            );
        }
    }

    #[test]
    fn a_backend_that_does_not_exist_is_refused() {
        let message = Config::parse("backend:vulkan").unwrap_err().to_string();
        assert!(
            message.contains("`auto`, `hip`, `cuda`, `host`, `sim`"),
            "{message}"
        );
    }

    #[cfg(unix)]
    #[test]
    fn what_is_not_utf8_is_refused() {
        use std::os::unix::ffi::OsStrExt;
        let value = OsStr::from_bytes(b"warmup_mb:\xff");
        let message = Config::from_variable(Some(value)).unwrap_err().to_string();
        assert!(message.contains("is not UTF-8"), "{message}");
        assert_eq!(Config::from_variable(None), Ok(Config::default()));
    }

    proptest! {
        /// No text makes the parser panic, and accepted values are within their ranges.
        #[test]
        fn takes_any_text(text in "([a-z_]{0,12}|warmup_mb|max_split_size_mb|keep|backend|reserve_mb)(:[-0-9a-z]{0,24})?(,[ -~]{0,30}){0,3}") {
            if let Ok(config) = Config::parse(&text) {
                prop_assert!((MIB..=MOST_MIB * MIB).contains(&config.max_split));
                prop_assert!(config.pool(512, false).warmup_bytes <= MOST_MIB * MIB);
            }
        }
    }
}
