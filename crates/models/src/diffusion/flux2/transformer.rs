//! The transformer of FLUX.2 klein: noisy latents, a time and a text to a velocity.
//!
//! ```text
//! latents ─▶ linear ─┐
//!                    ├─▶ [text, picture] ─▶ double blocks ─▶ single blocks ─▶ norm of the picture ─▶ linear ─▶ velocity
//! text ────▶ linear ─┘
//! time ────▶ sines ─▶ linear ─▶ shifts, scales and gates: one set for each kind of block and stream, and the last norm's
//! ```
//!
//! A latent is a token. A text has as many tokens as there can be, of which all are seen. Those of control pictures stand behind
//! the picture's, each at a time of its own.

mod config;
mod layers;

use tch::{Device, Kind, Tensor};

pub use config::TransformerConfig;

pub(super) use self::layers::DOUBLE;

use self::layers::Single;
use crate::Error;
use crate::diffusion::objective::TRAIN_STEPS;
use crate::diffusion::parts::double::{DoubleBlock, Shared, VECTORS};
use crate::diffusion::parts::picture::{LastLayer, check_texts, grid, patched, unpatched};
use crate::diffusion::parts::rotary::{Rotary, places};
use crate::diffusion::parts::time::TimeEmbedding;
use crate::diffusion::{Conditions, Controls, Denoiser, TEXT};
use crate::model::layers::Linear;
use crate::model::{BlockList, Blocks, Builder, Initial, Pass};
use crate::tensor::to_kind;

/// Vectors by which a single block modulates its stream: shift, scale and gate.
const SINGLE_VECTORS: i64 = 3;

/// How far control pictures are apart in time, and the first from what is made.
const APART: f64 = 10.0;

/// The model. Its trainable tensors are in the [`Parameters`](crate::Parameters) it was built with.
#[derive(Debug)]
pub struct Transformer {
    config: TransformerConfig,
    time: TimeEmbedding,
    /// Of the picture and of the text in the double blocks.
    double_modulation: [Linear; 2],
    single_modulation: Linear,
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
        let initial = Initial::Normal(0.02);
        let name = "time_guidance_embed.timestep_embedder";
        let widths = [config.timestep_guidance_channels, width, width];
        let time = TimeEmbedding::new(name, widths, false, builder)?;
        let mut linear = |name: &str, inputs: i64, outputs: i64| {
            builder.linear(name, (inputs, outputs), false, initial)
        };
        let both = VECTORS * width;
        let double_modulation = [
            linear("double_stream_modulation_img.linear", width, both)?,
            linear("double_stream_modulation_txt.linear", width, both)?,
        ];
        let single = SINGLE_VECTORS * width;
        let single_modulation = linear("single_stream_modulation.linear", width, single)?;
        let picture = linear("x_embedder", config.in_channels, width)?;
        let text = linear("context_embedder", config.joint_attention_dim, width)?;
        let count = |count: i64| usize::try_from(count).unwrap_or(0);
        let name = "transformer_blocks";
        let blocks = (name, count(config.num_layers));
        let double = Blocks::new(blocks, device, builder, |index, builder| {
            DoubleBlock::new(&DOUBLE, config.sizes(), &format!("{name}.{index}"), builder)
        })?;
        let name = "single_transformer_blocks";
        let blocks = (name, count(config.num_single_layers));
        let single = Blocks::new(blocks, device, builder, |index, builder| {
            Single::new(config, &format!("{name}.{index}"), builder)
        })?;
        let model = Self {
            time,
            double_modulation,
            single_modulation,
            picture,
            text,
            double,
            single,
            last: LastLayer::new((width, config.in_channels), false, config.eps, builder)?,
            config: config.clone(),
            device,
        };
        builder.finish_blocks()?;
        Ok(model)
    }

    /// The velocity for noisy `latents` `[batch, channels, 1, height, width]` at noise levels `[batch]` from 0 to 1,
    /// texts `[batch, rows, width]` and `controls`, latents of other sizes: the same shape as the latents in fp32.
    ///
    /// # Errors
    /// If shapes do not match, or memory runs out.
    pub fn velocity(
        &self,
        latents: &Tensor,
        levels: &Tensor,
        text: &Tensor,
        controls: &[Tensor],
        pass: Pass,
    ) -> Result<Tensor, Error> {
        let dropout = pass != Pass::Evaluate;
        let config = &self.config;
        let all = [latents].into_iter().chain(controls);
        let all: Vec<&Tensor> = all.collect();
        let grids = all
            .iter()
            .map(|latents| grid(latents, config.in_channels, 1));
        let grids = grids.collect::<Result<Vec<_>, _>>()?;
        let (rows, columns) = grids[0];
        let words = text.size3()?.1;
        check_texts(text, (latents.size()[0], config.joint_attention_dim), None)?;
        let levels = levels.f_to_device(self.device)?.f_to_kind(Kind::Float)?;
        let time = self
            .time
            .forward(&levels.f_mul_scalar(TRAIN_STEPS)?)?
            .f_silu()?;
        let vectors = |linear: &Linear| -> Result<Tensor, Error> {
            to_kind(&linear.forward(&time, dropout)?, Kind::Float)
        };
        let shared = Shared {
            rotary: self.rotary(words, &grids)?,
            words,
            pictured: grids.iter().map(|(rows, columns)| rows * columns).sum(),
            seen: None,
        };
        let tokens = rows * columns;
        let parts = all.iter().map(|latents| patched(latents, 1));
        let parts = parts.collect::<Result<Vec<_>, _>>()?;
        let parts = Tensor::f_cat(&parts, 1)?;
        let picture = self.picture.forward(&parts, dropout)?;
        let text = self.text.forward(text, dropout)?;
        let stream = Tensor::f_cat(&[text, picture], 1)?;
        let [of_picture, of_text] = &self.double_modulation;
        let others = [vectors(of_picture)?, vectors(of_text)?];
        let stream = self.double.forward(stream, &others, &shared, pass)?;
        let others = [vectors(&self.single_modulation)?];
        let stream = self.single.forward(stream, &others, &shared, pass)?;
        let picture = stream.f_narrow(1, words, tokens)?;
        unpatched(
            &self.last.forward(&picture, &time, dropout)?,
            (rows, columns),
            1,
        )
    }

    /// Rotations of `words` tokens of the text, followed by those of the picture and of control pictures, in so many rows and
    /// columns.
    fn rotary(&self, words: i64, grids: &[(i64, i64)]) -> Result<Rotary, Error> {
        let options = (Kind::Double, Device::Cpu);
        let all = |count: i64, number: f64| Tensor::f_full([1, count], number, options);
        let of = |count: i64| Tensor::f_arange(count, options);
        let none = || all(words, 0.0);
        let mut axes = [none()?, none()?, none()?, of(words)?.f_unsqueeze(0)?];
        for (number, (rows, columns)) in grids.iter().enumerate() {
            let [row, column] = places(&of(*rows)?, &of(*columns)?)?;
            let count = rows * columns;
            let time = all(count, APART * number as f64)?;
            for (axis, at) in axes.iter_mut().zip([time, row, column, all(count, 0.0)?]) {
                *axis = Tensor::f_cat(&[&*axis, &at], 1)?;
            }
        }
        let axes: Vec<_> = axes.into_iter().zip(self.config.axes_dims_rope).collect();
        Rotary::exactly_at(&axes, self.config.rope_theta, self.device)
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
        let controls = Controls::among(conditions)?;
        self.velocity(noisy, &levels, conditions.get(TEXT)?, &controls, pass)
    }

    fn lists(&self) -> Vec<&dyn BlockList> {
        vec![&self.double, &self.single]
    }

    fn description(&self) -> String {
        let config = &self.config;
        format!(
            "{} double and {} single blocks of width {}",
            config.num_layers,
            config.num_single_layers,
            config.width()
        )
    }
}
