//! What a training step keeps of the transformer.

use super::transformer::{PATCH, TransformerConfig};
use crate::diffusion::memory::CrossAttending;
use crate::diffusion::{Kept, Usage};

/// What a pass keeps, and the temporary tensors of one block's backward pass. The `first` blocks of a denoiser are those
/// of the conditioner, which is not counted: it sees the text alone.
pub(super) fn kept(usage: &Usage, shape: &TransformerConfig, first: usize, text_rows: u64) -> Kept {
    let blocks = shape.num_layers as usize;
    let streamed = (0..blocks).filter(|block| usage.streamed.contains(&(first + block)));
    let of_transformer = Usage {
        streamed: streamed.collect(),
        ..usage.clone()
    };
    let denoiser = CrossAttending {
        attention: ["attn1", "attn2"],
        feed_forward: ["ff.net.0.proj", "ff.net.2"],
        blocks,
        width: shape.width() as u64,
        inner: shape.inner() as u64,
        heads: shape.num_attention_heads as u64,
        head_width: shape.attention_head_dim as u64,
        inputs: (shape.patch_channels() * PATCH * PATCH) as u64,
        outputs: (shape.in_channels * PATCH * PATCH) as u64,
        text_rows: usage.rows * text_rows,
        text_width: shape.text_embed_dim as u64,
    };
    denoiser.kept(&of_transformer)
}
