//! Whole runs with adapters: that they continue exactly, and that what saves memory changes
//! nothing of what is learned.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::fs;
use std::path::{Path, PathBuf};

use surefoot_trainer::{Allocator, Config, NoObserver, Observer, Stop, Summary};

const CONFIG: &str = "
seed: 7
device: cpu
threads: 1
adapter: {r: 2, target_modules: all-linear}
data: {block_size: 16, validation_fraction: 0.1}
sample: {max_new_tokens: 0}
train:
  bf16: false
  max_steps: 6
  per_device_train_batch_size: 3
  gradient_accumulation_steps: 2
  learning_rate: 0.01
  warmup_steps: 2
  logging_steps: 1
  eval_steps: 0
  save_steps: 0
";

const DROPOUT: &str = "adapter.lora_dropout=0.3";
const BF16: &str = "train.bf16=true";
const HALF: &str = "adapter.lora_bf16=true";
const DORA: &str = "adapter.use_dora=true";
const EMBEDDING: &str = "adapter.target_modules=[embed_tokens, q_proj]";
const WHOLE: &str = "adapter.modules_to_save=[lm_head, layers.0.mlp, norm]";
const CHECKPOINTING: &str = "train.gradient_checkpointing=true";

fn golden(name: &str) -> PathBuf {
    let kept = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/reference/golden");
    let folder = std::env::var_os("SUREFOOT_GOLDEN").map_or(kept, PathBuf::from);
    folder.join(name)
}

struct Place {
    folder: tempfile::TempDir,
}

impl Place {
    /// Chats, of which only the answers are learned: passes differ in how much there is to learn.
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let line = |n: usize| {
            let answer = "the 42. ".repeat(n % 5 + 1);
            format!(
                "{{\"prompt\": \"on {}\", \"completion\": \" {answer}\"}}\n",
                n % 10
            )
        };
        let text: String = (0..200).map(line).collect();
        fs::write(folder.path().join("data.jsonl"), text).unwrap();
        Self { folder }
    }

    fn run(&self, name: &str, more: &[&str]) -> Summary {
        self.watched(name, more, &mut NoObserver, &Stop::default())
    }

    fn watched(
        &self,
        name: &str,
        more: &[&str],
        observer: &mut dyn Observer,
        stop: &Stop,
    ) -> Summary {
        let model = "../../tests/reference/golden/models/llama-grouped.gguf";
        let model = Path::new(env!("CARGO_MANIFEST_DIR")).join(model);
        let path = self.folder.path();
        let mut all = vec![
            format!("name={name}"),
            format!("output_dir={}", path.join("runs").display()),
            format!("data.path={}", path.join("data.jsonl").display()),
            format!("model.name_or_path={}", model.display()),
        ];
        all.extend(more.iter().map(|text| (*text).to_owned()));
        let config = Config::parse("test.yaml", CONFIG, &all).unwrap();
        surefoot_trainer::run(&config, &Allocator::torch(), observer, stop).unwrap()
    }

    fn checkpoint(&self, name: &str) -> PathBuf {
        let runs = self.folder.path().join("runs");
        runs.join(name).join("checkpoints/step-000006")
    }

    /// Weights, moments and the place in the data after the last step are the same, bit for bit.
    fn assert_same(&self, one: &str, other: &str, what: &str) {
        let (one, other) = (self.checkpoint(one), self.checkpoint(other));
        let state = |folder: &Path| -> serde_json::Value {
            serde_json::from_slice(&fs::read(folder.join("state.json")).unwrap()).unwrap()
        };
        let (one, other) = (state(&one), state(&other));
        for key in ["data", "units", "step", "checksums"] {
            assert_eq!(one[key], other[key], "{key} {what}");
        }
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

/// A run whose limit has room for three samples takes passes of three, learns what one with room for six does, and goes on
/// with them where there is more room.
#[test]
fn an_automatic_batch_is_divided_by_what_memory_has_room_for() {
    let place = Place::new();
    let whole = "model.offload={'': device}";
    let batch = |rows: &str, passes: &str| {
        [
            format!("train.per_device_train_batch_size={rows}"),
            format!("train.gradient_accumulation_steps={passes}"),
        ]
    };
    let need = |name: &str, rows: &str, passes: &str| {
        let [rows, passes] = batch(rows, passes);
        let plan = place
            .run(name, &[whole, &rows, &passes])
            .memory_plan
            .unwrap();
        plan.plan.device_peak().0
    };
    let (three, six) = (need("three", "3", "2"), need("six", "6", "1"));
    assert!(three < six);
    let [rows, passes] = batch("auto", "6");
    let auto = [whole, rows.as_str(), passes.as_str()];
    let limit = format!("model.max_memory={{device: {three}}}");
    let limited = [&auto[..], &[limit.as_str()]].concat();

    let roomy = place.run("roomy", &auto);
    assert_eq!((roomy.micro_batch, roomy.repeated_steps), (Some(6), 0));
    place.assert_same("roomy", "six", "in one pass");

    let divided = place.run("divided", &limited);
    assert_eq!((divided.micro_batch, divided.repeated_steps), (Some(3), 0));
    let said = divided.environment.batch.unwrap();
    assert_eq!(
        said,
        "passes of 3 of the 6 samples of a step: memory has no room for 6"
    );
    let (divided, six) = (
        losses_and_norms(&place, "divided"),
        losses_and_norms(&place, "six"),
    );
    assert_eq!(divided.len(), 6);
    for ([divided, _], [six, _]) in divided.iter().zip(&six) {
        assert!((divided - six).abs() < 1e-6 * six, "{divided} and {six}");
    }

    let stop = Stop::default();
    place.watched("cut", &limited, &mut StopAt(2, stop.clone()), &stop);
    let resumed = [&auto[..], &["train.resume_from_checkpoint=latest"]].concat();
    let resumed = place.run("cut", &resumed);
    assert_eq!(resumed.micro_batch, Some(3));
    assert!(
        resumed
            .environment
            .batch
            .unwrap()
            .ends_with("as in the checkpoint")
    );
    place.assert_same("divided", "cut", "with more room after a cut");
}

fn resumes_exactly(settings: &[&str]) {
    let place = Place::new();
    place.run("whole", settings);
    for cut in [1, 2, 5] {
        let (name, stop) = (format!("cut-{cut}"), Stop::default());
        let stopped = place.watched(&name, settings, &mut StopAt(cut, stop.clone()), &stop);
        assert_eq!(stopped.steps, cut);
        let resumed = [settings, &["train.resume_from_checkpoint=latest"]].concat();
        place.run(&name, &resumed);
        place.assert_same("whole", &name, &format!("after a cut at step {cut}"));
    }
}

#[test]
fn a_lora_with_dropout_resumes_exactly() {
    resumes_exactly(&[DROPOUT]);
}

#[test]
fn a_dora_with_dropout_resumes_exactly() {
    resumes_exactly(&[DORA, DROPOUT]);
}

#[test]
fn loras_that_begin_as_principal_components_resume_exactly() {
    for init in ["pissa", "loftq"] {
        let init = format!("adapter.init_lora_weights={init}");
        resumes_exactly(&[init.as_str(), "model.quantization=nf4"]);
    }
}

#[test]
fn an_adapter_on_four_bits_with_moments_in_eight_resumes_exactly() {
    // Rank 512 makes matrices large enough for eight bits.
    let settings = [
        "model.quantization=nf4",
        "train.optim=adamw_8bit",
        "adapter.r=512",
    ];
    resumes_exactly(&settings);
}

#[test]
fn an_adapter_in_bf16_resumes_exactly() {
    resumes_exactly(&[BF16, HALF, DROPOUT]);
    resumes_exactly(&[BF16, HALF, "model.quantization=nf4"]);
}

/// Ten steps of adapters whose products are in bf16 have the losses of those in fp32 within 0.5 %, and their gradients within
/// 2 %: with matrices in bf16, in eight bits and in four, and recomputed in the backward pass or not.
#[test]
fn an_adapter_in_bf16_learns_what_one_in_fp32_does() {
    for base in ["none", "int8", "nf4"] {
        let place = Place::new();
        let base = match base {
            "none" => "model.quantization=null".to_owned(),
            base => format!("model.quantization={base}"),
        };
        let settings = [BF16, &base, "train.max_steps=10", "adapter.lora_alpha=4"];
        let off = "adapter.lora_bf16=false";
        place.run("fp32", &[&settings, &[off][..]].concat());
        place.run("bf16", &[&settings, &[HALF][..]].concat());
        place.run("again", &[&settings, &[HALF, CHECKPOINTING][..]].concat());
        let [full, half, again] =
            ["fp32", "bf16", "again"].map(|name| losses_and_norms(&place, name));
        assert_eq!(half, again, "{base}");
        assert_eq!(full.len(), 10);
        assert_ne!(full, half, "{base}");
        let most = |place: usize| -> f64 {
            let pairs = full.iter().zip(&half);
            let differences =
                pairs.map(|(full, half)| ((full[place] - half[place]) / full[place]).abs());
            differences.fold(0.0, f64::max)
        };
        println!(
            "{base}: losses within {:.1e}, gradients within {:.1e}",
            most(0),
            most(1)
        );
        assert!(
            most(0) <= 5e-3 && most(1) <= 2e-2,
            "{base}: {} and {}",
            most(0),
            most(1)
        );
    }
}

#[test]
fn modules_that_learn_whole_beside_an_adapted_embedding_resume_exactly() {
    resumes_exactly(&[EMBEDDING, WHOLE, DROPOUT]);
}

#[test]
fn gradient_checkpointing_changes_no_bit() {
    for settings in [
        &[][..],
        &[DROPOUT],
        &[DORA],
        &[DORA, DROPOUT],
        &[EMBEDDING, WHOLE, DROPOUT],
    ] {
        let place = Place::new();
        place.run("kept", settings);
        place.run("again", &[settings, &[CHECKPOINTING]].concat());
        place.assert_same("kept", "again", &format!("with {settings:?}"));
    }
}

#[test]
fn dropout_changes_what_is_learned() {
    let place = Place::new();
    let plain = place.run("plain", &[]);
    let dropped = place.run("dropped", &[DROPOUT]);
    assert_ne!(plain.last_loss, dropped.last_loss);
}

/// The merged model continues text as base and adapter do.
#[test]
fn a_merged_model_is_written_beside_the_adapter() {
    let place = Place::new();
    place.run("plain", &[]);
    let run = place.folder.path().join("runs/plain");
    assert!(run.join("adapter").exists() && !run.join("merged").exists());
    place.run("both", &["adapter.save_merged=true"]);
    let run = place.folder.path().join("runs/both");
    let files = ["model.safetensors", "config.json", "tokenizer.json"];
    for file in files {
        assert!(run.join("merged").join(file).is_file(), "{file}");
    }
    let more = format!("model.name_or_path={}", run.join("merged").display());
    let barely = [
        "train.max_steps=1",
        "train.warmup_steps=0",
        "train.learning_rate=1e-9",
    ];
    let again = place.run("again", &[&[&*more], &barely[..]].concat());
    let (both, merged) = (
        losses(&run),
        losses(&place.folder.path().join("runs/again")),
    );
    assert!((both - merged).abs() < 1e-4, "{both} and {merged}");
    assert_eq!(again.steps, 1);
}

/// The last held-out loss of a run.
fn losses(run: &Path) -> f64 {
    let summary = fs::read(run.join("summary.json")).unwrap();
    let summary: serde_json::Value = serde_json::from_slice(&summary).unwrap();
    summary["held_out"]["loss"].as_f64().unwrap()
}

/// Losses and gradient norms of a run's steps.
fn losses_and_norms(place: &Place, name: &str) -> Vec<[f64; 2]> {
    let metrics = place
        .folder
        .path()
        .join("runs")
        .join(name)
        .join("metrics.jsonl");
    let text = fs::read_to_string(metrics).unwrap();
    let rows = text
        .lines()
        .map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap());
    let numbers = |row: serde_json::Value| {
        let of = |key: &str| row[key].as_f64();
        Some([of("loss")?, of("grad_norm")?])
    };
    rows.filter_map(numbers).collect()
}

#[test]
fn a_step_learns_the_same_however_it_is_cut_into_batches() {
    let place = Place::new();
    let cuts = [(6, 1), (3, 2), (1, 6)];
    let runs = cuts.map(|(size, passes)| {
        let name = format!("{size}-{passes}");
        let size = format!("train.per_device_train_batch_size={size}");
        let passes = format!("train.gradient_accumulation_steps={passes}");
        place.run(&name, &[&size, &passes]);
        losses_and_norms(&place, &name)
    });
    assert_eq!(runs[0].len(), 6);
    for (run, cut) in runs[1..].iter().zip(&cuts[1..]) {
        for (step, (one, other)) in runs[0].iter().zip(run).enumerate() {
            for (a, b) in one.iter().zip(other) {
                let difference = ((a - b) / a).abs();
                assert!(difference <= 1e-6, "step {step} of {cut:?}: {a} and {b}");
            }
        }
    }
}

/// A rate at which the loss falls much further than at a hundredth of it, whatever the optimizer; a search leaves nothing
/// behind but what it found, and touches no other run.
#[test]
fn a_learning_rate_is_found_for_each_optimizer_and_group() {
    for (optim, groups) in [
        ("adamw_torch_fused", "[]"),
        (
            "adamw_torch_fused",
            "[{names: lora_B, learning_rate: 0.04}]",
        ),
        ("lion", "[]"),
        ("adafactor", "[]"),
        ("came", "[]"),
        ("muon", "[]"),
        ("schedule_free_adamw", "[]"),
    ] {
        let place = Place::new();
        let optim = format!("optim={optim}");
        let groups = format!("parameter_groups={groups}");
        let settings = [
            &optim,
            &groups,
            "lr_scheduler_type=constant",
            "warmup_steps=0",
        ];
        let more = ["max_steps=1", "train.find_learning_rate=true"];
        let more = [&settings[..], &more].concat();
        let first = place.run("a", &more);
        let found = first.learning_rate.unwrap();
        let rate = found
            .learning_rate
            .unwrap_or_else(|| panic!("{optim}: {}", found.reason));
        assert!((1e-5..0.2).contains(&rate), "{optim}: {rate}");
        assert_eq!(
            found.reason.contains("parameter_groups"),
            groups.contains("lora_B")
        );
        let runs = place.folder.path().join("runs");
        let kept = |name: &str| {
            let entries = fs::read_dir(runs.join(name)).unwrap();
            let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
            let mut names: Vec<_> = names.filter(|name| !name.starts_with("events.")).collect();
            names.sort();
            names
        };
        let files = [
            "config.yaml",
            "loss.svg",
            "memory.svg",
            "metrics.jsonl",
            "report.html",
        ];
        assert_eq!(
            kept("a-lr"),
            [&files[..], &["run.json", "summary.json"]].concat()
        );
        assert!(!runs.join("a").exists());
        if optim.ends_with("lion") {
            let config = fs::read(runs.join("a-lr/config.yaml")).unwrap();
            assert_eq!(place.run("a", &more).name, "a-lr-2");
            assert_eq!(fs::read(runs.join("a-lr/config.yaml")).unwrap(), config);
        }
        // Training at that rate, and far below it.
        let learned = |name: &str, rate: f64| {
            let rate = format!("learning_rate={rate}");
            let all = [&settings[..], &["max_steps=25", &rate]].concat();
            let summary = place.run(name, &all);
            summary.first_loss.unwrap() - summary.last_loss.unwrap()
        };
        let (good, low) = (learned("good", rate), learned("low", rate / 100.0));
        assert!(good > low + 0.05, "{optim}: {good} at {rate}, and {low}");
    }
}

#[test]
fn where_no_learning_rate_can_be_told_the_reason_is() {
    let place = Place::new();
    let groups = "parameter_groups=[{names: lora, learning_rate: 0}]";
    let search = "train.find_learning_rate=true";
    let found = place.run("flat", &[groups, search]).learning_rate.unwrap();
    assert_eq!(found.learning_rate, None);
    assert!(found.reason.contains("flat"), "{}", found.reason);
    let stop = Stop::default();
    let stopped = place.watched("cut", &[search], &mut StopAt(20, stop.clone()), &stop);
    let found = stopped.learning_rate.unwrap();
    assert!(found.reason.contains("stopped"), "{}", found.reason);
}

/// What was merged into a language model is taken out of it again.
#[test]
fn what_a_merged_model_learned_is_its_adapter() {
    use models::formats::{SafetensorsFile, TensorSource};
    use surefoot_trainer::adapters::{Keep, Kind, extract_lora, merge};
    use surefoot_trainer::media_sampling::{Expert, Lora};

    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    // The head that the second one trains in full is a layer, too.
    for (adapter, layers) in [("plain", 4), ("hadamard", 7)] {
        let model = golden("models/llama-grouped.gguf");
        let merged = |adapter: PathBuf, to: &str| {
            let lora = [Lora {
                path: adapter,
                strength: 1.0,
            }];
            merge(&model, [&lora, &[]], &path(to), Some(Kind::Float)).unwrap();
            SafetensorsFile::open(&path(to).join("model.safetensors")).unwrap()
        };
        let once = merged(golden(&format!("adapters/{adapter}")), adapter);
        let taken = path(&format!("taken-{adapter}"));
        let both = [model.as_path(), &path(adapter)];
        let found = extract_lora(
            both,
            &taken,
            Keep::Energy(1.0),
            None,
            Expert::High,
            &|_, _| (),
        );
        let found = found.unwrap();
        assert_eq!(
            (found.layers, &found.others[..]),
            (layers, &[][..]),
            "{adapter}"
        );
        let again = merged(taken, &format!("again-{adapter}"));
        for name in once.names() {
            let read = |file: &SafetensorsFile| file.read(&name, Kind::Float).unwrap();
            let apart = f64::try_from((read(&once) - read(&again)).abs().max()).unwrap();
            assert!(apart <= 1e-5, "{adapter}: {name}: {apart}");
        }
        let same = [model.as_path(), &model];
        let none = extract_lora(
            same,
            &path("none"),
            Keep::Rank(4),
            None,
            Expert::High,
            &|_, _| (),
        );
        let none = none.unwrap_err().to_string();
        assert!(none.contains("no layer of"), "{none}");
    }
}
