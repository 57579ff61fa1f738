//! What the training of a published model needs, before there are data.

use std::path::Path;

use models::language::{Decoder, attention_path};
use models::model::Pass;
use models::pretrained::Pretrained;
use placement::Bytes;
use placement::plan::Memory;
use tch::{Device, Kind, Tensor};

use super::Batch;
use super::base_model;
use super::diffusion::Imagined;
use super::fine_tune::loss_of_tokens;
use crate::Error;
use crate::config::Config;
use crate::observer::Observer;

/// A model to be fitted into memory.
pub(crate) struct Fitting {
    kind: Model,
    device: Device,
}

enum Model {
    Media(Imagined),
    Text(Box<Pretrained>),
}

impl Fitting {
    /// Opens the model in `path`.
    ///
    /// # Errors
    /// If a file is missing, damaged or not supported, or the config does not fit the model.
    pub(crate) fn open(
        config: &Config,
        path: &Path,
        device: Device,
        observer: &mut dyn Observer,
    ) -> Result<Self, Error> {
        let kind = match config.is_video() {
            true => Model::Media(Imagined::open(config, path, device, observer)?),
            false => Model::Text(Box::new(Pretrained::open(path)?)),
        };
        Ok(Self { kind, device })
    }

    /// The most bytes that training on `config` has on the device at once if it is planned within `memory`; `None` if there is no
    /// such plan.
    ///
    /// # Errors
    /// If the config does not fit the model.
    pub(crate) fn peak(&self, config: &Config, memory: Memory) -> Result<Option<Bytes>, Error> {
        match &self.kind {
            Model::Media(imagined) => imagined.peak(config, self.device, memory),
            Model::Text(pretrained) => of_text(config, pretrained, self.device, memory).map(Some),
        }
    }
}

/// With rows of `data.block_size` tokens, of which all are learned.
fn of_text(
    config: &Config,
    pretrained: &Pretrained,
    device: Device,
    memory: Memory,
) -> Result<Bytes, Error> {
    let (train, length) = (&config.train, i64::from(config.data.block_size));
    let size = [i64::from(train.batch()), length];
    let tokens = Tensor::f_zeros(size, (Kind::Int64, device))?;
    let named = |name: &str| (name.to_owned(), tokens.shallow_clone());
    let batch = Batch::new(vec![named("tokens"), named("targets")], 0);
    let compute = train.bf16.kind(device);
    // Before memory is measured: to find the kernel, some are tried on numbers.
    attention_path(&pretrained.config, (device, compute), (length, false))?;
    let pass = Pass::Train {
        checkpoint: train.gradient_checkpointing,
    };
    let loss =
        |model: &Decoder, _| loss_of_tokens(model, &batch, train.label_smoothing_factor, pass);
    base_model::peak(config, pretrained, (length, &loss), device, memory)
}
