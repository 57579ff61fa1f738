//! Causal grouped-query attention, and the KV cache that makes generation linear.

use tch::{Device, Kind, Tensor};

use super::norm::Norm;
use super::{DecoderConfig, QkNorm};
use crate::Error;
use crate::fused::{self, TurnedHeads};
use crate::model::layers::{Linear, Positions, seen};
use crate::model::{
    self, AttentionPath, Builder, Heads, Initial, Scoring, Sinks, Special, capped_attention,
    causal_attention,
};
use crate::tensor::{BaseMap, map_frozen};

/// How the attention of a model's blocks runs on a device, in the type `kind`, over rows of `length` tokens, which are several
/// texts if they are `packed`.
///
/// # Errors
/// If the device is lost, or memory runs out.
pub fn attention_path(
    config: &DecoderConfig,
    (device, kind): (Device, Kind),
    (length, packed): (i64, bool),
) -> Result<AttentionPath, Error> {
    let local = config.local.as_ref();
    let local = local.filter(|local| local.layers.contains(&true));
    let window = local.map(|local| local.window);
    let path = |is_local: bool, window: Option<i64>| {
        let (keys, width) = config.heads(is_local);
        let heads = Heads {
            device,
            kind,
            queries: config.num_attention_heads,
            keys,
            width,
            has_sinks: config.sinks,
            is_capped: config.score_cap.is_some(),
        };
        model::attention_path(heads, length, packed, window)
    };
    if window.is_none() || config.heads(true) == config.heads(false) {
        return path(true, window);
    }
    // A kernel may take only one kind of heads.
    let (whole, local) = (path(false, None)?, path(true, window)?);
    Ok(match whole.words == local.words {
        true => whole,
        false => AttentionPath {
            scores: whole.scores.or(local.scores),
            words: format!("{}; in blocks with a window {}", whole.words, local.words),
        },
    })
}

/// The attention of one block.
#[derive(Debug)]
pub(super) struct Attention {
    projections: Projections,
    output: Linear,
    /// Of queries and keys, where there are any.
    norms: [Option<Norm>; 2],
    qk_norm: QkNorm,
    /// The epsilon of the norm of values, which has no weight, if there is one.
    value_norm: Option<f64>,
    is_rotated: bool,
    /// What scores are multiplied by, if not by one over the root of the width.
    scale: Option<f64>,
    /// What scores are between.
    cap: Option<f64>,
    /// Whether each query head has a gate beside it.
    gated: bool,
    /// `[heads]`: scores of nothing, which take a part of the attention.
    sinks: Option<Tensor>,
    heads: i64,
    key_value_heads: i64,
    width: i64,
}

/// The layers that make queries, keys and values.
#[derive(Debug)]
enum Projections {
    /// One for each of them.
    Separate(Box<[Linear; 3]>),
    /// One whose outputs are theirs, one after the other.
    Fused(Linear),
    /// One for queries, and one for keys, which are the values, too.
    KeysAsValues(Box<[Linear; 2]>),
    /// One for queries: keys and values are another block's.
    Queries(Box<Linear>),
}

/// Keys and values `[batch, heads, length, width]` as attention uses them.
pub(super) type KeysValues = [Tensor; 2];

impl Attention {
    /// Builds the attention layer `name` of block `index`.
    pub(super) fn new(
        config: &DecoderConfig,
        (index, name): (usize, &str),
        initial: Initial,
        builder: &mut Builder,
    ) -> Result<Self, Error> {
        let hidden = config.hidden_size;
        let heads = config.num_attention_heads;
        let (key_value_heads, width) = config.heads(config.is_local(index));
        let takes = config.takes_from(index).is_some();
        let queries = if config.gated { 2 * heads } else { heads };
        let mut linear = |suffix: &str, shape, bias| {
            builder.linear(&format!("{name}.{suffix}"), shape, bias, initial)
        };
        let norms = |(queries, keys): (i64, i64), builder: &mut Builder| {
            let mut norm = |part: &str, heads: i64| {
                Norm::new(config, &format!("{name}.{part}"), heads * width, builder)
            };
            let of_queries = norm("q_norm", queries)?;
            let of_keys = (!takes).then(|| norm("k_norm", keys)).transpose()?;
            Ok::<_, Error>([Some(of_queries), of_keys])
        };
        Ok(Self {
            projections: match config.fused {
                true => Projections::Fused(linear(
                    "qkv_proj",
                    (hidden, (queries + 2 * key_value_heads) * width),
                    config.qkv_bias,
                )?),
                false => {
                    let query = linear("q_proj", (hidden, queries * width), config.qkv_bias)?;
                    let mut other = |suffix: &str| {
                        linear(suffix, (hidden, key_value_heads * width), config.qkv_bias)
                    };
                    match (takes, config.keys_are_values(index)) {
                        (true, _) => Projections::Queries(Box::new(query)),
                        (false, true) => {
                            Projections::KeysAsValues(Box::new([query, other("k_proj")?]))
                        }
                        (false, false) => Projections::Separate(Box::new([
                            query,
                            other("k_proj")?,
                            other("v_proj")?,
                        ])),
                    }
                }
            },
            output: linear("o_proj", (heads * width, hidden), config.output_bias)?,
            norms: match config.qk_norm {
                QkNorm::None => [None, None],
                QkNorm::Head => norms((1, 1), builder)?,
                QkNorm::Projection => norms((heads, key_value_heads), builder)?,
            },
            qk_norm: config.qk_norm,
            value_norm: config.value_norm.then_some(config.rms_norm_eps),
            is_rotated: config.is_rotated(index),
            scale: config.score_scale,
            cap: config.score_cap,
            gated: config.gated,
            sinks: match config.sinks {
                true => Some(builder.exact(&format!("{name}.sinks"), &[heads], initial, true)?),
                false => None,
            },
            heads,
            key_value_heads,
            width,
        })
    }

    /// The type to which its layers convert their input at first.
    pub(super) fn input_kind(&self) -> Option<Kind> {
        match &self.projections {
            Projections::Separate(layers) => Linear::input_kind(&layers.each_ref()),
            Projections::Fused(all) => Linear::input_kind(&[all]),
            Projections::KeysAsValues(layers) => Linear::input_kind(&layers.each_ref()),
            Projections::Queries(query) => Linear::input_kind(&[query]),
        }
    }

    /// Projected queries or keys as heads, with their norm and their rotation, `[batch, heads, length, width]`, by a kernel;
    /// `None` if that must be computed by operators.
    fn turned_heads(
        &self,
        projected: &Tensor,
        (heads, norm): (i64, Option<&Norm>),
        (positions, start): (&Positions, i64),
    ) -> Result<Option<Tensor>, Error> {
        if !self.is_rotated
            || norm.is_some() && self.qk_norm == QkNorm::Projection
            || !fused::may_be_on(projected.device())
        {
            return Ok(None);
        }
        let norm = match norm.map(Norm::of_heads).transpose()? {
            Some(None) => return Ok(None),
            norm => norm.flatten(),
        };
        let (batch, length, _) = projected.size3()?;
        let heads = projected.f_view([batch, length, heads, self.width])?;
        let turned = TurnedHeads {
            input: &heads,
            weight: norm.as_ref().map(|(weight, _)| weight),
            epsilon: norm.as_ref().map(|(_, epsilon)| *epsilon),
            angles: &positions.rope.angles(start, length)?,
        };
        let turned = turned.by_kernel()?;
        Ok(turned.map(|turned| turned.f_transpose(1, 2)).transpose()?)
    }

    /// `[batch, length, hidden]` to the same shape, and the keys and values of all tokens that it used: its own, or those
    /// `taken` from another block. With a cache, the input continues the cached sequence.
    ///
    /// # Errors
    /// If the sequence is longer than the rotary tables or the cache, or memory runs out.
    pub(super) fn forward(
        &self,
        input: &Tensor,
        positions: &Positions,
        (cache, taken): (Option<&mut LayerCache>, Option<&KeysValues>),
        dropout: bool,
    ) -> Result<(Tensor, KeysValues), Error> {
        let (batch, length, _) = input.size3()?;
        let split = |projected: Tensor, heads: i64, norm: Option<&Norm>| -> Result<Tensor, Error> {
            let normed = |input: Tensor, place: QkNorm| match norm.filter(|_| self.qk_norm == place)
            {
                Some(norm) => norm.in_its_type(&input),
                None => Ok::<_, Error>(input),
            };
            let heads = normed(projected, QkNorm::Projection)?
                .f_view([batch, length, heads, self.width])?
                .f_transpose(1, 2)?;
            normed(heads, QkNorm::Head)
        };
        let [query_norm, key_norm] = self.norms.each_ref().map(Option::as_ref);
        let (query, own) = self.project(input, dropout)?;
        let (query, gate) = match self.gated {
            true => {
                let both = query.f_view([batch, length, self.heads, 2 * self.width])?;
                let half = |start| {
                    let half = both.f_narrow(-1, start, self.width)?;
                    half.f_reshape([batch, length, self.heads * self.width])
                };
                (half(0)?, Some(half(self.width)?))
            }
            false => (query, None),
        };
        let start = cache.as_ref().map_or(0, |cache| cache.length);
        let turned = match positions.rope.grows() {
            true => None,
            false => self.turned_heads(&query, (self.heads, query_norm), (positions, start))?,
        };
        let query = match turned {
            Some(turned) => {
                drop(query);
                turned
            }
            None => {
                let query = split(query, self.heads, query_norm)?;
                match self.is_rotated {
                    true => positions.rope.queries(&query, start)?,
                    false => query,
                }
            }
        };
        let used = match (own, taken) {
            (Some([key, value]), _) => {
                let heads = (self.key_value_heads, key_norm);
                let key = match self.turned_heads(&key, heads, (positions, start))? {
                    Some(key) => key,
                    None => {
                        let key = split(key, self.key_value_heads, key_norm)?;
                        match self.is_rotated {
                            true => positions.rope.forward(&key, start)?,
                            false => key,
                        }
                    }
                };
                let mut value = split(value, self.key_value_heads, None)?;
                if let Some(epsilon) = self.value_norm {
                    value = value.f_rms_norm([self.width], None::<&Tensor>, epsilon)?;
                }
                match cache {
                    Some(cache) => cache.extend(&key, &value)?,
                    None => [key, value],
                }
            }
            (None, Some([key, value])) => {
                if let Some(cache) = cache {
                    cache.advance(length)?;
                }
                [key.shallow_clone(), value.shallow_clone()]
            }
            (None, None) => return Err(Error::Internal("attention without keys".into())),
        };
        let [mut key, mut value] = used.each_ref().map(Tensor::shallow_clone);
        let sinks = self.sinks.as_ref();
        let sinks = sinks.map(|sinks| Sinks::new(sinks, self.scale, self.width));
        let special = match &sinks {
            Some(sinks) => Some(Special::Sinks(sinks)),
            None => self.cap.map(Special::Cap),
        };
        let mixed = match start == 0 && length > 1 {
            true => {
                let inputs = [&query, &key, &value];
                let scale = self.scale;
                causal_attention(inputs, &positions.sight, Scoring { scale, special })?
            }
            false => {
                // A single new token attends to everything in its window; several need a mask.
                let mut mask = None;
                if length > 1 {
                    mask = Some(seen(
                        (length, start),
                        positions.sight.window,
                        input.device(),
                    )?);
                } else if let Some(window) =
                    positions.sight.window.filter(|window| *window < start + 1)
                {
                    key = key.f_narrow(2, start + 1 - window, window)?;
                    value = value.f_narrow(2, start + 1 - window, window)?;
                }
                match special {
                    Some(Special::Sinks(sinks)) => {
                        sinks.attention(&query, &key, &value, mask.as_ref())?
                    }
                    Some(Special::Cap(cap)) => {
                        capped_attention([&query, &key, &value], mask.as_ref(), self.scale, cap)?
                    }
                    None => Tensor::f_scaled_dot_product_attention(
                        &query,
                        &key,
                        &value,
                        mask.as_ref(),
                        0.0,
                        false,
                        self.scale,
                        self.heads != self.key_value_heads,
                    )?,
                }
            }
        };
        let joined =
            mixed
                .f_transpose(1, 2)?
                .f_reshape([batch, length, self.heads * self.width])?;
        let joined = match gate {
            Some(gate) => joined.f_mul(&gate.f_sigmoid()?)?,
            None => joined,
        };
        Ok((self.output.forward(&joined, dropout)?, used))
    }

    /// Queries (with their gates, if they have some), and keys and values, if they are its own; each `[batch, length, heads ·
    /// width]`.
    fn project(
        &self,
        input: &Tensor,
        dropout: bool,
    ) -> Result<(Tensor, Option<KeysValues>), Error> {
        match &self.projections {
            Projections::Queries(query) => Ok((query.forward(input, dropout)?, None)),
            Projections::KeysAsValues(layers) => {
                let [query, key] = layers.as_ref();
                let input = Linear::shared_input(input.shallow_clone(), &[query, key])?;
                let keys = key.forward(&input, dropout)?;
                let values = keys.shallow_clone();
                Ok((query.forward(&input, dropout)?, Some([keys, values])))
            }
            Projections::Separate(layers) => {
                let [query, key, value] = layers.as_ref();
                let input = Linear::shared_input(input.shallow_clone(), &[query, key, value])?;
                let queries = query.forward(&input, dropout)?;
                let keys = key.forward(&input, dropout)?;
                Ok((queries, Some([keys, value.forward(&input, dropout)?])))
            }
            Projections::Fused(all) => {
                let all = all.forward(input, dropout)?;
                let keys = self.key_value_heads * self.width;
                let queries = all.size3()?.2 - 2 * keys;
                let own = [queries, queries + keys].map(|start| all.f_narrow(-1, start, keys));
                let [key, value] = own;
                Ok((all.f_narrow(-1, 0, queries)?, Some([key?, value?])))
            }
        }
    }

    /// The same attention on another base (see [`BaseMap`]).
    pub(super) fn with_base(&self, map: BaseMap<'_>) -> Result<Self, Error> {
        Ok(Self {
            projections: match &self.projections {
                Projections::Fused(all) => Projections::Fused(all.with_base(map)?),
                Projections::Queries(query) => {
                    Projections::Queries(Box::new(query.with_base(map)?))
                }
                Projections::KeysAsValues(layers) => {
                    let [query, key] = layers.as_ref();
                    let query = query.with_base(map)?;
                    Projections::KeysAsValues(Box::new([query, key.with_base(map)?]))
                }
                Projections::Separate(layers) => {
                    let [query, key, value] = layers.as_ref();
                    Projections::Separate(Box::new([
                        query.with_base(map)?,
                        key.with_base(map)?,
                        value.with_base(map)?,
                    ]))
                }
            },
            output: self.output.with_base(map)?,
            norms: {
                let [query, key] = &self.norms;
                let mut other = |norm: &Option<Norm>| {
                    let norm = norm.as_ref();
                    norm.map(|norm| norm.with_base(map)).transpose()
                };
                [other(query)?, other(key)?]
            },
            sinks: match &self.sinks {
                Some(sinks) => Some(map_frozen(sinks, map)?),
                None => None,
            },
            ..*self
        })
    }
}

/// What one block remembers of the tokens so far: keys and values, or a state.
#[derive(Debug)]
pub(super) struct LayerCache {
    /// `[2, batch, heads, capacity, width]`, allocated with the first tokens.
    memory: Option<Tensor>,
    /// Of a delta rule: the last inputs of its convolution, and its state.
    state: Option<[Tensor; 2]>,
    capacity: i64,
    length: i64,
}

impl LayerCache {
    /// An empty cache for `capacity` tokens.
    pub(super) fn new(capacity: i64) -> Self {
        Self {
            memory: None,
            state: None,
            capacity,
            length: 0,
        }
    }

    /// Number of cached tokens.
    pub(super) fn length(&self) -> i64 {
        self.length
    }

    /// Forgets all tokens.
    pub(super) fn clear(&mut self) {
        self.length = 0;
        self.state = None;
    }

    /// The state of a delta rule, if there are tokens.
    pub(super) fn state(&self) -> Option<&[Tensor; 2]> {
        self.state.as_ref()
    }

    /// Replaces it.
    pub(super) fn set_state(&mut self, state: [Tensor; 2]) {
        self.state = Some(state);
    }

    /// Counts `length` more tokens; returns how many there are.
    ///
    /// # Errors
    /// If they are more than the cache is for.
    pub(super) fn advance(&mut self, length: i64) -> Result<i64, Error> {
        let end = self.length + length;
        if end > self.capacity {
            return Err(Error::Internal(format!(
                "{end} tokens in a cache for {}",
                self.capacity
            )));
        }
        self.length = end;
        Ok(end)
    }

    /// Appends keys and values `[batch, heads, length, width]`; returns all of them.
    fn extend(&mut self, key: &Tensor, value: &Tensor) -> Result<KeysValues, Error> {
        let (batch, heads, length, width) = key.size4()?;
        let start = self.length;
        let end = self.advance(length)?;
        let memory = match self.memory.take() {
            Some(memory) => memory,
            None => Tensor::f_empty(
                [2, batch, heads, self.capacity, width],
                (key.kind(), key.device()),
            )?,
        };
        for (half, fresh) in [(0, key), (1, value)] {
            memory
                .f_select(0, half)?
                .f_narrow(2, start, length)?
                .f_copy_(fresh)?;
        }
        let so_far = |half| memory.f_select(0, half)?.f_narrow(2, 0, end);
        let both = [so_far(0)?, so_far(1)?];
        self.memory = Some(memory);
        Ok(both)
    }
}
