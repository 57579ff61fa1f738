//! Downsampling and upsampling in space, and optionally in time: `[frames, channels, height, width]`.

use tch::Tensor;

use super::causal::{CacheEntry, CausalConv, FeatureCache};
use crate::Error;
use crate::diffusion::parts::conv::Conv;
use crate::model::Builder;
use crate::tensor::copied;

/// Halves height and width, and optionally the number of frames.
#[derive(Debug)]
pub(super) struct Downsample {
    space: Conv,
    time: Option<CausalConv>,
}

impl Downsample {
    pub(super) fn new(
        name: &str,
        channels: i64,
        in_time: bool,
        builder: &mut Builder,
    ) -> Result<Self, Error> {
        let shape = (channels, channels);
        let time = format!("{name}.time_conv");
        Ok(Self {
            space: Conv::new(&format!("{name}.resample.1"), shape, 3, builder)?,
            time: match in_time {
                true => Some(CausalConv::new(&time, shape, (3, 1), builder)?),
                false => None,
            },
        })
    }

    pub(super) fn forward(
        &self,
        input: &Tensor,
        cache: &mut FeatureCache,
    ) -> Result<Tensor, Error> {
        // Padding at the right and the bottom only.
        let padded = input.f_constant_pad_nd([0, 1, 0, 1])?;
        let smaller = self.space.strided(&padded, 2)?;
        let Some(time) = &self.time else {
            return Ok(smaller);
        };
        let entry = cache.next();
        let last = copied(&smaller.f_narrow(0, smaller.size()[0] - 1, 1)?)?;
        match std::mem::replace(entry, CacheEntry::Frames(last)) {
            CacheEntry::Frames(past) => time.strided(&Tensor::f_cat(&[&past, &smaller], 0)?, 2),
            // The first frame is not merged with others.
            CacheEntry::Empty | CacheEntry::Skipped => Ok(smaller),
        }
    }
}

/// Doubles height and width, and optionally the number of frames.
#[derive(Debug)]
pub(super) struct Upsample {
    space: Conv,
    time: Option<CausalConv>,
}

impl Upsample {
    pub(super) fn new(
        name: &str,
        (inputs, outputs): (i64, i64),
        in_time: bool,
        builder: &mut Builder,
    ) -> Result<Self, Error> {
        let time = format!("{name}.time_conv");
        Ok(Self {
            space: Conv::new(&format!("{name}.resample.1"), (inputs, outputs), 3, builder)?,
            time: match in_time {
                true => Some(CausalConv::new(
                    &time,
                    (inputs, 2 * inputs),
                    (3, 1),
                    builder,
                )?),
                false => None,
            },
        })
    }

    pub(super) fn forward(
        &self,
        input: &Tensor,
        cache: &mut FeatureCache,
    ) -> Result<Tensor, Error> {
        let stream = match &self.time {
            Some(time) => doubled_in_time(input, time, cache.next())?,
            None => input.shallow_clone(),
        };
        let (_, _, height, width) = stream.size4()?;
        let larger = stream.f_upsample_nearest2d([2 * height, 2 * width], None, None)?;
        self.space.same_size(&larger)
    }
}

/// Doubles the frames: each becomes two, one from each half of the convolution's channels.
fn doubled_in_time(
    input: &Tensor,
    time: &CausalConv,
    entry: &mut CacheEntry,
) -> Result<Tensor, Error> {
    if matches!(entry, CacheEntry::Empty) {
        // The first frame is not doubled and does not affect later ones.
        *entry = CacheEntry::Skipped;
        return Ok(input.shallow_clone());
    }
    let (frames, channels, height, width) = input.size4()?;
    if matches!(entry, CacheEntry::Skipped) {
        let zeros = Tensor::f_zeros([2, channels, height, width], (input.kind(), input.device()))?;
        *entry = CacheEntry::Frames(zeros);
    }
    let halves = time.forward(input, entry)?;
    Ok(halves.f_view([2 * frames, channels, height, width])?)
}

/// Skip connection of a stage of the 2.2 encoder: the mean of groups of values that are merged.
#[derive(Debug)]
pub(super) struct AverageDown {
    pub(super) outputs: i64,
    pub(super) in_time: i64,
    pub(super) in_space: i64,
}

impl AverageDown {
    pub(super) fn forward(&self, input: &Tensor) -> Result<Tensor, Error> {
        let (frames, channels, height, width) = input.size4()?;
        let (time, space) = (self.in_time, self.in_space);
        let missing = (time - frames % time) % time;
        let input = match missing {
            0 => input.shallow_clone(),
            missing => input.f_constant_pad_nd([0, 0, 0, 0, 0, 0, missing, 0])?,
        };
        let frames = (frames + missing) / time;
        let (height, width) = (height / space, width / space);
        let apart = [frames, time, channels, height, space, width, space];
        let group = channels * time * space * space / self.outputs;
        Ok(input
            .f_reshape(apart)?
            .f_permute([0, 2, 1, 4, 6, 3, 5])?
            .f_reshape([frames, self.outputs, group, height, width])?
            .f_mean_dim([2].as_slice(), false, None)?)
    }
}

/// Skip connection of a stage of the 2.2 decoder: each value repeated.
#[derive(Debug)]
pub(super) struct DuplicateUp {
    pub(super) outputs: i64,
    pub(super) in_time: i64,
    pub(super) in_space: i64,
}

impl DuplicateUp {
    /// In the first chunk of a video, the first frame is not multiplied in time.
    pub(super) fn forward(&self, input: &Tensor, is_first: bool) -> Result<Tensor, Error> {
        let (frames, channels, height, width) = input.size4()?;
        let (time, space) = (self.in_time, self.in_space);
        let repeats = self.outputs * time * space * space / channels;
        let apart = [frames, self.outputs, time, space, space, height, width];
        let larger = input
            .f_repeat_interleave_self_int(repeats, 1, None)?
            .f_reshape(apart)?
            .f_permute([0, 2, 1, 5, 3, 6, 4])?
            .f_reshape([frames * time, self.outputs, height * space, width * space])?;
        let dropped = if is_first { time - 1 } else { 0 };
        Ok(larger.f_narrow(0, dropped, frames * time - dropped)?)
    }
}
