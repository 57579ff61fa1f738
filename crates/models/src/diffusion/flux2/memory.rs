//! What a training step keeps of the transformer.
//!
//! It counts what autograd keeps of each layer for the backward pass, plus the temporary tensors at the peak: in the
//! backward pass of a block's feed-forward layer, when everything else that was kept of the block still exists.

use super::model::TEXT_TOKENS;
use super::transformer::{DOUBLE, TransformerConfig};
use crate::diffusion::memory::double::Streams;
use crate::diffusion::{Kept, Usage};

/// Bytes of an fp32 element.
const FP32_BYTES: u64 = 4;

/// What a pass keeps, and the temporary tensors of one block's backward pass.
pub(super) fn kept(usage: &Usage, shape: &TransformerConfig) -> Kept {
    let streams = Streams::new(usage, shape.sizes(), TEXT_TOKENS as u64);
    let Streams {
        compute,
        width,
        inner,
        tokens,
        text,
        ..
    } = streams;
    let input = streams.whole_input();
    let with_input = |inside: u64| (inside, inside + input);
    let double = (0..shape.num_layers).map(|_| with_input(streams.inside(usage, &DOUBLE)));
    let single = (0..shape.num_single_layers).map(|_| with_input(inside_single(&streams, usage)));
    let most = usage.most_of(double.chain(single), tokens * width * compute);
    // Latents, noise, noisy latents, the velocity and the loss; rotary positions; texts; the last norm's input.
    let outside = usage.tokens * FP32_BYTES * 8 * shape.in_channels as u64
        + tokens * shape.attention_head_dim as u64 * FP32_BYTES
        + text * shape.joint_attention_dim as u64 * FP32_BYTES
        + usage.tokens * width * FP32_BYTES;
    // Gradients of the product of gate and feed-forward layer, and of both. In a single block, that of what its first layer
    // makes.
    let trained = usage.trained.has("ff.linear_out") || usage.trained.has("attn.to_out");
    let folded = streams.unfolding(&DOUBLE, trained);
    let unfolded = match shape.num_single_layers {
        0 => folded,
        _ => folded + tokens * 3 * width * compute,
    };
    let outputs = 3 * width + 2 * inner;
    let prepared = usage.prepared(width * outputs, 0);
    Kept {
        activations: most + outside,
        temporary: streams.gradients() + unfolded.max(prepared),
    }
}

/// Bytes that a single block keeps for its backward pass, besides the residual stream at its input if that is fp32.
fn inside_single(streams: &Streams, usage: &Usage) -> u64 {
    let when = |condition: bool, bytes: u64| if condition { bytes } else { 0 };
    let has = |layer: &str| usage.trained.has(layer);
    let (compute, half) = (streams.compute, streams.half);
    let (width, inner, tokens) = (streams.width, streams.inner, streams.tokens);
    let mut each = when(half, FP32_BYTES) + when(has("attn.to_qkv_mlp_proj"), streams.input);
    // Inputs of the norms of queries and keys; the values and what the norms took are parts of what the first layer made,
    // which is kept whole.
    each += when(half, 2 * FP32_BYTES) + 3 * compute;
    // Queries and keys, and the result of the attention.
    each += 3 * compute;
    each += when(!streams.adapted, 2 * FP32_BYTES);
    // Both halves and the gate after its activation.
    let folded = 3 * compute;
    let mut bytes = tokens * (each * width + folded * inner);
    bytes += when(has("attn.to_out"), tokens * streams.input * (width + inner));
    let layers = 4 * width * width + 3 * width * inner;
    bytes + streams.of_both(usage, 2 * width + inner, layers)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::diffusion::Trained;
    use crate::diffusion::flux2::ARCH;

    fn usage(streamed: &[usize], checkpoint: bool) -> Usage {
        Usage::of_lora(&ARCH, (4096, 33), streamed, checkpoint)
    }

    /// That of 4B.
    fn shape() -> TransformerConfig {
        TransformerConfig {
            in_channels: 128,
            num_layers: 5,
            num_single_layers: 20,
            attention_head_dim: 128,
            num_attention_heads: 24,
            joint_attention_dim: 7680,
            timestep_guidance_channels: 256,
            mlp_ratio: 3.0,
            axes_dims_rope: [32; 4],
            rope_theta: 2000.0,
            eps: 1e-6,
        }
    }

    #[test]
    fn what_is_computed_again_is_not_kept() {
        let bytes = |usage: Usage| super::kept(&usage, &shape()).activations;
        let (all, none) = (bytes(usage(&[], false)), bytes(usage(&[], true)));
        assert!(all > 10 * none, "{all} and {none}");
        // Streamed blocks are recomputed.
        let streamed: Vec<usize> = (0..25).collect();
        assert_eq!(bytes(usage(&streamed, false)), none);
        let one = |block: usize| all - bytes(usage(&[block], false));
        // A double block keeps more than a single one.
        assert!(one(0) > one(5) && one(5) > 0);
        let offloaded = Usage {
            offload: true,
            ..usage(&[], true)
        };
        // All inputs but two, with the text's 512 tokens. The largest block is then one of the first.
        let saved = none - bytes(offloaded);
        assert!(saved <= 23 * (4096 + 512) * 3072 * 2, "{saved}");
    }

    #[test]
    fn fewer_adapters_keep_less_and_all_weights_more() {
        let with = |layers: &[&str]| {
            let trained = Trained::Adapters {
                layers: layers.iter().map(|layer| (*layer).to_owned()).collect(),
                ranks: 16,
            };
            let usage = Usage {
                trained,
                ..usage(&[], false)
            };
            kept(&usage, &shape()).activations
        };
        let one = with(&["attn.to_q"]);
        assert!(one < kept(&usage(&[], false), &shape()).activations);
        // The same input serves all three.
        assert_eq!(one, with(&["attn.to_k", "attn.to_v"]));
        // The input of the last product of the picture's five feed-forward layers, in fp32.
        let two = with(&["attn.to_q", "ff.linear_out"]);
        assert_eq!(two - one, 5 * 4096 * 9216 * 4);
        let last = with(&["attn.to_q", "attn.to_out"]);
        assert_eq!(last - one, 20 * (4096 + 512) * (3072 + 9216) * 4);
    }
}
