//! The blocks of the transformer, and the attention that the conditioner has, too.
//!
//! With bf16 compute, matrix products and attention run in bf16. Norms, modulation and residual sums are computed in
//! fp32, and the residual stream is rounded after each.

use tch::{Kind, Tensor};

use super::{EPSILON, TransformerConfig};
use crate::Error;
use crate::diffusion::parts::double::{gated, modulated};
use crate::diffusion::parts::rotary::Rotary;
use crate::model::layers::{Linear, RmsNorm};
use crate::model::{Builder, Initial, Layer};
use crate::tensor::{BaseMap, to_kind};

/// diffusers' epsilon of the norms of queries and keys.
const HEAD_NORM_EPSILON: f64 = 1e-5;

/// Names of the parts of an attention.
const ATTENTION: [&str; 6] = ["to_q", "to_k", "to_v", "to_out.0", "norm_q", "norm_k"];

/// Self-attention, cross-attention to the text, and a feed-forward layer.
#[derive(Debug)]
pub(super) struct Block {
    /// Of the three steps.
    modulations: [Modulation; 3],
    to_itself: Attention,
    to_text: Attention,
    up: Linear,
    down: Linear,
}

impl Block {
    pub(super) fn new(
        config: &TransformerConfig,
        index: usize,
        builder: &mut Builder,
    ) -> Result<Self, Error> {
        let part = |part: &str| format!("transformer_blocks.{index}.{part}");
        let (width, inner) = (config.width(), config.inner());
        let attention = |name: &str, source: i64, builder: &mut Builder| {
            let sizes = AttentionSizes {
                width,
                source,
                heads: config.num_attention_heads,
                epsilon: HEAD_NORM_EPSILON,
            };
            Attention::new(
                &sizes,
                &ATTENTION.map(|name_of| part(&format!("{name}.{name_of}"))),
                builder,
            )
        };
        let modulation =
            |name: &str, builder: &mut Builder| Modulation::new(config, &part(name), 3, builder);
        Ok(Self {
            modulations: [
                modulation("norm1", builder)?,
                modulation("norm2", builder)?,
                modulation("norm3", builder)?,
            ],
            to_itself: attention("attn1", width, builder)?,
            to_text: attention("attn2", config.text_embed_dim, builder)?,
            up: builder.linear(
                &part("ff.net.0.proj"),
                (width, inner),
                false,
                initial(width),
            )?,
            down: builder.linear(&part("ff.net.2"), (inner, width), false, initial(inner))?,
        })
    }

    /// `stream` plus the gated change that `work` makes of the modulated stream.
    fn step(
        &self,
        number: usize,
        stream: &Tensor,
        times: &Times<'_>,
        dropout: bool,
        work: impl FnOnce(Tensor) -> Result<Tensor, Error>,
    ) -> Result<Tensor, Error> {
        let [shift, scale, gate] = self.modulations[number].rows(times, dropout)?;
        let change = work(modulated(stream, (&shift, &scale), EPSILON)?)?;
        gated(stream, &gate, change)
    }

    fn feed_forward(&self, input: Tensor, dropout: bool) -> Result<Tensor, Error> {
        let inner = self.up.forward(&input, dropout)?;
        drop(input);
        let folded = inner.f_gelu("none")?;
        drop(inner);
        self.down.forward(&folded, dropout)
    }
}

impl Layer for Block {
    type Shared = Rotary;

    fn share(shared: &Rotary) -> Rotary {
        shared.shallow_clone()
    }

    /// Inputs: the residual stream `[batch, tokens, width]`, the text `[batch, rows, text width]`, and the time's two
    /// embeddings, see [`Times`].
    fn forward(&self, inputs: &[Tensor], rotary: &Rotary, dropout: bool) -> Result<Tensor, Error> {
        let [stream, text, embedded, added] = inputs else {
            let reason = "a block takes the stream, the text and two embeddings of the time";
            return Err(Error::Internal(reason.into()));
        };
        let times = Times { embedded, added };
        // The gradients of keys and values are summed here first, as where the block is computed again: bits depend on it.
        let text = text.f_alias()?;
        let stream = self.step(0, stream, &times, dropout, |input| {
            let positions = Some((rotary, rotary));
            self.to_itself
                .forward(input, None, positions, None, dropout)
        })?;
        let stream = self.step(1, &stream, &times, dropout, |input| {
            self.to_text
                .forward(input, Some(&text), None, None, dropout)
        })?;
        self.step(2, &stream, &times, dropout, |input| {
            self.feed_forward(input, dropout)
        })
    }

    fn with_base(&self, map: BaseMap<'_>) -> Result<Self, Error> {
        let [first, second, third] = &self.modulations;
        Ok(Self {
            modulations: [
                first.with_base(map)?,
                second.with_base(map)?,
                third.with_base(map)?,
            ],
            to_itself: self.to_itself.with_base(map)?,
            to_text: self.to_text.with_base(map)?,
            up: self.up.with_base(map)?,
            down: self.down.with_base(map)?,
        })
    }
}

/// What the time says to all modulations.
pub(super) struct Times<'a> {
    /// `[batch, width]`: what each makes its rows of.
    pub(super) embedded: &'a Tensor,
    /// `[batch, 3 · width]` fp32: what is added to those of all.
    pub(super) added: &'a Tensor,
}

/// Rows by which a normalised stream is shifted and scaled, and perhaps its change is gated: a product of two matrices.
#[derive(Debug)]
pub(super) struct Modulation {
    first: Linear,
    second: Linear,
}

impl Modulation {
    /// One with `rows` rows.
    pub(super) fn new(
        config: &TransformerConfig,
        name: &str,
        rows: i64,
        builder: &mut Builder,
    ) -> Result<Self, Error> {
        let (width, inner) = (config.width(), config.adaln_lora_dim);
        let mut linear = |part: &str, shape: (i64, i64), initial| {
            builder.linear(&format!("{name}.{part}"), shape, false, initial)
        };
        Ok(Self {
            first: linear("linear_1", (width, inner), initial(width))?,
            second: linear("linear_2", (inner, rows * width), Initial::Zeros)?,
        })
    }

    /// Its rows, each `[batch, 1, width]` fp32, in the order shift, scale, gate.
    pub(super) fn rows<const N: usize>(
        &self,
        times: &Times<'_>,
        dropout: bool,
    ) -> Result<[Tensor; N], Error> {
        let inner = self.first.forward(times.embedded, dropout)?;
        let own = to_kind(&self.second.forward(&inner, dropout)?, Kind::Float)?;
        let rows = own.f_add(&times.added.f_narrow(1, 0, own.size2()?.1)?)?;
        let rows = rows.f_unsqueeze(1)?.f_chunk(N as i64, 2)?;
        rows.try_into()
            .map_err(|_| Error::Internal("a modulation of other rows".into()))
    }

    fn with_base(&self, map: BaseMap<'_>) -> Result<Self, Error> {
        Ok(Self {
            first: self.first.with_base(map)?,
            second: self.second.with_base(map)?,
        })
    }
}

/// How matrices with so many inputs are drawn.
pub(super) fn initial(inputs: i64) -> Initial {
    Initial::Normal((inputs as f64).powf(-0.5))
}

/// The sizes of an attention.
pub(super) struct AttentionSizes {
    pub(super) width: i64,
    /// Width of what is attended to.
    pub(super) source: i64,
    pub(super) heads: i64,
    /// Of the norms of queries and keys.
    pub(super) epsilon: f64,
}

/// Attention whose queries and keys are normalised per head.
#[derive(Debug)]
pub(super) struct Attention {
    query: Linear,
    key: Linear,
    value: Linear,
    output: Linear,
    /// Of queries and keys.
    norms: [RmsNorm; 2],
    heads: i64,
}

impl Attention {
    /// `names` are those of q, k, v, the output, and the norms of q and k.
    pub(super) fn new(
        sizes: &AttentionSizes,
        names: &[String; 6],
        builder: &mut Builder,
    ) -> Result<Self, Error> {
        let [query, key, value, output, query_norm, key_norm] = names;
        let &AttentionSizes {
            width,
            source,
            heads,
            epsilon,
        } = sizes;
        let mut linear = |name: &String, inputs: i64| {
            builder.linear(name, (inputs, width), false, initial(inputs))
        };
        Ok(Self {
            query: linear(query, width)?,
            key: linear(key, source)?,
            value: linear(value, source)?,
            output: linear(output, width)?,
            norms: [
                builder.norm(query_norm, width / heads, epsilon)?,
                builder.norm(key_norm, width / heads, epsilon)?,
            ],
            heads,
        })
    }

    /// `[batch, length, width]` to the same shape, attending to `source` `[batch, rows, source width]` or, without one, to
    /// itself. Queries and keys are turned by `positions`; of the keys, those are seen that `seen`
    /// `[batch, 1, 1, rows]` has.
    pub(super) fn forward(
        &self,
        input: Tensor,
        source: Option<&Tensor>,
        positions: Option<(&Rotary, &Rotary)>,
        seen: Option<&Tensor>,
        dropout: bool,
    ) -> Result<Tensor, Error> {
        let (batch, length, width) = input.size3()?;
        let linears = [&self.query, &self.key, &self.value];
        // One converted copy for all three; each adapter would otherwise keep its own.
        let adapted = Linear::shared_kind(&linears);
        let converted = |tensor: &Tensor| match adapted {
            Some(kind) => to_kind(tensor, kind),
            None => Ok(tensor.shallow_clone()),
        };
        let mixed = {
            let input = converted(&input)?;
            let source = source.map_or_else(|| Ok(input.shallow_clone()), converted)?;
            let (of_queries, of_keys) = positions.unzip();
            let query = self.turned(&self.query, 0, &input, of_queries, dropout)?;
            drop(input);
            let key = self.turned(&self.key, 1, &source, of_keys, dropout)?;
            let value = self.split(&self.value, &source, dropout)?;
            let value = value.f_transpose(1, 2)?;
            drop(source);
            Tensor::f_scaled_dot_product_attention(
                &query, &key, &value, seen, 0.0, false, None, false,
            )?
        };
        drop(input);
        let joined = mixed.f_transpose(1, 2)?;
        drop(mixed);
        let joined = joined.f_reshape([batch, length, width])?;
        self.output.forward(&joined, dropout)
    }

    /// `[batch, rows, heads, head width]`
    fn split(&self, linear: &Linear, input: &Tensor, dropout: bool) -> Result<Tensor, Error> {
        let rows = linear.forward(input, dropout)?;
        let (batch, length, width) = rows.size3()?;
        Ok(rows.f_reshape([batch, length, self.heads, width / self.heads])?)
    }

    /// Queries or keys, normalised and turned: `[batch, heads, rows, head width]`.
    fn turned(
        &self,
        linear: &Linear,
        norm: usize,
        input: &Tensor,
        rotary: Option<&Rotary>,
        dropout: bool,
    ) -> Result<Tensor, Error> {
        let rows = self.split(linear, input, dropout)?;
        let kind = rows.kind();
        let normed = to_kind(&self.norms[norm].forward(&rows)?, kind)?;
        drop(rows);
        let turned = match rotary {
            Some(rotary) => rotary.rotated(&normed)?,
            None => normed,
        };
        Ok(turned.f_transpose(1, 2)?)
    }

    /// Whether an adapter changes it.
    pub(super) fn is_adapted(&self) -> bool {
        let linears = [&self.query, &self.key, &self.value, &self.output];
        linears.iter().any(|linear| linear.adapter.is_some())
    }

    pub(super) fn with_base(&self, map: BaseMap<'_>) -> Result<Self, Error> {
        let [query_norm, key_norm] = &self.norms;
        Ok(Self {
            query: self.query.with_base(map)?,
            key: self.key.with_base(map)?,
            value: self.value.with_base(map)?,
            output: self.output.with_base(map)?,
            norms: [query_norm.with_base(map)?, key_norm.with_base(map)?],
            heads: self.heads,
        })
    }
}
