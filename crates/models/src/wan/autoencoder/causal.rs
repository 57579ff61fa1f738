//! Causal convolution over time and space, without conv3d.
//!
//! MIOpen has no fast conv3d for consumer GPUs; it searches for minutes, or aborts. But a
//! convolution with a kernel of three frames is the sum of three convolutions of single frames,
//! one for each tap in time, and those are conv2d, which is fast everywhere:
//!
//! ```text
//! frame t of the result = tap 0 ∗ frame t-2 + tap 1 ∗ frame t-1 + tap 2 ∗ frame t
//! ```
//!
//! Frames are the batch of each convolution: tensors are `[frames, channels, height, width]`.

use tch::Tensor;

use crate::Error;
use crate::model::{Builder, Initial};
use crate::tensor::{copied, to_kind};

/// What the convolutions of one pass remember of the frames before, in the order in which they run.
#[derive(Debug, Default)]
pub(super) struct Memory {
    slots: Vec<Slot>,
    next: usize,
}

/// What one convolution remembers.
#[derive(Debug, Default)]
pub(super) enum Slot {
    /// Nothing has passed yet.
    #[default]
    Empty,
    /// A frame has passed, and none of it counts for what follows.
    Passed,
    /// The last frames, at most two: `[frames, channels, height, width]`.
    Frames(Tensor),
}

impl Memory {
    /// Goes back to the first convolution, for the next chunk of frames.
    pub(super) fn rewind(&mut self) {
        self.next = 0;
    }

    /// How many numbers are remembered.
    #[cfg(test)]
    pub(super) fn numbers(&self) -> usize {
        let count = |slot: &Slot| match slot {
            Slot::Frames(frames) => frames.numel(),
            Slot::Empty | Slot::Passed => 0,
        };
        self.slots.iter().map(count).sum()
    }

    /// What the next convolution in order remembers.
    pub(super) fn next(&mut self) -> &mut Slot {
        let index = self.next;
        self.next += 1;
        if self.slots.len() <= index {
            self.slots.resize_with(index + 1, Slot::default);
        }
        &mut self.slots[index]
    }
}

/// A convolution whose kernel covers some frames (the current one last) and some pixels.
#[derive(Debug)]
pub(super) struct CausalConv {
    taps: Taps,
    /// `[outputs]`
    bias: Tensor,
    /// Frames that the kernel covers.
    frames: i64,
    /// Zeros around the picture.
    padding: i64,
}

#[derive(Debug)]
enum Taps {
    /// `[outputs, inputs, height, width]` for each frame of the kernel, the earliest first.
    Frozen(Vec<Tensor>),
    /// `[outputs, inputs, frames, height, width]`, which learns.
    Trained(Tensor),
}

impl CausalConv {
    /// The convolution called `name`, from `inputs` to `outputs` channels, whose kernel covers
    /// `frames` frames and `pixels` × `pixels` pixels. The picture keeps its size.
    ///
    /// # Errors
    /// When the source lacks a weight.
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

    /// `[frames, inputs, height, width]` to as many frames of `outputs` channels, after those that
    /// `slot` remembers; zeros where it remembers too few.
    ///
    /// # Errors
    /// When shapes do not fit or memory runs out.
    pub(super) fn forward(&self, input: &Tensor, slot: &mut Slot) -> Result<Tensor, Error> {
        if self.frames == 1 {
            return self.taps_over(input, 0, 1, input.size()[0]);
        }
        let wanted = self.frames - 1;
        let joined = match std::mem::take(slot) {
            Slot::Frames(past) => Tensor::f_cat(&[&past, input], 0)?,
            Slot::Empty | Slot::Passed => input.shallow_clone(),
        };
        let known = joined.size()[0];
        let kept = known.min(wanted);
        let last = copied(&joined.f_narrow(0, known - kept, kept)?)?;
        *slot = Slot::Frames(last);
        let count = input.size()[0];
        let missing = count + wanted - known;
        self.taps_over(&joined, missing, 1, count)
    }

    /// As [`CausalConv::forward`] with every `stride`th frame of the result, for input that already
    /// has the frames before it.
    ///
    /// # Errors
    /// When shapes do not fit or memory runs out.
    pub(super) fn strided(&self, input: &Tensor, stride: i64) -> Result<Tensor, Error> {
        let count = (input.size()[0] - self.frames) / stride + 1;
        self.taps_over(input, 0, stride, count)
    }

    /// The sum over taps for `count` frames, `stride` apart, of `missing` frames of zeros followed
    /// by `frames`. A tap that would only see zeros is left out: for a still image that is
    /// two thirds of the work.
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
        // Zeros inside the window of a tap that also sees frames.
        let partly = missing > 0 && count > 1;
        let (frames, missing) = match partly {
            true => (frames.f_constant_pad_nd([0, 0, 0, 0, 0, 0, missing, 0])?, 0),
            false => (frames.shallow_clone(), missing),
        };
        let bias = to_kind(&self.bias, kind)?;
        let mut sum: Option<Tensor> = None;
        // The last tap first: it always sees frames, so that the bias is added once.
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
