//! Gated delta rule: what some blocks have in place of attention, and the state that makes generation linear.
//!
//! ```text
//! tokens ─┬▶ qkv ─▶ convolution, SiLU ─▶ q, k, v ─┐
//!         ├▶ b ─▶ σ ─▶ β ─────────────────────────┼▶ delta rule ─▶ norm ─▶ · silu(z) ─▶ output
//!         ├▶ a ─▶ −e^A · softplus(a + bias) = g ──┘                        │
//!         └▶ z ────────────────────────────────────────────────────────────┘
//! ```
//!
//! Decays, states and the norm are fp32, and the projections that make b and a, which have a few rows, are not quantised.

use serde_json::{Map, Value, json};
use tch::{Kind, Tensor};

use super::DecoderConfig;
use super::attention::LayerCache;
use super::windows;
use crate::Error;
use crate::json::Object;
use crate::model::delta_rule::{Rule, convolved, convolved_after};
use crate::model::layers::{Linear, RmsNorm};
use crate::model::{Builder, Initial};
use crate::tensor::{BaseMap, map_frozen, to_kind};

/// The keys of a `config.json` about it.
pub(super) const KEYS: &[&str] = &[
    "layer_types",
    "full_attention_interval",
    "linear_conv_kernel_dim",
    "linear_key_head_dim",
    "linear_value_head_dim",
    "linear_num_key_heads",
    "linear_num_value_heads",
];

/// The blocks of a model that have one.
#[derive(Debug, Clone, PartialEq)]
pub struct DeltaLayers {
    /// Number of heads of queries and keys.
    pub key_heads: i64,
    /// Number of heads of values, a multiple of those.
    pub value_heads: i64,
    /// Width of a head of queries and keys.
    pub key_width: i64,
    /// Width of a head of values.
    pub value_width: i64,
    /// Number of tokens that the convolution sees, the latest included.
    pub taps: i64,
    /// For each block, whether it is one of them.
    pub layers: Vec<bool>,
}

impl DeltaLayers {
    /// Reads them; without a key, as `Qwen3_5TextConfig` has it.
    ///
    /// # Errors
    /// The error names the key, what is allowed and what was found.
    pub(super) fn read(object: &Object, blocks: i64) -> Result<Self, Error> {
        const HEADS: &str = "linear_num_value_heads";
        let key_heads = object.integer("linear_num_key_heads", Some(16), 1..=4096)?;
        let value_heads = object.integer(HEADS, Some(32), 1..=4096)?;
        if value_heads % key_heads != 0 {
            let reason = format!(
                "is {value_heads}, which is no multiple of `linear_num_key_heads`, {key_heads}"
            );
            return Err(object.error(HEADS, reason));
        }
        let interval = object.integer("full_attention_interval", Some(4), 1..=1 << 20)?;
        Ok(Self {
            key_heads,
            value_heads,
            key_width: object.integer("linear_key_head_dim", Some(128), 1..=4096)?,
            value_width: object.integer("linear_value_head_dim", Some(128), 1..=4096)?,
            taps: object.integer("linear_conv_kernel_dim", Some(4), 2..=64)?,
            layers: windows::layers(object, blocks, interval, "linear_attention")?,
        })
    }

    /// Adds the keys that [`DeltaLayers::read`] reads.
    pub(super) fn write(&self, keys: &mut Map<String, Value>) {
        let kinds = self.layers.iter().map(|delta| match delta {
            true => "linear_attention",
            false => "full_attention",
        });
        keys.insert("layer_types".into(), kinds.collect());
        for (key, number) in [
            ("linear_conv_kernel_dim", self.taps),
            ("linear_key_head_dim", self.key_width),
            ("linear_value_head_dim", self.value_width),
            ("linear_num_key_heads", self.key_heads),
            ("linear_num_value_heads", self.value_heads),
        ] {
            keys.insert(key.to_owned(), json!(number));
        }
    }

    /// Width of all heads of queries, which is that of keys.
    pub fn keys(&self) -> i64 {
        self.key_heads * self.key_width
    }

    /// Width of all heads of values.
    pub fn values(&self) -> i64 {
        self.value_heads * self.value_width
    }

    /// Number of channels of the convolution: queries, keys and values.
    pub fn channels(&self) -> i64 {
        2 * self.keys() + self.values()
    }
}

/// The texts that share the rows of a pass.
#[derive(Debug)]
pub(super) struct Texts {
    /// The tokens' positions within their text, `[batch, length]`.
    positions: Tensor,
    /// The number of each token's text in its row, from one.
    numbers: Tensor,
}

impl Texts {
    /// Those whose tokens have these positions: each 0 starts one.
    pub(super) fn new(positions: &Tensor) -> Result<Self, Error> {
        Ok(Self {
            positions: positions.shallow_clone(),
            numbers: positions.f_eq(0)?.f_cumsum(1, Kind::Int64)?,
        })
    }

    /// A second handle to the same tensors.
    pub(super) fn shallow_clone(&self) -> Self {
        Self {
            positions: self.positions.shallow_clone(),
            numbers: self.numbers.shallow_clone(),
        }
    }
}

/// The gated delta rule of one block.
#[derive(Debug)]
pub(super) struct Delta {
    /// Queries, keys and values.
    inputs: Linear,
    gate: Linear,
    rate: Linear,
    decay: Linear,
    /// `[channels, 1, taps]`
    convolution: Tensor,
    /// Added to what makes the decay, `[heads]`.
    bias: Tensor,
    /// The logarithm of the decay's factor, `[heads]`.
    factor: Tensor,
    norm: RmsNorm,
    output: Linear,
    key_heads: i64,
    value_heads: i64,
    key_width: i64,
    value_width: i64,
}

impl Delta {
    /// Builds the layer `name`.
    pub(super) fn new(
        config: &DecoderConfig,
        layers: &DeltaLayers,
        name: &str,
        initial: Initial,
        builder: &mut Builder,
    ) -> Result<Self, Error> {
        let (hidden, heads) = (config.hidden_size, layers.value_heads);
        let of = |part: &str| format!("{name}.{part}");
        let taps = [layers.channels(), 1, layers.taps];
        Ok(Self {
            inputs: builder.linear(
                &of("in_proj_qkv"),
                (hidden, layers.channels()),
                false,
                initial,
            )?,
            gate: builder.linear(&of("in_proj_z"), (hidden, layers.values()), false, initial)?,
            rate: builder.unquantized(&of("in_proj_b"), (hidden, heads), false, initial)?,
            decay: builder.unquantized(&of("in_proj_a"), (hidden, heads), false, initial)?,
            convolution: builder.exact(&of("conv1d.weight"), &taps, initial, true)?,
            bias: builder.exact(&of("dt_bias"), &[heads], Initial::Ones, false)?,
            factor: builder.exact(&of("A_log"), &[heads], Initial::Zeros, true)?,
            norm: builder.norm(&of("norm"), layers.value_width, config.rms_norm_eps)?,
            output: builder.linear(&of("out_proj"), (layers.values(), hidden), false, initial)?,
            key_heads: layers.key_heads,
            value_heads: heads,
            key_width: layers.key_width,
            value_width: layers.value_width,
        })
    }

    /// `[batch, length, hidden]` to the same shape, of rows that are one text or the `texts`. With a cache, the input
    /// continues the cached text.
    ///
    /// # Errors
    /// If the text is longer than the cache, or memory runs out.
    pub(super) fn forward(
        &self,
        input: &Tensor,
        texts: Option<&Texts>,
        cache: Option<&mut LayerCache>,
        dropout: bool,
    ) -> Result<Tensor, Error> {
        let (batch, length, _) = input.size3()?;
        let fp32 = |layer: &Linear| to_kind(&layer.forward(input, dropout)?, Kind::Float);
        let projected = self.inputs.forward(input, dropout)?;
        let gate = fp32(&self.gate)?;
        let rate = fp32(&self.rate)?.f_sigmoid()?;
        let decay = fp32(&self.decay)?
            .f_add(&self.bias)?
            .f_softplus()?
            .f_mul(&self.factor.f_exp()?.f_neg()?)?;
        let taps = self.convolution.f_squeeze_dim(1)?;
        let (mixed, before) = match &cache {
            None => {
                let positions = texts.map(|texts| &texts.positions);
                (convolved(&projected, &taps, positions)?, None)
            }
            Some(cache) => {
                let state = cache.state();
                let before = state.map(|[before, _]| before);
                let (mixed, last) = convolved_after(&projected, &taps, before)?;
                (
                    mixed,
                    Some((last, state.map(|[_, state]| state.shallow_clone()))),
                )
            }
        };
        let heads = |start: i64, heads: i64, width: i64| {
            let part = mixed.f_narrow(-1, start, heads * width)?;
            part.f_view([batch, length, heads, width])
        };
        let keys = self.key_heads * self.key_width;
        let rule = Rule {
            query: &heads(0, self.key_heads, self.key_width)?,
            key: &heads(keys, self.key_heads, self.key_width)?,
            value: &heads(2 * keys, self.value_heads, self.value_width)?,
            decay: &decay,
            rate: &rate,
        };
        let read = match (cache, before) {
            (Some(cache), Some((last, state))) => {
                let (read, state) = rule.after(state.as_ref())?;
                cache.advance(length)?;
                cache.set_state([last, state]);
                read
            }
            _ => rule.apply(texts.map(|texts| &texts.numbers))?,
        };
        let gate = gate.f_view(&read.size()[..])?.f_silu()?;
        let joined = self.norm.forward(&read)?.f_mul(&gate)?;
        let width = self.value_heads * self.value_width;
        self.output
            .forward(&joined.f_view([batch, length, width])?, dropout)
    }

    /// The same layer on another base (see [`BaseMap`]).
    pub(super) fn with_base(&self, map: BaseMap<'_>) -> Result<Self, Error> {
        Ok(Self {
            inputs: self.inputs.with_base(map)?,
            gate: self.gate.with_base(map)?,
            rate: self.rate.with_base(map)?,
            decay: self.decay.with_base(map)?,
            convolution: map_frozen(&self.convolution, map)?,
            bias: map_frozen(&self.bias, map)?,
            factor: map_frozen(&self.factor, map)?,
            norm: self.norm.with_base(map)?,
            output: self.output.with_base(map)?,
            ..*self
        })
    }
}
