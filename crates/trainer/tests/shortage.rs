//! A run on a device that is too small: what is done about it, in which order, and that what is
//! learned does not change by it.
//!
//! The task keeps the books of a device: its teacher takes room while it is there, and so does
//! each sample of a pass. What the loop does is real: tensors leave for a file and come back.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::fs;
use std::path::{Path, PathBuf};

use models::Parameters;
use models::formats::write_tensors;
use serde_json::{Value, json};
use surefoot_trainer::task::{Batch, EvaluationSums, Share, Task};
use surefoot_trainer::{
    Allocator, Config, Error, Footprint, Observer, OomRetry, Record, Sample, Stop, Summary,
};
use tch::{Device, Kind, TchError, Tensor};

const WIDTH: i64 = 32;
const ROWS: i64 = 4;
/// What the teacher takes of the device, and a sample.
const TEACHER: u64 = (WIDTH * WIDTH) as u64 * 4;
const SAMPLE: u64 = 1000;

/// A matrix that learns to be another, which only evaluations look at.
struct Distillation {
    parameters: Parameters,
    student: Tensor,
    teacher: Tensor,
    /// Bytes of the device.
    capacity: u64,
    position: i64,
}

impl Distillation {
    fn new(capacity: u64) -> Self {
        let numbers = || {
            let numbers = Tensor::arange(WIDTH * WIDTH, (Kind::Float, Device::Cpu));
            (numbers * 0.37).sin().view([WIDTH, WIDTH])
        };
        let mut parameters = Parameters::default();
        let student = parameters.register("student", &(numbers() * 0.1), true);
        Self {
            student: student.unwrap(),
            parameters,
            teacher: numbers(),
            capacity,
            position: 0,
        }
    }

    /// What is taken of the device while so many samples go through the model.
    fn live_bytes(&self, rows: i64) -> u64 {
        let teacher = self.teacher.numel() as u64 * 4;
        teacher + rows as u64 * SAMPLE
    }
}

impl Task for Distillation {
    fn description(&self) -> String {
        "a student".into()
    }

    fn data_description(&self) -> String {
        "waves".into()
    }

    fn parameters(&self) -> &Parameters {
        &self.parameters
    }

    fn footprint(&self) -> Footprint {
        Footprint {
            weights: 0,
            activations: 0,
            logits: 0,
        }
    }

    fn idle_in_steps(&self) -> Vec<(String, Tensor)> {
        vec![("teacher".into(), self.teacher.shallow_clone())]
    }

    fn next_batch(&mut self) -> Result<Batch, Error> {
        self.position += 1;
        let numbers = Tensor::f_arange(ROWS * WIDTH, (Kind::Float, Device::Cpu))?;
        let inputs = ((numbers + self.position as f64) * 0.7).sin();
        Ok(Batch::new(
            vec![("inputs", inputs.view([ROWS, WIDTH]))],
            ROWS as u64,
        ))
    }

    fn loss(&self, batch: &Batch) -> Result<Tensor, Error> {
        let asked = self.live_bytes(batch.rows()?);
        if asked > self.capacity {
            let text = format!(
                "HIP out of memory. Tried to allocate {asked} bytes. GPU 0 has a total capacity of \
                 {} bytes of which 0 bytes is free.",
                self.capacity
            );
            return Err(TchError::Torch(text).into());
        }
        let inputs = batch.get("inputs")?;
        let made = inputs.f_matmul(&self.student)?;
        Ok(made.f_sub(inputs)?.f_square()?.f_mean(Kind::Float)?)
    }

    fn evaluate(
        &self,
        _: Option<u64>,
        _: Share,
        _: &mut placement::Placer,
    ) -> Result<EvaluationSums, Error> {
        assert_eq!(self.teacher.numel() as u64 * 4, TEACHER, "it is back");
        let distance = self.student.f_sub(&self.teacher)?.f_square()?;
        Ok(EvaluationSums {
            loss: f64::try_from(distance.f_mean(Kind::Double)?)?,
            units: 1,
            samples: 1,
            complete: true,
            ..EvaluationSums::default()
        })
    }

    fn sample(
        &self,
        _: u64,
        _: Share,
        _: &Path,
        _: &mut placement::Placer,
    ) -> Result<Vec<(usize, Sample)>, Error> {
        Ok(Vec::new())
    }

    fn data_state(&self) -> Result<Value, Error> {
        Ok(json!({ "position": self.position }))
    }

    fn restore_data(&mut self, state: &Value) -> Result<(), Error> {
        self.position = state["position"].as_i64().unwrap();
        Ok(())
    }

    fn export(&self, folder: &Path) -> Result<(), Error> {
        fs::create_dir_all(folder).unwrap();
        let tensors = [
            ("student".to_owned(), &self.student),
            ("teacher".to_owned(), &self.teacher),
        ];
        write_tensors(&folder.join("weights"), &tensors)?;
        Ok(())
    }
}

#[derive(Default)]
struct Remedies(Vec<OomRetry>);

impl Observer for Remedies {
    fn oom_retry(&mut self, step: &OomRetry) {
        self.0.push(step.clone());
    }
}

struct Place(tempfile::TempDir);

impl Place {
    /// A run on a device of so many bytes; what was done about it.
    fn train(
        &self,
        name: &str,
        capacity: u64,
        more: &[&str],
    ) -> (Result<Summary, Error>, Remedies) {
        let text = format!(
            "{{seed: 5, device: cpu, threads: 1, name: {name}, output_dir: '{runs}', data: {{path: \
             unused}}, model: {{offload_folder: '{away}'}}, sample: {{max_new_tokens: 0}}, train: \
             {{bf16: false, max_steps: 20, per_device_train_batch_size: {ROWS}, learning_rate: 0.01, lr_scheduler_type: constant, \
             logging_steps: 1, eval_steps: 3, save_steps: 5, ema_decay: 0.9}}}}",
            runs = self.0.path().join("runs").display(),
            away = self.0.path().join("away").display(),
        );
        let more: Vec<String> = more.iter().map(|text| (*text).to_owned()).collect();
        let config = Config::parse("test.yaml", &text, &more).unwrap();
        let mut remedies = Remedies::default();
        let summary = surefoot_trainer::run_task(
            &config,
            &Allocator::torch(),
            &mut remedies,
            &Stop::default(),
            |_, _| Ok(Box::new(Distillation::new(capacity))),
        );
        (summary, remedies)
    }

    fn path(&self, run: &str, file: &str) -> PathBuf {
        self.0.path().join("runs").join(run).join(file)
    }

    fn bytes(&self, run: &str, file: &str) -> Vec<u8> {
        fs::read(self.path(run, file)).unwrap()
    }

    fn records(&self, run: &str) -> Vec<Record> {
        let text = self.bytes(run, "metrics.jsonl");
        let lines = text
            .split(|byte| *byte == b'\n')
            .filter(|line| !line.is_empty());
        lines
            .map(|line| serde_json::from_slice(line).unwrap())
            .collect()
    }

    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }
}

/// What was done, in words.
fn deeds(remedies: &Remedies) -> Vec<String> {
    let deed = |short: &OomRetry| match (short.offloaded, short.micro_batch) {
        (None, None) => "trim".to_owned(),
        (Some(bytes), None) => format!("offload {bytes}"),
        (_, Some(rows)) => format!("{rows} rows"),
    };
    remedies.0.iter().map(deed).collect()
}

/// The teacher, two moments and an average of the student, in fp32.
const IDLE: u64 = 4 * TEACHER;

#[test]
fn what_is_idle_leaves_before_a_batch_is_cut_and_what_is_learned_is_the_same_to_the_bit() {
    let place = Place::new();
    let (roomy, remedies) = place.train("roomy", u64::MAX, &[]);
    assert_eq!((roomy.unwrap().repeated_steps, remedies.0.len()), (0, 0));
    // All samples fit once the teacher is away.
    let (tight, remedies) = place.train("tight", ROWS as u64 * SAMPLE, &[]);
    let tight = tight.unwrap();
    assert_eq!(deeds(&remedies), ["trim".into(), format!("offload {IDLE}")]);
    assert_eq!((tight.repeated_steps, tight.micro_batch), (2, None));
    let said = remedies.0[1].to_string();
    assert!(
        said.contains("offloaded what is idle in a step (16 KiB)"),
        "{said}"
    );
    // The page shows them on the curves.
    let recorded: Vec<OomRetry> = place
        .records("tight")
        .into_iter()
        .filter_map(|record| match record {
            Record::OutOfMemory(retry) => Some(retry),
            _ => None,
        })
        .collect();
    assert_eq!(recorded, remedies.0);
    assert_eq!(recorded[0].step, 1);
    for file in [
        "model/weights",
        "checkpoints/step-000020/optimizer.safetensors",
        "checkpoints/step-000020/model.safetensors",
    ] {
        assert!(
            place.bytes("roomy", file) == place.bytes("tight", file),
            "{file}"
        );
    }
    assert_eq!(
        fs::read_dir(place.0.path().join("away")).unwrap().count(),
        0
    );
}

#[test]
fn smaller_pieces_come_after_it_and_an_error_with_the_numbers_last() {
    let place = Place::new();
    let offloaded = format!("offload {IDLE}");
    let (cut, remedies) = place.train("cut", 2 * SAMPLE, &[]);
    assert_eq!(cut.unwrap().micro_batch, Some(2));
    assert_eq!(deeds(&remedies), ["trim", &offloaded, "2 rows"]);
    let (none, remedies) = place.train("none", SAMPLE / 2, &[]);
    assert_eq!(deeds(&remedies), ["trim", &offloaded, "2 rows", "1 rows"]);
    let error = none.unwrap_err().to_string();
    for words in [
        "micro-batch 1 × accumulation 4 = 4, asked for 1000 bytes, free 0 bytes, in all 500 bytes",
        "tried trimming caches, then offloading what is idle, then a smaller micro-batch",
    ] {
        assert!(error.contains(words), "{words} in {error}");
    }
}

#[test]
fn a_checkpoint_of_a_run_with_idle_parts_away_is_resumed_and_whole() {
    let place = Place::new();
    let capacity = ROWS as u64 * SAMPLE;
    place.train("whole", u64::MAX, &[]).0.unwrap();
    place
        .train("halves", capacity, &["train.max_steps=10"])
        .0
        .unwrap();
    let resume = ["train.resume_from_checkpoint=latest"];
    let (summary, remedies) = place.train("halves", capacity, &resume);
    assert_eq!(summary.unwrap().steps, 20);
    assert_eq!(remedies.0.len(), 2, "found out anew");
    let records = place.records("halves");
    let steps: Vec<u64> = records
        .iter()
        .filter(|record| matches!(record, Record::OutOfMemory(_)))
        .map(Record::step)
        .collect();
    assert_eq!(steps, [1, 1, 11, 11]);
    assert!(place.bytes("whole", "model/weights") == place.bytes("halves", "model/weights"));
}

#[test]
fn a_folder_that_takes_nothing_costs_no_run() {
    let place = Place::new();
    fs::write(place.0.path().join("file"), "in the way").unwrap();
    let folder = format!(
        "model.offload_folder={}",
        place.0.path().join("file").display()
    );
    let (cut, remedies) = place.train("cut", TEACHER + 2 * SAMPLE, &[&folder]);
    assert_eq!(cut.unwrap().micro_batch, Some(2));
    assert_eq!(deeds(&remedies), ["trim", "offload 0", "2 rows"]);
}
