//! Whole runs of a tiny model: resuming, stopping, and what a run leaves behind.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod keys;
mod place;

use std::fs;
use std::path::Path;

use models::formats::{SafetensorsFile, TensorSource};
use surefoot_trainer::{Config, Ending, Metrics, Observer, Stop};

use place::{Place, losses};

/// Asks for a checkpoint and for samples in step 3.
#[derive(Default)]
struct AskAt3 {
    stop: Stop,
    seen: Vec<(&'static str, u64)>,
}

impl Observer for AskAt3 {
    fn stepped(&mut self, step: u64) {
        if step == 3 {
            self.stop.request_save();
            self.stop.request_sample();
        }
    }

    fn saved(&mut self, step: u64, _checkpoint: &Path) {
        self.seen.push(("saved", step));
    }

    fn sampled(&mut self, step: u64, _samples: &[surefoot_trainer::Sample]) {
        self.seen.push(("sampled", step));
    }
}

#[test]
fn what_a_run_is_asked_for_comes_once_after_the_step() {
    let (place, mut observer) = (Place::new(), AskAt3::default());
    let stop = observer.stop.clone();
    place.watched("a", &[], &mut observer, &stop).unwrap();
    let steps = [3, 3, 4, 8, 8];
    let what = ["sampled", "saved", "saved", "saved", "sampled"];
    assert_eq!(
        observer.seen,
        what.into_iter().zip(steps).collect::<Vec<_>>()
    );
}

#[test]
fn a_resumed_run_is_the_uninterrupted_one_bit_for_bit() {
    let place = Place::new();
    place.run("whole", &[]).unwrap();
    for cut in [1, 3, 4, 7] {
        let name = format!("cut-{cut}");
        assert_eq!(place.run_until(&name, cut, &[]).steps, cut);
        place
            .run(&name, &["train.resume_from_checkpoint=latest"])
            .unwrap();
        let (whole, resumed) = (place.checkpoint("whole", 8), place.checkpoint(&name, 8));
        for file in ["model.safetensors", "optimizer.safetensors"] {
            let same = fs::read(whole.join(file)).unwrap() == fs::read(resumed.join(file)).unwrap();
            assert!(same, "{file} after a cut at step {cut}");
        }
        let state = |folder: &Path| -> serde_json::Value {
            serde_json::from_slice(&fs::read(folder.join("state.json")).unwrap()).unwrap()
        };
        let (whole, resumed) = (state(&whole), state(&resumed));
        for key in ["data", "units", "step", "checksums"] {
            assert_eq!(whole[key], resumed[key], "{key} after a cut at step {cut}");
        }
        // The records are whole too: no step twice, none missing.
        let steps = |run: &str| -> Vec<u64> {
            losses(&place.path("runs").join(run))
                .into_iter()
                .map(|(step, _)| step)
                .collect()
        };
        assert_eq!(steps("whole"), steps(&name));
    }
}

#[test]
fn an_automatic_batch_that_fits_is_one_pass_and_the_same_to_the_bit() {
    let place = Place::new();
    let batch = |rows: &str, passes: u32| {
        [
            format!("train.per_device_train_batch_size={rows}"),
            format!("train.gradient_accumulation_steps={passes}"),
        ]
    };
    let run = |name: &str, batch: [String; 2]| {
        let summary = place.run(name, &[&batch[0], &batch[1]]).unwrap();
        (summary.environment.batch, summary.micro_batch)
    };
    let said = "all 4 samples of a step in one pass".to_owned();
    assert_eq!(run("auto", batch("auto", 4)), (Some(said), Some(4)));
    assert_eq!(run("four", batch("4", 1)), (None, None));
    let one = run("one", batch("auto", 1)).0.unwrap();
    assert!(one.starts_with("a step has one sample"), "{one}");
    run("by-one", batch("1", 1));
    for (auto, explicit) in [("auto", "four"), ("one", "by-one")] {
        let [auto, explicit] = [auto, explicit].map(|name| place.checkpoint(name, 8));
        for file in ["model.safetensors", "optimizer.safetensors"] {
            let [auto, explicit] =
                [&auto, &explicit].map(|folder| fs::read(folder.join(file)).unwrap());
            assert!(auto == explicit, "{file}");
        }
    }
}

#[test]
fn a_resume_after_lost_steps_repeats_them_and_their_records() {
    let place = Place::new();
    place.run("a", &[]).unwrap();
    let run = place.path("runs/a");
    let before = losses(&run);
    let checkpoint = place.checkpoint("a", 4).display().to_string();
    let from = format!("train.resume_from_checkpoint={checkpoint}");
    place.run("ignored", &[&from]).unwrap();
    assert_eq!(losses(&run), before);
    assert!(!place.path("runs/ignored").exists());
}

#[test]
fn the_loss_falls() {
    let place = Place::new();
    let summary = place
        .run("a", &["train.max_steps=80", "train.save_steps=0"])
        .unwrap();
    let (first, last) = (summary.first_loss.unwrap(), summary.last_loss.unwrap());
    assert!(
        (first - (257f64).ln()).abs() < 0.3,
        "a fresh model knows nothing: {first}"
    );
    assert!(last < 0.6 * first, "{first} to {last}");
    let held_out = summary.held_out.unwrap();
    assert!(held_out.complete);
    // One token is one byte here, but for the end of a text, which is none.
    assert!((held_out.nats_per_byte.unwrap() / held_out.loss - 1.0).abs() < 0.02);
}

#[test]
fn a_run_leaves_its_folder_as_promised() {
    let place = Place::new();
    let mut seen = Seen::default();
    let summary = place.watched("a", &["sample.sample_steps=4"], &mut seen, &Stop::default());
    assert_eq!(summary.unwrap().ending, Ending::Completed);
    let run = place.path("runs/a");
    let files = [
        "config.yaml",
        "metrics.jsonl",
        "loss.svg",
        "memory.svg",
        "report.html",
        "samples.txt",
        "summary.json",
        "checkpoints/step-000004/state.json",
        "checkpoints/step-000008/state.json",
        "model/config.json",
        "model/model.safetensors",
        "model/tokenizer.json",
    ];
    for file in files {
        assert!(run.join(file).is_file(), "{file}");
    }
    let events = fs::read_dir(&run).unwrap().filter(|entry| {
        let name = entry.as_ref().unwrap().file_name();
        name.to_string_lossy().starts_with("events.out.tfevents.")
    });
    assert_eq!(events.count(), 1);
    assert!(
        fs::read_to_string(run.join("loss.svg"))
            .unwrap()
            .contains("held out")
    );
    let written = Config::load(&run.join("config.yaml"), &[]).unwrap();
    assert_eq!(written, place.config("a", &["sample.sample_steps=4"]));
    assert_eq!(seen.stepped, (1..=8).collect::<Vec<_>>());
    assert_eq!(seen.logged, [2, 4, 6, 8]);
    assert_eq!((seen.evaluated, seen.sampled), (vec![4, 8], vec![4, 8]));
    // The exported model has the weights of the last checkpoint.
    let exported = SafetensorsFile::open(&run.join("model/model.safetensors")).unwrap();
    let last = run.join("checkpoints/step-000008/model.safetensors");
    let last = SafetensorsFile::open(&last).unwrap();
    assert_eq!(exported.names(), last.names());
    for name in exported.names() {
        assert!(
            exported
                .read_stored(&name)
                .unwrap()
                .equal(&last.read_stored(&name).unwrap()),
            "{name}"
        );
    }
}

#[derive(Default)]
struct Seen {
    stepped: Vec<u64>,
    logged: Vec<u64>,
    evaluated: Vec<u64>,
    sampled: Vec<u64>,
}

impl Observer for Seen {
    fn stepped(&mut self, step: u64) {
        self.stepped.push(step);
    }
    fn logged(&mut self, metrics: &Metrics) {
        assert!(metrics.loss.is_finite() && metrics.gradient_norm > 0.0);
        self.logged.push(metrics.step);
    }
    fn evaluated(&mut self, step: u64, _: &surefoot_trainer::Evaluation) {
        self.evaluated.push(step);
    }
    fn sampled(&mut self, step: u64, samples: &[surefoot_trainer::Sample]) {
        assert_eq!(samples.len(), 1);
        self.sampled.push(step);
    }
}

#[test]
fn a_stopped_run_has_saved_and_says_so() {
    let place = Place::new();
    let summary = place.run_until("a", 3, &[]);
    assert_eq!((summary.ending, summary.steps), (Ending::Stopped, 3));
    assert!(place.checkpoint("a", 3).join("state.json").is_file());
    assert!(!place.path("runs/a/model").exists());
}

#[test]
fn an_existing_run_is_never_touched() {
    let place = Place::new();
    place.run("a", &[]).unwrap();
    let before = fs::read(place.path("runs/a/summary.json")).unwrap();
    for want in ["a-2", "a-3"] {
        assert_eq!(place.run("a", &[]).unwrap().name, want);
    }
    assert_eq!(fs::read(place.path("runs/a/summary.json")).unwrap(), before);
}

/// Resumes run `a` and expects to be refused with these words.
fn assert_refused(place: &Place, overrides: &[&str], words: &str) {
    let overrides = [&["train.resume_from_checkpoint=latest"], overrides].concat();
    let error = place.run("a", &overrides).unwrap_err().to_string();
    assert!(error.contains(words), "{error}");
}

#[test]
fn a_damaged_checkpoint_is_refused() {
    let place = Place::new();
    place.run("a", &[]).unwrap();
    for file in ["model.safetensors", "optimizer.safetensors"] {
        let path = place.checkpoint("a", 8).join(file);
        let whole = fs::read(&path).unwrap();
        let mut damaged = whole.clone();
        *damaged.last_mut().unwrap() ^= 1;
        fs::write(&path, damaged).unwrap();
        assert_refused(
            &place,
            &["train.max_steps=9"],
            "it is damaged: its checksum differs",
        );
        fs::write(&path, &whole[..whole.len() / 2]).unwrap();
        assert_refused(
            &place,
            &["train.max_steps=9"],
            "it is damaged: its checksum differs",
        );
        fs::write(&path, whole).unwrap();
    }
    fs::write(place.checkpoint("a", 8).join("state.json"), "{").unwrap();
    assert_refused(&place, &["train.max_steps=9"], "state.json");
}

#[test]
fn a_checkpoint_of_another_model_or_text_is_refused() {
    let place = Place::new();
    place.run("a", &[]).unwrap();
    for (change, told) in [
        (
            "model.intermediate_size=32",
            "`model.intermediate_size` was 24, and is now 32",
        ),
        (
            "model.num_hidden_layers=1",
            "`model.num_hidden_layers` was 2, and is now 1",
        ),
        (
            "model.num_hidden_layers=3",
            "`model.num_hidden_layers` was 2, and is now 3",
        ),
        (
            "model.rope_theta=500",
            "`model.rope_theta` was 10000.0, and is now 500.0",
        ),
        (
            "data.block_size=8",
            "`data.block_size` was 16, and is now 8",
        ),
        ("seed=4", "`seed` was 3, and is now 4"),
    ] {
        assert_refused(&place, &[change], told);
    }
    fs::write(place.path("text.txt"), "another text\n".repeat(300)).unwrap();
    assert_refused(&place, &[], "`fingerprint`");
}

#[test]
fn nothing_to_resume_says_so() {
    let place = Place::new();
    assert_refused(&place, &[], "no run of this name has a checkpoint");
}

#[test]
fn text_that_cannot_be_used_says_why() {
    let place = Place::new();
    let refused = |overrides: &[&str]| place.run("a", overrides).unwrap_err().to_string();
    let missing = refused(&["data.path=/no/such/text"]);
    assert!(
        missing.contains("`/no/such/text`, which does not exist"),
        "{missing}"
    );
    let short = refused(&["data.block_size=100000"]);
    assert!(short.contains("a block needs 100001"), "{short}");
    let held_out = refused(&["data.block_size=500"]);
    assert!(held_out.contains("the held-out part"), "{held_out}");
    assert!(
        !place.path("runs").exists(),
        "a run that cannot start leaves nothing"
    );
}

/// A model from scratch learns the texts of records, measured on other texts, on records chosen by the
/// seed, or on nothing.
#[test]
fn records_of_text_are_learned_from_scratch() {
    let place = Place::new();
    let line = |n: usize| format!("{{\"text\": \"{n} bottles of ale on a wall\"}}\n");
    let lines: String = (0..60).map(line).collect();
    fs::write(place.path("data.jsonl"), &lines).unwrap();
    fs::write(
        place.path("other.csv"),
        "text\nten bottles of ale\nno bottle of ale\n",
    )
    .unwrap();
    let records = format!("data.path={}", place.path("data.jsonl").display());
    let other = format!("data.eval_dataset={}", place.path("other.csv").display());
    let on_other = place.run("other", &[&records, &other]).unwrap();
    assert!(on_other.held_out.unwrap().loss.is_finite());
    assert!(
        on_other.environment.data.contains("60 texts"),
        "{}",
        on_other.environment.data
    );
    let shuffled = place.run("any", &[&records, "data.validation_shuffle=true"]);
    let (shuffled, last) = (shuffled.unwrap(), place.run("last", &[&records]).unwrap());
    assert_ne!(shuffled.first_loss, last.first_loss);
    let none = place
        .run("none", &[&records, "data.validation_fraction=0"])
        .unwrap();
    assert_eq!((none.held_out, none.steps), (None, 8));
    assert!(place.path("runs/none/report.html").is_file());
    fs::write(
        place.path("data.jsonl"),
        "{\"prompt\": \"a\", \"completion\": \"b\"}\n",
    )
    .unwrap();
    let said = place.run("pairs", &[&records]).unwrap_err().to_string();
    assert!(
        said.contains("data.jsonl:1: ") && said.contains("model.name_or_path"),
        "{said}"
    );
}

#[test]
fn a_device_that_is_not_there_says_what_is() {
    let place = Place::new();
    let error = place.run("a", &["device=gpu:63"]).unwrap_err();
    assert!(error.is_bad_usage());
    let text = error.to_string();
    assert!(
        text.contains("`device: gpu:63` is not there: libtorch sees"),
        "{text}"
    );
}
