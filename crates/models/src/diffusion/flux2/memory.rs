//! What a training step keeps of the transformer.
//!
//! It counts what autograd keeps of each layer for the backward pass, plus the temporary tensors at the peak: in the
//! backward pass of a block's feed-forward layer, when everything else that was kept of the block still exists.

use super::model::TEXT_TOKENS;
use super::transformer::TransformerConfig;
use crate::diffusion::{Kept, Trained, Usage};

/// Bytes of an fp32 element.
const FP32_BYTES: u64 = 4;

/// What a pass keeps, and the temporary tensors of one block's backward pass.
pub(super) fn kept(usage: &Usage, shape: &TransformerConfig) -> Kept {
    let sizes = Sizes::new(usage, shape);
    let Sizes {
        compute,
        width,
        inner,
        tokens,
        text,
        ..
    } = sizes;
    let stream = tokens * width;
    // Blocks that are not recomputed keep the residual stream before their first norm, as an fp32 copy if it has another
    // type.
    let input = if sizes.half { 0 } else { stream * FP32_BYTES };
    let with_input = |inside: u64| (inside, inside + input);
    let double = (0..shape.num_layers).map(|_| with_input(sizes.inside_double(usage)));
    let single = (0..shape.num_single_layers).map(|_| with_input(sizes.inside_single(usage)));
    let most = usage.most_of(double.chain(single), stream * compute);
    // Latents, noise, noisy latents, the velocity and the loss; rotary positions; texts; the last norm's input.
    let outside = usage.tokens * FP32_BYTES * 8 * shape.in_channels as u64
        + tokens * shape.attention_head_dim as u64 * FP32_BYTES
        + text * shape.joint_attention_dim as u64 * FP32_BYTES
        + usage.tokens * width * FP32_BYTES;
    // Gradients of the residual stream: in its type, and in fp32 where a norm or an adapter is involved.
    let gradients = stream * (2 * compute + 2 * FP32_BYTES);
    // Those of the product of gate and feed-forward layer, and of both. In a single block, that of what its first layer
    // makes.
    let trained = &usage.trained;
    let folded = match trained.has("ff.linear_out") || trained.has("attn.to_out") {
        true => tokens * inner * (FP32_BYTES + 2 * compute),
        false => tokens * inner * 3 * compute,
    };
    let unfolded = match shape.num_single_layers {
        0 => folded,
        _ => folded + tokens * 3 * width * compute,
    };
    let outputs = 3 * width + 2 * inner;
    let prepared = usage.prepared(width * outputs, 0);
    Kept {
        activations: most + outside,
        temporary: gradients + unfolded.max(prepared),
    }
}

struct Sizes {
    /// Bytes of an element of matrix products.
    compute: u64,
    /// Whether that is not fp32.
    half: bool,
    /// Bytes of an element of the input that a trained layer keeps: in the compute type, or in fp32 for its adapter.
    input: u64,
    adapted: bool,
    width: u64,
    inner: u64,
    heads: u64,
    /// Tokens of all rows, with those of the texts.
    tokens: u64,
    text: u64,
}

impl Sizes {
    fn new(usage: &Usage, shape: &TransformerConfig) -> Self {
        let compute = usage.compute.elt_size_in_bytes() as u64;
        let adapted = matches!(usage.trained, Trained::Adapters { .. });
        let text = usage.rows * TEXT_TOKENS as u64;
        Self {
            compute,
            half: compute < FP32_BYTES,
            input: if adapted { FP32_BYTES } else { compute },
            adapted,
            width: shape.width() as u64,
            inner: shape.inner() as u64,
            heads: shape.num_attention_heads as u64,
            tokens: usage.tokens + text,
            text,
        }
    }

    /// Bytes that a double block keeps for its backward pass, besides the residual stream at its input if that is fp32.
    fn inside_double(&self, usage: &Usage) -> u64 {
        let when = |condition: bool, bytes: u64| if condition { bytes } else { 0 };
        let (compute, picture) = (self.compute, usage.tokens);
        // Of each stream, tokens and the names of its layers.
        let streams = [
            (
                picture,
                ["attn.to_q", "attn.to_k", "attn.to_v"],
                ["attn.to_out.0", "ff.linear_in", "ff.linear_out"],
            ),
            (
                self.text,
                ["attn.add_q_proj", "attn.add_k_proj", "attn.add_v_proj"],
                [
                    "attn.to_add_out",
                    "ff_context.linear_in",
                    "ff_context.linear_out",
                ],
            ),
        ];
        let mut bytes = 0;
        for (tokens, inputs, [output, up, down]) in streams {
            let has = |layer: &str| usage.trained.has(layer);
            // fp32 copies of the inputs of both norms; of the first only if the residual stream is not fp32.
            let mut each = FP32_BYTES * if self.half { 2 } else { 1 };
            each += when(inputs.into_iter().any(has), self.input) + when(has(up), self.input);
            // Inputs of the norms of queries and keys; queries, keys and values of both streams, and the result.
            each += 2 * FP32_BYTES + 4 * compute;
            // The result again, as input of an adapter.
            each += when(self.half && self.adapted && has(output), FP32_BYTES);
            // Trained scales and gates keep the other factor.
            each += when(!self.adapted, 4 * FP32_BYTES);
            // Both halves, the gate after its activation, and their product.
            let folded = 3 * compute + when(has(down), self.input);
            bytes += tokens * (each * self.width + folded * self.inner);
        }
        let layers = 4 * self.width * self.width + 3 * self.width * self.inner;
        bytes + self.of_both(usage, 6 * self.width + self.inner, 2 * layers)
    }

    /// The same of a single block.
    fn inside_single(&self, usage: &Usage) -> u64 {
        let when = |condition: bool, bytes: u64| if condition { bytes } else { 0 };
        let has = |layer: &str| usage.trained.has(layer);
        let compute = self.compute;
        let mut each = when(self.half, FP32_BYTES) + when(has("attn.to_qkv_mlp_proj"), self.input);
        // Inputs of the norms of queries and keys; the values and what the norms took are parts of what the first layer
        // made, which is kept whole.
        each += when(self.half, 2 * FP32_BYTES) + 3 * compute;
        // Queries and keys, and the result of the attention.
        each += 3 * compute;
        each += when(!self.adapted, 2 * FP32_BYTES);
        // Both halves and the gate after its activation.
        let folded = 3 * compute;
        let mut bytes = self.tokens * (each * self.width + folded * self.inner);
        bytes += when(
            has("attn.to_out"),
            self.tokens * self.input * (self.width + self.inner),
        );
        let layers = 4 * self.width * self.width + 3 * self.width * self.inner;
        bytes + self.of_both(usage, 2 * self.width + self.inner, layers)
    }

    /// What both kinds of blocks keep: the log-sum-exp of the softmax, what adapters make, `dropped` numbers of each token
    /// after dropout with their mask, and trained weights, of which there are `weights`, in the compute type.
    fn of_both(&self, usage: &Usage, dropped: u64, weights: u64) -> u64 {
        let softmax = self.tokens * self.heads * FP32_BYTES;
        softmax
            + match &usage.trained {
                Trained::Adapters { ranks, .. } => {
                    let dropped = if usage.dropout { dropped } else { 0 };
                    self.tokens * (ranks * FP32_BYTES + dropped * (FP32_BYTES + 1))
                }
                Trained::All if self.half => weights * self.compute,
                Trained::All => 0,
            }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
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
