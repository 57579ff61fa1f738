//! Recording a run: `metrics.jsonl`, TensorBoard events, curves.

mod jsonl;
mod plots;
mod tensorboard;

use serde::{Deserialize, Deserializer, Serialize};

use crate::Error;
use crate::memory::MemorySample;
use crate::observer::Metrics;
use crate::run::{Rollback, SkippedStep};
use crate::run_folder::RunFolder;
use crate::task::{Evaluation, Sample};

/// One line of `metrics.jsonl`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Record {
    /// A logged training step.
    Train {
        /// Optimizer steps done.
        step: u64,
        /// Mean training loss since the last record.
        loss: f64,
        /// Learning rate.
        learning_rate: f64,
        /// Norm of the gradient before clipping.
        grad_norm: f64,
        /// Throughput.
        tokens_per_second: f64,
        /// Memory.
        memory: MemorySample,
    },
    /// An evaluation.
    Eval {
        /// Optimizer steps done.
        step: u64,
        /// Mean held-out loss.
        #[serde(deserialize_with = "number_or_nan")]
        eval_loss: f64,
        /// The same in nats per byte, for text.
        eval_nats_per_byte: Option<f64>,
        /// Whether all held-out data was measured.
        complete: bool,
    },
    /// Generated text.
    Samples {
        /// Optimizer steps done.
        step: u64,
        /// One for each prompt.
        samples: Vec<Sample>,
    },
    /// A step that was skipped.
    Skipped(SkippedStep),
    /// A return to a checkpoint; it belongs to the step returned to.
    RolledBack(Rollback),
}

impl Record {
    /// The step a record belongs to.
    pub fn step(&self) -> u64 {
        match self {
            Self::Train { step, .. } | Self::Eval { step, .. } | Self::Samples { step, .. } => {
                *step
            }
            Self::Skipped(skipped) => skipped.step,
            Self::RolledBack(rollback) => rollback.to_step,
        }
    }
}

/// JSON has no NaN: a held-out loss that is none is written as `null`.
fn number_or_nan<'de, D: Deserializer<'de>>(deserializer: D) -> Result<f64, D::Error> {
    Ok(Option::<f64>::deserialize(deserializer)?.unwrap_or(f64::NAN))
}

/// Writes what a run measures.
pub(crate) struct Recorder {
    folder: RunFolder,
    jsonl: jsonl::Writer,
    tensorboard: tensorboard::Writer,
    records: Vec<Record>,
}

impl Recorder {
    /// Starts the files of a new run, or continues those of a run resumed at `step`:
    /// what was recorded after it happens again, so it is removed.
    pub(crate) fn open(folder: &RunFolder, step: u64) -> Result<Self, Error> {
        let (jsonl, records) = jsonl::Writer::open(&folder.metrics(), step)?;
        let tensorboard = tensorboard::Writer::create(folder.path(), step)?;
        let folder = folder.clone();
        Ok(Self {
            folder,
            jsonl,
            tensorboard,
            records,
        })
    }

    pub(crate) fn train(&mut self, metrics: &Metrics) -> Result<(), Error> {
        let Metrics {
            step,
            loss,
            learning_rate,
            gradient_norm,
            units_per_second,
            memory,
        } = *metrics;
        let mut values = vec![
            ("train/loss", loss),
            ("train/learning_rate", learning_rate),
            ("train/grad_norm", gradient_norm),
            ("train/tokens_per_second", units_per_second),
            ("memory/resident", memory.resident as f64),
        ];
        let counted = [
            ("memory/live", memory.live),
            ("memory/held", memory.held),
            ("memory/live_peak", memory.live_peak),
            ("memory/held_peak", memory.held_peak),
        ];
        values.extend(
            counted
                .iter()
                .filter_map(|(tag, bytes)| Some((*tag, (*bytes)? as f64))),
        );
        self.tensorboard.scalars(step, &values)?;
        self.record(Record::Train {
            step,
            loss,
            learning_rate,
            grad_norm: gradient_norm,
            tokens_per_second: units_per_second,
            memory,
        })
    }

    pub(crate) fn evaluation(&mut self, step: u64, evaluation: &Evaluation) -> Result<(), Error> {
        let mut values = vec![("eval/loss", evaluation.loss)];
        values.extend(
            evaluation
                .nats_per_byte
                .map(|nats| ("eval/nats_per_byte", nats)),
        );
        self.tensorboard.scalars(step, &values)?;
        self.record(Record::Eval {
            step,
            eval_loss: evaluation.loss,
            eval_nats_per_byte: evaluation.nats_per_byte,
            complete: evaluation.complete,
        })
    }

    pub(crate) fn samples(&mut self, step: u64, samples: &[Sample]) -> Result<(), Error> {
        self.record(Record::Samples {
            step,
            samples: samples.to_vec(),
        })
    }

    pub(crate) fn skipped(&mut self, step: &SkippedStep) -> Result<(), Error> {
        self.tensorboard
            .scalars(step.step, &[("train/skipped", 1.0)])?;
        self.record(Record::Skipped(step.clone()))
    }

    pub(crate) fn rolled_back(&mut self, rollback: &Rollback) -> Result<(), Error> {
        self.record(Record::RolledBack(rollback.clone()))
    }

    /// Draws the curves anew.
    pub(crate) fn draw(&self) -> Result<(), Error> {
        plots::loss(&self.folder.join("loss.svg"), &self.records)?;
        plots::memory(&self.folder.join("memory.svg"), &self.records)
    }

    fn record(&mut self, record: Record) -> Result<(), Error> {
        self.jsonl.write(&record)?;
        self.records.push(record);
        Ok(())
    }

    /// Everything recorded, of earlier parts of a resumed run too.
    pub(crate) fn records(&self) -> &[Record] {
        &self.records
    }

    /// Training losses recorded, of earlier parts of a resumed run too.
    pub(crate) fn training_losses(&self) -> Vec<f64> {
        let loss = |record: &Record| match record {
            Record::Train { loss, .. } => Some(*loss),
            _ => None,
        };
        self.records.iter().filter_map(loss).collect()
    }
}
