//! What a training step keeps for its backward pass, estimated from shapes before anything is loaded.

pub(super) mod double;

use std::collections::BTreeSet;

use tch::{Device, Kind};

use super::Arch;
use crate::formats::TensorSource;
use crate::quant::Quantization;
use crate::{Error, Parameters};

/// Bytes of an fp32 element.
const FP32_BYTES: u64 = 4;

/// What is trained, as far as memory depends on it.
#[derive(Debug, Clone, PartialEq)]
pub enum Trained {
    /// The model itself.
    All,
    /// Adapters.
    Adapters {
        /// The layers of a block that have one, by their names in diffusers.
        layers: BTreeSet<String>,
        /// Sum of the ranks of a block.
        ranks: u64,
    },
}

impl Trained {
    /// What these parameters of a denoiser with `blocks` blocks consist of.
    pub fn of(parameters: &Parameters, arch: &Arch, blocks: usize) -> Self {
        let mut layers = BTreeSet::new();
        let mut ranks = 0;
        for parameter in parameters.iter() {
            let name = &parameter.name;
            if let Some((layer, _)) = name.split_once(".lora_A") {
                let layer = layer.strip_prefix("base_model.model.").unwrap_or(layer);
                ranks += parameter.tensor.size().first().copied().unwrap_or(0).max(0) as u64;
                layers.extend(
                    arch.part_of_block(layer)
                        .map(|(_, _, part)| part.to_owned()),
                );
            }
        }
        match ranks {
            0 => Self::All,
            _ => Self::Adapters {
                layers,
                ranks: ranks / blocks.max(1) as u64,
            },
        }
    }

    /// Adapters of rank `rank` on every layer of a block.
    pub fn planned(arch: &Arch, rank: u64) -> Self {
        let layers = arch.lists.iter().flat_map(|list| list.linear);
        let most = arch.lists.iter().map(|list| list.linear.len()).max();
        Self::Adapters {
            layers: layers.map(|(name, _)| (*name).to_owned()).collect(),
            ranks: most.unwrap_or(0) as u64 * rank,
        }
    }

    /// Whether this layer of a block is trained.
    pub fn has(&self, layer: &str) -> bool {
        match self {
            Self::All => true,
            Self::Adapters { layers, .. } => layers.contains(layer),
        }
    }
}

/// How a denoiser is trained.
#[derive(Debug, Clone)]
pub struct Usage {
    /// Clips per pass.
    pub rows: u64,
    /// Tokens per pass, over all its clips.
    pub tokens: u64,
    /// Tokens of the longest text.
    pub text_tokens: u64,
    /// The type of matrix products.
    pub compute: Kind,
    /// Device of the computation.
    pub device: Device,
    /// Whether blocks are recomputed in the backward pass.
    pub checkpoint: bool,
    /// Indices of the blocks that are always recomputed, because they are streamed.
    pub streamed: Vec<usize>,
    /// Whether the inputs of recomputed blocks are offloaded to host memory.
    pub offload: bool,
    /// How the frozen matrices are stored, if they are quantised.
    pub quantization: Option<Quantization>,
    /// Dropout of the adapters.
    pub dropout: bool,
    /// What is trained.
    pub trained: Trained,
}

impl Usage {
    /// Temporary memory of the product with the largest matrix, of `elements` elements, whose result has `outputs`:
    /// a quantised matrix is prepared, and then the result is converted to fp32 beside it.
    pub fn prepared(&self, elements: u64, outputs: u64) -> u64 {
        let compute = self.compute.elt_size_in_bytes() as u64;
        self.quantization.map_or(0, |quantization| {
            let preparing = quantization.temporary(self.compute, self.device) * elements;
            preparing.max((elements + outputs) * compute)
        })
    }

    /// The largest number of bytes that are kept at the start of a block's backward pass, when those of the blocks
    /// after it are gone. A block keeps `inside` of what it computes, and `whole` with its input if it is not
    /// recomputed; otherwise its input, `input`, is kept.
    pub fn most(&self, blocks: usize, inside: u64, whole: u64, input: u64) -> u64 {
        self.most_of((0..blocks).map(|_| (inside, whole)), input)
    }

    /// The same for blocks that differ: `inside` and `whole` of each.
    pub fn most_of(&self, blocks: impl Iterator<Item = (u64, u64)>, input: u64) -> u64 {
        let (mut kept, mut inputs, mut most) = (0, 0, 0);
        for (block, (inside, whole)) in blocks.enumerate() {
            let again = self.checkpoint || self.streamed.contains(&block);
            match again {
                true => inputs += 1,
                false => kept += whole,
            }
            // Of offloaded inputs, one is on the device while in use and another while it is copied.
            let here = if self.offload { inputs.min(2) } else { inputs };
            let one = if again { inside } else { 0 };
            most = (kept + here * input + one).max(most);
        }
        most
    }
}

#[cfg(test)]
impl Usage {
    /// That of tests: a LoRA of rank 16 on one row of `tokens`, in bf16 on the CPU.
    pub(super) fn of_lora(
        arch: &Arch,
        (tokens, text_tokens): (u64, u64),
        streamed: &[usize],
        checkpoint: bool,
    ) -> Self {
        Self {
            rows: 1,
            tokens,
            text_tokens,
            compute: Kind::BFloat16,
            device: Device::Cpu,
            checkpoint,
            streamed: streamed.to_vec(),
            offload: false,
            quantization: None,
            dropout: false,
            trained: Trained::planned(arch, 16),
        }
    }
}

/// Bytes on the device in a training step besides weights, gradients and moments.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Kept {
    /// What autograd keeps.
    pub activations: u64,
    /// Temporary tensors at the peak.
    pub temporary: u64,
}

/// An estimate for a model that has none of its own: each linear layer of a block keeps its input in fp32 and its
/// result in the compute type.
pub(super) fn of_linear_layers(
    arch: &Arch,
    file: &dyn TensorSource,
    usage: &Usage,
) -> Result<Kept, Error> {
    let compute = usage.compute.elt_size_in_bytes() as u64;
    let (mut inside, mut widest, mut width) = (0, 0, u64::MAX);
    for name in file.names() {
        let first = arch
            .part_of_block(&name)
            .is_some_and(|(_, number, _)| number == 0);
        if let (true, Some([outputs, inputs])) = (first, file.shape(&name).as_deref()) {
            let (outputs, inputs) = (*outputs as u64, *inputs as u64);
            inside += usage.tokens * (inputs * FP32_BYTES + outputs * compute);
            widest = widest.max(outputs.max(inputs));
            width = width.min(outputs.min(inputs));
        }
    }
    let blocks = arch.blocks(file).iter().sum();
    let input = usage.tokens * width.min(widest) * FP32_BYTES;
    Ok(Kept {
        activations: usage.most(blocks, inside, inside + input, input),
        temporary: 2 * input + usage.tokens * widest * FP32_BYTES,
    })
}

/// A denoiser whose blocks are self-attention, cross-attention to the text, and a feed-forward layer of two matrices,
/// each with a norm before it, and scaled and gated by the time.
#[derive(Debug)]
pub(super) struct CrossAttending {
    /// Names of the two attentions in a block, whose layers are `to_q`, `to_k`, `to_v` and `to_out.0`.
    pub(super) attention: [&'static str; 2],
    /// Names of the feed-forward layer's matrices.
    pub(super) feed_forward: [&'static str; 2],
    pub(super) blocks: usize,
    /// Width of the residual stream, and inside the feed-forward layer.
    pub(super) width: u64,
    pub(super) inner: u64,
    pub(super) heads: u64,
    pub(super) head_width: u64,
    /// Numbers of a token, as it comes in and as it goes out.
    pub(super) inputs: u64,
    pub(super) outputs: u64,
    /// Rows of the texts of a pass, as attention sees them, and their width there.
    pub(super) text_rows: u64,
    pub(super) text_width: u64,
}

impl CrossAttending {
    /// What autograd keeps of each layer for the backward pass, plus the temporary tensors at the peak: in the backward
    /// pass of a block's feed-forward layer, when everything else that was kept of the block still exists.
    pub(super) fn kept(&self, usage: &Usage) -> Kept {
        let compute = usage.compute.elt_size_in_bytes() as u64;
        let half = compute < FP32_BYTES;
        let (width, inner) = (self.width, self.inner);
        let stream = usage.tokens * width;
        let inside = self.inside(usage);
        // Blocks that are not recomputed keep the residual stream before their first norm, as an fp32 copy if
        // it has another type.
        let whole = inside + if half { 0 } else { stream * FP32_BYTES };
        let most = usage.most(self.blocks, inside, whole, stream * compute);
        // Latents, noise, noisy latents, and the velocity and loss; rotary positions; texts.
        let outside = usage.tokens * FP32_BYTES * (3 * self.inputs + 5 * self.outputs)
            + usage.tokens * self.head_width * FP32_BYTES
            + self.text_rows * self.text_width * compute;
        // Gradients of the residual stream: in its type, and in fp32 where a gate or an adapter is involved.
        let gradients = stream * (2 * compute + 2 * FP32_BYTES);
        let unfolded = match usage.trained.has(self.feed_forward[1]) {
            true => usage.tokens * inner * FP32_BYTES,
            false => usage.tokens * inner * compute,
        };
        let prepared = usage.prepared(width * inner, usage.tokens * inner);
        Kept {
            activations: most + outside,
            temporary: gradients + unfolded.max(prepared),
        }
    }

    /// Bytes that a block keeps for its backward pass, besides the residual stream at its input if that is
    /// fp32.
    fn inside(&self, usage: &Usage) -> u64 {
        let compute = usage.compute.elt_size_in_bytes() as u64;
        let half = compute < FP32_BYTES;
        let (width, inner) = (self.width, self.inner);
        let trained = |attention: usize, layers: &[&str]| {
            let name = |layer: &&str| format!("{}.{layer}", self.attention[attention]);
            layers.iter().any(|layer| usage.trained.has(&name(layer)))
        };
        let [up, down] = self.feed_forward.map(|layer| usage.trained.has(layer));
        // Trained matrices keep their inputs in the compute type; adapters in fp32.
        let kept = match usage.trained {
            Trained::All => compute,
            Trained::Adapters { .. } => FP32_BYTES,
        };
        let when = |condition: bool, bytes: u64| if condition { bytes } else { 0 };
        // fp32 copies of the inputs of three norms; of the first only if the residual stream is not fp32.
        let mut each = FP32_BYTES * if half { 3 } else { 2 };
        // Inputs of q, k, v, of the second q and of the feed-forward layer.
        each += when(trained(0, &["to_q", "to_k", "to_v"]), kept)
            + when(trained(1, &["to_q"]), kept)
            + when(up, kept);
        // Inputs of the norms of q and k.
        each += 3 * FP32_BYTES;
        // q, k, v and result of the self-attention, q and result of the cross-attention.
        each += 6 * compute;
        // The results again, as inputs of adapters.
        let adapted = matches!(usage.trained, Trained::Adapters { .. });
        for attention in [0, 1] {
            let again = half && adapted && trained(attention, &["to_out.0"]);
            each += when(again, FP32_BYTES);
        }
        // Trained scales and gates keep the other factor.
        each += when(!adapted, 4 * FP32_BYTES);
        let folded = compute + when(down, kept);
        let mut bytes = usage.tokens * (each * width + folded * inner);
        // The log-sum-exp of two softmaxes.
        bytes += usage.tokens * 2 * self.heads * FP32_BYTES;
        // For the text: the inputs of k and v, the input of k's norm, k and v.
        bytes += self.text_rows
            * (self.text_width * when(trained(1, &["to_k", "to_v"]), kept)
                + width * (FP32_BYTES + 2 * compute));
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
}
