//! Diffusion models: one folder for each, over the parts that several share.
//!
//! ```text
//! pictures ──MediaCodec──▶ latents ─┐
//!                                   ├─▶ Denoiser ─▶ prediction ──Sampler──▶ latents ──MediaCodec──▶ pictures
//! text ────TextEncoder──▶ Conditions┘
//! ```
//!
//! Training, sampling, caches and LoRA files know a model only by what is here: its line in [`REGISTRY`], an
//! [`Arch`], opens a folder or a file as a [`Diffusion`], which builds the parts. Latents always have five
//! dimensions, `[batch, channels, frames, height, width]`; a picture has one frame.

pub mod anima;
mod companions;
mod conditions;
mod controls;
pub mod files;
pub mod flux1;
pub mod flux2;
mod geometry;
pub mod krea2;
mod load;
pub mod lora;
mod objective;
pub mod parts;
pub mod qwen_image;
#[cfg(test)]
mod reference;
mod registry;
pub mod sampling;
pub mod sdxl;
pub mod wan;
pub mod z_image;

use std::fmt::Debug;
use std::path::{Path, PathBuf};

use tch::{Device, Tensor};

pub use companions::Companions;
pub use conditions::{Conditions, FIRST_FRAME, GUIDANCE, TEXT, TEXT_TOKENS};
pub use controls::Controls;
pub use geometry::{Framing, Geometry};
pub use load::{DenoiserOptions, load_autoencoder, load_denoiser, load_text_encoder};
pub use objective::{Noise, Objective, Prediction};
pub use registry::{
    INDEXES, REGISTRY, archs, denoiser_at, index_of, is_at, of_file, open, register,
};

use self::files::{PartFile, PartNames};
use self::lora::LoraForm;
use self::parts::codec::MediaCodec;
pub use self::parts::resample::Picture;
use self::parts::schedule::Scheduler;
use self::parts::tiles::Tiling;
use crate::Error;
use crate::formats::TensorSource;
use crate::model::{BlockList, Builder, Pass};

/// Opens the model at a path, with the parts that are named singly.
pub type Open = fn(&Path, &PartPaths) -> Result<Box<dyn Diffusion>, Error>;

/// What is known of a kind of model before one is opened: its line in [`REGISTRY`].
#[derive(Debug)]
pub struct Arch {
    /// Its name in files and messages, such as `z_image`.
    pub name: &'static str,
    /// Its name for people.
    pub title: &'static str,
    /// `_class_name` in the `model_index.json` of its folders.
    pub pipelines: &'static [&'static str],
    /// A model of this kind on the hub, for messages.
    pub example: &'static str,
    /// Folders of a model that are downloaded.
    pub folders: &'static [&'static str],
    /// How far noise levels are shifted towards noise in training if nothing else is said; 1 for not at all.
    pub training_shift: f64,
    /// Names of the denoiser's weights.
    pub denoiser: PartNames,
    /// Whether a single file is a denoiser of this kind.
    pub is_denoiser: fn(&PartFile) -> bool,
    /// Opens a folder, or a denoiser's file with the other parts.
    pub open: Open,
    /// The denoiser's lists of blocks, in the order of the forward pass.
    pub lists: &'static [BlockNames],
    /// Modules outside the blocks that a LoRA may change: names in diffusers and in the original files.
    pub others: &'static [(&'static str, &'static str)],
    /// What its LoRA files say and contain.
    pub lora: LoraFiles,
    /// The encoded clips of other trainers that can be read.
    pub caches: Option<ForeignCaches>,
    /// Where a single file's other parts are.
    pub companions: Companions,
}

/// A list of blocks and the parts of a block.
#[derive(Debug)]
pub struct BlockNames {
    /// Its name in diffusers: blocks are `NAME.0`, `NAME.1`, …
    pub name: &'static str,
    /// Its name in the original files.
    pub original: &'static str,
    /// The linear layers of a block: names in diffusers and in the original files.
    pub linear: &'static [(&'static str, &'static str)],
    /// Other parts of a block that a LoRA file may change.
    pub others: &'static [(&'static str, &'static str)],
}

/// LoRA files for a kind of model.
#[derive(Debug)]
pub struct LoraFiles {
    /// Name endings of the layers that `target_modules: all-linear` adapts; or a single regular expression for the names,
    /// if an ending is that of another module, too.
    pub targets: &'static [&'static str],
    /// `ss_network_module`.
    pub network: &'static str,
    /// `modelspec.architecture`.
    pub architecture: &'static str,
    /// Whether kohya's form is written: of some models diffusers ignores it without a word.
    pub kohya: bool,
    /// The layers of text encoders that a LoRA may change, too, where they can be trained with the denoiser
    /// ([`Diffusion::with_text`]).
    pub text: &'static [TextLayers],
    /// The form that every reader takes if all linear layers of the blocks are adapted.
    pub complete: LoraForm,
    /// The same if only some are.
    pub partial: LoraForm,
}

/// The layers of a text encoder in LoRA files.
#[derive(Debug)]
pub struct TextLayers {
    /// How keys begin in files.
    pub prefix: &'static str,
    /// Its blocks; their names here begin with that of the encoder's folder.
    pub blocks: BlockNames,
}

/// Encoded clips that other trainers leave behind.
#[derive(Debug, Clone, Copy)]
pub struct ForeignCaches {
    /// Endings of musubi-tuner's latents and texts.
    pub musubi: [&'static str; 2],
    /// `architecture` in its files.
    pub architecture: &'static str,
    /// Its programs that write them.
    pub programs: [&'static str; 2],
    /// Beginning of a text's name in its files.
    pub text: &'static str,
}

impl BlockNames {
    /// All parts of a block that a LoRA may change, each with its original name.
    pub fn parts(&self) -> impl Iterator<Item = (&'static str, &'static str)> {
        self.linear.iter().chain(self.others).copied()
    }

    /// The linear layers of the block with this index.
    pub fn linear_layers(&self, block: usize) -> impl Iterator<Item = String> {
        let layers = self.linear.iter();
        layers.map(move |(name, _)| format!("{}.{block}.{name}", self.name))
    }
}

impl Arch {
    /// Whether its models have a second text encoder.
    pub fn has_two_encoders(&self) -> bool {
        self.folders.contains(&"text_encoder_2")
    }

    /// The folder of the denoiser, or of the one for high noise, and the beginning of its names in LoRA files of diffusers.
    pub fn denoiser_folder(&self) -> &'static str {
        match self.folders.contains(&"unet") {
            true => "unet",
            false => "transformer",
        }
    }

    /// The list, the index in it and the part of a block that `name` names: `blocks.3.attn1.to_q`.
    pub fn part_of_block<'a>(
        &self,
        name: &'a str,
    ) -> Option<(&'static BlockNames, usize, &'a str)> {
        self.lists.iter().find_map(|list| {
            let rest = name.strip_prefix(list.name)?.strip_prefix('.')?;
            let (number, part) = rest.split_once('.')?;
            Some((list, number.parse().ok()?, part))
        })
    }

    /// The text encoder that the layer `name` is in, with the index of its block and its name there; `None` for the denoiser's.
    pub fn text_layer<'a>(&self, name: &'a str) -> Option<(&'static TextLayers, usize, &'a str)> {
        self.lora.text.iter().find_map(|text| {
            let rest = name.strip_prefix(text.blocks.name)?.strip_prefix('.')?;
            let (number, part) = rest.split_once('.')?;
            Some((text, number.parse().ok()?, part))
        })
    }

    /// Whether LoRA files may change the layer that diffusers calls `name`.
    pub fn is_layer(&self, name: &str) -> bool {
        lora::is_known(name, self)
    }

    /// Number of blocks of each list in a denoiser's file.
    pub fn blocks(&self, file: &dyn TensorSource) -> Vec<usize> {
        let mut counts = vec![0; self.lists.len()];
        for name in file.names() {
            if let Some((list, number, _)) = self.part_of_block(&name)
                && let Some(at) = self.lists.iter().position(|own| own.name == list.name)
            {
                counts[at] = counts[at].max(number + 1);
            }
        }
        counts
    }
}

/// Parts outside the model's folder: each a diffusers folder or a single file.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PartPaths {
    /// The denoiser, or the one for high noise.
    pub transformer: Option<PathBuf>,
    /// The denoiser for low noise.
    pub transformer_2: Option<PathBuf>,
    /// The autoencoder.
    pub vae: Option<PathBuf>,
    /// The text encoder.
    pub text_encoder: Option<PathBuf>,
    /// The second text encoder.
    pub text_encoder_2: Option<PathBuf>,
    /// The tokenizer: a folder, `tokenizer.json` or `spiece.model`. If `None`, that of the folder, or the one
    /// inside a single text encoder file. With two text encoders, a folder with those of both.
    pub tokenizer: Option<PathBuf>,
}

/// One of a model's denoisers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Expert {
    /// The one for high noise, or the only one.
    High,
    /// The one for low noise.
    Low,
}

/// A part of a model with weights of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Part {
    /// A denoiser.
    Denoiser(Expert),
    /// The autoencoder.
    Autoencoder,
    /// A text encoder, counted from zero.
    TextEncoder(usize),
}

/// What is sampled if the user says nothing else.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Defaults {
    /// Width and height in pixels.
    pub size: (i64, i64),
    /// Number of frames.
    pub frames: i64,
    /// The solver.
    pub scheduler: Scheduler,
    /// How far its steps are shifted towards noise.
    pub shift: f64,
}

/// Whether a model takes the first frame of what it makes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FirstFrame {
    /// It does not.
    Never,
    /// It may be given.
    Optional,
    /// It must be.
    Required,
}

/// A model whose parts are loaded on demand: configs were read, weights were not.
pub trait Diffusion: Debug + Send + Sync {
    /// The kind of model that it is.
    fn arch(&self) -> &'static Arch;

    /// Its folder, or its denoiser's file.
    fn path(&self) -> &Path;

    /// Sizes of its latents.
    fn geometry(&self) -> Geometry;

    /// Settings of its scheduler and the size of what it makes.
    ///
    /// # Errors
    /// If the scheduler's file is damaged or not supported.
    fn defaults(&self) -> Result<Defaults, Error>;

    /// How far the levels of a run of `steps` steps are shifted towards noise for `tokens` tokens of the denoiser, if the
    /// user says nothing. By default what [`Diffusion::defaults`] says, whatever the size.
    ///
    /// # Errors
    /// As [`Diffusion::defaults`].
    fn shift(&self, _tokens: i64, _steps: usize) -> Result<f64, Error> {
        Ok(self.defaults()?.shift)
    }

    /// Whether it was distilled to few steps without guidance: a negative prompt then has no use, and training wears the
    /// distillation off.
    fn is_distilled(&self) -> bool {
        false
    }

    /// The guidance that the denoiser is told in sampling if the user says nothing; `None` if it is told none. It then takes
    /// no negative prompt, and learns at the guidance 1 unless the user says another.
    fn guidance(&self) -> Option<f64> {
        None
    }

    /// How it is noised, and what its denoiser predicts.
    fn objective(&self) -> Objective {
        Objective::FLOW
    }

    /// Where a part is; `None` if the model has no such part.
    fn part(&self, part: Part) -> Option<PathBuf>;

    /// Names of a part's weights.
    fn names(&self, part: Part) -> PartNames {
        match part {
            Part::Denoiser(_) => self.arch().denoiser,
            Part::Autoencoder => PartNames::DIFFUSERS,
            Part::TextEncoder(_) => PartNames::TRANSFORMERS,
        }
    }

    /// The noise level, as a fraction of the highest, below which the second of two denoisers is used, if the model says it.
    fn boundary(&self) -> Option<f64> {
        None
    }

    /// Why the model may not be what it seems, for training and for sampling: a denoiser whose other half was not named.
    fn doubt(&self) -> Option<Doubt> {
        None
    }

    /// Fails if these denoisers cannot be trained together, or with the first frame given as `first_frame` says.
    ///
    /// # Errors
    /// What does not fit.
    fn check_training(&self, _experts: &[Expert], first_frame: Option<bool>) -> Result<(), Error> {
        match first_frame {
            None => Ok(()),
            Some(_) => Err(Error::Invalid(
                "`data.image_to_video`: this model takes no first frame".into(),
            )),
        }
    }

    /// Builds a denoiser on `device`: embedders, then each list of [`Arch::lists`] in order.
    ///
    /// # Errors
    /// If a weight is missing, or memory runs out.
    fn denoiser(
        &self,
        expert: Expert,
        device: Device,
        builder: &mut Builder,
    ) -> Result<Box<dyn Denoiser>, Error>;

    /// Builds the autoencoder on `device`.
    ///
    /// # Errors
    /// If a weight is missing, or memory runs out.
    fn autoencoder(
        &self,
        device: Device,
        builder: &mut Builder,
    ) -> Result<Box<dyn MediaCodec>, Error>;

    /// Cuts texts into tokens.
    ///
    /// # Errors
    /// If its file is missing or damaged.
    fn tokenizer(&self) -> Result<Box<dyn Tokenizer>, Error>;

    /// Conditions that are the tokens of a text themselves: there may be more lists of them than text encoders.
    ///
    /// # Errors
    /// If memory runs out.
    fn of_tokens(&self, _tokens: &[Vec<u32>]) -> Result<Conditions, Error> {
        Ok(Conditions::default())
    }

    /// Builds a text encoder on `device`.
    ///
    /// # Errors
    /// If a weight is missing, or memory runs out.
    fn text_encoder(
        &self,
        number: usize,
        device: Device,
        builder: &mut Builder,
    ) -> Result<Box<dyn TextEncoder>, Error>;

    /// Width of the rows of a text's encoding, for checking [`Arch::caches`].
    ///
    /// # Errors
    /// If a file is missing or damaged.
    fn text_width(&self) -> Result<i64, Error> {
        Err(Error::Internal("a model whose text has no width".into()))
    }

    /// Whether it takes a first frame.
    fn first_frame(&self) -> FirstFrame {
        FirstFrame::Never
    }

    /// Conditions, without a batch dimension, of a clip of `frames` frames that begins with `picture`
    /// `[1, 3, height, width]` from −1 to 1. If it is [`FirstFrame::Required`], a cache file has them beside the
    /// latents.
    ///
    /// # Errors
    /// If the size does not fit the autoencoder, or memory runs out.
    fn first_frame_conditions(
        &self,
        _codec: &dyn MediaCodec,
        _picture: &Tensor,
        _frames: i64,
        _tiling: Option<Tiling>,
    ) -> Result<Conditions, Error> {
        Ok(Conditions::default())
    }

    /// How it takes control pictures, of which it then needs one; `None` if it takes none. Their latents are conditions
    /// with the names of [`Controls::name`], and its texts are encoded with them.
    fn controls(&self) -> Option<Controls> {
        None
    }

    /// Conditions, without a batch dimension, of how a picture came to its size. A cache file has them beside the latents.
    ///
    /// # Errors
    /// If memory runs out.
    fn framing_conditions(&self, _framing: Framing) -> Result<Conditions, Error> {
        Ok(Conditions::default())
    }

    /// What takes the place of a negative prompt that is not given, beside the `prompt`'s conditions; `None` for the
    /// empty text.
    ///
    /// # Errors
    /// If memory runs out.
    fn without_prompt(&self, _prompt: &Conditions) -> Result<Option<Conditions>, Error> {
        Ok(None)
    }

    /// Pixels that the sides of pictures are multiples of in training.
    fn bucket_step(&self) -> i64 {
        self.geometry().step()
    }

    /// Conditions of a batch from those of its clips, as they lie in cache files: stacked, unless texts of
    /// different lengths have to be padded.
    ///
    /// # Errors
    /// If shapes differ.
    fn collate(&self, rows: &[Conditions]) -> Result<Conditions, Error> {
        Conditions::stacked(rows)
    }

    /// Whether a frozen tensor stays in fp32 although it is a matrix.
    fn stays_fp32(&self, _name: &str) -> bool {
        false
    }

    /// Whether a frozen matrix is quantised, if matrices are.
    fn is_quantized(&self, _name: &str) -> bool {
        true
    }

    /// The weights of a part.
    ///
    /// # Errors
    /// If there is no such part, or a file is missing or damaged.
    fn weights(&self, part: Part) -> Result<PartFile, Error> {
        let path = self.part(part);
        let path = path.ok_or_else(|| Error::Internal(format!("a model without {part:?}")))?;
        PartFile::open(&self.names(part), &path)
    }

    /// The same model with its text encoders in the denoiser, which is told tokens in place of what they make of a text, so that
    /// a LoRA may change them, too; `None` if this model has no such form.
    fn with_text(&self) -> Option<Box<dyn Diffusion>> {
        None
    }

    /// Number of text encoders.
    fn text_encoders(&self) -> usize {
        let there = |number: &usize| self.part(Part::TextEncoder(*number)).is_some();
        (0..).take_while(there).count()
    }

    /// Whether it has a denoiser for low noise.
    fn has_low_noise(&self) -> bool {
        self.part(Part::Denoiser(Expert::Low)).is_some()
    }
}

/// Why a model may not be what it seems.
#[derive(Debug)]
pub struct Doubt {
    /// Why it cannot be trained without `train.min_sigma` and `train.max_sigma`.
    pub training: String,
    /// What to look at if its pictures are bad.
    pub sampling: String,
}

/// Predicts noise, or what the [`Objective`] says, in noisy latents.
pub trait Denoiser: Debug {
    /// For `noisy` latents `[batch, channels, frames, height, width]` at the times `[batch]` of
    /// [`Objective::times`], with conditions as [`Diffusion::collate`] makes them: a prediction of the same shape,
    /// in fp32. Of frames that [`FIRST_FRAME`] gives, `noisy` and the prediction do not count.
    ///
    /// # Errors
    /// If shapes do not match, or memory runs out.
    fn predict(
        &self,
        noisy: &Tensor,
        times: &Tensor,
        conditions: &Conditions,
        pass: Pass,
    ) -> Result<Tensor, Error>;

    /// What is stepped by with guidance of this `scale`: a prediction for a prompt, away from that for a negative one.
    ///
    /// # Errors
    /// If memory runs out.
    fn guided(&self, positive: &Tensor, negative: &Tensor, scale: f64) -> Result<Tensor, Error> {
        let away = positive.f_sub(negative)?.f_mul_scalar(scale)?;
        Ok(negative.f_add(&away)?)
    }

    /// Its lists of blocks, in order.
    fn lists(&self) -> Vec<&dyn BlockList>;

    /// Its size for people: "30 layers of width 1536".
    fn description(&self) -> String;
}

/// Cuts texts into the tokens of a model's text encoders.
pub trait Tokenizer: Debug {
    /// The tokens of `text` for each text encoder, truncated to what it reads.
    ///
    /// # Errors
    /// If the tokenizer fails.
    fn tokens(&self, text: &str) -> Result<Vec<Vec<u32>>, Error>;

    /// The same for a text that is encoded with pictures of these widths and heights.
    ///
    /// # Errors
    /// If the tokenizer fails.
    fn tokens_with(&self, text: &str, pictures: &[(u32, u32)]) -> Result<Vec<Vec<u32>>, Error> {
        match pictures {
            [] => self.tokens(text),
            _ => Err(Error::Internal("a tokenizer that knows no pictures".into())),
        }
    }

    /// How pictures are prepared, on which the encoding of a text with some depends, too.
    fn preparation(&self) -> String {
        String::new()
    }

    /// Number of tokens of `text` before truncation, and how many are read.
    ///
    /// # Errors
    /// If the tokenizer fails.
    fn length(&self, text: &str) -> Result<(usize, usize), Error>;
}

/// Encodes texts.
pub trait TextEncoder: Debug {
    /// The conditions of one text without a batch dimension, as they lie in a cache file. The rows of [`TEXT`] are
    /// those of the text alone, without padding unless the denoiser sees it.
    ///
    /// # Errors
    /// If a token is unknown, or memory runs out.
    fn encode(&self, tokens: &[u32]) -> Result<Conditions, Error>;

    /// The same for a text with pictures, whose tokens are those of [`Tokenizer::tokens_with`].
    ///
    /// # Errors
    /// If the tokens are those of other pictures, or as [`TextEncoder::encode`].
    fn encode_with(&self, tokens: &[u32], pictures: &[Picture]) -> Result<Conditions, Error> {
        match pictures {
            [] => self.encode(tokens),
            _ => Err(Error::Internal("an encoder that sees none".into())),
        }
    }
}
