//! `surefoot merge`: writes a model with LoRAs merged into it.

use std::path::PathBuf;

use clap::ValueEnum;
use surefoot_cli::output::{self, Failure, Outcome};
use trainer::adapters;
use trainer::hub::ModelKind;
use trainer::media_sampling::Lora;

use super::model_options::{failure, locate};

/// Write a model with LoRAs merged into it, in the layout that it has
#[derive(clap::Args)]
pub(crate) struct Args {
    /// The model: a single file of an image or video model, a diffusers folder, or a language model
    #[arg(value_name = "MODEL")]
    model: PathBuf,

    /// A LoRA (or DoRA, LoHa, LoKr) and how strong it becomes; may be given several times. For a language model, a folder
    /// in PEFT's format
    #[arg(
        long,
        visible_alias = "adapter",
        value_name = "FILE[:STRENGTH]",
        required_unless_present = "lora_2"
    )]
    lora: Vec<Lora>,

    /// The same for the low-noise expert of a folder with two
    #[arg(long, value_name = "FILE[:STRENGTH]")]
    lora_2: Vec<Lora>,

    /// The file to write; for a folder, the folder
    #[arg(long, short, value_name = "PATH")]
    output: PathBuf,

    /// The type of the weights [default: as they are stored, and bfloat16 for 8-bit ones]
    #[arg(long, value_enum)]
    dtype: Option<Stored>,
}

#[derive(Clone, Copy, ValueEnum)]
enum Stored {
    Float32,
    Float16,
    Bfloat16,
}

/// Merges.
pub(crate) fn run(args: &Args, json: bool) -> Result<Outcome, Failure> {
    let kind = args.dtype.map(|stored| match stored {
        Stored::Float32 => adapters::Kind::Float,
        Stored::Float16 => adapters::Kind::Half,
        Stored::Bfloat16 => adapters::Kind::BFloat16,
    });
    let model = locate(&args.model, ModelKind::Any)?;
    let loras = [&args.lora[..], &args.lora_2];
    adapters::merge(&model, loras, &args.output, kind).map_err(failure)?;
    let merged = args.lora.len() + args.lora_2.len();
    output::print(&match json {
        true => format!(
            "{}\n",
            serde_json::json!({ "output": args.output, "merged": merged })
        ),
        false => format!("{}: {merged} merged\n", args.output.display()),
    })?;
    Ok(Outcome::Fine)
}
