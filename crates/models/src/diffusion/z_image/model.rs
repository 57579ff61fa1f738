//! A complete model: a diffusers folder, or single files as used by ComfyUI.

use std::path::{Path, PathBuf};

use serde_json::json;
use tch::{Device, Kind, Tensor};

use super::transformer::{PATCH, Transformer, TransformerConfig, filled};
use super::{ARCH, memory};
use crate::Error;
use crate::diffusion::files::{PartFile, PartNames};
use crate::diffusion::parts::codec::MediaCodec;
use crate::diffusion::parts::decoder::{ChatTokenizer, TextDecoder};
use crate::diffusion::parts::kl::{KlAutoencoder, KlConfig};
use crate::diffusion::parts::places::Places;
use crate::diffusion::parts::schedule::Scheduler;
use crate::diffusion::{
    Arch, Conditions, Defaults, Denoiser, Diffusion, Expert, Geometry, Kept, Part, PartPaths, TEXT,
    TextEncoder, Tokenizer, Usage,
};
use crate::language::DecoderConfig;
use crate::model::Builder;

/// The number of tokens of each text of a batch, `[batch]`.
pub(super) const TEXT_TOKENS: &str = "text_tokens";

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
    path: PathBuf,
    config: TransformerConfig,
    autoencoder: KlConfig,
    text: DecoderConfig,
    parts: Places,
    shift: f64,
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
        let of_shapes = |file: &PartFile| TransformerConfig::of_shapes(file);
        let model = Self {
            path: path.to_owned(),
            config: parts.transformer(&ARCH, TransformerConfig::read, of_shapes)?,
            autoencoder: parts.autoencoder(FACTORS)?,
            text: parts.text()?,
            parts,
            shift,
        };
        model.check_parts()?;
        Ok(model)
    }

    /// Fails if the parts are those of different models.
    fn check_parts(&self) -> Result<(), Error> {
        let (config, vae, text) = (&self.config, &self.autoencoder, &self.text);
        let transformer = self.parts.transformer.display();
        if vae.channels() != config.in_channels {
            let reason = format!(
                "has latents of {} channels, and the transformer in `{transformer}` takes {}",
                vae.channels(),
                config.in_channels
            );
            return Err(Error::file(&self.parts.vae, reason));
        }
        if text.hidden_size != config.cap_feat_dim || text.num_hidden_layers < 2 {
            let reason = format!(
                "has {} layers of width {}, and the transformer in `{transformer}` takes the state before the last layer \
                 of a width of {}",
                text.num_hidden_layers, text.hidden_size, config.cap_feat_dim
            );
            return Err(Error::file(&self.parts.text_encoder, reason));
        }
        Ok(())
    }
}

impl Diffusion for ZImage {
    fn arch(&self) -> &'static Arch {
        &ARCH
    }

    fn path(&self) -> &Path {
        &self.path
    }

    fn geometry(&self) -> Geometry {
        Geometry {
            channels: self.config.in_channels,
            pixels: self.autoencoder.pixels_per_latent(),
            patch: PATCH,
            frames: None,
            fps: 1,
        }
    }

    fn defaults(&self) -> Result<Defaults, Error> {
        Ok(Defaults {
            size: (1024, 1024),
            frames: 1,
            scheduler: Scheduler::EvenEuler,
            shift: self.shift,
        })
    }

    fn part(&self, part: Part) -> Option<PathBuf> {
        self.parts.part(part)
    }

    fn names(&self, part: Part) -> PartNames {
        Places::names(&ARCH, part)
    }

    fn denoiser(
        &self,
        _: Expert,
        device: Device,
        builder: &mut Builder,
    ) -> Result<Box<dyn Denoiser>, Error> {
        Ok(Box::new(Transformer::new(&self.config, device, builder)?))
    }

    fn autoencoder(
        &self,
        device: Device,
        builder: &mut Builder,
    ) -> Result<Box<dyn MediaCodec>, Error> {
        let codec = KlAutoencoder::new(&self.autoencoder, device, builder)?;
        Ok(Box::new(codec))
    }

    fn tokenizer(&self) -> Result<Box<dyn Tokenizer>, Error> {
        // For this template it means that no empty thoughts follow the prompt.
        let arguments = [("enable_thinking".to_owned(), json!(true))];
        Ok(Box::new(ChatTokenizer::open(
            &self.parts.tokenizer,
            &self.text,
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
        let states = [self.text.num_hidden_layers as usize - 1];
        let encoder = TextDecoder::new(&self.text, &states, LONGEST_TEXT, device, builder)?;
        Ok(Box::new(encoder))
    }

    fn text_width(&self) -> Result<i64, Error> {
        Ok(self.text.hidden_size)
    }

    /// Texts are padded, and their lengths kept beside them.
    fn collate(&self, rows: &[Conditions]) -> Result<Conditions, Error> {
        collated(rows)
    }

    fn stays_fp32(&self, name: &str) -> bool {
        name.starts_with("t_embedder.") || name.ends_with("_pad_token")
    }

    fn kept(&self, usage: &Usage) -> Result<Kept, Error> {
        Ok(memory::kept(usage, &self.config))
    }
}

/// The texts of a batch, padded to the length of the longest with the tokens that fill it up; and the number of tokens
/// of each.
pub(super) fn collated(rows: &[Conditions]) -> Result<Conditions, Error> {
    let lengths = rows.iter().map(|row| {
        let tokens = row.get(TEXT)?.size2()?.0;
        Ok(tokens)
    });
    let lengths = lengths.collect::<Result<Vec<_>, Error>>()?;
    let longest = filled(lengths.iter().max().copied().unwrap_or(0));
    let padded = rows.iter().zip(&lengths).map(|(row, tokens)| {
        let mut row = row.shallow_clone();
        let text = row
            .get(TEXT)?
            .f_constant_pad_nd([0, 0, 0, longest - tokens])?;
        row.insert(TEXT, text);
        row.insert(
            TEXT_TOKENS,
            Tensor::f_from_slice(&[*tokens])?
                .f_to_kind(Kind::Float)?
                .f_squeeze()?,
        );
        Ok(row)
    });
    Conditions::stacked(&padded.collect::<Result<Vec<_>, Error>>()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_of_a_batch_are_padded_and_counted() {
        let rows = [2, 35].map(|length| {
            let ones = Tensor::ones([length, 3], (Kind::Float, Device::Cpu));
            Conditions::of(TEXT, ones)
        });
        let batch = collated(&rows).unwrap();
        let text = batch.get(TEXT).unwrap();
        assert_eq!(text.size(), [2, 64, 3]);
        let sums = text.sum_dim_intlist([1, 2].as_slice(), false, Kind::Float);
        assert_eq!(Vec::<f32>::try_from(&sums).unwrap(), [6.0, 105.0]);
        let tokens = batch.get(TEXT_TOKENS).unwrap();
        assert_eq!(Vec::<f32>::try_from(tokens).unwrap(), [2.0, 35.0]);
    }
}
