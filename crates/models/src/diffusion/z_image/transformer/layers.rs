//! The blocks of the transformer.
//!
//! With bf16 compute, matrix products and attention run in bf16. Norms, modulation and residual sums are computed in
//! fp32, and the residual stream is rounded after each, as in diffusers.

use tch::{Kind, Tensor};

use super::TransformerConfig;
use super::config::HEAD_NORM_EPSILON;
use crate::Error;
use crate::diffusion::parts::rotary::Rotary;
use crate::fused::RowNorm;
use crate::model::layers::{Linear, RmsNorm};
use crate::model::{Builder, Initial, Layer};
use crate::tensor::{BaseMap, to_kind};

/// Input that the blocks of a list share.
#[derive(Debug)]
pub(super) struct Shared {
    pub(super) rotary: Rotary,
    /// `[batch, 1, 1, tokens]`: which tokens are seen; `None` for all.
    pub(super) seen: Option<Tensor>,
}

/// Self-attention and a gated feed-forward layer, each with a norm before and after.
#[derive(Debug)]
pub(super) struct Block {
    /// Scales and gates from the time; `None` in the blocks that see only the text.
    modulation: Option<Linear>,
    /// Before and after attention, before and after the feed-forward layer.
    norms: [RmsNorm; 4],
    attention: Attention,
    gate: Linear,
    up: Linear,
    down: Linear,
}

impl Block {
    pub(super) fn new(
        config: &TransformerConfig,
        name: &str,
        is_modulated: bool,
        builder: &mut Builder,
    ) -> Result<Self, Error> {
        let part = |part: &str| format!("{name}.{part}");
        let (width, inner, epsilon) = (config.dim, config.inner(), config.norm_eps);
        let initial = |inputs: i64| Initial::Normal((inputs as f64).powf(-0.5));
        let modulation = (config.modulation(), 4 * width);
        Ok(Self {
            modulation: match is_modulated {
                true => Some(builder.linear(
                    &part("adaLN_modulation.0"),
                    modulation,
                    true,
                    Initial::Normal(0.02),
                )?),
                false => None,
            },
            attention: Attention::new(config, &part("attention"), builder)?,
            norms: [
                builder.norm(&part("attention_norm1"), width, epsilon)?,
                builder.norm(&part("attention_norm2"), width, epsilon)?,
                builder.norm(&part("ffn_norm1"), width, epsilon)?,
                builder.norm(&part("ffn_norm2"), width, epsilon)?,
            ],
            gate: builder.linear(
                &part("feed_forward.w1"),
                (width, inner),
                false,
                initial(width),
            )?,
            up: builder.linear(
                &part("feed_forward.w3"),
                (width, inner),
                false,
                initial(width),
            )?,
            down: builder.linear(
                &part("feed_forward.w2"),
                (inner, width),
                false,
                initial(inner),
            )?,
        })
    }

    /// Scale and gate of the attention, scale and gate of the feed-forward layer: each `[batch, 1, width]` fp32.
    fn modulated_by(&self, inputs: &[Tensor], dropout: bool) -> Result<Option<[Tensor; 4]>, Error> {
        let (linear, time) = match (&self.modulation, inputs) {
            (Some(linear), [_, time]) => (linear, time),
            (None, [_]) => return Ok(None),
            _ => {
                let reason = "a block takes the stream, and a time if it is modulated";
                return Err(Error::Internal(reason.into()));
            }
        };
        let rows = to_kind(&linear.forward(time, dropout)?, Kind::Float)?.f_unsqueeze(1)?;
        let width = rows.size3()?.2 / 4;
        let part = |index: i64| rows.f_narrow(2, index * width, width);
        let scale = |index| part(index)?.f_add_scalar(1.0);
        let gate = |index| part(index)?.f_tanh();
        Ok(Some([scale(0)?, gate(1)?, scale(2)?, gate(3)?]))
    }

    /// `norm` of the stream, times `scale`, in the stream's type.
    fn before(norm: &RmsNorm, stream: &Tensor, scale: Option<&Tensor>) -> Result<Tensor, Error> {
        if let Some(weight) = norm.weight_of_kernel()? {
            let fused = RowNorm {
                factor: scale,
                ..RowNorm::new(stream, Some(&weight), norm.epsilon, stream.kind())
            };
            if let Some([scaled, _]) = fused.by_kernel()? {
                return Ok(scaled);
            }
        }
        let normed = norm.forward(stream)?;
        let scaled = match scale {
            Some(scale) => normed.f_mul(scale)?,
            None => normed,
        };
        to_kind(&scaled, stream.kind())
    }

    /// The stream plus `gate` times `norm` of the change, in the stream's type.
    fn after(
        norm: &RmsNorm,
        stream: &Tensor,
        change: Tensor,
        gate: Option<&Tensor>,
    ) -> Result<Tensor, Error> {
        if let Some(weight) = norm.weight_of_kernel()? {
            let fused = RowNorm {
                factor: gate,
                residual: Some(stream),
                ..RowNorm::new(&change, Some(&weight), norm.epsilon, stream.kind())
            };
            if let Some([sum, _]) = fused.by_kernel()? {
                return Ok(sum);
            }
        }
        let normed = norm.forward(&change)?;
        drop(change);
        let gated = match gate {
            Some(gate) => normed.f_mul(gate)?,
            None => normed,
        };
        let sum = to_kind(stream, Kind::Float)?.f_add(&gated)?;
        drop(gated);
        to_kind(&sum, stream.kind())
    }
}

impl Layer for Block {
    type Shared = Shared;

    fn share(shared: &Shared) -> Shared {
        Shared {
            rotary: shared.rotary.shallow_clone(),
            seen: shared.seen.as_ref().map(Tensor::shallow_clone),
        }
    }

    /// Inputs: the residual stream `[batch, tokens, width]`, and the embedded time `[batch, modulation]` if the block is
    /// modulated.
    fn forward(&self, inputs: &[Tensor], shared: &Shared, dropout: bool) -> Result<Tensor, Error> {
        let rows = self.modulated_by(inputs, dropout)?;
        let row = |index: usize| rows.as_ref().map(|rows| &rows[index]);
        let stream = inputs
            .first()
            .ok_or_else(|| Error::Internal("a block without a stream".into()))?;
        let normed = Self::before(&self.norms[0], stream, row(0))?;
        let attended = self.attention.forward(normed, shared, dropout)?;
        let stream = Self::after(&self.norms[1], stream, attended, row(1))?;
        let normed = Self::before(&self.norms[2], &stream, row(2))?;
        let normed = Linear::shared_input(normed, &[&self.gate, &self.up])?;
        let gate = self.gate.forward(&normed, dropout)?;
        let up = self.up.forward(&normed, dropout)?;
        drop(normed);
        let folded = gate.f_silu()?.f_mul(&up)?;
        drop((gate, up));
        let made = self.down.forward(&folded, dropout)?;
        drop(folded);
        Self::after(&self.norms[3], &stream, made, row(3))
    }

    fn with_base(&self, map: BaseMap<'_>) -> Result<Self, Error> {
        let [first, second, third, fourth] = &self.norms;
        Ok(Self {
            modulation: match &self.modulation {
                Some(linear) => Some(linear.with_base(map)?),
                None => None,
            },
            attention: self.attention.with_base(map)?,
            norms: [
                first.with_base(map)?,
                second.with_base(map)?,
                third.with_base(map)?,
                fourth.with_base(map)?,
            ],
            gate: self.gate.with_base(map)?,
            up: self.up.with_base(map)?,
            down: self.down.with_base(map)?,
        })
    }
}

#[derive(Debug)]
struct Attention {
    query: Linear,
    key: Linear,
    value: Linear,
    output: Linear,
    /// Of queries and keys, per head.
    norms: Option<[RmsNorm; 2]>,
    heads: i64,
}

impl Attention {
    fn new(config: &TransformerConfig, name: &str, builder: &mut Builder) -> Result<Self, Error> {
        let (width, head) = (config.dim, config.head_dim());
        let part = |part: &str| format!("{name}.{part}");
        let initial = Initial::Normal((width as f64).powf(-0.5));
        let mut linear =
            |suffix: &str| builder.linear(&part(suffix), (width, width), false, initial);
        let (query, key) = (linear("to_q")?, linear("to_k")?);
        let (value, output) = (linear("to_v")?, linear("to_out.0")?);
        Ok(Self {
            query,
            key,
            value,
            output,
            norms: match config.qk_norm {
                true => Some([
                    builder.norm(&part("norm_q"), head, HEAD_NORM_EPSILON)?,
                    builder.norm(&part("norm_k"), head, HEAD_NORM_EPSILON)?,
                ]),
                false => None,
            },
            heads: config.n_heads,
        })
    }

    /// `[batch, tokens, width]` to the same shape.
    fn forward(&self, input: Tensor, shared: &Shared, dropout: bool) -> Result<Tensor, Error> {
        let (batch, length, width) = input.size3()?;
        let input = Linear::shared_input(input, &[&self.query, &self.key, &self.value])?;
        let split = |linear: &Linear| -> Result<Tensor, Error> {
            let rows = linear.forward(&input, dropout)?;
            Ok(rows.f_reshape([batch, length, self.heads, width / self.heads])?)
        };
        let turned = |linear: &Linear, norm: usize| -> Result<Tensor, Error> {
            let norm = self.norms.as_ref().map(|norms| &norms[norm]);
            let turned = shared.rotary.normed(norm, &split(linear)?)?;
            Ok(turned.f_transpose(1, 2)?)
        };
        let (query, key) = (turned(&self.query, 0)?, turned(&self.key, 1)?);
        let value = split(&self.value)?.f_transpose(1, 2)?;
        drop(input);
        let seen = shared.seen.as_ref();
        let mixed = Tensor::f_scaled_dot_product_attention(
            &query, &key, &value, seen, 0.0, false, None, false,
        )?;
        drop((query, key, value));
        let joined = mixed.f_transpose(1, 2)?;
        drop(mixed);
        let joined = joined.f_reshape([batch, length, width])?;
        self.output.forward(&joined, dropout)
    }

    fn with_base(&self, map: BaseMap<'_>) -> Result<Self, Error> {
        Ok(Self {
            query: self.query.with_base(map)?,
            key: self.key.with_base(map)?,
            value: self.value.with_base(map)?,
            output: self.output.with_base(map)?,
            norms: match &self.norms {
                Some([query, key]) => Some([query.with_base(map)?, key.with_base(map)?]),
                None => None,
            },
            heads: self.heads,
        })
    }
}
