//! What is trained: the seam between the loop and everything it does not want to know.
//!
//! A task owns a model and its data. The loop asks it for batches, losses,
//! evaluations and samples, and never looks inside a batch. Text is one task
//! ([`causal_lm`]); adapters on a pretrained model change only the model inside it;
//! a diffusion transformer with cached latents and a flow-matching loss is another
//! task beside it.

mod base_model;
mod blocks;
pub mod causal_lm;
mod clip_order;
mod epochs;
pub mod fine_tune;
mod fine_tune_data;
mod held_out;
mod sequences;
mod share;
mod shown;
pub mod wan;

use std::ops::Range;
use std::path::Path;

use placement::swap::SwapReport;
use placement::{FieldPath, Placer};
use serde_json::Value;
use tch::Tensor;

use crate::Error;
use crate::estimate::Footprint;
use crate::events::{Evaluation, Sample};
use crate::memory_plan::MemoryPlan;
use models::Parameters;

pub use epochs::Epochs;
pub(crate) use epochs::{steps_left, steps_of};
pub use share::{EvaluationSums, Share};
pub use shown::{Piece, ShownData, ShownExample, ShownRow};

/// Something that can be trained.
pub trait Task {
    /// One line on the model for the start-up message.
    fn description(&self) -> String;

    /// One line on the data for the start-up message.
    fn data_description(&self) -> String;

    /// What the optimizer may change.
    fn parameters(&self) -> &Parameters;

    /// The parameters that learn in turn, of tasks that train several models in one run: a step is one
    /// turn's. Together the ranges are all parameters, in order. None where all learn in every step.
    fn turns(&self) -> Vec<Turn> {
        Vec::new()
    }

    /// Gets ready for the step after `steps` steps, and says whose turn it is: a number in
    /// [`Task::turns`]. It is asked before the batches of a step, and again when a step is repeated.
    ///
    /// # Errors
    /// When memory runs out.
    fn begin_step(&mut self, _steps: u64, _placer: &mut Placer) -> Result<usize, Error> {
        Ok(0)
    }

    /// What a step needs of the device's memory, before any was made.
    fn footprint(&self) -> Footprint;

    /// What lives where, if the config asked for a plan.
    fn memory_plan(&self) -> Option<&MemoryPlan> {
        None
    }

    /// What streaming did so far, if a part of the model is streamed.
    fn streamed(&self) -> Option<SwapReport> {
        None
    }

    /// Handles ([`Tensor::shallow_clone`]) on what the task has on the device and a step does not
    /// use, by name: a teacher, an encoder or a decoder that only [`Task::evaluate`],
    /// [`Task::sample`] and [`Task::export`] need. Where memory is short, it is away (empty, or on
    /// the CPU) in [`Task::next_batch`], [`Task::micro_batches`] and [`Task::loss`], and back in those
    /// three. The tasks here have nothing of the kind; the optimizer's moments and averaged
    /// weights are the loop's own.
    fn idle_in_steps(&self) -> Vec<(String, Tensor)> {
        Vec::new()
    }

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

    /// The passes over the data, of a task that has them: without, neither `train.num_train_epochs` nor
    /// the strategy `epoch` is possible. Where the config asks for one of them, no batch is of two passes.
    fn epochs(&self) -> Option<&dyn Epochs> {
        None
    }

    /// What the mean loss of a batch on the host counts for beside those of others: how much
    /// there is to learn in it.
    ///
    /// # Errors
    /// When the batch is of another task.
    fn loss_weight(&self, batch: &Batch) -> Result<f64, Error> {
        Ok(batch.units as f64)
    }

    /// A batch on the host in pieces of at most `rows` samples, each with its share of the
    /// batch's mean loss.
    ///
    /// # Errors
    /// When the batch is of another task, or its tensors are of different lengths.
    fn micro_batches(&self, batch: Batch, rows: i64) -> Result<Vec<(Batch, f64)>, Error> {
        if batch.rows()? <= rows {
            return Ok(vec![(batch, 1.0)]);
        }
        let whole = self.loss_weight(&batch)?;
        let pieces = batch.split(rows)?.into_iter();
        pieces
            .map(|piece| {
                // Where there is nothing to learn, the loss is zero, however it is divided.
                let share = self.loss_weight(&piece)? / whole.max(1.0);
                Ok((piece, share))
            })
            .collect()
    }

    /// The mean loss of a batch that is on the device: a scalar with a gradient.
    ///
    /// # Errors
    /// When memory runs out.
    fn loss(&self, batch: &Batch) -> Result<Tensor, Error>;

    /// Whether anything is held out to be measured on; without, the loop never asks for an
    /// evaluation.
    fn evaluates(&self) -> bool {
        true
    }

    /// The loss on held-out data: on at most `limit` samples, or on all of them.
    ///
    /// # Errors
    /// When memory runs out.
    fn evaluate(&self, limit: Option<u64>, placer: &mut Placer) -> Result<Evaluation, Error>;

    /// What [`Task::evaluate`] makes its numbers of, for one of several processes, with the same limit for all; `None` for a
    /// task whose held-out data every process measures whole.
    ///
    /// # Errors
    /// As [`Task::evaluate`].
    fn evaluate_share(
        &self,
        _: Option<u64>,
        _: Share,
        _: &mut Placer,
    ) -> Result<Option<EvaluationSums>, Error> {
        Ok(None)
    }

    /// Shows what the model has learned. `step` varies the random choices. What is no text goes into
    /// `folder`, which is made if there is any, and the samples name it by the names there.
    ///
    /// # Errors
    /// When memory runs out.
    fn sample(&self, step: u64, folder: &Path, placer: &mut Placer) -> Result<Vec<Sample>, Error>;

    /// Where the task stands in its data, for a checkpoint. Its key `order`, where there is
    /// one, names the next batch to people.
    ///
    /// # Errors
    /// When the state has no JSON form.
    fn data_state(&self) -> Result<Value, Error>;

    /// Continues from a state that [`Task::data_state`] gave.
    ///
    /// # Errors
    /// When the state is of other data.
    fn restore_data(&mut self, state: &Value) -> Result<(), Error>;

    /// What the training stands on and must be the same when a run is resumed: the architecture, a
    /// fingerprint of frozen weights, the shape of an adapter. What differs is told by the keys.
    ///
    /// # Errors
    /// When weights cannot be read.
    fn identity(&self) -> Result<Value, Error> {
        Ok(Value::Null)
    }

    /// Writes the adapter alone into `folder`, of tasks that train one: every checkpoint has it, and
    /// a run that was stopped. Returns whether there is one.
    ///
    /// # Errors
    /// When a file cannot be written.
    fn export_adapter(&self, _folder: &Path) -> Result<bool, Error> {
        Ok(false)
    }

    /// Writes what others load into `folder`: weights, config, tokenizer.
    ///
    /// # Errors
    /// When a file cannot be written.
    fn export(&self, folder: &Path) -> Result<(), Error>;

    /// Whether `surefoot generate` and `surefoot eval` load what [`Task::export`] writes.
    fn is_language_model(&self) -> bool {
        false
    }

    /// Name of the folder for [`Task::export`] in the run folder.
    fn export_name(&self) -> &'static str {
        "model"
    }
}

/// Parameters that learn together, in steps of their own.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Turn {
    /// What records and messages call them.
    pub name: &'static str,
    /// Their positions in [`Task::parameters`].
    pub parameters: Range<usize>,
}

/// Tensors that go through one forward pass together, by name.
#[derive(Debug)]
pub struct Batch {
    tensors: Vec<(&'static str, Tensor)>,
    /// What throughput counts: tokens, for text, padding left out.
    pub units: u64,
}

impl Batch {
    /// A batch of named tensors that counts as `units`.
    pub fn new(tensors: Vec<(&'static str, Tensor)>, units: u64) -> Self {
        Self { tensors, units }
    }

    /// Samples: the length of every tensor.
    ///
    /// # Errors
    /// When they differ.
    pub fn rows(&self) -> Result<i64, Error> {
        let mut lengths = self.tensors.iter().map(|(_, tensor)| tensor.size());
        let length = |size: Option<Vec<i64>>| size.and_then(|size| size.first().copied());
        let first = length(lengths.next()).unwrap_or(0);
        match lengths.all(|size| size.first() == Some(&first)) {
            true => Ok(first),
            false => Err(Error::Internal("a batch of different lengths".into())),
        }
    }

    /// Pieces of at most `rows` samples, in order, with their part of the units.
    ///
    /// # Errors
    /// When the tensors have different lengths.
    pub fn split(&self, rows: i64) -> Result<Vec<Self>, Error> {
        let (all, rows) = (self.rows()?, rows.max(1));
        let units_before = |row: i64| self.units * row as u64 / all.max(1) as u64;
        (0..all)
            .step_by(rows as usize)
            .map(|start| {
                let length = rows.min(all - start);
                let narrow = |(name, tensor): &(&'static str, Tensor)| {
                    Ok((*name, tensor.f_narrow(0, start, length)?))
                };
                let tensors = self.tensors.iter().map(narrow);
                Ok(Self {
                    tensors: tensors.collect::<Result<_, Error>>()?,
                    units: units_before(start + length) - units_before(start),
                })
            })
            .collect()
    }

    /// The same batch, of the same tensors.
    pub(crate) fn shallow_clone(&self) -> Self {
        let tensors = self.tensors.iter();
        Self {
            tensors: tensors
                .map(|(name, tensor)| (*name, tensor.shallow_clone()))
                .collect(),
            units: self.units,
        }
    }

    /// The tensor of this name, if the batch has one.
    pub fn find(&self, name: &str) -> Option<&Tensor> {
        let found = self.tensors.iter().find(|(key, _)| *key == name);
        found.map(|(_, tensor)| tensor)
    }

    /// The tensor of this name.
    ///
    /// # Errors
    /// When the batch was made for another task.
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
            .map(|(name, tensor)| Ok((name, map(&path.field(name), tensor)?)))
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
