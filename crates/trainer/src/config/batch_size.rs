//! `per_device_train_batch_size: 4` or `auto`.

use std::borrow::Cow;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// The most samples in a forward pass or in a step.
const MOST: u32 = 65_536;

/// Samples per forward pass.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "Value", into = "Value")]
pub enum BatchSize {
    /// This many, in each process.
    Rows(u32),
    /// `auto`: `train.train_batch_size` samples are distributed by the speed of the processes.
    Auto,
}

impl From<u32> for BatchSize {
    fn from(rows: u32) -> Self {
        Self::Rows(rows)
    }
}

impl From<BatchSize> for Value {
    fn from(size: BatchSize) -> Self {
        match size {
            BatchSize::Rows(rows) => rows.into(),
            BatchSize::Auto => "auto".into(),
        }
    }
}

impl TryFrom<Value> for BatchSize {
    type Error = String;

    fn try_from(value: Value) -> Result<Self, String> {
        let whole =
            |number: &f64| number.fract() == 0.0 && (0.0..=f64::from(MOST)).contains(number);
        let rows = value.as_f64().filter(whole).map(|rows| rows as u32);
        match (&value, rows) {
            (_, Some(rows @ 1..=MOST)) => Ok(Self::Rows(rows)),
            (Value::String(word), _) if word == "auto" => Ok(Self::Auto),
            _ => Err(format!(
                "{value} is neither a number from 1 to {MOST} nor `auto`"
            )),
        }
    }
}

impl JsonSchema for BatchSize {
    fn schema_name() -> Cow<'static, str> {
        "BatchSize".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "description": "Sequences in one forward pass; `auto` distributes `train_batch_size` by the speed of the processes.",
            "type": ["integer", "string"],
            "format": "uint32",
            "minimum": 1,
            "maximum": MOST,
            "pattern": "^auto$",
        })
    }
}
