//! Learning from preferences, as TRL does it (`tests/reference/preferences.py`).

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::cell::Cell;
use std::fs;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use surefoot_trainer::{
    Allocator, Config, DryRun, Error, NoObserver, Observer, Shown, Stop, Summary, dry_run, run,
    show_data,
};

const CONFIG: &str = "
seed: 7
device: cpu
threads: 1
data: {block_size: 128, validation_fraction: 0}
sample: {max_new_tokens: 0}
train:
  bf16: false
  max_steps: 5
  lr_scheduler_type: constant
  max_grad_norm: 0
  logging_steps: 1
  eval_steps: 0
  per_device_eval_batch_size: 3
";

fn kept() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/reference/golden")
}

fn golden(name: &str) -> PathBuf {
    let folder = std::env::var_os("SUREFOOT_GOLDEN").map_or(kept(), PathBuf::from);
    folder.join(name)
}

fn reference() -> Value {
    let text = fs::read_to_string(golden("preferences/runs.json")).unwrap();
    serde_json::from_str(&text).unwrap()
}

struct Place {
    folder: tempfile::TempDir,
    reference: Value,
}

/// Stops a run after a step.
struct StopsAt<'a>(u64, &'a Stop, Cell<u64>);

impl Observer for StopsAt<'_> {
    fn stepped(&mut self, step: u64) {
        self.2.set(step);
        if step == self.0 {
            self.1.request();
        }
    }
}

impl Place {
    fn new() -> Self {
        let place = Self {
            folder: tempfile::tempdir().unwrap(),
            reference: reference(),
        };
        fs::create_dir(place.path("model")).unwrap();
        for name in ["config.json", "generation_config.json", "model.safetensors"] {
            let from = golden("preferences/model").join(name);
            fs::copy(from, place.path("model").join(name)).unwrap();
        }
        let tokenizer = kept().join("layouts/tokenizer.json");
        fs::copy(tokenizer, place.path("model/tokenizer.json")).unwrap();
        let keys = json!({
            "tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<s>", "eos_token": "<|im_end|>",
            "pad_token": "<|im_end|>", "chat_template": place.reference["template"],
        });
        let config = place.path("model/tokenizer_config.json");
        fs::write(config, keys.to_string()).unwrap();
        place
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn write(&self, name: &str, records: &Value) -> PathBuf {
        let lines = records.as_array().unwrap().iter();
        let text: String = lines.map(|record| format!("{record}\n")).collect();
        fs::write(self.path(name), text).unwrap();
        self.path(name)
    }

    /// The config of a run of the reference, named `name`.
    fn config(&self, case: &str, name: &str, more: &[&str]) -> Config {
        let case = &self.reference["runs"][case];
        let data = self.write(&format!("{name}.jsonl"), &case["records"]);
        let held_out = self.write(&format!("{name}-held.jsonl"), &case["held_out"]);
        let mut all = vec![
            format!("name={name}"),
            format!("output_dir={}", self.path("runs").display()),
            format!("model.name_or_path={}", self.path("model").display()),
            format!("data.path={}", data.display()),
            format!("data.eval_dataset={}", held_out.display()),
            format!("preference={}", case["preference"]),
            format!("train.per_device_train_batch_size={}", case["batch"]),
            format!("train.learning_rate={}", self.reference["learning_rate"]),
        ];
        if let Some(length) = case["max_length"].as_u64() {
            all.push(format!("data.block_size={length}"));
        }
        if let Some(count) = case["accumulate"].as_u64() {
            all.push(format!("train.gradient_accumulation_steps={count}"));
        }
        if case["adapter"] == true {
            let folder = golden("preferences/adapter");
            all.push(format!("adapter.resume_from={}", folder.display()));
        }
        all.extend(more.iter().map(|text| (*text).to_owned()));
        Config::parse("test.yaml", CONFIG, &all).unwrap()
    }

    fn run(&self, case: &str, name: &str, more: &[&str]) -> Summary {
        let config = self.config(case, name, more);
        run(
            &config,
            &Allocator::torch(),
            &mut NoObserver,
            &Stop::default(),
        )
        .unwrap()
    }

    fn dry(&self, case: &str, more: &[&str]) -> DryRun {
        let config = self.config(case, "dry", more);
        dry_run(&config, &Allocator::torch(), &mut NoObserver).unwrap()
    }

    /// The records of this kind in `metrics.jsonl`, without times and memory.
    fn metrics(&self, name: &str, kind: &str) -> Vec<Value> {
        let path = self.path("runs").join(name).join("metrics.jsonl");
        let text = fs::read_to_string(path).unwrap();
        let rows = text
            .lines()
            .map(|line| serde_json::from_str::<Value>(line).unwrap());
        let rows = rows.filter(|row| row["kind"] == kind);
        rows.map(|mut row| {
            let keys = row.as_object_mut().unwrap();
            keys.retain(|key, _| key != "memory" && key != "tokens_per_second");
            row
        })
        .collect()
    }

    fn losses(&self, name: &str) -> Vec<f64> {
        let rows = self.metrics(name, "train");
        rows.iter()
            .map(|row| row["loss"].as_f64().unwrap())
            .collect()
    }
}

/// Compares every number that TRL logged.
fn assert_logged(theirs: &Value, ours: &Value, loss: &str, what: &str) {
    for (key, value) in theirs.as_object().unwrap() {
        let found = match key.as_str() {
            "loss" => &ours[loss],
            "grad_norm" => &ours["grad_norm"],
            _ => &ours["measures"][key],
        };
        let (value, found) = (value.as_f64().unwrap(), found.as_f64());
        let found = found.unwrap_or_else(|| panic!("{what}: no `{key}` in {ours}"));
        // Where both rewards are 0 but for rounding, neither is the larger one.
        let is_even = theirs["rewards/margins"]
            .as_f64()
            .is_some_and(|one| one.abs() < 1e-4);
        let bound = match key.as_str() {
            "rewards/accuracies" if is_even => continue,
            "loss" => 1e-5,
            _ => 1e-4 * value.abs().max(1.0),
        };
        assert!(
            (found - value).abs() <= bound,
            "{what}, `{key}`: {found}, and TRL has {value}"
        );
    }
}

#[test]
fn an_automatic_batch_of_pairs_is_learned_in_one_pass_if_it_fits() {
    let place = Place::new();
    let auto = [
        "train.per_device_train_batch_size=auto",
        "train.gradient_accumulation_steps=4",
    ];
    let summary = place.run("dpo", "auto", &auto);
    assert_eq!(
        summary.environment.batch.unwrap(),
        "all 4 samples of a step in one pass"
    );
    place.run(
        "dpo",
        "four",
        &[
            "train.per_device_train_batch_size=4",
            "train.gradient_accumulation_steps=1",
        ],
    );
    assert_eq!(place.losses("auto"), place.losses("four"));
    // Of a step, one pass is tried.
    let dry = place.dry("dpo", &auto);
    assert_eq!(
        dry.environment.batch.unwrap(),
        "all 4 samples of a step in one pass"
    );
}

#[test]
fn five_steps_of_each_loss_are_those_of_trl() {
    let place = Place::new();
    for (number, (case, of_trl)) in place.reference["runs"]
        .as_object()
        .unwrap()
        .iter()
        .enumerate()
    {
        let name = format!("run-{number}");
        place.run(case, &name, &[]);
        let steps = place.metrics(&name, "train");
        assert_eq!(steps.len(), 5, "{case}");
        for (ours, theirs) in steps.iter().zip(of_trl["log"].as_array().unwrap()) {
            let what = format!("{case}, step {}", ours["step"]);
            assert_logged(theirs, ours, "loss", &what);
        }
        let evaluations = place.metrics(&name, "eval");
        let last = evaluations.last().unwrap();
        assert_logged(&of_trl["eval"], last, "eval_loss", case);
    }
}

#[test]
fn an_adapter_that_is_switched_off_is_the_model_before_the_first_step() {
    let place = Place::new();
    let adapter = "adapter={r: 4, target_modules: all-linear}";
    for case in ["dpo of chats", "kto"] {
        let off = format!("{case}-off");
        place.run(case, &off, &[adapter]);
        assert!(
            !place
                .path("runs")
                .join(&off)
                .join("reference.safetensors")
                .exists()
        );
        let before = format!("{case}-before");
        let more = [adapter, "preference.precompute_ref_log_probs=true"];
        place.run(case, &before, &more);
        assert!(
            place
                .path("runs")
                .join(&before)
                .join("reference.safetensors")
                .exists()
        );
        for (one, other) in place.losses(&off).iter().zip(place.losses(&before)) {
            assert!((one - other).abs() < 1e-6, "{case}: {one} and {other}");
        }
        let measured =
            |name: &str| place.metrics(name, "eval").pop().unwrap()["eval_loss"].as_f64();
        let (one, other) = (measured(&off).unwrap(), measured(&before).unwrap());
        assert!((one - other).abs() < 1e-6, "{case}: {one} and {other}");
    }
}

#[test]
fn a_stopped_run_goes_on_as_if_it_had_not_stopped() {
    let adapter = "adapter={r: 4, target_modules: all-linear}";
    for (case, more) in [
        ("dpo", &["train.logging_steps=2"][..]),
        ("dpo of chats", &[adapter]),
        ("dpo with an adapter", &[]),
        ("orpo", &["train.per_device_train_batch_size=3"]),
        (
            "kto",
            &["train.num_train_epochs=3", "train.eval_strategy=epoch"],
        ),
    ] {
        let place = Place::new();
        let more: Vec<_> = more.to_vec();
        let whole = place.run(case, "whole", &more);
        let stop = Stop::default();
        let config = place.config(case, "parted", &more);
        let mut stops = StopsAt(3, &stop, Cell::new(0));
        run(&config, &Allocator::torch(), &mut stops, &stop).unwrap();
        let folder = place.path("runs/parted");
        let resume = format!("train.resume_from_checkpoint={}", folder.display());
        let again = place.run(case, "parted", &[&more[..], &[&resume]].concat());
        assert_eq!(whole.steps, again.steps, "{case}");
        for kind in ["train", "eval"] {
            let (one, other) = (place.metrics("whole", kind), place.metrics("parted", kind));
            // A stopped run is measured where it stops, too.
            let other = other
                .into_iter()
                .filter(|row| kind == "train" || one.contains(row));
            assert_eq!(one, other.collect::<Vec<_>>(), "{case}");
        }
        let weights = |name: &str| {
            let folder = place.path("runs").join(name);
            let adapter = folder.join("adapter/adapter_model.safetensors");
            fs::read(adapter).or_else(|_| fs::read(folder.join("model/model.safetensors")))
        };
        assert!(
            weights("whole").unwrap() == weights("parted").unwrap(),
            "{case}"
        );
    }
}

#[test]
fn a_run_whose_reference_is_gone_does_not_go_on() {
    let place = Place::new();
    place.run("dpo", "a", &["train.max_steps=2"]);
    let folder = place.path("runs/a");
    fs::remove_file(folder.join("reference.safetensors")).unwrap();
    let resume = format!("train.resume_from_checkpoint={}", folder.display());
    let config = place.config("dpo", "a", &["train.max_steps=4", &resume]);
    let result = run(
        &config,
        &Allocator::torch(),
        &mut NoObserver,
        &Stop::default(),
    );
    let error = result.unwrap_err().to_string();
    assert!(error.contains("reference.safetensors"), "{error}");
}

#[test]
fn a_streamed_base_learns_the_same_and_one_in_fewer_bits_learns() {
    let place = Place::new();
    let adapter = "adapter={r: 4, target_modules: all-linear}";
    for case in ["dpo", "kto"] {
        place.run(case, &format!("{case}-resident"), &[adapter]);
        let more = [
            adapter,
            "model.offload=all",
            "train.gradient_checkpointing=true",
        ];
        place.run(case, &format!("{case}-streamed"), &more);
        let (one, other) = (
            place.losses(&format!("{case}-resident")),
            place.losses(&format!("{case}-streamed")),
        );
        assert_eq!(one, other, "{case}");
    }
    for bits in ["nf4", "int8"] {
        let quantized = format!("model.quantization={bits}");
        place.run("dpo", bits, &[adapter, &quantized]);
        let losses = place.losses(bits);
        assert!(
            (losses[0] - std::f64::consts::LN_2).abs() < 1e-6,
            "{losses:?}"
        );
        assert!(losses[4] < losses[0], "{losses:?}");
    }
}

#[test]
fn pairs_count_twice_in_the_memory_and_single_answers_once() {
    let place = Place::new();
    let alike = json!({"prompt": "the river", "chosen": " a stone", "rejected": " a stone"});
    let data = place.write("alike.jsonl", &json!([alike, alike, alike, alike]));
    let path = format!("data.path={}", data.display());
    let activations = |loss: &str, batch: u32| {
        let batch = format!("train.per_device_train_batch_size={batch}");
        let more = [loss, &batch, &path, "data.eval_dataset=null"];
        let dry = place.dry("dpo", &more);
        assert!(dry.loss > 0.0);
        dry.memory_estimate.activations
    };
    let (kto, dpo) = ("preference={loss_type: kto}", "preference={}");
    assert_eq!(activations(dpo, 2), activations(kto, 4));
    assert!(activations(dpo, 2) < activations(dpo, 4));
}

#[test]
fn both_answers_are_shown_with_what_is_learned_of_them() {
    let place = Place::new();
    let config = place.config("dpo of chats", "shown", &[]);
    let Shown::Rows(shown) = show_data(&config, 1, &mut NoObserver).unwrap() else {
        panic!("no rows")
    };
    let names: Vec<_> = shown.rows[0]
        .examples
        .iter()
        .map(|one| one.name.unwrap())
        .collect();
    assert_eq!(names, ["chosen", "rejected"]);
    let given = &shown.rows[0].examples[1].pieces[0];
    assert!(!given.learned && given.text.ends_with("<|im_start|>assistant\n"));
    assert!(
        shown.data.contains("4 training rows of two answers"),
        "{}",
        shown.data
    );
}

#[test]
fn mistakes_are_refused_with_file_line_and_key() {
    let place = Place::new();
    let refused = |records: &Value, more: &[&str]| {
        let data = place.write("mistakes.jsonl", records);
        let path = format!("data.path={}", data.display());
        let config = place.config("dpo", "bad", &[&[path.as_str()], more].concat());
        let result: Result<Summary, Error> = run(
            &config,
            &Allocator::torch(),
            &mut NoObserver,
            &Stop::default(),
        );
        result.unwrap_err().to_string()
    };
    let good = json!({"prompt": "a", "chosen": "b", "rejected": "c"});
    let error = refused(&json!([good, {"prompt": "a", "chosen": "b"}]), &[]);
    assert!(
        error.contains("mistakes.jsonl:2: `rejected` is missing"),
        "{error}"
    );
    let long = json!({"prompt": "the river and a stone", "chosen": "b", "rejected": "c"});
    let error = refused(&json!([long]), &["data.block_size=2"]);
    assert!(error.contains("`data.block_size` 2"), "{error}");
    // Without the section they are no texts.
    let error = refused(&json!([good]), &["preference=null"]);
    assert!(error.contains("a section `preference`"), "{error}");
}
