//! Opens the model of a run, and checks the config against it.

use std::path::Path;
use std::sync::Arc;

use models::diffusion::{Diffusion, Expert, Part};

use super::weights;
use crate::Error;
use crate::config::Config;
use crate::media::{TrainedPart, trained_parts};
use crate::observer::Observer;
use crate::single_file;

/// The model at `path`, and what of it is trained.
pub(super) fn opened(
    config: &Config,
    path: &Path,
    observer: &mut dyn Observer,
) -> Result<(Arc<dyn Diffusion>, Vec<TrainedPart>), Error> {
    let mut report = |text: &str| observer.preparing(text);
    let mut model = single_file::open(path, &config.model.parts(), &mut report)?;
    if config.train.text_encoder {
        if config.train.gradient_checkpointing || config.model.offload_options().is_some() {
            return Err(Error::Data(
                "`train.text_encoder`: no gradient reaches the text encoders through blocks that are streamed or computed again; \
                 remove `model.offload` and `train.gradient_checkpointing`, or this key"
                    .into(),
            ));
        }
        model = model.with_text().ok_or_else(|| {
            Error::Data(format!(
                "`train.text_encoder`: the text encoder of {} is not trained here; remove the key",
                model.arch().title
            ))
        })?;
    }
    let transformer = model.part(Part::Denoiser(Expert::High));
    let is_gguf = |path: &std::path::PathBuf| path.extension().is_some_and(|end| end == "gguf");
    if config.adapter.is_none()
        && config.model.from_config != Some(true)
        && let Some(path) = transformer.filter(is_gguf)
    {
        return Err(Error::Data(format!(
            "`{}`: all weights are trained, and a GGUF file is not written: take the model in bf16, or add an `adapter`",
            path.display()
        )));
    }
    refuse_previews_of_two(&*model, config)?;
    let parts = trained_parts(&*model, config)?;
    let experts: Vec<_> = parts.iter().map(TrainedPart::which).collect();
    model
        .check_training(&experts, config.data.image_to_video)
        .map_err(Error::of_config)?;
    weights::check(&config.train, &*model, path)?;
    if model.guidance().is_none() && config.train.guidance_scale.is_some() {
        return Err(Error::Data(format!(
            "`train.guidance_scale`: `{}` is not told the guidance; remove the key",
            path.display()
        )));
    }
    if model.geometry().frames.is_none() && config.data.num_frames.is_some() {
        return Err(Error::Data(format!(
            "`data.num_frames`: `{}` makes pictures; remove the key",
            path.display()
        )));
    }
    Ok((model.into(), parts))
}

/// Fails if keys for one transformer are set in a run on a model with two.
fn refuse_previews_of_two(model: &dyn Diffusion, config: &Config) -> Result<(), Error> {
    let set = [
        (
            "model.training_adapter",
            config.model.training_adapter.is_some(),
        ),
        ("sample.transformer", config.sample.transformer.is_some()),
    ];
    match set
        .into_iter()
        .find(|(_, set)| *set && model.has_low_noise())
    {
        Some((key, _)) => Err(Error::Data(format!(
            "`{key}`: `{}` has two transformers, and the key is for models with one",
            model.path().display()
        ))),
        None => Ok(()),
    }
}
