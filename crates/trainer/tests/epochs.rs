//! Runs that are as long as so many passes over their data, what happens after each pass, and runs
//! that end early.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;
use surefoot_trainer::{
    Allocator, Best, Config, Ending, Error, NoObserver, Observer, Stop, Summary, dry_run,
};

const CONFIG: &str = "
seed: 7
device: cpu
threads: 1
adapter: {r: 2, target_modules: all-linear}
data: {block_size: 32, packing: false, validation_fraction: 0}
sample: {max_new_tokens: 0}
train:
  bf16: false
  per_device_train_batch_size: 4
  learning_rate: 0.01
  logging_steps: 1
  eval_steps: 0
  save_steps: 0
";
/// Records of the data.
const RECORDS: usize = 10;

struct Place {
    folder: tempfile::TempDir,
}

impl Place {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        for (name, range) in [("data", 0..RECORDS), ("other", 50..55)] {
            let records = range.map(|n| {
                let answer = "the 42. ".repeat(n % 4 + 1);
                format!("{{\"prompt\": \"on {n}\", \"completion\": \" {answer}\"}}\n")
            });
            let text: String = records.collect();
            fs::write(folder.path().join(format!("{name}.jsonl")), text).unwrap();
        }
        Self { folder }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn config(&self, name: &str, more: &[&str]) -> Config {
        let models =
            Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/reference/golden/models");
        let mut all = vec![
            format!("name={name}"),
            format!("output_dir={}", self.path("runs").display()),
            format!("data.path={}", self.path("data.jsonl").display()),
            format!(
                "model.name_or_path={}",
                models.join("llama-grouped.gguf").display()
            ),
        ];
        all.extend(more.iter().map(|text| (*text).to_owned()));
        Config::parse("test.yaml", CONFIG, &all).unwrap()
    }

    fn watched(
        &self,
        name: &str,
        more: &[&str],
        observer: &mut dyn Observer,
        stop: &Stop,
    ) -> Result<Summary, Error> {
        let config = self.config(name, more);
        surefoot_trainer::run(&config, &Allocator::torch(), observer, stop)
    }

    fn run(&self, name: &str, more: &[&str]) -> Summary {
        self.watched(name, more, &mut NoObserver, &Stop::default())
            .unwrap()
    }

    /// The same, stopped in `step` and gone on with.
    fn run_in_two(&self, name: &str, step: u64, more: &[&str]) -> Summary {
        let stop = Stop::default();
        let mut observer = StopAt(step, stop.clone());
        let first = self.watched(name, more, &mut observer, &stop).unwrap();
        assert_eq!((first.ending, first.steps), (Ending::Stopped, step));
        self.resume(name, more)
    }

    fn resume(&self, name: &str, more: &[&str]) -> Summary {
        let run = self.path("runs").join(name);
        let from = format!("train.resume_from_checkpoint={}", run.display());
        self.run(name, &[more, &[&from]].concat())
    }

    fn held_out(&self) -> String {
        format!("data.eval_dataset={}", self.path("other.jsonl").display())
    }

    /// The steps of the records of this kind.
    fn steps_of(&self, run: &str, kind: &str) -> Vec<u64> {
        let path = self.path("runs").join(run).join("metrics.jsonl");
        let text = fs::read_to_string(path).unwrap();
        let records = text
            .lines()
            .map(|line| serde_json::from_str::<Value>(line).unwrap());
        let records = records.filter(|record| record["kind"] == kind);
        records
            .map(|record| record["step"].as_u64().unwrap())
            .collect()
    }

    fn checkpoints(&self, run: &str) -> Vec<u64> {
        let folder = self.path("runs").join(run).join("checkpoints");
        let found = surefoot_trainer::checkpoint::list(&folder).unwrap();
        found.into_iter().map(|(step, _)| step).collect()
    }

    fn adapter(&self, run: &str) -> Vec<u8> {
        fs::read(
            self.path("runs")
                .join(run)
                .join("adapter/adapter_model.safetensors"),
        )
        .unwrap()
    }
}

struct StopAt(u64, Stop);

impl Observer for StopAt {
    fn stepped(&mut self, step: u64) {
        if step == self.0 {
            self.1.request();
        }
    }
}

#[test]
fn a_run_of_epochs_sees_each_record_as_often_and_ends_there() {
    let place = Place::new();
    let once = place.run("once", &["num_train_epochs=1"]);
    // Batches of 4, 4 and 2.
    assert_eq!((once.steps, once.max_steps), (3, 3));
    let thrice = place.run("thrice", &["num_train_epochs=3"]);
    assert_eq!((thrice.steps, thrice.tokens), (9, 3 * once.tokens));
    let half = place.run("half", &["num_train_epochs=1.5"]);
    assert_eq!(half.steps, 5);
    let accumulated = ["num_train_epochs=3", "gradient_accumulation_steps=2"];
    let accumulated = place.run("accumulated", &accumulated);
    assert_eq!(
        (accumulated.steps, accumulated.tokens),
        (6, 3 * once.tokens)
    );
    // Whole examples share rows, which are fewer.
    let packed = place.run("packed", &["num_train_epochs=2", "data.packing=true"]);
    assert!(packed.steps < 6, "{}", packed.steps);
    assert_eq!(packed.tokens, 2 * once.tokens);
    let dry = dry_run(
        &place.config("dry", &["num_train_epochs=3"]),
        &Allocator::torch(),
        &mut NoObserver,
    );
    assert_eq!(dry.unwrap().max_steps, 9);

    let config = fs::read_to_string(place.path("runs/thrice/config.yaml")).unwrap();
    assert!(
        config.starts_with("# max_steps: 9 (3 epochs)\n"),
        "{config}"
    );
    assert!(config.contains("num_train_epochs: 3"), "{config}");
}

#[test]
fn a_run_of_epochs_goes_on_as_if_it_had_never_stopped() {
    let place = Place::new();
    let held_out = place.held_out();
    let epochs = [
        "num_train_epochs=3",
        "eval_strategy=epoch",
        "save_strategy=epoch",
        &held_out,
    ];
    place.run("whole", &epochs);
    for (name, step) in [("within", 4), ("between", 6)] {
        let summary = place.run_in_two(name, step, &epochs);
        assert_eq!((summary.steps, summary.max_steps), (9, 9));
        assert!(place.adapter("whole") == place.adapter(name), "{name}");
        assert_eq!(
            place.steps_of(name, "eval"),
            place.steps_of("whole", "eval")
        );
    }
    // Before the first step, after each pass, and at the end on all there is.
    assert_eq!(place.steps_of("whole", "eval"), [0, 3, 6, 9]);
    assert_eq!(place.checkpoints("whole"), [3, 6, 9]);
}

#[test]
fn with_other_batches_the_rest_of_the_epochs_is_what_is_left() {
    let place = Place::new();
    // Twice as many records in a step, behind the first of three passes.
    let summary = {
        let stop = Stop::default();
        let mut observer = StopAt(3, stop.clone());
        place
            .watched("run", &["num_train_epochs=3"], &mut observer, &stop)
            .unwrap();
        place.resume(
            "run",
            &["num_train_epochs=3", "per_device_train_batch_size=8"],
        )
    };
    assert_eq!((summary.steps, summary.max_steps), (3 + 4, 7));
    // One that was over goes on for another.
    let summary = place.resume(
        "run",
        &["num_train_epochs=4", "per_device_train_batch_size=8"],
    );
    assert_eq!((summary.steps, summary.max_steps), (9, 9));
}

#[test]
fn strategies_say_when_and_steps_without_theirs_are_not_followed() {
    let place = Place::new();
    let held_out = place.held_out();
    let all =
        |strategy: &str| ["eval_strategy", "save_strategy"].map(|key| format!("{key}={strategy}"));
    for (name, strategy, evaluated, saved) in [
        ("never", "no", vec![0, 6], vec![6]),
        ("steps", "steps", vec![0, 2, 4, 6], vec![2, 4, 6]),
        ("epoch", "epoch", vec![0, 3, 6], vec![3, 6]),
    ] {
        let [eval, save] = all(strategy);
        let more = [
            "max_steps=6",
            "eval_steps=2",
            "save_steps=2",
            &eval,
            &save,
            &held_out,
        ];
        place.run(name, &more);
        assert_eq!(place.steps_of(name, "eval"), evaluated, "{name}");
        assert_eq!(place.checkpoints(name), saved, "{name}");
    }
}

#[derive(Default)]
struct Early(Vec<(u64, u32, u64)>);

impl Observer for Early {
    fn stopped_early(&mut self, step: u64, evaluations: u32, best: &Best) {
        self.0.push((step, evaluations, best.step));
    }
}

#[test]
fn a_run_ends_early_when_it_learns_nothing_more_and_so_does_one_that_goes_on() {
    let place = Place::new();
    let held_out = place.held_out();
    // The first evaluation is the best so far; no other is better by that much.
    let early = [
        "max_steps=20",
        "eval_steps=2",
        "early_stopping_patience=3",
        "early_stopping_threshold=100",
        &held_out,
    ];
    let mut seen = Early::default();
    let summary = place
        .watched("early", &early, &mut seen, &Stop::default())
        .unwrap();
    assert_eq!(
        (summary.ending, summary.steps, summary.max_steps),
        (Ending::Completed, 8, 20)
    );
    assert_eq!(summary.stopped_early, Some(3));
    // What is better by less is the best all the same.
    assert_eq!((seen.0.len(), seen.0[0].0, seen.0[0].1), (1, 8, 3));
    assert!(place.path("runs/early/adapter").is_dir());
    assert!(place.run_in_two("halves", 5, &early).steps == 8);
    assert!(place.adapter("early") == place.adapter("halves"));
    // It is over, also for who goes on with it, unless there is more patience.
    assert_eq!(place.resume("early", &early).steps, 8);
    let patient = place.resume(
        "early",
        &[&early[..], &["early_stopping_patience=5"]].concat(),
    );
    assert_eq!((patient.steps, patient.stopped_early), (12, Some(5)));
    let none = place.run(
        "none",
        &[&early[..], &["early_stopping_threshold=0", "max_steps=8"]].concat(),
    );
    assert_eq!((none.steps, none.stopped_early), (8, None));
}

#[test]
fn a_warm_up_longer_than_the_epochs_is_refused() {
    let place = Place::new();
    let more = ["num_train_epochs=1", "warmup_steps=5"];
    let error = place
        .watched("long", &more, &mut NoObserver, &Stop::default())
        .unwrap_err();
    let told = error.to_string();
    assert!(
        told.contains("a warm-up of 5 steps does not fit into 3 steps"),
        "{told}"
    );
}
