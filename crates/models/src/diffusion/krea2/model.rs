//! A complete model: a diffusers folder, or single files as used by ComfyUI.

use std::path::Path;

use serde_json::json;
use tch::Device;

use super::ARCH;
use super::transformer::{PATCH, Transformer, TransformerConfig};
use crate::Error;
use crate::diffusion::files::PartFile;
use crate::diffusion::parts::decoder::{self, TextDecoder};
use crate::diffusion::parts::places::{Places, config_at, refuse_named};
use crate::diffusion::parts::schedule::{Scheduler, Shift};
use crate::diffusion::parts::stills::{Stills, Vae, answered_by_stills};
use crate::diffusion::parts::vision_language::{
    LONGEST, PromptTokenizer, TOKENS_BEFORE, VisionLanguage,
};
use crate::diffusion::{
    Conditions, Denoiser, Diffusion, Expert, PartPaths, TextEncoder, Tokenizer,
};
use crate::language::DecoderConfig;
use crate::model::Builder;

/// The schedule of the published folders, where no scheduler says it.
const SCHEDULE: (Scheduler, Shift) = (
    Scheduler::EvenEuler,
    Shift::BySize([(256.0, 0.5), (6400.0, 1.15)]),
);

/// The power of e by which levels of the distilled model are shifted, whatever the size.
const DISTILLED_SHIFT: f64 = 1.15;

/// The states of the language model that are taken, side by side, unless a folder says others.
const STATES: [usize; 12] = [2, 5, 8, 11, 14, 17, 20, 23, 26, 29, 32, 35];

/// The classes of a folder's parts.
const CLASSES: [(&str, &[&str]); 3] = [
    ("transformer", &["Krea2Transformer2DModel"]),
    ("vae", &["AutoencoderKLQwenImage"]),
    ("scheduler", &["FlowMatchEulerDiscreteScheduler"]),
];

/// Keys of `model_index.json` beside the parts.
const KEYS: [&str; 3] = ["is_distilled", "patch_size", "text_encoder_select_layers"];

/// The text encoder.
const TEXT: VisionLanguage = VisionLanguage {
    title: "Qwen3-VL",
    types: ["qwen3_vl", "qwen3_vl_text"],
    family: "qwen3",
    keys: &["head_dim", "attention_bias"],
};

/// What single files of text encoders may be that look like it.
const NOT_TEXT: &str = "Qwen3-4B, which has other positions: take that of Krea 2, Qwen3-VL-4B";

/// A model whose parts are loaded on demand.
#[derive(Debug, Clone)]
pub struct Krea2 {
    config: TransformerConfig,
    stills: Stills,
    shift: Shift,
    states: Vec<usize>,
    is_distilled: bool,
}

impl Krea2 {
    /// Reads the configs of the diffusers folder at `path`, or the shapes of single files: `path` is then the
    /// transformer, and `parts` names the others. A file is that of the distilled model if its name says so.
    ///
    /// # Errors
    /// If a file is missing or damaged, or its content is not supported.
    pub fn open(path: &Path, parts: &PartPaths) -> Result<Self, Error> {
        let parts = Places::find(&ARCH, path, parts, (&CLASSES, &KEYS))?;
        refuse_named(&parts.text_encoder, "qwen_3_4b", NOT_TEXT)?;
        let (mut is_distilled, mut states) = (false, STATES.to_vec());
        let (scheduler, mut shift) = match &parts.index {
            Some(index) => {
                let [distilled, patch, selected] = KEYS;
                index.require(patch, &json!(PATCH), &json!(PATCH))?;
                is_distilled = index.flag(distilled, false)?;
                if let Some(own) = index.integers(selected, 0..=1 << 10)? {
                    states = own.into_iter().map(|state| state as usize).collect();
                }
                Scheduler::read_by_size(&path.join("scheduler/scheduler_config.json"))?
            }
            None => SCHEDULE,
        };
        if parts.transformer.is_file() {
            let name = parts.transformer.file_name().unwrap_or_default();
            is_distilled = name.to_string_lossy().to_lowercase().contains("turbo");
        }
        if is_distilled && matches!(shift, Shift::BySize(_)) {
            shift = Shift::Fixed(DISTILLED_SHIFT.exp());
        }
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
                text: config_at(
                    text,
                    &decoder::NAMES,
                    |path| TEXT.read(path),
                    text_of_shapes,
                )?,
                parts,
                patch: PATCH,
                scheduler,
                shift: 1.0,
            },
            shift,
            states,
            is_distilled,
        };
        model.stills.shift = shift.at(model.stills.tokens());
        model.check_parts()?;
        Ok(model)
    }

    /// Fails if the parts are those of different models.
    fn check_parts(&self) -> Result<(), Error> {
        let (config, Stills { text, parts, .. }) = (&self.config, &self.stills);
        self.stills.check_channels(config.channels())?;
        let own = &config.dimensions;
        let (count, width) = (own.num_text_layers, own.text_hidden_dim);
        let (found, layers) = (text.hidden_size, text.num_hidden_layers);
        let last = self.states.iter().max().copied().unwrap_or(0) as i64;
        if self.states.len() as i64 == count && found == width && last < layers {
            return Ok(());
        }
        let reason = format!(
            "has {layers} layers of width {found}, of which the states {:?} are taken, and the transformer in `{}` takes \
             {count} of width {width}",
            self.states,
            parts.transformer.display()
        );
        Err(Error::file(&parts.text_encoder, reason))
    }
}

/// The text encoder's config from the shapes in its file; what they do not tell is as published.
pub(super) fn text_of_shapes(file: &PartFile) -> Result<DecoderConfig, Error> {
    let mut config = DecoderConfig::of_shapes(file)?;
    config.rope.theta = 5e6;
    Ok(config)
}

impl Diffusion for Krea2 {
    answered_by_stills!();

    fn shift(&self, tokens: i64, _: usize) -> Result<f64, Error> {
        Ok(self.shift.at(tokens))
    }

    fn is_distilled(&self) -> bool {
        self.is_distilled
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
        let (config, states) = (&self.stills.text, &self.states);
        let encoder = TextDecoder::new(config, states, LONGEST, device, builder)?;
        Ok(Box::new(encoder.behind(TOKENS_BEFORE)))
    }

    fn text_width(&self) -> Result<i64, Error> {
        Ok(self.config.text_width())
    }

    /// Texts are padded with zeros, which are not seen, and their lengths kept beside them.
    fn collate(&self, rows: &[Conditions]) -> Result<Conditions, Error> {
        Conditions::padded(rows, |longest| longest)
    }

    fn stays_fp32(&self, name: &str) -> bool {
        name.starts_with("time_embed.") || name.ends_with("scale_shift_table")
    }
}
