//! Runs that meet numbers which are none. The model is a real one whose loss is NaN for a batch
//! with the letter `z`: such a batch has neither loss nor gradient.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::fs;
use std::path::{Path, PathBuf};

use models::Parameters;
use models::formats::{SafetensorsFile, TensorSource};
use models::pretrained::convert_gguf;
use placement::Placer;
use platform::Bytes;
use serde_json::Value;
use surefoot_trainer::task::fine_tune::FineTune;
use surefoot_trainer::task::{Batch, EvaluationSums, Share, Task};
use surefoot_trainer::{
    Allocator, Config, Error, Footprint, NoObserver, Observer, Record, Rollback, Sample, Stop,
    Summary, run_task,
};
use tch::{Kind, Tensor};

const CONFIG: &str = "
seed: 5
device: cpu
threads: 1
adapter: {r: 2}
data: {block_size: 16, validation_fraction: 0.1}
sample: {max_new_tokens: 0}
train:
  bf16: false
  max_steps: 40
  per_device_train_batch_size: 1
  learning_rate: 0.001
  lr_scheduler_type: constant
  logging_steps: 5
  eval_steps: 0
  save_steps: 1
  save_total_limit: 3
";

/// The letter's place in the vocabulary of the golden model.
const Z: i64 = 29;

struct Place {
    folder: tempfile::TempDir,
}

impl Place {
    /// `bad` of each hundred lines of the training text have the letter.
    fn new(bad: usize) -> Self {
        let place = Self {
            folder: tempfile::tempdir().unwrap(),
        };
        let golden = "../../tests/reference/golden/models/llama-grouped.gguf";
        let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join(golden);
        convert_gguf(&golden, &place.path("model"), Kind::Float, &|_, _| {}).unwrap();
        let line = |n: usize| match n < 360 && n * 37 % 100 < bad {
            true => "the zebra ran on\n",
            false => "the horse ran on\n",
        };
        let text: String = (0..400).map(line).collect();
        fs::write(place.path("text.txt"), text).unwrap();
        place
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn run(
        &self,
        name: &str,
        more: &[&str],
        observer: &mut dyn Observer,
    ) -> Result<Summary, Error> {
        let mut all = vec![
            format!("name={name}"),
            format!("output_dir={}", self.path("runs").display()),
            format!("data.path={}", self.path("text.txt").display()),
            format!("model.name_or_path={}", self.path("model").display()),
        ];
        all.extend(more.iter().map(|text| (*text).to_owned()));
        let config = Config::parse("test.yaml", CONFIG, &all).unwrap();
        let stop = Stop::default();
        run_task(
            &config,
            &Allocator::torch(),
            observer,
            &stop,
            |placer, observer| {
                let model = self.path("model").display().to_string();
                let memory = placer.memory(Bytes::gib(64), Bytes::gib(64));
                let task = FineTune::open(&config, &model, placer, memory, observer)?;
                Ok(Box::new(NanOnZ(task)))
            },
        )
    }

    fn records(&self, name: &str) -> Vec<Record> {
        let path = self.path("runs").join(name).join("metrics.jsonl");
        let text = fs::read_to_string(path).unwrap();
        text.lines()
            .map(|line| serde_json::from_str(line).unwrap())
            .collect()
    }

    fn weights(&self, name: &str) -> Vec<u8> {
        let folder = self.path("runs").join(name);
        fs::read(folder.join("adapter/adapter_model.safetensors")).unwrap()
    }
}

/// Fine-tuning whose loss is NaN for a batch with the letter.
struct NanOnZ(FineTune);

impl Task for NanOnZ {
    fn description(&self) -> String {
        self.0.description()
    }

    fn data_description(&self) -> String {
        self.0.data_description()
    }

    fn parameters(&self) -> &Parameters {
        self.0.parameters()
    }

    fn footprint(&self) -> Footprint {
        self.0.footprint()
    }

    fn next_batch(&mut self) -> Result<Batch, Error> {
        self.0.next_batch()
    }

    fn loss(&self, batch: &Batch) -> Result<Tensor, Error> {
        let loss = self.0.loss(batch)?;
        let letters = batch.get("tokens")?.f_eq(Z)?.f_sum(Kind::Int64)?;
        match letters.f_int64_value(&[])? {
            0 => Ok(loss),
            _ => Ok(loss.f_mul_scalar(f64::NAN)?),
        }
    }

    fn evaluate(
        &self,
        limit: Option<u64>,
        share: Share,
        placer: &mut Placer,
    ) -> Result<EvaluationSums, Error> {
        self.0.evaluate(limit, share, placer)
    }

    fn sample(
        &self,
        step: u64,
        share: Share,
        folder: &Path,
        placer: &mut Placer,
    ) -> Result<Vec<(usize, Sample)>, Error> {
        self.0.sample(step, share, folder, placer)
    }

    fn data_state(&self) -> Result<Value, Error> {
        self.0.data_state()
    }

    fn restore_data(&mut self, state: &Value) -> Result<(), Error> {
        self.0.restore_data(state)
    }

    fn export(&self, folder: &Path) -> Result<(), Error> {
        self.0.export(folder)
    }

    fn export_name(&self) -> &'static str {
        self.0.export_name()
    }
}

#[derive(Default)]
struct Rollbacks(Vec<Rollback>);

impl Observer for Rollbacks {
    fn rolled_back(&mut self, rollback: &Rollback) {
        self.0.push(rollback.clone());
    }
}

#[test]
fn a_bad_batch_is_skipped_and_described() {
    let place = Place::new(15);
    let summary = place.run("a", &[], &mut NoObserver).unwrap();
    assert_eq!(summary.steps, 40);
    assert!(summary.skipped_steps > 0);
    assert!(summary.held_out.unwrap().loss.is_finite());
    let records = place.records("a");
    let skipped: Vec<_> = records
        .iter()
        .filter_map(|record| match record {
            Record::Skipped(step) => Some(step),
            _ => None,
        })
        .collect();
    assert_eq!(skipped.len() as u64, summary.skipped_steps);
    let first = skipped[0];
    assert_eq!((&*first.loss, &*first.grad_norm), ("NaN", "NaN"));
    assert!(first.batch.contains("position"), "{}", first.batch);
    assert!(first.tensors[0].name.contains("lora_"), "{first}");
    assert!(first.tensors[0].nan > 0);
    for record in &records {
        if let Record::Train { loss, .. } = record {
            assert!(loss.is_finite());
        }
    }
    // Nothing of it is in the weights.
    let adapter =
        SafetensorsFile::open(&place.path("runs/a/adapter/adapter_model.safetensors")).unwrap();
    for name in adapter.names() {
        let sum = adapter.read_stored(&name).unwrap().sum(Kind::Double);
        assert!(f64::try_from(&sum).unwrap().is_finite(), "{name}");
    }
}

#[test]
fn a_resumed_run_that_skipped_steps_is_the_uninterrupted_one() {
    let place = Place::new(15);
    place
        .run("whole", &["train.save_total_limit=null"], &mut NoObserver)
        .unwrap();
    let cut = place
        .run("cut", &["train.max_steps=25"], &mut NoObserver)
        .unwrap();
    assert!(cut.skipped_steps > 0);
    let resume = ["train.resume_from_checkpoint=latest"];
    place.run("cut", &resume, &mut NoObserver).unwrap();
    assert!(
        place.weights("whole") == place.weights("cut"),
        "the weights differ"
    );
}

#[test]
fn three_bad_batches_in_a_row_roll_back_and_the_data_go_on() {
    let place = Place::new(35);
    let mut seen = Rollbacks::default();
    let summary = place.run("a", &[], &mut seen).unwrap();
    assert_eq!(summary.steps, 40);
    assert_eq!(summary.rollbacks as usize, seen.0.len());
    assert!(!seen.0.is_empty());
    for rollback in &seen.0 {
        assert_eq!(rollback.seen.len(), 3);
        assert_eq!(rollback.to_step, rollback.from_step - 3);
    }
    let batches: Vec<_> = seen
        .0
        .iter()
        .flat_map(|r| &r.seen)
        .map(|s| &s.batch)
        .collect();
    assert!(
        batches.windows(2).all(|pair| pair[0] != pair[1]),
        "{batches:?}"
    );
    let recorded = place.records("a");
    let recorded = recorded
        .iter()
        .filter(|r| matches!(r, Record::RolledBack(_)));
    assert_eq!(recorded.count(), seen.0.len());
}

#[test]
fn a_run_that_cannot_go_on_says_what_it_saw() {
    let place = Place::new(100);
    let error = place
        .run("a", &["train.save_steps=0"], &mut NoObserver)
        .unwrap_err();
    assert!(!error.is_bad_usage());
    let text = error.to_string();
    for words in [
        "there is no checkpoint to return to",
        "step 1: loss NaN, gradient norm NaN, batch at {",
        "step 3:",
        "lora_A.weight` (",
        "train.learning_rate",
    ] {
        assert!(text.contains(words), "{words} in {text}");
    }
}

#[test]
fn a_search_for_a_learning_rate_goes_on_after_a_bad_batch_and_ends_after_three() {
    let search = ["train.find_learning_rate=true"];
    let place = Place::new(8);
    let summary = place.run("a", &search, &mut NoObserver).unwrap();
    let records = place.records("a-lr");
    let skipped = records.iter().find_map(|record| match record {
        Record::Skipped(step) => Some(step.step),
        _ => None,
    });
    let losses = records
        .iter()
        .filter(|record| matches!(record, Record::Train { .. }))
        .count();
    let found = summary.learning_rate.unwrap();
    assert!(found.step > skipped.unwrap() + 3, "{found:?}");
    assert_eq!(losses as u64 + summary.skipped_steps, found.step);
    let summary = Place::new(100).run("b", &search, &mut NoObserver).unwrap();
    let found = summary.learning_rate.unwrap();
    assert_eq!((found.step, found.learning_rate), (3, None));
    assert!(found.reason.contains("not finite"), "{}", found.reason);
}
