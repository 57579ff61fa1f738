//! Anima's denoiser: the transformer of Cosmos-Predict2, and the conditioner that makes its text.
//!
//! ```text
//! latents ─▶ patches ─▶ linear ─▶ ┌ self-attention ─▶ cross-attention to the text ─▶ feed-forward ┐ ─▶ norm ─▶ linear ─▶ velocity
//! text ─▶ conditioner ──────────▶ │                                                               │
//! time ─▶ sines ─▶ norm, linear ─▶└─────────── × layers, each step shifted, scaled and gated ─────┘
//! ```

mod conditioner;
mod config;
mod layers;

use tch::{Device, Kind, Tensor};

pub use config::{ConditionerConfig, TransformerConfig};

use self::conditioner::Conditioner;
use self::layers::{Block, Modulation, Times, initial};
use super::model::T5_TOKENS;
use crate::Error;
use crate::diffusion::objective::TRAIN_STEPS;
use crate::diffusion::parts::double::modulated_as;
use crate::diffusion::parts::rotary::Rotary;
use crate::diffusion::parts::time::{TimeEmbedding, sinusoids};
use crate::diffusion::{Conditions, Denoiser, TEXT, TEXT_TOKENS};
use crate::model::layers::{Linear, RmsNorm};
use crate::model::{BlockList, Blocks, Builder, Initial, Pass};
use crate::tensor::to_kind;

/// Latents per token, in each direction.
pub(super) const PATCH: i64 = 2;

/// Base of the rotary frequencies before they are stretched.
const THETA: f64 = 10_000.0;

/// Of the norms of the time and of the residual stream.
const EPSILON: f64 = 1e-6;

/// The model. Its trainable tensors are in the [`Parameters`](crate::Parameters) it was built with.
#[derive(Debug)]
pub struct Transformer {
    config: TransformerConfig,
    conditioner: Conditioner,
    patches: Linear,
    time: TimeEmbedding,
    time_norm: RmsNorm,
    blocks: Blocks<Block>,
    last: Modulation,
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
        conditioner: &ConditionerConfig,
        device: Device,
        builder: &mut Builder,
    ) -> Result<Self, Error> {
        let width = config.width();
        let patch = PATCH * PATCH;
        let count = usize::try_from(config.num_layers).unwrap_or(0);
        let model = Self {
            conditioner: Conditioner::new(conditioner, device, builder)?,
            patches: builder.linear(
                "patch_embed.proj",
                (config.patch_channels() * patch, width),
                false,
                initial(width),
            )?,
            time: TimeEmbedding::new(
                "time_embed.t_embedder",
                [width, width, 3 * width],
                false,
                builder,
            )?,
            time_norm: builder.norm("time_embed.norm", width, EPSILON)?,
            blocks: Blocks::new(
                ("transformer_blocks", count),
                device,
                builder,
                |index, builder| Block::new(config, index, builder),
            )?,
            last: Modulation::new(config, "norm_out", 2, builder)?,
            output: builder.linear(
                "proj_out",
                (width, config.in_channels * patch),
                false,
                Initial::Zeros,
            )?,
            compute: builder.compute(),
            config: config.clone(),
            device,
        };
        builder.finish_blocks()?;
        Ok(model)
    }

    /// The velocity for noisy `latents` `[batch, channels, 1, height, width]` at noise levels `[batch]` from 0 to 1, and
    /// a `text` of the conditioner: the same shape as the latents, in fp32.
    fn velocity(
        &self,
        latents: &Tensor,
        levels: &Tensor,
        text: &Tensor,
        pass: Pass,
    ) -> Result<Tensor, Error> {
        let dropout = pass != Pass::Evaluate;
        let grid = self.grid(latents)?;
        let stream = self
            .patches
            .forward(&self.patched(latents, grid)?, dropout)?;
        // The network is told the level itself, not a time from 0 to 1000.
        let levels = levels.f_to_device(self.device)?.f_to_kind(Kind::Float)?;
        let added = self.time.forward(&levels)?;
        let sines = sinusoids(&levels, self.config.width())?;
        let embedded = self.time_norm.forward(&sines)?.f_silu()?;
        let inputs = [
            to_kind(text, self.compute)?,
            to_kind(&embedded, self.compute)?,
            added,
        ];
        let rotary = self.rotary(grid)?;
        let stream = self.blocks.forward(stream, &inputs, &rotary, pass)?;
        let times = Times {
            embedded: &inputs[1],
            added: &inputs[2],
        };
        let [shift, scale] = self.last.rows(&times, dropout)?;
        let normed = modulated_as(Kind::Float, &stream, (&shift, &scale), EPSILON)?;
        let patches = self.output.forward(&normed, dropout)?;
        self.unpatched(&to_kind(&patches, Kind::Float)?, grid)
    }

    /// Numbers of rows and columns of tokens.
    fn grid(&self, latents: &Tensor) -> Result<(i64, i64), Error> {
        let (_, channels, frames, height, width) = latents.size5()?;
        let most = self.config.most();
        let fits = [height, width]
            .iter()
            .all(|size| size % PATCH == 0 && (1..=most).contains(&(size / PATCH)));
        match channels == self.config.in_channels && frames == 1 && fits {
            true => Ok((height / PATCH, width / PATCH)),
            false => Err(Error::Invalid(format!(
                "latents of {channels} channels and {frames} × {height} × {width}: this model takes {} channels, one \
                 frame, and multiples of {PATCH} up to {most} times that",
                self.config.in_channels
            ))),
        }
    }

    /// The rotations of the tokens: the first axis is the time, in which a picture has one place.
    fn rotary(&self, (rows, columns): (i64, i64)) -> Result<Rotary, Error> {
        let options = (Kind::Double, Device::Cpu);
        let row =
            Tensor::f_arange(rows, options)?.f_repeat_interleave_self_int(columns, 0, None)?;
        let column = Tensor::f_arange(columns, options)?.f_repeat([rows])?;
        let positions = [row.f_zeros_like()?, row, column];
        let (widths, scales) = (self.config.axes(), self.config.rope_scale);
        let axes = positions.into_iter().zip(widths.into_iter().zip(scales));
        let axes = axes.map(|(positions, (width, scale))| {
            let stretched = THETA * scale.powf(width as f64 / (width - 2) as f64);
            Ok((positions.f_unsqueeze(0)?, width, stretched))
        });
        Rotary::of_halves(&axes.collect::<Result<Vec<_>, Error>>()?, self.device)
    }

    /// `[batch, tokens, numbers of a patch]`: the channel comes first. There may be one of zeros behind the others.
    fn patched(&self, latents: &Tensor, (rows, columns): (i64, i64)) -> Result<Tensor, Error> {
        let batch = latents.size()[0];
        let channels = self.config.patch_channels();
        let others = channels - self.config.in_channels;
        Ok(latents
            .f_to_device(self.device)?
            .f_constant_pad_nd([0, 0, 0, 0, 0, 0, 0, others])?
            .f_reshape([batch, channels, rows, PATCH, columns, PATCH])?
            .f_permute([0, 2, 4, 1, 3, 5])?
            .f_reshape([batch, rows * columns, channels * PATCH * PATCH])?)
    }

    /// Output patches, whose channels come last, as `[batch, channels, 1, height, width]`.
    fn unpatched(&self, patches: &Tensor, (rows, columns): (i64, i64)) -> Result<Tensor, Error> {
        let batch = patches.size()[0];
        let channels = self.config.in_channels;
        Ok(patches
            .f_reshape([batch, rows, columns, PATCH, PATCH, channels])?
            .f_permute([0, 5, 1, 3, 2, 4])?
            .f_reshape([batch, channels, 1, rows * PATCH, columns * PATCH])?)
    }

    /// The text that the conditioner makes of a batch's conditions.
    pub(super) fn text(&self, conditions: &Conditions, pass: Pass) -> Result<Tensor, Error> {
        let states = (conditions.get(TEXT)?, conditions.get(TEXT_TOKENS)?);
        self.conditioner
            .forward(states, conditions.get(T5_TOKENS)?, pass)
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
        let text = self.text(conditions, pass)?;
        let levels = times.f_div_scalar(TRAIN_STEPS)?;
        self.velocity(noisy, &levels, &text, pass)
    }

    fn lists(&self) -> Vec<&dyn BlockList> {
        vec![self.conditioner.blocks(), &self.blocks]
    }

    fn description(&self) -> String {
        let (layers, width) = (self.config.num_layers, self.config.width());
        format!("{layers} layers of width {width}")
    }
}
