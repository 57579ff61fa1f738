//! When something happens during training: `eval_strategy` and `save_strategy`.

use std::borrow::Cow;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// When a run is evaluated or saved before its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "Value", into = "Value")]
pub enum Strategy {
    /// `no`: only at the end.
    No,
    /// `steps`: regularly after a number of steps.
    Steps,
    /// `epoch`: after each epoch.
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
            // YAML's meaning of `no` without quotes.
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
