//! Named sets of options, for users who do not want to count bytes.
//!
//! A profile only sets [`OffloadOptions`]; options that the user sets take precedence. Displaying a profile
//! shows what it sets.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::offload::plan::OffloadOptions;

/// A named set of options.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Profile {
    /// Keeps everything on the device that fits; streams only the rest.
    Roomy,
    /// Streams at least a third of the blocks, leaving memory for longer sequences and larger batches.
    Balanced,
    /// Streams every block and keeps nothing idle: the smallest footprint.
    LowVram,
    /// For APUs: blocks stay in the shared memory. If the device cannot read host memory in place, blocks
    /// that do not fit are read from disk; that is slower than a bus and less even, so one more block is
    /// prefetched.
    Unified,
}

/// A string that is not the name of a profile.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("there is no profile `{0}`: choose `roomy`, `balanced`, `low-vram` or `unified`")]
pub struct ParseProfileError(String);

impl Profile {
    /// All profiles, from most memory to least.
    pub const ALL: [Profile; 4] = [
        Profile::Roomy,
        Profile::Balanced,
        Profile::LowVram,
        Profile::Unified,
    ];

    /// Its name in a config.
    pub fn name(self) -> &'static str {
        match self {
            Profile::Roomy => "roomy",
            Profile::Balanced => "balanced",
            Profile::LowVram => "low-vram",
            Profile::Unified => "unified",
        }
    }

    /// The options it sets.
    pub fn options(self) -> OffloadOptions {
        let nothing = OffloadOptions::default();
        match self {
            Profile::Roomy => nothing,
            Profile::Balanced => OffloadOptions {
                offload_fraction: 0.34,
                ..nothing
            },
            Profile::LowVram => OffloadOptions {
                low_vram: true,
                ..nothing
            },
            Profile::Unified => OffloadOptions {
                ring_slots: 3,
                ..nothing
            },
        }
    }
}

impl FromStr for Profile {
    type Err = ParseProfileError;

    fn from_str(text: &str) -> Result<Profile, ParseProfileError> {
        let named = |profile: &Profile| profile.name() == text;
        Profile::ALL
            .into_iter()
            .find(named)
            .ok_or_else(|| ParseProfileError(text.to_owned()))
    }
}

impl fmt::Display for Profile {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let options = self.options();
        write!(
            formatter,
            "{}: low_vram {}, offload_fraction {}, ring_slots {}",
            self.name(),
            options.low_vram,
            options.offload_fraction,
            options.ring_slots
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prints_what_it_sets() {
        let printed = Profile::ALL.map(|profile| profile.to_string()).join("\n");
        assert_eq!(
            printed,
            "\
roomy: low_vram false, offload_fraction 0, ring_slots 2
balanced: low_vram false, offload_fraction 0.34, ring_slots 2
low-vram: low_vram true, offload_fraction 0, ring_slots 2
unified: low_vram false, offload_fraction 0, ring_slots 3"
        );
    }

    #[test]
    fn is_read_by_the_name_it_prints() {
        for profile in Profile::ALL {
            assert_eq!(profile.name().parse(), Ok(profile));
            let json = serde_json::to_string(&profile).unwrap();
            assert_eq!(json, format!("\"{}\"", profile.name()));
        }
        assert!("fast".parse::<Profile>().is_err());
    }
}
