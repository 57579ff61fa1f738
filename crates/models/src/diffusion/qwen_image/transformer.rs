//! Qwen-Image's transformer: noisy latents, a time and a text to a velocity.
//!
//! ```text
//! latents ─▶ patches ─▶ linear ─┐
//!                               ├─▶ [text, picture] ─▶ double blocks ─▶ norm of the picture ─▶ linear ─▶ velocity
//! text ────▶ norm ────▶ linear ─┘
//! time ────▶ sines ───▶ linear ─▶ shifts, scales and gates of each block, and those of the last norm
//! ```
//!
//! Control pictures follow the picture that is made, each with a frame of its own. Positions of a picture are counted from its
//! middle, those of the text from behind the longest side of all.

mod config;

use tch::{Device, Kind, Tensor};

pub use config::TransformerConfig;
pub(super) use config::{ZERO_TIME, has_unknown};

use crate::Error;
use crate::diffusion::objective::TRAIN_STEPS;
use crate::diffusion::parts::double::{Double, DoubleBlock, Shared, Stream};
use crate::diffusion::parts::picture::{LastLayer, check_texts, grid, patched, seen, unpatched};
use crate::diffusion::parts::rotary::{Rotary, places};
use crate::diffusion::parts::time::TimeEmbedding;
use crate::diffusion::{Conditions, Controls, Denoiser, TEXT};
use crate::model::layers::{Linear, RmsNorm};
use crate::model::{BlockList, Blocks, Builder, Initial, Pass};
use crate::tensor::to_kind;

/// Latents per token, in each direction.
pub(super) const PATCH: i64 = 2;

/// Number of sines and cosines of the time.
const SINES: i64 = 256;

/// Base of the rotary frequencies.
const THETA: f64 = 10_000.0;

/// Added to variances and mean squares.
const EPSILON: f64 = 1e-6;

/// The blocks.
pub(super) const DOUBLE: Double = Double {
    streams: [
        Stream {
            modulation: Some("img_mod.1"),
            inputs: ["attn.to_q", "attn.to_k", "attn.to_v"],
            norms: ["attn.norm_q", "attn.norm_k"],
            output: "attn.to_out.0",
            feed_forward: ["img_mlp.net.0.proj", "img_mlp.net.2"],
        },
        Stream {
            modulation: Some("txt_mod.1"),
            inputs: ["attn.add_q_proj", "attn.add_k_proj", "attn.add_v_proj"],
            norms: ["attn.norm_added_q", "attn.norm_added_k"],
            output: "attn.to_add_out",
            feed_forward: ["txt_mlp.net.0.proj", "txt_mlp.net.2"],
        },
    ],
    bias: true,
    is_folded: false,
};

/// The model. Its trainable tensors are in the [`Parameters`](crate::Parameters) it was built with.
#[derive(Debug)]
pub struct Transformer {
    config: TransformerConfig,
    time: TimeEmbedding,
    picture: Linear,
    text_norm: RmsNorm,
    text: Linear,
    blocks: Blocks<DoubleBlock>,
    last: LastLayer,
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
        let width = config.width();
        let name = "time_text_embed.timestep_embedder";
        let time = TimeEmbedding::new(name, [SINES, width, width], true, builder)?;
        let text_width = config.joint_attention_dim;
        let text_norm = builder.norm("txt_norm", text_width, EPSILON)?;
        let mut linear = |name: &str, inputs: i64, outputs: i64| {
            builder.linear(name, (inputs, outputs), true, Initial::Normal(0.02))
        };
        let picture = linear("img_in", config.in_channels, width)?;
        let text = linear("txt_in", text_width, width)?;
        let count = usize::try_from(config.num_layers).unwrap_or(0);
        let name = "transformer_blocks";
        let blocks = Blocks::new((name, count), device, builder, |index, builder| {
            let name = format!("{name}.{index}");
            DoubleBlock::new(&DOUBLE, config.sizes(), &name, builder)
        })?;
        let model = Self {
            time,
            picture,
            text_norm,
            text,
            blocks,
            last: LastLayer::new((width, config.in_channels), true, EPSILON, builder)?,
            compute: builder.compute(),
            config: config.clone(),
            device,
        };
        builder.finish_blocks()?;
        Ok(model)
    }

    /// The velocity for noisy `latents` `[batch, channels, 1, height, width]` at noise levels `[batch]` from 0 to 1:
    /// the same shape in fp32. Of each row of `text`, `[batch, rows, width]`, as many rows count as `tokens` says. Latents
    /// of `controls` may have other sizes.
    ///
    /// # Errors
    /// If shapes do not match, or memory runs out.
    pub fn velocity(
        &self,
        latents: &Tensor,
        levels: &Tensor,
        (text, tokens): (&Tensor, &[i64]),
        controls: &[Tensor],
        pass: Pass,
    ) -> Result<Tensor, Error> {
        let dropout = pass != Pass::Evaluate;
        let config = &self.config;
        let all: Vec<&Tensor> = [latents].into_iter().chain(controls).collect();
        let grids = all
            .iter()
            .map(|latents| grid(latents, config.out_channels, PATCH));
        let grids = grids.collect::<Result<Vec<_>, _>>()?;
        let tokens_of = |(rows, columns): &(i64, i64)| rows * columns;
        let texts = (latents.size()[0], config.joint_attention_dim);
        check_texts(text, texts, Some(tokens))?;
        let (words, pictured) = (text.size3()?.1, tokens_of(&grids[0]));
        let shown = grids.iter().map(tokens_of).sum();
        let levels = levels.f_to_device(self.device)?.f_to_kind(Kind::Float)?;
        let time = self.time.forward(&levels.f_mul_scalar(TRAIN_STEPS)?)?;
        let time = time.f_silu()?;
        let mut times = vec![time.shallow_clone()];
        if config.zero_cond_t && !controls.is_empty() {
            let clean = self.time.forward(&levels.f_zeros_like()?)?.f_silu()?;
            times.extend([time.shallow_clone(), clean]);
        }
        let shared = Shared {
            rotary: self.rotary(words, &grids)?,
            words,
            pictured,
            seen: seen(tokens, (words, shown), self.device)?,
        };
        let patches = all.iter().map(|latents| patched(latents, PATCH));
        let patches = Tensor::f_cat(&patches.collect::<Result<Vec<_>, _>>()?, 1)?;
        let picture = self.picture.forward(&patches, dropout)?;
        let text = to_kind(&self.text_norm.forward(text)?, self.compute)?;
        let text = self.text.forward(&text, dropout)?;
        let stream = Tensor::f_cat(&[text, picture], 1)?;
        let stream = self.blocks.forward(stream, &times, &shared, pass)?;
        let picture = stream.f_narrow(1, words, pictured)?;
        unpatched(
            &self.last.forward(&picture, &time, dropout)?,
            grids[0],
            PATCH,
        )
    }

    /// Rotations of `words` tokens of the text, followed by those of the pictures.
    fn rotary(&self, words: i64, grids: &[(i64, i64)]) -> Result<Rotary, Error> {
        let options = (Kind::Double, Device::Cpu);
        let from_middle =
            |count: i64| Tensor::f_arange_start(count / 2 - count, count / 2, options);
        let longest = grids
            .iter()
            .map(|(rows, columns)| (rows / 2).max(columns / 2));
        let first = longest.max().unwrap_or(0);
        let word = Tensor::f_arange_start(first, first + words, options)?.f_unsqueeze(0)?;
        let mut parts = [(); 3].map(|()| vec![word.shallow_clone()]);
        for (frame, (rows, columns)) in grids.iter().enumerate() {
            let [row, column] = places(&from_middle(*rows)?, &from_middle(*columns)?)?;
            let frame = Tensor::f_full([1, rows * columns], frame as f64, options)?;
            for (parts, place) in parts.iter_mut().zip([frame, row, column]) {
                parts.push(place);
            }
        }
        let mut axes = Vec::new();
        for (parts, width) in parts.iter().zip(self.config.axes_dims_rope) {
            axes.push((Tensor::f_cat(parts, 1)?, width));
        }
        Rotary::at(&axes, THETA, self.device)
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
        let controls = Controls::among(conditions)?;
        let text = (conditions.get(TEXT)?, tokens.as_slice());
        self.velocity(noisy, &levels, text, &controls, pass)
    }

    /// As by others, with each token as long as that of the prompt alone.
    fn guided(&self, positive: &Tensor, negative: &Tensor, scale: f64) -> Result<Tensor, Error> {
        let away = positive.f_sub(negative)?.f_mul_scalar(scale)?;
        let sum = patched(&negative.f_add(&away)?, PATCH)?;
        let length = |tokens: &Tensor| -> Result<Tensor, Error> {
            let squares = tokens.f_square()?;
            Ok(squares
                .f_sum_dim_intlist([2].as_slice(), true, Kind::Float)?
                .f_sqrt()?)
        };
        let ratio = length(&patched(positive, PATCH)?)?.f_div(&length(&sum)?)?;
        let (_, _, _, height, width) = positive.size5()?;
        let grid = (height / PATCH, width / PATCH);
        unpatched(&sum.f_mul(&ratio)?, grid, PATCH)
    }

    fn lists(&self) -> Vec<&dyn BlockList> {
        vec![&self.blocks]
    }

    fn description(&self) -> String {
        let (layers, width) = (self.config.num_layers, self.config.width());
        format!("{layers} double blocks of width {width}")
    }
}
