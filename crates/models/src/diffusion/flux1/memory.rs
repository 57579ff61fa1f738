//! What a training step keeps of the transformer.

use super::transformer::{DOUBLE, SINGLE_VECTORS, TransformerConfig};
use crate::diffusion::memory::double::Streams;
use crate::diffusion::parts::double::VECTORS;
use crate::diffusion::{Kept, Usage};

/// Bytes of an fp32 element.
const FP32_BYTES: u64 = 4;

/// What a pass keeps beside texts of `words` tokens, and the temporary tensors of one block's backward pass.
pub(super) fn kept(usage: &Usage, shape: &TransformerConfig, words: u64) -> Kept {
    let streams = Streams::new(usage, shape.sizes(), words);
    let Streams { width, inner, .. } = streams;
    let (tokens, compute) = (streams.tokens, streams.compute);
    // A block's vectors of the time are kept, too.
    let vectors = |count: i64| usage.rows * count as u64 * width * FP32_BYTES;
    let with_input = |inside: u64| (inside, inside + streams.whole_input());
    let of_double = with_input(streams.inside(usage, &DOUBLE) + vectors(2 * VECTORS));
    let of_single = with_input(inside_single(&streams, usage) + vectors(SINGLE_VECTORS));
    let double = (0..shape.num_layers).map(|_| of_double);
    let single = (0..shape.num_single_layers).map(|_| of_single);
    let most = usage.most_of(double.chain(single), tokens * width * compute);
    // Latents, noise, noisy latents, the velocity and the loss; rotary positions; texts; the last norm's input.
    let outside = usage.tokens * FP32_BYTES * 8 * shape.in_channels as u64
        + tokens * shape.attention_head_dim as u64 * FP32_BYTES
        + streams.text * shape.joint_attention_dim as u64 * FP32_BYTES
        + usage.tokens * width * FP32_BYTES;
    let unfolded = streams.unfolding(&DOUBLE, usage.trained.has("ff.net.2"));
    // In a single block the gradients of both inputs of its last layer are one tensor first.
    let joined = match shape.num_single_layers {
        0 => 0,
        _ => {
            tokens
                * (width + inner)
                * if usage.trained.has("proj_out") {
                    FP32_BYTES
                } else {
                    compute
                }
        }
    };
    let prepared = usage.prepared(width * (width + inner).max(VECTORS as u64 * width), 0);
    Kept {
        activations: most + outside,
        temporary: streams.gradients() + (unfolded + joined).max(prepared),
    }
}

/// Bytes that a single block keeps for its backward pass, besides the residual stream at its input if that is fp32.
fn inside_single(streams: &Streams, usage: &Usage) -> u64 {
    let when = |condition: bool, bytes: u64| if condition { bytes } else { 0 };
    let has = |layers: &[&str]| layers.iter().any(|layer| usage.trained.has(layer));
    let (width, inner, compute) = (streams.width, streams.inner, streams.compute);
    let inputs = ["attn.to_q", "attn.to_k", "attn.to_v", "proj_mlp"];
    // The input of its norm, that of its layers, inputs of the norms of queries and keys; queries, keys, values, result.
    let mut each = when(streams.half, FP32_BYTES) + when(has(&inputs), streams.input);
    each += 2 * FP32_BYTES + 4 * compute + when(!streams.adapted, 2 * FP32_BYTES);
    let mut bytes = streams.tokens * (each * width + compute * inner);
    bytes += when(
        has(&["proj_out"]),
        streams.tokens * streams.input * (width + inner),
    );
    let layers = 4 * width * width + 2 * width * inner;
    bytes + streams.of_both(usage, 2 * width + inner, layers)
}
