//! Causal grouped-query attention, and the KV cache that makes generation linear.

use tch::Tensor;

use super::DecoderConfig;
use super::norm::Norm;
use crate::Error;
use crate::model::layers::{Linear, Positions, seen};
use crate::model::{Builder, Initial, causal_attention};
use crate::tensor::BaseMap;

/// The attention of one block.
#[derive(Debug)]
pub(super) struct Attention {
    query: Linear,
    key: Linear,
    value: Linear,
    output: Linear,
    /// Of queries and keys, per head.
    norms: Option<(Norm, Norm)>,
    /// What scores are multiplied by, if not by one over the root of the width.
    scale: Option<f64>,
    heads: i64,
    key_value_heads: i64,
    width: i64,
}

impl Attention {
    /// Builds the attention layer `name`.
    pub(super) fn new(
        config: &DecoderConfig,
        name: &str,
        initial: Initial,
        builder: &mut Builder,
    ) -> Result<Self, Error> {
        let hidden = config.hidden_size;
        let (heads, key_value_heads) = (config.num_attention_heads, config.num_key_value_heads);
        let width = config.head_dim;
        let mut linear = |suffix: &str, shape, bias| {
            builder.linear(&format!("{name}.{suffix}"), shape, bias, initial)
        };
        Ok(Self {
            query: linear("q_proj", (hidden, heads * width), config.qkv_bias)?,
            key: linear("k_proj", (hidden, key_value_heads * width), config.qkv_bias)?,
            value: linear("v_proj", (hidden, key_value_heads * width), config.qkv_bias)?,
            output: linear("o_proj", (heads * width, hidden), config.output_bias)?,
            norms: match config.qk_norm {
                false => None,
                true => Some((
                    Norm::new(config, &format!("{name}.q_norm"), width, builder)?,
                    Norm::new(config, &format!("{name}.k_norm"), width, builder)?,
                )),
            },
            scale: config.score_scale,
            heads,
            key_value_heads,
            width,
        })
    }

    /// `[batch, length, hidden]` to the same shape. With a cache, the input continues the cached sequence.
    ///
    /// # Errors
    /// If the sequence is longer than the rotary tables or the cache, or memory runs out.
    pub(super) fn forward(
        &self,
        input: &Tensor,
        positions: &Positions,
        cache: Option<&mut LayerCache>,
        dropout: bool,
    ) -> Result<Tensor, Error> {
        let (batch, length, _) = input.size3()?;
        let split = |linear: &Linear, heads: i64| -> Result<Tensor, Error> {
            Ok(linear
                .forward(input, dropout)?
                .f_view([batch, length, heads, self.width])?
                .f_transpose(1, 2)?)
        };
        let mut query = split(&self.query, self.heads)?;
        let mut key = split(&self.key, self.key_value_heads)?;
        let value = split(&self.value, self.key_value_heads)?;
        if let Some((query_norm, key_norm)) = &self.norms {
            let kind = query.kind();
            query = query_norm.forward(&query)?.f_to_kind(kind)?;
            key = key_norm.forward(&key)?.f_to_kind(kind)?;
        }
        let start = cache.as_ref().map_or(0, |cache| cache.length);
        let query = positions.rope.forward(&query, start)?;
        let key = positions.rope.forward(&key, start)?;
        let (mut key, mut value) = match cache {
            Some(cache) => cache.extend(&key, &value)?,
            None => (key, value),
        };
        let mixed = match start == 0 && length > 1 {
            true => causal_attention(&query, &key, &value, positions.mask.as_ref(), self.scale)?,
            false => {
                // A single new token attends to everything in its window; several need a mask.
                let mut mask = None;
                if length > 1 {
                    mask = Some(seen((length, start), positions.window, input.device())?);
                } else if let Some(window) = positions.window.filter(|window| *window < start + 1) {
                    key = key.f_narrow(2, start + 1 - window, window)?;
                    value = value.f_narrow(2, start + 1 - window, window)?;
                }
                Tensor::f_scaled_dot_product_attention(
                    &query,
                    &key,
                    &value,
                    mask.as_ref(),
                    0.0,
                    false,
                    self.scale,
                    self.heads != self.key_value_heads,
                )?
            }
        };
        let joined =
            mixed
                .f_transpose(1, 2)?
                .f_reshape([batch, length, self.heads * self.width])?;
        self.output.forward(&joined, dropout)
    }

    /// The same attention on another base (see [`BaseMap`]).
    pub(super) fn with_base(&self, map: BaseMap<'_>) -> Result<Self, Error> {
        Ok(Self {
            query: self.query.with_base(map)?,
            key: self.key.with_base(map)?,
            value: self.value.with_base(map)?,
            output: self.output.with_base(map)?,
            norms: match &self.norms {
                Some((query, key)) => Some((query.with_base(map)?, key.with_base(map)?)),
                None => None,
            },
            ..*self
        })
    }
}

/// Keys and values of the tokens so far, for one block.
#[derive(Debug)]
pub(super) struct LayerCache {
    /// `[2, batch, heads, capacity, width]`, allocated with the first tokens.
    memory: Option<Tensor>,
    capacity: i64,
    length: i64,
}

impl LayerCache {
    /// An empty cache for `capacity` tokens.
    pub(super) fn new(capacity: i64) -> Self {
        Self {
            memory: None,
            capacity,
            length: 0,
        }
    }

    /// Number of cached tokens.
    pub(super) fn length(&self) -> i64 {
        self.length
    }

    /// Appends keys and values `[batch, heads, length, width]`; returns all of them.
    fn extend(&mut self, key: &Tensor, value: &Tensor) -> Result<(Tensor, Tensor), Error> {
        let (batch, heads, length, width) = key.size4()?;
        let end = self.length + length;
        if end > self.capacity {
            return Err(Error::Internal(format!(
                "{end} tokens in a cache for {}",
                self.capacity
            )));
        }
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
                .f_narrow(2, self.length, length)?
                .f_copy_(fresh)?;
        }
        self.length = end;
        let so_far = |half| memory.f_select(0, half)?.f_narrow(2, 0, end);
        let both = (so_far(0)?, so_far(1)?);
        self.memory = Some(memory);
        Ok(both)
    }
}
