//! Mixtures of experts: in each block that has one, a router chooses a few of many feed-forward layers for each token.
//!
//! ```text
//! token ─▶ router ─▶ softmax ─▶ the likeliest few, and their weights
//!   ├──────▶ rows sorted by expert ─▶ gate, up, down of each ─▶ sorted back ─▶ weighted sum ─▶ +
//!   └──────▶ an expert of all tokens, if there is one ─▶ · σ(its gate) ────────────────────────┘
//! ```
//!
//! The router computes in fp32: which expert comes last of those chosen hangs on small differences. Rows are
//! only permuted, never added to each other by index, so that gradients are the same each time on every device.

use serde_json::{Map, Value, json};
use tch::{Device, Kind, Tensor};

use super::feed_forward::Dense;
use super::{Activation, DecoderConfig};
use crate::Error;
use crate::adapters::ExpertSizes;
use crate::json::Object;
use crate::model::experts::Experts;
use crate::model::layers::Linear;
use crate::model::{Builder, Initial};
use crate::tensor::{BaseMap, map_frozen, to_kind};

/// Experts that have rows where memory is measured; more would take longer and need the same.
const FAKE_EXPERTS: i64 = 32;

/// The keys of a `config.json` about it.
pub(super) const KEYS: &[&str] = &[
    "num_experts",
    "num_local_experts",
    "num_experts_per_tok",
    "output_router_logits",
    "router_aux_loss_coef",
];

/// Those of [`Mixture::read`] beside them.
pub(super) const SPARSE_KEYS: &[&str] = &[
    "moe_intermediate_size",
    "norm_topk_prob",
    "decoder_sparse_step",
    "mlp_only_layers",
];

/// What the mixtures of a model are.
#[derive(Debug, Clone, PartialEq)]
pub struct Mixture {
    /// Number of experts in a block.
    pub count: i64,
    /// How many of them a token goes through.
    pub used: i64,
    /// Inner width of each.
    pub width: i64,
    /// Inner width of one more, through which every token goes, if there is one.
    pub shared: Option<i64>,
    /// Whether the weights of those that are chosen are divided by their sum.
    pub normalised: bool,
    /// For each block, whether it has experts.
    pub layers: Vec<bool>,
    /// How much of the loss is the routers' balance, if it is learned.
    pub balance: Option<f64>,
    /// The name of the router in its layer.
    pub router: &'static str,
    /// Whether router and experts have biases.
    pub biased: bool,
    /// Whether files have all experts of a block as one tensor of transposed matrices, in which the outputs of gate and up
    /// take turns.
    pub alternating: bool,
    /// Whether experts are beside the dense feed-forward layer of their block, each with norms of their own, and the router
    /// scales what it gets and what it gives.
    pub beside: bool,
}

impl Mixture {
    /// Reads it; without a key, as `Qwen3MoeConfig` has it.
    ///
    /// # Errors
    /// The error names the key, what is allowed and what was found.
    pub(super) fn read(object: &Object, blocks: i64) -> Result<Self, Error> {
        let step = object.integer("decoder_sparse_step", Some(1), 1..=1 << 20)?;
        let dense = object
            .integers("mlp_only_layers", 0..=4096)?
            .unwrap_or_default();
        let has_experts = |block: i64| !dense.contains(&block) && (block + 1) % step == 0;
        Ok(Self {
            width: object.integer("moe_intermediate_size", Some(768), 1..=1 << 20)?,
            normalised: object.flag("norm_topk_prob", false)?,
            layers: (0..blocks).map(has_experts).collect(),
            ..Self::in_all(object, blocks, (128, 8))?
        })
    }

    /// Of a model whose blocks all have experts as wide as `intermediate_size`, whose weights are divided by their sum;
    /// there are `count`, and a token goes through `used` of them, if no key says how many.
    ///
    /// # Errors
    /// As [`Mixture::read`].
    pub(super) fn in_all(
        object: &Object,
        blocks: i64,
        (count, used): (i64, i64),
    ) -> Result<Self, Error> {
        // The second is the name of transformers 5.
        let key = match object.has("num_experts") {
            false if object.has("num_local_experts") => "num_local_experts",
            _ => "num_experts",
        };
        let count = object.integer(key, Some(count), 1..=4096)?;
        const USED: &str = "num_experts_per_tok";
        let used = object.integer(USED, Some(used), 1..=4096)?;
        if used > count {
            let reason = format!("is {used}, and there are {count} experts (`{key}`)");
            return Err(object.error(USED, reason));
        }
        let balance = match object.get("router_aux_loss_coef") {
            None => 0.001,
            Some(value) => {
                let number = value.as_f64().filter(|number| number.is_finite());
                number.ok_or_else(|| object.error("router_aux_loss_coef", "must be a number"))?
            }
        };
        Ok(Self {
            count,
            used,
            width: object.integer("intermediate_size", Some(2880), 1..=1 << 20)?,
            shared: None,
            normalised: true,
            layers: (0..blocks).map(|_| true).collect(),
            balance: object
                .flag("output_router_logits", false)?
                .then_some(balance),
            router: "gate",
            biased: false,
            alternating: false,
            beside: false,
        })
    }

    /// Adds the keys that [`Mixture::read`] reads.
    pub(super) fn write(&self, keys: &mut Map<String, Value>) {
        let blocks = self.layers.iter().enumerate();
        let dense: Vec<usize> = blocks
            .filter(|(_, has_experts)| !**has_experts)
            .map(|(block, _)| block)
            .collect();
        self.write_in_all("num_experts", keys);
        for (key, value) in [
            ("moe_intermediate_size", json!(self.width)),
            ("norm_topk_prob", json!(self.normalised)),
            ("decoder_sparse_step", json!(1)),
            ("mlp_only_layers", json!(dense)),
        ] {
            keys.insert(key.to_owned(), value);
        }
    }

    /// Adds the keys that [`Mixture::in_all`] reads; `count` is the name of the number of experts.
    pub(super) fn write_in_all(&self, count: &str, keys: &mut Map<String, Value>) {
        for (key, value) in [
            (count, json!(self.count)),
            ("num_experts_per_tok", json!(self.used)),
            ("output_router_logits", json!(self.balance.is_some())),
            ("router_aux_loss_coef", json!(self.balance.unwrap_or(0.001))),
        ] {
            keys.insert(key.to_owned(), value);
        }
    }

    /// The sizes of those of a block.
    pub fn sizes(&self, hidden: i64) -> ExpertSizes {
        ExpertSizes {
            count: self.count,
            hidden,
            inner: self.width,
            alternating: self.alternating,
        }
    }

    /// Whether no layer of all tokens is beside the experts of a block.
    pub(super) fn stands_alone(&self) -> bool {
        self.shared.is_none() && !self.beside
    }

    /// Whether block `index` has experts.
    pub fn is_in(&self, index: usize) -> bool {
        self.layers.get(index) == Some(&true)
    }

    /// What the routers learn of their balance.
    pub(super) fn balance(&self) -> Option<Balance> {
        let layers = self.layers.iter().filter(|has_experts| **has_experts);
        self.balance.map(|coefficient| Balance {
            coefficient,
            count: self.count,
            layers: layers.count() as f64,
        })
    }
}

/// The part of the loss that is lower the more evenly the experts are used (Fedus et al., "Switch Transformers",
/// 2021), as transformers computes it: over the tokens of all blocks together.
#[derive(Debug)]
pub(super) struct Balance {
    coefficient: f64,
    count: i64,
    layers: f64,
}

impl Balance {
    /// The sums before the first block: of the tokens that each expert gets, and of its probabilities; `[2, experts]`.
    pub(super) fn start(&self, device: Device) -> Result<Tensor, Error> {
        Ok(Tensor::f_zeros([2, self.count], (Kind::Float, device))?)
    }

    /// The loss for the sums after the last block, and for the tokens that were counted in each.
    pub(super) fn loss(&self, sums: &Tensor, counted: &Tensor) -> Result<Tensor, Error> {
        // Without experts, there is nothing to divide.
        let all = counted
            .f_sum(Kind::Float)?
            .f_mul_scalar(self.layers)?
            .f_clamp_min(1.0)?;
        let shares = sums.f_div(&all)?;
        let product = shares.f_select(0, 0)?.f_mul(&shares.f_select(0, 1)?)?;
        let factor = self.coefficient * self.count as f64;
        Ok(product.f_sum(Kind::Float)?.f_mul_scalar(factor)?)
    }
}

/// An expert of all tokens.
#[derive(Debug)]
struct SharedExpert {
    layer: Dense,
    /// One number for each token.
    gate: Linear,
}

impl SharedExpert {
    fn forward(&self, input: &Tensor, dropout: bool) -> Result<Tensor, Error> {
        let open = self.gate.forward(input, dropout)?.f_sigmoid()?;
        Ok(self.layer.forward(input, dropout)?.f_mul(&open)?)
    }
}

/// Router and experts of one block.
#[derive(Debug)]
pub(super) struct Routed {
    /// `[experts, hidden]`
    router: Tensor,
    /// `[experts]`
    bias: Option<Tensor>,
    scales: Option<Scales>,
    experts: Experts,
    shared: Option<SharedExpert>,
    count: i64,
    used: i64,
    normalised: bool,
    activation: Activation,
    compute: Kind,
}

/// What the router of experts beside a dense layer multiplies by.
#[derive(Debug)]
struct Scales {
    /// `[hidden]`: its input, which is normalised.
    input: Tensor,
    /// `[experts]`: the weights of those that are chosen.
    experts: Tensor,
    epsilon: f64,
}

impl Scales {
    fn new(
        config: &DecoderConfig,
        (count, router): (i64, &str),
        builder: &mut Builder,
    ) -> Result<Self, Error> {
        let mut scale = |part: &str, width: i64| {
            builder.exact(&format!("{router}.{part}"), &[width], Initial::Ones, true)
        };
        Ok(Self {
            input: scale("scale", config.hidden_size)?,
            experts: scale("per_expert_scale", count)?,
            epsilon: config.rms_norm_eps,
        })
    }

    /// `[tokens, hidden]` fp32 to the same shape.
    fn input(&self, input: &Tensor) -> Result<Tensor, Error> {
        let width = self.input.numel() as i64;
        let normed = input.f_rms_norm([width], None::<&Tensor>, self.epsilon)?;
        Ok(normed
            .f_mul(&self.input)?
            .f_mul_scalar((width as f64).powf(-0.5))?)
    }

    fn with_base(&self, map: BaseMap<'_>) -> Result<Self, Error> {
        Ok(Self {
            input: map_frozen(&self.input, map)?,
            experts: map_frozen(&self.experts, map)?,
            epsilon: self.epsilon,
        })
    }
}

impl Routed {
    /// Builds router and experts of the layer `name`.
    pub(super) fn new(
        config: &DecoderConfig,
        mixture: &Mixture,
        name: &str,
        initial: Initial,
        builder: &mut Builder,
    ) -> Result<Self, Error> {
        let (hidden, count) = (config.hidden_size, mixture.count);
        let (router, experts) = (
            format!("{name}.{}", mixture.router),
            format!("{name}.experts"),
        );
        builder.leave_out(&router);
        // Beside a layer of all tokens, PEFT takes these names to be its layers.
        if mixture.stands_alone() {
            for layer in ["gate_proj", "up_proj", "down_proj"] {
                builder.leave_out(&format!("{experts}.0.{layer}"));
            }
        }
        let sizes = mixture.sizes(hidden);
        Ok(Self {
            router: builder.matrix(&format!("{router}.weight"), &[count, hidden], initial, true)?,
            bias: match mixture.biased {
                true => Some(builder.vector(&format!("{router}.bias"), count, Initial::Zeros)?),
                false => None,
            },
            scales: match (mixture.beside, router.rsplit_once('.')) {
                (true, Some((module, _))) => Some(Scales::new(config, (count, module), builder)?),
                _ => None,
            },
            experts: builder.experts(&experts, &sizes, (mixture.biased, initial))?,
            shared: match mixture.shared {
                Some(inner) => {
                    let shared = format!("{name}.shared_expert");
                    let gate = format!("{name}.shared_expert_gate");
                    Some(SharedExpert {
                        layer: Dense::new(config, (&shared, inner), initial, builder)?,
                        gate: builder.unquantized(&gate, (hidden, 1), false, initial)?,
                    })
                }
                None => None,
            },
            count,
            used: mixture.used,
            normalised: mixture.normalised,
            activation: config.activation,
            compute: builder.compute(),
        })
    }

    /// `[batch, length, hidden]` to the same shape; and how often each expert was chosen by the tokens that are
    /// `counted`, and the sum of its probabilities there, `[2, experts]`. The router gets `judged`, of the same shape.
    pub(super) fn forward(
        &self,
        (input, judged): (&Tensor, &Tensor),
        counted: Option<&Tensor>,
        dropout: bool,
    ) -> Result<(Tensor, Option<Tensor>), Error> {
        let whole = input;
        let (batch, length, hidden) = input.size3()?;
        let (tokens, rows) = (batch * length, batch * length * self.used);
        let input = input.f_reshape([tokens, hidden])?;
        let judged = to_kind(&judged.f_reshape([tokens, hidden])?, Kind::Float)?;
        let judged = match &self.scales {
            Some(scales) => scales.input(&judged)?,
            None => judged,
        };
        let scores = judged.f_linear(&to_kind(&self.router, Kind::Float)?, self.bias.as_ref())?;
        let likely = scores.f_softmax(-1, Kind::Float)?;
        let (mut weights, chosen) = likely.f_topk(self.used, -1, true, true)?;
        if self.normalised {
            weights = weights.f_div(&weights.f_sum_dim_intlist(-1, true, Kind::Float)?)?;
        }
        if let Some(scales) = &self.scales {
            let each = scales.experts.f_index_select(0, &chosen.f_reshape([-1])?)?;
            weights = weights.f_mul(&each.f_view_as(&weights)?)?;
        }
        let (sorted, order) = chosen.f_reshape([-1])?.f_sort_stable(true, 0, false)?;
        let edges = Tensor::f_arange(self.count + 1, (Kind::Int64, input.device()))?;
        let bounds = edges.f_searchsorted(&sorted, false, false, "left", None::<&Tensor>)?;
        let bounds = match torch_ext::fake::is_on() {
            // Some experts have the rows: those that are dequantised at a time, unless they are small.
            true => (0..=self.count)
                .map(|edge| edge.min(FAKE_EXPERTS) * rows / self.count.min(FAKE_EXPERTS))
                .collect(),
            false => Vec::<i64>::try_from(&bounds)?,
        };
        let assigned = to_kind(&input, self.compute)?
            .f_unsqueeze(1)?
            .f_expand([tokens, self.used, hidden], false)?
            .f_reshape([rows, hidden])?
            .f_index_select(0, &order)?;
        let gated = |gate: &Tensor, up: &Tensor| self.activation.gated(gate, up);
        let outputs = self
            .experts
            .forward(&assigned, (&bounds, &sorted), &gated, self.compute)?;
        let mixed = outputs
            .f_index_select(0, &order.f_argsort(0, false)?)?
            .f_view([tokens, self.used, hidden])?
            .f_mul(&to_kind(&weights, self.compute)?.f_unsqueeze(-1)?)?
            .f_sum_dim_intlist(1, false, self.compute)?
            .f_view([batch, length, hidden])?;
        let mixed = match &self.shared {
            Some(shared) => mixed.f_add(&shared.forward(whole, dropout)?)?,
            None => mixed,
        };
        let sums = match counted {
            None => None,
            Some(counted) => Some(self.sums(&likely, &chosen, counted)?),
        };
        Ok((mixed, sums))
    }

    fn sums(&self, likely: &Tensor, chosen: &Tensor, counted: &Tensor) -> Result<Tensor, Error> {
        let each = counted.f_unsqueeze(1)?;
        let ones = each.f_expand_as(chosen)?.f_reshape([-1])?;
        let times = Tensor::f_zeros([self.count], (Kind::Float, counted.device()))?.f_scatter_add(
            0,
            &chosen.f_reshape([-1])?,
            &ones,
        )?;
        let probabilities = likely
            .f_mul(&each)?
            .f_sum_dim_intlist(0, false, Kind::Float)?;
        Ok(Tensor::f_stack(&[times, probabilities], 0)?)
    }

    /// The same layer on another base (see [`BaseMap`]).
    pub(super) fn with_base(&self, map: BaseMap<'_>) -> Result<Self, Error> {
        Ok(Self {
            router: map_frozen(&self.router, map)?,
            bias: match &self.bias {
                Some(bias) => Some(map_frozen(bias, map)?),
                None => None,
            },
            scales: match &self.scales {
                Some(scales) => Some(scales.with_base(map)?),
                None => None,
            },
            experts: self.experts.with_base(map)?,
            shared: match &self.shared {
                Some(shared) => Some(SharedExpert {
                    layer: shared.layer.with_base(map)?,
                    gate: shared.gate.with_base(map)?,
                }),
                None => None,
            },
            ..*self
        })
    }
}
