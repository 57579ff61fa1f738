//! What the attention or the delta rule of a block keeps for the backward pass.

use models::language::{DecoderConfig, DeltaLayers, QkNorm};
use models::model::{DELTA_CHUNK, DELTA_TOKENS_AT_A_TIME};

use super::{DecoderUse, FP32_BYTES, size_of_kind};

/// How the tokens of a block learn of those before them.
pub(super) struct Mixer {
    /// Bytes that it keeps for a token, besides the inputs of its matrices.
    pub(super) kept: u64,
    /// Width of what its output projection gets.
    pub(super) output: u64,
    /// Number of layers that get the block's input.
    pub(super) users: u64,
    /// Elements of its matrices.
    pub(super) matrices: u64,
}

impl Mixer {
    /// That of block `index`, whose output projection keeps its input or not.
    pub(super) fn of(
        config: &DecoderConfig,
        index: usize,
        keeps_output: bool,
        how: &DecoderUse,
    ) -> Self {
        match config.delta_in(index) {
            Some(delta) => Self::delta(config, delta, how),
            None => Self::attention(config, keeps_output, how),
        }
    }

    fn attention(config: &DecoderConfig, keeps_output: bool, how: &DecoderUse) -> Self {
        let compute = size_of_kind(how.compute);
        let (heads, head) = (number(config.num_attention_heads), number(config.head_dim));
        let (query, key_value) = (heads * head, number(config.num_key_value_heads) * head);
        // Queries, keys and values (the latter two expanded to all heads).
        let mut kept = 3 * query * compute;
        // The fp32 output of attention is the input of its projection, which is counted there.
        if !keeps_output || how.packed {
            kept += query * compute;
        }
        // Their norms keep their input, as it is or in fp32.
        if config.qk_norm != QkNorm::None {
            let is_converted = how.frozen.is_none() || config.norm_plus_one;
            let each = if is_converted { FP32_BYTES } else { compute };
            kept += (query + key_value) * each;
        }
        // The softmax's scores or sums.
        kept += match how.attention.scores {
            Some(kind) => heads * how.length * size_of_kind(kind),
            None => heads * FP32_BYTES,
        };
        // What attention gives, and the gate after its sigmoid.
        let queries = if config.gated { 2 * query } else { query };
        if config.gated {
            kept += 2 * query * compute;
        }
        Self {
            kept,
            output: query,
            users: 3,
            matrices: number(config.hidden_size) * (queries + query + 2 * key_value),
        }
    }

    fn delta(config: &DecoderConfig, delta: &DeltaLayers, how: &DecoderUse) -> Self {
        let compute = size_of_kind(how.compute);
        let (channels, values) = (number(delta.channels()), number(delta.values()));
        let heads = number(delta.value_heads);
        // Before and after the convolution.
        let mut kept = 2 * channels * compute;
        // Of decay and rate: before and after their functions.
        kept += 7 * heads * FP32_BYTES;
        // What is read, and before they are multiplied, its norm and the gate, which also keeps its input.
        kept += 4 * values * FP32_BYTES;
        // A state for each chunk.
        let state = values * number(delta.key_width) * FP32_BYTES;
        let chunk = number(DELTA_CHUNK).min(how.length).max(1);
        let chunks = how.length.div_ceil(chunk);
        kept += (chunks * state).div_ceil(how.length.max(1));
        Self {
            kept,
            output: values,
            users: 4,
            matrices: number(config.hidden_size) * (channels + 2 * values + 2 * heads),
        }
    }

    /// The temporary memory of the delta rule's backward pass over so many tokens; zero in models without one.
    pub(super) fn chunks(config: &DecoderConfig, tokens: u64) -> u64 {
        let Some(delta) = &config.delta else { return 0 };
        let heads = number(delta.value_heads);
        // One head of keys with those that it serves is the least.
        let least = tokens * heads / number(delta.key_heads).max(1);
        let at_a_time = number(DELTA_TOKENS_AT_A_TIME).clamp(least, (tokens * heads).max(least));
        // Tensors as wide as heads of keys and of values, and as chunks are long.
        let (keys, values) = (number(delta.key_width), number(delta.value_width));
        let widths = 16 * keys + 12 * values + 9 * number(DELTA_CHUNK);
        at_a_time * widths * FP32_BYTES
    }
}

fn number(number: i64) -> u64 {
    number.max(0) as u64
}
