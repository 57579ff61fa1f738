//! A complete model: a diffusers folder, or single files as used by ComfyUI.

use std::path::Path;

use tch::Device;

use super::transformer::{PATCH, Transformer, TransformerConfig};
use super::{ARCH, names};
use crate::Error;
use crate::diffusion::files::{PartFile, PartNames};
use crate::diffusion::parts::clip::{self, ClipConfig, ClipText, ClipTokenizer, Taken};
use crate::diffusion::parts::places::{Places, config_at, refuse_named};
use crate::diffusion::parts::schedule::{Scheduler, Shift};
use crate::diffusion::parts::stills::{Stills, Texts, Vae, answered_by_stills};
use crate::diffusion::parts::t5::{self, Family, TextEncoderConfig};
use crate::diffusion::parts::unigram::TextTokenizer;
use crate::diffusion::{self, Denoiser, Diffusion, Expert, PartPaths, TextEncoder, Tokenizer};
use crate::model::Builder;

/// The schedule of the published folders of models that are told the guidance, where no scheduler says it; the other's
/// levels are not shifted.
const SHIFT: Shift = Shift::BySize([(256.0, 0.5), (4096.0, 1.15)]);

/// The scale and the shift of latents, where no config says them.
pub(super) const FACTORS: (f64, f64) = (0.3611, 0.1159);

/// What single files may be that look like those of this model.
const KONTEXT: &str =
    "FLUX.1 Kontext, which changes pictures and is not supported: take FLUX.1-dev";

/// What the pipeline tells the model.
const GUIDANCE: f64 = 3.5;

/// The classes of a folder's parts.
const CLASSES: [(&str, &[&str]); 5] = [
    ("transformer", &["FluxTransformer2DModel"]),
    ("vae", &["AutoencoderKL"]),
    ("text_encoder", &["CLIPTextModel"]),
    ("text_encoder_2", &["T5EncoderModel"]),
    ("scheduler", &["FlowMatchEulerDiscreteScheduler"]),
];

/// Keys of an index without effect here: parts that pictures are not made with.
pub(super) const KEYS: [&str; 2] = ["image_encoder", "feature_extractor"];

/// The config of the T5 at `path`.
pub(super) fn t5_at(path: &Path) -> Result<TextEncoderConfig, Error> {
    let read = |path: &Path| TextEncoderConfig::read(path, Family::T5);
    let of_shapes = |file: &PartFile| TextEncoderConfig::of_shapes(file, Family::T5);
    config_at(path, &names::T5, read, of_shapes)
}

/// The text encoders.
#[derive(Debug, Clone)]
struct Encoders {
    clip: ClipConfig,
    t5: TextEncoderConfig,
}

impl Texts for Encoders {
    const NAMES: &'static [PartNames] = &[clip::TRANSFORMERS, names::T5];
}

/// A model whose parts are loaded on demand.
#[derive(Debug, Clone)]
pub struct Flux1 {
    config: TransformerConfig,
    stills: Stills<Encoders>,
    shift: Shift,
}

impl Flux1 {
    /// Reads the configs of the diffusers folder at `path`, or the shapes of single files: `path` is then the
    /// transformer, and `parts` names the others.
    ///
    /// # Errors
    /// If a file is missing or damaged, or its content is not supported.
    pub fn open(path: &Path, parts: &PartPaths) -> Result<Self, Error> {
        let parts = Places::find(&ARCH, path, parts, (&CLASSES, &KEYS))?;
        refuse_named(&parts.transformer, "kontext", KONTEXT)?;
        let config =
            parts.transformer(&ARCH, TransformerConfig::read, TransformerConfig::of_shapes)?;
        let (scheduler, shift) = match (path.is_dir(), config.guidance_embeds) {
            (true, _) => Scheduler::read_by_size(&path.join("scheduler/scheduler_config.json"))?,
            (false, true) => (Scheduler::EvenEuler, SHIFT),
            (false, false) => (Scheduler::EvenEuler, Shift::Fixed(1.0)),
        };
        let [first, second] = parts.text_encoders();
        let text = Encoders {
            clip: config_at(first, &clip::TRANSFORMERS, ClipConfig::read, |file| {
                ClipConfig::of_shapes(file)
            })?,
            t5: t5_at(second)?,
        };
        let mut model = Self {
            config,
            stills: Stills {
                arch: &ARCH,
                path: path.to_owned(),
                vae: Vae::kl(&parts, FACTORS)?,
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
        self.stills.check_channels(config.channels())?;
        let widths = [text.clip.hidden_size, text.t5.d_model];
        let wanted = [config.pooled_projection_dim, config.joint_attention_dim];
        let places = parts.text_encoders();
        for ((width, wanted), place) in widths.into_iter().zip(wanted).zip(places) {
            parts.check_width(place, width, wanted)?;
        }
        Ok(())
    }

    /// Tokens of a text for T5, which is cut or filled up to as many.
    fn text_tokens(&self) -> usize {
        match self.config.guidance_embeds {
            true => 512,
            false => 256,
        }
    }
}

/// Cuts a prompt, as it is, into the tokens of CLIP and of T5.
#[derive(Debug)]
struct Tokenizers(ClipTokenizer, TextTokenizer);

impl Tokenizer for Tokenizers {
    fn tokens(&self, text: &str) -> Result<Vec<Vec<u32>>, Error> {
        Ok(vec![self.0.tokens(text)?, self.1.tokens(text)?])
    }

    /// Those of T5: of a longer text, CLIP's vector is that of the beginning.
    fn length(&self, text: &str) -> Result<(usize, usize), Error> {
        diffusion::Tokenizer::length(&self.1, text)
    }
}

impl Diffusion for Flux1 {
    answered_by_stills!();

    fn shift(&self, tokens: i64, _: usize) -> Result<f64, Error> {
        Ok(self.shift.at(tokens))
    }

    /// The one that is not told the guidance was distilled to few steps.
    fn is_distilled(&self) -> bool {
        !self.config.guidance_embeds
    }

    fn guidance(&self) -> Option<f64> {
        self.config.guidance_embeds.then_some(GUIDANCE)
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
        let (folder, text) = (&self.stills.parts.tokenizer, &self.stills.text);
        let length = text.clip.max_position_embeddings as usize;
        let t5 = TextTokenizer::open(&folder.join("tokenizer_2"))?.without_cleaning();
        Ok(Box::new(Tokenizers(
            ClipTokenizer::open(&folder.join("tokenizer"), None, length)?,
            t5.filled(self.text_tokens(), self.text_tokens())?,
        )))
    }

    fn text_encoder(
        &self,
        number: usize,
        device: Device,
        builder: &mut Builder,
    ) -> Result<Box<dyn TextEncoder>, Error> {
        let Encoders { clip, t5 } = &self.stills.text;
        Ok(match number {
            0 => Box::new(ClipText::new("", clip, Taken::Vector, device, builder)?),
            _ => Box::new(t5::TextEncoder::new(t5, device, builder)?),
        })
    }

    fn text_width(&self) -> Result<i64, Error> {
        Ok(self.config.joint_attention_dim)
    }

    fn stays_fp32(&self, name: &str) -> bool {
        name.starts_with("time_text_embed.")
    }
}
