//! What happens in a run, as it is recorded, shown and saved.

use std::collections::BTreeMap;
use std::fmt;

use platform::Bytes;
use serde::{Deserialize, Serialize};

use crate::memory::MemorySample;

/// The numbers of a logged step.
#[derive(Debug, Clone)]
pub struct Metrics {
    /// Optimizer steps done.
    pub step: u64,
    /// Mean training loss since the last record.
    pub loss: f64,
    /// Learning rate of this step.
    pub learning_rate: f64,
    /// Norm of the gradient before clipping.
    pub gradient_norm: f64,
    /// Units (tokens) a second since the last record, evaluations and saves left out.
    pub units_per_second: f64,
    /// Memory in use at this step.
    pub memory: MemorySample,
    /// Of parameters that learn in turn, those that did since the last record, by name.
    pub turns: BTreeMap<String, TurnMetrics>,
    /// What the task measures beside the loss, by name: means since the last record.
    pub measures: BTreeMap<String, f64>,
}

/// The numbers of parameters that learn in steps of their own.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct TurnMetrics {
    /// Mean training loss of their steps since the last record.
    pub loss: f64,
    /// Norm of their last gradient before clipping.
    pub grad_norm: f64,
}

/// A loss on held-out data.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Evaluation {
    /// Mean loss of a unit: nats per token, for text.
    pub loss: f64,
    /// For text, nats per byte: the loss that is comparable between tokenizers.
    pub nats_per_byte: Option<f64>,
    /// Samples measured.
    pub samples: u64,
    /// Whether that was all held-out data.
    pub complete: bool,
    /// The loss of each model, where several learn in turn, by name; the loss above is their mean.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub turns: BTreeMap<String, f64>,
    /// What the task measures beside the loss, by name.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub measures: BTreeMap<String, f64>,
}

/// Something the model made.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sample {
    /// What it was asked.
    pub prompt: String,
    /// What it answered; of a video, its size and where it came from.
    pub text: String,
    /// Files of what is no text: a video or a picture, and of a video a sheet of its frames. In records the
    /// paths are from the run folder on.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub files: Vec<String>,
}

/// The best evaluation of a run, and so the checkpoint worth keeping.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Best {
    /// Optimizer steps done.
    pub step: u64,
    /// Value of `train.metric_for_best_model`.
    pub value: f64,
}

/// A step that was skipped, and what was seen.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SkippedStep {
    /// The step, counted from 1.
    pub step: u64,
    /// Its loss, as text: JSON has no NaN.
    pub loss: String,
    /// Norm of its gradient.
    pub grad_norm: String,
    /// Where its batch stands in the data.
    pub batch: String,
    /// The first gradients that are not finite, in the order of the model; empty when each
    /// is, and only their norm or the loss overflows.
    pub tensors: Vec<NonFiniteTensor>,
    /// How many more there are.
    pub further_tensors: u64,
}

/// A gradient that is not finite.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NonFiniteTensor {
    /// The parameter's name.
    pub name: String,
    /// How many of its numbers are NaN.
    pub nan: u64,
    /// How many are infinite.
    pub infinite: u64,
    /// How many it has.
    pub of: u64,
}

/// A return to a checkpoint.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rollback {
    /// The step that the run had come to.
    pub from_step: u64,
    /// The step of the checkpoint.
    pub to_step: u64,
    /// What was seen in the steps before.
    pub seen: Vec<SkippedStep>,
}

impl fmt::Display for SkippedStep {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            step,
            loss,
            grad_norm,
            batch,
            ..
        } = self;
        write!(
            out,
            "step {step}: loss {loss}, gradient norm {grad_norm}, batch at {batch}"
        )?;
        for (index, tensor) in self.tensors.iter().enumerate() {
            let NonFiniteTensor {
                name,
                nan,
                infinite,
                of,
            } = tensor;
            let comma = if index == 0 { "; not finite: " } else { ", " };
            write!(
                out,
                "{comma}`{name}` ({nan} NaN, {infinite} infinite of {of})"
            )?;
        }
        match self.further_tensors {
            0 => Ok(()),
            more => write!(out, " and {more} more"),
        }
    }
}

/// A step that ran out of memory, and is repeated.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct OomRetry {
    /// The step, counted from 1.
    pub step: u64,
    /// The allocator's message.
    pub message: String,
    /// Bytes of what is idle that left the device; unset when that was not what was done.
    pub offloaded: Option<u64>,
    /// Samples in one pass from now on; unset when something else is tried first.
    pub micro_batch: Option<u32>,
}

/// Tensors that did not come to the device at the first try since the last record of this kind.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlacementTrouble {
    /// Optimizer steps done; 0 for what the model needed before the first.
    pub step: u64,
    /// Tensors that needed another try, or stayed on the host.
    pub tensors: u64,
    /// Of these, those that arrived with other bytes than were sent: what verification found.
    pub mismatched: u64,
    /// Of these, those that stayed on the host.
    pub on_host: u64,
    /// Copies of streamed blocks that were made again.
    pub blocks: u64,
    /// What was tried with the first of them.
    pub first: Option<String>,
}

/// What a search for a learning rate ended with.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct FoundRate {
    /// Optimizer steps done.
    pub step: u64,
    /// The rate to train with; unset if none can be told.
    pub learning_rate: Option<f64>,
    /// Why this one, or why none.
    pub reason: String,
}

/// Blocks of the model that are streamed from now on: what a part of a run begins with.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Streaming {
    /// Optimizer steps done.
    pub step: u64,
    /// Bytes of the ring that they go through, on the device.
    pub ring_bytes: u64,
    /// Bytes of them in host memory.
    pub host_bytes: u64,
    /// Bytes of them in a file.
    pub disk_bytes: u64,
}

impl fmt::Display for OomRetry {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "step {:>6}  {}; ", self.step, self.message)?;
        match (self.offloaded, self.micro_batch) {
            (None, None) => formatter.write_str("freed what was cached, and trying it again"),
            (Some(offloaded), None) => write!(
                formatter,
                "offloaded what is idle in a step ({}), and trying it again",
                Bytes(offloaded)
            ),
            (_, Some(rows)) => write!(
                formatter,
                "trying it again with {rows} samples at a time, which learns the same"
            ),
        }
    }
}
