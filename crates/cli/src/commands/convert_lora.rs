//! `surefoot convert-lora`: converts a LoRA for an image or video model to the names of another program.

use std::path::PathBuf;

use clap::ValueEnum;
use surefoot_cli::output::{self, Failure, Outcome};
use trainer::adapters;
use trainer::hub::ModelKind;
use trainer::media_sampling::{self, Expert, LoraForm};

use super::extract_lora::KeepOptions;
use super::model_options::{failure, locate};

/// Convert a LoRA for an image or video model to the form of another program
///
/// LoHa, LoKr and DoRA stay what they are; with `--rank` or `--energy` they become plain LoRAs.
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

    #[command(flatten)]
    keep: KeepOptions,

    /// The model that a DoRA was trained on, which making it plain needs: a single file, or a diffusers folder
    #[arg(long, value_name = "MODEL")]
    base: Option<PathBuf>,
}

#[derive(Clone, Copy, ValueEnum)]
pub(super) enum Format {
    /// Read by ComfyUI, diffusers and musubi-tuner; needs all linear layers of every block
    Kohya,
    /// Read by ComfyUI and diffusers
    Comfy,
    /// Read by diffusers
    Diffusers,
    /// A folder, read by PEFT, and by `adapter.resume_from`
    Peft,
}

impl Format {
    /// The form of the file; `None` for a folder of PEFT.
    pub(super) fn form(self) -> Option<LoraForm> {
        match self {
            Self::Kohya => Some(LoraForm::Kohya),
            Self::Comfy => Some(LoraForm::Comfy),
            Self::Diffusers => Some(LoraForm::Diffusers),
            Self::Peft => None,
        }
    }
}

#[derive(Clone, Copy, ValueEnum)]
pub(super) enum Which {
    High,
    Low,
}

impl Which {
    pub(super) fn expert(self) -> Expert {
        match self {
            Self::High => Expert::High,
            Self::Low => Expert::Low,
        }
    }
}

/// Converts.
pub(crate) fn run(args: &Args, json: bool) -> Result<Outcome, Failure> {
    let (form, expert) = (args.format.form(), args.expert.map(Which::expert));
    let (from, to) = (&*args.from, &*args.to);
    let (modules, kept) = match args.keep.given() {
        Some(keep) => {
            let base = args.base.as_ref();
            let base = base
                .map(|base| locate(base, ModelKind::Video))
                .transpose()?;
            let plain = adapters::plain_lora(from, to, form, expert, keep, base.as_deref());
            let (modules, kept) = plain.map_err(failure)?;
            (modules, Some(kept.share()))
        }
        None if args.base.is_some() => {
            return Err(Failure::usage("`--base` is for `--rank` or `--energy`"));
        }
        None => {
            let modules = media_sampling::convert_lora(from, to, form, expert);
            (modules.map_err(failure)?, None)
        }
    };
    let report = match (json, kept) {
        (true, _) => format!(
            "{}\n",
            serde_json::json!({ "output": args.to, "modules": modules, "kept": kept })
        ),
        (false, None) => format!("{}: {modules} layers\n", args.to.display()),
        (false, Some(kept)) => format!(
            "{}: {modules} layers, with {:.2} % of what was no plain LoRA\n",
            args.to.display(),
            100.0 * kept
        ),
    };
    output::print(&report)?;
    Ok(Outcome::Fine)
}
