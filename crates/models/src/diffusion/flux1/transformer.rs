//! The transformer of FLUX.1: noisy latents, a time, a guidance and a text to a velocity.
//!
//! ```text
//! latents ─▶ patches ─▶ linear ─┐
//!                               ├─▶ [text, picture] ─▶ double blocks ─▶ single blocks ─▶ norm of the picture ─▶ velocity
//! T5's states ────────▶ linear ─┘
//! time, guidance ─▶ sines ─▶ linear ─▶ + ─▶ shifts, scales and gates of each block, and those of the last norm
//! CLIP's vector ───────────▶ linear ───┘
//! ```
//!
//! A text has as many tokens as there can be, of which all are seen, at the same position.

mod config;
mod layers;

use tch::{Device, Kind, Tensor};

pub use config::TransformerConfig;

pub(super) use self::layers::DOUBLE;

use self::layers::Single;
use crate::Error;
use crate::diffusion::objective::TRAIN_STEPS;
use crate::diffusion::parts::clip::POOLED;
use crate::diffusion::parts::double::{DoubleBlock, Shared};
use crate::diffusion::parts::picture::{LastLayer, check_texts, grid, patched, unpatched};
use crate::diffusion::parts::rotary::{Rotary, places};
use crate::diffusion::parts::time::TimeEmbedding;
use crate::diffusion::{Conditions, Denoiser, GUIDANCE, TEXT};
use crate::model::layers::Linear;
use crate::model::{BlockList, Blocks, Builder, Initial, Pass};

/// Latents per token, in each direction.
pub(super) const PATCH: i64 = 2;

/// Number of sines and cosines of the time and the guidance.
const SINES: i64 = 256;

/// Base of the rotary frequencies.
const THETA: f64 = 10_000.0;

/// Added to variances and mean squares.
const EPSILON: f64 = 1e-6;

/// The model. Its trainable tensors are in the [`Parameters`](crate::Parameters) it was built with.
#[derive(Debug)]
pub struct Transformer {
    config: TransformerConfig,
    time: TimeEmbedding,
    guidance: Option<TimeEmbedding>,
    vector: TimeEmbedding,
    picture: Linear,
    text: Linear,
    double: Blocks<DoubleBlock>,
    single: Blocks<Single>,
    last: LastLayer,
    device: Device,
}

impl Transformer {
    /// Builds the model on `device`.
    ///
    /// # Errors
    /// If a weight is missing, or memory runs out.
    pub fn new(
        config: &TransformerConfig,
        device: Device,
        builder: &mut Builder,
    ) -> Result<Self, Error> {
        let width = config.width();
        let mut embedding = |part: &str, inputs: i64| {
            let name = format!("time_text_embed.{part}_embedder");
            TimeEmbedding::new(&name, [inputs, width, width], true, builder)
        };
        let time = embedding("timestep", SINES)?;
        let guidance = match config.guidance_embeds {
            true => Some(embedding("guidance", SINES)?),
            false => None,
        };
        let vector = embedding("text", config.pooled_projection_dim)?;
        let mut linear = |name: &str, inputs: i64| {
            builder.linear(name, (inputs, width), true, Initial::Normal(0.02))
        };
        let picture = linear("x_embedder", config.in_channels)?;
        let text = linear("context_embedder", config.joint_attention_dim)?;
        let count = |count: i64| usize::try_from(count).unwrap_or(0);
        let (sizes, name) = (config.sizes(), "transformer_blocks");
        let blocks = (name, count(config.num_layers));
        let double = Blocks::new(blocks, device, builder, |index, builder| {
            DoubleBlock::new(&DOUBLE, sizes, &format!("{name}.{index}"), builder)
        })?;
        let name = "single_transformer_blocks";
        let blocks = (name, count(config.num_single_layers));
        let single = Blocks::new(blocks, device, builder, |index, builder| {
            Single::new(sizes, &format!("{name}.{index}"), builder)
        })?;
        let model = Self {
            time,
            guidance,
            vector,
            picture,
            text,
            double,
            single,
            last: LastLayer::new((width, config.in_channels), true, EPSILON, builder)?,
            config: config.clone(),
            device,
        };
        builder.finish_blocks()?;
        Ok(model)
    }

    /// What modulates the blocks, `[batch, width]` fp32: of times `[batch]`, a guidance of each, 1 if it is not given, and
    /// CLIP's vectors.
    fn embedded(&self, times: &Tensor, conditions: &Conditions) -> Result<Tensor, Error> {
        let here = |tensor: &Tensor| tensor.f_to_device(self.device)?.f_to_kind(Kind::Float);
        let times = here(times)?;
        let vector = conditions.get(POOLED)?;
        let sizes = [times.size1()?, self.config.pooled_projection_dim];
        if vector.size() != sizes {
            let found = vector.size();
            let reason = format!("vectors {found:?} of texts: this model takes {sizes:?}");
            return Err(Error::Invalid(reason));
        }
        let sum = self.time.forward(&times)?;
        let mut sum = sum.f_add(&self.vector.of_rows(&here(vector)?)?)?;
        if let Some(embedding) = &self.guidance {
            let guidance = match conditions.find(GUIDANCE) {
                Some(guidance) => here(guidance)?,
                None => times.f_ones_like()?,
            };
            sum = sum.f_add(&embedding.forward(&guidance.f_mul_scalar(TRAIN_STEPS)?)?)?;
        }
        Ok(sum.f_silu()?)
    }

    /// Rotations of `words` tokens of the text, followed by those of the picture.
    fn rotary(&self, words: i64, (rows, columns): (i64, i64)) -> Result<Rotary, Error> {
        let options = (Kind::Double, Device::Cpu);
        let of = |count: i64| Tensor::f_arange(count, options);
        let [row, column] = places(&of(rows)?, &of(columns)?)?;
        let places = [row.f_zeros_like()?, row, column].into_iter();
        let mut axes = Vec::new();
        for (place, width) in places.zip(self.config.axes_dims_rope) {
            axes.push((place.f_constant_pad_nd([words, 0])?, width));
        }
        Rotary::exactly_at(&axes, THETA, self.device)
    }
}

impl Denoiser for Transformer {
    fn predict(
        &self,
        noisy: &Tensor,
        times: &Tensor,
        conditions: &Conditions,
        pass: Pass,
    ) -> Result<Tensor, Error> {
        let (dropout, config) = (pass != Pass::Evaluate, &self.config);
        let grid = grid(noisy, config.channels(), PATCH)?;
        let text = conditions.get(TEXT)?;
        check_texts(text, (noisy.size()[0], config.joint_attention_dim), None)?;
        let words = text.size3()?.1;
        let time = self.embedded(times, conditions)?;
        let shared = Shared {
            rotary: self.rotary(words, grid)?,
            words,
            pictured: grid.0 * grid.1,
            seen: None,
        };
        let picture = self.picture.forward(&patched(noisy, PATCH)?, dropout)?;
        let text = self.text.forward(text, dropout)?;
        let stream = Tensor::f_cat(&[text, picture], 1)?;
        let others = [time.shallow_clone()];
        let stream = self.double.forward(stream, &others, &shared, pass)?;
        let stream = self.single.forward(stream, &others, &shared, pass)?;
        let picture = stream.f_narrow(1, words, grid.0 * grid.1)?;
        unpatched(&self.last.forward(&picture, &time, dropout)?, grid, PATCH)
    }

    fn lists(&self) -> Vec<&dyn BlockList> {
        vec![&self.double, &self.single]
    }

    fn description(&self) -> String {
        let (double, single) = (self.config.num_layers, self.config.num_single_layers);
        let width = self.config.width();
        format!("{double} double and {single} single blocks of width {width}")
    }
}
