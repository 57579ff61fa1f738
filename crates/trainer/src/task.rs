//! What is trained: the seam between the loop and everything it does not want to know.
//!
//! A task owns a model and its data. The loop asks it for batches, losses,
//! evaluations and samples, and never looks inside a batch. Text is one task
//! ([`causal_lm`]); adapters on a pretrained model change only the model inside it;
//! a diffusion transformer with cached latents and a flow-matching loss is another
//! task beside it.

pub mod causal_lm;
pub mod fine_tune;
pub mod loss;

use std::path::Path;

use placement::{FieldPath, Placer};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tch::Tensor;

use crate::Error;
use crate::model::Parameters;

/// Something that can be trained.
pub trait Task {
    /// One line on the model for the start-up message.
    fn description(&self) -> String;

    /// One line on the data for the start-up message.
    fn data_description(&self) -> String;

    /// What the optimizer may change.
    fn parameters(&self) -> &Parameters;

    /// Whether the model knows something before the first step, so that it is worth a look
    /// then.
    fn starts_trained(&self) -> bool {
        false
    }

    /// The next batch, on the host.
    ///
    /// # Errors
    /// When the data cannot be read.
    fn next_batch(&mut self) -> Result<Batch, Error>;

    /// The mean loss of a batch that is on the device: a scalar with a gradient.
    ///
    /// # Errors
    /// When memory runs out.
    fn loss(&self, batch: &Batch) -> Result<Tensor, Error>;

    /// The loss on held-out data: on at most `limit` samples, or on all of them.
    ///
    /// # Errors
    /// When memory runs out.
    fn evaluate(&self, limit: Option<u64>, placer: &mut Placer) -> Result<Evaluation, Error>;

    /// Shows what the model has learned. `step` varies the random choices.
    ///
    /// # Errors
    /// When memory runs out.
    fn sample(&self, step: u64, placer: &mut Placer) -> Result<Vec<Sample>, Error>;

    /// Where the task stands in its data, for a checkpoint.
    ///
    /// # Errors
    /// When the state has no JSON form.
    fn data_state(&self) -> Result<Value, Error>;

    /// Continues from a state that [`Task::data_state`] gave.
    ///
    /// # Errors
    /// When the state is of other data.
    fn restore_data(&mut self, state: &Value) -> Result<(), Error>;

    /// Writes what others load into `folder`: weights, config, tokenizer.
    ///
    /// # Errors
    /// When a file cannot be written.
    fn export(&self, folder: &Path) -> Result<(), Error>;

    /// Name of the folder for [`Task::export`] in the run folder.
    fn export_name(&self) -> &'static str {
        "model"
    }
}

/// Tensors that go through one forward pass together, by name.
#[derive(Debug)]
pub struct Batch {
    tensors: Vec<(&'static str, Tensor)>,
    /// What throughput counts: tokens, for text.
    pub units: u64,
}

impl Batch {
    /// A batch of named tensors that counts as `units`.
    pub fn new(tensors: Vec<(&'static str, Tensor)>, units: u64) -> Self {
        Self { tensors, units }
    }

    /// The tensor of this name.
    ///
    /// # Errors
    /// When the batch was made for another task.
    pub fn get(&self, name: &str) -> Result<&Tensor, Error> {
        let found = self.tensors.iter().find(|(key, _)| *key == name);
        found
            .map(|(_, tensor)| tensor)
            .ok_or_else(|| Error::Internal(format!("a batch without `{name}`")))
    }
}

impl placement::Batch for Batch {
    fn try_map<E, F>(self, path: &FieldPath, map: &mut F) -> Result<Self, E>
    where
        F: FnMut(&FieldPath, Tensor) -> Result<Tensor, E>,
    {
        let Self { tensors, units } = self;
        let tensors = tensors
            .into_iter()
            .map(|(name, tensor)| Ok((name, map(&path.field(name), tensor)?)))
            .collect::<Result<_, E>>()?;
        Ok(Self { tensors, units })
    }
}

/// A loss on held-out data.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Evaluation {
    /// Mean loss of a unit: nats per token, for text.
    pub loss: f64,
    /// For text, nats per byte: the loss that is comparable between tokenizers.
    pub nats_per_byte: Option<f64>,
    /// Samples measured.
    pub samples: u64,
    /// Whether that was all held-out data.
    pub complete: bool,
}

/// Something the model made.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sample {
    /// What it was asked.
    pub prompt: String,
    /// What it answered.
    pub text: String,
}
