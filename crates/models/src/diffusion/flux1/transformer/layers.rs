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

/// The same, modulated by vectors that the model makes for all blocks.
pub(in crate::diffusion::flux1) const UNMODULATED: Double = Double {
    streams: [
        unmodulated(DOUBLE.streams[0]),
        unmodulated(DOUBLE.streams[1]),
    ],
    ..DOUBLE
};

const fn unmodulated(stream: Stream) -> Stream {
    Stream {
        modulation: None,
        ..stream
    }
}

/// A block of this model.
#[derive(Debug)]
pub(super) struct Placed<L> {
    pub(super) block: L,
    /// The first of its vectors among those of all blocks of its list, and how many there are, for each of its streams; none
    /// if it makes them itself.
    pub(super) vectors: Vec<(i64, i64)>,
}

impl<L: Layer<Shared = Shared>> Layer for Placed<L> {
    type Shared = Shared;

    fn share(shared: &Shared) -> Shared {
        shared.shallow_clone()
    }

    /// Inputs: the residual stream, and what it is modulated by, fp32: the time `[batch, width]`, or the vectors of the list,
    /// `[batch, vectors, width]`.
    fn forward(&self, inputs: &[Tensor], shared: &Shared, dropout: bool) -> Result<Tensor, Error> {
        let (false, [stream, table]) = (self.vectors.is_empty(), inputs) else {
            return self.block.forward(inputs, shared, dropout);
        };
        let mut own = vec![stream.shallow_clone()];
        for (first, count) in &self.vectors {
            own.push(table.f_narrow(1, *first, *count)?.f_flatten(1, 2)?);
        }
        self.block.forward(&own, shared, dropout)
    }

    fn with_base(&self, map: BaseMap<'_>) -> Result<Self, Error> {
        Ok(Self {
            block: self.block.with_base(map)?,
            vectors: self.vectors.clone(),
        })
    }
}

/// Vectors by which a single block modulates its stream: shift, scale and gate.
pub(in crate::diffusion::flux1) const SINGLE_VECTORS: i64 = 3;

/// A block in which text and picture have the same weights, and attention and feed-forward layer the same input.
#[derive(Debug)]
pub(super) struct Single {
    /// `None` if the model makes the vectors for all blocks.
    modulation: Option<Linear>,
    /// Queries, keys, values, and the first of the feed-forward layers.
    inputs: [Linear; 4],
    /// Of queries and keys, per head.
    norms: [RmsNorm; 2],
    /// Of the attention, and the feed-forward layer's.
    output: Linear,
    epsilon: f64,
}

impl Single {
    pub(super) fn new(
        sizes: Sizes,
        is_modulated: bool,
        name: &str,
        builder: &mut Builder,
    ) -> Result<Self, Error> {
        let (width, inner) = (sizes.width, sizes.inner);
        let mut layer = |part: &str, inputs: i64, outputs: i64| {
            linear(&format!("{name}.{part}"), (inputs, outputs), true, builder)
        };
        let modulation = match is_modulated {
            true => Some(layer("norm.linear", width, SINGLE_VECTORS * width)?),
            false => None,
        };
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

    /// Inputs: the residual stream `[batch, tokens, width]`, text before picture, and the time `[batch, width]` fp32; or the
    /// block's vectors, `[batch, 3 · width]`.
    fn forward(&self, inputs: &[Tensor], shared: &Shared, dropout: bool) -> Result<Tensor, Error> {
        let [stream, time] = inputs else {
            let reason = "a single block takes the stream and the time";
            return Err(Error::Internal(reason.into()));
        };
        let [shift, scale, gate] = match &self.modulation {
            Some(linear) => vectors(&to_kind(&linear.forward(time, dropout)?, Kind::Float)?)?,
            None => vectors(time)?,
        };
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
            modulation: match &self.modulation {
                Some(linear) => Some(linear.with_base(map)?),
                None => None,
            },
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
