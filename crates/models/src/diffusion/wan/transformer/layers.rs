//! The blocks of the transformer.
//!
//! With bf16 compute, matrix products and attention run in bf16. Norms, modulation and residual sums are
//! computed in fp32, and the residual stream is rounded after each, as in diffusers.

use tch::{Kind, Tensor};

use super::TransformerConfig;
use crate::Error;
use crate::diffusion::parts::double::{gated, modulated_as};
use crate::diffusion::parts::rotary::Rotary;
use crate::fused::{self, RowNorm};
use crate::model::layers::{Linear, RmsNorm};
use crate::model::{Builder, Initial, Layer};
use crate::tensor::{BaseMap, map_frozen, to_kind};

/// Input that all blocks share.
#[derive(Debug)]
pub(super) struct Shared {
    pub(super) rotary: Rotary,
    /// Number of tokens that use the first of two rows of modulation; `None` if there is one row.
    pub(super) first: Option<i64>,
    /// `[1, 1, 1, rows]`: attention bias of the text's rows, if one represents several.
    pub(super) text_bias: Option<Tensor>,
}

/// Self-attention, cross-attention to the text, and a feed-forward layer.
#[derive(Debug)]
pub(super) struct Block {
    to_itself: Attention,
    /// Weight and bias of the norm before the cross-attention, if any.
    norm: Option<(Tensor, Tensor)>,
    to_text: Attention,
    up: Linear,
    down: Linear,
    /// `[1, 6, width]`: added to the timestep modulation (`scale_shift_table`).
    table: Tensor,
    epsilon: f64,
}

impl Block {
    pub(super) fn new(
        config: &TransformerConfig,
        index: usize,
        builder: &mut Builder,
    ) -> Result<Self, Error> {
        let width = config.width();
        let name = |part: &str| format!("blocks.{index}.{part}");
        let initial = Initial::Normal((width as f64).powf(-0.5));
        let inner = config.ffn_dim;
        Ok(Self {
            to_itself: Attention::new(config, &name("attn1"), Initial::Ones, builder)?,
            norm: match config.cross_attn_norm {
                true => Some((
                    builder.kept(&name("norm2.weight"), &[width], Initial::Ones)?,
                    builder.kept(&name("norm2.bias"), &[width], Initial::Zeros)?,
                )),
                false => None,
            },
            to_text: Attention::new(config, &name("attn2"), CROSS_ATTENTION_QUERY_SCALE, builder)?,
            up: builder.linear(&name("ffn.net.0.proj"), (width, inner), true, initial)?,
            down: builder.linear(
                &name("ffn.net.2"),
                (inner, width),
                true,
                Initial::Normal((inner as f64).powf(-0.5)),
            )?,
            table: builder.kept(&name("scale_shift_table"), &[1, 6, width], initial)?,
            epsilon: config.eps,
        })
    }
}

/// Initial scale of the cross-attention's queries when training from scratch. A text is a few rows among
/// hundreds of zeros: at the usual scale, a new model would hardly attend to it; with this one, about as much
/// as to the zeros.
const CROSS_ATTENTION_QUERY_SCALE: Initial = Initial::Constant(3.0);

impl Layer for Block {
    type Shared = Shared;

    fn share(shared: &Shared) -> Shared {
        Shared {
            rotary: shared.rotary.shallow_clone(),
            first: shared.first,
            text_bias: shared.text_bias.as_ref().map(Tensor::shallow_clone),
        }
    }

    /// Inputs: the residual stream `[batch, length, width]`, the text `[batch, rows, width]`, and the
    /// timestep modulation `[batch, 1 or 2, 6, width]`.
    fn forward(&self, inputs: &[Tensor], shared: &Shared, dropout: bool) -> Result<Tensor, Error> {
        let [stream, text, times] = inputs else {
            return Err(Error::Internal(
                "a block takes stream, text and time".into(),
            ));
        };
        let rows = to_kind(times, Kind::Float)?.f_add(&self.table.f_unsqueeze(1)?)?;
        let rows = Modulation {
            rows: &rows,
            first: shared.first,
        };
        // Each step owns the stream, so that nothing but what autograd keeps is still alive at the end.
        let stream = self.self_attention(stream, &rows, &shared.rotary, dropout)?;
        let stream = self.cross_attention(stream, text, shared.text_bias.as_ref(), dropout)?;
        self.feed_forward(stream, &rows, dropout)
    }

    fn with_base(&self, map: BaseMap<'_>) -> Result<Self, Error> {
        Ok(Self {
            to_itself: self.to_itself.with_base(map)?,
            norm: match &self.norm {
                Some((weight, bias)) => Some((map_frozen(weight, map)?, map_frozen(bias, map)?)),
                None => None,
            },
            to_text: self.to_text.with_base(map)?,
            up: self.up.with_base(map)?,
            down: self.down.with_base(map)?,
            table: map_frozen(&self.table, map)?,
            epsilon: self.epsilon,
        })
    }
}

impl Block {
    /// `stream` plus its self-attention.
    fn self_attention(
        &self,
        stream: &Tensor,
        rows: &Modulation<'_>,
        rotary: &Rotary,
        dropout: bool,
    ) -> Result<Tensor, Error> {
        let normed = rows.modulated(stream.shallow_clone(), 0, (self.epsilon, stream.kind()))?;
        let attended = self
            .to_itself
            .forward(normed, None, Positions::Rotary(rotary), dropout)?;
        rows.gated_sum(stream, attended, 2)
    }

    /// `stream` plus its cross-attention to the text.
    fn cross_attention(
        &self,
        stream: Tensor,
        text: &Tensor,
        bias: Option<&Tensor>,
        dropout: bool,
    ) -> Result<Tensor, Error> {
        let normed = match &self.norm {
            Some(affine) => layer_norm(&stream, affine, self.epsilon)?,
            None => stream.shallow_clone(),
        };
        let positions = Positions::KeyBias(bias);
        let attended = self
            .to_text
            .forward(normed, Some(text), positions, dropout)?;
        Ok(stream.f_add(&attended)?)
    }

    fn feed_forward(
        &self,
        stream: Tensor,
        rows: &Modulation<'_>,
        dropout: bool,
    ) -> Result<Tensor, Error> {
        let normed = rows.modulated(stream.shallow_clone(), 3, (self.epsilon, stream.kind()))?;
        let inner = self.up.forward(&normed, dropout)?;
        drop(normed);
        let folded = inner.f_gelu("tanh")?;
        drop(inner);
        let made = self.down.forward(&folded, dropout)?;
        drop(folded);
        rows.gated_sum(&stream, made, 5)
    }
}

/// `tensor` as `kind`, consuming it so that its memory is freed early.
fn rounded(tensor: Tensor, kind: Kind) -> Result<Tensor, Error> {
    to_kind(&tensor, kind)
}

/// Layer norm of `[batch, length, width]` over the last dimension, computed in fp32, in the type of `stream`.
fn layer_norm(
    stream: &Tensor,
    (weight, bias): &(Tensor, Tensor),
    epsilon: f64,
) -> Result<Tensor, Error> {
    let (batch, _, width) = stream.size3()?;
    if fused::may_be_on(stream.device()) && !weight.requires_grad() && !bias.requires_grad() {
        let shift = bias.f_expand([batch, 1, width], false)?;
        let norm = RowNorm {
            shift: Some(&shift),
            is_centred: true,
            ..RowNorm::new(stream, Some(weight), epsilon, stream.kind())
        };
        if let Some([normed, _]) = norm.by_kernel()? {
            return Ok(normed);
        }
    }
    let full = to_kind(stream, Kind::Float)?;
    let normed = full.f_layer_norm([width], Some(weight), Some(bias), epsilon, true)?;
    drop(full);
    rounded(normed, stream.kind())
}

/// Rows of modulation: all tokens use the only row, or the first tokens use the first and the others the
/// second.
pub(super) struct Modulation<'a> {
    /// `[batch, 1 or 2, n, width]` fp32.
    pub(super) rows: &'a Tensor,
    pub(super) first: Option<i64>,
}

impl Modulation<'_> {
    /// The layer norm of `stream`, `[batch, length, width]`, times `1 + row[part + 1]`, plus `row[part]`: computed in fp32, in
    /// the type `kind`.
    pub(super) fn modulated(
        &self,
        stream: Tensor,
        part: i64,
        (epsilon, kind): (f64, Kind),
    ) -> Result<Tensor, Error> {
        self.each([stream], |[stream], rows| {
            let row = |part| rows.f_narrow(1, part, 1);
            modulated_as(kind, &stream, (&row(part)?, &row(part + 1)?), epsilon)
        })
    }

    /// `stream + change · row[part]`, computed in fp32, in the type of `stream`.
    fn gated_sum(&self, stream: &Tensor, change: Tensor, part: i64) -> Result<Tensor, Error> {
        self.each(
            [stream.shallow_clone(), change],
            |[stream, change], rows| gated(&stream, &rows.f_narrow(1, part, 1)?, change),
        )
    }

    /// Applies `work` to the tokens of each row and concatenates the results.
    fn each<const N: usize>(
        &self,
        inputs: [Tensor; N],
        work: impl Fn([Tensor; N], &Tensor) -> Result<Tensor, Error>,
    ) -> Result<Tensor, Error> {
        let Some(first) = self.first else {
            return work(inputs, &self.rows.f_select(1, 0)?);
        };
        let length = inputs.first().map_or(0, |input| input.size()[1]);
        let piece = |start, count, row| -> Result<Tensor, Error> {
            let mut pieces = inputs.each_ref().map(Tensor::shallow_clone);
            for piece in &mut pieces {
                *piece = piece.f_narrow(1, start, count)?;
            }
            work(pieces, &self.rows.f_select(1, row)?)
        };
        let made = [piece(0, first, 0)?, piece(first, length - first, 1)?];
        drop(inputs);
        Ok(Tensor::f_cat(&made, 1)?)
    }
}

/// Position information of an attention.
#[derive(Clone, Copy)]
enum Positions<'a> {
    /// Rotations of queries and keys.
    Rotary(&'a Rotary),
    /// None; optionally a bias for each key.
    KeyBias(Option<&'a Tensor>),
}

#[derive(Debug)]
struct Attention {
    query: Linear,
    key: Linear,
    value: Linear,
    output: Linear,
    query_norm: RmsNorm,
    key_norm: RmsNorm,
    heads: i64,
}

impl Attention {
    /// `sharpness` is the initial scale of the queries.
    fn new(
        config: &TransformerConfig,
        name: &str,
        sharpness: Initial,
        builder: &mut Builder,
    ) -> Result<Self, Error> {
        let width = config.width();
        let initial = Initial::Normal((width as f64).powf(-0.5));
        let part = |part: &str| format!("{name}.{part}");
        let mut linear = |suffix| builder.linear(&part(suffix), (width, width), true, initial);
        Ok(Self {
            query: linear("to_q")?,
            key: linear("to_k")?,
            value: linear("to_v")?,
            output: linear("to_out.0")?,
            query_norm: RmsNorm {
                weight: builder.vector(&part("norm_q.weight"), width, sharpness)?,
                epsilon: config.eps,
                plus_one: false,
            },
            key_norm: builder.norm(&part("norm_k"), width, config.eps)?,
            heads: config.num_attention_heads,
        })
    }

    /// `[batch, length, width]` to the same shape, attending to `[batch, rows, width]`: the same tensor, or
    /// the text.
    fn forward(
        &self,
        input: Tensor,
        text: Option<&Tensor>,
        positions: Positions<'_>,
        dropout: bool,
    ) -> Result<Tensor, Error> {
        let (batch, length, width) = input.size3()?;
        // One converted copy for all three; each adapter would otherwise keep its own.
        let linears = [&self.query, &self.key, &self.value];
        let adapted = Linear::shared_kind(&linears);
        let kind = adapted.unwrap_or(input.kind());
        let mixed = {
            let input = rounded(input, kind)?;
            let seen = match text {
                None => input.shallow_clone(),
                Some(text) if adapted.is_some() => to_kind(text, kind)?,
                Some(text) => text.shallow_clone(),
            };
            let query =
                self.normalised_heads(&self.query, &self.query_norm, &input, positions, dropout)?;
            drop(input);
            let key =
                self.normalised_heads(&self.key, &self.key_norm, &seen, positions, dropout)?;
            let value = self.split_heads(&self.value.forward(&seen, dropout)?)?;
            let value = value.f_transpose(1, 2)?;
            drop(seen);
            let bias = match positions {
                Positions::Rotary(_) => None,
                Positions::KeyBias(bias) => bias,
            };
            Tensor::f_scaled_dot_product_attention(
                &query, &key, &value, bias, 0.0, false, None, false,
            )?
        };
        let joined = mixed.f_transpose(1, 2)?;
        drop(mixed);
        let joined = joined.f_reshape([batch, length, width])?;
        self.output.forward(&joined, dropout)
    }

    /// Queries or keys, normalised over all heads together and split: `[batch, heads, rows, head width]`.
    fn normalised_heads(
        &self,
        linear: &Linear,
        norm: &RmsNorm,
        input: &Tensor,
        positions: Positions<'_>,
        dropout: bool,
    ) -> Result<Tensor, Error> {
        let rows = linear.forward(input, dropout)?;
        let kind = rows.kind();
        let normed = norm.forward(&rows)?;
        drop(rows);
        let rows = self.split_heads(&rounded(normed, kind)?)?;
        let rows = match positions {
            Positions::Rotary(rotary) => rotary.rotated(&rows)?,
            Positions::KeyBias(_) => rows,
        };
        Ok(rows.f_transpose(1, 2)?)
    }

    /// `[batch, rows, width]` as `[batch, rows, heads, head width]`.
    fn split_heads(&self, rows: &Tensor) -> Result<Tensor, Error> {
        let (batch, length, width) = rows.size3()?;
        Ok(rows.f_reshape([batch, length, self.heads, width / self.heads])?)
    }

    fn with_base(&self, map: BaseMap<'_>) -> Result<Self, Error> {
        Ok(Self {
            query: self.query.with_base(map)?,
            key: self.key.with_base(map)?,
            value: self.value.with_base(map)?,
            output: self.output.with_base(map)?,
            query_norm: self.query_norm.with_base(map)?,
            key_norm: self.key_norm.with_base(map)?,
            heads: self.heads,
        })
    }
}
