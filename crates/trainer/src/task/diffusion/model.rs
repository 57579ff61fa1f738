//! What a run knows about the model's folder: the dimensions in it, and the folder that a model trained from
//! scratch is exported to.

use std::path::Path;

use models::Parameters;
use models::diffusion::lora::Expert as Which;
use models::diffusion::wan::model::{Pipeline, WanModel};
use models::diffusion::wan::transformer::TransformerConfig;
use models::formats::write_tensors;

use crate::Error;
use crate::config::Config;
use crate::media::trained_parts;

/// Fails if the transformer's input does not match its pipeline.
fn check_inputs(config: &Config, model: &WanModel, shape: &TransformerConfig) -> Result<(), Error> {
    let needed = match model.pipeline {
        Pipeline::Text => shape.out_channels,
        Pipeline::Image if model.expand_timesteps => {
            return Err(Error::Data(format!(
                "`{}` is an image-to-video pipeline of Wan 2.2 5B, whose transformer is that of \
                 text-to-video: set `_class_name` of its `model_index.json` to `WanPipeline`, and \
                 `data.image_to_video: true` to train it on given first frames",
                model.path.display()
            )));
        }
        Pipeline::Image => 2 * shape.out_channels + 4,
    };
    if shape.in_channels != needed {
        return Err(Error::Data(format!(
            "the transformer in `{}` has {} input channels, but this pipeline provides {needed}",
            model.path.display(),
            shape.in_channels
        )));
    }
    if config.data.image_to_video.is_some() && !model.expand_timesteps {
        return Err(Error::Data(
            "`data.image_to_video` is for Wan 2.2 5B (`expand_timesteps`): image-to-video models of 14B \
             are trained so without it, and text-to-video models cannot be"
                .into(),
        ));
    }
    Ok(())
}

/// The dimensions of the trained transformers, checked against the pipeline.
pub(super) fn shape(config: &Config, model: &WanModel) -> Result<TransformerConfig, Error> {
    let mut first = None;
    for part in trained_parts(model, config)? {
        let shape = model.transformer_config(part.expert.unwrap_or(Which::High))?;
        check_inputs(config, model, &shape)?;
        match &first {
            None => first = Some(shape),
            Some(first) if *first == shape => {}
            Some(_) => {
                return Err(Error::Data(format!(
                    "the two transformers in `{}` have different dimensions",
                    model.path.display()
                )));
            }
        }
    }
    first.ok_or_else(|| Error::Internal("no transformer is trained".into()))
}

/// Writes a model with the parts in `from` and a transformer with `weights`.
pub(super) fn write_model(from: &Path, to: &Path, weights: &Parameters) -> Result<(), Error> {
    copy(from, to)?;
    let path = to.join("transformer/diffusion_pytorch_model.safetensors");
    write_tensors(&path, &weights.named())?;
    Ok(())
}

/// Copies a folder recursively.
fn copy(from: &Path, to: &Path) -> Result<(), Error> {
    std::fs::create_dir_all(to).map_err(|error| Error::io("create", to, error))?;
    let entries = std::fs::read_dir(from).map_err(|error| Error::io("read", from, error))?;
    for entry in entries {
        let path = entry
            .map_err(|error| Error::io("read", from, error))?
            .path();
        let target = to.join(path.file_name().unwrap_or_default());
        match path.is_dir() {
            true => copy(&path, &target)?,
            false => {
                let copied = std::fs::copy(&path, &target);
                copied.map_err(|error| Error::io("write", &target, error))?;
            }
        }
    }
    Ok(())
}
