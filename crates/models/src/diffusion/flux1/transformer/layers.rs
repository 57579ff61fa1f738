//! The blocks of the transformer.

use tch::{Kind, Tensor};

use crate::Error;
use crate::diffusion::parts::double::{
    Double, Shared, Sizes, Stream, attended, gated, linear, modulated, normed, vectors,
};
use crate::model::layers::{Linear, RmsNorm};
use crate::model::{Builder, Layer};
use crate::tensor::{BaseMap, to_kind};

/// The blocks in which text and picture have weights of their own.
pub(in crate::diffusion::flux1) const DOUBLE: Double = Double {
    streams: [
        Stream {
            modulation: Some("norm1.linear"),
            inputs: ["attn.to_q", "attn.to_k", "attn.to_v"],
            norms: ["attn.norm_q", "attn.norm_k"],
            output: "attn.to_out.0",
            feed_forward: ["ff.net.0.proj", "ff.net.2"],
        },
        Stream {
            modulation: Some("norm1_context.linear"),
            inputs: ["attn.add_q_proj", "attn.add_k_proj", "attn.add_v_proj"],
            norms: ["attn.norm_added_q", "attn.norm_added_k"],
            output: "attn.to_add_out",
            feed_forward: ["ff_context.net.0.proj", "ff_context.net.2"],
        },
    ],
    bias: true,
    is_folded: false,
};

/// Vectors by which a single block modulates its stream: shift, scale and gate.
pub(in crate::diffusion::flux1) const SINGLE_VECTORS: i64 = 3;

/// A block in which text and picture have the same weights, and attention and feed-forward layer the same input.
#[derive(Debug)]
pub(super) struct Single {
    modulation: Linear,
    /// Queries, keys, values, and the first of the feed-forward layers.
    inputs: [Linear; 4],
    /// Of queries and keys, per head.
    norms: [RmsNorm; 2],
    /// Of the attention, and the feed-forward layer's.
    output: Linear,
    epsilon: f64,
}

impl Single {
    pub(super) fn new(sizes: Sizes, name: &str, builder: &mut Builder) -> Result<Self, Error> {
        let (width, inner) = (sizes.width, sizes.inner);
        let mut layer = |part: &str, inputs: i64, outputs: i64| {
            linear(&format!("{name}.{part}"), (inputs, outputs), true, builder)
        };
        let modulation = layer("norm.linear", width, SINGLE_VECTORS * width)?;
        let inputs = [
            layer("attn.to_q", width, width)?,
            layer("attn.to_k", width, width)?,
            layer("attn.to_v", width, width)?,
            layer("proj_mlp", width, inner)?,
        ];
        let output = layer("proj_out", width + inner, width)?;
        let mut norm =
            |part: &str| builder.norm(&format!("{name}.{part}"), sizes.head, sizes.epsilon);
        Ok(Self {
            modulation,
            inputs,
            norms: [norm("attn.norm_q")?, norm("attn.norm_k")?],
            output,
            epsilon: sizes.epsilon,
        })
    }
}

impl Layer for Single {
    type Shared = Shared;

    fn share(shared: &Shared) -> Shared {
        shared.shallow_clone()
    }

    /// Inputs: the residual stream `[batch, tokens, width]`, text before picture, and the time `[batch, width]` fp32.
    fn forward(&self, inputs: &[Tensor], shared: &Shared, dropout: bool) -> Result<Tensor, Error> {
        let [stream, time] = inputs else {
            let reason = "a single block takes the stream and the time";
            return Err(Error::Internal(reason.into()));
        };
        let of_time = to_kind(&self.modulation.forward(time, dropout)?, Kind::Float)?;
        let [shift, scale, gate] = vectors(&of_time)?;
        let [query, key, value, up] = &self.inputs;
        let input = modulated(stream, (&shift, &scale), self.epsilon)?;
        let input = Linear::shared_input(input, &[query, key, value, up])?;
        let (batch, tokens, _) = input.size3()?;
        let head = self.norms[0].weight.numel() as i64;
        let rows = |layer: &Linear| -> Result<Tensor, Error> {
            let rows = layer.forward(&input, dropout)?;
            Ok(rows.f_reshape([batch, tokens, -1, head])?)
        };
        let parts = [
            normed(&self.norms[0], &rows(query)?)?,
            normed(&self.norms[1], &rows(key)?)?,
            rows(value)?,
        ];
        let attended = attended(parts, shared)?;
        let inner = up.forward(&input, dropout)?.f_gelu("tanh")?;
        drop(input);
        let joined = Tensor::f_cat(&[attended, inner], 2)?;
        let change = self.output.forward(&joined, dropout)?;
        drop(joined);
        gated(stream, &gate, change)
    }

    fn with_base(&self, map: BaseMap<'_>) -> Result<Self, Error> {
        let [query, key, value, up] = &self.inputs;
        let [of_queries, of_keys] = &self.norms;
        Ok(Self {
            modulation: self.modulation.with_base(map)?,
            inputs: [
                query.with_base(map)?,
                key.with_base(map)?,
                value.with_base(map)?,
                up.with_base(map)?,
            ],
            norms: [of_queries.with_base(map)?, of_keys.with_base(map)?],
            output: self.output.with_base(map)?,
            epsilon: self.epsilon,
        })
    }
}
