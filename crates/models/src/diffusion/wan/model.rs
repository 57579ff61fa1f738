//! A complete model: a diffusers folder, or single files as used by ComfyUI.

use std::path::{Path, PathBuf};

use placement::swap::SwapOptions;
use placement::{Placer, Policy};
use tch::{Device, Kind};

use super::autoencoder::{Autoencoder, AutoencoderConfig};
use super::files::{Part, PartFile};
use super::transformer::{Transformer, TransformerConfig};
use crate::diffusion::lora::{Expert, LoraFile, WithLoras};
use crate::diffusion::parts::schedule::Scheduler;
use crate::diffusion::parts::t5::{TextEncoder, TextEncoderConfig};
use crate::diffusion::parts::unigram::TextTokenizer;
use crate::formats::TensorSource;
use crate::json::Object;
use crate::model::{Base, Builder, FileWeights, Streaming};
use crate::quant::Quantization;
use crate::{Error, Parameters};

const INDEX: &str = "model_index.json";

/// Parts outside the model's folder: each a diffusers folder or a single file.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PartPaths {
    /// The transformer, or the high-noise expert.
    pub transformer: Option<PathBuf>,
    /// The low-noise expert.
    pub transformer_2: Option<PathBuf>,
    /// The autoencoder.
    pub vae: Option<PathBuf>,
    /// The text encoder.
    pub text_encoder: Option<PathBuf>,
    /// The tokenizer: a folder, `tokenizer.json` or `spiece.model`. If `None`, that of the folder, or the one
    /// inside a single text encoder file.
    pub tokenizer: Option<PathBuf>,
}

/// What videos are generated from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pipeline {
    /// Text.
    Text,
    /// Text and a first frame.
    Image,
}

/// A model whose parts are loaded on demand.
#[derive(Debug, Clone)]
pub struct WanModel {
    /// The folder, or the transformer's file.
    pub path: PathBuf,
    /// What it generates videos from.
    pub pipeline: Pipeline,
    /// Where the low-noise expert takes over, as a fraction of the highest timestep, if the model sets it.
    pub boundary_ratio: Option<f64>,
    /// Whether a given first frame replaces the first latents and has its own timestep (TI2V-5B).
    pub expand_timesteps: bool,
    /// Dimensions of the transformers.
    pub transformer: TransformerConfig,
    /// Dimensions of the autoencoder.
    pub autoencoder: AutoencoderConfig,
    transformers: (PathBuf, Option<PathBuf>),
    vae: PathBuf,
    text_encoder: PathBuf,
    tokenizer: PathBuf,
    /// The scheduler's config, if the model is a folder.
    scheduler: Option<PathBuf>,
}

impl WanModel {
    /// Whether `path` is a video model rather than a language model: a diffusers folder, or a single
    /// transformer file.
    pub fn is_at(path: &Path) -> bool {
        path.join(INDEX).is_file() || is_single_file(path)
    }

    /// Reads the configs of the diffusers folder at `path`, or the shapes of single files: `path` is then the
    /// (high-noise) transformer, and `parts` names the others.
    ///
    /// # Errors
    /// If a file is missing or damaged, or its content is not supported.
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
                    "is {class:?}: only \"WanPipeline\" and \"WanImageToVideoPipeline\" are supported"
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
            let reason = "is set, but there is no folder `transformer_2`";
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
                "is a transformer, and so is `{}`: give only one of them",
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
        // Files lack these settings; take those of the published folders.
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

    /// Solver and shift of its scheduler; for single files, those of the published folders.
    ///
    /// # Errors
    /// If the file is missing or damaged, or the scheduler is not supported.
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
                    "is {class:?}: only \"UniPCMultistepScheduler\" and \
                     \"FlowMatchEulerDiscreteScheduler\" are supported"
                );
                return Err(object.error("_class_name", reason));
            }
        };
        Ok((solver, object.positive(key, Some(1.0))?))
    }

    /// Whether it has a low-noise expert.
    pub fn has_low_noise(&self) -> bool {
        self.transformers.1.is_some()
    }

    /// Whether it always needs an image, because its input has more channels than latents.
    pub fn needs_image(&self) -> bool {
        self.transformer.in_channels > self.transformer.out_channels
    }

    /// Whether its only transformer may be one expert of Wan 2.2 A14B, which a single file cannot tell from
    /// Wan 2.1 14B.
    pub fn may_lack_an_expert(&self) -> bool {
        let is_14b = self.transformer.width() == 5120 && self.transformer.num_layers == 40;
        is_14b && !self.has_low_noise() && !self.path.is_dir()
    }

    /// File or folder of a transformer; the only one if there is no low-noise expert.
    pub fn transformer_path(&self, expert: Expert) -> &Path {
        match (&self.transformers, expert) {
            ((_, Some(low)), Expert::Low) => low,
            ((high, _), _) => high,
        }
    }

    /// Dimensions of a transformer.
    ///
    /// # Errors
    /// If its file is missing or damaged, or it is not supported.
    pub fn transformer_config(&self, expert: Expert) -> Result<TransformerConfig, Error> {
        transformer_config(self.transformer_path(expert))
    }

    /// The autoencoder's weights.
    ///
    /// # Errors
    /// If a file is missing or damaged.
    pub fn autoencoder_weights(&self) -> Result<PartFile, Error> {
        PartFile::open(Part::Autoencoder, &self.vae)
    }

    /// The text encoder's weights.
    ///
    /// # Errors
    /// If a file is missing or damaged.
    pub fn text_encoder_weights(&self) -> Result<PartFile, Error> {
        PartFile::open(Part::TextEncoder, &self.text_encoder)
    }

    /// Dimensions of the text encoder, whose weights are in `tensors`.
    ///
    /// # Errors
    /// If its `config.json` is damaged or not supported, or a tensor is missing.
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
    /// If a file is missing or damaged.
    pub fn tokenizer(&self) -> Result<TextTokenizer, Error> {
        TextTokenizer::open(&self.tokenizer)
    }

    /// The text encoder; on a GPU, its blocks are copied there one at a time as needed.
    ///
    /// # Errors
    /// If a file is missing or damaged, or memory runs out.
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
    /// If a file is missing or damaged, or memory runs out.
    pub fn autoencoder(&self, device: Device) -> Result<Autoencoder, Error> {
        let tensors = self.autoencoder_weights()?;
        let mut placer = Placer::new(device, Policy::default())?;
        let mut source = FileWeights::new(&tensors, Kind::Float, &mut placer);
        let mut parameters = Parameters::default();
        let base = Base::Frozen(Kind::Float);
        let mut builder = Builder::new(&mut source, &mut parameters, Kind::Float, base);
        Autoencoder::new(&self.autoencoder, device, &mut builder)
    }

    /// A transformer with LoRAs of the given strengths, which are merged into the weights before
    /// quantisation.
    ///
    /// # Errors
    /// If there is no such expert, a file is missing or damaged, a LoRA is for another model, or memory runs
    /// out.
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
            // Evenly spaced.
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

/// How the weights of a transformer are stored.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct TransformerOptions {
    /// Device of the computation.
    pub device: Device,
    /// Type of the matrix products, and of matrices that are not quantised.
    pub compute: Kind,
    /// Quantisation of the linear layers' matrices.
    pub quantization: Option<Quantization>,
    /// Number of blocks that are kept in host memory and streamed to the device.
    pub streamed: usize,
}

impl TransformerOptions {
    /// Everything on `device`, not quantised.
    pub fn whole(device: Device, compute: Kind) -> Self {
        Self {
            device,
            compute,
            quantization: None,
            streamed: 0,
        }
    }
}

/// Latent channels of Wan 2.2 5B.
const Z_DIM_2_2: i64 = 48;

/// Whether `path` is a transformer file, with diffusers' or the original names.
fn is_single_file(path: &Path) -> bool {
    let extension = path.extension().and_then(|extension| extension.to_str());
    if !matches!(extension, Some("safetensors" | "sft")) || !path.is_file() {
        return false;
    }
    let part = PartFile::open(Part::Transformer, path);
    part.is_ok_and(|part| part.shape("patch_embedding.weight").is_some())
}

/// The `config.json` of a part: in its folder, or beside a single file if it is for this class.
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
