//! Control pictures: what a model that changes pictures is shown beside the text.

use tch::Tensor;

use super::parts::resample::{Filter, Picture};
use crate::Error;

/// How the names of control pictures' latents begin among conditions, `[channels, height, width]` each.
const CONTROL: &str = "control.";

/// How a model takes control pictures.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Controls {
    /// The most pictures beside one text.
    pub most: usize,
    /// The area in pixels at which the autoencoder encodes each, if the user says no other.
    pub area: u32,
    /// What its width and height are multiples of.
    pub step: u32,
}

impl Controls {
    /// The name of a control picture's latents among conditions, counted from zero.
    pub fn name(number: usize) -> String {
        format!("{CONTROL}{number}")
    }

    /// Width and height at which the autoencoder encodes a picture of `size`: its form at this `area`.
    pub fn size(&self, area: u32, size: (u32, u32)) -> (u32, u32) {
        of_area(area, size, self.step)
    }

    /// A picture as the autoencoder takes it, `[1, 3, height, width]` from −1 to 1.
    ///
    /// # Errors
    /// If memory runs out.
    pub fn pixels(&self, area: u32, picture: &Picture) -> Result<Tensor, Error> {
        let picture = picture.resized(self.size(area, picture.size()), Filter::Lanczos);
        let number = |byte: u8| f32::from(byte) / 255.0 * 2.0 - 1.0;
        Ok(picture
            .numbers([&number, &number, &number])?
            .f_unsqueeze(0)?)
    }
}

/// Width and height of this area and of the form of `size`, as multiples of `step`.
pub(super) fn of_area(area: u32, (width, height): (u32, u32), step: u32) -> (u32, u32) {
    let ratio = f64::from(width) / f64::from(height);
    let width = (f64::from(area) * ratio).sqrt();
    // As Python rounds.
    let side = |side: f64| (side / f64::from(step)).round_ties_even().max(1.0) as u32 * step;
    (side(width), side(width / ratio))
}
