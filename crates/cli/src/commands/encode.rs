//! `surefoot encode`: runs the encoders of a video model on texts and media, or decodes.

use std::path::PathBuf;

use surefoot_cli::output::{self, Failure, Outcome};
use trainer::hub::ModelKind;
use trainer::media_sampling::{self, Coding};

use super::model_options::{ModelOptions, PartOptions, failure};

/// Encode texts, pictures and videos with a video model, or decode its latents
#[derive(clap::Args)]
#[command(group = clap::ArgGroup::new("what").required(true))]
pub(crate) struct Args {
    #[command(flatten)]
    model: ModelOptions,

    #[command(flatten)]
    parts: PartOptions,

    /// Encode texts to tensors `text_0…` [tokens, width]
    #[arg(long, value_name = "PROMPT", num_args = 1.., group = "what")]
    text: Vec<String>,

    /// Encode pictures, animations, folders of pictures and videos to `latents_0…` [C, T, H, W]
    #[arg(long, value_name = "FILE", num_args = 1.., group = "what")]
    media: Vec<PathBuf>,

    /// Decode latents to `pixels_0…` [F, H, W, 3] from 0 to 1
    #[arg(long, value_name = "LATENTS.safetensors", group = "what")]
    decode: Option<PathBuf>,

    /// The file to write
    #[arg(long, value_name = "OUT.safetensors")]
    output: PathBuf,
}

/// Encodes or decodes.
pub(crate) fn run(args: &Args, json: bool) -> Result<Outcome, Failure> {
    let path = args.model.locate(ModelKind::Video)?;
    if !ModelOptions::is_video(&path) {
        return Err(Failure::usage(
            "`--model` must be a video model: a folder of diffusers with a `model_index.json`, or a single file of \
             its transformer",
        ));
    }
    let what = match &args.decode {
        Some(path) => Coding::Latents(path.clone()),
        None if !args.media.is_empty() => Coding::Media(args.media.clone()),
        None => Coding::Texts(args.text.clone()),
    };
    let options = args.model.denoiser_options()?;
    let model = args.parts.open(&path)?;
    let tensors = media_sampling::code(&*model, &what, &args.output, options).map_err(failure)?;
    if json {
        let tensors: serde_json::Map<_, _> = tensors
            .into_iter()
            .map(|(name, shape)| (name, shape.into()))
            .collect();
        let report = serde_json::json!({ "output": args.output, "tensors": tensors });
        output::print(&format!("{report}\n"))?;
        return Ok(Outcome::Fine);
    }
    for (name, shape) in tensors {
        output::print(&format!("{name} {shape:?}\n"))?;
    }
    Ok(Outcome::Fine)
}
