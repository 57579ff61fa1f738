//! A complete model: a diffusers folder, or single files as used by ComfyUI.

use std::path::Path;

use tch::Device;

use super::text::{PROCESSORS, PromptTokenizer, TextConfig};
use super::transformer::{PATCH, Transformer, TransformerConfig};
use super::{ARCH, EDIT};
use crate::Error;
use crate::diffusion::parts::places::{Places, refuse_named};
use crate::diffusion::parts::schedule::{Scheduler, Shift};
use crate::diffusion::parts::stills::{Stills, Vae, answered_by_stills};
use crate::diffusion::{
    Arch, Conditions, Controls, Denoiser, Diffusion, Expert, PartPaths, TextEncoder, Tokenizer,
};
use crate::model::Builder;

/// The schedule of the published folders, where no scheduler says it.
const SCHEDULE: (Scheduler, Shift) = (
    Scheduler::EvenEulerTo(0.02),
    Shift::BySize([(256.0, 0.5), (8192.0, 0.9)]),
);

/// The classes of a folder's parts.
const CLASSES: [(&str, &[&str]); 4] = [
    ("transformer", &["QwenImageTransformer2DModel"]),
    ("vae", &["AutoencoderKLQwenImage"]),
    ("scheduler", &["FlowMatchEulerDiscreteScheduler"]),
    ("processor", PROCESSORS),
];

/// What a transformer may be that looks like that of Qwen-Image.
const NAMED_EDIT: &str =
    "Qwen-Image-Edit, of which 2509 and 2511 are supported: such a file has the number in its name";

/// How control pictures are taken.
const CONTROLS: Controls = Controls {
    least: 1,
    most: 9,
    area: 1024 * 1024,
    step: 32,
    is_cut: false,
    in_text: true,
};

/// A model whose parts are loaded on demand.
#[derive(Debug, Clone)]
pub struct QwenImage {
    config: TransformerConfig,
    stills: Stills<TextConfig>,
    shift: Shift,
}

impl QwenImage {
    /// Reads the configs of the diffusers folder at `path`, or the shapes of single files: `path` is then the
    /// transformer, and `parts` names the others.
    ///
    /// # Errors
    /// If a file is missing or damaged, or its content is not supported.
    pub fn open(path: &Path, parts: &PartPaths) -> Result<Self, Error> {
        let parts = Places::find(&ARCH, path, parts, (&CLASSES[..3], &[]))?;
        refuse_named(&parts.transformer, "edit", NAMED_EDIT)?;
        let text = TextConfig::open(&parts, None)?;
        Self::of(&ARCH, path, parts, text)
    }

    /// The same for a model that changes pictures, Edit-2509 or Edit-2511.
    ///
    /// # Errors
    /// As [`QwenImage::open`].
    pub fn open_edit(path: &Path, parts: &PartPaths) -> Result<Self, Error> {
        let parts = Places::find(&EDIT, path, parts, (&CLASSES, &[]))?;
        let text = TextConfig::open(&parts, Some(&path.join("processor")))?;
        Self::of(&EDIT, path, parts, text)
    }

    fn of(
        arch: &'static Arch,
        path: &Path,
        parts: Places,
        text: TextConfig,
    ) -> Result<Self, Error> {
        let (scheduler, shift) = match path.is_dir() {
            true => Scheduler::read_by_size(&path.join("scheduler/scheduler_config.json"))?,
            false => SCHEDULE,
        };
        let mut model = Self {
            config: parts.transformer(
                arch,
                TransformerConfig::read,
                TransformerConfig::of_shapes,
            )?,
            stills: Stills {
                arch,
                path: path.to_owned(),
                vae: Vae::causal(&parts)?,
                text,
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
        if text.decoder.hidden_size != config.joint_attention_dim {
            let reason = format!(
                "has states of width {}, and the transformer in `{}` takes a width of {}",
                text.decoder.hidden_size,
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
        self.stills.text.encoder(device, builder)
    }

    fn text_width(&self) -> Result<i64, Error> {
        Ok(self.stills.text.decoder.hidden_size)
    }

    fn controls(&self) -> Option<Controls> {
        self.stills.text.sight.as_ref().map(|_| CONTROLS)
    }

    /// Texts are padded with zeros, which are not seen, and their lengths kept beside them.
    fn collate(&self, rows: &[Conditions]) -> Result<Conditions, Error> {
        Conditions::padded(rows, |longest| longest)
    }

    fn stays_fp32(&self, name: &str) -> bool {
        name.starts_with("time_text_embed.")
    }
}
