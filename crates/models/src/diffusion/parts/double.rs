//! Blocks in which text and picture have weights of their own, and attend to each other.
//!
//! With bf16 compute, matrix products and attention run in bf16. Norms, modulation and residual sums are computed in
//! fp32, and the residual stream is rounded after each.

use tch::{Kind, Tensor};

use super::rotary::Rotary;
use crate::Error;
use crate::fused::{self, RowNorm};
use crate::model::layers::{Linear, RmsNorm};
use crate::model::{Builder, Initial, Layer};
use crate::tensor::{BaseMap, to_kind};

/// Input that all blocks share.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) rotary: Rotary,
    /// Tokens of the text, which come first.
    pub(crate) words: i64,
    /// Tokens of the picture, behind which those of others come that may have a time of their own.
    pub(crate) pictured: i64,
    /// Which tokens are seen, `[batch, 1, 1, tokens]`; `None` for all.
    pub(crate) seen: Option<Tensor>,
}

impl Shared {
    pub(crate) fn shallow_clone(&self) -> Self {
        Self {
            rotary: self.rotary.shallow_clone(),
            words: self.words,
            pictured: self.pictured,
            seen: self.seen.as_ref().map(Tensor::shallow_clone),
        }
    }
}

/// The layer norm of a stream, scaled and shifted by vectors `[batch, 1, width]`, in the stream's type.
pub(crate) fn modulated(
    stream: &Tensor,
    vectors: (&Tensor, &Tensor),
    epsilon: f64,
) -> Result<Tensor, Error> {
    modulated_as(stream.kind(), stream, vectors, epsilon)
}

/// [`modulated`], in the type `kind`.
pub(crate) fn modulated_as(
    kind: Kind,
    stream: &Tensor,
    (shift, scale): (&Tensor, &Tensor),
    epsilon: f64,
) -> Result<Tensor, Error> {
    let width = stream.size3()?.2;
    let none = None::<&Tensor>;
    let factor = scale.f_add_scalar(1.0)?;
    if fused::may_be_on(stream.device()) {
        let norm = RowNorm {
            factor: Some(&factor),
            shift: Some(shift),
            is_centred: true,
            ..RowNorm::new(stream, None, epsilon, kind)
        };
        if let Some([changed, _]) = norm.by_kernel()? {
            return Ok(changed);
        }
    }
    let normed = to_kind(stream, Kind::Float)?.f_layer_norm([width], none, none, epsilon, true)?;
    let scaled = normed.f_mul(&factor)?;
    drop(normed);
    let changed = scaled.f_add(shift)?;
    drop(scaled);
    to_kind(&changed, kind)
}

/// The stream plus `gate` times the change, in the stream's type.
pub(crate) fn gated(stream: &Tensor, gate: &Tensor, change: Tensor) -> Result<Tensor, Error> {
    let change = to_kind(&change, Kind::Float)?.f_mul(gate)?;
    let sum = to_kind(stream, Kind::Float)?.f_add(&change)?;
    drop(change);
    to_kind(&sum, stream.kind())
}

/// Vectors `[batch, n · width]` one by one, each `[batch, 1, width]`.
pub(crate) fn vectors<const N: usize>(all: &Tensor) -> Result<[Tensor; N], Error> {
    let parts = all.f_unsqueeze(1)?.f_chunk(N as i64, 2)?;
    let found = parts.len();
    parts
        .try_into()
        .map_err(|_| Error::Internal(format!("a modulation by {found} vectors in place of {N}")))
}

/// The vectors of a stream, and those of its tokens from some place on, if they are others.
struct Vectors {
    first: [Tensor; 6],
    rest: Option<(i64, [Tensor; 6])>,
}

impl Vectors {
    /// [`modulated`] by the vectors from `at` on.
    fn modulated(&self, stream: &Tensor, at: usize, epsilon: f64) -> Result<Tensor, Error> {
        self.of_parts(stream, |part, _, vectors| {
            modulated(part, (&vectors[at], &vectors[at + 1]), epsilon)
        })
    }

    /// [`gated`] by the vector `at`.
    fn gated(&self, stream: &Tensor, at: usize, change: &Tensor) -> Result<Tensor, Error> {
        self.of_parts(stream, |part, (start, length), vectors| {
            gated(part, &vectors[at], change.f_narrow(1, start, length)?)
        })
    }

    fn of_parts(
        &self,
        stream: &Tensor,
        make: impl Fn(&Tensor, (i64, i64), &[Tensor; 6]) -> Result<Tensor, Error>,
    ) -> Result<Tensor, Error> {
        let length = stream.size3()?.1;
        let part = |start: i64, length: i64, vectors| {
            make(
                &stream.f_narrow(1, start, length)?,
                (start, length),
                vectors,
            )
        };
        match &self.rest {
            None => make(stream, (0, length), &self.first),
            Some((start, rest)) => {
                let both = [
                    part(0, *start, &self.first)?,
                    part(*start, length - start, rest)?,
                ];
                Ok(Tensor::f_cat(&both, 1)?)
            }
        }
    }
}

/// Attention between all tokens: queries, keys and values `[batch, tokens, heads, head width]` to
/// `[batch, tokens, width]`.
pub(crate) fn attended([query, key, value]: [Tensor; 3], shared: &Shared) -> Result<Tensor, Error> {
    let turned = |rows: Tensor| shared.rotary.rotated(&rows);
    mixed([turned(query)?, turned(key)?, value], shared.seen.as_ref())
}

/// The same of queries and keys whose positions are in them already, or that have none.
pub(crate) fn mixed(
    [query, key, value]: [Tensor; 3],
    seen: Option<&Tensor>,
) -> Result<Tensor, Error> {
    let (batch, tokens, heads, head) = query.size4()?;
    let by_heads = |rows: Tensor| rows.f_transpose(1, 2);
    let (query, key, value) = (by_heads(query)?, by_heads(key)?, by_heads(value)?);
    let mixed = Tensor::f_scaled_dot_product_attention(
        &query, &key, &value, seen, 0.0, false, None, false,
    )?;
    drop((query, key, value));
    let joined = mixed.f_transpose(1, 2)?;
    drop(mixed);
    Ok(joined.f_reshape([batch, tokens, heads * head])?)
}

/// What a norm per head makes of queries or keys, in their type.
pub(crate) fn normed(norm: &RmsNorm, rows: &Tensor) -> Result<Tensor, Error> {
    norm.in_its_type(rows)
}

/// The first half of the numbers, after an activation, times the second.
pub(crate) fn folded(both: &Tensor) -> Result<Tensor, Error> {
    let inner = both.size3()?.2 / 2;
    let gate = both.f_narrow(2, 0, inner)?.f_silu()?;
    Ok(gate.f_mul(&both.f_narrow(2, inner, inner)?)?)
}

/// A linear layer with these `sizes`.
pub(crate) fn linear(
    name: &str,
    sizes: (i64, i64),
    bias: bool,
    builder: &mut Builder,
) -> Result<Linear, Error> {
    let initial = Initial::Normal((sizes.0 as f64).powf(-0.5));
    builder.linear(name, sizes, bias, initial)
}

/// How the blocks of a model differ from those of others.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Double {
    /// Of the picture, and of the text.
    pub(crate) streams: [Stream; 2],
    /// Whether linear layers have a bias.
    pub(crate) bias: bool,
    /// Whether the feed-forward layer multiplies two halves; otherwise it has GELU (approximated by tanh).
    pub(crate) is_folded: bool,
}

/// Names of the parts of a stream.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Stream {
    /// The layer that makes the block's vectors of the time; `None` if the model makes them for all blocks.
    pub(crate) modulation: Option<&'static str>,
    /// Queries, keys and values.
    pub(crate) inputs: [&'static str; 3],
    /// The norms of queries and keys, per head.
    pub(crate) norms: [&'static str; 2],
    /// The attention's output.
    pub(crate) output: &'static str,
    /// The feed-forward layer's matrices.
    pub(crate) feed_forward: [&'static str; 2],
}

/// Width of the residual stream, inside the feed-forward layer, and of a head; and what is added to variances.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Sizes {
    pub(crate) width: i64,
    pub(crate) inner: i64,
    pub(crate) head: i64,
    pub(crate) epsilon: f64,
}

/// One of the streams in a block.
#[derive(Debug)]
struct StreamLayers {
    modulation: Option<Linear>,
    inputs: [Linear; 3],
    norms: [RmsNorm; 2],
    output: Linear,
    up: Linear,
    down: Linear,
    is_folded: bool,
    epsilon: f64,
}

/// Vectors by which a block modulates a stream: shift, scale and gate for attention and feed-forward layer.
pub(crate) const VECTORS: i64 = 6;

impl StreamLayers {
    fn new(
        (kind, names): (&Double, &Stream),
        sizes: Sizes,
        block: &str,
        builder: &mut Builder,
    ) -> Result<Self, Error> {
        let Sizes {
            width,
            inner,
            head,
            epsilon,
        } = sizes;
        let mut layer = |part: &str, inputs: i64, outputs: i64| {
            let name = format!("{block}.{part}");
            linear(&name, (inputs, outputs), kind.bias, builder)
        };
        let modulation = match names.modulation {
            Some(name) => Some(layer(name, width, VECTORS * width)?),
            None => None,
        };
        let [query, key, value] = names.inputs;
        let inputs = [
            layer(query, width, width)?,
            layer(key, width, width)?,
            layer(value, width, width)?,
        ];
        let output = layer(names.output, width, width)?;
        let [up, down] = names.feed_forward;
        let halves = if kind.is_folded { 2 } else { 1 };
        let (up, down) = (
            layer(up, width, halves * inner)?,
            layer(down, inner, width)?,
        );
        let [query, key] = names.norms.map(|part| format!("{block}.{part}"));
        Ok(Self {
            modulation,
            inputs,
            norms: [
                builder.norm(&query, head, epsilon)?,
                builder.norm(&key, head, epsilon)?,
            ],
            output,
            up,
            down,
            is_folded: kind.is_folded,
            epsilon,
        })
    }

    /// The vectors of this block, of those of all blocks or of the time.
    fn vectors(&self, given: &Tensor, dropout: bool) -> Result<[Tensor; 6], Error> {
        match &self.modulation {
            Some(linear) => vectors(&to_kind(&linear.forward(given, dropout)?, Kind::Float)?),
            None => vectors(given),
        }
    }

    /// Queries, keys and values of a stream, `[batch, tokens, heads, head width]`.
    fn projected(
        &self,
        stream: &Tensor,
        vectors: &Vectors,
        dropout: bool,
    ) -> Result<[Tensor; 3], Error> {
        let [query, key, value] = &self.inputs;
        let input = vectors.modulated(stream, 0, self.epsilon)?;
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
        vectors: &Vectors,
        dropout: bool,
    ) -> Result<Tensor, Error> {
        let change = self.output.forward(attended, dropout)?;
        let stream = vectors.gated(stream, 2, &change)?;
        drop(change);
        let input = vectors.modulated(&stream, 3, self.epsilon)?;
        let up = self.up.forward(&input, dropout)?;
        drop(input);
        let inner = match self.is_folded {
            true => folded(&up)?,
            false => up.f_gelu("tanh")?,
        };
        drop(up);
        let change = self.down.forward(&inner, dropout)?;
        drop(inner);
        vectors.gated(&stream, 5, &change)
    }

    fn with_base(&self, map: BaseMap<'_>) -> Result<Self, Error> {
        let [query, key, value] = &self.inputs;
        let [query_norm, key_norm] = &self.norms;
        Ok(Self {
            modulation: match &self.modulation {
                Some(linear) => Some(linear.with_base(map)?),
                None => None,
            },
            inputs: [
                query.with_base(map)?,
                key.with_base(map)?,
                value.with_base(map)?,
            ],
            norms: [query_norm.with_base(map)?, key_norm.with_base(map)?],
            output: self.output.with_base(map)?,
            up: self.up.with_base(map)?,
            down: self.down.with_base(map)?,
            is_folded: self.is_folded,
            epsilon: self.epsilon,
        })
    }
}

/// A block in which text and picture have weights of their own, and attend to each other.
#[derive(Debug)]
pub(crate) struct DoubleBlock {
    picture: StreamLayers,
    text: StreamLayers,
}

impl DoubleBlock {
    /// The block called `name`.
    pub(crate) fn new(
        kind: &Double,
        sizes: Sizes,
        name: &str,
        builder: &mut Builder,
    ) -> Result<Self, Error> {
        let [picture, text] = &kind.streams;
        Ok(Self {
            picture: StreamLayers::new((kind, picture), sizes, name, builder)?,
            text: StreamLayers::new((kind, text), sizes, name, builder)?,
        })
    }
}

impl Layer for DoubleBlock {
    type Shared = Shared;

    fn share(shared: &Shared) -> Shared {
        shared.shallow_clone()
    }

    /// Inputs: the residual stream `[batch, tokens, width]`, text before picture, and the vectors of picture and text,
    /// `[batch, 6 · width]` fp32; or, if the block makes them, what it makes both of, `[batch, width]`. A third, behind
    /// that of the text, is for what follows the picture in its stream.
    fn forward(&self, inputs: &[Tensor], shared: &Shared, dropout: bool) -> Result<Tensor, Error> {
        let [stream, of_picture, others @ ..] = inputs else {
            let reason = "a double block takes the stream and its modulation";
            return Err(Error::Internal(reason.into()));
        };
        let of_text = others.first().unwrap_or(of_picture);
        let of_picture = Vectors {
            first: self.picture.vectors(of_picture, dropout)?,
            rest: match others.get(1) {
                Some(rest) => Some((shared.pictured, self.picture.vectors(rest, dropout)?)),
                None => None,
            },
        };
        let of_text = Vectors {
            first: self.text.vectors(of_text, dropout)?,
            rest: None,
        };
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
        let attended = attended([next()?, next()?, next()?], shared)?;
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
