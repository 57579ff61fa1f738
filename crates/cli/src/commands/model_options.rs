//! What `eval` and `generate` both ask: which model, where, in which type.

use std::path::{Path, PathBuf};

use surefoot_cli::output::Failure;
use trainer::device;
use trainer::inference::{LanguageModel, LoadOptions};
use trainer::video_sampling::{Machine, WanFolder};

/// Which model, and how it is loaded.
#[derive(clap::Args)]
pub(crate) struct ModelOptions {
    /// The model: a Hugging Face folder, a GGUF file, or the name of one in the cache; of Wan, a folder of
    /// diffusers
    #[arg(long, value_name = "DIR|GGUF")]
    model: PathBuf,

    /// A LoRA adapter for it: a folder in PEFT's format
    #[arg(long, value_name = "DIR")]
    adapter: Option<PathBuf>,

    /// Where to compute: `auto`, `cpu`, `gpu` or `gpu:N`
    #[arg(long, default_value = "auto")]
    device: String,

    /// Keep weights and compute in bfloat16
    #[arg(long)]
    bf16: bool,
}

impl ModelOptions {
    /// The folder, if it holds a video model.
    pub(crate) fn video(&self) -> Option<&Path> {
        WanFolder::is_one(&self.model).then_some(self.model.as_path())
    }

    /// Where and in which type a video model computes.
    pub(crate) fn machine(&self) -> Result<Machine, Failure> {
        if self.adapter.is_some() {
            return Err(Failure::usage(
                "`--adapter` is for language models: a LoRA for Wan is given with `--lora`",
            ));
        }
        Ok(Machine {
            device: device::choose(&self.device).map_err(failure)?,
            compute: trainer::inference::compute_kind(self.bf16),
        })
    }

    /// Loads the model for texts of at most `context` tokens.
    pub(crate) fn load(&self, context: i64) -> Result<LanguageModel, Failure> {
        let options = LoadOptions {
            device: device::choose(&self.device).map_err(failure)?,
            compute: trainer::inference::compute_kind(self.bf16),
            context,
        };
        LanguageModel::open(&self.model, self.adapter.as_deref(), options).map_err(failure)
    }
}

/// Whose fault an error of the trainer is.
pub(crate) fn failure(error: trainer::Error) -> Failure {
    if error.is_bad_usage() {
        Failure::Usage(error.into())
    } else {
        Failure::Job(error.into())
    }
}
