//! Recording a run: `metrics.jsonl`, TensorBoard events, curves, and trackers.

mod jsonl;
mod plots;
mod tensorboard;
mod trackers;

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Write;

use serde::{Deserialize, Deserializer, Serialize};

use crate::Error;
use crate::events::{
    Evaluation, FoundRate, Metrics, OomRetry, PlacementTrouble, Rollback, Sample, SkippedStep,
    Streaming, TurnMetrics,
};
use crate::memory::MemorySample;
use crate::resume::Change;
use crate::run_folder::{RunFolder, replace};

pub(crate) use trackers::{Trackers, expect_addresses};

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
        /// Learning rate of this step.
        learning_rate: f64,
        /// Norm of the gradient before clipping.
        grad_norm: f64,
        /// Tokens trained on per second.
        tokens_per_second: f64,
        /// Memory in use at this step.
        memory: MemorySample,
        /// Loss and gradient norm of each of the models that learn in turn, by name.
        #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
        turns: BTreeMap<String, TurnMetrics>,
        /// What is measured beside the loss, by name.
        #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
        measures: BTreeMap<String, f64>,
    },
    /// An evaluation on held-out data.
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
        /// The loss of each of the models that learn in turn, by name.
        #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
        turns: BTreeMap<String, f64>,
        /// What is measured beside the loss, by name.
        #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
        measures: BTreeMap<String, f64>,
    },
    /// Text that the model generated from the prompts.
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
    /// A step that ran out of memory and was repeated.
    OutOfMemory(OomRetry),
    /// Tensors that needed more than one try to come to the device.
    Placement(PlacementTrouble),
    /// Blocks of the model are streamed from here on.
    Streaming(Streaming),
    /// The run was resumed with another config.
    Resumed {
        /// Optimizer steps done.
        step: u64,
        /// What is in force from the next step on, and was not before.
        changes: Vec<Change>,
    },
    /// What a search for a learning rate ended with; the records of its steps are the curve.
    LearningRate(FoundRate),
    /// A page fault on the GPU had ended the run, and it was started again.
    Restarted {
        /// Optimizer steps done.
        step: u64,
        /// How often that happened so far.
        restart: u32,
    },
}

impl Record {
    /// The step a record belongs to.
    pub fn step(&self) -> u64 {
        match self {
            Self::Train { step, .. }
            | Self::Eval { step, .. }
            | Self::Samples { step, .. }
            | Self::Resumed { step, .. }
            | Self::Restarted { step, .. } => *step,
            Self::Skipped(skipped) => skipped.step,
            Self::RolledBack(rollback) => rollback.to_step,
            Self::OutOfMemory(retry) => retry.step,
            Self::Placement(trouble) => trouble.step,
            Self::Streaming(streaming) => streaming.step,
            Self::LearningRate(found) => found.step,
        }
    }
}

/// JSON has no NaN: a held-out loss that is none is written as `null`.
fn number_or_nan<'de, D: Deserializer<'de>>(deserializer: D) -> Result<f64, D::Error> {
    Ok(Option::<f64>::deserialize(deserializer)?.unwrap_or(f64::NAN))
}

/// The name of the file of samples.
const SAMPLES: &str = "samples.txt";

fn samples_text(step: u64, samples: &[Sample]) -> String {
    let shown = samples.iter();
    let shown = shown.map(|sample| {
        let files: String = sample
            .files
            .iter()
            .map(|file| format!("{file}\n"))
            .collect();
        format!("--- {:?} ---\n{}\n{files}", sample.prompt, sample.text)
    });
    format!("=== step {step} ===\n{}", shown.collect::<String>())
}

/// Writes what a run measures.
pub(crate) struct Recorder {
    /// `None` where another rank writes.
    files: Option<Files>,
    pub(crate) trackers: Trackers,
    records: Vec<Record>,
}

struct Files {
    folder: RunFolder,
    jsonl: jsonl::Writer,
    tensorboard: tensorboard::Writer,
}

impl Recorder {
    /// Starts the files of a new run, or continues those of a run resumed at `step` with
    /// `at_step` records of that step: what was recorded after them happens again, so it is removed.
    pub(crate) fn open(folder: &RunFolder, step: u64, at_step: u64) -> Result<Self, Error> {
        if !folder.is_written_here() {
            return Ok(Self {
                files: None,
                trackers: Trackers::default(),
                records: Vec::new(),
            });
        }
        let (jsonl, records) = jsonl::Writer::open(&folder.metrics(), step, at_step)?;
        let samples = records.iter().filter_map(|record| match record {
            Record::Samples { step, samples } => Some(samples_text(*step, samples)),
            _ => None,
        });
        let samples: String = samples.collect();
        let path = folder.join(SAMPLES);
        if !samples.is_empty() || path.exists() {
            replace(&path, &samples)?;
        }
        let tensorboard = tensorboard::Writer::create(folder.path(), step)?;
        let folder = folder.clone();
        let files = Files {
            folder,
            jsonl,
            tensorboard,
        };
        Ok(Self {
            files: Some(files),
            trackers: Trackers::default(),
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
            ref turns,
            ref measures,
        } = *metrics;
        let mut tags: Vec<_> = turns
            .iter()
            .flat_map(|(name, turn)| {
                [
                    (format!("train/loss_{name}"), turn.loss),
                    (format!("train/grad_norm_{name}"), turn.grad_norm),
                ]
            })
            .collect();
        tags.extend(
            measures
                .iter()
                .map(|(name, value)| (format!("train/{name}"), *value)),
        );
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
        values.extend(tags.iter().map(|(tag, value)| (tag.as_str(), *value)));
        self.scalars(step, &values)?;
        self.record(Record::Train {
            step,
            loss,
            learning_rate,
            grad_norm: gradient_norm,
            tokens_per_second: units_per_second,
            memory,
            turns: turns.clone(),
            measures: measures.clone(),
        })
    }

    pub(crate) fn evaluation(&mut self, step: u64, evaluation: &Evaluation) -> Result<(), Error> {
        let turns = evaluation.turns.iter();
        let turns = turns.map(|(name, loss)| (format!("eval/loss_{name}"), *loss));
        let measures = evaluation.measures.iter();
        let measures = measures.map(|(name, value)| (format!("eval/{name}"), *value));
        let tags: Vec<_> = turns.chain(measures).collect();
        let mut values = vec![("eval/loss", evaluation.loss)];
        values.extend(tags.iter().map(|(tag, loss)| (tag.as_str(), *loss)));
        values.extend(
            evaluation
                .nats_per_byte
                .map(|nats| ("eval/nats_per_byte", nats)),
        );
        self.scalars(step, &values)?;
        self.record(Record::Eval {
            step,
            eval_loss: evaluation.loss,
            eval_nats_per_byte: evaluation.nats_per_byte,
            complete: evaluation.complete,
            turns: evaluation.turns.clone(),
            measures: evaluation.measures.clone(),
        })
    }

    pub(crate) fn samples(&mut self, step: u64, samples: &[Sample]) -> Result<(), Error> {
        if let Some(files) = &self.files {
            let path = files.folder.join(SAMPLES);
            File::options()
                .create(true)
                .append(true)
                .open(&path)
                .and_then(|mut file| file.write_all(samples_text(step, samples).as_bytes()))
                .map_err(|error| Error::io("write", &path, error))?;
        }
        self.record(Record::Samples {
            step,
            samples: samples.to_vec(),
        })
    }

    pub(crate) fn skipped(&mut self, step: &SkippedStep) -> Result<(), Error> {
        self.scalars(step.step, &[("train/skipped", 1.0)])?;
        self.record(Record::Skipped(step.clone()))
    }

    pub(crate) fn resumed(&mut self, step: u64, changes: Vec<Change>) -> Result<(), Error> {
        self.record(Record::Resumed { step, changes })
    }

    pub(crate) fn found_rate(&mut self, found: &FoundRate) -> Result<(), Error> {
        self.record(Record::LearningRate(found.clone()))
    }

    pub(crate) fn restarted(&mut self, step: u64, restart: u32) -> Result<(), Error> {
        self.record(Record::Restarted { step, restart })
    }

    pub(crate) fn rolled_back(&mut self, rollback: &Rollback) -> Result<(), Error> {
        self.record(Record::RolledBack(rollback.clone()))
    }

    pub(crate) fn out_of_memory(&mut self, retry: &OomRetry) -> Result<(), Error> {
        self.record(Record::OutOfMemory(retry.clone()))
    }

    pub(crate) fn placement(&mut self, trouble: PlacementTrouble) -> Result<(), Error> {
        self.record(Record::Placement(trouble))
    }

    pub(crate) fn streaming(&mut self, streaming: Streaming) -> Result<(), Error> {
        self.record(Record::Streaming(streaming))
    }

    /// Draws the curves anew; losses are measured in `unit`.
    pub(crate) fn draw(&self, unit: &str) -> Result<(), Error> {
        let Some(Files { folder, .. }) = &self.files else {
            return Ok(());
        };
        plots::loss(&folder.join("loss.svg"), &self.records, unit)?;
        plots::memory(&folder.join("memory.svg"), &self.records)
    }

    fn scalars(&mut self, step: u64, values: &[(&str, f64)]) -> Result<(), Error> {
        self.trackers.scalars(step, values);
        match &mut self.files {
            Some(files) => files.tensorboard.scalars(step, values),
            None => Ok(()),
        }
    }

    fn record(&mut self, record: Record) -> Result<(), Error> {
        if let Some(files) = &mut self.files {
            files.jsonl.write(&record)?;
        }
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
