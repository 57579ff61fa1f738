//! `surefoot extract-lora`: what a model learned, as a LoRA.

use std::cell::RefCell;
use std::path::PathBuf;

use surefoot_cli::output::{self, Failure, Outcome};
use trainer::Observer as _;
use trainer::adapters::{self, Keep};
use trainer::hub::ModelKind;
use trainer::media_sampling::Expert;

use super::convert_lora::{Format, Which};
use super::model_options::{failure, locate};
use super::train::ProgressDisplay;

/// Write what a model learned as a LoRA, by singular values
#[derive(clap::Args)]
pub(crate) struct Args {
    /// The model before: a single file of an image or video model, a diffusers folder, or a language model
    #[arg(value_name = "BASE")]
    base: PathBuf,

    /// The model after it was trained
    #[arg(value_name = "TUNED")]
    tuned: PathBuf,

    /// The file to write; for a language model, the folder
    #[arg(long, short, value_name = "PATH")]
    output: PathBuf,

    #[command(flatten)]
    keep: KeepOptions,

    /// The form of the file [default: the one that all programs read]
    #[arg(long, value_enum)]
    format: Option<Format>,

    /// Which of two denoisers
    #[arg(long, value_enum)]
    expert: Option<Which>,
}

/// How much of a change is kept.
#[derive(clap::Args)]
pub(super) struct KeepOptions {
    /// The rank of the LoRA
    #[arg(long, value_name = "R", value_parser = clap::value_parser!(u16).range(1..), conflicts_with = "energy")]
    rank: Option<u16>,

    /// The share of the squares of each change that is kept, up to 1, by as small a rank as that takes
    #[arg(long, value_name = "SHARE", value_parser = share)]
    energy: Option<f64>,
}

fn share(text: &str) -> Result<f64, String> {
    let number = text.parse::<f64>().ok();
    let number = number.filter(|share| *share > 0.0 && *share <= 1.0);
    number.ok_or_else(|| "must be more than 0 and at most 1".into())
}

impl KeepOptions {
    /// What was asked for, if anything was.
    pub(super) fn given(&self) -> Option<Keep> {
        let rank = self.rank.map(|rank| Keep::Rank(rank.into()));
        rank.or(self.energy.map(Keep::Energy))
    }
}

/// Extracts.
pub(crate) fn run(args: &Args, json: bool) -> Result<Outcome, Failure> {
    let [base, tuned] = [&args.base, &args.tuned].map(|path| locate(path, ModelKind::Any));
    let form = match args.format.map(Format::form) {
        Some(None) => {
            return Err(Failure::usage(
                "`--format peft` is what a language model gets: choose `kohya`, `comfy` or `diffusers`",
            ));
        }
        form => form.flatten(),
    };
    let keep = args.keep.given().unwrap_or(Keep::Rank(32));
    let expert = args.expert.map_or(Expert::High, Which::expert);
    let display = RefCell::new(ProgressDisplay::new());
    let told = |done: usize, all: usize| {
        let text = format!("comparing: tensor {done} of {all}");
        display.borrow_mut().preparing(&text);
    };
    let found = adapters::extract_lora([&base?, &tuned?], &args.output, keep, form, expert, &told);
    display.into_inner().clear();
    let found = found.map_err(failure)?;
    if let Some(first) = found.others.first() {
        tracing::warn!(
            "{} other tensors changed, too, such as `{first}`, which a LoRA has no place for",
            found.others.len()
        );
    }
    let share = found.kept.share();
    output::print(&match json {
        true => format!(
            "{}\n",
            serde_json::json!({
                "output": args.output, "layers": found.layers, "rank": found.kept.rank, "kept": share,
                "left_out": found.others,
            })
        ),
        false => format!(
            "{}: {} layers, of rank {} or less, with {:.2} % of what they learned\n",
            args.output.display(),
            found.layers,
            found.kept.rank,
            100.0 * share
        ),
    })?;
    Ok(Outcome::Fine)
}
