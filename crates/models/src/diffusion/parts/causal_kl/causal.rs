//! Causal 3D convolution without conv3d.
//!
//! MIOpen has no fast conv3d for consumer GPUs; it searches for minutes, or aborts. But a convolution whose
//! kernel covers three frames is the sum of three convolutions of single frames, one for each temporal tap,
//! and these are conv2d, which is fast everywhere:
//!
//! ```text
//! frame t of the result = tap 0 ∗ frame t-2 + tap 1 ∗ frame t-1 + tap 2 ∗ frame t
//! ```
//!
//! Frames are the batch dimension of each convolution: tensors are `[frames, channels, height, width]`.

use tch::Tensor;

use crate::Error;
use crate::model::{Builder, Initial};
use crate::tensor::{copied, to_kind};

/// The previous frames that the convolutions of a pass need, in the order in which they run (`feat_cache` in
/// the original code).
#[derive(Debug, Default)]
pub(super) struct FeatureCache {
    entries: Vec<CacheEntry>,
    next: usize,
}

/// The cached frames of one convolution.
#[derive(Debug, Default)]
pub(super) enum CacheEntry {
    /// No frame has been seen yet.
    #[default]
    Empty,
    /// A frame has been seen that does not affect the following ones.
    Skipped,
    /// The last frames, at most two: `[frames, channels, height, width]`.
    Frames(Tensor),
}

impl FeatureCache {
    /// Returns to the first convolution, for the next chunk of frames.
    pub(super) fn rewind(&mut self) {
        self.next = 0;
    }

    /// Number of cached elements.
    #[cfg(test)]
    pub(super) fn numbers(&self) -> usize {
        let count = |entry: &CacheEntry| match entry {
            CacheEntry::Frames(frames) => frames.numel(),
            CacheEntry::Empty | CacheEntry::Skipped => 0,
        };
        self.entries.iter().map(count).sum()
    }

    /// The entry of the next convolution.
    pub(super) fn next(&mut self) -> &mut CacheEntry {
        let index = self.next;
        self.next += 1;
        if self.entries.len() <= index {
            self.entries.resize_with(index + 1, CacheEntry::default);
        }
        &mut self.entries[index]
    }
}

/// A convolution whose kernel covers some frames, of which the current one is the last, and some pixels.
#[derive(Debug)]
pub(super) struct CausalConv {
    taps: Taps,
    /// `[outputs]`
    bias: Tensor,
    /// Frames that the kernel covers.
    frames: i64,
    /// Zero padding of the picture.
    padding: i64,
}

#[derive(Debug)]
enum Taps {
    /// `[outputs, inputs, height, width]` for each frame of the kernel, the earliest first.
    Frozen(Vec<Tensor>),
    /// `[outputs, inputs, frames, height, width]`, trainable.
    Trained(Tensor),
}

impl CausalConv {
    /// The convolution `name`, from `inputs` to `outputs` channels, whose kernel covers `frames` frames and
    /// `pixels` × `pixels` pixels. The picture size stays the same.
    pub(super) fn new(
        name: &str,
        (inputs, outputs): (i64, i64),
        (frames, pixels): (i64, i64),
        builder: &mut Builder,
    ) -> Result<Self, Error> {
        let shape = [outputs, inputs, frames, pixels, pixels];
        let fan_in = (inputs * frames * pixels * pixels) as f64;
        let initial = Initial::Normal(fan_in.powf(-0.5));
        let weight = builder.matrix(&format!("{name}.weight"), &shape, initial, true)?;
        let taps = match weight.requires_grad() {
            true => Taps::Trained(weight),
            false => Taps::Frozen(split(&weight)?),
        };
        Ok(Self {
            taps,
            bias: builder.vector(&format!("{name}.bias"), outputs, Initial::Zeros)?,
            frames,
            padding: pixels / 2,
        })
    }

    /// `[frames, inputs, height, width]` to as many frames of `outputs` channels, continuing from the frames
    /// in `entry`; zeros where there are too few.
    pub(super) fn forward(&self, input: &Tensor, entry: &mut CacheEntry) -> Result<Tensor, Error> {
        if self.frames == 1 {
            return self.taps_over(input, 0, 1, input.size()[0]);
        }
        let wanted = self.frames - 1;
        let joined = match std::mem::take(entry) {
            CacheEntry::Frames(past) => Tensor::f_cat(&[&past, input], 0)?,
            CacheEntry::Empty | CacheEntry::Skipped => input.shallow_clone(),
        };
        let known = joined.size()[0];
        let kept = known.min(wanted);
        let last = copied(&joined.f_narrow(0, known - kept, kept)?)?;
        *entry = CacheEntry::Frames(last);
        let count = input.size()[0];
        let missing = count + wanted - known;
        self.taps_over(&joined, missing, 1, count)
    }

    /// Like [`CausalConv::forward`] but with every `stride`th frame of the result, for input that includes
    /// the previous frames.
    pub(super) fn strided(&self, input: &Tensor, stride: i64) -> Result<Tensor, Error> {
        let count = (input.size()[0] - self.frames) / stride + 1;
        self.taps_over(input, 0, stride, count)
    }

    /// The sum over the taps for `count` output frames, `stride` apart, on `missing` frames of zeros followed
    /// by `frames`. A tap that would only see zeros is skipped, which saves two thirds of the work for a
    /// still image.
    fn taps_over(
        &self,
        frames: &Tensor,
        missing: i64,
        stride: i64,
        count: i64,
    ) -> Result<Tensor, Error> {
        let kind = frames.kind();
        let split_now;
        let taps = match &self.taps {
            Taps::Frozen(taps) => taps,
            Taps::Trained(weight) => {
                split_now = split(weight)?;
                &split_now
            }
        };
        // Zeros in the window of a tap that also covers frames.
        let partly = missing > 0 && count > 1;
        let (frames, missing) = match partly {
            true => (frames.f_constant_pad_nd([0, 0, 0, 0, 0, 0, missing, 0])?, 0),
            false => (frames.shallow_clone(), missing),
        };
        let bias = to_kind(&self.bias, kind)?;
        let mut sum: Option<Tensor> = None;
        // The last tap first: it always covers frames, so the bias is added exactly once.
        for (index, tap) in taps.iter().enumerate().rev() {
            let start = index as i64 - missing;
            if start < 0 {
                continue;
            }
            let end = start + (count - 1) * stride + 1;
            let seen = frames.f_slice(0, start, end, stride)?;
            let bias = sum.is_none().then_some(&bias);
            let tap = to_kind(tap, kind)?;
            let padding = [self.padding, self.padding];
            let part = seen.f_conv2d(&tap, bias, [1, 1], padding, [1, 1], 1)?;
            sum = Some(match sum {
                None => part,
                Some(mut sum) => sum.f_add_(&part)?,
            });
        }
        sum.ok_or_else(|| Error::Internal("a convolution over no frames".into()))
    }
}

/// The taps of a kernel, the earliest first.
fn split(weight: &Tensor) -> Result<Vec<Tensor>, Error> {
    let frames = weight.size()[2];
    let tap = |index| Ok(weight.f_select(2, index)?.f_contiguous()?);
    (0..frames).map(tap).collect()
}
