//! The keys of `model` that limit its memory, which become the options of a plan, named as by
//! accelerate and kohya.

use std::borrow::Cow;
use std::collections::BTreeMap;

use placement::plan::{DeviceMap, MaxMemory, OffloadOptions, Place};
use placement::{Bytes, Profile};
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};

use super::ModelConfig;

/// Memory limits of a run, whatever the machine has.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct MemoryLimits {
    /// For the device's memory, including everything that training uses: a number of bytes, or
    /// a size such as `6GiB`.
    pub device: Option<Size>,
    /// For the host's memory: a number of bytes, or a size such as `16GiB`. On the CPU the smaller
    /// of both applies.
    pub cpu: Option<Size>,
}

/// A size in bytes, written as a number or with a unit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(transparent)]
pub struct Size(pub Bytes);

/// Where the parts of a model are kept.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum DeviceMapConfig {
    /// `auto`.
    Word(String),
    /// By name: `device`, `cpu` or `disk`.
    Places(BTreeMap<String, PlaceConfig>),
}

/// A place in a device map.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PlaceConfig {
    /// Always on the device.
    Device,
    /// In host memory, and streamed when used.
    Cpu,
    /// In a file, and streamed when used.
    Disk,
}

/// Presets for the keys about memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum MemoryProfile {
    /// Keep everything that fits, and stream the rest.
    Roomy,
    /// Stream a third of the blocks.
    Balanced,
    /// Stream every block.
    LowVram,
    /// For APUs: stream what does not fit, through three slots, since a disk is slower and less
    /// even than a bus.
    Unified,
}

impl MemoryProfile {
    /// The profile of this name.
    pub fn profile(self) -> Profile {
        match self {
            Self::Roomy => Profile::Roomy,
            Self::Balanced => Profile::Balanced,
            Self::LowVram => Profile::LowVram,
            Self::Unified => Profile::Unified,
        }
    }
}

impl ModelConfig {
    /// The keys that request a plan, with whether they are set.
    pub(crate) fn memory_keys(&self) -> [(&'static str, bool); 7] {
        [
            ("profile", self.profile.is_some()),
            ("low_vram", self.low_vram == Some(true)),
            ("blocks_to_swap", self.blocks_to_swap.is_some_and(|n| n > 0)),
            (
                "offload_fraction",
                self.offload_fraction.is_some_and(|share| share > 0.0),
            ),
            ("max_memory", self.max_memory.is_some()),
            ("device_map", self.device_map.is_some()),
            ("ring_slots", self.ring_slots.is_some()),
        ]
    }

    /// The options of the plan; `None` if none are set, and the whole model stays in memory.
    pub fn offload_options(&self) -> Option<OffloadOptions> {
        if !self.memory_keys().iter().any(|(_, set)| *set) {
            return None;
        }
        let profile = self.profile.map(MemoryProfile::profile);
        let base = profile.map_or_else(OffloadOptions::default, Profile::options);
        // Explicit keys override the profile; each of these determines what is streamed completely.
        let explicit = matches!(self.device_map, Some(DeviceMapConfig::Places(_)));
        let base = match explicit || self.blocks_to_swap.is_some() {
            true => OffloadOptions {
                low_vram: false,
                offload_fraction: 0.0,
                ..base
            },
            false => base,
        };
        let limits = self.max_memory.unwrap_or_default();
        let place = |place: &PlaceConfig| match place {
            PlaceConfig::Device => Place::Device,
            PlaceConfig::Cpu => Place::Cpu,
            PlaceConfig::Disk => Place::Disk,
        };
        Some(OffloadOptions {
            device_map: match &self.device_map {
                Some(DeviceMapConfig::Places(places)) => DeviceMap::Explicit(
                    places
                        .iter()
                        .map(|(name, to)| (name.clone(), place(to)))
                        .collect(),
                ),
                _ => base.device_map,
            },
            max_memory: MaxMemory {
                device: limits.device.map(|size| size.0),
                cpu: limits.cpu.map(|size| size.0),
            },
            low_vram: self.low_vram.unwrap_or(base.low_vram),
            blocks_to_swap: self.blocks_to_swap.map(|count| count as usize),
            offload_fraction: self.offload_fraction.unwrap_or(base.offload_fraction),
            ring_slots: self.ring_slots.unwrap_or(base.ring_slots),
        })
    }
}

impl<'de> Deserialize<'de> for Size {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum Written {
            Number(u64),
            Text(String),
        }
        match Written::deserialize(deserializer)? {
            Written::Number(bytes) => Ok(Self(Bytes(bytes))),
            Written::Text(text) => text.parse().map(Self).map_err(serde::de::Error::custom),
        }
    }
}

impl JsonSchema for Size {
    fn schema_name() -> Cow<'static, str> {
        "Size".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "description": "A number of bytes, or a size with a unit: `6GiB`, `512 MB`.",
            "type": ["integer", "string"],
            "minimum": 0,
            "pattern": "^ *[0-9]+([.][0-9]+)? *([kKmMgGtT]([iI]?[bB])?|[bB])? *$",
        })
    }
}

impl JsonSchema for DeviceMapConfig {
    fn schema_name() -> Cow<'static, str> {
        "DeviceMap".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "description": "`auto`, or where each part goes by name, the longest name deciding: \
                            `{\"\": device, model.layers.3: disk}`.",
            "type": ["string", "object"],
            "pattern": "^auto$",
            "additionalProperties": { "enum": ["device", "cpu", "disk"] },
        })
    }
}
