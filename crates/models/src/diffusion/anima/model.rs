//! A complete model: a diffusers folder, or single files as used by ComfyUI.

use std::path::{Path, PathBuf};

use tch::{Device, Kind, Tensor};

use super::transformer::{ConditionerConfig, PATCH, Transformer, TransformerConfig};
use super::{ARCH, names};
use crate::Error;
use crate::diffusion::files::PartFile;
use crate::diffusion::parts::decoder::TextDecoder;
use crate::diffusion::parts::joined::Joined;
use crate::diffusion::parts::places::Places;
use crate::diffusion::parts::schedule::Scheduler;
use crate::diffusion::parts::stills::{Stills, Vae, answered_by_stills};
use crate::diffusion::parts::t5::TEXT_ROWS;
use crate::diffusion::parts::unigram::TextTokenizer;
use crate::diffusion::{
    self, Conditions, Denoiser, Diffusion, Expert, Part, PartPaths, TextEncoder, Tokenizer,
};
use crate::formats::TensorSource;
use crate::model::Builder;
use crate::text::Encoder;

/// The tokens of a text for T5: `[tokens]`, in a batch with −1 behind a shorter text.
pub(super) const T5_TOKENS: &str = "t5_tokens";

/// Tokens of a prompt that are read.
const LONGEST_TEXT: usize = TEXT_ROWS as usize;

/// The shift of the noise levels where no scheduler says it, as in ComfyUI.
const SINGLE_FILE_SHIFT: f64 = 3.0;

/// The token that is encoded in place of an empty text, as in ComfyUI; diffusers encodes nothing.
const EMPTY_TEXT: &str = "<|endoftext|>";

/// The folder of T5's tokenizer.
const T5_TOKENIZER: &str = "t5_tokenizer";

/// The classes of a folder's parts.
const CLASSES: [(&str, &[&str]); 4] = [
    ("transformer", &["CosmosTransformer3DModel"]),
    ("text_conditioner", &["AnimaTextConditioner"]),
    ("vae", &["AutoencoderKLQwenImage", "AutoencoderKLWan"]),
    ("scheduler", &["FlowMatchEulerDiscreteScheduler"]),
];

/// A model whose parts are loaded on demand.
#[derive(Debug, Clone)]
pub struct Anima {
    config: TransformerConfig,
    conditioner: ConditionerConfig,
    stills: Stills,
    /// The conditioner's folder; `None` if it is in the transformer's file.
    conditioner_folder: Option<PathBuf>,
}

impl Anima {
    /// Reads the configs of the diffusers folder at `path`, or the shapes of single files: `path` is then the
    /// transformer, and `parts` names the others.
    ///
    /// # Errors
    /// If a file is missing or damaged, or its content is not supported.
    pub fn open(path: &Path, parts: &PartPaths) -> Result<Self, Error> {
        let parts = Places::find(&ARCH, path, parts, (&CLASSES, &[T5_TOKENIZER]))?;
        let shift = match path.is_dir() {
            true => Scheduler::read(&path.join("scheduler/scheduler_config.json"))?.1,
            false => SINGLE_FILE_SHIFT,
        };
        let transformer = &parts.transformer;
        let file = match transformer.is_dir() {
            true => None,
            false => Some(PartFile::open(&names::DENOISER, transformer)?),
        };
        let conditioner_folder = match &file {
            Some(file) if file.shape("text_conditioner.embed.weight").is_some() => None,
            _ => {
                let beside = transformer.parent().filter(|_| file.is_none());
                let mut folders = [beside, Some(path)].into_iter().flatten();
                let folder = folders.find(|folder| folder.join("text_conditioner").is_dir());
                folder.map(|folder| folder.join("text_conditioner"))
            }
        };
        let model = Self {
            config: match &file {
                Some(file) => TransformerConfig::of_shapes(file)?,
                None => TransformerConfig::read(&transformer.join("config.json"))?,
            },
            conditioner: match (&conditioner_folder, &file) {
                (Some(folder), _) => ConditionerConfig::read(&folder.join("config.json"))?,
                (None, Some(file)) => ConditionerConfig::of_shapes(file)?,
                (None, None) => {
                    let reason = "has no folder `text_conditioner` beside it, which makes its text";
                    return Err(Error::file(transformer, reason));
                }
            },
            stills: Stills {
                arch: &ARCH,
                path: path.to_owned(),
                vae: Vae::causal(&parts)?,
                text: parts.text()?,
                parts,
                patch: PATCH,
                scheduler: Scheduler::EvenEuler,
                shift,
            },
            conditioner_folder,
        };
        model.check_parts()?;
        // Nothing but a key says where they are; a file in place of the folder stands for those that are not here yet.
        if !path.is_dir() && !model.stills.parts.tokenizer.is_file() {
            model.tokenizers()?;
        }
        Ok(model)
    }

    /// Fails if the parts are those of different models.
    fn check_parts(&self) -> Result<(), Error> {
        let (config, conditioner) = (&self.config, &self.conditioner);
        let Stills { text, parts, .. } = &self.stills;
        let transformer = parts.transformer.display();
        self.stills.check_channels(config.in_channels)?;
        if text.hidden_size != conditioner.source_dim {
            let reason = format!(
                "has states of width {}, and the conditioner of the transformer in `{transformer}` takes a width of {}",
                text.hidden_size, conditioner.source_dim
            );
            return Err(Error::file(&parts.text_encoder, reason));
        }
        if conditioner.target_dim != config.text_embed_dim {
            let reason = format!(
                "takes a text of width {}, and its conditioner makes one of {}",
                config.text_embed_dim, conditioner.target_dim
            );
            return Err(Error::file(&parts.transformer, reason));
        }
        Ok(())
    }

    /// The folders of the language model's tokenizer and of T5's: as diffusers saves them, or the second in the first one
    /// or beside it.
    fn tokenizers(&self) -> Result<[PathBuf; 2], Error> {
        let given = &self.stills.parts.tokenizer;
        let inside = given.join("tokenizer");
        let own = if inside.is_dir() {
            inside
        } else {
            given.clone()
        };
        let mut folders = [Some(given.as_path()), given.parent()]
            .into_iter()
            .flatten();
        let t5 = folders.find(|folder| folder.join(T5_TOKENIZER).is_dir());
        match t5 {
            Some(folder) => Ok([own, folder.join(T5_TOKENIZER)]),
            None => {
                let reason = format!(
                    "there is no folder `{T5_TOKENIZER}` in it or beside it: {} reads each prompt with the tokenizer of T5, \
                     too (its `tokenizer.json` or `spiece.model`)",
                    ARCH.title
                );
                Err(Error::file(given, reason))
            }
        }
    }
}

impl Diffusion for Anima {
    answered_by_stills!();

    fn weights(&self, part: Part) -> Result<PartFile, Error> {
        let path = self.part(part);
        let path = path.ok_or_else(|| Error::Internal(format!("a model without {part:?}")))?;
        let file = PartFile::open(&self.names(part), &path)?;
        match (part, &self.conditioner_folder) {
            (Part::Denoiser(_), Some(folder)) => {
                let conditioner = PartFile::open(&names::CONDITIONER, folder)?;
                PartFile::of(
                    &names::DENOISER,
                    Box::new(Joined::new(vec![("", file), ("", conditioner)])),
                )
            }
            _ => Ok(file),
        }
    }

    fn denoiser(
        &self,
        _: Expert,
        device: Device,
        builder: &mut Builder,
    ) -> Result<Box<dyn Denoiser>, Error> {
        let model = Transformer::new(&self.config, &self.conditioner, device, builder)?;
        Ok(Box::new(model))
    }

    fn tokenizer(&self) -> Result<Box<dyn Tokenizer>, Error> {
        let [own, t5] = self.tokenizers()?;
        let encoder = Encoder::of_folder(&own, &self.stills.text)?;
        let empty = encoder.tokenizer().token_to_id(EMPTY_TEXT);
        let empty = empty.ok_or_else(|| {
            Error::file(
                &own,
                format!("has no token {EMPTY_TEXT:?}, which stands for an empty text"),
            )
        })?;
        Ok(Box::new(PromptTokenizer {
            encoder,
            empty,
            t5: TextTokenizer::open(&t5)?.without_cleaning(),
        }))
    }

    fn of_tokens(&self, tokens: &[Vec<u32>]) -> Result<Conditions, Error> {
        let ids = tokens.last().into_iter().flatten();
        let ids: Vec<f32> = ids.map(|id| *id as f32).collect();
        Ok(Conditions::of(T5_TOKENS, Tensor::f_from_slice(&ids)?))
    }

    fn text_encoder(
        &self,
        _: usize,
        device: Device,
        builder: &mut Builder,
    ) -> Result<Box<dyn TextEncoder>, Error> {
        let encoder = TextDecoder::whole(&self.stills.text, LONGEST_TEXT, device, builder)?;
        Ok(Box::new(encoder))
    }

    fn text_width(&self) -> Result<i64, Error> {
        Ok(self.stills.text.hidden_size)
    }

    /// Texts are padded in both forms.
    fn collate(&self, rows: &[Conditions]) -> Result<Conditions, Error> {
        collated(rows)
    }

    fn stays_fp32(&self, name: &str) -> bool {
        name.starts_with("time_embed.")
    }
}

/// The conditions of a batch: states are padded with zeros, and their numbers kept beside them; T5's tokens with −1.
pub(super) fn collated(rows: &[Conditions]) -> Result<Conditions, Error> {
    let tokens = |row: &Conditions| Ok(row.get(T5_TOKENS)?.size1()?);
    let lengths = rows.iter().map(tokens).collect::<Result<Vec<_>, Error>>()?;
    let longest = lengths.iter().max().copied().unwrap_or(0);
    let padded = rows.iter().zip(&lengths).map(|(row, length)| {
        let mut row = row.shallow_clone();
        let ids = row.get(T5_TOKENS)?;
        let ids = ids.f_pad([0, longest - length], "constant", -1.0)?;
        row.insert(T5_TOKENS, ids.f_to_kind(Kind::Float)?);
        Ok(row)
    });
    Conditions::padded(&padded.collect::<Result<Vec<_>, Error>>()?, |rows| rows)
}

/// Cuts a prompt, as it is, into the tokens of the language model and of T5.
#[derive(Debug)]
struct PromptTokenizer {
    encoder: Encoder,
    /// The language model's token for an empty text.
    empty: u32,
    t5: TextTokenizer,
}

impl PromptTokenizer {
    /// The language model's tokens of the whole text.
    fn all(&self, text: &str) -> Result<Vec<u32>, Error> {
        let mut tokens = self.encoder.tokens(text, true)?;
        if tokens.is_empty() {
            tokens.push(self.empty);
        }
        Ok(tokens)
    }
}

impl diffusion::Tokenizer for PromptTokenizer {
    fn tokens(&self, text: &str) -> Result<Vec<Vec<u32>>, Error> {
        let mut tokens = self.all(text)?;
        tokens.truncate(LONGEST_TEXT);
        Ok(vec![tokens, self.t5.tokens(text)?])
    }

    fn length(&self, text: &str) -> Result<(usize, usize), Error> {
        let length = self.all(text)?.len().max(self.t5.count(text)?);
        Ok((length, LONGEST_TEXT))
    }
}
