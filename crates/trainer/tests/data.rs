//! Whole runs on data as people have it: one example a row or several, other data to be measured
//! on, none at all, and templates that write the date.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod chats;

use std::fs;
use std::path::{Path, PathBuf};

use surefoot_trainer::inference::{LanguageModel, LoadOptions, score};
use surefoot_trainer::records::records;
use surefoot_trainer::{
    Allocator, Config, Error, NoObserver, Observer, Shown, Stop, Summary, dry_run, show_data,
};

const CONFIG: &str = "
seed: 7
device: cpu
threads: 1
adapter: {r: 2, target_modules: all-linear}
data: {block_size: 32}
sample: {max_new_tokens: 0}
train:
  bf16: false
  max_steps: 4
  per_device_train_batch_size: 12
  learning_rate: 0.01
  lr_scheduler_type: constant
  logging_steps: 1
  eval_steps: 2
  save_steps: 2
";

struct Place {
    folder: tempfile::TempDir,
}

fn golden(name: &str) -> PathBuf {
    let models = "../../tests/reference/golden/models";
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join(models)
        .join(name)
}

fn pair(n: usize) -> String {
    let answer = "the 42. ".repeat(n % 4 + 1);
    format!("{{\"prompt\": \"on {n}\", \"completion\": \" {answer}\"}}\n")
}

impl Place {
    fn new(examples: usize) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let text: String = (0..examples).map(pair).collect();
        fs::write(folder.path().join("data.jsonl"), text).unwrap();
        let other: String = (50..55).map(pair).collect();
        fs::write(folder.path().join("other.jsonl"), other).unwrap();
        Self { folder }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn other(&self) -> String {
        format!("data.eval_dataset={}", self.path("other.jsonl").display())
    }

    fn config(&self, name: &str, more: &[&str]) -> Config {
        let mut all = vec![
            format!("name={name}"),
            format!("output_dir={}", self.path("runs").display()),
            format!("data.path={}", self.path("data.jsonl").display()),
            format!(
                "model.name_or_path={}",
                golden("llama-grouped.gguf").display()
            ),
        ];
        all.extend(more.iter().map(|text| (*text).to_owned()));
        Config::parse("test.yaml", CONFIG, &all).unwrap()
    }

    /// The same without `data.path`, for a `data.mixture`.
    fn mixed(&self, name: &str, more: &[&str]) -> Config {
        let mut all = vec![
            format!("name={name}"),
            format!("output_dir={}", self.path("runs").display()),
            format!(
                "model.name_or_path={}",
                golden("llama-grouped.gguf").display()
            ),
        ];
        all.extend(more.iter().map(|text| (*text).to_owned()));
        Config::parse("test.yaml", CONFIG, &all).unwrap()
    }

    fn run_mixed(&self, name: &str, more: &[&str]) -> Result<Summary, Error> {
        let config = self.mixed(name, more);
        surefoot_trainer::run(
            &config,
            &Allocator::torch(),
            &mut NoObserver,
            &Stop::default(),
        )
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
        let stop = Stop::default();
        self.watched(name, more, &mut NoObserver, &stop).unwrap()
    }

    fn refused(&self, more: &[&str]) -> String {
        let stop = Stop::default();
        let result = self.watched("refused", more, &mut NoObserver, &stop);
        result.unwrap_err().to_string()
    }

    /// Training losses, gradient norms and held-out losses, in their order.
    fn numbers(&self, name: &str) -> Vec<f64> {
        let path = self.path("runs").join(name).join("metrics.jsonl");
        let text = fs::read_to_string(path).unwrap();
        let mut numbers = Vec::new();
        for line in text.lines() {
            let row: serde_json::Value = serde_json::from_str(line).unwrap();
            for key in ["loss", "grad_norm", "eval_loss"] {
                numbers.extend(row[key].as_f64());
            }
        }
        assert!(numbers.len() > 8, "{text}");
        numbers
    }

    fn assert_close(&self, one: &str, other: &str) {
        let (ours, theirs) = (self.numbers(one), self.numbers(other));
        assert_eq!(ours.len(), theirs.len());
        for (a, b) in ours.iter().zip(&theirs) {
            let difference = ((a - b) / a).abs();
            assert!(difference <= 1e-6, "{one} {a}, {other} {b}");
        }
    }

    fn checksums(&self, name: &str) -> serde_json::Value {
        let state = self
            .path("runs")
            .join(name)
            .join("checkpoints/step-000004/state.json");
        let state: serde_json::Value = serde_json::from_slice(&fs::read(state).unwrap()).unwrap();
        assert!(state["checksums"].is_object() || state["checksums"].is_array());
        state["checksums"].clone()
    }
}

/// Asks the run to stop in a step.
struct StopAt(u64, Stop);

impl Observer for StopAt {
    fn stepped(&mut self, step: u64) {
        if step == self.0 {
            self.1.request();
        }
    }
}

/// All examples are in every step, so that only the rows differ.
#[test]
fn examples_that_share_rows_teach_what_they_teach_alone() {
    let place = Place::new(12);
    let other = place.other();
    let alone = place.run("alone", &["data.packing=false", &other]);
    let rows = {
        let config = place.config("rows", &["data.packing=true", &other]);
        let found = dry_run(&config, &Allocator::torch(), &mut NoObserver).unwrap();
        let text = found.environment.data;
        let number = text.split(", ").nth(1).unwrap().split(' ').next().unwrap();
        number.parse::<usize>().unwrap()
    };
    assert!((2..12).contains(&rows), "{rows}");
    let batch = format!("per_device_train_batch_size={rows}");
    for (name, more) in [
        ("packed", &[][..]),
        ("checkpointed", &["train.gradient_checkpointing=true"]),
        ("streamed", &["model.low_vram=true"]),
    ] {
        let settings = [&["data.packing=true", &other, &batch], more].concat();
        let packed = place.run(name, &settings);
        assert_eq!(packed.tokens, alone.tokens, "padding does not count");
        place.assert_close("alone", name);
    }
    // The examples' stream is another thing.
    let wrapped = place.run("wrapped", &[&other]);
    assert_ne!(wrapped.first_loss, alone.first_loss);
}

#[test]
fn padding_counts_for_nothing_however_a_step_is_cut() {
    let place = Place::new(12);
    let cuts = [(12, 1), (4, 3), (1, 12)];
    for (size, passes) in cuts {
        let size = format!("train.per_device_train_batch_size={size}");
        let passes = format!("train.gradient_accumulation_steps={passes}");
        let other = place.other();
        place.run(&passes, &["data.packing=false", &size, &passes, &other]);
    }
    place.assert_close(
        "train.gradient_accumulation_steps=1",
        "train.gradient_accumulation_steps=3",
    );
    place.assert_close(
        "train.gradient_accumulation_steps=1",
        "train.gradient_accumulation_steps=12",
    );
}

#[test]
fn the_held_out_loss_on_other_data_is_what_eval_says_of_them() {
    let place = Place::new(12);
    for packing in ["true", "false"] {
        let packing = format!("data.packing={packing}");
        let summary = place.run(&packing, &[&packing, &place.other()]);
        let held_out = summary.held_out.unwrap();
        assert!(held_out.complete);
        let options = LoadOptions {
            device: tch::Device::Cpu,
            compute: tch::Kind::Float,
            context: 64,
        };
        let adapter = place.path("runs").join(&packing).join("adapter");
        let model =
            LanguageModel::open(&golden("llama-grouped.gguf"), Some(&adapter), options).unwrap();
        let records = records(&place.path("other.jsonl"), None).unwrap();
        let score = score(&model, records, 64, &mut |_| {}).unwrap();
        let difference = (score.negative_log_likelihood - held_out.loss).abs();
        assert!(difference < 1e-6 * held_out.loss, "{score:?} {held_out:?}");
    }
}

#[test]
fn nothing_held_out_is_nothing_evaluated_to_the_end() {
    let place = Place::new(12);
    for settings in [&[][..], &["data.packing=false"], &["data.packing=true"]] {
        let name = settings.concat();
        let settings = [settings, &["data.validation_fraction=0"]].concat();
        let name = format!("run-{name}");
        let config = place.config(&name, &settings);
        let dry = dry_run(&config, &Allocator::torch(), &mut NoObserver).unwrap();
        assert_eq!(dry.held_out_loss, None);
        let summary = place.run(&name, &settings);
        assert_eq!((summary.held_out, summary.steps), (None, 4));
        let run = place.path("runs").join(&name);
        for left in [
            "report.html",
            "loss.svg",
            "summary.json",
            "adapter/adapter_config.json",
        ] {
            assert!(run.join(left).is_file(), "{left}");
        }
        let metrics = fs::read_to_string(run.join("metrics.jsonl")).unwrap();
        assert!(!metrics.contains("eval_loss"), "{metrics}");
    }
}

#[test]
fn every_kind_of_rows_resumes_exactly() {
    for settings in [
        &["data.packing=false"][..],
        &["data.packing=true"],
        &["data.packing=false", "data.validation_shuffle=true"],
        &["data.validation_shuffle=true"],
        &["data.packing=false", "train.group_by_length=true"],
        &["train.neftune_noise_alpha=5"],
    ] {
        let place = Place::new(40);
        let settings = [settings, &["per_device_train_batch_size=3"]].concat();
        place.run("whole", &settings);
        let stop = Stop::default();
        place
            .watched("cut", &settings, &mut StopAt(3, stop.clone()), &stop)
            .unwrap();
        let resumed = [&settings[..], &["resume_from_checkpoint=latest"]].concat();
        place.run("cut", &resumed);
        assert_eq!(
            place.checksums("whole"),
            place.checksums("cut"),
            "{settings:?}"
        );
    }
}

#[test]
fn a_run_does_not_go_on_with_other_rows() {
    let place = Place::new(40);
    place.run("refused", &["data.packing=false", "max_steps=2"]);
    let on = "resume_from_checkpoint=latest";
    for (settings, key) in [
        (&["data.packing=true"][..], "packing"),
        (&[], "packing"),
        (
            &["data.packing=false", "data.validation_shuffle=true"],
            "validation_shuffle",
        ),
        (
            &["data.packing=false", "data.validation_fraction=0.3"],
            "data.validation_fraction",
        ),
    ] {
        let said = place.refused(&[settings, &[on, "max_steps=2"]].concat());
        assert!(said.contains(key), "{settings:?}: {said}");
    }
}

#[test]
fn batches_by_length_are_hardly_padded_and_stay_so() {
    let place = Place::new(40);
    let settings = ["data.packing=false", "data.validation_fraction=0"];
    let grouped = [&settings[..], &["train.group_by_length=true"]].concat();
    let lengths = |more: &[&str]| {
        let config = place.config("rows", more);
        match show_data(&config, 40, &mut NoObserver).unwrap() {
            Shown::Rows(shown) => {
                let tokens = shown.rows.iter().map(|row| row.tokens);
                tokens.collect::<Vec<_>>()
            }
            Shown::Media(_) => panic!("texts are no media"),
        }
    };
    // How far each row is from the one before.
    let apart = |lengths: &[u64]| -> u64 {
        let pairs = lengths.windows(2);
        pairs.map(|pair| pair[0].abs_diff(pair[1])).sum()
    };
    let (mixed, sorted) = (lengths(&settings), lengths(&grouped));
    assert!(
        3 * apart(&sorted) < apart(&mixed),
        "{sorted:?} and {mixed:?}"
    );
    assert_eq!(sorted.first(), sorted.iter().max());
    place.run("refused", &[&settings[..], &["max_steps=2"]].concat());
    let on = ["resume_from_checkpoint=latest", "max_steps=2"];
    let said = place.refused(&[&grouped[..], &on].concat());
    assert!(said.contains("`train.group_by_length`"), "{said}");
}

/// They change what is learned, and not what is measured.
#[test]
fn noise_and_smoothed_labels_are_for_training_alone() {
    let place = Place::new(12);
    let other = place.other();
    let first = |name: &str, more: &[&str]| {
        let settings = [&["learning_rate=1e-9", "data.packing=false", &other], more].concat();
        let summary = place.run(name, &settings);
        (summary.first_loss.unwrap(), summary.held_out.unwrap().loss)
    };
    let (plain, measured) = first("plain", &[]);
    for key in ["neftune_noise_alpha=20", "label_smoothing_factor=0.3"] {
        let (learned, held_out) = first(key, &[key]);
        assert!(
            (learned - plain).abs() > 1e-3,
            "{key}: {learned} and {plain}"
        );
        assert!((held_out - measured).abs() < 1e-5, "{key}");
    }
}

/// A set as small as people try first, with the settings of the config that is shipped.
#[test]
fn fifty_examples_train_or_say_what_to_set() {
    let place = Place::new(50);
    let shipped = ["data.validation_fraction=0.02", "data.block_size=256"];
    let summary = place.run("shipped", &shipped);
    assert!(summary.held_out.unwrap().loss.is_finite());
    let said = place.refused(&["data.block_size=100000"]);
    assert!(
        said.contains("data.block_size: ") && said.contains("data.packing: false"),
        "{said}"
    );
    let said = place.refused(&["data.validation_fraction=0.0001"]);
    assert!(said.contains("data.validation_fraction: 0"), "{said}");
    let summary = place.run("small", &["data.packing=false", "data.block_size=100000"]);
    assert_eq!(summary.steps, 4);
    let empty = place.path("empty.jsonl");
    std::fs::write(&empty, "\n \n").unwrap();
    let said = place.refused(&[&format!("data.path={}", empty.display())]);
    assert!(said.contains("no text in it"), "{said}");
}

#[test]
fn a_run_without_a_length_is_three_passes_over_little_data() {
    let place = Place::new(60);
    let settings = [
        "train.max_steps=null",
        "data.validation_fraction=0",
        "data.packing=false",
        "eval_steps=0",
    ];
    // Sixty rows in batches of twelve.
    assert_eq!(place.run("short", &settings).steps, 15);
    let resumed = [&settings[..], &["resume_from_checkpoint=latest"]].concat();
    assert_eq!(place.run("short", &resumed).steps, 15);
    // The same fifteen batches, four in a step.
    let several = [&settings[..], &["gradient_accumulation_steps=4"]].concat();
    assert_eq!(place.run("several", &several).steps, 4);
}

#[test]
fn columns_with_names_of_their_own_are_learned_alike_from_each_kind_of_file() {
    let place = Place::new(60);
    let text = fs::read_to_string(place.path("data.jsonl")).unwrap();
    let other = text
        .replace("\"prompt\"", "\"question\"")
        .replace("\"completion\"", "\"reply\"");
    fs::write(place.path("other-names.jsonl"), &other).unwrap();
    let list: Vec<_> = other.lines().collect();
    fs::write(place.path("list.json"), format!("[{}]", list.join(",\n"))).unwrap();
    let columns = "data.columns={prompt: question, completion: reply}";
    place.run("plain", &[]);
    for file in ["other-names.jsonl", "list.json"] {
        let path = format!("data.path={}", place.path(file).display());
        let name = file.replace('.', "-");
        place.run(&name, &[columns, &path]);
        assert_eq!(place.numbers("plain"), place.numbers(&name), "{file}");
    }
    let path = format!("data.path={}", place.path("other-names.jsonl").display());
    let told = place.refused(&[&path]);
    assert!(told.contains("but `question`, `reply`"), "{told}");
    fs::write(place.path("plain.txt"), "a text").unwrap();
    let path = format!("data.path={}", place.path("plain.txt").display());
    let told = place.refused(&[&path, columns]);
    assert!(
        told.contains("is plain text, but `data.columns` names columns"),
        "{told}"
    );
}

/// Two sets: `data.jsonl` of the place, and one whose texts say `sea` and nothing that the others do.
fn mixture(place: &Place, seas: usize, first: &str, second: &str) -> String {
    let sea = |n: usize| format!("{{\"q\": \"sea {n}\", \"completion\": \" blue.\"}}\n");
    let file = place.path("seas.jsonl");
    fs::write(&file, (0..seas).map(sea).collect::<String>()).unwrap();
    format!(
        "data.mixture=[{{path: {}{first}}}, {{path: {}, columns: {{prompt: q}}{second}}}]",
        place.path("data.jsonl").display(),
        file.display()
    )
}

/// How many of the rows that a pass has are of the second set.
fn seas_of(place: &Place, more: &[&str]) -> (usize, usize) {
    let all = [&["data.packing=false"], more].concat();
    let config = place.mixed("shown", &all);
    let Shown::Rows(shown) = show_data(&config, 1000, &mut NoObserver).unwrap() else {
        panic!("rows");
    };
    let seas = shown.rows.iter().filter(|row| {
        let pieces = row.examples.iter().flat_map(|example| &example.pieces);
        pieces
            .map(|piece| piece.text.as_str())
            .collect::<String>()
            .contains("sea")
    });
    (seas.count(), shown.rows.len())
}

#[test]
fn several_sets_are_learned_whole_or_by_their_weights() {
    let place = Place::new(30);
    let none = "data.validation_fraction=0";
    let plain = mixture(&place, 10, "", "");
    assert_eq!(seas_of(&place, &[none, &plain]), (10, 40));
    let even = mixture(&place, 10, ", weight: 2", ", weight: 2");
    assert_eq!(seas_of(&place, &[none, &even]), (10, 20));
    let all = "data.stopping_strategy=all_exhausted";
    assert_eq!(seas_of(&place, &[none, &even, all]), (30, 60));
    let few = mixture(&place, 10, ", weight: 0.9", ", weight: 0.1");
    assert_eq!(seas_of(&place, &[none, &few]), (3, 33));
    // Of each set a tenth is held out, and nothing of that is learned however often the others are.
    let tenth = "data.validation_fraction=0.1";
    assert_eq!(seas_of(&place, &[tenth, &plain]), (9, 36));
    assert_eq!(seas_of(&place, &[tenth, &even, all]), (27, 54));
}

#[test]
fn a_mixture_trains_and_resumes_exactly_and_says_what_it_is_of() {
    for packing in [
        "data.packing=false",
        "data.packing=true",
        "data.packing=null",
    ] {
        let place = Place::new(40);
        let sets = mixture(&place, 10, ", weight: 1", ", weight: 1");
        let settings = [
            &sets,
            packing,
            "data.stopping_strategy=all_exhausted",
            "per_device_train_batch_size=3",
        ];
        place.run_mixed("whole", &settings).unwrap();
        let stop = Stop::default();
        let config = place.mixed("cut", &settings);
        let mut observer = StopAt(3, stop.clone());
        surefoot_trainer::run(&config, &Allocator::torch(), &mut observer, &stop).unwrap();
        let resumed = [&settings[..], &["resume_from_checkpoint=latest"]].concat();
        place.run_mixed("cut", &resumed).unwrap();
        assert_eq!(
            place.checksums("whole"),
            place.checksums("cut"),
            "{packing}"
        );
        let metrics = fs::read_to_string(place.path("runs/whole/metrics.jsonl")).unwrap();
        assert!(metrics.contains("eval_loss"), "{metrics}");
        let found = dry_run(&config, &Allocator::torch(), &mut NoObserver).unwrap();
        let text = found.environment.data;
        assert!(
            text.contains("data.jsonl (38 examples) and ")
                && text.contains("seas.jsonl (9 examples 4.22 times)"),
            "{text}"
        );
    }
}

#[test]
fn a_run_does_not_go_on_with_other_shares_of_its_sets() {
    let place = Place::new(40);
    let even = mixture(&place, 20, ", weight: 1", ", weight: 1");
    let short = ["data.packing=false", "max_steps=2"];
    place
        .run_mixed("a", &[&short[..], &[&even]].concat())
        .unwrap();
    let on = [&short[..], &["resume_from_checkpoint=latest"]].concat();
    let other = mixture(&place, 20, ", weight: 2", ", weight: 1");
    let said = place.run_mixed("a", &[&on[..], &[&other]].concat());
    let said = said.unwrap_err().to_string();
    assert!(
        said.contains("`mixture` was [19,19], and is now [38,19]"),
        "{said}"
    );
    // The same shares in other numbers are the same data.
    let same = mixture(&place, 20, ", weight: 0.5", ", weight: 0.5");
    place.run_mixed("a", &[&on[..], &[&same]].concat()).unwrap();
}

#[test]
fn what_a_mixture_lacks_is_said_where_it_is() {
    let place = Place::new(40);
    let gone = format!(
        "data.mixture=[{{path: {}}}, {{path: /gone/x.jsonl}}]",
        place.path("data.jsonl").display()
    );
    let said = place.run_mixed("a", &[&gone]).unwrap_err().to_string();
    assert!(
        said.contains("`data.mixture` names `/gone/x.jsonl`"),
        "{said}"
    );
    let sets = mixture(&place, 5, "", "");
    let split = [&*sets, "data.eval_split=test"];
    let said = place.run_mixed("a", &split).unwrap_err().to_string();
    assert!(
        said.contains("`data.eval_split`") && said.contains("data.jsonl"),
        "{said}"
    );
    let one = mixture(&place, 1, "", "");
    let said = place.run_mixed("a", &[&one]).unwrap_err().to_string();
    assert!(said.contains("seas.jsonl` has one record"), "{said}");
}
