//! The KL autoencoder of latent diffusion, diffusers' `AutoencoderKL`: pictures to latents and back.
//!
//! ```text
//! pixels  ─▶ Encoder ─▶ mean ─▶ (mean − shift_factor) · scaling_factor
//! latents ─▶ latents / scaling_factor + shift_factor ─▶ Decoder ─▶ pixels
//! ```
//!
//! Models differ in the number of latent channels, in the two factors, and in whether 1 × 1 convolutions stand
//! between encoder, latents and decoder. In `AutoencoderKLFlux2`, 2 × 2 latents become one, whose channels are normalised
//! one by one.

mod config;
mod names;
mod network;

use tch::{Device, Kind, Tensor};

pub use config::KlConfig;
pub use names::NAMES;

use self::config::PATCH;
use self::network::{Decoder, Encoder};
use super::codec::MediaCodec;
use super::conv::Conv;
use super::tiles::{Grid, Tiling};
use crate::Error;
use crate::model::{Builder, Initial};
use crate::tensor::to_kind;

/// The autoencoder.
#[derive(Debug)]
pub struct KlAutoencoder {
    config: KlConfig,
    encoder: Encoder,
    decoder: Decoder,
    /// After the encoder, and before the decoder.
    quant: (Option<Conv>, Option<Conv>),
    patches: Option<Patches>,
    compute: Kind,
    device: Device,
}

impl KlAutoencoder {
    /// Builds the model on `device`.
    ///
    /// # Errors
    /// If a weight is missing, or memory runs out.
    pub fn new(config: &KlConfig, device: Device, builder: &mut Builder) -> Result<Self, Error> {
        let conv = |used: bool, name: &str, channels: i64, builder: &mut Builder| match used {
            true => Conv::new(name, (channels, channels), 1, builder).map(Some),
            false => Ok(None),
        };
        let channels = config.latent_channels;
        Ok(Self {
            encoder: Encoder::new(config, builder)?,
            decoder: Decoder::new(config, builder)?,
            quant: (
                conv(config.use_quant_conv, "quant_conv", 2 * channels, builder)?,
                conv(
                    config.use_post_quant_conv,
                    "post_quant_conv",
                    channels,
                    builder,
                )?,
            ),
            patches: match config.batch_norm_eps {
                Some(epsilon) => Some(Patches::new(config.channels(), epsilon, builder)?),
                None => None,
            },
            compute: builder.compute(),
            config: config.clone(),
            device,
        })
    }

    /// The tiles of a picture of this size, in pixels or latents: an input is `step` units per latent, an output
    /// `1 / step`, or the other way round.
    fn grid(
        &self,
        picture: (i64, i64),
        tiling: Option<Tiling>,
        encodes: bool,
    ) -> Result<Grid, Error> {
        let step = self.config.step();
        let small = |(height, width): (i64, i64)| (height / step, width / step);
        let Some(Tiling { size, stride }) = tiling else {
            return Ok(Grid::single(picture));
        };
        let fits = |size: i64, stride: i64| {
            stride > 0 && size >= stride && size % step == 0 && stride % step == 0
        };
        if !fits(size.0, stride.0) || !fits(size.1, stride.1) {
            return Err(Error::Invalid(format!(
                "tiles of {size:?} pixels, {stride:?} apart: both must be multiples of {step}, and tiles must not \
                 leave gaps"
            )));
        }
        let overlap = (size.0 - stride.0, size.1 - stride.1);
        let tile = if encodes { size } else { small(size) };
        if picture.0 <= tile.0 && picture.1 <= tile.1 {
            return Ok(Grid::single(picture));
        }
        Ok(match encodes {
            true => Grid::new(picture, size, stride, (1, step), small(overlap)),
            false => Grid::new(picture, small(size), small(stride), (step, 1), overlap),
        })
    }
}

impl MediaCodec for KlAutoencoder {
    fn encode_frame(&self, frame: &Tensor, tiling: Option<Tiling>) -> Result<Tensor, Error> {
        let (_, channels, height, width) = frame.size4()?;
        let config = &self.config;
        let step = config.pixels_per_latent();
        if channels != 3 || height < 1 || width < 1 || height % step != 0 || width % step != 0 {
            return Err(Error::Invalid(format!(
                "a picture of {channels} channels and {width} × {height} pixels: this autoencoder needs three, and \
                 multiples of {step}"
            )));
        }
        let pixels = to_kind(&frame.f_to_device(self.device)?, self.compute)?;
        let grid = self.grid((height, width), tiling, true)?;
        let moments = grid.map(&pixels, |_, tile| {
            let moments = self.encoder.forward(tile)?;
            match &self.quant.0 {
                Some(conv) => conv.same_size(&moments),
                None => Ok(moments),
            }
        })?;
        let mean = moments.f_narrow(1, 0, config.latent_channels)?;
        let mean = to_kind(&mean, Kind::Float)?.f_squeeze_dim(0)?;
        let latents = mean
            .f_sub_scalar(config.shift_factor)?
            .f_mul_scalar(config.scaling_factor)?;
        match &self.patches {
            Some(patches) => patches.together(&latents),
            None => Ok(latents),
        }
    }

    fn decode_frame(&self, latents: &Tensor, tiling: Option<Tiling>) -> Result<Tensor, Error> {
        let channels = latents.size3()?.0;
        let config = &self.config;
        if channels != config.channels() {
            return Err(Error::Invalid(format!(
                "latents of {channels} channels: this autoencoder has {}",
                config.channels()
            )));
        }
        let latents = to_kind(&latents.f_to_device(self.device)?, Kind::Float)?;
        let latents = match &self.patches {
            Some(patches) => patches.apart(&latents)?,
            None => latents,
        };
        let (_, height, width) = latents.size3()?;
        let latents = latents
            .f_div_scalar(config.scaling_factor)?
            .f_add_scalar(config.shift_factor)?;
        let latents = to_kind(&latents.f_unsqueeze(0)?, self.compute)?;
        let grid = self.grid((height, width), tiling, false)?;
        let pixels = grid.map(&latents, |_, tile| match &self.quant.1 {
            Some(conv) => self.decoder.forward(&conv.same_size(tile)?),
            None => self.decoder.forward(tile),
        })?;
        Ok(to_kind(&pixels, Kind::Float)?.f_clamp(-1.0, 1.0)?)
    }
}

/// Latents that are put together, and normalised.
#[derive(Debug)]
struct Patches {
    /// `[channels, 1, 1]`
    mean: Tensor,
    /// `[channels, 1, 1]`
    deviation: Tensor,
}

impl Patches {
    fn new(channels: i64, epsilon: f64, builder: &mut Builder) -> Result<Self, Error> {
        let mean = builder.kept("bn.running_mean", &[channels], Initial::Zeros)?;
        let variance = builder.kept("bn.running_var", &[channels], Initial::Ones)?;
        Ok(Self {
            mean: mean.f_view([channels, 1, 1])?,
            deviation: variance
                .f_add_scalar(epsilon)?
                .f_sqrt()?
                .f_view([channels, 1, 1])?,
        })
    }

    /// `[channels, 2 h, 2 w]` to `[4 channels, h, w]`: channel, row, column.
    fn together(&self, latents: &Tensor) -> Result<Tensor, Error> {
        let (channels, height, width) = latents.size3()?;
        let (rows, columns) = (height / PATCH, width / PATCH);
        Ok(latents
            .f_reshape([channels, rows, PATCH, columns, PATCH])?
            .f_permute([0, 2, 4, 1, 3])?
            .f_reshape([channels * PATCH * PATCH, rows, columns])?
            .f_sub(&self.mean)?
            .f_div(&self.deviation)?)
    }

    /// The inverse.
    fn apart(&self, latents: &Tensor) -> Result<Tensor, Error> {
        let (channels, rows, columns) = latents.size3()?;
        let channels = channels / (PATCH * PATCH);
        Ok(latents
            .f_mul(&self.deviation)?
            .f_add(&self.mean)?
            .f_reshape([channels, PATCH, PATCH, rows, columns])?
            .f_permute([0, 3, 1, 4, 2])?
            .f_reshape([channels, rows * PATCH, columns * PATCH])?)
    }
}
