//! The blocks of the transformer.
//!
//! With bf16 compute, matrix products and attention run in bf16. Norms, modulation and residual sums are computed in
//! fp32, and the residual stream is rounded after each, as in diffusers.

use tch::{Kind, Tensor};

use super::TransformerConfig;
use crate::Error;
use crate::diffusion::parts::rotary::Rotary;
use crate::model::layers::{Linear, RmsNorm};
use crate::model::{Builder, Initial, Layer};
use crate::tensor::{BaseMap, to_kind};

/// Input that all blocks share.
#[derive(Debug)]
pub(super) struct Shared {
    pub(super) rotary: Rotary,
    /// Tokens of the text, which come first.
    pub(super) words: i64,
}

impl Shared {
    fn shallow_clone(&self) -> Self {
        Self {
            rotary: self.rotary.shallow_clone(),
            words: self.words,
        }
    }
}

/// The layer norm of a stream, scaled and shifted by vectors `[batch, 1, width]`, in the stream's type.
pub(super) fn modulated(
    stream: &Tensor,
    (shift, scale): (&Tensor, &Tensor),
    epsilon: f64,
) -> Result<Tensor, Error> {
    let width = stream.size3()?.2;
    let none = None::<&Tensor>;
    let normed = to_kind(stream, Kind::Float)?.f_layer_norm([width], none, none, epsilon, true)?;
    let changed = normed.f_mul(&scale.f_add_scalar(1.0)?)?.f_add(shift)?;
    to_kind(&changed, stream.kind())
}

/// The stream plus `gate` times the change, in the stream's type.
fn gated(stream: &Tensor, gate: &Tensor, change: Tensor) -> Result<Tensor, Error> {
    let change = to_kind(&change, Kind::Float)?.f_mul(gate)?;
    let sum = to_kind(stream, Kind::Float)?.f_add(&change)?;
    drop(change);
    to_kind(&sum, stream.kind())
}

/// Vectors `[batch, n · width]` one by one, each `[batch, 1, width]`.
fn vectors<const N: usize>(all: &Tensor) -> Result<[Tensor; N], Error> {
    let parts = all.f_unsqueeze(1)?.f_chunk(N as i64, 2)?;
    let found = parts.len();
    parts
        .try_into()
        .map_err(|_| Error::Internal(format!("a modulation by {found} vectors in place of {N}")))
}

/// Attention between all tokens: queries, keys and values `[batch, tokens, heads, head width]` to
/// `[batch, tokens, width]`.
fn attended([query, key, value]: [Tensor; 3], rotary: &Rotary) -> Result<Tensor, Error> {
    let (batch, tokens, heads, head) = query.size4()?;
    let turned = |rows: Tensor| {
        rotary
            .rotated(&rows)?
            .f_transpose(1, 2)
            .map_err(Error::from)
    };
    let (query, key) = (turned(query)?, turned(key)?);
    let value = value.f_transpose(1, 2)?;
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
    let joined = mixed.f_transpose(1, 2)?;
    drop(mixed);
    Ok(joined.f_reshape([batch, tokens, heads * head])?)
}

/// What a norm per head makes of queries or keys, in their type.
fn normed(norm: &RmsNorm, rows: &Tensor) -> Result<Tensor, Error> {
    to_kind(&norm.forward(rows)?, rows.kind())
}

/// The first half of the numbers, after an activation, times the second.
fn folded(both: &Tensor) -> Result<Tensor, Error> {
    let inner = both.size3()?.2 / 2;
    let gate = both.f_narrow(2, 0, inner)?.f_silu()?;
    Ok(gate.f_mul(&both.f_narrow(2, inner, inner)?)?)
}

/// A linear layer without bias.
fn linear(name: &str, sizes: (i64, i64), builder: &mut Builder) -> Result<Linear, Error> {
    let initial = Initial::Normal((sizes.0 as f64).powf(-0.5));
    builder.linear(name, sizes, false, initial)
}

/// One of the streams in a double block.
#[derive(Debug)]
struct Stream {
    /// Queries, keys and values.
    inputs: [Linear; 3],
    /// Of queries and keys, per head.
    norms: [RmsNorm; 2],
    output: Linear,
    /// The feed-forward layer.
    up: Linear,
    down: Linear,
    epsilon: f64,
}

/// Names of a stream's parts: queries, keys, values, their two norms, the attention's output, the feed-forward layer.
type StreamNames = [&'static str; 7];

const PICTURE: StreamNames = [
    "attn.to_q",
    "attn.to_k",
    "attn.to_v",
    "attn.norm_q",
    "attn.norm_k",
    "attn.to_out.0",
    "ff",
];

const TEXT: StreamNames = [
    "attn.add_q_proj",
    "attn.add_k_proj",
    "attn.add_v_proj",
    "attn.norm_added_q",
    "attn.norm_added_k",
    "attn.to_add_out",
    "ff_context",
];

impl Stream {
    fn new(
        config: &TransformerConfig,
        (block, names): (&str, StreamNames),
        builder: &mut Builder,
    ) -> Result<Self, Error> {
        let (width, inner, head) = (config.width(), config.inner(), config.attention_head_dim);
        let names = names.map(|part| format!("{block}.{part}"));
        let [
            query,
            key,
            value,
            query_norm,
            key_norm,
            output,
            feed_forward,
        ] = &names;
        Ok(Self {
            inputs: [
                linear(query, (width, width), builder)?,
                linear(key, (width, width), builder)?,
                linear(value, (width, width), builder)?,
            ],
            norms: [
                builder.norm(query_norm, head, config.eps)?,
                builder.norm(key_norm, head, config.eps)?,
            ],
            output: linear(output, (width, width), builder)?,
            up: linear(
                &format!("{feed_forward}.linear_in"),
                (width, 2 * inner),
                builder,
            )?,
            down: linear(
                &format!("{feed_forward}.linear_out"),
                (inner, width),
                builder,
            )?,
            epsilon: config.eps,
        })
    }

    /// Queries, keys and values of a stream, `[batch, tokens, heads, head width]`.
    fn projected(
        &self,
        stream: &Tensor,
        vectors: &[Tensor; 6],
        dropout: bool,
    ) -> Result<[Tensor; 3], Error> {
        let [query, key, value] = &self.inputs;
        let input = modulated(stream, (&vectors[0], &vectors[1]), self.epsilon)?;
        let input = Linear::shared_input(input, &[query, key, value])?;
        let (batch, tokens, _) = input.size3()?;
        let head = self.norms[0].weight.numel() as i64;
        let rows = |layer: &Linear| -> Result<Tensor, Error> {
            Ok(layer
                .forward(&input, dropout)?
                .f_reshape([batch, tokens, -1, head])?)
        };
        Ok([
            normed(&self.norms[0], &rows(query)?)?,
            normed(&self.norms[1], &rows(key)?)?,
            rows(value)?,
        ])
    }

    /// The stream after attention and feed-forward layer.
    fn finished(
        &self,
        stream: &Tensor,
        attended: &Tensor,
        vectors: &[Tensor; 6],
        dropout: bool,
    ) -> Result<Tensor, Error> {
        let change = self.output.forward(attended, dropout)?;
        let stream = gated(stream, &vectors[2], change)?;
        let input = modulated(&stream, (&vectors[3], &vectors[4]), self.epsilon)?;
        let both = self.up.forward(&input, dropout)?;
        drop(input);
        let inner = folded(&both)?;
        drop(both);
        let change = self.down.forward(&inner, dropout)?;
        drop(inner);
        gated(&stream, &vectors[5], change)
    }

    fn with_base(&self, map: BaseMap<'_>) -> Result<Self, Error> {
        let [query, key, value] = &self.inputs;
        let [query_norm, key_norm] = &self.norms;
        Ok(Self {
            inputs: [
                query.with_base(map)?,
                key.with_base(map)?,
                value.with_base(map)?,
            ],
            norms: [query_norm.with_base(map)?, key_norm.with_base(map)?],
            output: self.output.with_base(map)?,
            up: self.up.with_base(map)?,
            down: self.down.with_base(map)?,
            epsilon: self.epsilon,
        })
    }
}

/// A block in which text and picture have weights of their own, and attend to each other.
#[derive(Debug)]
pub(super) struct Double {
    picture: Stream,
    text: Stream,
}

impl Double {
    pub(super) fn new(
        config: &TransformerConfig,
        name: &str,
        builder: &mut Builder,
    ) -> Result<Self, Error> {
        Ok(Self {
            picture: Stream::new(config, (name, PICTURE), builder)?,
            text: Stream::new(config, (name, TEXT), builder)?,
        })
    }
}

impl Layer for Double {
    type Shared = Shared;

    fn share(shared: &Shared) -> Shared {
        shared.shallow_clone()
    }

    /// Inputs: the residual stream `[batch, tokens, width]`, text before picture, and the vectors of picture and text,
    /// `[batch, 6 · width]` fp32.
    fn forward(&self, inputs: &[Tensor], shared: &Shared, dropout: bool) -> Result<Tensor, Error> {
        let [stream, of_picture, of_text] = inputs else {
            let reason = "a double block takes the stream and two modulations";
            return Err(Error::Internal(reason.into()));
        };
        let (of_picture, of_text) = (vectors(of_picture)?, vectors(of_text)?);
        let words = shared.words;
        let split = |all: &Tensor| -> Result<(Tensor, Tensor), Error> {
            let rest = all.size3()?.1 - words;
            Ok((all.f_narrow(1, 0, words)?, all.f_narrow(1, words, rest)?))
        };
        let (text, picture) = split(stream)?;
        let of_both = self
            .text
            .projected(&text, &of_text, dropout)?
            .into_iter()
            .zip(self.picture.projected(&picture, &of_picture, dropout)?);
        let mut joined = of_both.map(|(text, picture)| Tensor::f_cat(&[text, picture], 1));
        let mut next = || -> Result<Tensor, Error> {
            let next = joined.next();
            Ok(next.ok_or_else(|| Error::Internal("attention without inputs".into()))??)
        };
        let attended = attended([next()?, next()?, next()?], &shared.rotary)?;
        let (to_text, to_picture) = split(&attended)?;
        drop(attended);
        let text = self.text.finished(&text, &to_text, &of_text, dropout)?;
        let picture = self
            .picture
            .finished(&picture, &to_picture, &of_picture, dropout)?;
        Ok(Tensor::f_cat(&[text, picture], 1)?)
    }

    fn with_base(&self, map: BaseMap<'_>) -> Result<Self, Error> {
        Ok(Self {
            picture: self.picture.with_base(map)?,
            text: self.text.with_base(map)?,
        })
    }
}

/// A block in which text and picture have the same weights, and attention and feed-forward layer the same input.
#[derive(Debug)]
pub(super) struct Single {
    /// Queries, keys, values, and both inputs of the feed-forward layer's product.
    input: Linear,
    /// Of queries and keys, per head.
    norms: [RmsNorm; 2],
    /// Of the attention, and the feed-forward layer's.
    output: Linear,
    width: i64,
    epsilon: f64,
}

impl Single {
    pub(super) fn new(
        config: &TransformerConfig,
        name: &str,
        builder: &mut Builder,
    ) -> Result<Self, Error> {
        let (width, inner, head) = (config.width(), config.inner(), config.attention_head_dim);
        let part = |part: &str| format!("{name}.attn.{part}");
        let made = 3 * width + 2 * inner;
        Ok(Self {
            input: linear(&part("to_qkv_mlp_proj"), (width, made), builder)?,
            norms: [
                builder.norm(&part("norm_q"), head, config.eps)?,
                builder.norm(&part("norm_k"), head, config.eps)?,
            ],
            output: linear(&part("to_out"), (width + inner, width), builder)?,
            width,
            epsilon: config.eps,
        })
    }
}

impl Layer for Single {
    type Shared = Shared;

    fn share(shared: &Shared) -> Shared {
        shared.shallow_clone()
    }

    /// Inputs: the residual stream `[batch, tokens, width]`, text before picture, and its vectors `[batch, 3 · width]`
    /// fp32.
    fn forward(&self, inputs: &[Tensor], shared: &Shared, dropout: bool) -> Result<Tensor, Error> {
        let [stream, of_both] = inputs else {
            let reason = "a single block takes the stream and a modulation";
            return Err(Error::Internal(reason.into()));
        };
        let [shift, scale, gate] = vectors(of_both)?;
        let input = modulated(stream, (&shift, &scale), self.epsilon)?;
        let made = self.input.forward(&input, dropout)?;
        drop(input);
        let (batch, tokens, all) = made.size3()?;
        let (width, head) = (self.width, self.norms[0].weight.numel() as i64);
        let rows = |number: i64| -> Result<Tensor, Error> {
            let part = made.f_narrow(2, number * width, width)?;
            Ok(part.f_reshape([batch, tokens, -1, head])?)
        };
        let parts = [
            normed(&self.norms[0], &rows(0)?)?,
            normed(&self.norms[1], &rows(1)?)?,
            rows(2)?,
        ];
        let attended = attended(parts, &shared.rotary)?;
        let inner = folded(&made.f_narrow(2, 3 * width, all - 3 * width)?)?;
        drop(made);
        let joined = Tensor::f_cat(&[attended, inner], 2)?;
        let change = self.output.forward(&joined, dropout)?;
        drop(joined);
        gated(stream, &gate, change)
    }

    fn with_base(&self, map: BaseMap<'_>) -> Result<Self, Error> {
        let [query, key] = &self.norms;
        Ok(Self {
            input: self.input.with_base(map)?,
            norms: [query.with_base(map)?, key.with_base(map)?],
            output: self.output.with_base(map)?,
            width: self.width,
            epsilon: self.epsilon,
        })
    }
}
