//! How much memory a video model takes, from the shapes in its files alone: before anything is loaded.
//!
//! Counted is what autograd keeps of each layer for the way back, and what exists beside it at the moment when
//! most does: in the backward pass of a block's feed-forward layer, whose inside everything else of the block
//! is still there for.

use models::Parameters;
use models::wan::transformer::TransformerConfig;
use placement::Bytes;
use tch::{Device, Kind};

use crate::config::{Config, Quantization};
use crate::estimate::Footprint;
use crate::video::VideoData;

/// Bytes of a number in fp32.
const FULL: u64 = 4;
/// What is trained, as far as memory depends on it.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Learns {
    /// The model itself.
    All,
    /// Adapters.
    Adapters {
        /// Whether there is one on q, k, v and o of the first attention, on those of the second, and on the
        /// feed-forward layer's two.
        on: [[bool; 4]; 3],
        /// Sum of the ranks of a block.
        ranks: u64,
    },
}

/// Linear layers of a block: of the first attention, the second, and the feed-forward layer.
const LAYERS: [[&str; 4]; 3] = [
    ["attn1.to_q", "attn1.to_k", "attn1.to_v", "attn1.to_out.0"],
    ["attn2.to_q", "attn2.to_k", "attn2.to_v", "attn2.to_out.0"],
    ["ffn.net.0.proj", "ffn.net.2", "", ""],
];

impl Learns {
    /// What these parameters of one expert are.
    pub(super) fn of(parameters: &Parameters, shape: &TransformerConfig) -> Self {
        let names = || parameters.iter().map(|parameter| parameter.name.as_str());
        if !names().any(|name| name.contains("lora_A")) {
            return Self::All;
        }
        let on = LAYERS.map(|part| {
            part.map(|layer| {
                let pattern = format!(".{layer}.lora_A");
                !layer.is_empty() && names().any(|name| name.contains(&pattern))
            })
        });
        let lora = parameters
            .iter()
            .filter(|parameter| parameter.name.contains("lora_A"));
        let ranks: i64 = lora.map(|parameter| parameter.tensor.size()[0]).sum();
        Self::Adapters {
            on,
            ranks: (ranks / shape.num_layers.max(1)).max(0) as u64,
        }
    }

    /// What `config` will train of a model that is not loaded yet: adapters on every layer of a block.
    pub(super) fn planned(config: &Config) -> Self {
        match &config.adapter {
            None => Self::All,
            Some(adapter) => Self::Adapters {
                on: [[true; 4], [true; 4], [true, true, false, false]],
                ranks: 10 * u64::from(adapter.r),
            },
        }
    }

    fn has(&self, part: usize, layer: usize) -> bool {
        match self {
            Self::All => true,
            Self::Adapters { on, .. } => on[part][layer],
        }
    }
}

/// How a transformer is trained.
#[derive(Debug, Clone)]
pub(super) struct Usage {
    /// Tokens of a pass: those of all its clips.
    pub(super) tokens: u64,
    /// Rows of all texts of a pass, as attention sees them.
    pub(super) text_rows: u64,
    /// The type of matrix products.
    pub(super) compute: Kind,
    /// Whether blocks are computed again in the backward pass.
    pub(super) checkpoint: bool,
    /// Numbers of those that are whatever that says, because they are streamed.
    pub(super) streamed: Vec<usize>,
    /// Whether what is kept of those waits in host memory.
    pub(super) offload: bool,
    /// Whether matrices are expanded for each product.
    pub(super) quantized: bool,
    /// Dropout of the adapters.
    pub(super) dropout: bool,
    pub(super) learns: Learns,
}

impl Usage {
    pub(super) fn new(
        config: &Config,
        data: &VideoData,
        (compute, device): (Kind, Device),
        learns: Learns,
        streamed: Vec<usize>,
    ) -> Self {
        let rows = u64::from(config.train.per_device_train_batch_size);
        let longest = data.training.iter().map(|clip| clip.tokens).max();
        // On the CPU, rows of zeros after the text are one; see `Transformer::distinct`.
        let text_rows = match device {
            Device::Cpu => (data.text_rows + 1).min(512),
            _ => 512,
        };
        Self {
            tokens: rows * longest.unwrap_or(0),
            text_rows: rows * text_rows,
            compute,
            checkpoint: config.train.gradient_checkpointing,
            streamed,
            offload: config.train.activation_offload && device != Device::Cpu,
            quantized: config.model.quantization.is_some(),
            dropout: config
                .adapter
                .as_ref()
                .is_some_and(|a| a.lora_dropout > 0.0),
            learns,
        }
    }

    /// What a pass keeps, and what the backward pass of one block has beside that. `weights` is left to others.
    pub(super) fn footprint(&self, shape: &TransformerConfig) -> Footprint {
        let compute = self.compute.elt_size_in_bytes() as u64;
        let half = compute < FULL;
        let (width, inner) = (shape.width() as u64, shape.ffn_dim as u64);
        let stream = self.tokens * width;
        let inside = self.inside(shape);
        // Blocks that keep everything have the stream before their first norm, of which they make a copy in fp32
        // where it is none.
        let whole = inside + if half { 0 } else { stream * FULL };
        // The most of what is kept of the blocks up to one when its backward pass begins: those behind it are done.
        let (mut kept, mut inputs, mut most) = (0, 0, 0);
        for block in 0..shape.num_layers.max(0) as usize {
            let again = self.checkpoint || self.streamed.contains(&block);
            match again {
                true => inputs += 1,
                false => kept += whole,
            }
            // Of what waits elsewhere, one is there while it is used, another while it leaves or comes back.
            let here = if self.offload { inputs.min(2) } else { inputs };
            let one = if again { inside } else { 0 };
            most = (kept + here * stream * compute + one).max(most);
        }
        let patch = shape.patch_size.iter().product::<i64>() as u64;
        let [inputs_of, outputs_of] =
            [shape.in_channels, shape.out_channels].map(|channels| channels as u64 * patch);
        // Latents, noise, what is made of both, and the velocity on its way to a loss; places of tokens; texts.
        let outside = self.tokens * FULL * (3 * inputs_of + 5 * outputs_of)
            + self.tokens * shape.attention_head_dim as u64 * FULL
            + self.text_rows * (shape.text_dim as u64 * FULL + width * compute);
        // Gradients of the stream: of its type, and in fp32 where a gate was multiplied and an adapter is added.
        let gradients = stream * (2 * compute + 2 * FULL);
        let unfolded = match self.learns.has(2, 1) {
            true => self.tokens * inner * FULL,
            false => self.tokens * inner * compute,
        };
        // A matrix in few bits is expanded in fp32, and there in the type of the products while it is multiplied: a
        // moment before what it gives is in fp32.
        let expanded = match self.quantized {
            true => (6 * width * inner).max(2 * width * inner + self.tokens * inner * compute),
            false => 0,
        };
        Footprint {
            weights: 0,
            activations: most + outside,
            logits: gradients + unfolded.max(expanded),
        }
    }

    /// Bytes that a block keeps for its backward pass, beside the stream that goes into it where that is fp32.
    fn inside(&self, shape: &TransformerConfig) -> u64 {
        let compute = self.compute.elt_size_in_bytes() as u64;
        let half = compute < FULL;
        let (width, inner) = (shape.width() as u64, shape.ffn_dim as u64);
        let heads = shape.num_attention_heads as u64;
        let has = |part, layer| self.learns.has(part, layer);
        let any = |part, layers: &[usize]| layers.iter().any(|layer| has(part, *layer));
        // Where matrices learn, they keep their inputs as they multiply them; adapters in fp32.
        let kept = match self.learns {
            Learns::All => compute,
            Learns::Adapters { .. } => FULL,
        };
        let when = |condition: bool, bytes: u64| if condition { bytes } else { 0 };
        // Copies in fp32 of what three norms see; of the first, only where the stream is none itself.
        let mut each = FULL * if half { 3 } else { 2 };
        // Inputs of q, k, v, of the second q and of the feed-forward layer.
        each += when(any(0, &[0, 1, 2]), kept) + when(has(1, 0), kept) + when(has(2, 0), kept);
        // What the norms of q and k see.
        each += 3 * FULL;
        // q, k, v and result of the first attention, q and result of the second.
        each += 6 * compute;
        // The results again, as adapters see them.
        let adapted = matches!(self.learns, Learns::Adapters { .. });
        each += when(half && adapted && has(0, 3), FULL) + when(half && adapted && has(1, 3), FULL);
        // Scales and gates that learn keep what they are multiplied with.
        each += when(!adapted, 4 * FULL);
        let folded = compute + when(has(2, 1), kept);
        let mut bytes = self.tokens * (each * width + folded * inner);
        // The sums of two softmaxes.
        bytes += self.tokens * 2 * heads * FULL;
        // Of the text: the inputs of k and v, what the norm of k sees, k and v.
        let of_text = when(any(1, &[1, 2]), kept) + FULL + 2 * compute;
        bytes += self.text_rows * width * of_text;
        match &self.learns {
            Learns::Adapters { ranks, .. } => {
                bytes += self.tokens * ranks * FULL;
                if self.dropout {
                    // What is left of each input, and the mask.
                    let widths = 9 * width + inner;
                    bytes += self.tokens * widths * (FULL + 1);
                }
            }
            // Weights in the type of the products.
            Learns::All => bytes += when(half, (8 * width * width + 2 * width * inner) * compute),
        }
        bytes
    }
}

/// What each number of a frozen tensor of this name and size takes in memory.
pub(super) fn bytes_of_each(
    name: &str,
    size: &[i64],
    compute: Kind,
    quantization: Option<Quantization>,
) -> f64 {
    let matrix = match quantization {
        None => compute.elt_size_in_bytes() as f64,
        Some(Quantization::Int8) => 1.0,
        // Half a byte, and a scale of four bytes for 64.
        Some(Quantization::Nf4) => 0.5 + 4.0 / 64.0,
    };
    match size.len() {
        _ if name.contains("time_embedder") => 4.0,
        2 => matrix,
        5 => compute.elt_size_in_bytes() as f64,
        _ => 4.0,
    }
}

/// What a step needs beside the frozen weights: the passes of one expert, and what learns of `experts`.
pub(super) fn working(
    config: &Config,
    shape: &TransformerConfig,
    usage: &Usage,
    experts: usize,
) -> Bytes {
    let adapter = config.adapter.as_ref();
    let lora = adapter.map_or(0, |adapter| {
        let (width, inner) = (shape.width() as u64, shape.ffn_dim as u64);
        let sides = 8 * 2 * width + 2 * (width + inner);
        u64::from(adapter.r) * sides * shape.num_layers.max(0) as u64
    });
    let trained = lora * FULL;
    let moments = lora * if config.train.optim.eight_bit() { 2 } else { 8 };
    let averages = config.train.kept_copies() * trained;
    let several = config.train.gradient_accumulation_steps > 1;
    let so_far = if several { trained } else { 0 };
    let footprint = usage.footprint(shape);
    let resting = experts as u64 * (trained + moments + averages);
    let pass = so_far + footprint.activations + footprint.logits;
    Bytes(resting + pass.max(so_far + trained))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn usage(streamed: &[usize], checkpoint: bool) -> Usage {
        Usage {
            tokens: 1000,
            text_rows: 512,
            compute: Kind::BFloat16,
            checkpoint,
            streamed: streamed.to_vec(),
            offload: false,
            quantized: false,
            dropout: false,
            learns: Learns::Adapters {
                on: [[true; 4], [true; 4], [true, true, false, false]],
                ranks: 160,
            },
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
        let kept = |usage: Usage| usage.footprint(&shape()).activations;
        let all = kept(usage(&[], false));
        let none = kept(usage(&[], true));
        assert!(all > 10 * none, "{all} and {none}");
        // Of half the blocks, all of the others are there when the first of those is computed again.
        let half: Vec<usize> = (0..15).collect();
        let behind = kept(usage(&half, false));
        assert!(behind < all / 2 + none, "{behind}");
        let offloaded = Usage {
            offload: true,
            ..usage(&[], true)
        };
        assert_eq!(none - kept(offloaded), 28 * 1000 * 1536 * 2);
    }

    #[test]
    fn fewer_adapters_keep_less_and_all_weights_more() {
        let with = |learns| {
            let usage = Usage {
                learns,
                ..usage(&[], false)
            };
            usage.footprint(&shape()).activations
        };
        let all = with(usage(&[], false).learns);
        let mut on = [[false; 4]; 3];
        on[0][0] = true;
        let one = with(Learns::Adapters { on, ranks: 16 });
        assert!(one < all, "{one} and {all}");
        // The input of the last product: in fp32 for an adapter, in bf16 for itself.
        on[2][1] = true;
        let two = with(Learns::Adapters { on, ranks: 16 });
        assert_eq!(two - one, 30 * 1000 * 8960 * 4);
    }
}
