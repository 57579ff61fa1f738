//! `per_device_train_batch_size`: a number, or `auto`.

use std::borrow::Cow;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{Config, TrainConfig};

/// The most samples of a batch.
const MOST: u32 = 65_536;

/// The samples of a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "Value", into = "Value")]
pub enum BatchSize {
    /// So many, in one forward pass.
    Rows(u32),
    /// `auto`: those of a step, in passes as large as memory has room for. In a run that goes on, the number is that of
    /// its passes so far.
    Auto(Option<u32>),
}

impl TrainConfig {
    /// Whether memory decides how many samples are in a pass.
    pub(crate) fn has_auto_batch(&self) -> bool {
        matches!(self.per_device_train_batch_size, BatchSize::Auto(_))
    }

    /// Samples in a batch of the data.
    pub fn batch(&self) -> u32 {
        match self.per_device_train_batch_size {
            BatchSize::Rows(rows) => rows,
            BatchSize::Auto(_) => self.gradient_accumulation_steps,
        }
    }

    /// Batches of the data in a step of one process.
    pub(crate) fn batches(&self) -> u32 {
        match self.per_device_train_batch_size {
            BatchSize::Rows(_) => self.gradient_accumulation_steps,
            BatchSize::Auto(_) => 1,
        }
    }
}

impl Config {
    /// The same with the samples of a step in passes of `rows`: what a step needs of memory follows from it.
    pub(crate) fn in_passes_of(&self, rows: u32) -> Self {
        let samples = u64::from(self.train.batch()) * u64::from(self.train.batches());
        let passes = samples.div_ceil(rows.max(1).into());
        Self {
            train: TrainConfig {
                per_device_train_batch_size: BatchSize::Rows(rows),
                gradient_accumulation_steps: u32::try_from(passes).unwrap_or(u32::MAX),
                ..self.train.clone()
            },
            ..self.clone()
        }
    }

    /// The same for a run that goes on with passes of `rows` if it chose their size itself.
    pub(crate) fn with_passes_so_far(&self, rows: Option<u32>) -> Self {
        let mut config = self.clone();
        if config.train.has_auto_batch() {
            config.train.per_device_train_batch_size = BatchSize::Auto(rows);
        }
        config
    }
}

impl From<BatchSize> for Value {
    fn from(size: BatchSize) -> Self {
        match size {
            BatchSize::Rows(rows) => rows.into(),
            BatchSize::Auto(_) => "auto".into(),
        }
    }
}

impl TryFrom<Value> for BatchSize {
    type Error = String;

    fn try_from(value: Value) -> Result<Self, String> {
        let rows = value.as_u64().and_then(|rows| u32::try_from(rows).ok());
        match (rows, value.as_str()) {
            (Some(rows), _) => Ok(Self::Rows(rows)),
            (None, Some("auto")) => Ok(Self::Auto(None)),
            _ => Err(format!(
                "{value} is not a number from 1 to {MOST} or `auto`"
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
            "description": "A number from 1 to 65536, or `auto`.",
            "type": ["integer", "string"],
            "minimum": 1,
            "maximum": MOST,
            "pattern": "^auto$",
        })
    }
}
