//! What the stages consist of.

use tch::{Device, Tensor};

use super::UnetConfig;
use crate::Error;
use crate::diffusion::parts::conv::{Conv, GroupNorm};
use crate::model::layers::{LayerNorm, Linear};
use crate::model::{Blocks, Builder, Initial, Layer, Pass};
use crate::tensor::{BaseMap, to_kind};

/// Added to variances in the first norm of a transformer, and in those of its blocks.
const EPSILONS: (f64, f64) = (1e-6, 1e-5);

/// Two convolutions with a skip connection; between them the time is added.
#[derive(Debug)]
pub(super) struct Residual {
    norms: [GroupNorm; 2],
    convolutions: [Conv; 2],
    time: Linear,
    shortcut: Option<Conv>,
}

impl Residual {
    pub(super) fn new(
        name: &str,
        (inputs, outputs): (i64, i64),
        config: &UnetConfig,
        builder: &mut Builder,
    ) -> Result<Self, Error> {
        let part = |part: &str| format!("{name}.{part}");
        let grouped = (config.norm_num_groups, config.norm_eps);
        let initial = Initial::Normal((config.time() as f64).powf(-0.5));
        Ok(Self {
            norms: [
                GroupNorm::new(&part("norm1"), inputs, grouped, builder)?,
                GroupNorm::new(&part("norm2"), outputs, grouped, builder)?,
            ],
            convolutions: [
                Conv::new(&part("conv1"), (inputs, outputs), 3, builder)?,
                Conv::new(&part("conv2"), (outputs, outputs), 3, builder)?,
            ],
            time: builder.linear(
                &part("time_emb_proj"),
                (config.time(), outputs),
                true,
                initial,
            )?,
            shortcut: match inputs == outputs {
                true => None,
                false => Some(Conv::new(
                    &part("conv_shortcut"),
                    (inputs, outputs),
                    1,
                    builder,
                )?),
            },
        })
    }
}

impl Layer for Residual {
    type Shared = ();

    fn share((): &()) {}

    /// Inputs: `[batch, channels, height, width]`, and the embedded time `[batch, width]`.
    fn forward(&self, inputs: &[Tensor], (): &(), dropout: bool) -> Result<Tensor, Error> {
        let [input, time] = inputs else {
            let reason = "a residual block takes the stream and a time";
            return Err(Error::Internal(reason.into()));
        };
        let [first, second] = &self.convolutions;
        let stream = first.same_size(&self.norms[0].forward(input)?.f_silu()?)?;
        let time = to_kind(&self.time.forward(time, dropout)?, stream.kind())?;
        let stream = stream.f_add(&time.f_unsqueeze(-1)?.f_unsqueeze(-1)?)?;
        let stream = second.same_size(&self.norms[1].forward(&stream)?.f_silu()?)?;
        Ok(match &self.shortcut {
            Some(shortcut) => shortcut.same_size(input)?.f_add(&stream)?,
            None => input.f_add(&stream)?,
        })
    }

    fn with_base(&self, map: BaseMap<'_>) -> Result<Self, Error> {
        let ([first, second], [one, two]) = (&self.norms, &self.convolutions);
        Ok(Self {
            norms: [first.with_base(map)?, second.with_base(map)?],
            convolutions: [one.with_base(map)?, two.with_base(map)?],
            time: self.time.with_base(map)?,
            shortcut: match &self.shortcut {
                Some(shortcut) => Some(shortcut.with_base(map)?),
                None => None,
            },
        })
    }
}

/// Blocks in which the pixels of a picture see each other and the text, between two linear layers.
#[derive(Debug)]
pub(super) struct Transformer {
    norm: GroupNorm,
    input: Linear,
    blocks: Blocks<Block>,
    output: Linear,
}

impl Transformer {
    /// That of a stage of this number.
    pub(super) fn new(
        name: &str,
        (config, number): (&UnetConfig, usize),
        device: Device,
        builder: &mut Builder,
    ) -> Result<Self, Error> {
        let part = |part: &str| format!("{name}.{part}");
        let width = config.block_out_channels[number];
        let initial = Initial::Normal((width as f64).powf(-0.5));
        let grouped = (config.norm_num_groups, EPSILONS.0);
        let norm = GroupNorm::new(&part("norm"), width, grouped, builder)?;
        let input = builder.linear(&part("proj_in"), (width, width), true, initial)?;
        let list = part("transformer_blocks");
        let count = config.transformer_layers_per_block[number] as usize;
        let blocks = Blocks::new((&list, count), device, builder, |index, builder| {
            Block::new(&format!("{list}.{index}"), (config, number), builder)
        })?;
        Ok(Self {
            norm,
            input,
            blocks,
            output: builder.linear(&part("proj_out"), (width, width), true, initial)?,
        })
    }

    pub(super) fn blocks(&self) -> &Blocks<Block> {
        &self.blocks
    }

    /// `[batch, channels, height, width]` to the same shape.
    pub(super) fn forward(
        &self,
        input: Tensor,
        text: &Tensor,
        pass: Pass,
    ) -> Result<Tensor, Error> {
        let (batch, channels, height, width) = input.size4()?;
        let dropout = pass != Pass::Evaluate;
        let rows = self
            .norm
            .forward(&input)?
            .f_flatten(2, 3)?
            .f_transpose(1, 2)?;
        let stream = self.input.forward(&rows.f_contiguous()?, dropout)?;
        drop(rows);
        let stream = self.blocks.forward(stream, &[], text, pass)?;
        let rows = self.output.forward(&stream, dropout)?.f_transpose(1, 2)?;
        let made = rows.f_reshape([batch, channels, height, width])?;
        Ok(made.f_add(&input)?)
    }
}

/// Attention between pixels, attention to the text, and a gated feed-forward layer, each behind a norm.
#[derive(Debug)]
pub(super) struct Block {
    norms: [LayerNorm; 3],
    pixels: Attention,
    text: Attention,
    /// To the input and the gate of the feed-forward layer, and from their product.
    feed_forward: [Linear; 2],
}

impl Block {
    fn new(
        name: &str,
        (config, number): (&UnetConfig, usize),
        builder: &mut Builder,
    ) -> Result<Self, Error> {
        let part = |part: &str| format!("{name}.{part}");
        let (width, heads) = (config.block_out_channels[number], config.heads[number]);
        let mut norm =
            |number: i64| builder.layer_norm(&part(&format!("norm{number}")), width, EPSILONS.1);
        let norms = [norm(1)?, norm(2)?, norm(3)?];
        let (pixels, text) = ((width, width), (width, config.cross_attention_dim));
        let inner = 4 * width;
        let initial = |inputs: i64| Initial::Normal((inputs as f64).powf(-0.5));
        Ok(Self {
            norms,
            pixels: Attention::new(&part("attn1"), pixels, heads, builder)?,
            text: Attention::new(&part("attn2"), text, heads, builder)?,
            feed_forward: [
                builder.linear(
                    &part("ff.net.0.proj"),
                    (width, 2 * inner),
                    true,
                    initial(width),
                )?,
                builder.linear(&part("ff.net.2"), (inner, width), true, initial(inner))?,
            ],
        })
    }
}

impl Layer for Block {
    /// The text, `[batch, tokens, width]`.
    type Shared = Tensor;

    fn share(shared: &Tensor) -> Tensor {
        shared.shallow_clone()
    }

    /// Input: the residual stream `[batch, pixels, width]`.
    fn forward(&self, inputs: &[Tensor], text: &Tensor, dropout: bool) -> Result<Tensor, Error> {
        let [stream] = inputs else {
            return Err(Error::Internal("a block takes the stream alone".into()));
        };
        let [first, second, third] = &self.norms;
        let pixels = &self.pixels;
        let normed = Linear::shared_input(
            first.forward(stream)?,
            &[&pixels.query, &pixels.key, &pixels.value],
        )?;
        let stream = stream.f_add(&pixels.forward(&normed, &normed, dropout)?)?;
        let normed = second.forward(&stream)?;
        let stream = stream.f_add(&self.text.forward(&normed, text, dropout)?)?;
        let [unfold, fold] = &self.feed_forward;
        let both = unfold.forward(&third.forward(&stream)?, dropout)?;
        let halves = both.f_chunk(2, -1)?;
        drop(both);
        let [inner, gate] = &halves[..] else {
            return Err(Error::Internal(
                "a feed-forward layer without a gate".into(),
            ));
        };
        let folded = inner.f_mul(&gate.f_gelu("none")?)?;
        Ok(stream.f_add(&fold.forward(&folded, dropout)?)?)
    }

    fn with_base(&self, map: BaseMap<'_>) -> Result<Self, Error> {
        let [first, second, third] = &self.norms;
        let [unfold, fold] = &self.feed_forward;
        Ok(Self {
            norms: [
                first.with_base(map)?,
                second.with_base(map)?,
                third.with_base(map)?,
            ],
            pixels: self.pixels.with_base(map)?,
            text: self.text.with_base(map)?,
            feed_forward: [unfold.with_base(map)?, fold.with_base(map)?],
        })
    }
}

#[derive(Debug)]
struct Attention {
    query: Linear,
    key: Linear,
    value: Linear,
    output: Linear,
    heads: i64,
}

impl Attention {
    /// Of rows as wide as the first number to rows as wide as the second.
    fn new(
        name: &str,
        (width, seen): (i64, i64),
        heads: i64,
        builder: &mut Builder,
    ) -> Result<Self, Error> {
        let mut linear = |part: &str, inputs: i64, bias: bool| {
            let initial = Initial::Normal((inputs as f64).powf(-0.5));
            builder.linear(&format!("{name}.{part}"), (inputs, width), bias, initial)
        };
        Ok(Self {
            query: linear("to_q", width, false)?,
            key: linear("to_k", seen, false)?,
            value: linear("to_v", seen, false)?,
            output: linear("to_out.0", width, true)?,
            heads,
        })
    }

    /// `[batch, pixels, width]` to the same shape; `seen` is `[batch, tokens, width]`.
    fn forward(&self, input: &Tensor, seen: &Tensor, dropout: bool) -> Result<Tensor, Error> {
        let (batch, length, width) = input.size3()?;
        let heads = |rows: Tensor| -> Result<Tensor, Error> {
            let split = rows.f_reshape([batch, -1, self.heads, width / self.heads])?;
            Ok(split.f_transpose(1, 2)?)
        };
        let query = heads(self.query.forward(input, dropout)?)?;
        let key = heads(self.key.forward(seen, dropout)?)?;
        let value = heads(self.value.forward(seen, dropout)?)?;
        let mixed = Tensor::f_scaled_dot_product_attention(
            &query,
            &key,
            &value,
            None::<&Tensor>,
            0.0,
            false,
            None,
            false,
        )?;
        drop((query, key, value));
        let joined = mixed.f_transpose(1, 2)?.f_reshape([batch, length, width])?;
        self.output.forward(&joined, dropout)
    }

    fn with_base(&self, map: BaseMap<'_>) -> Result<Self, Error> {
        Ok(Self {
            query: self.query.with_base(map)?,
            key: self.key.with_base(map)?,
            value: self.value.with_base(map)?,
            output: self.output.with_base(map)?,
            heads: self.heads,
        })
    }
}
