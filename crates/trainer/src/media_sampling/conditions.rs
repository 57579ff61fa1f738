//! What a denoiser is told of a request: its texts, a first frame, control pictures.

use std::path::{Path, PathBuf};

use models::diffusion::{Conditions, Diffusion, Picture, load_text_encoder};
use placement::{Placer, Policy};
use tch::Device;

use super::{DenoiserOptions, Plan, Request, autoencoder, pictures};
use crate::Error;
use crate::media::{latents_of, picture_at};

/// Fails if the model takes no control pictures, or not so many.
pub(super) fn check_controls(model: &dyn Diffusion, request: &Request) -> Result<(), Error> {
    let title = model.arch().title;
    match (model.controls(), request.controls.len()) {
        (None, 1..) => Err(Error::Data(format!(
            "`--control-image`: {title} takes no control pictures"
        ))),
        (Some(rule), 0) if rule.least > 0 => Err(Error::Data(format!(
            "{title} changes pictures: give one with `--control-image` (in a config, `sample.control_image`)"
        ))),
        (Some(rule), count) if count > rule.most => Err(Error::Data(format!(
            "`--control-image`: {count} control pictures, where {title} takes {} at most",
            rule.most
        ))),
        _ => Ok(()),
    }
}

/// The conditions of each text with the control pictures, without a batch dimension; the encoders are unloaded afterwards.
pub(super) fn encode_texts(
    model: &dyn Diffusion,
    texts: &[&String],
    controls: &[PathBuf],
    options: DenoiserOptions,
) -> Result<Vec<Conditions>, Error> {
    let tokenizer = model.tokenizer()?;
    let is_shown = model.controls().is_some_and(|rule| rule.in_text);
    let controls = controls.iter().filter(|_| is_shown);
    let controls = controls.map(|path| picture_at(path));
    let controls = controls.collect::<Result<Vec<_>, _>>()?;
    let sizes: Vec<_> = controls.iter().map(Picture::size).collect();
    let tokens = texts.iter().map(|text| tokenizer.tokens_with(text, &sizes));
    let tokens = tokens.collect::<Result<Vec<_>, _>>()?;
    let mut placer = Placer::new(options.device, Policy::default()).map_err(models::Error::from)?;
    let encoded = tokens.iter().map(|ids| model.of_tokens(ids));
    let mut encoded = encoded.collect::<Result<Vec<Conditions>, _>>()?;
    for number in 0..model.text_encoders() {
        let encoder = load_text_encoder(model, number, options.compute, true, &mut placer)?;
        for (tokens, encoded) in tokens.iter().zip(&mut encoded) {
            encoded.join(encoder.encode_with(&tokens[number], &controls)?)?;
        }
    }
    Ok(encoded)
}

/// The image at `path` as conditions for the model, without a batch dimension.
pub(crate) fn condition(
    model: &dyn Diffusion,
    path: &Path,
    plan: &Plan,
    device: Device,
) -> Result<Conditions, Error> {
    let picture = pictures::picture(path, plan.width, plan.height)?.unsqueeze(0);
    let codec = autoencoder(model, device)?;
    Ok(model.first_frame_conditions(&*codec, &picture, plan.frames, plan.tiling())?)
}

/// The latents of the control pictures at these paths as conditions, without a batch dimension.
pub(crate) fn control_latents(
    model: &dyn Diffusion,
    paths: &[PathBuf],
    area: u32,
    device: Device,
) -> Result<Conditions, Error> {
    let pictures = paths.iter().map(|path| picture_at(path));
    let pictures = pictures.collect::<Result<Vec<_>, _>>()?;
    latents_of(model, &pictures, area, &*autoencoder(model, device)?)
}
