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
    End, LONGEST, PromptTokenizer, TOKENS_BEFORE, VisionLanguage,
};
use crate::diffusion::{
    Conditions, Denoiser, Diffusion, Expert, PartPaths, TextEncoder, Tokenizer,
};
use crate::formats::TensorSource;
use crate::language::DecoderConfig;
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

/// The text encoder.
pub(super) const TEXT: VisionLanguage = VisionLanguage {
    title: "Qwen2.5-VL",
    types: ["qwen2_5_vl", "qwen2_5_vl_text"],
    family: "qwen2",
    keys: &[],
};

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

/// The text encoder's config from the shapes in its file; what they do not tell is as published.
pub(super) fn text_of_shapes(file: &PartFile) -> Result<DecoderConfig, Error> {
    const HEAD: i64 = 128;
    let size = |name: &str, dimension: usize| {
        let shape = file.shape(&format!("model.{name}"));
        let size = shape.and_then(|shape| shape.get(dimension).copied());
        size.ok_or_else(|| {
            let reason = format!("not the text encoder of Qwen-Image: there is no `model.{name}`");
            Error::file(file.path(), reason)
        })
    };
    let rows = |part: &str| size(&format!("layers.0.self_attn.{part}_proj.bias"), 0);
    let (queries, keys) = (rows("q")?, rows("k")?);
    if queries % HEAD != 0 || keys % HEAD != 0 {
        let reason = format!(
            "not the text encoder of Qwen-Image: queries of {queries} and keys of {keys} numbers are not made of heads of \
             {HEAD}"
        );
        return Err(Error::file(file.path(), reason));
    }
    let layer = |name: &String| -> Option<i64> {
        let rest = name.strip_prefix("model.layers.")?;
        rest.split('.').next()?.parse().ok()
    };
    let last = file.names().iter().filter_map(layer).max().unwrap_or(0);
    let keys = json!({
        "model_type": "qwen2",
        "vocab_size": size("embed_tokens.weight", 0)?,
        "hidden_size": size("embed_tokens.weight", 1)?,
        "intermediate_size": size("layers.0.mlp.gate_proj.weight", 0)?,
        "num_hidden_layers": last + 1,
        "num_attention_heads": queries / HEAD,
        "num_key_value_heads": keys / HEAD,
        "max_position_embeddings": 128_000,
        "rms_norm_eps": 1e-6,
        "rope_theta": 1_000_000,
    });
    DecoderConfig::from_json(file.path(), keys)
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
        Ok(Box::new(PromptTokenizer::open(folder, config, End::Cut)?))
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
