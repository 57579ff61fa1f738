//! Z-Image's transformer: noisy latents, a time and a text to a velocity.
//!
//! ```text
//! latents ─▶ patches ─▶ linear ─▶ noise refiner ───┐
//!                                                  ├─▶ [picture, text] ─▶ layers ─▶ norm ─▶ linear ─▶ velocity
//! text ──▶ norm ─▶ linear ─▶ context refiner ──────┘
//! time ──▶ sines ─▶ linear ─▶ scales and gates of the noise refiner, of the layers and of the last norm
//! ```
//!
//! Picture and text are each filled up to a multiple of 32 tokens with a learned token that is seen like the others.
//! What follows it because another text of the batch is longer is not seen.

mod config;
mod layers;
mod layout;

use tch::{Device, Kind, Tensor};

pub use config::TransformerConfig;

pub(super) use self::layout::filled;

use self::layers::{Block, Shared};
use self::layout::{Layout, Positions};
use crate::Error;
use crate::diffusion::objective::TRAIN_STEPS;
use crate::diffusion::parts::rotary::Rotary;
use crate::diffusion::parts::time::TimeEmbedding;
use crate::diffusion::{Conditions, Denoiser, TEXT};
use crate::model::layers::{Linear, RmsNorm};
use crate::model::{BlockList, Blocks, Builder, Initial, Pass};
use crate::tensor::to_kind;

/// Latents per token, in each direction.
pub(super) const PATCH: i64 = 2;

/// Picture and text are filled up to a multiple of so many tokens.
pub(super) const SEQUENCE_STEP: i64 = 32;

/// Number of sines and cosines of the time, and the width between the two layers of its embedder.
const TIME: [i64; 2] = [256, 1024];

/// Added to the variance of the last norm.
const LAST_NORM_EPSILON: f64 = 1e-6;

/// The model. Its trainable tensors are in the [`Parameters`](crate::Parameters) it was built with.
#[derive(Debug)]
pub struct Transformer {
    config: TransformerConfig,
    patches: Linear,
    time: TimeEmbedding,
    text_norm: RmsNorm,
    text: Linear,
    /// `[1, width]`: what picture and text are filled up with.
    fillers: [Tensor; 2],
    noise_refiner: Blocks<Block>,
    context_refiner: Blocks<Block>,
    layers: Blocks<Block>,
    last_scale: Linear,
    output: Linear,
    compute: Kind,
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
        let (width, modulation) = (config.dim, config.modulation());
        let initial = Initial::Normal(0.02);
        let last = |part: &str| format!("all_final_layer.{PATCH}-1.{part}");
        let names = ["t_embedder.mlp.0", "t_embedder.mlp.2"];
        let [sines, inner] = TIME;
        let time = TimeEmbedding::of_layers(names, [sines, inner, modulation], true, builder)?;
        let patches = format!("all_x_embedder.{PATCH}-1");
        let blocks = |name: &'static str, count: i64, is_modulated: bool, builder: &mut Builder| {
            let count = usize::try_from(count).unwrap_or(0);
            Blocks::new((name, count), device, builder, |index, builder| {
                Block::new(config, &format!("{name}.{index}"), is_modulated, builder)
            })
        };
        let refiners = config.n_refiner_layers;
        let model = Self {
            patches: builder.linear(&patches, (config.patch(), width), true, initial)?,
            time,
            text_norm: builder.norm("cap_embedder.0", config.cap_feat_dim, config.norm_eps)?,
            text: builder.linear(
                "cap_embedder.1",
                (config.cap_feat_dim, width),
                true,
                initial,
            )?,
            fillers: [
                builder.kept("x_pad_token", &[1, width], initial)?,
                builder.kept("cap_pad_token", &[1, width], initial)?,
            ],
            noise_refiner: blocks("noise_refiner", refiners, true, builder)?,
            context_refiner: blocks("context_refiner", refiners, false, builder)?,
            layers: blocks("layers", config.n_layers, true, builder)?,
            last_scale: builder.linear(
                &last("adaLN_modulation.1"),
                (modulation, width),
                true,
                initial,
            )?,
            output: builder.linear(
                &last("linear"),
                (width, config.patch()),
                true,
                Initial::Zeros,
            )?,
            compute: builder.compute(),
            config: config.clone(),
            device,
        };
        builder.finish_blocks()?;
        Ok(model)
    }

    /// The velocity for noisy `latents` `[batch, channels, 1, height, width]` at noise levels `[batch]` from 0 to 1:
    /// the same shape in fp32. Of each row of `text`, `[batch, rows, width]`, as many rows count as `tokens` says.
    ///
    /// # Errors
    /// If shapes do not match, or memory runs out.
    pub fn velocity(
        &self,
        latents: &Tensor,
        levels: &Tensor,
        (text, tokens): (&Tensor, &[i64]),
        pass: Pass,
    ) -> Result<Tensor, Error> {
        let dropout = pass != Pass::Evaluate;
        let layout = Layout::new(&self.config, latents, text, tokens)?;
        let time = self.embedded(levels)?;
        let shared = |positions: &[Positions], seen| self.shared(positions, seen);
        let picture = shared(&layout.picture_positions(), None)?;
        let context = shared(&layout.text_positions(), layout.seen(0)?)?;
        let whole = shared(&layout.positions(), layout.seen(layout.picture())?)?;

        let stream = self.patches.forward(&patched(latents)?, dropout)?;
        let filler = to_kind(&self.fillers[0], stream.kind())?;
        let filler = filler.f_expand([layout.batch, layout.picture_fill(), -1], false)?;
        let stream = Tensor::f_cat(&[stream, filler], 1)?;
        let others = [time.shallow_clone()];
        let stream = self
            .noise_refiner
            .forward(stream, &others, &picture, pass)?;

        let text = self.embedded_text(text, &layout, dropout)?;
        let text = self.context_refiner.forward(text, &[], &context, pass)?;

        let stream = Tensor::f_cat(&[stream, text], 1)?;
        let stream = self.layers.forward(stream, &others, &whole, pass)?;
        let stream = stream.f_narrow(1, 0, layout.picture_tokens())?;
        let scale = self.last_scale.forward(&time.f_silu()?, dropout)?;
        let scale = to_kind(&scale, Kind::Float)?
            .f_add_scalar(1.0)?
            .f_unsqueeze(1)?;
        let normed = to_kind(&stream, Kind::Float)?.f_layer_norm(
            [self.config.dim],
            None::<&Tensor>,
            None::<&Tensor>,
            LAST_NORM_EPSILON,
            true,
        )?;
        let patches = self.output.forward(&normed.f_mul(&scale)?, dropout)?;
        // The model predicts the clean sample less the noise.
        layout.unpatched(&to_kind(&patches, Kind::Float)?.f_neg()?)
    }

    /// What the blocks of a list share: tokens at these positions, of which those are `seen`.
    fn shared(&self, positions: &[Positions], seen: Option<Tensor>) -> Result<Shared, Error> {
        let mut axes = Vec::new();
        for (axis, width) in self.config.axes_dims.into_iter().enumerate() {
            let rows = positions.iter().map(|row| Tensor::f_from_slice(&row[axis]));
            let rows = rows.collect::<Result<Vec<_>, _>>()?;
            axes.push((Tensor::f_stack(&rows, 0)?, width));
        }
        Ok(Shared {
            rotary: Rotary::at(&axes, self.config.rope_theta, self.device)?,
            seen: match seen {
                Some(seen) => Some(seen.f_to_device(self.device)?),
                None => None,
            },
        })
    }

    /// The embedding of the times, `[batch, modulation]` fp32: the model counts from noise to pictures.
    fn embedded(&self, levels: &Tensor) -> Result<Tensor, Error> {
        let levels = levels.f_to_device(self.device)?.f_to_kind(Kind::Float)?;
        let times = levels.f_neg()?.f_add_scalar(1.0)?;
        self.time.forward(&times.f_mul_scalar(self.config.t_scale)?)
    }

    /// `[batch, rows, width]`, with the filler in place of all rows that do not count.
    fn embedded_text(
        &self,
        text: &Tensor,
        layout: &Layout,
        dropout: bool,
    ) -> Result<Tensor, Error> {
        let missing = layout.text() - text.size3()?.1;
        let text = match missing {
            0 => text.shallow_clone(),
            missing => text.f_constant_pad_nd([0, 0, 0, missing])?,
        };
        let normed = to_kind(&self.text_norm.forward(&text)?, self.compute)?;
        let stream = self.text.forward(&normed, dropout)?;
        let counts = layout.row_by_row(|row, index| index < layout.tokens[row])?;
        let counts = counts.f_to_device(self.device)?.f_unsqueeze(2)?;
        let filler = to_kind(&self.fillers[1], stream.kind())?;
        Ok(stream.f_where_self(&counts, &filler)?)
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
        let levels = times.f_div_scalar(TRAIN_STEPS)?;
        let tokens = conditions.text_tokens()?;
        self.velocity(noisy, &levels, (conditions.get(TEXT)?, &tokens), pass)
    }

    fn lists(&self) -> Vec<&dyn BlockList> {
        vec![&self.noise_refiner, &self.context_refiner, &self.layers]
    }

    fn description(&self) -> String {
        let (layers, width) = (self.config.n_layers, self.config.dim);
        let refiners = self.config.n_refiner_layers;
        format!("{layers} layers of width {width}, and 2 × {refiners} before them")
    }
}

/// `[batch, tokens, numbers of a patch]`: the channel comes last.
fn patched(latents: &Tensor) -> Result<Tensor, Error> {
    let (batch, channels, _, height, width) = latents.size5()?;
    let (rows, columns) = (height / PATCH, width / PATCH);
    Ok(latents
        .f_reshape([batch, channels, rows, PATCH, columns, PATCH])?
        .f_permute([0, 2, 4, 3, 5, 1])?
        .f_reshape([batch, rows * columns, PATCH * PATCH * channels])?)
}
