//! Control pictures: what a model that changes pictures is shown beside the text.

use tch::Tensor;

use super::Conditions;
use super::parts::resample::{Filter, Picture};
use crate::Error;

/// How the names of control pictures' latents begin among conditions, `[channels, height, width]` each.
const CONTROL: &str = "control.";

/// How a model takes control pictures.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Controls {
    /// The fewest pictures beside one text.
    pub least: usize,
    /// The most.
    pub most: usize,
    /// The area in pixels at which the autoencoder encodes each, if the user says no other.
    pub area: u32,
    /// What its width and height are multiples of.
    pub step: u32,
    /// Whether only larger ones are scaled to the area, and what is beyond a multiple of `step` is cut off around the middle.
    /// What is made then has the size of the first by default, and of the last otherwise.
    pub is_cut: bool,
    /// Whether the text encoder sees them, too.
    pub in_text: bool,
}

impl Controls {
    /// The name of a control picture's latents among conditions, counted from zero.
    pub fn name(number: usize) -> String {
        format!("{CONTROL}{number}")
    }

    /// The latents of control pictures among the conditions of a batch, `[batch, channels, 1, height, width]` each.
    ///
    /// # Errors
    /// If memory runs out.
    pub(super) fn among(conditions: &Conditions) -> Result<Vec<Tensor>, Error> {
        let controls = (0..).map_while(|number| conditions.find(&Self::name(number)));
        let controls = controls.map(|control| Ok(control.f_unsqueeze(2)?));
        controls.collect()
    }

    /// Of control pictures the one whose size is that of what is made.
    pub fn sizing<'a, T>(&self, controls: &'a [T]) -> Option<&'a T> {
        match self.is_cut {
            true => controls.first(),
            false => controls.last(),
        }
    }

    /// Width and height at which the autoencoder encodes a picture of `size`.
    pub fn size(&self, area: u32, size: (u32, u32)) -> (u32, u32) {
        if !self.is_cut {
            return of_area(area, size, self.step);
        }
        let (width, height) = at_most(area, size);
        let side = |side: u32| (side / self.step).max(1) * self.step;
        (side(width), side(height))
    }

    /// A picture as the autoencoder takes it, `[1, 3, height, width]` from −1 to 1.
    ///
    /// # Errors
    /// If memory runs out.
    pub fn pixels(&self, area: u32, picture: &Picture) -> Result<Tensor, Error> {
        let size = self.size(area, picture.size());
        let picture = match self.is_cut {
            true => {
                let scaled = picture.resized(at_most(area, picture.size()), Filter::Lanczos);
                scaled.middle(size)?
            }
            false => picture.resized(size, Filter::Lanczos),
        };
        let number = |byte: u8| f32::from(byte) / 255.0 * 2.0 - 1.0;
        Ok(picture
            .numbers([&number, &number, &number])?
            .f_unsqueeze(0)?)
    }
}

/// `size`, or one of its form and this `area` if it is larger.
fn at_most(area: u32, (width, height): (u32, u32)) -> (u32, u32) {
    let pixels = f64::from(width) * f64::from(height);
    let scale = (f64::from(area) / pixels).sqrt().min(1.0);
    let side = |side: u32| (f64::from(side) * scale) as u32;
    (side(width).max(1), side(height).max(1))
}

/// Width and height of this area and of the form of `size`, as multiples of `step`.
pub(super) fn of_area(area: u32, (width, height): (u32, u32), step: u32) -> (u32, u32) {
    let ratio = f64::from(width) / f64::from(height);
    let width = (f64::from(area) * ratio).sqrt();
    // As Python rounds.
    let side = |side: f64| (side / f64::from(step)).round_ties_even().max(1.0) as u32 * step;
    (side(width), side(width / ratio))
}
