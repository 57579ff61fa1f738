//! Options that `eval` and `generate` share: which model, on which device, in which data type.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, anyhow};
use clap::Parser;
use serde_json::Value;
use surefoot_cli::output::Failure;
use trainer::Observer as _;
use trainer::device;
use trainer::hub::{self, ModelKind};
use trainer::inference::{LanguageModel, LoadOptions};
use trainer::media_sampling::{self, DenoiserOptions, Diffusion, PartPaths};

use super::train::ProgressDisplay;

/// The model, and how it is loaded.
#[derive(clap::Args)]
pub(crate) struct ModelOptions {
    /// The model: a Hugging Face folder, a GGUF file, or the name of a model in the cache or on the hub, such as
    /// `org/name` or `org/name@revision`; for images and videos, a diffusers folder, or a single file of the transformer
    #[arg(long, value_name = "DIR|FILE|NAME")]
    model: PathBuf,

    /// A LoRA adapter for it: a folder in PEFT's format
    #[arg(long, value_name = "DIR")]
    adapter: Option<PathBuf>,

    /// The weights that a run without an adapter had at a checkpoint, in place of the model's: a folder `step-…` in its
    /// `checkpoints`
    #[arg(long, value_name = "DIR")]
    checkpoint: Option<PathBuf>,

    /// The device: `auto`, `cpu`, `gpu` or `gpu:N`
    #[arg(long, default_value = "auto")]
    device: String,

    /// Keep weights and compute in bfloat16
    #[arg(long)]
    bf16: bool,
}

/// The parts of a video model.
#[derive(clap::Args)]
#[command(next_help_heading = "Parts of a video model, as diffusers folders or single files")]
pub(crate) struct PartOptions {
    /// The transformer, or the high-noise one, in place of the folder's
    #[arg(long, value_name = "DIR|FILE")]
    transformer: Option<PathBuf>,

    /// The low-noise transformer
    #[arg(long, value_name = "DIR|FILE")]
    transformer_2: Option<PathBuf>,

    /// The autoencoder
    #[arg(long, value_name = "DIR|FILE")]
    vae: Option<PathBuf>,

    /// The text encoder
    #[arg(long, value_name = "DIR|FILE")]
    text_encoder: Option<PathBuf>,

    /// The second text encoder, of models with two
    #[arg(long, value_name = "DIR|FILE")]
    text_encoder_2: Option<PathBuf>,

    /// The tokenizer, if it is neither in the folder nor inside the file of the text encoder
    #[arg(long, value_name = "DIR|FILE")]
    tokenizer: Option<PathBuf>,
}

impl PartOptions {
    /// The first option that was given.
    pub(crate) fn given(&self) -> Option<&'static str> {
        let all = [
            ("--transformer", &self.transformer),
            ("--transformer-2", &self.transformer_2),
            ("--vae", &self.vae),
            ("--text-encoder", &self.text_encoder),
            ("--text-encoder-2", &self.text_encoder_2),
            ("--tokenizer", &self.tokenizer),
        ];
        let found = all.into_iter().find(|(_, path)| path.is_some());
        found.map(|(name, _)| name)
    }

    /// The model at `path` with these parts.
    pub(crate) fn open(&self, path: &Path) -> Result<Box<dyn Diffusion>, Failure> {
        let parts = PartPaths {
            transformer: self.transformer.clone(),
            transformer_2: self.transformer_2.clone(),
            vae: self.vae.clone(),
            text_encoder: self.text_encoder.clone(),
            text_encoder_2: self.text_encoder_2.clone(),
            tokenizer: self.tokenizer.clone(),
        };
        let mut display = ProgressDisplay::new();
        let opened = media_sampling::open(path, &parts, &mut |text| display.preparing(text));
        display.clear();
        opened.map_err(failure)
    }
}

/// The options of `surefoot generate` in the facts of a run.
#[derive(Parser)]
struct OfRun {
    #[command(flatten)]
    model: ModelOptions,
}

impl ModelOptions {
    /// Those for the result of the run in the folder `what`, or with `base` what it started from; for a checkpoint of a run
    /// that trains a whole model; or for another model.
    pub(crate) fn of(
        what: &Path,
        adapter: Option<&Path>,
        base: bool,
        device: Option<&str>,
    ) -> Result<Self, Failure> {
        let facts = what.join("run.json");
        let run = what.parent().and_then(Path::parent);
        let run = run.map(|run| run.join("run.json"));
        let run = run.filter(|facts| what.join("state.json").is_file() && facts.is_file());
        let mut options = match (facts.is_file(), run) {
            (true, _) => of_run(&facts, if base { "generate_base" } else { "generate" })?,
            _ if base => {
                return Err(Failure::usage(format_args!(
                    "`--base` is for a run, and `{}` is none (it has no `run.json`)",
                    what.display()
                )));
            }
            (false, Some(facts)) => {
                let mut options = of_run(&facts, "generate_checkpoint")?;
                let folder = what.display().to_string();
                for option in &mut options {
                    if let Some(name) = option.strip_suffix("={checkpoint}") {
                        *option = format!("{name}={folder}");
                    }
                }
                options
            }
            (false, None) => vec![format!("--model={}", what.display())],
        };
        if let Some(device) = device {
            options.retain(|option| !option.starts_with("--device="));
            options.push(format!("--device={device}"));
        }
        if let Some(adapter) = adapter {
            options.push(format!("--adapter={}", adapter.display()));
        }
        let options = std::iter::once("surefoot".to_owned()).chain(options);
        match OfRun::try_parse_from(options) {
            Ok(OfRun { model }) => Ok(model),
            Err(error) => Err(Failure::usage(error)),
        }
    }

    /// The adapter.
    pub(crate) fn adapter(&self) -> Option<&Path> {
        self.adapter.as_deref()
    }

    /// The checkpoint.
    pub(crate) fn checkpoint(&self) -> Option<&Path> {
        self.checkpoint.as_deref()
    }

    /// The path of the model, which may have to be downloaded first.
    pub(crate) fn locate(&self, kind: ModelKind) -> Result<PathBuf, Failure> {
        locate(&self.model, kind)
    }

    /// Whether a folder or file is a video model.
    pub(crate) fn is_video(path: &Path) -> bool {
        media_sampling::is_at(path)
    }

    /// The device and data type of a video model.
    pub(crate) fn denoiser_options(&self) -> Result<DenoiserOptions, Failure> {
        if self.adapter.is_some() {
            return Err(Failure::usage(
                "`--adapter` is for language models: use `--lora` for a LoRA for an image or video model",
            ));
        }
        let device = device::choose(&self.device).map_err(failure)?;
        let compute = trainer::inference::compute_kind(self.bf16);
        Ok(DenoiserOptions::whole(device, compute))
    }

    /// Loads the model in `path` for texts of at most `context` tokens.
    pub(crate) fn load(&self, path: &Path, context: i64) -> Result<LanguageModel, Failure> {
        let options = LoadOptions {
            device: device::choose(&self.device).map_err(failure)?,
            compute: trainer::inference::compute_kind(self.bf16),
            context,
        };
        let (adapter, checkpoint) = (self.adapter.as_deref(), self.checkpoint.as_deref());
        LanguageModel::open_at(path, adapter, checkpoint, options).map_err(failure)
    }
}

/// The path of a model, which may have to be downloaded first.
pub(crate) fn locate(model: &Path, kind: ModelKind) -> Result<PathBuf, Failure> {
    let mut display = ProgressDisplay::new();
    let found = hub::locate_model(model, kind, &mut |text| display.preparing(text));
    display.clear();
    found.map_err(failure)
}

/// Whether an error of the trainer is a usage error.
pub(crate) fn failure(error: trainer::Error) -> Failure {
    if error.is_bad_usage() {
        Failure::Usage(error.into())
    } else {
        Failure::Job(error.into())
    }
}

/// What the facts of a run say under `key`.
fn of_run(facts: &Path, key: &str) -> Result<Vec<String>, Failure> {
    let text = std::fs::read_to_string(facts);
    let text = text.with_context(|| format!("cannot read `{}`", facts.display()))?;
    let facts_of = serde_json::from_str::<Value>(&text);
    let mut facts_of = facts_of.with_context(|| format!("`{}` is damaged", facts.display()))?;
    if facts_of["kind"] == "diffusion" {
        return Err(Failure::usage(
            "this run trains a model of images or videos: `surefoot generate` asks it for one",
        ));
    }
    let options = serde_json::from_value::<Option<Vec<String>>>(facts_of[key].take());
    let options = options.with_context(|| format!("`{key}` in `{}`", facts.display()))?;
    options.ok_or_else(|| {
        let reason = match key {
            "generate_base" => "it trains no adapter, so that there is no model beside its result",
            "generate_checkpoint" => {
                "it trains an adapter: give the model, and the checkpoint with `--adapter`"
            }
            _ => "it has no result yet",
        };
        anyhow!("`{}`: {reason}", facts.display()).into()
    })
}
