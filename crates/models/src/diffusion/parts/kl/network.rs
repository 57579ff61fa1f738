//! Encoder and decoder: residual blocks in stages that halve or double the picture, with attention in the middle.

use tch::Tensor;

use super::KlConfig;
use crate::Error;
use crate::diffusion::parts::conv::{Conv, GroupNorm};
use crate::model::layers::Linear;
use crate::model::{Builder, Initial};

/// Added to variances.
const EPSILON: f64 = 1e-6;

/// The norm `name` of so many channels.
fn norm(
    name: &str,
    channels: i64,
    config: &KlConfig,
    builder: &mut Builder,
) -> Result<GroupNorm, Error> {
    GroupNorm::new(name, channels, (config.norm_num_groups, EPSILON), builder)
}

/// Pixels `[1, 3, height, width]` to moments `[1, 2 · latent channels, height / s, width / s]`.
#[derive(Debug)]
pub(super) struct Encoder {
    input: Conv,
    stages: Vec<Stage>,
    middle: Middle,
    output: Head,
}

impl Encoder {
    pub(super) fn new(config: &KlConfig, builder: &mut Builder) -> Result<Self, Error> {
        let (first, last) = ends(&config.block_out_channels);
        let widths = config.block_out_channels.iter();
        let blocks = (config.layers_per_block, "downsamplers");
        Ok(Self {
            input: Conv::new("encoder.conv_in", (config.in_channels, first), 3, builder)?,
            stages: stages("encoder.down_blocks", widths, blocks, config, builder)?,
            middle: Middle::new("encoder.mid_block", last, config, builder)?,
            output: Head::new(
                "encoder",
                (last, 2 * config.latent_channels),
                config,
                builder,
            )?,
        })
    }

    pub(super) fn forward(&self, pixels: &Tensor) -> Result<Tensor, Error> {
        let mut stream = self.input.same_size(pixels)?;
        for stage in &self.stages {
            stream = stage.residuals(stream)?;
            if let Some(resample) = &stage.resample {
                // Padding at the right and the bottom only.
                let padded = stream.f_constant_pad_nd([0, 1, 0, 1])?;
                stream = resample.strided(&padded, 2)?;
            }
        }
        self.output.forward(&self.middle.forward(stream)?)
    }
}

/// Latents `[1, latent channels, height, width]` to pixels `[1, 3, s · height, s · width]`.
#[derive(Debug)]
pub(super) struct Decoder {
    input: Conv,
    middle: Middle,
    stages: Vec<Stage>,
    output: Head,
}

impl Decoder {
    pub(super) fn new(config: &KlConfig, builder: &mut Builder) -> Result<Self, Error> {
        let (first, last) = ends(&config.decoder_block_out_channels);
        let widths = config.decoder_block_out_channels.iter().rev();
        let blocks = (config.layers_per_block + 1, "upsamplers");
        let name = "decoder.conv_in";
        Ok(Self {
            input: Conv::new(name, (config.latent_channels, last), 3, builder)?,
            middle: Middle::new("decoder.mid_block", last, config, builder)?,
            stages: stages("decoder.up_blocks", widths, blocks, config, builder)?,
            output: Head::new("decoder", (first, config.out_channels), config, builder)?,
        })
    }

    pub(super) fn forward(&self, latents: &Tensor) -> Result<Tensor, Error> {
        let mut stream = self.middle.forward(self.input.same_size(latents)?)?;
        for stage in &self.stages {
            stream = stage.residuals(stream)?;
            if let Some(resample) = &stage.resample {
                let (_, _, height, width) = stream.size4()?;
                let larger = stream.f_upsample_nearest2d([2 * height, 2 * width], None, None)?;
                stream = resample.same_size(&larger)?;
            }
        }
        self.output.forward(&stream)
    }
}

/// Channels of the first and the last stage.
fn ends(widths: &[i64]) -> (i64, i64) {
    let end = |width: Option<&i64>| width.copied().unwrap_or(0);
    (end(widths.first()), end(widths.last()))
}

/// The stages of the list `name`, of these widths, each with `count` blocks; all but the last have a convolution in
/// their list `resampled`.
fn stages<'a>(
    name: &str,
    widths: impl ExactSizeIterator<Item = &'a i64>,
    (count, resampled): (i64, &str),
    config: &KlConfig,
    builder: &mut Builder,
) -> Result<Vec<Stage>, Error> {
    let last = widths.len().saturating_sub(1);
    let mut before = None;
    let stages = widths.enumerate().map(|(number, width)| {
        let blocks = (count, (number < last).then_some(resampled));
        let sizes = (before.replace(*width).unwrap_or(*width), *width);
        Stage::new(&format!("{name}.{number}"), sizes, blocks, config, builder)
    });
    stages.collect()
}

/// Residual blocks at one size, and the convolution that halves or doubles it.
#[derive(Debug)]
struct Stage {
    residuals: Vec<Residual>,
    resample: Option<Conv>,
}

impl Stage {
    /// `count` blocks; `resampled` is the name of the list with the last convolution.
    fn new(
        name: &str,
        (inputs, outputs): (i64, i64),
        (count, resampled): (i64, Option<&str>),
        config: &KlConfig,
        builder: &mut Builder,
    ) -> Result<Self, Error> {
        let residuals = (0..count).map(|number| {
            let inputs = if number == 0 { inputs } else { outputs };
            let name = format!("{name}.resnets.{number}");
            Residual::new(&name, (inputs, outputs), config, builder)
        });
        let residuals = residuals.collect::<Result<_, _>>()?;
        let resample = resampled.map(|list| {
            let name = format!("{name}.{list}.0.conv");
            Conv::new(&name, (outputs, outputs), 3, builder)
        });
        Ok(Self {
            residuals,
            resample: resample.transpose()?,
        })
    }

    fn residuals(&self, mut stream: Tensor) -> Result<Tensor, Error> {
        for residual in &self.residuals {
            stream = residual.forward(&stream)?;
        }
        Ok(stream)
    }
}

/// Two convolutions with a skip connection.
#[derive(Debug)]
struct Residual {
    norms: [GroupNorm; 2],
    convolutions: [Conv; 2],
    shortcut: Option<Conv>,
}

impl Residual {
    fn new(
        name: &str,
        (inputs, outputs): (i64, i64),
        config: &KlConfig,
        builder: &mut Builder,
    ) -> Result<Self, Error> {
        let part = |part: &str| format!("{name}.{part}");
        Ok(Self {
            norms: [
                norm(&part("norm1"), inputs, config, builder)?,
                norm(&part("norm2"), outputs, config, builder)?,
            ],
            convolutions: [
                Conv::new(&part("conv1"), (inputs, outputs), 3, builder)?,
                Conv::new(&part("conv2"), (outputs, outputs), 3, builder)?,
            ],
            shortcut: match inputs == outputs {
                true => None,
                false => Some(Conv::new(
                    &part("conv_shortcut"),
                    (inputs, outputs),
                    1,
                    builder,
                )?),
            },
        })
    }

    fn forward(&self, input: &Tensor) -> Result<Tensor, Error> {
        let mut stream = input.shallow_clone();
        for (norm, convolution) in self.norms.iter().zip(&self.convolutions) {
            stream = convolution.same_size(&norm.forward(&stream)?.f_silu()?)?;
        }
        match &self.shortcut {
            Some(shortcut) => Ok(shortcut.same_size(input)?.f_add(&stream)?),
            None => Ok(input.f_add(&stream)?),
        }
    }
}

/// Residual, attention if there is one, residual.
#[derive(Debug)]
struct Middle {
    residuals: [Residual; 2],
    attention: Option<Attention>,
}

impl Middle {
    fn new(
        name: &str,
        channels: i64,
        config: &KlConfig,
        builder: &mut Builder,
    ) -> Result<Self, Error> {
        let mut residual = |number: i64| {
            let name = format!("{name}.resnets.{number}");
            Residual::new(&name, (channels, channels), config, builder)
        };
        Ok(Self {
            residuals: [residual(0)?, residual(1)?],
            attention: match config.mid_block_add_attention {
                true => Some(Attention::new(
                    &format!("{name}.attentions.0"),
                    channels,
                    config,
                    builder,
                )?),
                false => None,
            },
        })
    }

    fn forward(&self, input: Tensor) -> Result<Tensor, Error> {
        let mut stream = self.residuals[0].forward(&input)?;
        drop(input);
        if let Some(attention) = &self.attention {
            stream = attention.forward(&stream)?;
        }
        self.residuals[1].forward(&stream)
    }
}

/// Attention between the pixels of a picture, with a single head.
#[derive(Debug)]
struct Attention {
    norm: GroupNorm,
    query: Linear,
    key: Linear,
    value: Linear,
    output: Linear,
}

impl Attention {
    fn new(
        name: &str,
        channels: i64,
        config: &KlConfig,
        builder: &mut Builder,
    ) -> Result<Self, Error> {
        let norm = norm(&format!("{name}.group_norm"), channels, config, builder)?;
        let initial = Initial::Normal((channels as f64).powf(-0.5));
        let mut linear = |part: &str| {
            builder.linear(
                &format!("{name}.{part}"),
                (channels, channels),
                true,
                initial,
            )
        };
        Ok(Self {
            norm,
            query: linear("to_q")?,
            key: linear("to_k")?,
            value: linear("to_v")?,
            output: linear("to_out.0")?,
        })
    }

    fn forward(&self, input: &Tensor) -> Result<Tensor, Error> {
        let (batch, channels, height, width) = input.size4()?;
        let rows = self.norm.forward(input)?.f_flatten(2, 3)?;
        let rows = rows.f_transpose(1, 2)?.f_contiguous()?.f_unsqueeze(1)?;
        let part = |linear: &Linear| linear.forward(&rows, false);
        let mixed = Tensor::f_scaled_dot_product_attention(
            &part(&self.query)?,
            &part(&self.key)?,
            &part(&self.value)?,
            None::<&Tensor>,
            0.0,
            false,
            None,
            false,
        )?;
        let mixed = self.output.forward(&mixed.f_squeeze_dim(1)?, false)?;
        let mixed = mixed.f_transpose(1, 2)?;
        let mixed = mixed.f_reshape([batch, channels, height, width])?;
        Ok(mixed.f_add(input)?)
    }
}

/// Norm, activation, convolution: the end of an encoder or decoder.
#[derive(Debug)]
struct Head {
    norm: GroupNorm,
    convolution: Conv,
}

impl Head {
    fn new(
        half: &str,
        (inputs, outputs): (i64, i64),
        config: &KlConfig,
        builder: &mut Builder,
    ) -> Result<Self, Error> {
        Ok(Self {
            norm: norm(&format!("{half}.conv_norm_out"), inputs, config, builder)?,
            convolution: Conv::new(&format!("{half}.conv_out"), (inputs, outputs), 3, builder)?,
        })
    }

    fn forward(&self, input: &Tensor) -> Result<Tensor, Error> {
        let normed = self.norm.forward(input)?.f_silu()?;
        self.convolution.same_size(&normed)
    }
}
