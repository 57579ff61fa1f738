//! What a training step keeps of Wan's transformer.
//!
//! It counts what autograd keeps of each layer for the backward pass, plus the temporary tensors at the peak:
//! in the backward pass of a block's feed-forward layer, when everything else that was kept of the block
//! still exists.

use tch::Device;

use super::transformer::TransformerConfig;
use crate::diffusion::parts::t5::TEXT_ROWS;
use crate::diffusion::{Kept, Trained, Usage};

/// Bytes of an fp32 element.
const FP32_BYTES: u64 = 4;

/// Linear layers of a block: self-attention, cross-attention, and feed-forward.
const LAYERS: [[&str; 4]; 3] = [
    ["attn1.to_q", "attn1.to_k", "attn1.to_v", "attn1.to_out.0"],
    ["attn2.to_q", "attn2.to_k", "attn2.to_v", "attn2.to_out.0"],
    ["ffn.net.0.proj", "ffn.net.2", "", ""],
];

/// What a pass keeps, and the temporary tensors of one block's backward pass.
pub(super) fn kept(usage: &Usage, shape: &TransformerConfig) -> Kept {
    let compute = usage.compute.elt_size_in_bytes() as u64;
    let half = compute < FP32_BYTES;
    let (width, inner) = (shape.width() as u64, shape.ffn_dim as u64);
    let stream = usage.tokens * width;
    let inside = inside(usage, shape);
    // Blocks that are not recomputed keep the residual stream before their first norm, as an fp32 copy if
    // it has another type.
    let whole = inside + if half { 0 } else { stream * FP32_BYTES };
    let blocks = shape.num_layers.max(0) as usize;
    let most = usage.most(blocks, inside, whole, stream * compute);
    let patch = shape.patch_size.iter().product::<i64>() as u64;
    let [inputs_of, outputs_of] =
        [shape.in_channels, shape.out_channels].map(|channels| channels as u64 * patch);
    // Latents, noise, noisy latents, and the velocity and loss; rotary positions; texts.
    let outside = usage.tokens * FP32_BYTES * (3 * inputs_of + 5 * outputs_of)
        + usage.tokens * shape.attention_head_dim as u64 * FP32_BYTES
        + text_rows(usage) * (shape.text_dim as u64 * FP32_BYTES + width * compute);
    // Gradients of the residual stream: in its type, and in fp32 where a gate or an adapter is involved.
    let gradients = stream * (2 * compute + 2 * FP32_BYTES);
    let unfolded = match usage.trained.has(LAYERS[2][1]) {
        true => usage.tokens * inner * FP32_BYTES,
        false => usage.tokens * inner * compute,
    };
    let prepared = usage.prepared(width * inner, usage.tokens * inner);
    Kept {
        activations: most + outside,
        temporary: gradients + unfolded.max(prepared),
    }
}

/// Rows of the texts of a pass, as attention sees them: on the CPU, the zero rows after a text are merged; see
/// `Transformer::distinct`.
fn text_rows(usage: &Usage) -> u64 {
    let padded = TEXT_ROWS as u64;
    usage.rows
        * match usage.device {
            Device::Cpu => (usage.text_tokens + 1).min(padded),
            _ => padded,
        }
}

/// Bytes that a block keeps for its backward pass, besides the residual stream at its input if that is
/// fp32.
fn inside(usage: &Usage, shape: &TransformerConfig) -> u64 {
    let compute = usage.compute.elt_size_in_bytes() as u64;
    let half = compute < FP32_BYTES;
    let (width, inner) = (shape.width() as u64, shape.ffn_dim as u64);
    let heads = shape.num_attention_heads as u64;
    let has = |part: usize, layer: usize| usage.trained.has(LAYERS[part][layer]);
    let any = |part: usize, layers: &[usize]| layers.iter().any(|layer| has(part, *layer));
    // Trained matrices keep their inputs in the compute type; adapters in fp32.
    let kept = match usage.trained {
        Trained::All => compute,
        Trained::Adapters { .. } => FP32_BYTES,
    };
    let when = |condition: bool, bytes: u64| if condition { bytes } else { 0 };
    // fp32 copies of the inputs of three norms; of the first only if the residual stream is not fp32.
    let mut each = FP32_BYTES * if half { 3 } else { 2 };
    // Inputs of q, k, v, of the second q and of the feed-forward layer.
    each += when(any(0, &[0, 1, 2]), kept) + when(has(1, 0), kept) + when(has(2, 0), kept);
    // Inputs of the norms of q and k.
    each += 3 * FP32_BYTES;
    // q, k, v and result of the self-attention, q and result of the cross-attention.
    each += 6 * compute;
    // The results again, as inputs of adapters.
    let adapted = matches!(usage.trained, Trained::Adapters { .. });
    each += when(half && adapted && has(0, 3), FP32_BYTES)
        + when(half && adapted && has(1, 3), FP32_BYTES);
    // Trained scales and gates keep the other factor.
    each += when(!adapted, 4 * FP32_BYTES);
    let folded = compute + when(has(2, 1), kept);
    let mut bytes = usage.tokens * (each * width + folded * inner);
    // The log-sum-exp of two softmaxes.
    bytes += usage.tokens * 2 * heads * FP32_BYTES;
    // For the text: the inputs of k and v, the input of k's norm, k and v.
    let of_text = when(any(1, &[1, 2]), kept) + FP32_BYTES + 2 * compute;
    bytes += text_rows(usage) * width * of_text;
    match &usage.trained {
        Trained::Adapters { ranks, .. } => {
            bytes += usage.tokens * ranks * FP32_BYTES;
            if usage.dropout {
                // Each input after dropout, and the mask.
                let widths = 9 * width + inner;
                bytes += usage.tokens * widths * (FP32_BYTES + 1);
            }
        }
        // Weights in the compute type.
        Trained::All => bytes += when(half, (8 * width * width + 2 * width * inner) * compute),
    }
    bytes
}

#[cfg(test)]
mod tests {
    use tch::Kind;

    use super::*;
    use crate::diffusion::wan::ARCH;

    fn usage(streamed: &[usize], checkpoint: bool) -> Usage {
        Usage {
            rows: 1,
            tokens: 1000,
            text_tokens: 512,
            compute: Kind::BFloat16,
            device: Device::Cpu,
            checkpoint,
            streamed: streamed.to_vec(),
            offload: false,
            quantization: None,
            dropout: false,
            trained: Trained::planned(&ARCH, 16),
        }
    }

    fn shape() -> TransformerConfig {
        TransformerConfig {
            patch_size: [1, 2, 2],
            num_attention_heads: 12,
            attention_head_dim: 128,
            in_channels: 16,
            out_channels: 16,
            text_dim: 4096,
            freq_dim: 256,
            ffn_dim: 8960,
            num_layers: 30,
            cross_attn_norm: true,
            eps: 1e-6,
            rope_max_seq_len: 1024,
        }
    }

    #[test]
    fn what_is_computed_again_is_not_kept() {
        let bytes = |usage: Usage| super::kept(&usage, &shape()).activations;
        let all = bytes(usage(&[], false));
        let none = bytes(usage(&[], true));
        assert!(all > 10 * none, "{all} and {none}");
        // With half of the blocks recomputed, everything kept of the others exists when the first of them is
        // recomputed.
        let half: Vec<usize> = (0..15).collect();
        let behind = bytes(usage(&half, false));
        assert!(behind < all / 2 + none, "{behind}");
        let offloaded = Usage {
            offload: true,
            ..usage(&[], true)
        };
        assert_eq!(none - bytes(offloaded), 28 * 1000 * 1536 * 2);
    }

    #[test]
    fn fewer_adapters_keep_less_and_all_weights_more() {
        let with = |trained| {
            let usage = Usage {
                trained,
                ..usage(&[], false)
            };
            kept(&usage, &shape()).activations
        };
        let all = with(usage(&[], false).trained);
        let only = |layers: &[&str]| Trained::Adapters {
            layers: layers.iter().map(|layer| (*layer).to_owned()).collect(),
            ranks: 16,
        };
        let one = with(only(&["attn1.to_q"]));
        assert!(one < all, "{one} and {all}");
        // The input of the last product: in fp32 for an adapter, in bf16 for itself.
        let two = with(only(&["attn1.to_q", "ffn.net.2"]));
        assert_eq!(two - one, 30 * 1000 * 8960 * 4);
    }
}
