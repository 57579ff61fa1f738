//! Sizes of latents, and of the pictures that they are made of.

/// Sizes of a model's latents.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Geometry {
    /// Latent channels.
    pub channels: i64,
    /// Pixels per latent, in each direction.
    pub pixels: i64,
    /// Latents per token of the denoiser, in each direction.
    pub patch: i64,
    /// Frames per latent frame after the first, which has a latent frame of its own; `None` if the model makes
    /// only pictures.
    pub frames: Option<i64>,
    /// Frames per second, to which clips are resampled.
    pub fps: u32,
}

impl Geometry {
    /// Pixels per token, in each direction: picture sizes are multiples of it.
    pub fn step(&self) -> i64 {
        self.pixels * self.patch
    }

    /// The largest number of at most `frames` frames that can be encoded.
    pub fn whole_frames(&self, frames: i64) -> i64 {
        let per = self.frames.unwrap_or(i64::MAX);
        (frames.max(1) - 1) / per * per + 1
    }

    /// Latent frames of `frames` frames.
    pub fn latent_frames(&self, frames: i64) -> i64 {
        (frames.max(1) - 1) / self.frames.unwrap_or(i64::MAX) + 1
    }

    /// The shape of the latents of this picture size and number of frames, with a batch of one.
    pub fn latents(&self, width: i64, height: i64, frames: i64) -> [i64; 5] {
        let frames = self.latent_frames(frames);
        let (height, width) = (height / self.pixels, width / self.pixels);
        [1, self.channels, frames, height, width]
    }
}

/// How a picture came to its size, in pixels; width and left come first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Framing {
    /// The size of the picture that it was made of.
    pub original: (i64, i64),
    /// What was cut off at the left and at the top, after that was scaled.
    pub corner: (i64, i64),
    /// Its size.
    pub size: (i64, i64),
}

impl Framing {
    /// A whole picture of this size.
    pub fn whole(size: (i64, i64)) -> Self {
        Self {
            original: size,
            corner: (0, 0),
            size,
        }
    }
}
