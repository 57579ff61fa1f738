//! `bf16: true`, `false` or `auto`.

use std::borrow::Cow;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tch::{Device, Kind};

/// Whether to compute in bfloat16.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "Value", into = "Value")]
pub enum Bf16 {
    /// `false`
    Off,
    /// `true`
    On,
    /// `auto`: if the device multiplies bfloat16 faster than fp32.
    Auto,
}

impl Bf16 {
    /// The type of matrix products on a device.
    pub fn kind(self, device: Device) -> Kind {
        match self.on(device) {
            true => Kind::BFloat16,
            false => Kind::Float,
        }
    }

    /// Whether to use bfloat16 on a device.
    pub fn on(self, device: Device) -> bool {
        match self {
            Self::Off => false,
            Self::On => true,
            Self::Auto => match device {
                Device::Cpu => cpu_multiplies_bf16(),
                // Every GPU that ROCm 6 or CUDA 13 supports for training has bfloat16.
                _ => true,
            },
        }
    }
}

/// Whether the CPU has instructions for bfloat16 products (Zen 4, Cooper Lake and later). Without them libtorch
/// emulates bfloat16, which is slower than fp32; with them it was 4.7 times
/// faster on a Zen 5.
fn cpu_multiplies_bf16() -> bool {
    #[cfg(target_arch = "x86_64")]
    return std::arch::is_x86_feature_detected!("avx512bf16");
    #[cfg(not(target_arch = "x86_64"))]
    return false;
}

impl From<Bf16> for Value {
    fn from(bf16: Bf16) -> Self {
        match bf16 {
            Bf16::Off => false.into(),
            Bf16::On => true.into(),
            Bf16::Auto => "auto".into(),
        }
    }
}

impl TryFrom<Value> for Bf16 {
    type Error = String;

    fn try_from(value: Value) -> Result<Self, String> {
        match value {
            Value::Bool(false) => Ok(Self::Off),
            Value::Bool(true) => Ok(Self::On),
            Value::String(word) if word == "auto" => Ok(Self::Auto),
            other => Err(format!("{other} is not `true`, `false` or `auto`")),
        }
    }
}

impl JsonSchema for Bf16 {
    fn schema_name() -> Cow<'static, str> {
        "Bf16".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "description": "Whether to compute in bfloat16; `auto` does if the device multiplies it faster than fp32.",
            "enum": [true, false, "auto"],
        })
    }
}
