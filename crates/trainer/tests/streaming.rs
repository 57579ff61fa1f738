//! Runs whose frozen model is streamed: they learn what a run with the whole model in memory
//! learns, bit for bit, in less memory.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::fs;
use std::path::{Path, PathBuf};

use models::pretrained::convert_gguf;
use surefoot_trainer::{Allocator, Config, Error, NoObserver, Observer, Stop, Summary};

const CONFIG: &str = "
seed: 7
device: cpu
threads: 1
adapter: {r: 2, target_modules: all-linear}
data: {block_size: 16, validation_fraction: 0.1}
sample: {max_new_tokens: 6, prompts: ['on the ']}
train:
  bf16: false
  max_steps: 4
  per_device_train_batch_size: 3
  gradient_accumulation_steps: 2
  learning_rate: 0.01
  logging_steps: 1
  eval_steps: 2
  max_eval_samples: 4
  save_steps: 0
";

const LOW_VRAM: &str = "model.low_vram=true";
const CHECKPOINTING: &str = "train.gradient_checkpointing=true";
/// Matrices and norms of blocks that learn whole; the rest of their blocks is frozen.
const WHOLE: &str = "adapter.modules_to_save=[layers.1.mlp, input_layernorm, lm_head]";
const EXPERTS: &str = "adapter.target_parameters=[mlp.experts.gate_up_proj, mlp.experts.down_proj]";
const HEAD: &str = "adapter.target_modules=[q_proj, down_proj, embed_tokens]";
const LLAMA: &str = "llama-grouped.gguf";

struct Place {
    folder: tempfile::TempDir,
    model: PathBuf,
}

impl Place {
    fn new(model: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let text: String = (0..400)
            .map(|n| format!("the {n} horses ran on\n"))
            .collect();
        fs::write(folder.path().join("text.txt"), text).unwrap();
        let models = "../../tests/reference/golden/models";
        let models = Path::new(env!("CARGO_MANIFEST_DIR")).join(models);
        let from = models.join(model);
        let model = match from.is_dir() {
            false => from,
            // With the tokenizer of another.
            true => {
                let to = folder.path().join("model");
                let other = models.join(LLAMA);
                convert_gguf(&other, &to, tch::Kind::Float, &|_, _| {}).unwrap();
                for file in ["config.json", "model.safetensors"] {
                    fs::copy(from.join(file), to.join(file)).unwrap();
                }
                to
            }
        };
        Self { folder, model }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn try_run(
        &self,
        name: &str,
        more: &[&str],
        observer: &mut dyn Observer,
        stop: &Stop,
    ) -> Result<Summary, Error> {
        let mut all = vec![
            format!("name={name}"),
            format!("output_dir={}", self.path("runs").display()),
            format!("data.path={}", self.path("text.txt").display()),
            format!("model.name_or_path={}", self.model.display()),
            format!("model.offload_folder={}", self.path("streamed").display()),
        ];
        all.extend(more.iter().map(|text| (*text).to_owned()));
        let config = Config::parse("test.yaml", CONFIG, &all).unwrap();
        surefoot_trainer::run(&config, &Allocator::torch(), observer, stop)
    }

    fn run(&self, name: &str, more: &[&str]) -> Summary {
        self.try_run(name, more, &mut NoObserver, &Stop::default())
            .unwrap()
    }

    /// Everything that says what was learned: adapter, moments, place in the data, samples,
    /// held-out losses.
    fn outcome(&self, name: &str) -> Vec<String> {
        let run = self.path("runs").join(name);
        let state = run.join("checkpoints/step-000004/state.json");
        let state: serde_json::Value = serde_json::from_slice(&fs::read(state).unwrap()).unwrap();
        let metrics = fs::read_to_string(run.join("metrics.jsonl")).unwrap();
        let records = metrics
            .lines()
            .map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap());
        // That it was resumed with other settings, or is streamed, is told, and changes nothing that it learns.
        let losses = records
            .filter(|record| record["kind"] != "resumed" && record["kind"] != "streaming")
            .map(|record| format!("{} {}", record["loss"], record["gradient_norm"]));
        ["data", "units", "step", "checksums"]
            .iter()
            .map(|key| state[key].to_string())
            .chain(losses)
            .chain([fs::read_to_string(run.join("samples.txt")).unwrap()])
            .collect()
    }

    /// A run with `settings` learns the same whether the model is streamed as `how` says or not.
    fn assert_streaming_changes_nothing(&self, settings: &[&str], how: &[&str]) -> Summary {
        self.run("resident", settings);
        let summary = self.run("streamed", &[settings, how].concat());
        let (resident, streamed) = (self.outcome("resident"), self.outcome("streamed"));
        assert!(resident.len() > 8);
        assert_eq!(resident, streamed, "with {settings:?} and {how:?}");
        summary
    }
}

#[test]
fn a_streamed_run_learns_what_a_resident_one_does() {
    for settings in [
        &[][..],
        &[CHECKPOINTING],
        &["adapter.lora_dropout=0.3"],
        &["adapter.use_dora=true", "adapter.lora_dropout=0.3"],
        &["model.quantization=int8"],
        &[WHOLE, HEAD, "adapter.lora_dropout=0.3"],
        &[WHOLE, "model.quantization=nf4", CHECKPOINTING],
        &["model.quantization=nf4", CHECKPOINTING],
        // Rank 512 makes matrices large enough for eight bits.
        &["train.optim=adamw_8bit", "adapter.r=512"],
        &["train.bf16=true"],
    ] {
        Place::new(LLAMA).assert_streaming_changes_nothing(settings, &[LOW_VRAM]);
    }
}

#[test]
fn a_streamed_mixture_of_experts_learns_what_a_resident_one_does() {
    for settings in [
        &[][..],
        &["model.quantization=int8", CHECKPOINTING],
        &["model.quantization=nf4", "train.bf16=true"],
        &["adapter.modules_to_save=[layers.1.mlp.gate]"],
    ] {
        Place::new("qwen3-moe.gguf").assert_streaming_changes_nothing(settings, &[LOW_VRAM]);
    }
    // With adapters on the experts, and with a delta rule and an expert of all tokens.
    for (model, settings) in [
        ("qwen3-moe.gguf", &[EXPERTS][..]),
        ("gpt-oss.gguf", &[EXPERTS, CHECKPOINTING]),
        ("qwen3.5-moe.gguf", &[]),
        (
            "qwen3.5-moe.gguf",
            &[EXPERTS, "model.quantization=nf4", "train.bf16=true"],
        ),
    ] {
        Place::new(model).assert_streaming_changes_nothing(settings, &[LOW_VRAM]);
    }
}

/// With sinks, windows, biases, and experts that are in MXFP4 whatever else is quantised.
#[test]
fn streamed_experts_in_mxfp4_learn_what_resident_ones_do() {
    for settings in [
        &[][..],
        &["model.quantization=nf4", "train.bf16=true", CHECKPOINTING],
        &["adapter.modules_to_save=[layers.1.mlp.router]"],
    ] {
        Place::new("gpt-oss.gguf").assert_streaming_changes_nothing(settings, &[LOW_VRAM]);
    }
}

#[test]
fn a_streamed_delta_rule_learns_what_a_resident_one_does() {
    for settings in [
        &[][..],
        &["model.quantization=int8", CHECKPOINTING],
        &["model.quantization=nf4", "train.bf16=true"],
        &["adapter.modules_to_save=[linear_attn]"],
    ] {
        Place::new("qwen3.5.gguf").assert_streaming_changes_nothing(settings, &[LOW_VRAM]);
    }
}

/// Keys and values of blocks that later ones use, embeddings for each block, and experts beside a feed-forward layer.
#[test]
fn a_streamed_gemma_4_learns_what_a_resident_one_does() {
    for (model, settings) in [
        ("gemma4", &[][..]),
        (
            "gemma4",
            &["model.quantization=nf4", "train.bf16=true", CHECKPOINTING],
        ),
        (
            "gemma4",
            &["adapter.modules_to_save=[layers.1.self_attn, layers.4]"],
        ),
        ("gemma4-dense", &["model.quantization=int8"]),
        ("gemma4-moe", &["model.quantization=nf4", CHECKPOINTING]),
    ] {
        Place::new(model).assert_streaming_changes_nothing(settings, &[LOW_VRAM]);
    }
}

#[test]
fn some_blocks_may_be_streamed_and_the_others_stay() {
    for how in [
        "model.blocks_to_swap=1",
        "model.offload_fraction=0.4",
        "model.profile=balanced",
        "model.device_map={'': device, model.layers.1: disk}",
    ] {
        let place = Place::new(LLAMA);
        let summary = place.assert_streaming_changes_nothing(&[], &[how]);
        let plan = summary.memory_plan.unwrap();
        assert_eq!((plan.streamed.len(), plan.blocks), (1, 2), "{how}");
        assert!(summary.streamed.unwrap().copies > 0);
        let metrics = fs::read_to_string(place.path("runs/streamed/metrics.jsonl")).unwrap();
        let first: serde_json::Value =
            serde_json::from_str(metrics.lines().next().unwrap()).unwrap();
        assert_eq!(first["kind"], "streaming", "{how}");
        assert!(first["ring_bytes"].as_u64().unwrap() > 0, "{first}");
    }
}

#[test]
fn nothing_is_streamed_that_fits() {
    let place = Place::new(LLAMA);
    for how in ["model.profile=roomy", "model.max_memory={cpu: 8GiB}"] {
        let summary = place.run("a", &[how]);
        let plan = summary.memory_plan.unwrap();
        assert!(plan.streamed.is_empty() && summary.streamed.is_none());
        fs::remove_dir_all(place.path("runs")).unwrap();
    }
}

#[test]
fn a_bound_on_memory_streams_what_is_above_it() {
    let place = Place::new(LLAMA);
    let whole = place.run("whole", &["model.profile=roomy"]);
    let expected = whole.memory_estimate.peak;
    let bound = format!("model.max_memory={{cpu: {}}}", expected - 1000);
    let summary = place.run("bounded", &[&bound]);
    assert!(!summary.memory_plan.unwrap().streamed.is_empty());
    assert!(summary.memory_estimate.peak < expected);
    assert_eq!(place.outcome("whole"), place.outcome("bounded"));
}

#[test]
fn too_little_memory_is_an_error_with_the_numbers() {
    let place = Place::new(LLAMA);
    let error = place
        .try_run(
            "a",
            &["model.max_memory={device: 4KiB}"],
            &mut NoObserver,
            &Stop::default(),
        )
        .unwrap_err();
    let text = error.to_string();
    assert!(text.contains("does not fit the device"), "{text}");
    assert!(text.contains("there are 4 KiB"), "{text}");
    assert!(text.contains("train.gradient_checkpointing"), "{text}");
    assert!(error.is_bad_usage() && !place.path("runs").exists());
    let error = place
        .try_run(
            "a",
            &["model.blocks_to_swap=9"],
            &mut NoObserver,
            &Stop::default(),
        )
        .unwrap_err();
    let want = "`blocks_to_swap: 9`: only 2 blocks can be streamed";
    assert!(error.to_string().contains(want), "{error}");
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

#[test]
fn a_run_may_be_resumed_with_more_or_less_of_the_model_in_memory() {
    let settings = [
        "train.optim=adamw_8bit",
        "adapter.r=512",
        "model.quantization=nf4",
    ];
    let place = Place::new(LLAMA);
    place.run("whole", &settings);
    for (name, first, then) in [
        ("into", &[][..], &[LOW_VRAM][..]),
        ("out-of", &[LOW_VRAM], &[]),
        ("all-along", &[LOW_VRAM], &[LOW_VRAM]),
    ] {
        let stop = Stop::default();
        let first = [&settings[..], first].concat();
        place
            .try_run(name, &first, &mut StopAt(3, stop.clone()), &stop)
            .unwrap();
        let resume = ["train.resume_from_checkpoint=latest"];
        place.run(name, &[&settings[..], then, &resume].concat());
        assert_eq!(place.outcome("whole"), place.outcome(name), "{name}");
    }
}

#[test]
fn nothing_is_left_of_the_file() {
    let place = Place::new(LLAMA);
    let summary = place.run("a", &[LOW_VRAM]);
    let folder = summary.memory_plan.unwrap().folder.unwrap();
    assert_eq!(folder, place.path("streamed"));
    assert_eq!(fs::read_dir(folder).unwrap().count(), 0);
}
