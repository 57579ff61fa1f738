//! The interface between the loop and everything it does not need to know.
//!
//! A task owns a model and its data. The loop asks it for batches, losses, evaluations and samples, and never
//! looks inside a batch. Language models are one task ([`causal_lm`]), adapters on pretrained models another,
//! and diffusion transformers with cached latents and a flow-matching loss a third.

mod base_model;
mod blocks;
pub mod causal_lm;
mod clip_order;
pub mod diffusion;
mod epochs;
pub mod fine_tune;
mod fine_tune_data;
pub(crate) mod fit;
mod held_out;
mod measures;
mod mixture;
mod preference;
mod sequences;
mod share;
mod shown;

use std::borrow::Cow;
use std::ops::Range;
use std::path::Path;

use placement::swap::SwapReport;
use placement::{FieldPath, Placer};
use serde::Serialize;
use serde_json::Value;
use tch::Tensor;

use crate::Error;
use crate::estimate::Footprint;
use crate::events::Sample;
use crate::memory_plan::MemoryPlan;
use crate::pass_size::PassSize;
use models::Parameters;

pub use epochs::Epochs;
pub(crate) use epochs::{steps_left, steps_of};
pub use measures::{Measures, Reference};
pub use share::{EvaluationSums, Share};
pub use shown::{Piece, ShownData, ShownExample, ShownRow};

/// Something that can be trained.
pub trait Task {
    /// One line on the model for the start-up message.
    fn description(&self) -> String;

    /// One line on the data for the start-up message.
    fn data_description(&self) -> String;

    /// Which kernel attention runs and why, for the start-up message, where that is known.
    fn attention(&self) -> Option<&str> {
        None
    }

    /// The trainable parameters.
    fn parameters(&self) -> &Parameters;

    /// Groups of parameters that are trained in turns, for tasks that train several models in one run: each
    /// step trains one group. The ranges are consecutive and cover all parameters. Empty if every step trains
    /// all of them.
    fn turns(&self) -> Vec<AlternatingGroup> {
        Vec::new()
    }

    /// Prepares the step after `steps` steps, and returns the index of the group it trains, in
    /// [`Task::turns`]. Called before the batches of a step, and again if the step is repeated.
    ///
    /// # Errors
    /// If memory runs out.
    fn begin_step(&mut self, _steps: u64, _placer: &mut Placer) -> Result<usize, Error> {
        Ok(0)
    }

    /// The device memory that a step needs, estimated before the first one.
    fn footprint(&self) -> Footprint;

    /// How many samples are in a pass, where memory decides it (`train.per_device_train_batch_size: auto`). A task that does
    /// not choose has those of a step in one pass, until memory runs out.
    fn pass_size(&self) -> Option<&PassSize> {
        None
    }

    /// The memory plan, if the config requests one.
    fn memory_plan(&self) -> Option<&MemoryPlan> {
        None
    }

    /// Statistics of streaming, if part of the model is streamed.
    fn streamed(&self) -> Option<SwapReport> {
        None
    }

    /// Named handles ([`Tensor::shallow_clone`]) to tensors that the task keeps on the device but steps do
    /// not use: a teacher, an encoder or a decoder that only [`Task::evaluate`], [`Task::sample`] and
    /// [`Task::export`] need. If memory is short, they are offloaded (empty, or on the CPU) during
    /// [`Task::next_batch`], [`Task::micro_batches`] and [`Task::loss`], and restored for those three. The
    /// tasks in this crate have none; the loop handles the optimizer's moments and averaged weights itself.
    fn idle_in_steps(&self) -> Vec<(String, Tensor)> {
        Vec::new()
    }

    /// Whether the model is pretrained, so that it is worth evaluating before the first step.
    fn starts_trained(&self) -> bool {
        false
    }

    /// The next batch, on the host.
    ///
    /// # Errors
    /// If the data cannot be read.
    fn next_batch(&mut self) -> Result<Batch, Error>;

    /// The epochs of the data, if the task has them; otherwise `train.num_train_epochs` and the strategy
    /// `epoch` are not available. If the config uses either, no batch spans two epochs.
    fn epochs(&self) -> Option<&dyn Epochs> {
        None
    }

    /// The weight of a host batch's mean loss relative to other batches: its number of targets.
    ///
    /// # Errors
    /// If the batch belongs to another task.
    fn loss_weight(&self, batch: &Batch) -> Result<f64, Error> {
        Ok(batch.units as f64)
    }

    /// Splits a host batch into pieces of at most `rows` samples, each with its share of the batch's mean
    /// loss.
    ///
    /// # Errors
    /// If the batch belongs to another task, or its tensors have different lengths.
    fn micro_batches(&self, batch: Batch, rows: i64) -> Result<Vec<(Batch, f64)>, Error> {
        divided(batch, rows, &|batch| self.loss_weight(batch))
    }

    /// What is measured beside the loss, if anything is.
    fn measures(&self) -> Option<&dyn Measures> {
        None
    }

    /// What the task needs of the model before the first step, if anything.
    fn reference(&mut self) -> Option<&mut dyn Reference> {
        None
    }

    /// The mean loss of a batch that is on the device: a scalar with a gradient.
    ///
    /// # Errors
    /// If memory runs out.
    fn loss(&self, batch: &Batch) -> Result<Tensor, Error>;

    /// Whether there is held-out data; otherwise the loop never evaluates.
    fn evaluates(&self) -> bool {
        true
    }

    /// The loss on held-out data, on at most `limit` samples of all processes together or on all of them: one process's
    /// share of the sums.
    ///
    /// # Errors
    /// If memory runs out.
    fn evaluate(
        &self,
        limit: Option<u64>,
        share: Share,
        placer: &mut Placer,
    ) -> Result<EvaluationSums, Error>;

    /// One process's share of the samples, each with its number in the whole. `step` varies the random choices. Output
    /// that is not text is written to `folder`, which is created if necessary, and referenced by its file name, which is
    /// unique across shares.
    ///
    /// # Errors
    /// If memory runs out.
    fn sample(
        &self,
        step: u64,
        share: Share,
        folder: &Path,
        placer: &mut Placer,
    ) -> Result<Vec<(usize, Sample)>, Error>;

    /// The position in the data, for a checkpoint. Its key `order`, if present, identifies the next batch for
    /// users.
    ///
    /// # Errors
    /// If the state cannot be represented as JSON.
    fn data_state(&self) -> Result<Value, Error>;

    /// Continues from a state returned by [`Task::data_state`].
    ///
    /// # Errors
    /// If the state belongs to other data.
    fn restore_data(&mut self, state: &Value) -> Result<(), Error>;

    /// What the training is based on and must not change when a run is resumed: the architecture, a
    /// fingerprint of frozen weights, the shape of an adapter. Differences are reported by key.
    ///
    /// # Errors
    /// If weights cannot be read.
    fn identity(&self) -> Result<Value, Error> {
        Ok(Value::Null)
    }

    /// Writes only the adapter to `folder`, for tasks that train one; done for every checkpoint and for a
    /// stopped run. Returns whether there is one.
    ///
    /// # Errors
    /// If a file cannot be written.
    fn export_adapter(&self, _folder: &Path) -> Result<bool, Error> {
        Ok(false)
    }

    /// Writes what belongs to a model besides its weights, where nothing else has that: a checkpoint can then be used alone.
    ///
    /// # Errors
    /// If a file cannot be written.
    fn export_companions(&self, _folder: &Path) -> Result<(), Error> {
        Ok(())
    }

    /// Writes the model for other programs to `folder`: weights, config, tokenizer.
    ///
    /// # Errors
    /// If a file cannot be written.
    fn export(&self, folder: &Path) -> Result<(), Error>;

    /// What can be done with what [`Task::export`] writes, if `surefoot generate` can load it.
    fn usable(&self) -> Option<Usable<'_>> {
        None
    }

    /// Name of the folder for [`Task::export`] in the run folder.
    fn export_name(&self) -> &'static str {
        "model"
    }
}

/// What a model makes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Makes {
    /// Texts.
    Text,
    /// Answers in a chat.
    Chat,
    /// Pictures.
    Image,
    /// Videos, and pictures as videos of one frame.
    Video,
}

impl Makes {
    /// What a language model makes.
    pub(crate) fn of_language(model: &models::pretrained::Pretrained) -> Self {
        match model.chat_template {
            Some(_) => Self::Chat,
            None => Self::Text,
        }
    }

    /// What a diffusion model makes.
    pub(crate) fn of(model: &dyn models::diffusion::Diffusion) -> Self {
        match model.geometry().frames {
            Some(_) => Self::Video,
            None => Self::Image,
        }
    }
}

/// A model that other commands can load.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Usable<'a> {
    /// The name of its architecture.
    pub architecture: &'a str,
    /// What it makes.
    pub makes: Makes,
    /// Whether `surefoot export gguf` can write it.
    pub gguf: bool,
    /// Whether its files are those of a larger model, of which it is the part that reads and writes text.
    pub is_part: bool,
}

/// Pieces of a batch of at most `rows` samples, each with its share of the batch's mean loss by `weight`.
fn divided(
    batch: Batch,
    rows: i64,
    weight: &dyn Fn(&Batch) -> Result<f64, Error>,
) -> Result<Vec<(Batch, f64)>, Error> {
    if batch.rows()? <= rows {
        return Ok(vec![(batch, 1.0)]);
    }
    let whole = weight(&batch)?;
    let pieces = batch.split(rows)?.into_iter();
    pieces
        .map(|piece| {
            // Without targets the loss is zero, however it is divided.
            let share = weight(&piece)? / whole.max(1.0);
            Ok((piece, share))
        })
        .collect()
}

/// Parameters that are trained together, in turns with other groups.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AlternatingGroup {
    /// The name in records and messages.
    pub name: &'static str,
    /// Their indices in [`Task::parameters`].
    pub parameters: Range<usize>,
}

/// Tensors that go through one forward pass together, by name.
#[derive(Debug)]
pub struct Batch {
    tensors: Vec<(Cow<'static, str>, Tensor)>,
    /// The unit of throughput: for text, the number of tokens without padding.
    pub units: u64,
}

impl Batch {
    /// A batch of named tensors that counts as `units`.
    pub fn new<N: Into<Cow<'static, str>>>(tensors: Vec<(N, Tensor)>, units: u64) -> Self {
        let tensors = tensors.into_iter();
        Self {
            tensors: tensors
                .map(|(name, tensor)| (name.into(), tensor))
                .collect(),
            units,
        }
    }

    /// Adds a tensor.
    pub(crate) fn add(&mut self, name: &'static str, tensor: Tensor) {
        self.tensors.push((name.into(), tensor));
    }

    /// Number of samples: the length of every tensor.
    ///
    /// # Errors
    /// If the lengths differ.
    pub fn rows(&self) -> Result<i64, Error> {
        let mut lengths = self.tensors.iter().map(|(_, tensor)| tensor.size());
        let length = |size: Option<Vec<i64>>| size.and_then(|size| size.first().copied());
        let first = length(lengths.next()).unwrap_or(0);
        match lengths.all(|size| size.first() == Some(&first)) {
            true => Ok(first),
            false => Err(Error::Internal("a batch of different lengths".into())),
        }
    }

    /// Splits it into pieces of at most `rows` samples, in order, with their share of the units.
    ///
    /// # Errors
    /// If the tensors have different lengths.
    pub fn split(&self, rows: i64) -> Result<Vec<Self>, Error> {
        let (all, rows) = (self.rows()?, rows.max(1));
        let starts = (0..all).step_by(rows as usize);
        starts
            .map(|start| self.narrow(start, rows.min(all - start)))
            .collect()
    }

    /// `length` samples from `start` on, with their share of the units.
    ///
    /// # Errors
    /// If there are fewer, or the tensors have different lengths.
    pub fn narrow(&self, start: i64, length: i64) -> Result<Self, Error> {
        let all = self.rows()?.max(1) as u64;
        let units_before = |row: i64| self.units * row as u64 / all;
        let narrow = |(name, tensor): &(Cow<'static, str>, Tensor)| {
            Ok((name.clone(), tensor.f_narrow(0, start, length)?))
        };
        let tensors = self.tensors.iter().map(narrow);
        Ok(Self {
            tensors: tensors.collect::<Result<_, Error>>()?,
            units: units_before(start + length) - units_before(start),
        })
    }

    /// A second handle to the same tensors.
    pub(crate) fn shallow_clone(&self) -> Self {
        let tensors = self.tensors.iter();
        Self {
            tensors: tensors
                .map(|(name, tensor)| (name.clone(), tensor.shallow_clone()))
                .collect(),
            units: self.units,
        }
    }

    /// Names and tensors.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &Tensor)> {
        let tensors = self.tensors.iter();
        tensors.map(|(name, tensor)| (name.as_ref(), tensor))
    }

    /// The tensor of this name, if the batch has one.
    pub fn find(&self, name: &str) -> Option<&Tensor> {
        let found = self.tensors.iter().find(|(key, _)| *key == name);
        found.map(|(_, tensor)| tensor)
    }

    /// The tensor of this name.
    ///
    /// # Errors
    /// If the batch belongs to another task.
    pub fn get(&self, name: &str) -> Result<&Tensor, Error> {
        self.find(name)
            .ok_or_else(|| Error::Internal(format!("a batch without `{name}`")))
    }
}

impl placement::TensorTree for Batch {
    fn try_map<E, F>(self, path: &FieldPath, map: &mut F) -> Result<Self, E>
    where
        F: FnMut(&FieldPath, Tensor) -> Result<Tensor, E>,
    {
        let Self { tensors, units } = self;
        let tensors = tensors
            .into_iter()
            .map(|(name, tensor)| {
                let mapped = map(&path.field(&name), tensor)?;
                Ok((name, mapped))
            })
            .collect::<Result<_, E>>()?;
        Ok(Self { tensors, units })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn batch(rows: i64, units: u64) -> Batch {
        let tensor = Tensor::arange(rows * 3, (tch::Kind::Int64, tch::Device::Cpu));
        Batch::new(vec![("tokens", tensor.view([rows, 3]))], units)
    }

    #[test]
    fn pieces_are_the_batch_in_order_and_share_its_units() {
        let whole = batch(5, 15);
        let pieces = whole.split(2).unwrap();
        let rows: Vec<_> = pieces.iter().map(|piece| piece.rows().unwrap()).collect();
        let units: Vec<_> = pieces.iter().map(|piece| piece.units).collect();
        assert_eq!((rows, units), (vec![2, 2, 1], vec![6, 6, 3]));
        let tensors: Vec<_> = pieces.iter().map(|p| p.get("tokens").unwrap()).collect();
        assert_eq!(&Tensor::cat(&tensors, 0), whole.get("tokens").unwrap());
    }

    #[test]
    fn tensors_of_different_lengths_are_not_cut() {
        let tensors = [2, 3].map(|rows| ("x", Tensor::zeros([rows], tch::kind::FLOAT_CPU)));
        assert!(Batch::new(tensors.into(), 1).split(1).is_err());
    }
}
