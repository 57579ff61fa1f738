//! A complete model: a diffusers folder, or single files as used by ComfyUI.

use std::path::Path;

use tch::Device;

use super::ARCH;
use super::text::{self, LONGEST, PromptTokenizer, TOKENS_BEFORE};
use super::transformer::{PATCH, Transformer, TransformerConfig};
use crate::Error;
use crate::diffusion::parts::decoder::{self, TextDecoder};
use crate::diffusion::parts::places::{Places, config_at, refuse_named};
use crate::diffusion::parts::schedule::{Scheduler, Shift};
use crate::diffusion::parts::stills::{Stills, Vae, answered_by_stills};
use crate::diffusion::{
    Conditions, Denoiser, Diffusion, Expert, PartPaths, TextEncoder, Tokenizer,
};
use crate::model::Builder;

/// The schedule of the published folders, where no scheduler says it.
const SCHEDULE: (Scheduler, Shift) = (
    Scheduler::EvenEulerTo(0.02),
    Shift::BySize([(256.0, 0.5), (8192.0, 0.9)]),
);

/// The classes of a folder's parts.
const CLASSES: [(&str, &[&str]); 3] = [
    ("transformer", &["QwenImageTransformer2DModel"]),
    ("vae", &["AutoencoderKLQwenImage"]),
    ("scheduler", &["FlowMatchEulerDiscreteScheduler"]),
];

/// What single files may be that look like those of this model.
const EDIT: &str = "Qwen-Image-Edit, which changes pictures and is not supported: take Qwen-Image or Qwen-Image-2512";

/// A model whose parts are loaded on demand.
#[derive(Debug, Clone)]
pub struct QwenImage {
    config: TransformerConfig,
    stills: Stills,
    shift: Shift,
}

impl QwenImage {
    /// Reads the configs of the diffusers folder at `path`, or the shapes of single files: `path` is then the
    /// transformer, and `parts` names the others.
    ///
    /// # Errors
    /// If a file is missing or damaged, or its content is not supported.
    pub fn open(path: &Path, parts: &PartPaths) -> Result<Self, Error> {
        let parts = Places::find(&ARCH, path, parts, (&CLASSES, &[]))?;
        refuse_named(&parts.transformer, "edit", EDIT)?;
        let (scheduler, shift) = match path.is_dir() {
            true => Scheduler::read_by_size(&path.join("scheduler/scheduler_config.json"))?,
            false => SCHEDULE,
        };
        let text = &parts.text_encoder;
        let mut model = Self {
            config: parts.transformer(
                &ARCH,
                TransformerConfig::read,
                TransformerConfig::of_shapes,
            )?,
            stills: Stills {
                arch: &ARCH,
                path: path.to_owned(),
                vae: Vae::causal(&parts)?,
                text: config_at(text, &decoder::NAMES, text::read, text::of_shapes)?,
                parts,
                patch: PATCH,
                scheduler,
                shift: 1.0,
            },
            shift,
        };
        model.stills.shift = shift.at(model.stills.tokens());
        model.check_parts()?;
        Ok(model)
    }

    /// Fails if the parts are those of different models.
    fn check_parts(&self) -> Result<(), Error> {
        let (config, Stills { text, parts, .. }) = (&self.config, &self.stills);
        self.stills.check_channels(config.out_channels)?;
        if text.hidden_size != config.joint_attention_dim {
            let reason = format!(
                "has states of width {}, and the transformer in `{}` takes a width of {}",
                text.hidden_size,
                parts.transformer.display(),
                config.joint_attention_dim
            );
            return Err(Error::file(&parts.text_encoder, reason));
        }
        Ok(())
    }
}

impl Diffusion for QwenImage {
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
        let (folder, config) = (&self.stills.parts.tokenizer, &self.stills.text);
        Ok(Box::new(PromptTokenizer::open(folder, config)?))
    }

    fn text_encoder(
        &self,
        _: usize,
        device: Device,
        builder: &mut Builder,
    ) -> Result<Box<dyn TextEncoder>, Error> {
        let encoder = TextDecoder::whole(&self.stills.text, LONGEST, device, builder)?;
        Ok(Box::new(encoder.behind(TOKENS_BEFORE)))
    }

    fn text_width(&self) -> Result<i64, Error> {
        Ok(self.stills.text.hidden_size)
    }

    /// Texts are padded with zeros, which are not seen, and their lengths kept beside them.
    fn collate(&self, rows: &[Conditions]) -> Result<Conditions, Error> {
        Conditions::padded(rows, |longest| longest)
    }

    fn stays_fp32(&self, name: &str) -> bool {
        name.starts_with("time_text_embed.")
    }
}
