//! Encoder and decoder, one chunk of frames at a time: `[frames, channels, height, width]`.

use tch::Tensor;

use super::AutoencoderConfig;
use super::blocks::{Head, Middle, Residual};
use super::causal::{CausalConv, FeatureCache};
use super::resample::{AverageDown, Downsample, DuplicateUp, Upsample};
use crate::Error;
use crate::model::Builder;

/// Pixels to the moments of latents.
#[derive(Debug)]
pub(super) struct Encoder {
    entry: CausalConv,
    stages: Vec<DownStage>,
    middle: Middle,
    head: Head,
    /// Pointwise convolution to the moments.
    moments: CausalConv,
}

#[derive(Debug)]
struct DownStage {
    residuals: Vec<Residual>,
    downsample: Option<Downsample>,
    around: Option<AverageDown>,
}

impl Encoder {
    pub(super) fn new(config: &AutoencoderConfig, builder: &mut Builder) -> Result<Self, Error> {
        let widths: Vec<i64> = config
            .dim_mult
            .iter()
            .map(|m| m * config.base_dim)
            .collect();
        let input = (config.in_channels, config.base_dim);
        let entry = CausalConv::new("encoder.conv_in", input, (3, 3), builder)?;
        let mut stages = Vec::new();
        let mut channels = config.base_dim;
        // In the 2.1 encoder, all blocks are in one list.
        let mut listed = 0;
        for (stage, &width) in widths.iter().enumerate() {
            let in_time = config.temporal_downsample.get(stage).copied();
            let mut name = |part: &str, number: i64| match config.is_residual {
                true if part == "resnets" => format!("encoder.down_blocks.{stage}.{part}.{number}"),
                true => format!("encoder.down_blocks.{stage}.{part}"),
                false => {
                    listed += 1;
                    format!("encoder.down_blocks.{}", listed - 1)
                }
            };
            let around = config.is_residual.then(|| AverageDown {
                outputs: width,
                in_time: if in_time == Some(true) { 2 } else { 1 },
                in_space: if in_time.is_some() { 2 } else { 1 },
            });
            let mut residuals = Vec::new();
            for number in 0..config.num_res_blocks {
                let shape = (channels, width);
                residuals.push(Residual::new(&name("resnets", number), shape, builder)?);
                channels = width;
            }
            let downsample = match in_time {
                Some(in_time) => {
                    let name = name("downsampler", 0);
                    Some(Downsample::new(&name, width, in_time, builder)?)
                }
                None => None,
            };
            stages.push(DownStage {
                residuals,
                downsample,
                around,
            });
        }
        let moments = 2 * config.z_dim;
        Ok(Self {
            entry,
            stages,
            middle: Middle::new("encoder.mid_block", channels, builder)?,
            head: Head::new("encoder", (channels, moments), builder)?,
            moments: CausalConv::new("quant_conv", (moments, moments), (1, 1), builder)?,
        })
    }

    /// A chunk (the first frame alone, then four at a time) to the moments of one latent frame: means, then
    /// log-variances.
    pub(super) fn forward(
        &self,
        chunk: &Tensor,
        cache: &mut FeatureCache,
    ) -> Result<Tensor, Error> {
        cache.rewind();
        let mut stream = self.entry.forward(chunk, cache.next())?;
        for stage in &self.stages {
            let input = stage.around.as_ref().map(|_| stream.shallow_clone());
            for residual in &stage.residuals {
                stream = residual.forward(&stream, cache)?;
            }
            if let Some(downsample) = &stage.downsample {
                stream = downsample.forward(&stream, cache)?;
            }
            if let (Some(around), Some(input)) = (&stage.around, input) {
                stream = stream.f_add(&around.forward(&input)?)?;
            }
        }
        let stream = self.middle.forward(&stream, cache)?;
        let stream = self.head.forward(&stream, cache)?;
        self.moments.forward(&stream, &mut Default::default())
    }
}

/// Latents to pixels.
#[derive(Debug)]
pub(super) struct Decoder {
    /// Pointwise convolution of the latents.
    latents: CausalConv,
    entry: CausalConv,
    middle: Middle,
    stages: Vec<UpStage>,
    head: Head,
}

#[derive(Debug)]
struct UpStage {
    residuals: Vec<Residual>,
    upsample: Option<Upsample>,
    around: Option<DuplicateUp>,
}

impl Decoder {
    pub(super) fn new(config: &AutoencoderConfig, builder: &mut Builder) -> Result<Self, Error> {
        let z = config.z_dim;
        let widths = config.dim_mult.iter().rev();
        let widths: Vec<i64> = widths.map(|m| m * config.decoder_base_dim).collect();
        let deepest = widths.first().copied().unwrap_or(1);
        let latents = CausalConv::new("post_quant_conv", (z, z), (1, 1), builder)?;
        let entry = CausalConv::new("decoder.conv_in", (z, deepest), (3, 3), builder)?;
        let middle = Middle::new("decoder.mid_block", deepest, builder)?;
        let mut channels = deepest;
        let mut stages = Vec::new();
        for (stage, &width) in widths.iter().enumerate() {
            // In the reverse order of the encoder; the last stage does not upsample.
            let steps = &config.temporal_downsample;
            let in_time = steps.iter().rev().nth(stage).copied();
            let name = |part: &str| format!("decoder.up_blocks.{stage}.{part}");
            let around = in_time
                .filter(|_| config.is_residual)
                .map(|in_time| DuplicateUp {
                    outputs: width,
                    in_time: if in_time { 2 } else { 1 },
                    in_space: 2,
                });
            let mut residuals = Vec::new();
            for number in 0..=config.num_res_blocks {
                let name = name(&format!("resnets.{number}"));
                residuals.push(Residual::new(&name, (channels, width), builder)?);
                channels = width;
            }
            let upsample = match in_time {
                Some(in_time) => {
                    // The 2.1 decoder halves the channels when it upsamples.
                    let (name, outputs) = match config.is_residual {
                        true => (name("upsampler"), width),
                        false => (name("upsamplers.0"), width / 2),
                    };
                    channels = outputs;
                    Some(Upsample::new(&name, (width, outputs), in_time, builder)?)
                }
                None => None,
            };
            stages.push(UpStage {
                residuals,
                upsample,
                around,
            });
        }
        Ok(Self {
            latents,
            entry,
            middle,
            stages,
            head: Head::new("decoder", (channels, config.out_channels), builder)?,
        })
    }

    /// One latent frame to one frame of pixels if it is the first, otherwise to four.
    pub(super) fn forward(
        &self,
        latent: &Tensor,
        cache: &mut FeatureCache,
        is_first: bool,
    ) -> Result<Tensor, Error> {
        cache.rewind();
        let stream = self.latents.forward(latent, &mut Default::default())?;
        let stream = self.entry.forward(&stream, cache.next())?;
        let mut stream = self.middle.forward(&stream, cache)?;
        for stage in &self.stages {
            let input = stage.around.as_ref().map(|_| stream.shallow_clone());
            for residual in &stage.residuals {
                stream = residual.forward(&stream, cache)?;
            }
            if let Some(upsample) = &stage.upsample {
                stream = upsample.forward(&stream, cache)?;
            }
            if let (Some(around), Some(input)) = (&stage.around, input) {
                stream = stream.f_add(&around.forward(&input, is_first)?)?;
            }
        }
        self.head.forward(&stream, cache)
    }
}
