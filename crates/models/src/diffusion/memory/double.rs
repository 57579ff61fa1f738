//! Denoisers with double blocks.

use super::{FP32_BYTES, Trained, Usage};
use crate::diffusion::parts::double::{Double, Sizes};

/// What a block's memory depends on.
pub(in crate::diffusion) struct Streams {
    /// Bytes of an element of matrix products.
    pub(in crate::diffusion) compute: u64,
    /// Whether that is not fp32.
    pub(in crate::diffusion) half: bool,
    /// Bytes of an element of the input that a trained layer keeps: in the compute type, or in fp32 for its adapter.
    pub(in crate::diffusion) input: u64,
    pub(in crate::diffusion) adapted: bool,
    pub(in crate::diffusion) width: u64,
    pub(in crate::diffusion) inner: u64,
    heads: u64,
    /// Tokens of all rows, with those of the texts.
    pub(in crate::diffusion) tokens: u64,
    pub(in crate::diffusion) text: u64,
}

impl Streams {
    /// Beside texts of `words` tokens in each row.
    pub(in crate::diffusion) fn new(usage: &Usage, sizes: Sizes, words: u64) -> Self {
        let compute = usage.compute.elt_size_in_bytes() as u64;
        let adapted = matches!(usage.trained, Trained::Adapters { .. });
        let text = usage.rows * words;
        Self {
            compute,
            half: compute < FP32_BYTES,
            input: if adapted { FP32_BYTES } else { compute },
            adapted,
            width: sizes.width as u64,
            inner: sizes.inner as u64,
            heads: (sizes.width / sizes.head) as u64,
            tokens: usage.tokens + text,
            text,
        }
    }

    /// Bytes that a double block keeps for its backward pass, besides the residual stream at its input if that is fp32.
    pub(in crate::diffusion) fn inside(&self, usage: &Usage, kind: &Double) -> u64 {
        let when = |condition: bool, bytes: u64| if condition { bytes } else { 0 };
        let (compute, mut bytes) = (self.compute, 0);
        for (tokens, names) in [usage.tokens, self.text].into_iter().zip(&kind.streams) {
            let has = |layer: &str| usage.trained.has(layer);
            let [up, down] = names.feed_forward;
            // fp32 copies of the inputs of both norms; of the first only if the residual stream is not fp32.
            let mut each = FP32_BYTES * if self.half { 2 } else { 1 };
            each += when(names.inputs.into_iter().any(has), self.input) + when(has(up), self.input);
            // Inputs of the norms of queries and keys; queries, keys and values of both streams, and the result.
            each += 2 * FP32_BYTES + 4 * compute;
            // The result again, as input of an adapter.
            each += when(self.half && self.adapted && has(names.output), FP32_BYTES);
            // Trained scales and gates keep the other factor.
            each += when(!self.adapted, 4 * FP32_BYTES);
            // The input of the activation; of halves also its result and the other half.
            let unfolded = if kind.is_folded { 3 } else { 1 };
            let folded = unfolded * compute + when(has(down), self.input);
            bytes += tokens * (each * self.width + folded * self.inner);
        }
        let matrices = if kind.is_folded { 3 } else { 2 };
        let layers = 4 * self.width * self.width + matrices * self.width * self.inner;
        bytes + self.of_both(usage, 6 * self.width + self.inner, 2 * layers)
    }

    /// What blocks of any kind keep: the log-sum-exp of the softmax, what adapters make, `dropped` numbers of each token
    /// after dropout with their mask, and trained weights, of which there are `weights`, in the compute type.
    pub(in crate::diffusion) fn of_both(&self, usage: &Usage, dropped: u64, weights: u64) -> u64 {
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

    /// Temporary bytes of a feed-forward layer's backward pass, of which the second matrix is `trained` or not.
    pub(in crate::diffusion) fn unfolding(&self, kind: &Double, trained: bool) -> u64 {
        let each = match (kind.is_folded, trained) {
            (true, true) => FP32_BYTES + 2 * self.compute,
            (true, false) => 3 * self.compute,
            (false, true) => FP32_BYTES,
            (false, false) => self.compute,
        };
        self.tokens * self.inner * each
    }

    /// Gradients of the residual stream: in its type, and in fp32 where a norm or an adapter is involved.
    pub(in crate::diffusion) fn gradients(&self) -> u64 {
        self.tokens * self.width * (2 * self.compute + 2 * FP32_BYTES)
    }

    /// What a block that is not recomputed keeps of the residual stream before its first norm: an fp32 copy if it has
    /// another type.
    pub(in crate::diffusion) fn whole_input(&self) -> u64 {
        match self.half {
            true => 0,
            false => self.tokens * self.width * FP32_BYTES,
        }
    }
}
