//! What a training step keeps of the transformer.
//!
//! It counts what autograd keeps of each layer for the backward pass, plus the temporary tensors at the peak: in the
//! backward pass of a block's feed-forward layer, when everything else that was kept of the block still exists.

use super::transformer::{DOUBLE, TransformerConfig};
use crate::diffusion::memory::double::Streams;
use crate::diffusion::parts::double::VECTORS;
use crate::diffusion::{Kept, Usage};

/// Bytes of an fp32 element.
const FP32_BYTES: u64 = 4;

/// What a pass keeps, and the temporary tensors of one block's backward pass.
pub(super) fn kept(usage: &Usage, shape: &TransformerConfig) -> Kept {
    let streams = Streams::new(usage, shape.sizes(), usage.text_tokens);
    let Streams {
        compute,
        width,
        inner,
        tokens,
        text,
        ..
    } = streams;
    // A block's vectors of the time are kept, too.
    let vectors = usage.rows * 2 * VECTORS as u64 * width * FP32_BYTES;
    let inside = streams.inside(usage, &DOUBLE) + vectors;
    let whole = inside + streams.whole_input();
    let blocks = shape.num_layers as usize;
    let most = usage.most(blocks, inside, whole, tokens * width * compute);
    // Latents, noise, noisy latents, the velocity and the loss; rotary positions; texts; the last norm's input.
    let outside = usage.tokens * FP32_BYTES * 8 * shape.in_channels as u64
        + tokens * shape.attention_head_dim as u64 * FP32_BYTES
        + text * shape.joint_attention_dim as u64 * FP32_BYTES
        + usage.tokens * width * FP32_BYTES;
    let trained = DOUBLE.streams[0].feed_forward[1];
    let unfolded = streams.unfolding(&DOUBLE, usage.trained.has(trained));
    // The largest matrices are those of the vectors, and those of the feed-forward layers.
    let of_vectors = usage.prepared(VECTORS as u64 * width * width, 0);
    let prepared = usage.prepared(width * inner, tokens * inner);
    Kept {
        activations: most + outside,
        temporary: streams.gradients() + unfolded.max(prepared).max(of_vectors),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::diffusion::Trained;
    use crate::diffusion::qwen_image::ARCH;

    fn usage(streamed: &[usize], checkpoint: bool) -> Usage {
        Usage::of_lora(&ARCH, (4096, 33), streamed, checkpoint)
    }

    fn shape() -> TransformerConfig {
        TransformerConfig {
            in_channels: 64,
            out_channels: 16,
            num_layers: 60,
            attention_head_dim: 128,
            num_attention_heads: 24,
            joint_attention_dim: 3584,
            axes_dims_rope: [16, 56, 56],
        }
    }

    #[test]
    fn what_is_computed_again_is_not_kept() {
        let bytes = |usage: Usage| super::kept(&usage, &shape()).activations;
        let (all, none) = (bytes(usage(&[], false)), bytes(usage(&[], true)));
        assert!(all > 15 * none, "{all} and {none}");
        // Streamed blocks are recomputed.
        let streamed: Vec<usize> = (0..60).collect();
        assert_eq!(bytes(usage(&streamed, false)), none);
        let offloaded = Usage {
            offload: true,
            ..usage(&[], true)
        };
        // All inputs but two, with the text's tokens.
        assert_eq!(none - bytes(offloaded), 58 * (4096 + 33) * 3072 * 2);
    }

    #[test]
    fn fewer_adapters_keep_less() {
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
        // The input of the last product of the picture's feed-forward layers, in fp32.
        let two = with(&["attn.to_q", "img_mlp.net.2"]);
        assert_eq!(two - one, 60 * 4096 * 12288 * 4);
        let three = with(&["attn.to_q", "txt_mlp.net.2"]);
        assert_eq!(three - one, 60 * 33 * 12288 * 4);
    }
}
