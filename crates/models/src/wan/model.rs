//! A whole model: a folder of diffusers, or single files as ComfyUI's users have them.

use std::path::{Path, PathBuf};

use placement::swap::SwapOptions;
use placement::{Placer, Policy};
use tch::{Device, Kind};

use super::autoencoder::{Autoencoder, AutoencoderConfig};
use super::files::{Part, PartFile};
use super::lora::{Expert, LoraFile, WithLoras};
use super::schedule::Scheduler;
use super::text_encoder::{TextEncoder, TextEncoderConfig};
use super::tokenizer::TextTokenizer;
use super::transformer::{Transformer, TransformerConfig};
use crate::formats::TensorSource;
use crate::json::Object;
use crate::model::{Base, Builder, FileWeights, Streaming};
use crate::quant::Quantization;
use crate::{Error, Parameters};

const INDEX: &str = "model_index.json";

/// Parts that lie elsewhere than in the folder of the model: each a folder of diffusers or a single file.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PartPaths {
    /// The transformer, or that of high noise.
    pub transformer: Option<PathBuf>,
    /// The transformer of low noise.
    pub transformer_2: Option<PathBuf>,
    /// The autoencoder.
    pub vae: Option<PathBuf>,
    /// The text encoder.
    pub text_encoder: Option<PathBuf>,
    /// The tokenizer: a folder, `tokenizer.json` or `spiece.model`; unset takes that of the folder, or the
    /// one inside a single file of the text encoder.
    pub tokenizer: Option<PathBuf>,
}

/// What is made from what.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pipeline {
    /// Text to video.
    Text,
    /// Text and a first frame to video.
    Image,
}

/// A model of which the parts are loaded when they are needed.
#[derive(Debug, Clone)]
pub struct WanModel {
    /// The folder, or the file of the transformer.
    pub path: PathBuf,
    /// What it makes videos from.
    pub pipeline: Pipeline,
    /// Where the low-noise expert begins, as a fraction of the highest time, as far as the model says it.
    pub boundary_ratio: Option<f64>,
    /// Whether a given first frame takes the place of latents and has a time of its own (TI2V-5B).
    pub expand_timesteps: bool,
    /// Sizes of the transformers.
    pub transformer: TransformerConfig,
    /// Sizes of the autoencoder.
    pub autoencoder: AutoencoderConfig,
    transformers: (PathBuf, Option<PathBuf>),
    vae: PathBuf,
    text_encoder: PathBuf,
    tokenizer: PathBuf,
    /// The file of its scheduler, where it is a folder.
    scheduler: Option<PathBuf>,
}

impl WanModel {
    /// Whether there is a video model at `path` rather than a language model: a folder of diffusers, or a single
    /// file of a transformer.
    pub fn is_at(path: &Path) -> bool {
        path.join(INDEX).is_file() || is_single_file(path)
    }

    /// Reads what the folder of diffusers at `path` says of itself, or what the shapes in single files say: then
    /// `path` is the transformer (that of high noise, where there are two), and `parts` names the others.
    ///
    /// # Errors
    /// When a file is missing or damaged, or describes what is not known here.
    pub fn open(path: &Path, parts: &PartPaths) -> Result<Self, Error> {
        match path.is_dir() {
            true => Self::of_folder(path, parts),
            false => Self::of_files(path, parts),
        }
    }

    fn of_folder(folder: &Path, parts: &PartPaths) -> Result<Self, Error> {
        if !folder.join(INDEX).is_file() {
            let reason = format!(
                "has no `{INDEX}`: a model of Wan is a folder as diffusers saves it, or a single file of its \
                 transformer"
            );
            return Err(Error::file(folder, reason));
        }
        let index = Object::read(&folder.join(INDEX))?;
        let class = index.text("_class_name")?.unwrap_or("none");
        let pipeline = match class {
            "WanPipeline" => Pipeline::Text,
            "WanImageToVideoPipeline" => Pipeline::Image,
            _ => {
                let reason = format!(
                    "is {class:?}: \"WanPipeline\" and \"WanImageToVideoPipeline\" are known here"
                );
                return Err(index.error("_class_name", reason));
            }
        };
        let part = |given: &Option<PathBuf>, name: &str| {
            given.clone().unwrap_or_else(|| folder.join(name))
        };
        let low_noise = folder.join("transformer_2");
        let low_noise = match &parts.transformer_2 {
            Some(given) => Some(given.clone()),
            None => low_noise.is_dir().then_some(low_noise),
        };
        let boundary_ratio = match index.get("boundary_ratio") {
            None => None,
            Some(_) => Some(index.positive("boundary_ratio", None)?),
        };
        if boundary_ratio.is_some() && low_noise.is_none() {
            let reason = "is set, and there is no folder `transformer_2`";
            return Err(index.error("boundary_ratio", reason));
        }
        let transformer = part(&parts.transformer, "transformer");
        let vae = part(&parts.vae, "vae");
        Ok(Self {
            path: folder.to_owned(),
            pipeline,
            boundary_ratio,
            expand_timesteps: index.flag("expand_timesteps", false)?,
            transformer: transformer_config(&transformer)?,
            autoencoder: autoencoder_config(&vae)?,
            transformers: (transformer, low_noise),
            vae,
            text_encoder: part(&parts.text_encoder, "text_encoder"),
            tokenizer: part(&parts.tokenizer, "tokenizer"),
            scheduler: Some(folder.join("scheduler/scheduler_config.json")),
        })
    }

    fn of_files(path: &Path, parts: &PartPaths) -> Result<Self, Error> {
        if let Some(other) = &parts.transformer {
            let reason = format!(
                "is a transformer, and so is `{}`: name one of them",
                other.display()
            );
            return Err(Error::file(path, reason));
        }
        let transformer = transformer_config(path)?;
        let part = |given: &Option<PathBuf>, name: &str| {
            let missing = || {
                let reason = format!(
                    "is the transformer of a video model alone: name its {name}, a single file or a folder of \
                     diffusers, too"
                );
                Error::file(path, reason)
            };
            given.clone().ok_or_else(missing)
        };
        let vae = part(&parts.vae, "autoencoder (`vae`)")?;
        let text_encoder = part(&parts.text_encoder, "text encoder (`text_encoder`)")?;
        let tokenizer = match &parts.tokenizer {
            Some(given) => given.clone(),
            None => text_encoder.clone(),
        };
        let autoencoder = autoencoder_config(&vae)?;
        if autoencoder.z_dim != transformer.out_channels {
            let reason = format!(
                "has latents of {} channels, and the transformer in `{}` has {}: it is the autoencoder of another \
                 model of Wan",
                autoencoder.z_dim,
                path.display(),
                transformer.out_channels
            );
            return Err(Error::file(&vae, reason));
        }
        let pipeline = match transformer.in_channels > transformer.out_channels {
            true => Pipeline::Image,
            false => Pipeline::Text,
        };
        // What a folder says, and files do not: as in the folders that are published.
        Ok(Self {
            path: path.to_owned(),
            pipeline,
            boundary_ratio: parts.transformer_2.as_ref().map(|_| match pipeline {
                Pipeline::Text => 0.875,
                Pipeline::Image => 0.9,
            }),
            expand_timesteps: autoencoder.z_dim == Z_DIM_2_2,
            transformer,
            autoencoder,
            transformers: (path.to_owned(), parts.transformer_2.clone()),
            vae,
            text_encoder,
            tokenizer,
            scheduler: None,
        })
    }

    /// The solver and the shift of its scheduler; of single files, those of the published folders.
    ///
    /// # Errors
    /// When the file is missing or damaged, or the scheduler is not known here.
    pub fn scheduler(&self) -> Result<(Scheduler, f64), Error> {
        let Some(path) = &self.scheduler else {
            let shift = if self.expand_timesteps { 5.0 } else { 3.0 };
            return Ok((Scheduler::UniPc, shift));
        };
        let object = Object::read(path)?;
        let class = object.text("_class_name")?.unwrap_or("none");
        let (solver, key) = match class {
            "UniPCMultistepScheduler" => (Scheduler::UniPc, "flow_shift"),
            "FlowMatchEulerDiscreteScheduler" => (Scheduler::Euler, "shift"),
            _ => {
                let reason = format!(
                    "is {class:?}: \"UniPCMultistepScheduler\" and \
                     \"FlowMatchEulerDiscreteScheduler\" are known here"
                );
                return Err(object.error("_class_name", reason));
            }
        };
        Ok((solver, object.positive(key, Some(1.0))?))
    }

    /// Whether there is a low-noise expert.
    pub fn has_low_noise(&self) -> bool {
        self.transformers.1.is_some()
    }

    /// Whether it always takes a picture: latents are not all of its input.
    pub fn needs_image(&self) -> bool {
        self.transformer.in_channels > self.transformer.out_channels
    }

    /// Whether the one transformer may be an expert of Wan 2.2 A14B, which looks like that of Wan 2.1 14B: a single
    /// file does not say.
    pub fn may_lack_an_expert(&self) -> bool {
        let is_14b = self.transformer.width() == 5120 && self.transformer.num_layers == 40;
        is_14b && !self.has_low_noise() && !self.path.is_dir()
    }

    /// The file or folder of a transformer; without a low-noise expert, of the only one.
    pub fn transformer_path(&self, expert: Expert) -> &Path {
        match (&self.transformers, expert) {
            ((_, Some(low)), Expert::Low) => low,
            ((high, _), _) => high,
        }
    }

    /// Sizes of a transformer.
    ///
    /// # Errors
    /// When its file is missing or damaged, or it is not known here.
    pub fn transformer_config(&self, expert: Expert) -> Result<TransformerConfig, Error> {
        transformer_config(self.transformer_path(expert))
    }

    /// The weights of its autoencoder.
    ///
    /// # Errors
    /// When a file is missing or damaged.
    pub fn autoencoder_weights(&self) -> Result<PartFile, Error> {
        PartFile::open(Part::Autoencoder, &self.vae)
    }

    /// The weights of its text encoder.
    ///
    /// # Errors
    /// When a file is missing or damaged.
    pub fn text_encoder_weights(&self) -> Result<PartFile, Error> {
        PartFile::open(Part::TextEncoder, &self.text_encoder)
    }

    /// Sizes of its text encoder, whose weights are in `tensors`.
    ///
    /// # Errors
    /// When its `config.json` is damaged or not known here, or a tensor is missing.
    pub fn text_encoder_config(
        &self,
        tensors: &dyn TensorSource,
    ) -> Result<TextEncoderConfig, Error> {
        match config_of(&self.text_encoder, "UMT5EncoderModel") {
            Some(config) => TextEncoderConfig::read(&config),
            None => TextEncoderConfig::of_shapes(tensors),
        }
    }

    /// Its tokenizer.
    ///
    /// # Errors
    /// When a file is missing or damaged.
    pub fn tokenizer(&self) -> Result<TextTokenizer, Error> {
        TextTokenizer::open(&self.tokenizer)
    }

    /// Its text encoder; on a GPU, block after block is brought there as it is needed.
    ///
    /// # Errors
    /// When a file is missing or damaged, or memory runs out.
    pub fn text_encoder(&self, device: Device, compute: Kind) -> Result<TextEncoder, Error> {
        let tensors = self.text_encoder_weights()?;
        let config = self.text_encoder_config(&tensors)?;
        let streaming = (device != Device::Cpu).then(|| Streaming {
            blocks: (0..usize::try_from(config.num_layers).unwrap_or(0)).collect(),
            options: SwapOptions::default(),
        });
        let mut placer = Placer::new(device, Policy::default())?;
        let mut source = FileWeights::new(&tensors, compute, &mut placer);
        let mut parameters = Parameters::default();
        let base = Base::Frozen(compute);
        let mut builder =
            Builder::new(&mut source, &mut parameters, compute, base).streamed(streaming);
        TextEncoder::new(&config, device, &mut builder)
    }

    /// Its autoencoder, in fp32.
    ///
    /// # Errors
    /// When a file is missing or damaged, or memory runs out.
    pub fn autoencoder(&self, device: Device) -> Result<Autoencoder, Error> {
        let tensors = self.autoencoder_weights()?;
        let mut placer = Placer::new(device, Policy::default())?;
        let mut source = FileWeights::new(&tensors, Kind::Float, &mut placer);
        let mut parameters = Parameters::default();
        let base = Base::Frozen(Kind::Float);
        let mut builder = Builder::new(&mut source, &mut parameters, Kind::Float, base);
        Autoencoder::new(&self.autoencoder, device, &mut builder)
    }

    /// One of its transformers, with LoRAs of these strengths: they become part of the weights, before those
    /// are put into fewer bits.
    ///
    /// # Errors
    /// When there is no such expert, a file is missing or damaged, a LoRA is for another model, or
    /// memory runs out.
    pub fn transformer(
        &self,
        expert: Expert,
        loras: Vec<(LoraFile, f64)>,
        options: TransformerOptions,
    ) -> Result<Transformer, Error> {
        let TransformerOptions {
            device,
            compute,
            quantization,
            streamed,
        } = options;
        let config = self.transformer_config(expert)?;
        let count = usize::try_from(config.num_layers).unwrap_or(0);
        let away = streamed.min(count);
        let streaming = (away > 0).then(|| Streaming {
            // Spread evenly.
            blocks: (0..away).map(|index| index * count / away).collect(),
            options: SwapOptions::default(),
        });
        let tensors = PartFile::open(Part::Transformer, self.transformer_path(expert))?;
        let tensors = WithLoras::new(Box::new(tensors), loras)?;
        let mut placer = Placer::new(device, Policy::default())?;
        let mut source = FileWeights::new(&tensors, compute, &mut placer);
        let mut parameters = Parameters::default();
        let base = Base::Frozen(compute);
        let mut builder = Builder::new(&mut source, &mut parameters, compute, base)
            .quantized(quantization)
            .streamed(streaming);
        Transformer::new(&config, device, &mut builder)
    }
}

/// Where and how the weights of a transformer are kept.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct TransformerOptions {
    /// Where it computes.
    pub device: Device,
    /// The type of matrix products, and of matrices that are not in fewer bits.
    pub compute: Kind,
    /// The matrices of its linear layers in fewer bits.
    pub quantization: Option<Quantization>,
    /// How many of its blocks wait in host memory, and come when they are used.
    pub streamed: usize,
}

impl TransformerOptions {
    /// All of it on `device`, in the type of its products.
    pub fn whole(device: Device, compute: Kind) -> Self {
        Self {
            device,
            compute,
            quantization: None,
            streamed: 0,
        }
    }
}

/// Channels of the latents of Wan 2.2 5B.
const Z_DIM_2_2: i64 = 48;

/// Whether `path` is a file of a transformer, under the names of diffusers or the original ones.
fn is_single_file(path: &Path) -> bool {
    let extension = path.extension().and_then(|extension| extension.to_str());
    if !matches!(extension, Some("safetensors" | "sft")) || !path.is_file() {
        return false;
    }
    let part = PartFile::open(Part::Transformer, path);
    part.is_ok_and(|part| part.shape("patch_embedding.weight").is_some())
}

/// The `config.json` of a part: that of its folder, or the one beside a single file if it is for this class.
fn config_of(part: &Path, class: &str) -> Option<PathBuf> {
    if part.is_dir() {
        return Some(part.join("config.json"));
    }
    let beside = part.parent()?.join("config.json");
    let object = Object::read(&beside).ok()?;
    let named = object.text("_class_name").ok().flatten();
    let listed = object
        .get("architectures")
        .and_then(|list| list.get(0)?.as_str());
    (named == Some(class) || listed == Some(class)).then_some(beside)
}

fn transformer_config(path: &Path) -> Result<TransformerConfig, Error> {
    match config_of(path, "WanTransformer3DModel") {
        Some(config) => TransformerConfig::read(&config),
        None => TransformerConfig::of_shapes(&PartFile::open(Part::Transformer, path)?),
    }
}

fn autoencoder_config(path: &Path) -> Result<AutoencoderConfig, Error> {
    match config_of(path, "AutoencoderKLWan") {
        Some(config) => AutoencoderConfig::read(&config),
        None => AutoencoderConfig::of_shapes(&PartFile::open(Part::Autoencoder, path)?),
    }
}
