//! A folder with a text, the runs that train a tiny model on it, and what they recorded.

use std::fs;
use std::path::{Path, PathBuf};

use surefoot_trainer::{Allocator, Config, Error, NoObserver, Observer, Record, Stop, Summary};

const MODEL: &str = "
seed: 3
device: cpu
threads: 1
model: {hidden_size: 16, intermediate_size: 24, num_hidden_layers: 2, num_attention_heads: 2}
data: {block_size: 16}
sample: {max_new_tokens: 8}
train:
  bf16: false
  max_steps: 8
  per_device_train_batch_size: 2
  gradient_accumulation_steps: 2
  learning_rate: 0.01
  warmup_steps: 2
  weight_decay: 0.1
  logging_steps: 2
  eval_steps: 4
  save_steps: 4
";

/// A folder with a text, and configs that train on it there.
pub(crate) struct Place {
    folder: tempfile::TempDir,
}

impl Place {
    pub(crate) fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let text: String = (0..400).map(|n| format!("{n} bottles of ale\n")).collect();
        fs::write(folder.path().join("text.txt"), text).unwrap();
        Self { folder }
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub(crate) fn config(&self, name: &str, overrides: &[&str]) -> Config {
        let mut all = vec![
            format!("name={name}"),
            format!("output_dir={}", self.path("runs").display()),
            format!("data.path={}", self.path("text.txt").display()),
        ];
        all.extend(overrides.iter().map(|text| (*text).to_owned()));
        Config::parse("test.yaml", MODEL, &all).unwrap()
    }

    pub(crate) fn run(&self, name: &str, overrides: &[&str]) -> Result<Summary, Error> {
        self.watched(name, overrides, &mut NoObserver, &Stop::default())
    }

    pub(crate) fn watched(
        &self,
        name: &str,
        overrides: &[&str],
        observer: &mut dyn Observer,
        stop: &Stop,
    ) -> Result<Summary, Error> {
        let config = self.config(name, overrides);
        surefoot_trainer::run(&config, &Allocator::torch(), observer, stop)
    }

    /// Runs `name` and asks it to stop in step `step`.
    pub(crate) fn run_until(&self, name: &str, step: u64, overrides: &[&str]) -> Summary {
        let stop = Stop::default();
        let mut observer = StopAt {
            step,
            stop: stop.clone(),
        };
        self.watched(name, overrides, &mut observer, &stop).unwrap()
    }

    pub(crate) fn checkpoint(&self, run: &str, step: u64) -> PathBuf {
        self.path("runs")
            .join(run)
            .join(format!("checkpoints/step-{step:06}"))
    }
}

/// Stops a run after a step.
struct StopAt {
    step: u64,
    stop: Stop,
}

impl Observer for StopAt {
    fn stepped(&mut self, step: u64) {
        if step == self.step {
            self.stop.request();
        }
    }
}

/// Everything that a run recorded.
pub(crate) fn records(run: &Path) -> Vec<Record> {
    let text = fs::read_to_string(run.join("metrics.jsonl")).unwrap();
    text.lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect()
}

/// The recorded steps, and their training losses.
pub(crate) fn losses(run: &Path) -> Vec<(u64, f64)> {
    let loss = |record| match record {
        Record::Train { step, loss, .. } => Some((step, loss)),
        _ => None,
    };
    records(run).into_iter().filter_map(loss).collect()
}
