//! `surefoot convert-lora`: converts a LoRA for an image or video model to the names of another program.

use std::path::PathBuf;

use clap::ValueEnum;
use surefoot_cli::output::{self, Failure, Outcome};
use trainer::media_sampling::{self, Expert, LoraForm};

use super::model_options::failure;

/// Convert a LoRA for an image or video model to the form of another program
#[derive(clap::Args)]
pub(crate) struct Args {
    /// The LoRA: a file in the form of kohya, ComfyUI, diffusers or PEFT, or a PEFT folder
    #[arg(value_name = "IN")]
    from: PathBuf,

    /// The file to write; with `--format peft`, the folder
    #[arg(value_name = "OUT")]
    to: PathBuf,

    /// The form of the output
    #[arg(long, value_enum)]
    format: Format,

    /// The expert to convert, if the file contains both
    #[arg(long, value_enum)]
    expert: Option<Which>,
}

#[derive(Clone, Copy, ValueEnum)]
enum Format {
    /// Read by ComfyUI, diffusers and musubi-tuner; needs all linear layers of every block
    Kohya,
    /// Read by ComfyUI and diffusers
    Comfy,
    /// Read by diffusers
    Diffusers,
    /// A folder, read by PEFT, and by `adapter.resume_from`
    Peft,
}

#[derive(Clone, Copy, ValueEnum)]
enum Which {
    High,
    Low,
}

/// Converts.
pub(crate) fn run(args: &Args, json: bool) -> Result<Outcome, Failure> {
    let form = match args.format {
        Format::Kohya => Some(LoraForm::Kohya),
        Format::Comfy => Some(LoraForm::Comfy),
        Format::Diffusers => Some(LoraForm::Diffusers),
        Format::Peft => None,
    };
    let expert = args.expert.map(|which| match which {
        Which::High => Expert::High,
        Which::Low => Expert::Low,
    });
    let modules =
        media_sampling::convert_lora(&args.from, &args.to, form, expert).map_err(failure)?;
    let report = match json {
        true => format!(
            "{}\n",
            serde_json::json!({ "output": args.to, "modules": modules })
        ),
        false => format!("{}: {modules} layers\n", args.to.display()),
    };
    output::print(&report)?;
    Ok(Outcome::Fine)
}
