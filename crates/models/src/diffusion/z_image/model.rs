//! A complete model: a diffusers folder, or single files as used by ComfyUI.

use std::path::{Path, PathBuf};

use serde_json::json;
use tch::{Device, Kind, Tensor};

use super::memory;
use super::transformer::{PATCH, Transformer, TransformerConfig, filled};
use super::{ARCH, names};
use crate::Error;
use crate::diffusion::files::{PartFile, PartNames};
use crate::diffusion::parts::codec::MediaCodec;
use crate::diffusion::parts::decoder::{self, ChatTokenizer, TextDecoder};
use crate::diffusion::parts::kl::{self, KlAutoencoder, KlConfig};
use crate::diffusion::parts::schedule::Scheduler;
use crate::diffusion::{
    Arch, Conditions, Defaults, Denoiser, Diffusion, Expert, Geometry, Kept, Part, PartPaths, TEXT,
    TextEncoder, Tokenizer, Usage,
};
use crate::json::Object;
use crate::language::{DecoderConfig, keys_without_effect};
use crate::model::Builder;
use crate::pretrained::warn_about_keys;

/// The number of tokens of each text of a batch, `[batch]`.
pub(super) const TEXT_TOKENS: &str = "text_tokens";

/// Tokens of a prompt that are read.
const LONGEST_TEXT: usize = 512;

/// The shift of the noise levels where no scheduler says it, as in ComfyUI.
const SINGLE_FILE_SHIFT: f64 = 3.0;

/// The scale and the shift of latents, where no config says them.
const FACTORS: (f64, f64) = (0.3611, 0.1159);

/// The parts that `model_index.json` names, with the classes that are supported; of the others any may be named.
const PARTS: [(&str, &[&str]); 5] = [
    ("transformer", &["ZImageTransformer2DModel"]),
    ("vae", &["AutoencoderKL"]),
    ("scheduler", &["FlowMatchEulerDiscreteScheduler"]),
    // Its class is that of its config.
    ("text_encoder", &[]),
    ("tokenizer", &[]),
];

/// A model whose parts are loaded on demand.
#[derive(Debug, Clone)]
pub struct ZImage {
    path: PathBuf,
    config: TransformerConfig,
    autoencoder: KlConfig,
    text: DecoderConfig,
    parts: Parts,
    shift: f64,
}

/// Where the parts are.
#[derive(Debug, Clone)]
struct Parts {
    transformer: PathBuf,
    vae: PathBuf,
    text_encoder: PathBuf,
    tokenizer: PathBuf,
}

impl ZImage {
    /// Reads the configs of the diffusers folder at `path`, or the shapes of single files: `path` is then the
    /// transformer, and `parts` names the others.
    ///
    /// # Errors
    /// If a file is missing or damaged, or its content is not supported.
    pub fn open(path: &Path, parts: &PartPaths) -> Result<Self, Error> {
        if let Some(other) = &parts.transformer_2 {
            let reason = format!("is given as second transformer, but {} has one", ARCH.title);
            return Err(Error::file(other, reason));
        }
        let (mut parts, shift) = match path.is_dir() {
            true => Self::of_folder(path, parts)?,
            false => (Parts::of_files(path, parts)?, SINGLE_FILE_SHIFT),
        };
        // Its config is beside it.
        if parts.tokenizer.ends_with("tokenizer.json") {
            parts.tokenizer.pop();
        }
        let model = Self {
            path: path.to_owned(),
            config: match config_of(&parts.transformer) {
                Some(config) => TransformerConfig::read(&config)?,
                None => {
                    let file = PartFile::open(&names::TRANSFORMER, &parts.transformer)?;
                    TransformerConfig::of_shapes(&file)?
                }
            },
            autoencoder: match config_of(&parts.vae) {
                Some(config) => KlConfig::read(&config)?,
                None => KlConfig::of_shapes(&PartFile::open(&kl::NAMES, &parts.vae)?, FACTORS)?,
            },
            text: match config_of(&parts.text_encoder) {
                Some(config) => {
                    warn_about_keys(&config, &keys_without_effect(&config)?);
                    DecoderConfig::read(&config)?
                }
                None => {
                    let file = PartFile::open(&decoder::NAMES, &parts.text_encoder)?;
                    DecoderConfig::of_shapes(&file)?
                }
            },
            parts,
            shift,
        };
        model.check_parts()?;
        Ok(model)
    }

    /// Where the parts of a folder are, and the shift of its scheduler.
    fn of_folder(folder: &Path, parts: &PartPaths) -> Result<(Parts, f64), Error> {
        check(&Object::read(&folder.join("model_index.json"))?)?;
        let part = |given: &Option<PathBuf>, name: &str| {
            given.clone().unwrap_or_else(|| folder.join(name))
        };
        let parts = Parts {
            transformer: part(&parts.transformer, "transformer"),
            vae: part(&parts.vae, "vae"),
            text_encoder: part(&parts.text_encoder, "text_encoder"),
            tokenizer: part(&parts.tokenizer, "tokenizer"),
        };
        let (_, shift) = Scheduler::read(&folder.join("scheduler/scheduler_config.json"))?;
        Ok((parts, shift))
    }

    /// Fails if the parts are those of different models.
    fn check_parts(&self) -> Result<(), Error> {
        let (config, vae, text) = (&self.config, &self.autoencoder, &self.text);
        let transformer = self.parts.transformer.display();
        if vae.latent_channels != config.in_channels {
            let reason = format!(
                "has latents of {} channels, and the transformer in `{transformer}` takes {}",
                vae.latent_channels, config.in_channels
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

impl Parts {
    /// The transformer's file `path`, with the others as they are named.
    fn of_files(path: &Path, parts: &PartPaths) -> Result<Self, Error> {
        if let Some(other) = &parts.transformer {
            let reason = format!(
                "is a transformer, and so is `{}`: give only one of them",
                other.display()
            );
            return Err(Error::file(path, reason));
        }
        let part = |given: &Option<PathBuf>, name: &str| {
            given.clone().ok_or_else(|| {
                let reason = format!(
                    "is the transformer of {} alone: name its {name}, too",
                    ARCH.title
                );
                Error::file(path, reason)
            })
        };
        let a_file = "a single file or a folder";
        let text_encoder = part(
            &parts.text_encoder,
            &format!("text encoder (`text_encoder`, {a_file})"),
        )?;
        let beside = text_encoder.join("tokenizer.json").is_file();
        let tokenizer = match &parts.tokenizer {
            None if beside => text_encoder.clone(),
            given => part(
                given,
                "tokenizer (`tokenizer`, a folder with `tokenizer.json` and `tokenizer_config.json`)",
            )?,
        };
        Ok(Self {
            transformer: path.to_owned(),
            vae: part(&parts.vae, &format!("autoencoder (`vae`, {a_file})"))?,
            text_encoder,
            tokenizer,
        })
    }
}

/// The config of a part that is a folder.
fn config_of(part: &Path) -> Option<PathBuf> {
    part.is_dir().then(|| part.join("config.json"))
}

/// Refuses parts of other classes in a `model_index.json`, and warns about keys without effect.
fn check(index: &Object) -> Result<(), Error> {
    for (part, supported) in PARTS {
        let class = index.get(part).and_then(|part| part.get(1)?.as_str());
        if let Some(class) =
            class.filter(|class| !supported.is_empty() && !supported.contains(class))
        {
            let reason = format!("is {class:?}: supported is {}", supported.join(", "));
            return Err(index.error(part, reason));
        }
    }
    index.warn_about_unknown_keys(&PARTS.map(|(part, _)| part));
    Ok(())
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
        let parts = &self.parts;
        match part {
            Part::Denoiser(Expert::High) => Some(parts.transformer.clone()),
            Part::Autoencoder => Some(parts.vae.clone()),
            Part::TextEncoder(0) => Some(parts.text_encoder.clone()),
            Part::Denoiser(Expert::Low) | Part::TextEncoder(_) => None,
        }
    }

    fn names(&self, part: Part) -> PartNames {
        match part {
            Part::Denoiser(_) => names::TRANSFORMER,
            Part::Autoencoder => kl::NAMES,
            Part::TextEncoder(_) => decoder::NAMES,
        }
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
