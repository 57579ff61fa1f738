//! Chroma, Chroma1-HD and Base: the blocks of FLUX.1 without CLIP and guidance, with a network in place of the layers that
//! modulate them.
//!
//! A text is masked behind its first token of padding: that one is seen by the transformer, but not by T5's other tokens.
//! diffusers' pipeline means to do the same, but adds its mask to the scores, where it hides nothing.

#[cfg(test)]
mod tests;

use std::path::Path;

use tch::Device;

use super::model::{FACTORS, KEYS, t5_at};
use super::transformer::{PATCH, Transformer, TransformerConfig};
use super::{TARGETS, names};
use crate::Error;
use crate::diffusion::files::PartNames;
use crate::diffusion::lora::LoraForm;
use crate::diffusion::parts::places::Places;
use crate::diffusion::parts::schedule::{Scheduler, Shift};
use crate::diffusion::parts::stills::{Stills, Texts, Vae, answered_by_stills};
use crate::diffusion::parts::t5::{TEXT_ROWS, TextEncoder, TextEncoderConfig};
use crate::diffusion::parts::unigram::TextTokenizer;
use crate::diffusion::{
    self, Arch, Companions, Conditions, Denoiser, Diffusion, Expert, LoraFiles, PartPaths,
    Tokenizer,
};
use crate::formats::TensorSource;
use crate::model::Builder;

/// What is known of Chroma.
pub static ARCH: Arch = Arch {
    name: "chroma",
    title: "Chroma",
    pipelines: &["ChromaPipeline"],
    example: "lodestones/Chroma1-HD",
    folders: &[
        "transformer",
        "vae",
        "text_encoder",
        "tokenizer",
        "scheduler",
    ],
    training_shift: 1.0,
    denoiser: names::CHROMA,
    is_denoiser: |file| {
        let input = "distilled_guidance_layer.in_proj.weight";
        file.shape(input).is_some()
    },
    open: |path, parts| Ok(Box::new(Chroma::open(path, parts)?)),
    lists: &[names::CHROMA_DOUBLE, names::CHROMA_SINGLE],
    others: names::CHROMA_OTHERS,
    lora: LoraFiles {
        targets: TARGETS,
        network: "networks.lora_flux",
        architecture: "chroma/lora",
        kohya: true,
        complete: LoraForm::Diffusers,
        partial: LoraForm::Diffusers,
        text: &[],
    },
    caches: None,
    companions: Companions {
        text_encoder: &["t5xxl"],
        vae: &["ae"],
        tokenizers: &[("", "google/t5-v1_1-xxl")],
        ..Companions::NONE
    },
};

/// The schedule that ComfyUI has, where no scheduler says it.
const SCHEDULE: (Scheduler, Shift) = (Scheduler::EvenEuler, Shift::Fixed(1.0));

/// The classes of a folder's parts.
const CLASSES: [(&str, &[&str]); 4] = [
    ("transformer", &["ChromaTransformer2DModel"]),
    ("vae", &["AutoencoderKL"]),
    ("text_encoder", &["T5EncoderModel"]),
    ("scheduler", &["FlowMatchEulerDiscreteScheduler"]),
];

impl Texts for TextEncoderConfig {
    const NAMES: &'static [PartNames] = &[names::T5];
}

/// A model whose parts are loaded on demand.
#[derive(Debug, Clone)]
pub struct Chroma {
    config: TransformerConfig,
    stills: Stills<TextEncoderConfig>,
    shift: Shift,
}

impl Chroma {
    /// Reads the configs of the diffusers folder at `path`, or the shapes of single files: `path` is then the
    /// transformer, and `parts` names the others.
    ///
    /// # Errors
    /// If a file is missing or damaged, or its content is not supported.
    pub fn open(path: &Path, parts: &PartPaths) -> Result<Self, Error> {
        let parts = Places::find(&ARCH, path, parts, (&CLASSES, &KEYS))?;
        let (read, of_shapes) = (
            TransformerConfig::read_chroma,
            TransformerConfig::chroma_of_shapes,
        );
        let (scheduler, shift) = match path.is_dir() {
            true => Scheduler::read_by_size(&path.join("scheduler/scheduler_config.json"))?,
            false => SCHEDULE,
        };
        let mut model = Self {
            config: parts.transformer(&ARCH, read, of_shapes)?,
            stills: Stills {
                arch: &ARCH,
                path: path.to_owned(),
                vae: Vae::kl(&parts, FACTORS)?,
                text: t5_at(&parts.text_encoder)?,
                parts,
                patch: PATCH,
                scheduler,
                shift: 1.0,
            },
            shift,
        };
        model.stills.shift = shift.at(model.stills.tokens());
        let (config, Stills { text, parts, .. }) = (&model.config, &model.stills);
        model.stills.check_channels(config.channels())?;
        parts.check_width(
            &parts.text_encoder,
            text.d_model,
            config.joint_attention_dim,
        )?;
        Ok(model)
    }

    /// Cuts a prompt, as it is, into tokens, with one of padding.
    fn cutter(&self) -> Result<TextTokenizer, Error> {
        let tokenizer = TextTokenizer::open(&self.stills.parts.tokenizer)?;
        tokenizer.without_cleaning().filled(TEXT_ROWS as usize, 1)
    }
}

impl Diffusion for Chroma {
    answered_by_stills!();

    fn shift(&self, tokens: i64, _: usize) -> Result<f64, Error> {
        Ok(self.shift.at(tokens))
    }

    fn denoiser(
        &self,
        _: Expert,
        device: Device,
        builder: &mut Builder,
    ) -> Result<Box<dyn Denoiser>, Error> {
        Ok(Box::new(Transformer::new(&self.config, device, builder)?))
    }

    fn tokenizer(&self) -> Result<Box<dyn Tokenizer>, Error> {
        Ok(Box::new(self.cutter()?))
    }

    fn text_encoder(
        &self,
        _: usize,
        device: Device,
        builder: &mut Builder,
    ) -> Result<Box<dyn diffusion::TextEncoder>, Error> {
        let encoder = TextEncoder::new(&self.stills.text, device, builder)?;
        Ok(Box::new(encoder.hiding(self.cutter()?.filler())))
    }

    fn text_width(&self) -> Result<i64, Error> {
        Ok(self.config.joint_attention_dim)
    }

    /// Texts are padded with zeros, which are not seen, and their lengths kept beside them.
    fn collate(&self, rows: &[Conditions]) -> Result<Conditions, Error> {
        Conditions::padded(rows, |longest| longest)
    }

    fn is_quantized(&self, name: &str) -> bool {
        !name.starts_with(names::APPROXIMATOR)
    }
}
