//! Qwen-Image's transformer: noisy latents, a time and a text to a velocity.
//!
//! ```text
//! latents ─▶ patches ─▶ linear ─┐
//!                               ├─▶ [text, picture] ─▶ double blocks ─▶ norm of the picture ─▶ linear ─▶ velocity
//! text ────▶ norm ────▶ linear ─┘
//! time ────▶ sines ───▶ linear ─▶ shifts, scales and gates of each block, and those of the last norm
//! ```
//!
//! Positions of a picture are counted from its middle, those of the text from behind its longer side.

mod config;

use tch::{Device, Kind, Tensor};

pub use config::TransformerConfig;

use crate::Error;
use crate::diffusion::objective::TRAIN_STEPS;
use crate::diffusion::parts::double::{Double, DoubleBlock, Shared, Stream, modulated};
use crate::diffusion::parts::rotary::Rotary;
use crate::diffusion::parts::time::TimeEmbedding;
use crate::diffusion::{Conditions, Denoiser, TEXT, TEXT_TOKENS};
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
    last_modulation: Linear,
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
        let width = config.width();
        let names = ["linear_1", "linear_2"]
            .map(|part| format!("time_text_embed.timestep_embedder.{part}"));
        let names = [names[0].as_str(), names[1].as_str()];
        let time = TimeEmbedding::new(names, [SINES, width, width], true, builder)?;
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
        let initial = Initial::Normal(0.02);
        let last_modulation =
            builder.linear("norm_out.linear", (width, 2 * width), true, initial)?;
        let outputs = (width, config.in_channels);
        let model = Self {
            time,
            picture,
            text_norm,
            text,
            blocks,
            last_modulation,
            output: builder.linear("proj_out", outputs, true, Initial::Zeros)?,
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
        let grid = self.checked(latents, text, tokens)?;
        let (words, pictured) = (text.size3()?.1, grid.0 * grid.1);
        let levels = levels.f_to_device(self.device)?.f_to_kind(Kind::Float)?;
        let time = self.time.forward(&levels.f_mul_scalar(TRAIN_STEPS)?)?;
        let time = time.f_silu()?;
        let shared = Shared {
            rotary: self.rotary(words, grid)?,
            words,
            seen: self.seen(words, pictured, tokens)?,
        };
        let picture = self.picture.forward(&patched(latents)?, dropout)?;
        let text = to_kind(&self.text_norm.forward(text)?, self.compute)?;
        let text = self.text.forward(&text, dropout)?;
        let stream = Tensor::f_cat(&[text, picture], 1)?;
        let others = [time.shallow_clone()];
        let stream = self.blocks.forward(stream, &others, &shared, pass)?;
        let picture = stream.f_narrow(1, words, pictured)?;
        let last = self.last_modulation.forward(&time, dropout)?;
        let last = to_kind(&last, Kind::Float)?.f_unsqueeze(1)?;
        let width = self.config.width();
        let [scale, shift] = [0, 1].map(|half| last.f_narrow(2, half * width, width));
        let normed = modulated(&picture, (&shift?, &scale?), EPSILON)?;
        let made = to_kind(&self.output.forward(&normed, dropout)?, Kind::Float)?;
        unpatched(&made, grid)
    }

    /// Rows and columns of tokens of a picture, if shapes match.
    fn checked(
        &self,
        latents: &Tensor,
        text: &Tensor,
        tokens: &[i64],
    ) -> Result<(i64, i64), Error> {
        let config = &self.config;
        let (batch, channels, frames, height, width) = latents.size5()?;
        let fits = |side: i64| side >= PATCH && side % PATCH == 0;
        if channels != config.out_channels || frames != 1 || !fits(height) || !fits(width) {
            return Err(Error::Invalid(format!(
                "latents of {channels} channels and {frames} × {height} × {width}: this model takes {} channels, one frame \
                 and sides that are multiples of {PATCH}",
                config.out_channels
            )));
        }
        let (texts, rows, text_width) = text.size3()?;
        let counted = tokens.iter().all(|count| (1..=rows).contains(count));
        let are_as_many = texts == batch && tokens.len() as i64 == batch;
        if !are_as_many || text_width != config.joint_attention_dim || !counted {
            return Err(Error::Invalid(format!(
                "texts of shape [{texts}, {rows}, {text_width}] with {tokens:?} tokens for {batch} pictures: this model \
                 takes one of width {} for each",
                config.joint_attention_dim
            )));
        }
        Ok((height / PATCH, width / PATCH))
    }

    /// Rotations of `words` tokens of the text, followed by those of the picture.
    fn rotary(&self, words: i64, (rows, columns): (i64, i64)) -> Result<Rotary, Error> {
        let options = (Kind::Double, Device::Cpu);
        let all = |numbers: Tensor| numbers.f_expand([rows, columns], false)?.f_reshape([1, -1]);
        let from_middle =
            |count: i64| Tensor::f_arange_start(count / 2 - count, count / 2, options);
        let row = all(from_middle(rows)?.f_unsqueeze(1)?)?;
        let column = all(from_middle(columns)?.f_unsqueeze(0)?)?;
        let first = (rows / 2).max(columns / 2);
        let word = Tensor::f_arange_start(first, first + words, options)?.f_unsqueeze(0)?;
        let frame = Tensor::f_zeros([1, rows * columns], options)?;
        let mut axes = Vec::new();
        for (place, width) in [frame, row, column]
            .into_iter()
            .zip(self.config.axes_dims_rope)
        {
            axes.push((Tensor::f_cat(&[&word, &place], 1)?, width));
        }
        Rotary::at(&axes, THETA, self.device)
    }

    /// Which of the text's and the picture's tokens are seen, `[batch, 1, 1, tokens]`; `None` for all.
    fn seen(&self, words: i64, pictured: i64, tokens: &[i64]) -> Result<Option<Tensor>, Error> {
        if tokens.iter().all(|count| *count == words) {
            return Ok(None);
        }
        let counts = Tensor::f_from_slice(tokens)?.f_unsqueeze(1)?;
        let texts = Tensor::f_arange(words, (Kind::Int64, Device::Cpu))?.f_lt_tensor(&counts)?;
        let batch = tokens.len() as i64;
        let pictures = Tensor::f_ones([batch, pictured], (Kind::Bool, Device::Cpu))?;
        let seen = Tensor::f_cat(&[texts, pictures], 1)?;
        let seen = seen.f_unsqueeze(1)?.f_unsqueeze(1)?;
        Ok(Some(seen.f_to_device(self.device)?))
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
        let tokens = conditions.get(TEXT_TOKENS)?;
        let tokens = tokens
            .f_to_device(Device::Cpu)?
            .f_to_kind(Kind::Int64)?
            .f_view([-1])?;
        let tokens = Vec::<i64>::try_from(&tokens)?;
        self.velocity(noisy, &levels, (conditions.get(TEXT)?, &tokens), pass)
    }

    /// As by others, with each token as long as that of the prompt alone.
    fn guided(&self, positive: &Tensor, negative: &Tensor, scale: f64) -> Result<Tensor, Error> {
        let away = positive.f_sub(negative)?.f_mul_scalar(scale)?;
        let sum = patched(&negative.f_add(&away)?)?;
        let length = |tokens: &Tensor| -> Result<Tensor, Error> {
            let squares = tokens.f_square()?;
            Ok(squares
                .f_sum_dim_intlist([2].as_slice(), true, Kind::Float)?
                .f_sqrt()?)
        };
        let ratio = length(&patched(positive)?)?.f_div(&length(&sum)?)?;
        let (_, _, _, height, width) = positive.size5()?;
        unpatched(&sum.f_mul(&ratio)?, (height / PATCH, width / PATCH))
    }

    fn lists(&self) -> Vec<&dyn BlockList> {
        vec![&self.blocks]
    }

    fn description(&self) -> String {
        let (layers, width) = (self.config.num_layers, self.config.width());
        format!("{layers} double blocks of width {width}")
    }
}

/// `[batch, tokens, numbers of a patch]`: the channel comes first.
fn patched(latents: &Tensor) -> Result<Tensor, Error> {
    let (batch, channels, _, height, width) = latents.size5()?;
    let (rows, columns) = (height / PATCH, width / PATCH);
    Ok(latents
        .f_reshape([batch, channels, rows, PATCH, columns, PATCH])?
        .f_permute([0, 2, 4, 1, 3, 5])?
        .f_reshape([batch, rows * columns, channels * PATCH * PATCH])?)
}

/// Patches as `[batch, channels, 1, height, width]`.
fn unpatched(patches: &Tensor, (rows, columns): (i64, i64)) -> Result<Tensor, Error> {
    let (batch, _, numbers) = patches.size3()?;
    let channels = numbers / (PATCH * PATCH);
    Ok(patches
        .f_reshape([batch, rows, columns, channels, PATCH, PATCH])?
        .f_permute([0, 3, 1, 4, 2, 5])?
        .f_reshape([batch, channels, 1, rows * PATCH, columns * PATCH])?)
}
