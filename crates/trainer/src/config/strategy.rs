//! When something happens on the way: `eval_strategy` and `save_strategy`.

use std::borrow::Cow;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// How often a run is measured, or saved, on the way to its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "Value", into = "Value")]
pub enum Strategy {
    /// `no`: not before the end.
    No,
    /// `steps`: after every so many steps.
    Steps,
    /// `epoch`: after each pass over the training data.
    Epoch,
}

impl From<Strategy> for Value {
    fn from(strategy: Strategy) -> Self {
        match strategy {
            Strategy::No => "no".into(),
            Strategy::Steps => "steps".into(),
            Strategy::Epoch => "epoch".into(),
        }
    }
}

impl TryFrom<Value> for Strategy {
    type Error = String;

    fn try_from(value: Value) -> Result<Self, String> {
        match &value {
            // What YAML makes of `no` without quotes.
            Value::Bool(false) => Ok(Self::No),
            Value::String(word) if word == "no" => Ok(Self::No),
            Value::String(word) if word == "steps" => Ok(Self::Steps),
            Value::String(word) if word == "epoch" => Ok(Self::Epoch),
            other => Err(format!("{other} is not `no`, `steps` or `epoch`")),
        }
    }
}

impl JsonSchema for Strategy {
    fn schema_name() -> Cow<'static, str> {
        "Strategy".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "description": "When something happens on the way: after every so many `steps`, after each \
                `epoch` (pass over the training data), or `no`t, which YAML reads as `false`.",
            "enum": ["no", "steps", "epoch", false],
        })
    }
}
