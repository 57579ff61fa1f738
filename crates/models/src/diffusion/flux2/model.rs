//! A complete model: a diffusers folder, or single files as used by ComfyUI.

use std::path::Path;

use serde_json::json;
use tch::Device;

use super::ARCH;
use super::transformer::{Transformer, TransformerConfig};
use crate::Error;
use crate::diffusion::parts::decoder::{ChatTokenizer, TextDecoder};
use crate::diffusion::parts::places::Places;
use crate::diffusion::parts::schedule::Scheduler;
use crate::diffusion::parts::stills::{Stills, Vae, answered_by_stills};
use crate::diffusion::{Controls, Denoiser, Diffusion, Expert, PartPaths, TextEncoder, Tokenizer};
use crate::json::Object;
use crate::model::Builder;

/// Tokens of a text, which is cut or filled up to as many.
pub(super) const TEXT_TOKENS: usize = 512;

/// The states of the language model that the transformer sees, side by side.
const STATES: [usize; 3] = [9, 18, 27];

/// Control pictures beside a text.
const MOST_CONTROLS: usize = 10;

/// Steps for which the default of the shift is given.
const STEPS: usize = 50;

/// The classes of a folder's parts.
const CLASSES: [(&str, &[&str]); 3] = [
    ("transformer", &["Flux2Transformer2DModel"]),
    ("vae", &["AutoencoderKLFlux2"]),
    ("scheduler", &["FlowMatchEulerDiscreteScheduler"]),
];

/// The key of `model_index.json` that says whether the model is distilled.
const IS_DISTILLED: &str = "is_distilled";

/// A model whose parts are loaded on demand.
#[derive(Debug, Clone)]
pub struct Flux2 {
    config: TransformerConfig,
    stills: Stills,
    /// `None` if it follows from the size of a picture and the number of steps.
    shift: Option<f64>,
    is_distilled: bool,
}

impl Flux2 {
    /// Reads the configs of the diffusers folder at `path`, or the shapes of single files: `path` is then the
    /// transformer, and `parts` names the others.
    ///
    /// # Errors
    /// If a file is missing or damaged, or its content is not supported.
    pub fn open(path: &Path, parts: &PartPaths) -> Result<Self, Error> {
        let parts = Places::find(&ARCH, path, parts, (&CLASSES, &[IS_DISTILLED]))?;
        let (shift, is_distilled) = match &parts.index {
            Some(index) => {
                let scheduler = path.join("scheduler/scheduler_config.json");
                let (_, shift) = Scheduler::read_dynamic(&scheduler)?;
                (shift, index.flag(IS_DISTILLED, false)?)
            }
            None => (None, false),
        };
        let mut model = Self {
            config: parts.transformer(
                &ARCH,
                TransformerConfig::read,
                TransformerConfig::of_shapes,
            )?,
            stills: Stills {
                arch: &ARCH,
                path: path.to_owned(),
                vae: Vae::kl(&parts, (1.0, 0.0))?,
                text: parts.text()?,
                parts,
                patch: 1,
                scheduler: Scheduler::EvenEuler,
                shift: 1.0,
            },
            shift,
            is_distilled,
        };
        model.check_parts()?;
        model.stills.shift = model.shift(model.stills.tokens(), STEPS)?;
        Ok(model)
    }

    /// Fails if the parts are those of different models.
    fn check_parts(&self) -> Result<(), Error> {
        let (
            config,
            Stills {
                vae, text, parts, ..
            },
        ) = (&self.config, &self.stills);
        let transformer = parts.transformer.display();
        let is_normed = matches!(vae, Vae::Kl(vae) if vae.batch_norm_eps.is_some());
        if !is_normed || vae.channels() != config.in_channels {
            let reason = format!(
                "has latents of {} channels{}, and the transformer in `{transformer}` takes the {} of 2 × 2 normalised \
                 latents",
                vae.channels(),
                if is_normed {
                    ""
                } else {
                    " without a norm (`bn`)"
                },
                config.in_channels
            );
            return Err(Error::file(&parts.vae, reason));
        }
        let [.., last] = STATES;
        let width = text.hidden_size * STATES.len() as i64;
        if width != config.joint_attention_dim || text.num_hidden_layers <= last as i64 {
            let reason = format!(
                "has {} layers of width {}, and the transformer in `{transformer}` takes the states {STATES:?} side by side, \
                 of a width of {} together",
                text.num_hidden_layers, text.hidden_size, config.joint_attention_dim
            );
            return Err(Error::file(&parts.text_encoder, reason));
        }
        if text.local.is_some() {
            let reason =
                "has layers with a window, in which the filled up end of a text would see nothing";
            return Err(Error::file(&parts.text_encoder, reason));
        }
        Ok(())
    }

    fn chat_tokenizer(&self) -> Result<ChatTokenizer, Error> {
        // For this template it means that empty thoughts follow the prompt.
        let arguments = [("enable_thinking".to_owned(), json!(false))];
        ChatTokenizer::open(
            &self.stills.parts.tokenizer,
            &self.stills.text,
            arguments.into_iter().collect(),
            TEXT_TOKENS,
        )
    }

    /// The token that fills up texts, at their end.
    fn filler(&self) -> Result<u32, Error> {
        let config = self.stills.parts.tokenizer.join("tokenizer_config.json");
        if config.is_file() {
            let side = json!("right");
            Object::read(&config)?.require("padding_side", &side, &side)?;
        }
        self.chat_tokenizer()?.padding().ok_or_else(|| {
            let reason =
                "`pad_token` is missing or not in the vocabulary: texts are filled up with it";
            Error::file(&config, reason)
        })
    }
}

/// How far the maker shifts the levels of a run of `steps` steps for a picture of `tokens` tokens:
/// `compute_empirical_mu` of diffusers, to whose exponential the levels are shifted.
pub(super) fn empirical_shift(tokens: i64, steps: usize) -> f64 {
    let tokens = tokens as f64;
    let at_200_steps = 0.000_169_27 * tokens + 0.456_666_66;
    let mu = match tokens > 4300.0 {
        true => at_200_steps,
        false => {
            let at_10_steps = 8.738_095_24e-5 * tokens + 1.898_333_33;
            let slope = (at_200_steps - at_10_steps) / 190.0;
            slope * steps as f64 + (at_200_steps - 200.0 * slope)
        }
    };
    mu.exp()
}

impl Diffusion for Flux2 {
    answered_by_stills!();

    fn shift(&self, tokens: i64, steps: usize) -> Result<f64, Error> {
        Ok(self.shift.unwrap_or_else(|| empirical_shift(tokens, steps)))
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
        Ok(Box::new(self.chat_tokenizer()?))
    }

    fn text_encoder(
        &self,
        _: usize,
        device: Device,
        builder: &mut Builder,
    ) -> Result<Box<dyn TextEncoder>, Error> {
        let filler = self.filler()?;
        let encoder = TextDecoder::new(&self.stills.text, &STATES, TEXT_TOKENS, device, builder)?;
        Ok(Box::new(encoder.filled(filler)))
    }

    fn controls(&self) -> Option<Controls> {
        Some(Controls {
            least: 0,
            most: MOST_CONTROLS,
            area: 1024 * 1024,
            step: self.geometry().step() as u32,
            is_cut: true,
            in_text: false,
        })
    }

    fn text_width(&self) -> Result<i64, Error> {
        Ok(self.config.joint_attention_dim)
    }

    fn stays_fp32(&self, name: &str) -> bool {
        name.starts_with("time_guidance_embed.")
    }
}
