//! The blocks of the transformer.

use tch::Tensor;

use super::TransformerConfig;
use crate::Error;
use crate::diffusion::parts::double::{
    Double, Shared, Sizes, Stream, attended, folded, gated, linear, modulated, normed, vectors,
};
use crate::model::layers::{Linear, RmsNorm};
use crate::model::{Builder, Layer};
use crate::tensor::BaseMap;

/// The blocks in which text and picture have weights of their own.
pub(in crate::diffusion::flux2) const DOUBLE: Double = Double {
    streams: [
        Stream {
            modulation: None,
            inputs: ["attn.to_q", "attn.to_k", "attn.to_v"],
            norms: ["attn.norm_q", "attn.norm_k"],
            output: "attn.to_out.0",
            feed_forward: ["ff.linear_in", "ff.linear_out"],
        },
        Stream {
            modulation: None,
            inputs: ["attn.add_q_proj", "attn.add_k_proj", "attn.add_v_proj"],
            norms: ["attn.norm_added_q", "attn.norm_added_k"],
            output: "attn.to_add_out",
            feed_forward: ["ff_context.linear_in", "ff_context.linear_out"],
        },
    ],
    bias: false,
    is_folded: true,
};

impl TransformerConfig {
    /// Those of a double block.
    pub(in crate::diffusion::flux2) fn sizes(&self) -> Sizes {
        Sizes {
            width: self.width(),
            inner: self.inner(),
            head: self.attention_head_dim,
            epsilon: self.eps,
        }
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
            input: linear(&part("to_qkv_mlp_proj"), (width, made), false, builder)?,
            norms: [
                builder.norm(&part("norm_q"), head, config.eps)?,
                builder.norm(&part("norm_k"), head, config.eps)?,
            ],
            output: linear(&part("to_out"), (width + inner, width), false, builder)?,
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
        let attended = attended(parts, shared)?;
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
