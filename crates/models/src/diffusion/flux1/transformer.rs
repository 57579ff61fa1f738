//! The transformer of FLUX.1 and Chroma: noisy latents, a time, a guidance and a text to a velocity.
//!
//! ```text
//! latents ─▶ patches ─▶ linear ─┐
//!                               ├─▶ [text, picture] ─▶ double blocks ─▶ single blocks ─▶ norm of the picture ─▶ velocity
//! T5's states ────────▶ linear ─┘
//! time, guidance ─▶ sines ─▶ linear ─▶ + ─▶ shifts, scales and gates of each block, and those of the last norm
//! CLIP's vector ───────────▶ linear ───┘
//! ```
//!
//! A text has as many tokens as there can be, of which all are seen, at the same position. Chroma sees no guidance, no vector
//! of CLIP, and of a text no padding but one token; one network (`approximator`) makes its shifts, scales and gates.

mod approximator;
mod config;
mod layers;

use tch::{Device, Kind, Tensor};

pub use approximator::ApproximatorSizes;
pub use config::TransformerConfig;

pub(super) use self::layers::DOUBLE;

use self::approximator::Approximator;
use self::layers::{Placed, SINGLE_VECTORS, Single, UNMODULATED};
use crate::Error;
use crate::diffusion::objective::TRAIN_STEPS;
use crate::diffusion::parts::clip::POOLED;
use crate::diffusion::parts::double::{DoubleBlock, Shared, VECTORS};
use crate::diffusion::parts::picture::{LastLayer, check_texts, grid, patched, seen, unpatched};
use crate::diffusion::parts::rotary::Rotary;
use crate::diffusion::parts::time::TimeEmbedding;
use crate::diffusion::{Conditions, Denoiser, GUIDANCE, TEXT, TEXT_TOKENS};
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
    modulation: Modulation,
    picture: Linear,
    text: Linear,
    double: Blocks<Placed<DoubleBlock>>,
    single: Blocks<Placed<Single>>,
    last: LastLayer,
    device: Device,
}

/// What the blocks are modulated by.
#[expect(clippy::large_enum_variant, reason = "a model has one")]
#[derive(Debug)]
enum Modulation {
    /// One vector, of which each block makes its own.
    Embedded {
        time: TimeEmbedding,
        guidance: Option<TimeEmbedding>,
        vector: TimeEmbedding,
    },
    /// The vectors of all blocks.
    Approximated(Approximator),
}

impl Modulation {
    fn new(config: &TransformerConfig, builder: &mut Builder) -> Result<Self, Error> {
        let width = config.width();
        if let Some(sizes) = config.approximator {
            let vectors = of_lists(config).iter().sum();
            let network = Approximator::new(sizes, (vectors, width), builder)?;
            return Ok(Self::Approximated(network));
        }
        let mut embedding = |part: &str, inputs: i64| {
            let name = format!("time_text_embed.{part}_embedder");
            TimeEmbedding::new(&name, [inputs, width, width], true, builder)
        };
        Ok(Self::Embedded {
            time: embedding("timestep", SINES)?,
            guidance: match config.guidance_embeds {
                true => Some(embedding("guidance", SINES)?),
                false => None,
            },
            vector: embedding("text", config.pooled_projection_dim)?,
        })
    }
}

/// How many vectors the single blocks have, the double blocks, of which those of all pictures come before those of the texts,
/// and the last norm.
fn of_lists(config: &TransformerConfig) -> [i64; 3] {
    let (double, single) = (config.num_layers, config.num_single_layers);
    [SINGLE_VECTORS * single, 2 * VECTORS * double, 2]
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
        let modulation = Modulation::new(config, builder)?;
        let is_modulated = config.approximator.is_none();
        let mut linear = |name: &str, inputs: i64| {
            builder.linear(name, (inputs, width), true, Initial::Normal(0.02))
        };
        let picture = linear("x_embedder", config.in_channels)?;
        let text = linear("context_embedder", config.joint_attention_dim)?;
        let count = |count: i64| usize::try_from(count).unwrap_or(0);
        let sizes = config.sizes();
        let given = |vectors: Vec<(i64, i64)>| match is_modulated {
            true => Vec::new(),
            false => vectors,
        };
        let kind = if is_modulated { &DOUBLE } else { &UNMODULATED };
        let name = "transformer_blocks";
        let blocks = (name, count(config.num_layers));
        let double = Blocks::new(blocks, device, builder, |index, builder| {
            let index_of = [index as i64, config.num_layers + index as i64];
            let vectors = index_of.map(|at| (VECTORS * at, VECTORS));
            Ok(Placed {
                block: DoubleBlock::new(kind, sizes, &format!("{name}.{index}"), builder)?,
                vectors: given(vectors.into()),
            })
        })?;
        let name = "single_transformer_blocks";
        let blocks = (name, count(config.num_single_layers));
        let single = Blocks::new(blocks, device, builder, |index, builder| {
            let first = SINGLE_VECTORS * index as i64;
            Ok(Placed {
                block: Single::new(sizes, is_modulated, &format!("{name}.{index}"), builder)?,
                vectors: given(vec![(first, SINGLE_VECTORS)]),
            })
        })?;
        let ends = (width, config.in_channels);
        let model = Self {
            modulation,
            picture,
            text,
            double,
            single,
            last: match is_modulated {
                true => LastLayer::new(ends, true, EPSILON, builder)?,
                false => LastLayer::unmodulated(ends, true, EPSILON, builder)?,
            },
            config: config.clone(),
            device,
        };
        builder.finish_blocks()?;
        Ok(model)
    }

    /// What modulates single blocks, double blocks and the last norm, fp32, of times `[batch]`, a guidance of each, 1 if it is
    /// not given, and CLIP's vectors: `[batch, width]` for all; or of the times alone, `[batch, vectors, width]` for each list of
    /// blocks, and `[batch, 2 · width]`.
    fn modulation(
        &self,
        times: &Tensor,
        conditions: &Conditions,
        dropout: bool,
    ) -> Result<[Tensor; 3], Error> {
        let here = |tensor: &Tensor| tensor.f_to_device(self.device)?.f_to_kind(Kind::Float);
        let times = here(times)?;
        let (time, guidance, of_text) = match &self.modulation {
            Modulation::Embedded {
                time,
                guidance,
                vector,
            } => (time, guidance, vector),
            Modulation::Approximated(network) => {
                let table = network.forward(&times, dropout)?;
                let [single, double, last] = of_lists(&self.config);
                // Shift and scale, which the last layer takes in the other order.
                let ends = table.f_narrow(1, single + double, last)?.f_flip([1])?;
                return Ok([
                    table.f_narrow(1, 0, single)?,
                    table.f_narrow(1, single, double)?,
                    ends.f_flatten(1, 2)?,
                ]);
            }
        };
        let vector = conditions.get(POOLED)?;
        let sizes = [times.size1()?, self.config.pooled_projection_dim];
        if vector.size() != sizes {
            let found = vector.size();
            let reason = format!("vectors {found:?} of texts: this model takes {sizes:?}");
            return Err(Error::Invalid(reason));
        }
        let sum = time.forward(&times)?;
        let mut sum = sum.f_add(&of_text.of_rows(&here(vector)?)?)?;
        if let Some(embedding) = guidance {
            let guidance = match conditions.find(GUIDANCE) {
                Some(guidance) => here(guidance)?,
                None => times.f_ones_like()?,
            };
            sum = sum.f_add(&embedding.forward(&guidance.f_mul_scalar(TRAIN_STEPS)?)?)?;
        }
        let sum = sum.f_silu()?;
        Ok([sum.shallow_clone(), sum.shallow_clone(), sum])
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
        let tokens = match conditions.find(TEXT_TOKENS) {
            Some(_) => Some(conditions.text_tokens()?),
            None => None,
        };
        let texts = (noisy.size()[0], config.joint_attention_dim);
        check_texts(text, texts, tokens.as_deref())?;
        let (words, pictured) = (text.size3()?.1, grid.0 * grid.1);
        let [of_single, of_double, of_last] = self.modulation(times, conditions, dropout)?;
        let shared = Shared {
            rotary: Rotary::behind_text((words, grid), config.axes_dims_rope, THETA, self.device)?,
            words,
            pictured,
            seen: match tokens {
                Some(tokens) => seen(&tokens, (words, pictured), self.device)?,
                None => None,
            },
        };
        let picture = self.picture.forward(&patched(noisy, PATCH)?, dropout)?;
        let text = self.text.forward(text, dropout)?;
        let stream = Tensor::f_cat(&[text, picture], 1)?;
        let stream = self.double.forward(stream, &[of_double], &shared, pass)?;
        let stream = self.single.forward(stream, &[of_single], &shared, pass)?;
        let picture = stream.f_narrow(1, words, pictured)?;
        unpatched(
            &self.last.forward(&picture, &of_last, dropout)?,
            grid,
            PATCH,
        )
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
