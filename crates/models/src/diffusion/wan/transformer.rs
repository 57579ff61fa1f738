//! Wan's transformer: noisy latents, a timestep and a text to a velocity.
//!
//! ```text
//! latents ─▶ patches ─▶ linear ─▶ ┌ self-attention ─▶ cross-attention to the text ─▶ feed-forward ┐ ─▶ norm ─▶ linear ─▶ velocity
//! time ─▶ sines ─▶ linear ───────▶ │ shifts, scales and gates of each step                        │
//! text ─▶ linear ────────────────▶ └──────────────────── × layers ────────────────────────────────┘
//! ```
//!
//! Supported are text to video (16 channels), image to video of Wan 2.2 (36 channels: latents, mask,
//! condition) and the 5B model (48 channels), in which the tokens of a given first frame have their own
//! timestep: that is two rows of modulation, not one for each token.

mod config;
mod layers;
#[cfg(test)]
mod tests;

use tch::{Device, Kind, Tensor};

pub use config::TransformerConfig;

use self::layers::{Block, Modulation, Shared};
use super::model::CONDITION;
use crate::Error;
use crate::diffusion::parts::rotary::Rotary;
use crate::diffusion::parts::time::sinusoids;
use crate::diffusion::{Conditions, Denoiser, FIRST_FRAME, TEXT};
use crate::model::layers::Linear;
use crate::model::{BlockList, Blocks, Builder, Initial, Pass};
use crate::tensor::to_kind;
use crate::weight::Weight;

/// The model. Its trainable tensors are in the [`Parameters`](crate::Parameters) it was built with.
#[derive(Debug)]
pub struct Transformer {
    config: TransformerConfig,
    patches: Patches,
    time: [Linear; 2],
    time_to_modulation: Linear,
    text: [Linear; 2],
    blocks: Blocks<Block>,
    /// `[1, 2, width]`: added to the final timestep modulation (`scale_shift_table`).
    table: Tensor,
    output: Linear,
    compute: Kind,
    device: Device,
}

/// The timesteps of a batch, from 0 (clean) to 1000 (noise).
#[derive(Debug)]
pub enum Timesteps {
    /// `[batch]`: one timestep for all tokens of a video.
    Uniform(Tensor),
    /// One for the tokens of the given first latent frame, and one for the others.
    FirstFrame {
        /// `[batch]`: for the first latent frame.
        first: Tensor,
        /// `[batch]`: for the others.
        others: Tensor,
    },
}

impl Transformer {
    /// Builds the model on `device`.
    pub fn new(
        config: &TransformerConfig,
        device: Device,
        builder: &mut Builder,
    ) -> Result<Self, Error> {
        let width = config.width();
        let embedder = |part: &str| format!("condition_embedder.{part}");
        let initial = Initial::Normal(0.02);
        let time = |part: &str, inputs: i64, builder: &mut Builder| -> Result<Linear, Error> {
            let name = embedder(&format!("time_embedder.{part}"));
            let weight = builder.kept(&format!("{name}.weight"), &[width, inputs], initial)?;
            Ok(Linear {
                weight: Weight::Dense(weight),
                bias: Some(builder.kept(&format!("{name}.bias"), &[width], Initial::Zeros)?),
                compute: Kind::Float,
                adapter: None,
            })
        };
        let text = |part: &str, inputs: i64, builder: &mut Builder| {
            let name = embedder(&format!("text_embedder.{part}"));
            builder.linear(&name, (inputs, width), true, initial)
        };
        let [frames, rows, columns] = config.patch_size;
        let shape = [width, config.in_channels, frames, rows, columns];
        let patches = builder.matrix("patch_embedding.weight", &shape, initial, true)?;
        let count = usize::try_from(config.num_layers).unwrap_or(0);
        let outputs = config.patch(config.out_channels);
        let model = Self {
            patches: Patches {
                weight: patches,
                bias: builder.vector("patch_embedding.bias", width, Initial::Zeros)?,
                compute: builder.compute(),
            },
            time: [
                time("linear_1", config.freq_dim, builder)?,
                time("linear_2", width, builder)?,
            ],
            time_to_modulation: builder.linear(
                &embedder("time_proj"),
                (width, 6 * width),
                true,
                initial,
            )?,
            text: [
                text("linear_1", config.text_dim, builder)?,
                text("linear_2", width, builder)?,
            ],
            blocks: Blocks::new(("blocks", count), device, builder, |index, builder| {
                Block::new(config, index, builder)
            })?,
            table: builder.kept("scale_shift_table", &[1, 2, width], initial)?,
            output: builder.linear("proj_out", (width, outputs), true, Initial::Zeros)?,
            compute: builder.compute(),
            config: config.clone(),
            device,
        };
        builder.finish_blocks()?;
        Ok(model)
    }

    /// The velocity for noisy `latents` `[batch, in channels, frames, height, width]` and `text` `[batch,
    /// rows, text width]` (512 rows, zeros after the text): `[batch, out channels, frames, height, width]`
    /// fp32.
    pub fn velocity(
        &self,
        latents: &Tensor,
        times: &Timesteps,
        text: &Tensor,
        pass: Pass,
    ) -> Result<Tensor, Error> {
        let dropout = pass != Pass::Evaluate;
        let grid = self.grid(latents)?;
        let stream = self.patches.forward(&self.patched(latents, grid)?)?;
        let embedded = self.embedded(times)?;
        let modulation = self
            .time_to_modulation
            .forward(&embedded.f_silu()?, dropout)?;
        let (batch, rows, _) = modulation.size3()?;
        let modulation = modulation.f_view([batch, rows, 6, self.config.width()])?;
        let (text, of_zeros) = self.distinct(text)?;
        let text = self.text[0].forward(&to_kind(&text, self.compute)?, dropout)?;
        let text = self.text[1].forward(&text.f_gelu("tanh")?, dropout)?;
        let shared = Shared {
            rotary: Rotary::new(grid, self.config.attention_head_dim, self.device)?,
            first: match times {
                Timesteps::Uniform(_) => None,
                Timesteps::FirstFrame { .. } => Some(grid[1] * grid[2]),
            },
            text_bias: of_zeros,
        };
        let stream = self
            .blocks
            .forward(stream, &[text, modulation], &shared, pass)?;
        let last = to_kind(&embedded, Kind::Float)?.f_unsqueeze(2)?;
        let rows = last.f_add(&self.table.f_unsqueeze(1)?)?;
        let rows = Modulation {
            rows: &rows,
            first: shared.first,
        };
        let normed = rows.modulated(stream, 0, (self.config.eps, Kind::Float))?;
        let patches = self.output.forward(&normed, dropout)?;
        self.unpatched(&to_kind(&patches, Kind::Float)?, grid)
    }

    /// On the CPU, the text with only one of the zero rows at its end, and an attention bias to make up for
    /// it: all zero rows have the same key and value, so one of them with the logarithm of their number as
    /// bias is equivalent, and much faster for short texts. On GPUs, whose attention is slower with such a
    /// bias, the text as it is.
    fn distinct(&self, text: &Tensor) -> Result<(Tensor, Option<Tensor>), Error> {
        let rows = text.size3()?.1;
        let whole = || (text.shallow_clone(), None);
        if self.device != Device::Cpu {
            return Ok(whole());
        }
        let used = text.f_ne(0.0)?.f_any_dims([0, 2].as_slice(), false)?;
        let last = used.f_nonzero()?.f_view([-1])?;
        let length = match last.size()[0] {
            0 => 0,
            count => last.f_int64_value(&[count - 1])? + 1,
        };
        if rows - length < 2 {
            return Ok(whole());
        }
        let mut bias = vec![0.0f32; length as usize];
        bias.push(((rows - length) as f32).ln());
        let bias = Tensor::f_from_slice(&bias)?.f_to_kind(self.compute)?;
        Ok((
            text.f_narrow(1, 0, length + 1)?,
            Some(bias.f_view([1, 1, 1, length + 1])?),
        ))
    }

    /// Number of tokens along frames, rows and columns.
    fn grid(&self, latents: &Tensor) -> Result<[i64; 3], Error> {
        let (_, channels, frames, height, width) = latents.size5()?;
        let patch = self.config.patch_size;
        let sizes = [frames, height, width];
        let divides = sizes
            .iter()
            .zip(patch)
            .all(|(size, patch)| size % patch == 0);
        let grid = [0, 1, 2].map(|axis: usize| sizes[axis] / patch[axis]);
        let fits = grid
            .iter()
            .all(|n| (1..=self.config.rope_max_seq_len).contains(n));
        if channels != self.config.in_channels || !divides || !fits {
            return Err(Error::Invalid(format!(
                "latents of {channels} channels and {frames} × {height} × {width}: this model takes {} \
                 channels, and multiples of {patch:?} up to {} times that",
                self.config.in_channels, self.config.rope_max_seq_len
            )));
        }
        Ok(grid)
    }

    /// `[batch, tokens, elements of a patch]`
    fn patched(&self, latents: &Tensor, grid: [i64; 3]) -> Result<Tensor, Error> {
        let batch = latents.size()[0];
        let [t, h, w] = grid;
        let [frames, rows, columns] = self.config.patch_size;
        let channels = self.config.in_channels;
        Ok(latents
            .f_reshape([batch, channels, t, frames, h, rows, w, columns])?
            .f_permute([0, 2, 4, 6, 1, 3, 5, 7])?
            .f_reshape([batch, t * h * w, self.config.patch(channels)])?)
    }

    /// Output patches, whose channels come last, as `[batch, channels, frames, height, width]`.
    fn unpatched(&self, patches: &Tensor, grid: [i64; 3]) -> Result<Tensor, Error> {
        let batch = patches.size()[0];
        let [t, h, w] = grid;
        let [frames, rows, columns] = self.config.patch_size;
        let channels = self.config.out_channels;
        Ok(patches
            .f_reshape([batch, t, h, w, frames, rows, columns, channels])?
            .f_permute([0, 7, 1, 4, 2, 5, 3, 6])?
            .f_reshape([batch, channels, t * frames, h * rows, w * columns])?)
    }

    /// The embedding of the timesteps, `[batch, 1 or 2, width]`, in the compute type.
    fn embedded(&self, times: &Timesteps) -> Result<Tensor, Error> {
        let rows = match times {
            Timesteps::Uniform(times) => times.f_unsqueeze(1)?,
            Timesteps::FirstFrame { first, others } => Tensor::f_stack(&[first, others], 1)?,
        };
        let rows = rows.f_to_device(self.device)?.f_to_kind(Kind::Float)?;
        let sines = sinusoids(&rows, self.config.freq_dim)?;
        let inner = self.time[0].forward(&sines, false)?.f_silu()?;
        to_kind(&self.time[1].forward(&inner, false)?, self.compute)
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
        let text = conditions.get(TEXT)?;
        let uniform = || Timesteps::Uniform(times.shallow_clone());
        if let Some(channels) = conditions.find(CONDITION) {
            let input = Tensor::f_cat(&[noisy, channels], 1)?;
            return self.velocity(&input, &uniform(), text, pass);
        }
        let Some(frame) = conditions.find(FIRST_FRAME) else {
            return self.velocity(noisy, &uniform(), text, pass);
        };
        let times = Timesteps::FirstFrame {
            first: times.f_zeros_like()?,
            others: times.shallow_clone(),
        };
        let count = noisy.size5()?.2;
        let rest = noisy.f_narrow(2, 1, count - 1)?;
        let input = Tensor::f_cat(&[frame, &rest], 2)?;
        self.velocity(&input, &times, text, pass)
    }

    fn lists(&self) -> Vec<&dyn BlockList> {
        vec![&self.blocks]
    }

    fn description(&self) -> String {
        let (layers, width) = (self.config.num_layers, self.config.width());
        format!("{layers} layers of width {width}")
    }
}

/// The patch embedding: a convolution whose stride equals its kernel size, computed as a matrix product.
#[derive(Debug)]
struct Patches {
    /// `[width, channels, frames, rows, columns]`, as in files; may be trainable.
    weight: Tensor,
    /// `[width]`
    bias: Tensor,
    /// The type of the product.
    compute: Kind,
}

impl Patches {
    /// `[batch, tokens, elements of a patch]` to `[batch, tokens, width]`.
    fn forward(&self, input: &Tensor) -> Result<Tensor, Error> {
        let width = self.bias.numel() as i64;
        let weight = to_kind(&self.weight, self.compute)?.f_reshape([width, -1])?;
        let bias = to_kind(&self.bias, self.compute)?;
        Ok(to_kind(input, self.compute)?.f_linear(&weight, Some(&bias))?)
    }
}
