//! What a training step keeps of Wan's transformer.

use tch::Device;

use super::transformer::TransformerConfig;
use crate::diffusion::memory::CrossAttending;
use crate::diffusion::parts::t5::TEXT_ROWS;
use crate::diffusion::{Kept, Usage};

/// What a pass keeps, and the temporary tensors of one block's backward pass.
pub(super) fn kept(usage: &Usage, shape: &TransformerConfig) -> Kept {
    let patch = shape.patch_size.iter().product::<i64>() as u64;
    let [inputs, outputs] =
        [shape.in_channels, shape.out_channels].map(|channels| channels as u64 * patch);
    let width = shape.width() as u64;
    let blocks = CrossAttending {
        attention: ["attn1", "attn2"],
        feed_forward: ["ffn.net.0.proj", "ffn.net.2"],
        blocks: shape.num_layers.max(0) as usize,
        width,
        inner: shape.ffn_dim as u64,
        heads: shape.num_attention_heads as u64,
        head_width: shape.attention_head_dim as u64,
        inputs,
        outputs,
        text_rows: text_rows(usage),
        text_width: width,
    };
    let mut kept = blocks.kept(usage);
    // The text before its embedder.
    kept.activations += text_rows(usage) * shape.text_dim as u64 * 4;
    kept
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::diffusion::Trained;
    use crate::diffusion::wan::ARCH;

    fn usage(streamed: &[usize], checkpoint: bool) -> Usage {
        Usage::of_lora(&ARCH, (1000, 512), streamed, checkpoint)
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
