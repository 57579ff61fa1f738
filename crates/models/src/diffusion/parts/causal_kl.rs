//! Autoencoders whose convolutions see no later frames: videos and pictures to latents and back, in chunks of frames.
//!
//! ```text
//! pixels  ─ 1 frame, then 4 at a time ─▶ Encoder ─▶ mean ─▶ (mean − latents_mean) / latents_std
//! latents ─ 1 frame at a time ─────────▶ Decoder ─▶ 1 frame, then 4 at a time, within ±1
//! ```
//!
//! Between chunks, only the last input frames of each convolution are cached, so memory use does not grow
//! with the length of the video. Two kinds are supported: one of 16 channels, 8 × 8 pixels and 4 frames per
//! latent, of videos or of pictures alone, and one of 48 channels and 16 × 16 pixels.

mod blocks;
mod causal;
mod config;
mod names;
mod network;
mod resample;
#[cfg(test)]
mod tests;

use tch::{Device, Kind, Tensor};

pub use config::AutoencoderConfig;
pub use names::NAMES;

use self::causal::FeatureCache;
use self::network::{Decoder, Encoder};
use crate::Error;
use crate::diffusion::parts::codec::{self, MediaCodec};
use crate::diffusion::parts::tiles::{Grid, Tiling};
use crate::model::Builder;
use crate::tensor::{copied, to_kind};

/// Frames per latent frame, except for the first, which has a latent frame of its own.
pub const FRAMES_PER_LATENT: i64 = 4;

/// An autoencoder with its latent statistics.
#[derive(Debug)]
pub struct Autoencoder {
    config: AutoencoderConfig,
    encoder: Encoder,
    decoder: Decoder,
    /// `[1, channels, 1, 1]` fp32.
    mean: Tensor,
    /// `[1, channels, 1, 1]` fp32: one over the standard deviation.
    inverse_deviation: Tensor,
    compute: Kind,
    device: Device,
}

impl Autoencoder {
    /// Builds the model on `device`.
    pub fn new(
        config: &AutoencoderConfig,
        device: Device,
        builder: &mut Builder,
    ) -> Result<Self, Error> {
        let row = |numbers: &[f64], invert: bool| -> Result<Tensor, Error> {
            let row = Tensor::f_from_slice(numbers)?.f_to_kind(Kind::Float)?;
            let row = if invert { row.f_reciprocal()? } else { row };
            Ok(row.f_view([1, -1, 1, 1])?.f_to_device(device)?)
        };
        Ok(Self {
            encoder: Encoder::new(config, builder)?,
            decoder: Decoder::new(config, builder)?,
            mean: row(&config.latents_mean, false)?,
            inverse_deviation: row(&config.latents_std, true)?,
            compute: builder.compute(),
            config: config.clone(),
            device,
        })
    }

    /// Its dimensions.
    pub fn config(&self) -> &AutoencoderConfig {
        &self.config
    }

    /// Encodes a complete video `[frames, 3, height, width]` with values from −1 to 1 to normalised latents
    /// `[channels, latent frames, height / s, width / s]` fp32, the mode of the latent distribution.
    ///
    /// # Errors
    /// If the number of frames is not 4 n + 1, the picture size is not a multiple of `s`, or memory runs out.
    pub fn encode(&self, pixels: &Tensor, tiling: Option<Tiling>) -> Result<Tensor, Error> {
        let (_, _, height, width) = pixels.size4()?;
        let mut encoding = self.encoding(height, width, tiling)?;
        let latents = encoding.push(pixels)?;
        encoding.finish()?;
        stacked(&latents)
    }

    /// Starts encoding a video of this picture size, to be passed in pieces.
    ///
    /// # Errors
    /// If picture or tile size is not a multiple of the pixels per latent.
    pub fn encoding(
        &self,
        height: i64,
        width: i64,
        tiling: Option<Tiling>,
    ) -> Result<Encoding<'_>, Error> {
        let config = &self.config;
        let (step, patch) = (config.scale_factor_spatial, config.patch_size);
        if height < 1 || width < 1 || height % step != 0 || width % step != 0 {
            return Err(Error::Invalid(format!(
                "pictures of {width} × {height} pixels: this autoencoder needs multiples of {step}"
            )));
        }
        let picture = (height / patch, width / patch);
        let grid = match tiling {
            Some(tiling) if height > tiling.size.0 || width > tiling.size.1 => {
                // As in diffusers, tile sizes are in patches here.
                let scale = step / patch;
                self.check_tiling(&tiling, scale)?;
                let overlap = (
                    tiling.size.0 / scale - tiling.stride.0 / scale,
                    tiling.size.1 / scale - tiling.stride.1 / scale,
                );
                Grid::new(picture, tiling.size, tiling.stride, (1, scale), overlap)
            }
            _ => Grid::single(picture),
        };
        Ok(Encoding {
            autoencoder: self,
            picture: (height, width),
            caches: caches(&grid),
            grid,
            waiting: None,
            frames: 0,
        })
    }

    /// Decodes complete normalised latents `[channels, latent frames, height, width]` to pixels `[frames, 3,
    /// s · height, s · width]` fp32 from −1 to 1.
    pub fn decode(&self, latents: &Tensor, tiling: Option<Tiling>) -> Result<Tensor, Error> {
        let (channels, frames, height, width) = latents.size4()?;
        if channels != self.config.z_dim || frames < 1 {
            return Err(Error::Invalid(format!(
                "latents of {channels} channels and {frames} frames: this autoencoder has {} \
                 channels, and decodes from one frame on",
                self.config.z_dim
            )));
        }
        let mut decoding = self.decoding(height, width, tiling)?;
        let mut chunks = Vec::new();
        for frame in 0..frames {
            chunks.push(decoding.push(&latents.f_select(1, frame)?)?);
        }
        Ok(Tensor::f_cat(&chunks, 0)?)
    }

    /// Starts decoding latents of this height and width, frame by frame.
    ///
    /// # Errors
    /// If the tile size is not a multiple of the pixels per latent.
    pub fn decoding(
        &self,
        height: i64,
        width: i64,
        tiling: Option<Tiling>,
    ) -> Result<Decoding<'_>, Error> {
        let (step, patch) = (self.config.scale_factor_spatial, self.config.patch_size);
        let small = |(height, width): (i64, i64)| (height / step, width / step);
        let grid = match tiling {
            Some(tiling) if height > small(tiling.size).0 || width > small(tiling.size).1 => {
                self.check_tiling(&tiling, step)?;
                let overlap = (
                    tiling.size.0 / patch - tiling.stride.0 / patch,
                    tiling.size.1 / patch - tiling.stride.1 / patch,
                );
                Grid::new(
                    (height, width),
                    small(tiling.size),
                    small(tiling.stride),
                    (step / patch, 1),
                    overlap,
                )
            }
            _ => Grid::single((height, width)),
        };
        Ok(Decoding {
            autoencoder: self,
            caches: caches(&grid),
            grid,
            is_first: true,
        })
    }

    fn check_tiling(&self, tiling: &Tiling, step: i64) -> Result<(), Error> {
        let pairs = [
            (tiling.size.0, tiling.stride.0),
            (tiling.size.1, tiling.stride.1),
        ];
        let fits = |(size, stride): (i64, i64)| {
            stride > 0 && size >= stride && size % step == 0 && stride % step == 0
        };
        match pairs.into_iter().all(fits) {
            true => Ok(()),
            false => Err(Error::Invalid(format!(
                "tiles of {:?} pixels, {:?} apart: both must be multiples of {step}, and tiles must \
                 not leave gaps",
                tiling.size, tiling.stride
            ))),
        }
    }

    /// The normalised mean `[1, channels, height, width]` fp32 of the moments of one latent frame.
    fn normalised_mean(&self, moments: &Tensor) -> Result<Tensor, Error> {
        let mean = moments.f_narrow(1, 0, self.config.z_dim)?;
        let centred = to_kind(&mean, Kind::Float)?.f_sub(&self.mean)?;
        Ok(centred.f_mul(&self.inverse_deviation)?)
    }
}

impl MediaCodec for Autoencoder {
    fn encode_frame(&self, frame: &Tensor, tiling: Option<Tiling>) -> Result<Tensor, Error> {
        Ok(self.encode(frame, tiling)?.f_select(1, 0)?)
    }

    fn decode_frame(&self, latents: &Tensor, tiling: Option<Tiling>) -> Result<Tensor, Error> {
        self.decode(&latents.f_unsqueeze(1)?, tiling)
    }

    fn encoding(
        &self,
        height: i64,
        width: i64,
        tiling: Option<Tiling>,
    ) -> Result<Box<dyn codec::Encoding + '_>, Error> {
        Ok(Box::new(self.encoding(height, width, tiling)?))
    }

    fn decoding(
        &self,
        height: i64,
        width: i64,
        tiling: Option<Tiling>,
    ) -> Result<Box<dyn codec::Decoding + '_>, Error> {
        Ok(Box::new(self.decoding(height, width, tiling)?))
    }

    fn decode(&self, latents: &Tensor, tiling: Option<Tiling>) -> Result<Tensor, Error> {
        self.decode(latents, tiling)
    }
}

impl codec::Encoding for Encoding<'_> {
    fn push(&mut self, frames: &Tensor) -> Result<Vec<Tensor>, Error> {
        self.push(frames)
    }

    fn finish(self: Box<Self>) -> Result<(), Error> {
        (*self).finish()
    }
}

impl codec::Decoding for Decoding<'_> {
    fn push(&mut self, latent: &Tensor) -> Result<Tensor, Error> {
        self.push(latent)
    }
}

fn caches(grid: &Grid) -> Vec<FeatureCache> {
    let mut caches = Vec::new();
    caches.resize_with(grid.count(), FeatureCache::default);
    caches
}

/// Stacks latent frames `[channels, height, width]` to `[channels, frames, height, width]`.
fn stacked(frames: &[Tensor]) -> Result<Tensor, Error> {
    Ok(Tensor::f_stack(frames, 1)?)
}

/// A video that is being encoded.
#[derive(Debug)]
pub struct Encoding<'a> {
    autoencoder: &'a Autoencoder,
    /// Height and width.
    picture: (i64, i64),
    grid: Grid,
    caches: Vec<FeatureCache>,
    /// Frames that do not fill a chunk yet.
    waiting: Option<Tensor>,
    /// Number of frames so far.
    frames: i64,
}

impl Encoding<'_> {
    /// Adds frames `[n, 3, height, width]` with values from −1 to 1. Returns the latent frames that are
    /// complete, each `[channels, height, width]`, normalised fp32.
    pub fn push(&mut self, frames: &Tensor) -> Result<Vec<Tensor>, Error> {
        let (_, channels, height, width) = frames.size4()?;
        if (channels, (height, width)) != (3, self.picture) {
            return Err(Error::Invalid(format!(
                "frames of {channels} channels and {width} × {height} pixels in a video of 3 channels \
                 and {} × {}",
                self.picture.1, self.picture.0
            )));
        }
        let model = self.autoencoder;
        let frames = frames.f_to_device(model.device)?.f_to_kind(model.compute)?;
        let mut left = match self.waiting.take() {
            Some(waiting) => Tensor::f_cat(&[&waiting, &frames], 0)?,
            None => frames,
        };
        let mut latents = Vec::new();
        loop {
            let have = left.size()[0];
            let wanted = if self.frames == 0 {
                1
            } else {
                FRAMES_PER_LATENT
            };
            if have < wanted {
                break;
            }
            let chunk = left.f_narrow(0, 0, wanted)?;
            latents.push(self.encode(&chunk)?);
            left = left.f_narrow(0, wanted, have - wanted)?;
            self.frames += wanted;
        }
        if left.size()[0] > 0 {
            self.waiting = Some(copied(&left)?);
        }
        Ok(latents)
    }

    fn encode(&mut self, chunk: &Tensor) -> Result<Tensor, Error> {
        let model = self.autoencoder;
        let chunk = patchified(chunk, model.config.patch_size)?;
        let caches = &mut self.caches;
        let moments = self.grid.map(&chunk, |tile, pixels| {
            model.encoder.forward(pixels, &mut caches[tile])
        })?;
        Ok(model.normalised_mean(&moments)?.f_squeeze_dim(0)?)
    }

    /// Ends the video.
    ///
    /// # Errors
    /// If it was empty, or the number of frames was not 4 n + 1.
    pub fn finish(self) -> Result<(), Error> {
        let left = self.waiting.map_or(0, |waiting| waiting.size()[0]);
        match (self.frames, left) {
            (0, _) => Err(Error::Invalid("a video without frames".into())),
            (_, 0) => Ok(()),
            (frames, left) => Err(Error::Invalid(format!(
                "a video of {} frames: this autoencoder needs 4 n + 1, such as {frames} or {}",
                frames + left,
                frames + FRAMES_PER_LATENT
            ))),
        }
    }
}

/// Latents that are being decoded.
#[derive(Debug)]
pub struct Decoding<'a> {
    autoencoder: &'a Autoencoder,
    grid: Grid,
    caches: Vec<FeatureCache>,
    is_first: bool,
}

impl Decoding<'_> {
    /// Adds the next normalised latent frame `[channels, height, width]`. Returns its frames `[1 or 4, 3,
    /// height, width]` fp32 from −1 to 1.
    pub fn push(&mut self, latent: &Tensor) -> Result<Tensor, Error> {
        let model = self.autoencoder;
        let latent = latent
            .f_to_device(model.device)?
            .f_to_kind(Kind::Float)?
            .f_unsqueeze(0)?
            .f_div(&model.inverse_deviation)?
            .f_add(&model.mean)?
            .f_to_kind(model.compute)?;
        let (caches, is_first) = (&mut self.caches, self.is_first);
        let pixels = self.grid.map(&latent, |tile, latent| {
            model.decoder.forward(latent, &mut caches[tile], is_first)
        })?;
        self.is_first = false;
        let pixels = unpatchified(&pixels, model.config.patch_size)?;
        Ok(to_kind(&pixels, Kind::Float)?.f_clamp(-1.0, 1.0)?)
    }
}

/// Moves `patch` × `patch` pixels to channels, ordered by column, then by row.
fn patchified(frames: &Tensor, patch: i64) -> Result<Tensor, Error> {
    if patch == 1 {
        return Ok(frames.shallow_clone());
    }
    let (count, channels, height, width) = frames.size4()?;
    let (height, width) = (height / patch, width / patch);
    Ok(frames
        .f_reshape([count, channels, height, patch, width, patch])?
        .f_permute([0, 1, 5, 3, 2, 4])?
        .f_reshape([count, channels * patch * patch, height, width])?)
}

/// The inverse of [`patchified`].
fn unpatchified(frames: &Tensor, patch: i64) -> Result<Tensor, Error> {
    if patch == 1 {
        return Ok(frames.shallow_clone());
    }
    let (count, channels, height, width) = frames.size4()?;
    let channels = channels / (patch * patch);
    Ok(frames
        .f_reshape([count, channels, patch, patch, height, width])?
        .f_permute([0, 1, 4, 3, 5, 2])?
        .f_reshape([count, channels, height * patch, width * patch])?)
}
