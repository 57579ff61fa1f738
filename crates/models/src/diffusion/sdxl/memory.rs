//! What a training step keeps of the UNet.
//!
//! It counts what autograd keeps of each layer for the backward pass, stage by stage, plus the temporary tensors at the
//! peak: in the backward pass of a feed-forward layer, or of a residual block on the way up, at the first stage. Before the
//! first adapter nothing is kept.

use super::names::LAYERS;
use super::unet::UnetConfig;
use crate::diffusion::{Kept, Trained, Usage};

/// Bytes of an fp32 element.
const FP32_BYTES: u64 = 4;

/// What a pass keeps, and the temporary tensors at its peak.
pub(super) fn kept(usage: &Usage, config: &UnetConfig) -> Kept {
    let compute = usage.compute.elt_size_in_bytes() as u64;
    let widths: Vec<u64> = config
        .block_out_channels
        .iter()
        .map(|width| *width as u64)
        .collect();
    let stages = widths.len();
    // A stage has a quarter of the pixels of the one before it.
    let pixels = |stage: usize| usage.tokens >> (2 * stage);
    let all = usage.trained == Trained::All;
    let first = config
        .transformer_layers_per_block
        .iter()
        .position(|depth| *depth > 0);
    let mut pass = Pass {
        usage,
        block: 0,
        kept: 0,
        inputs: 0,
        most: 0,
    };
    let mut expanded = 0;
    let mut layer = |pass: &mut Pass<'_>, stage: usize, inputs: u64, learns: bool| {
        let (count, width) = (pixels(stage), widths[stage]);
        let inside = residual(count, (inputs, width), compute);
        if learns {
            // The gradients of its two halves, and of its input.
            let working = count * (inputs + 3 * width) * compute;
            pass.computed(inside, count * inputs * compute, usage.checkpoint);
            expanded = working.max(expanded);
        }
        let depth = config.transformer_layers_per_block[stage];
        let stream = count * width * compute;
        if depth > 0 {
            // The input of its norm, and of the first linear layer.
            pass.kept += 2 * stream;
        }
        for _ in 0..depth {
            let inside = transformer(usage, config, (count, width), stage);
            let again = usage.checkpoint || usage.streamed.contains(&pass.block);
            pass.computed(inside, stream, again);
            pass.block += 1;
            let inner = 4 * width;
            let has = usage.trained.has("ff.net.2");
            let unfolded = count * inner * (4 * compute + if has { FP32_BYTES } else { 0 });
            // The result of the product with the largest matrix is counted with the other unfolded tensors.
            let prepared = usage.prepared(2 * width * inner, 0);
            expanded =
                expanded.max(unfolded + prepared + count * width * (2 * FP32_BYTES + compute));
        }
    };
    let learned_at = |stage: usize| all || first.is_some_and(|first| stage >= first);
    // What is kept for the way up, which is also what the layers there begin with.
    let (mut channels, mut before) = (widths[0], vec![(0, widths[0])]);
    for (stage, width) in widths.iter().copied().enumerate() {
        for number in 0..LAYERS {
            // The first block of a stage is before its first transformer.
            let learns = learned_at(stage) && (all || number > 0 || first != Some(stage));
            layer(&mut pass, stage, channels, learns);
            channels = width;
            before.push((stage, channels));
        }
        if stage + 1 < stages {
            before.push((stage + 1, channels));
        }
    }
    let last = stages - 1;
    layer(&mut pass, last, channels, true);
    pass.computed(
        residual(pixels(last), (channels, channels), compute),
        pixels(last) * channels * compute,
        usage.checkpoint,
    );
    for stage in (0..stages).rev() {
        for _ in 0..=LAYERS {
            let skipped = before.pop().map_or(0, |(_, width)| width);
            layer(&mut pass, stage, channels + skipped, true);
            channels = widths[stage];
        }
        if stage > 0 {
            // The input of the convolution that follows the doubling.
            pass.kept += pixels(stage - 1) * channels * compute;
        }
    }
    // Latents, noise, noisy latents, the prediction and the loss; the last norm and convolution.
    let outside = usage.tokens * config.in_channels as u64 * FP32_BYTES * 8
        + 3 * usage.tokens * widths[0] * compute
        + text(usage) * config.cross_attention_dim as u64 * (FP32_BYTES + compute);
    Kept {
        activations: pass.most + outside,
        temporary: expanded,
    }
}

/// The bytes that are kept so far in a pass.
struct Pass<'a> {
    usage: &'a Usage,
    /// Index of the next block of a transformer.
    block: usize,
    kept: u64,
    /// Those of inputs of what is computed again.
    inputs: u64,
    most: u64,
}

impl Pass<'_> {
    /// Something that keeps `inside` of what it computes, or, if it is computed `again`, its `input` alone until then.
    fn computed(&mut self, inside: u64, input: u64, again: bool) {
        match again {
            true if self.usage.offload => self.inputs = self.inputs.max(2 * input),
            true => self.inputs += input,
            false => self.kept += inside,
        }
        let here = if again { inside } else { 0 };
        self.most = self.most.max(self.kept + self.inputs + here);
    }
}

/// Tokens of the texts of a pass.
fn text(usage: &Usage) -> u64 {
    usage.rows * usage.text_tokens
}

/// Bytes that a residual block keeps: the inputs of its norms, activations and convolutions.
fn residual(pixels: u64, (inputs, outputs): (u64, u64), compute: u64) -> u64 {
    pixels * compute * (3 * inputs + 3 * outputs)
}

/// Bytes that a block of a transformer keeps.
fn transformer(
    usage: &Usage,
    config: &UnetConfig,
    (pixels, width): (u64, u64),
    stage: usize,
) -> u64 {
    let compute = usage.compute.elt_size_in_bytes() as u64;
    let half = compute < FP32_BYTES;
    let has = |layer: &str| usage.trained.has(layer);
    let when = |condition: bool, bytes: u64| if condition { bytes } else { 0 };
    let adapted = matches!(usage.trained, Trained::Adapters { .. });
    // Trained matrices keep their inputs in the compute type; adapters in fp32, beside the norm's result.
    let input = if adapted { FP32_BYTES } else { compute };
    // Inputs of the three norms.
    let mut each = 3 * compute;
    // Inputs of the first layers behind each norm.
    each += when(
        ["attn1.to_q", "attn1.to_k", "attn1.to_v"]
            .into_iter()
            .any(has),
        input,
    ) + when(has("attn2.to_q"), input)
        + when(has("ff.net.0.proj"), input);
    // Queries, keys, values and the result of the first attention, queries and the result of the second.
    each += 6 * compute;
    // The results again, as inputs of adapters.
    each += when(half && adapted && has("attn1.to_out.0"), FP32_BYTES)
        + when(half && adapted && has("attn2.to_out.0"), FP32_BYTES);
    // The two halves, the gate behind its activation, and their product.
    let folded = 3 * compute + when(has("ff.net.2"), input);
    let inner = 4 * width;
    let mut bytes = pixels * (each * width + folded * inner);
    // Keys and values of the text, and the text as input of adapters.
    let seen = text(usage);
    bytes += seen * 2 * width * compute
        + when(
            has("attn2.to_k"),
            seen * config.cross_attention_dim as u64 * 2 * input,
        );
    // The log-sum-exp of the softmax, of both attentions.
    bytes += 2 * pixels * config.heads[stage] as u64 * FP32_BYTES;
    match &usage.trained {
        Trained::Adapters { ranks, .. } => {
            bytes += pixels * ranks * FP32_BYTES;
            if usage.dropout {
                // Each input after dropout, and the mask.
                bytes += pixels * (7 * width + inner) * (FP32_BYTES + 1);
            }
        }
        // Weights in the compute type.
        Trained::All => bytes += when(half, 20 * width * width * compute),
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::diffusion::sdxl::ARCH;

    fn config() -> UnetConfig {
        UnetConfig {
            in_channels: 4,
            block_out_channels: vec![320, 640, 1280],
            transformer_layers_per_block: vec![0, 2, 10],
            heads: vec![5, 10, 20],
            cross_attention_dim: 2048,
            addition_time_embed_dim: 256,
            projection_class_embeddings_input_dim: 2816,
            norm_num_groups: 32,
            norm_eps: 1e-5,
        }
    }

    fn usage(streamed: &[usize], checkpoint: bool) -> Usage {
        Usage::of_lora(&ARCH, (128 * 128, 77), streamed, checkpoint)
    }

    fn bytes(usage: &Usage) -> u64 {
        kept(usage, &config()).activations
    }

    #[test]
    fn what_is_computed_again_is_not_kept() {
        let (all, none) = (bytes(&usage(&[], false)), bytes(&usage(&[], true)));
        assert!(all > 4 * none, "{all} and {none}");
        // A block of the second stage has four times the pixels of one of the third, and half the width.
        let one = |block: usize| all - bytes(&usage(&[block], false));
        assert!(
            one(0) > one(10) && one(10) > 0,
            "{} and {}",
            one(0),
            one(10)
        );
        let streamed: Vec<usize> = (0..70).collect();
        let streamed = bytes(&usage(&streamed, false));
        assert!(none < streamed && streamed < all, "{streamed}");
        let offloaded = Usage {
            offload: true,
            ..usage(&[], true)
        };
        assert!(bytes(&offloaded) < none);
    }

    #[test]
    fn fewer_adapters_keep_less_and_all_weights_more() {
        let with = |layers: &[&str]| {
            let layers = layers.iter().map(|layer| (*layer).to_owned()).collect();
            bytes(&Usage {
                trained: Trained::Adapters { layers, ranks: 16 },
                ..usage(&[], false)
            })
        };
        let one = with(&["attn1.to_q"]);
        assert!(one < bytes(&usage(&[], false)));
        // The same input serves all three.
        assert_eq!(one, with(&["attn1.to_k", "attn1.to_v"]));
        assert!(one < with(&["attn1.to_q", "ff.net.2"]));
        let whole = Usage {
            trained: Trained::All,
            ..usage(&[], false)
        };
        assert!(bytes(&whole) > one);
    }
}
