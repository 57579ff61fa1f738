//! A complete model: a diffusers folder, or single files as used by ComfyUI.

use std::path::Path;

use serde_json::json;
use tch::Device;

use super::ARCH;
use super::transformer::{PATCH, Transformer, TransformerConfig, filled};
use crate::Error;
use crate::diffusion::parts::decoder::{ChatTokenizer, TextDecoder};
use crate::diffusion::parts::places::Places;
use crate::diffusion::parts::schedule::Scheduler;
use crate::diffusion::parts::stills::{Stills, Vae, answered_by_stills};
use crate::diffusion::{
    Conditions, Denoiser, Diffusion, Expert, PartPaths, TextEncoder, Tokenizer,
};
use crate::model::Builder;

/// Tokens of a prompt that are read.
const LONGEST_TEXT: usize = 512;

/// The shift of the noise levels where no scheduler says it, as in ComfyUI.
const SINGLE_FILE_SHIFT: f64 = 3.0;

/// The scale and the shift of latents, where no config says them.
const FACTORS: (f64, f64) = (0.3611, 0.1159);

/// The classes of a folder's parts.
const CLASSES: [(&str, &[&str]); 3] = [
    ("transformer", &["ZImageTransformer2DModel"]),
    ("vae", &["AutoencoderKL"]),
    ("scheduler", &["FlowMatchEulerDiscreteScheduler"]),
];

/// A model whose parts are loaded on demand.
#[derive(Debug, Clone)]
pub struct ZImage {
    config: TransformerConfig,
    stills: Stills,
}

impl ZImage {
    /// Reads the configs of the diffusers folder at `path`, or the shapes of single files: `path` is then the
    /// transformer, and `parts` names the others.
    ///
    /// # Errors
    /// If a file is missing or damaged, or its content is not supported.
    pub fn open(path: &Path, parts: &PartPaths) -> Result<Self, Error> {
        let parts = Places::find(&ARCH, path, parts, (&CLASSES, &[]))?;
        let shift = match path.is_dir() {
            true => Scheduler::read(&path.join("scheduler/scheduler_config.json"))?.1,
            false => SINGLE_FILE_SHIFT,
        };
        let model = Self {
            config: parts.transformer(
                &ARCH,
                TransformerConfig::read,
                TransformerConfig::of_shapes,
            )?,
            stills: Stills {
                arch: &ARCH,
                path: path.to_owned(),
                vae: Vae::kl(&parts, FACTORS)?,
                text: parts.text()?,
                parts,
                patch: PATCH,
                scheduler: Scheduler::EvenEuler,
                shift,
            },
        };
        model.check_parts()?;
        Ok(model)
    }

    /// Fails if the parts are those of different models.
    fn check_parts(&self) -> Result<(), Error> {
        let (config, Stills { text, parts, .. }) = (&self.config, &self.stills);
        self.stills.check_channels(config.in_channels)?;
        if text.hidden_size != config.cap_feat_dim || text.num_hidden_layers < 2 {
            let reason = format!(
                "has {} layers of width {}, and the transformer in `{}` takes the state before the last layer of a width \
                 of {}",
                text.num_hidden_layers,
                text.hidden_size,
                parts.transformer.display(),
                config.cap_feat_dim
            );
            return Err(Error::file(&parts.text_encoder, reason));
        }
        Ok(())
    }
}

impl Diffusion for ZImage {
    answered_by_stills!();

    fn denoiser(
        &self,
        _: Expert,
        device: Device,
        builder: &mut Builder,
    ) -> Result<Box<dyn Denoiser>, Error> {
        Ok(Box::new(Transformer::new(&self.config, device, builder)?))
    }

    fn tokenizer(&self) -> Result<Box<dyn Tokenizer>, Error> {
        // For this template it means that no empty thoughts follow the prompt.
        let arguments = [("enable_thinking".to_owned(), json!(true))];
        Ok(Box::new(ChatTokenizer::open(
            &self.stills.parts.tokenizer,
            &self.stills.text,
            arguments.into_iter().collect(),
            LONGEST_TEXT,
        )?))
    }

    fn text_encoder(
        &self,
        _: usize,
        device: Device,
        builder: &mut Builder,
    ) -> Result<Box<dyn TextEncoder>, Error> {
        let text = &self.stills.text;
        let states = [text.num_hidden_layers as usize - 1];
        let encoder = TextDecoder::new(text, &states, LONGEST_TEXT, device, builder)?;
        Ok(Box::new(encoder))
    }

    fn text_width(&self) -> Result<i64, Error> {
        Ok(self.stills.text.hidden_size)
    }

    /// Texts are padded with the tokens that fill up the longest, and their lengths kept beside them.
    fn collate(&self, rows: &[Conditions]) -> Result<Conditions, Error> {
        Conditions::padded(rows, filled)
    }

    fn stays_fp32(&self, name: &str) -> bool {
        name.starts_with("t_embedder.") || name.ends_with("_pad_token")
    }
}

#[cfg(test)]
mod tests {
    use tch::{Kind, Tensor};

    use super::*;
    use crate::diffusion::{TEXT, TEXT_TOKENS};

    #[test]
    fn texts_of_a_batch_are_padded_and_counted() {
        let rows = [2, 35].map(|length| {
            let ones = Tensor::ones([length, 3], (Kind::Float, Device::Cpu));
            Conditions::of(TEXT, ones)
        });
        let batch = Conditions::padded(&rows, filled).unwrap();
        let text = batch.get(TEXT).unwrap();
        assert_eq!(text.size(), [2, 64, 3]);
        let sums = text.sum_dim_intlist([1, 2].as_slice(), false, Kind::Float);
        assert_eq!(Vec::<f32>::try_from(&sums).unwrap(), [6.0, 105.0]);
        let tokens = batch.get(TEXT_TOKENS).unwrap();
        assert_eq!(Vec::<f32>::try_from(tokens).unwrap(), [2.0, 35.0]);
    }
}
