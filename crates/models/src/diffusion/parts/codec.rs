//! Autoencoders: pictures and videos to latents, and back.

use std::fmt::Debug;

use tch::Tensor;

use super::tiles::Tiling;
use crate::Error;

/// An autoencoder with its latent statistics. One that knows only pictures implements the first two functions.
pub trait MediaCodec: Debug {
    /// A frame `[1, 3, height, width]` from −1 to 1 as normalised latents `[channels, height / s, width / s]` fp32:
    /// the mode of the latent distribution.
    ///
    /// # Errors
    /// If the size is not a multiple of the pixels per latent, or memory runs out.
    fn encode_frame(&self, frame: &Tensor, tiling: Option<Tiling>) -> Result<Tensor, Error>;

    /// Normalised latents `[channels, height, width]` as a frame `[1, 3, s · height, s · width]` fp32 from −1 to 1.
    ///
    /// # Errors
    /// If shapes do not match, or memory runs out.
    fn decode_frame(&self, latents: &Tensor, tiling: Option<Tiling>) -> Result<Tensor, Error>;

    /// Starts encoding a video of this picture size, to be passed in pieces.
    ///
    /// # Errors
    /// If picture or tile size is not a multiple of the pixels per latent.
    fn encoding(
        &self,
        _height: i64,
        _width: i64,
        tiling: Option<Tiling>,
    ) -> Result<Box<dyn Encoding + '_>, Error> {
        Ok(Box::new(FrameByFrame {
            codec: self,
            tiling,
        }))
    }

    /// Starts decoding latents of this height and width, frame by frame.
    ///
    /// # Errors
    /// If the tile size is not a multiple of the pixels per latent.
    fn decoding(
        &self,
        _height: i64,
        _width: i64,
        tiling: Option<Tiling>,
    ) -> Result<Box<dyn Decoding + '_>, Error> {
        Ok(Box::new(FrameByFrame {
            codec: self,
            tiling,
        }))
    }

    /// Encodes a complete video `[frames, 3, height, width]` from −1 to 1 to normalised latents
    /// `[channels, latent frames, height / s, width / s]` fp32.
    ///
    /// # Errors
    /// If the number of frames or the picture size does not fit, or memory runs out.
    fn encode(&self, pixels: &Tensor, tiling: Option<Tiling>) -> Result<Tensor, Error> {
        let (_, _, height, width) = pixels.size4()?;
        let mut encoding = self.encoding(height, width, tiling)?;
        let latents = encoding.push(pixels)?;
        encoding.finish()?;
        Ok(Tensor::f_stack(&latents, 1)?)
    }

    /// Decodes complete normalised latents `[channels, latent frames, height, width]` to pixels
    /// `[frames, 3, s · height, s · width]` fp32 from −1 to 1.
    ///
    /// # Errors
    /// If shapes do not match or memory runs out.
    fn decode(&self, latents: &Tensor, tiling: Option<Tiling>) -> Result<Tensor, Error> {
        let (_, frames, height, width) = latents.size4()?;
        let mut decoding = self.decoding(height, width, tiling)?;
        let mut chunks = Vec::new();
        for frame in 0..frames {
            chunks.push(decoding.push(&latents.f_select(1, frame)?)?);
        }
        Ok(Tensor::f_cat(&chunks, 0)?)
    }
}

/// A video that is being encoded.
pub trait Encoding {
    /// Adds frames `[n, 3, height, width]` with values from −1 to 1. Returns the latent frames that are
    /// complete, each `[channels, height, width]`, normalised fp32.
    ///
    /// # Errors
    /// If the frames have another size, or memory runs out.
    fn push(&mut self, frames: &Tensor) -> Result<Vec<Tensor>, Error>;

    /// Ends the video.
    ///
    /// # Errors
    /// If the number of frames does not fit.
    fn finish(self: Box<Self>) -> Result<(), Error>;
}

/// Latents that are being decoded.
pub trait Decoding {
    /// Adds the next normalised latent frame `[channels, height, width]`. Returns its frames
    /// `[n, 3, height, width]` fp32 from −1 to 1.
    ///
    /// # Errors
    /// If shapes do not match or memory runs out.
    fn push(&mut self, latent: &Tensor) -> Result<Tensor, Error>;
}

/// Each frame is a picture of its own.
struct FrameByFrame<'a, C: ?Sized> {
    codec: &'a C,
    tiling: Option<Tiling>,
}

impl<C: MediaCodec + ?Sized> Encoding for FrameByFrame<'_, C> {
    fn push(&mut self, frames: &Tensor) -> Result<Vec<Tensor>, Error> {
        let count = frames.size4()?.0;
        let encode = |frame| {
            self.codec
                .encode_frame(&frames.f_narrow(0, frame, 1)?, self.tiling)
        };
        (0..count).map(encode).collect()
    }

    fn finish(self: Box<Self>) -> Result<(), Error> {
        Ok(())
    }
}

impl<C: MediaCodec + ?Sized> Decoding for FrameByFrame<'_, C> {
    fn push(&mut self, latent: &Tensor) -> Result<Tensor, Error> {
        self.codec.decode_frame(latent, self.tiling)
    }
}
