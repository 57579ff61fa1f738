//! User options of a plan, named as in accelerate, kohya's scripts and OneTrainer.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};

use platform::Bytes;

/// The machine's memory budget.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Memory {
    /// A card with its own memory.
    Discrete {
        /// Bytes usable on the device.
        device: Bytes,
        /// Bytes usable on the host.
        host: Bytes,
    },
    /// One memory for both (an APU): what the device uses, the host lacks.
    Unified {
        /// Bytes that the device may allocate.
        device: Bytes,
        /// Bytes that both may use in total.
        pool: Bytes,
        /// Whether host memory can be registered with the device.
        zero_copy: bool,
    },
}

impl Memory {
    /// Bytes that the device can use while the host uses nothing.
    #[must_use]
    pub fn on_device(self) -> Bytes {
        match self {
            Memory::Discrete { device, .. } => device,
            Memory::Unified { device, pool, .. } => device.min(pool),
        }
    }
}

/// The user's options. The defaults plan by the available memory alone.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct OffloadOptions {
    /// Where each module goes: `auto`, or a map of names to `device`, `cpu`, `disk`.
    pub device_map: DeviceMap,
    /// Limits below what the machine has.
    pub max_memory: MaxMemory,
    /// Stream every block that can be streamed, and keep nothing idle on the device.
    pub low_vram: bool,
    /// Stream exactly this many of the blocks in use.
    pub blocks_to_swap: Option<usize>,
    /// Stream at least this fraction (0 to 1) of the bytes that can be streamed.
    pub offload_fraction: f64,
    /// Device slots for streamed blocks: one block is in use while the others are copied in. With one slot,
    /// each copy waits for the previous block; a plan only chooses that if no more fit, or if requested.
    pub ring_slots: u32,
}

/// Limits set by the user.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct MaxMemory {
    /// Device limit, for everything.
    pub device: Option<Bytes>,
    /// Host limit.
    pub cpu: Option<Bytes>,
}

/// Where modules go.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DeviceMap {
    /// Wherever is best within the budget.
    #[default]
    Auto,
    /// By name: the longest entry that equals the module's name or a parent of it decides.
    #[serde(untagged)]
    Explicit(BTreeMap<String, Place>),
}

/// A target in an explicit device map.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Place {
    /// On the device while its component is in use.
    Device,
    /// In host memory, streamed in when used.
    Cpu,
    /// On disk, streamed in when used.
    Disk,
}

impl Default for OffloadOptions {
    fn default() -> OffloadOptions {
        OffloadOptions {
            device_map: DeviceMap::Auto,
            max_memory: MaxMemory::default(),
            low_vram: false,
            blocks_to_swap: None,
            offload_fraction: 0.0,
            ring_slots: 2,
        }
    }
}

impl Memory {
    /// The memory within the user's limits.
    pub(crate) fn bounded(self, max: MaxMemory) -> Memory {
        let bound = |size: Bytes, max: Option<Bytes>| max.map_or(size, |max| size.min(max));
        match self {
            Memory::Discrete { device, host } => Memory::Discrete {
                device: bound(device, max.device),
                host: bound(host, max.cpu),
            },
            Memory::Unified {
                device,
                pool,
                zero_copy,
            } => Memory::Unified {
                device: bound(device.min(pool), max.device),
                pool: bound(pool, max.cpu),
                zero_copy,
            },
        }
    }
}

impl DeviceMap {
    /// Everything on the device while its component is in use.
    #[must_use]
    pub fn all_on_device() -> Self {
        DeviceMap::Explicit([(String::new(), Place::Device)].into())
    }

    /// The place that an explicit map sets for a module.
    pub(crate) fn place_of(&self, module: &str) -> Option<Place> {
        let DeviceMap::Explicit(places) = self else {
            return None;
        };
        let covers = |name: &str| {
            name.is_empty()
                || module
                    .strip_prefix(name)
                    .is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
        };
        places
            .iter()
            .filter(|(name, _)| covers(name))
            .max_by_key(|(name, _)| name.len())
            .map(|(_, place)| *place)
    }
}

impl fmt::Display for Memory {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Memory::Discrete { device, host } => write!(formatter, "device {device}, host {host}"),
            Memory::Unified {
                device,
                pool,
                zero_copy,
            } => write!(
                formatter,
                "unified memory of {pool}, {device} of it for the device, {} zero-copy",
                if *zero_copy { "with" } else { "without" }
            ),
        }
    }
}

impl fmt::Display for Place {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.pad(match self {
            Place::Device => "device",
            Place::Cpu => "cpu",
            Place::Disk => "disk",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_name_decides() {
        let map = DeviceMap::Explicit(BTreeMap::from([
            ("".to_owned(), Place::Disk),
            ("transformer".to_owned(), Place::Cpu),
            ("transformer.blocks.1".to_owned(), Place::Device),
        ]));
        assert_eq!(map.place_of("vae"), Some(Place::Disk));
        assert_eq!(map.place_of("transformer.blocks.1"), Some(Place::Device));
        assert_eq!(
            map.place_of("transformer.blocks.1.attn"),
            Some(Place::Device)
        );
        // Names match whole components: block 11 is not part of block 1.
        assert_eq!(map.place_of("transformer.blocks.11"), Some(Place::Cpu));
    }

    #[test]
    fn a_device_map_is_a_word_or_a_map() {
        let read = |text| serde_json::from_str::<DeviceMap>(text).unwrap();
        assert_eq!(read("\"auto\""), DeviceMap::Auto);
        let DeviceMap::Explicit(places) = read(r#"{"transformer": "cpu"}"#) else {
            panic!()
        };
        assert_eq!(places["transformer"], Place::Cpu);
    }
}
