//! Estimates the memory of a video model from the shapes in its files, before anything is loaded.
//!
//! It counts what autograd keeps of each layer for the backward pass, plus the temporary tensors at the peak:
//! in the backward pass of a block's feed-forward layer, when everything else that was kept of the block
//! still exists.

use models::Parameters;
use models::diffusion::wan::transformer::TransformerConfig;
use placement::Bytes;
use tch::{Device, Kind};

use crate::config::{Config, Quantization};
use crate::estimate::Footprint;
use crate::media::VideoData;

/// Bytes of an fp32 element.
const FP32_BYTES: u64 = 4;
/// What is trained, as far as memory depends on it.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Trainable {
    /// The model itself.
    All,
    /// Adapters.
    Adapters {
        /// Whether there is one on q, k, v and o of the self-attention, on those of the cross-attention, and
        /// on the two layers of the feed-forward.
        on: [[bool; 4]; 3],
        /// Sum of the ranks of a block.
        ranks: u64,
    },
}

/// Linear layers of a block: self-attention, cross-attention, and feed-forward.
const LAYERS: [[&str; 4]; 3] = [
    ["attn1.to_q", "attn1.to_k", "attn1.to_v", "attn1.to_out.0"],
    ["attn2.to_q", "attn2.to_k", "attn2.to_v", "attn2.to_out.0"],
    ["ffn.net.0.proj", "ffn.net.2", "", ""],
];

impl Trainable {
    /// What these parameters of one expert consist of.
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
    /// Tokens per pass, over all its clips.
    pub(super) tokens: u64,
    /// Text rows per pass, as seen by attention.
    pub(super) text_rows: u64,
    /// The type of matrix products.
    pub(super) compute: Kind,
    /// Whether blocks are recomputed in the backward pass.
    pub(super) checkpoint: bool,
    /// Indices of the blocks that are always recomputed, because they are streamed.
    pub(super) streamed: Vec<usize>,
    /// Whether the inputs of recomputed blocks are offloaded to host memory.
    pub(super) offload: bool,
    /// Whether matrices are dequantised for each product.
    pub(super) quantized: bool,
    /// Dropout of the adapters.
    pub(super) dropout: bool,
    pub(super) trainable: Trainable,
}

impl Usage {
    pub(super) fn new(
        config: &Config,
        data: &VideoData,
        (compute, device): (Kind, Device),
        trainable: Trainable,
        streamed: Vec<usize>,
    ) -> Self {
        let rows = u64::from(config.train.per_device_train_batch_size);
        let longest = data.training.iter().map(|clip| clip.tokens).max();
        // On the CPU, the zero rows after the text are merged; see `Transformer::distinct`.
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
            trainable,
        }
    }

    /// What a pass keeps, and the temporary tensors of one block's backward pass. `weights` is set by the
    /// caller.
    pub(super) fn footprint(&self, shape: &TransformerConfig) -> Footprint {
        let compute = self.compute.elt_size_in_bytes() as u64;
        let half = compute < FP32_BYTES;
        let (width, inner) = (shape.width() as u64, shape.ffn_dim as u64);
        let stream = self.tokens * width;
        let inside = self.inside(shape);
        // Blocks that are not recomputed keep the residual stream before their first norm, as an fp32 copy if
        // it has another type.
        let whole = inside + if half { 0 } else { stream * FP32_BYTES };
        // The maximum, over all blocks, of what is kept when a block's backward pass starts; the blocks after
        // it are done.
        let (mut kept, mut inputs, mut most) = (0, 0, 0);
        for block in 0..shape.num_layers.max(0) as usize {
            let again = self.checkpoint || self.streamed.contains(&block);
            match again {
                true => inputs += 1,
                false => kept += whole,
            }
            // Of offloaded inputs, one is on the device while in use and another while it is copied.
            let here = if self.offload { inputs.min(2) } else { inputs };
            let one = if again { inside } else { 0 };
            most = (kept + here * stream * compute + one).max(most);
        }
        let patch = shape.patch_size.iter().product::<i64>() as u64;
        let [inputs_of, outputs_of] =
            [shape.in_channels, shape.out_channels].map(|channels| channels as u64 * patch);
        // Latents, noise, noisy latents, and the velocity and loss; rotary positions; texts.
        let outside = self.tokens * FP32_BYTES * (3 * inputs_of + 5 * outputs_of)
            + self.tokens * shape.attention_head_dim as u64 * FP32_BYTES
            + self.text_rows * (shape.text_dim as u64 * FP32_BYTES + width * compute);
        // Gradients of the residual stream: in its type, and in fp32 where a gate or an adapter is involved.
        let gradients = stream * (2 * compute + 2 * FP32_BYTES);
        let unfolded = match self.trainable.has(2, 1) {
            true => self.tokens * inner * FP32_BYTES,
            false => self.tokens * inner * compute,
        };
        // A quantised matrix is dequantised to fp32 and converted to the compute type for the product, before
        // the result is converted to fp32.
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

    /// Bytes that a block keeps for its backward pass, besides the residual stream at its input if that is
    /// fp32.
    fn inside(&self, shape: &TransformerConfig) -> u64 {
        let compute = self.compute.elt_size_in_bytes() as u64;
        let half = compute < FP32_BYTES;
        let (width, inner) = (shape.width() as u64, shape.ffn_dim as u64);
        let heads = shape.num_attention_heads as u64;
        let has = |part, layer| self.trainable.has(part, layer);
        let any = |part, layers: &[usize]| layers.iter().any(|layer| has(part, *layer));
        // Trained matrices keep their inputs in the compute type; adapters in fp32.
        let kept = match self.trainable {
            Trainable::All => compute,
            Trainable::Adapters { .. } => FP32_BYTES,
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
        let adapted = matches!(self.trainable, Trainable::Adapters { .. });
        each += when(half && adapted && has(0, 3), FP32_BYTES)
            + when(half && adapted && has(1, 3), FP32_BYTES);
        // Trained scales and gates keep the other factor.
        each += when(!adapted, 4 * FP32_BYTES);
        let folded = compute + when(has(2, 1), kept);
        let mut bytes = self.tokens * (each * width + folded * inner);
        // The log-sum-exp of two softmaxes.
        bytes += self.tokens * 2 * heads * FP32_BYTES;
        // For the text: the inputs of k and v, the input of k's norm, k and v.
        let of_text = when(any(1, &[1, 2]), kept) + FP32_BYTES + 2 * compute;
        bytes += self.text_rows * width * of_text;
        match &self.trainable {
            Trainable::Adapters { ranks, .. } => {
                bytes += self.tokens * ranks * FP32_BYTES;
                if self.dropout {
                    // Each input after dropout, and the mask.
                    let widths = 9 * width + inner;
                    bytes += self.tokens * widths * (FP32_BYTES + 1);
                }
            }
            // Weights in the compute type.
            Trainable::All => {
                bytes += when(half, (8 * width * width + 2 * width * inner) * compute)
            }
        }
        bytes
    }
}

/// Bytes per element of a frozen tensor of this name and size.
pub(super) fn bytes_of_each(
    name: &str,
    size: &[i64],
    compute: Kind,
    quantization: Option<Quantization>,
) -> f64 {
    let matrix = match quantization {
        None => compute.elt_size_in_bytes() as f64,
        Some(Quantization::Int8) => 1.0,
        // Half a byte, and a four-byte scale per 64 elements.
        Some(Quantization::Nf4) => 0.5 + 4.0 / 64.0,
    };
    match size.len() {
        _ if name.contains("time_embedder") => 4.0,
        2 => matrix,
        5 => compute.elt_size_in_bytes() as f64,
        _ => 4.0,
    }
}

/// What a step needs besides the frozen weights: the passes of one expert, and the trained parameters of
/// `experts` with gradients and moments.
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
    let trained = lora * FP32_BYTES;
    let moments = lora * if config.train.optim.eight_bit() { 2 } else { 8 };
    let averages = u64::from(config.train.ema_decay.is_some()) * trained;
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
            trainable: Trainable::Adapters {
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
        // With half of the blocks recomputed, everything kept of the others exists when the first of them is
        // recomputed.
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
        let with = |trainable| {
            let usage = Usage {
                trainable,
                ..usage(&[], false)
            };
            usage.footprint(&shape()).activations
        };
        let all = with(usage(&[], false).trainable);
        let mut on = [[false; 4]; 3];
        on[0][0] = true;
        let one = with(Trainable::Adapters { on, ranks: 16 });
        assert!(one < all, "{one} and {all}");
        // The input of the last product: in fp32 for an adapter, in bf16 for itself.
        on[2][1] = true;
        let two = with(Trainable::Adapters { on, ranks: 16 });
        assert_eq!(two - one, 30 * 1000 * 8960 * 4);
    }
}
