//! `bf16: true`, `false` or `auto`.

use std::borrow::Cow;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::de::{self, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use tch::Device;

/// Whether to compute in bfloat16.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Bf16 {
    /// `false`
    Off,
    /// `true`
    On,
    /// `auto`: where the device multiplies bfloat16 faster than fp32.
    Auto,
}

impl Bf16 {
    /// The answer for a device.
    pub fn on(self, device: Device) -> bool {
        match self {
            Self::Off => false,
            Self::On => true,
            Self::Auto => match device {
                Device::Cpu => cpu_multiplies_bf16(),
                // Every GPU that ROCm 6 or CUDA 13 supports for training has it.
                _ => true,
            },
        }
    }
}

/// Whether the CPU has instructions for bfloat16 products (Zen 4, Cooper Lake and later).
/// Without them libtorch emulates, which is slower than fp32; with them it was 4.7 times
/// faster on a Zen 5.
fn cpu_multiplies_bf16() -> bool {
    #[cfg(target_arch = "x86_64")]
    return std::arch::is_x86_feature_detected!("avx512bf16");
    #[cfg(not(target_arch = "x86_64"))]
    return false;
}

impl Serialize for Bf16 {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Off => serializer.serialize_bool(false),
            Self::On => serializer.serialize_bool(true),
            Self::Auto => serializer.serialize_str("auto"),
        }
    }
}

impl<'de> Deserialize<'de> for Bf16 {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Words;
        impl Visitor<'_> for Words {
            type Value = Bf16;

            fn expecting(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                out.write_str("`true`, `false` or `auto`")
            }

            fn visit_bool<E: de::Error>(self, on: bool) -> Result<Bf16, E> {
                Ok(if on { Bf16::On } else { Bf16::Off })
            }

            fn visit_str<E: de::Error>(self, word: &str) -> Result<Bf16, E> {
                match word {
                    "auto" => Ok(Bf16::Auto),
                    other => Err(E::invalid_value(de::Unexpected::Str(other), &self)),
                }
            }
        }
        deserializer.deserialize_any(Words)
    }
}

impl JsonSchema for Bf16 {
    fn schema_name() -> Cow<'static, str> {
        "Bf16".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "description": "Whether to compute in bfloat16; `auto` does where the device multiplies it faster than fp32.",
            "enum": [true, false, "auto"],
        })
    }
}
