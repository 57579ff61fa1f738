//! A whole model in a folder of diffusers: `model_index.json` and the folders of its parts.

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
use crate::json::Object;
use crate::model::{Base, Builder, FileWeights, Streaming};
use crate::{Error, Parameters};

const INDEX: &str = "model_index.json";

/// A model of which the parts are loaded when they are needed.
#[derive(Debug)]
pub struct WanFolder {
    folder: PathBuf,
    /// Where the low-noise expert begins, as a fraction of the highest time; `None` with one model.
    pub boundary_ratio: Option<f64>,
    /// Whether a given first frame takes the place of latents and has a time of its own (TI2V-5B).
    pub expand_timesteps: bool,
    /// Whether there is a low-noise expert.
    pub has_low_noise: bool,
    /// The solver of its scheduler.
    pub scheduler: Scheduler,
    /// The shift of its scheduler.
    pub flow_shift: f64,
    /// Sizes of the transformers.
    pub transformer: TransformerConfig,
    /// Sizes of the autoencoder.
    pub autoencoder: AutoencoderConfig,
}

impl WanFolder {
    /// Whether `folder` holds a model of diffusers rather than a language model.
    pub fn is_one(folder: &Path) -> bool {
        folder.join(INDEX).is_file()
    }

    /// Reads what the folder says of itself.
    ///
    /// # Errors
    /// When a file is missing or damaged, or describes what is not known here.
    pub fn open(folder: &Path) -> Result<Self, Error> {
        let index = Object::read(&folder.join(INDEX))?;
        let class = index.text("_class_name")?.unwrap_or("none");
        if !["WanPipeline", "WanImageToVideoPipeline"].contains(&class) {
            let reason = format!(
                "is {class:?}: \"WanPipeline\" and \"WanImageToVideoPipeline\" are known here"
            );
            return Err(index.error("_class_name", reason));
        }
        let part = |name: &str| folder.join(name);
        let has_low_noise = part("transformer_2").is_dir();
        let boundary_ratio = match index.get("boundary_ratio") {
            None => None,
            Some(_) => Some(index.positive("boundary_ratio", None)?),
        };
        if boundary_ratio.is_some() != has_low_noise {
            let reason = match has_low_noise {
                true => "is missing, and there is a folder `transformer_2`",
                false => "is set, and there is no folder `transformer_2`",
            };
            return Err(index.error("boundary_ratio", reason));
        }
        let scheduler = Object::read(&folder.join("scheduler/scheduler_config.json"))?;
        let class = scheduler.text("_class_name")?.unwrap_or("none");
        let (solver, key) = match class {
            "UniPCMultistepScheduler" => (Scheduler::UniPc, "flow_shift"),
            "FlowMatchEulerDiscreteScheduler" => (Scheduler::Euler, "shift"),
            _ => {
                let reason = format!(
                    "is {class:?}: \"UniPCMultistepScheduler\" and \
                     \"FlowMatchEulerDiscreteScheduler\" are known here"
                );
                return Err(scheduler.error("_class_name", reason));
            }
        };
        Ok(Self {
            boundary_ratio,
            expand_timesteps: index.flag("expand_timesteps", false)?,
            has_low_noise,
            scheduler: solver,
            flow_shift: scheduler.positive(key, Some(1.0))?,
            transformer: TransformerConfig::read(&folder.join("transformer/config.json"))?,
            autoencoder: AutoencoderConfig::read(&folder.join("vae/config.json"))?,
            folder: folder.to_owned(),
        })
    }

    /// Whether it always takes a picture: latents are not all of its input.
    pub fn needs_image(&self) -> bool {
        self.transformer.in_channels > self.transformer.out_channels
    }

    /// Its tokenizer.
    ///
    /// # Errors
    /// When a file is missing or damaged.
    pub fn tokenizer(&self) -> Result<TextTokenizer, Error> {
        TextTokenizer::open(&self.folder.join("tokenizer"))
    }

    /// Its text encoder; on a GPU, block after block is brought there as it is needed.
    ///
    /// # Errors
    /// When a file is missing or damaged, or memory runs out.
    pub fn text_encoder(&self, device: Device, compute: Kind) -> Result<TextEncoder, Error> {
        let folder = self.folder.join("text_encoder");
        let config = TextEncoderConfig::read(&folder.join("config.json"))?;
        let tensors = PartFile::open(Part::TextEncoder, &folder)?;
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
        let tensors = PartFile::open(Part::Autoencoder, &self.folder.join("vae"))?;
        let mut placer = Placer::new(device, Policy::default())?;
        let mut source = FileWeights::new(&tensors, Kind::Float, &mut placer);
        let mut parameters = Parameters::default();
        let base = Base::Frozen(Kind::Float);
        let mut builder = Builder::new(&mut source, &mut parameters, Kind::Float, base);
        Autoencoder::new(&self.autoencoder, device, &mut builder)
    }

    /// One of its transformers, with LoRAs of these strengths.
    ///
    /// # Errors
    /// When there is no such expert, a file is missing or damaged, a LoRA is for another model, or
    /// memory runs out.
    pub fn transformer(
        &self,
        expert: Expert,
        loras: Vec<(LoraFile, f64)>,
        device: Device,
        compute: Kind,
    ) -> Result<Transformer, Error> {
        let name = match expert {
            Expert::High => "transformer",
            Expert::Low => "transformer_2",
        };
        let folder = self.folder.join(name);
        let config = TransformerConfig::read(&folder.join("config.json"))?;
        let tensors = WithLoras::new(Box::new(PartFile::open(Part::Transformer, &folder)?), loras)?;
        let mut placer = Placer::new(device, Policy::default())?;
        let mut source = FileWeights::new(&tensors, compute, &mut placer);
        let mut parameters = Parameters::default();
        let base = Base::Frozen(compute);
        let mut builder = Builder::new(&mut source, &mut parameters, compute, base);
        Transformer::new(&config, device, &mut builder)
    }
}
