//! Recording a run: `metrics.jsonl`, TensorBoard events, curves.

mod jsonl;

use serde::{Deserialize, Serialize};

use crate::Error;
use crate::memory::MemorySample;
use crate::observer::Metrics;
use crate::run_folder::RunFolder;
use crate::task::Evaluation;

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
        eval_loss: f64,
        /// The same in nats per byte, for text.
        eval_nats_per_byte: Option<f64>,
        /// Whether all held-out data was measured.
        complete: bool,
    },
}

impl Record {
    /// The step a record belongs to.
    pub fn step(&self) -> u64 {
        match self {
            Self::Train { step, .. } | Self::Eval { step, .. } => *step,
        }
    }
}

/// Writes what a run measures.
pub(crate) struct Recorder {
    jsonl: jsonl::Writer,
    records: Vec<Record>,
}

impl Recorder {
    /// Starts the files of a new run, or continues those of a run resumed at `step`:
    /// what was recorded after it happens again, so it is removed.
    pub(crate) fn open(folder: &RunFolder, step: u64) -> Result<Self, Error> {
        let (jsonl, records) = jsonl::Writer::open(&folder.metrics(), step)?;
        Ok(Self { jsonl, records })
    }

    pub(crate) fn train(&mut self, metrics: &Metrics) -> Result<(), Error> {
        self.record(Record::Train {
            step: metrics.step,
            loss: metrics.loss,
            learning_rate: metrics.learning_rate,
            grad_norm: metrics.gradient_norm,
            tokens_per_second: metrics.units_per_second,
            memory: metrics.memory,
        })
    }

    pub(crate) fn evaluation(&mut self, step: u64, evaluation: &Evaluation) -> Result<(), Error> {
        self.record(Record::Eval {
            step,
            eval_loss: evaluation.loss,
            eval_nats_per_byte: evaluation.nats_per_byte,
            complete: evaluation.complete,
        })
    }

    fn record(&mut self, record: Record) -> Result<(), Error> {
        self.jsonl.write(&record)?;
        self.records.push(record);
        Ok(())
    }

    /// Training losses recorded, of earlier parts of a resumed run too.
    pub(crate) fn training_losses(&self) -> Vec<f64> {
        let loss = |record: &Record| match record {
            Record::Train { loss, .. } => Some(*loss),
            Record::Eval { .. } => None,
        };
        self.records.iter().filter_map(loss).collect()
    }
}
