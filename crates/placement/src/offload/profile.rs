//! Named sets of options, for people who know their card and not its bytes.
//!
//! A profile only sets [`OffloadOptions`]; whatever the user sets beside it wins. Printing one says what it sets.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::offload::plan::OffloadOptions;

/// A named set of options.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Profile {
    /// Everything stays where it fits; the plan streams only what does not.
    Roomy,
    /// At least a third of the blocks is streamed: memory for longer sequences and larger batches.
    Balanced,
    /// Every block is streamed and nothing idle stays: the smallest footprint.
    LowVram,
    /// For APUs: blocks stay in the one memory there is. What does not fit is read from a disk where the device
    /// cannot read host memory in place, which is slower than a bus and less even: one block more is on its way.
    Unified,
}

/// A text that names no profile.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("there is no profile `{0}`: choose `roomy`, `balanced`, `low-vram` or `unified`")]
pub struct ParseProfileError(String);

impl Profile {
    /// All profiles, from the most memory to the least.
    pub const ALL: [Profile; 4] = [
        Profile::Roomy,
        Profile::Balanced,
        Profile::LowVram,
        Profile::Unified,
    ];

    /// Name of the profile in a config.
    pub fn name(self) -> &'static str {
        match self {
            Profile::Roomy => "roomy",
            Profile::Balanced => "balanced",
            Profile::LowVram => "low-vram",
            Profile::Unified => "unified",
        }
    }

    /// What it sets.
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
