//! What a training step keeps of the transformer.
//!
//! It counts what autograd keeps of each layer for the backward pass, plus the temporary tensors at the peak: in the
//! backward pass of a block's feed-forward layer, when everything else that was kept of the block still exists. A noise
//! refiner and a context refiner count as one block, since together they have the tokens of one.

use super::transformer::{TransformerConfig, filled};
use crate::diffusion::{Kept, Trained, Usage};

/// Bytes of an fp32 element.
const FP32_BYTES: u64 = 4;

/// What a pass keeps, and the temporary tensors of one block's backward pass.
pub(super) fn kept(usage: &Usage, shape: &TransformerConfig) -> Kept {
    let compute = usage.compute.elt_size_in_bytes() as u64;
    let half = compute < FP32_BYTES;
    let (width, inner) = (shape.dim as u64, shape.inner() as u64);
    let tokens = usage.tokens + text(usage);
    let stream = tokens * width;
    let inside = inside(usage, shape);
    // Blocks that are not recomputed keep the residual stream before their first norm, as an fp32 copy if it has another
    // type.
    let whole = inside + if half { 0 } else { stream * FP32_BYTES };
    let (refiners, layers) = (shape.n_refiner_layers as usize, shape.n_layers as usize);
    let as_one = Usage {
        streamed: (0..refiners + layers)
            .filter(|block| {
                let number = if *block < refiners {
                    *block
                } else {
                    block + refiners
                };
                usage.streamed.contains(&number)
            })
            .collect(),
        ..usage.clone()
    };
    let most = as_one.most(refiners + layers, inside, whole, stream * compute);
    // Latents, noise, noisy latents, the velocity and the loss; rotary positions; texts; the last norm's input.
    let outside = usage.tokens * FP32_BYTES * 8 * shape.patch() as u64
        + (tokens + usage.tokens) * shape.head_dim() as u64 * FP32_BYTES
        + text(usage) * shape.cap_feat_dim as u64 * FP32_BYTES
        + usage.tokens * width * FP32_BYTES;
    // Gradients of the residual stream: in its type, and in fp32 where a norm or an adapter is involved.
    let gradients = stream * (2 * compute + 2 * FP32_BYTES);
    // Those of the product of gate and feed-forward layer, and of both.
    let unfolded = match usage.trained.has("feed_forward.w2") {
        true => tokens * inner * (FP32_BYTES + 2 * compute),
        false => tokens * inner * 3 * compute,
    };
    let prepared = usage.prepared(width * inner, tokens * inner);
    Kept {
        activations: most + outside,
        temporary: gradients + unfolded.max(prepared),
    }
}

/// Tokens of the texts of a pass.
fn text(usage: &Usage) -> u64 {
    usage.rows * filled(usage.text_tokens as i64) as u64
}

/// Bytes that a block keeps for its backward pass, besides the residual stream at its input if that is fp32.
fn inside(usage: &Usage, shape: &TransformerConfig) -> u64 {
    let compute = usage.compute.elt_size_in_bytes() as u64;
    let half = compute < FP32_BYTES;
    let (width, inner) = (shape.dim as u64, shape.inner() as u64);
    let tokens = usage.tokens + text(usage);
    let has = |layer: &str| usage.trained.has(layer);
    let when = |condition: bool, bytes: u64| if condition { bytes } else { 0 };
    let adapted = matches!(usage.trained, Trained::Adapters { .. });
    // Trained matrices keep their inputs in the compute type; adapters in fp32.
    let input = if adapted { FP32_BYTES } else { compute };
    let attention = ["attention.to_q", "attention.to_k", "attention.to_v"];
    // fp32 copies of the inputs of the four norms; of the first only if the residual stream is not fp32.
    let mut each = FP32_BYTES * if half { 4 } else { 3 };
    // Inputs of q, k and v, and of the feed-forward layer.
    each += when(attention.into_iter().any(has), input)
        + when(has("feed_forward.w1") || has("feed_forward.w3"), input);
    // Inputs of the norms of q and k; q, k, v and the result of the attention.
    each += 2 * FP32_BYTES + 4 * compute;
    // The result again, as input of an adapter.
    each += when(half && adapted && has("attention.to_out.0"), FP32_BYTES);
    // Trained scales and gates keep the other factor.
    each += when(!adapted, 4 * FP32_BYTES);
    // The gate before and after its activation, the other half, and their product.
    let folded = 3 * compute + when(has("feed_forward.w2"), input);
    let mut bytes = tokens * (each * width + folded * inner);
    // The log-sum-exp of the softmax.
    bytes += tokens * shape.n_heads as u64 * FP32_BYTES;
    match &usage.trained {
        Trained::Adapters { ranks, .. } => {
            bytes += tokens * ranks * FP32_BYTES;
            if usage.dropout {
                // Each input after dropout, and the mask.
                bytes += tokens * (6 * width + inner) * (FP32_BYTES + 1);
            }
        }
        // Weights in the compute type.
        Trained::All => bytes += when(half, (4 * width * width + 3 * width * inner) * compute),
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::diffusion::z_image::ARCH;

    fn usage(streamed: &[usize], checkpoint: bool) -> Usage {
        Usage::of_lora(&ARCH, (4096, 33), streamed, checkpoint)
    }

    fn shape() -> TransformerConfig {
        TransformerConfig {
            in_channels: 16,
            dim: 3840,
            n_layers: 30,
            n_refiner_layers: 2,
            n_heads: 30,
            norm_eps: 1e-5,
            qk_norm: true,
            cap_feat_dim: 2560,
            rope_theta: 256.0,
            t_scale: 1000.0,
            axes_dims: [32, 48, 48],
            axes_lens: [1536, 512, 512],
        }
    }

    #[test]
    fn what_is_computed_again_is_not_kept() {
        let bytes = |usage: Usage| super::kept(&usage, &shape()).activations;
        let (all, none) = (bytes(usage(&[], false)), bytes(usage(&[], true)));
        assert!(all > 10 * none, "{all} and {none}");
        // Streamed blocks are recomputed: the two refiners of each pair, and the layers behind them.
        let streamed: Vec<usize> = (0..34).collect();
        assert_eq!(bytes(usage(&streamed, false)), none);
        let one = |block: usize| all - bytes(usage(&[block], false));
        assert_eq!(one(2), 0);
        assert!(one(1) > 0 && one(4) > 0);
        let offloaded = Usage {
            offload: true,
            ..usage(&[], true)
        };
        // All inputs but two, with the text's 64 tokens.
        assert_eq!(none - bytes(offloaded), 30 * (4096 + 64) * 3840 * 2);
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
        let one = with(&["attention.to_q"]);
        assert!(one < kept(&usage(&[], false), &shape()).activations);
        // The same input serves all three.
        assert_eq!(one, with(&["attention.to_k", "attention.to_v"]));
        // The input of the last product, in fp32.
        let two = with(&["attention.to_q", "feed_forward.w2"]);
        assert_eq!(two - one, 32 * (4096 + 64) * 10240 * 4);
    }
}
