//! The feed-forward layer of a block: one for all tokens, or a mixture of experts.

use tch::{Kind, Tensor};

use super::mixture::Routed;
use super::norm::Norm;
use super::{Activation, DecoderConfig};
use crate::Error;
use crate::model::layers::Linear;
use crate::model::{Builder, Initial};
use crate::tensor::BaseMap;

/// The feed-forward layer of one block.
#[derive(Debug)]
pub(super) enum FeedForward {
    /// Of all tokens.
    Dense(Box<Dense>),
    /// Of which each token goes through some.
    Routed(Box<Routed>),
    /// One of all tokens, and others beside it.
    Beside(Box<Beside>),
}

/// A layer of all tokens, and experts beside it, which get the residual stream.
#[derive(Debug)]
pub(super) struct Beside {
    dense: Dense,
    routed: Routed,
    /// After the dense layer, before and after the experts.
    norms: [Norm; 3],
}

impl FeedForward {
    /// Builds that of the block called `block`, which is the one at `index`.
    pub(super) fn new(
        config: &DecoderConfig,
        (index, block): (usize, &str),
        initial: Initial,
        builder: &mut Builder,
    ) -> Result<Self, Error> {
        let (name, inner) = (&format!("{block}.mlp"), config.inner(index));
        let mixture = config.experts.as_ref();
        Ok(match mixture.filter(|mixture| mixture.is_in(index)) {
            Some(mixture) if mixture.beside => {
                let norm = |part: &str, builder: &mut Builder| {
                    let name = format!("{block}.{part}");
                    Norm::new(config, &name, config.hidden_size, builder)
                };
                Self::Beside(Box::new(Beside {
                    dense: Dense::new(config, (name, inner), initial, builder)?,
                    routed: Routed::new(config, mixture, block, initial, builder)?,
                    norms: [
                        norm("post_feedforward_layernorm_1", builder)?,
                        norm("pre_feedforward_layernorm_2", builder)?,
                        norm("post_feedforward_layernorm_2", builder)?,
                    ],
                }))
            }
            Some(mixture) => {
                let layer = Routed::new(config, mixture, name, initial, builder)?;
                Self::Routed(Box::new(layer))
            }
            None => Self::Dense(Box::new(Dense::new(
                config,
                (name, inner),
                initial,
                builder,
            )?)),
        })
    }

    /// The type to which its layers convert their input at first, if nothing else takes that.
    pub(super) fn input_kind(&self) -> Option<Kind> {
        match self {
            Self::Dense(layer) => match &layer.inputs {
                Inputs::Separate([gate, up]) => Linear::input_kind(&[gate, up]),
                Inputs::Fused(both) => Linear::input_kind(&[both]),
            },
            Self::Routed(_) | Self::Beside(_) => None,
        }
    }

    /// `[batch, length, hidden]` to the same shape; and what a router adds to the balance of all, over the tokens that
    /// are `counted`, if that is learned. `input` is the residual `stream`, normalised.
    pub(super) fn forward(
        &self,
        (input, stream): (&Tensor, &Tensor),
        counted: Option<&Tensor>,
        dropout: bool,
    ) -> Result<(Tensor, Option<Tensor>), Error> {
        match self {
            Self::Dense(layer) => Ok((layer.forward(input, dropout)?, None)),
            Self::Routed(layer) => layer.forward((input, input), counted, dropout),
            Self::Beside(layers) => {
                let [after_dense, before, after] = &layers.norms;
                let dense = after_dense.forward(&layers.dense.forward(input, dropout)?)?;
                let normed = before.forward(stream)?;
                let (output, sums) = layers.routed.forward((&normed, stream), counted, dropout)?;
                Ok((dense.f_add(&after.forward(&output)?)?, sums))
            }
        }
    }

    /// The same layer on another base (see [`BaseMap`]).
    pub(super) fn with_base(&self, map: BaseMap<'_>) -> Result<Self, Error> {
        Ok(match self {
            Self::Dense(layer) => Self::Dense(Box::new(layer.with_base(map)?)),
            Self::Routed(layer) => Self::Routed(Box::new(layer.with_base(map)?)),
            Self::Beside(layers) => {
                let [after_dense, before, after] = &layers.norms;
                Self::Beside(Box::new(Beside {
                    dense: layers.dense.with_base(map)?,
                    routed: layers.routed.with_base(map)?,
                    norms: [
                        after_dense.with_base(map)?,
                        before.with_base(map)?,
                        after.with_base(map)?,
                    ],
                }))
            }
        })
    }
}

impl Activation {
    /// What `gate` lets through of `up`.
    pub(super) fn gated(self, gate: &Tensor, up: &Tensor) -> Result<Tensor, Error> {
        Ok(match self {
            Self::Silu => gate.f_silu()?.f_mul(up)?,
            Self::GeluTanh => gate.f_gelu("tanh")?.f_mul(up)?,
            Self::ClampedSwiglu { slope, limit } => {
                let gate = gate.f_clamp_max(limit)?;
                let open = gate.f_mul(&gate.f_mul_scalar(slope)?.f_sigmoid()?)?;
                open.f_mul(&up.f_clamp(-limit, limit)?.f_add_scalar(1.0)?)?
            }
        })
    }
}

/// A gated feed-forward layer.
#[derive(Debug)]
pub(super) struct Dense {
    inputs: Inputs,
    down: Linear,
    activation: Activation,
}

/// The layers that make the gate and what it lets through.
#[derive(Debug)]
enum Inputs {
    /// One for each, the gate's first.
    Separate([Linear; 2]),
    /// One whose outputs are those of both, one after the other.
    Fused(Linear),
}

impl Dense {
    /// Builds the layer `name` of this inner width.
    pub(super) fn new(
        config: &DecoderConfig,
        (name, inner): (&str, i64),
        initial: Initial,
        builder: &mut Builder,
    ) -> Result<Self, Error> {
        let hidden = config.hidden_size;
        let experts = config.experts.as_ref();
        let mut linear = |suffix: &str, shape| {
            let name = format!("{name}.{suffix}");
            // Where blocks have only experts, PEFT takes an adapter with this name to be one of them.
            match experts.is_some_and(|experts| experts.stands_alone()) {
                false => builder.linear(&name, shape, config.mlp_bias, initial),
                true => {
                    builder.leave_out(&name);
                    builder.bare_linear(&name, shape, config.mlp_bias, initial)
                }
            }
        };
        Ok(Self {
            inputs: match config.fused {
                true => Inputs::Fused(linear("gate_up_proj", (hidden, 2 * inner))?),
                false => Inputs::Separate([
                    linear("gate_proj", (hidden, inner))?,
                    linear("up_proj", (hidden, inner))?,
                ]),
            },
            down: linear("down_proj", (inner, hidden))?,
            activation: config.activation,
        })
    }

    pub(super) fn forward(&self, input: &Tensor, dropout: bool) -> Result<Tensor, Error> {
        let (gate, up) = match &self.inputs {
            Inputs::Separate([gate, up]) => {
                let input = Linear::shared_input(input.shallow_clone(), &[gate, up])?;
                let up = up.forward(&input, dropout)?;
                (gate.forward(&input, dropout)?, up)
            }
            Inputs::Fused(both) => {
                let mut halves = both.forward(input, dropout)?.f_chunk(2, -1)?.into_iter();
                match (halves.next(), halves.next()) {
                    (Some(gate), Some(up)) => (gate, up),
                    _ => return Err(Error::Internal("a layer without two halves".into())),
                }
            }
        };
        self.down
            .forward(&self.activation.gated(&gate, &up)?, dropout)
    }

    pub(super) fn with_base(&self, map: BaseMap<'_>) -> Result<Self, Error> {
        Ok(Self {
            inputs: match &self.inputs {
                Inputs::Fused(both) => Inputs::Fused(both.with_base(map)?),
                Inputs::Separate([gate, up]) => {
                    Inputs::Separate([gate.with_base(map)?, up.with_base(map)?])
                }
            },
            down: self.down.with_base(map)?,
            activation: self.activation,
        })
    }
}
