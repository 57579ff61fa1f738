//! Opens the model of a run, and checks the config against it.

use std::path::Path;
use std::sync::Arc;

use models::diffusion::Diffusion;

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
