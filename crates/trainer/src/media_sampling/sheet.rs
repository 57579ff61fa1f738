//! A contact sheet: some frames of a video side by side, to see its motion at a glance.

use std::path::Path;

use image::{RgbImage, imageops};

use super::Plan;
use crate::Error;

/// Maximum number of frames.
const FRAMES: i64 = 8;
/// Frames per row.
const COLUMNS: u32 = 4;
/// Maximum width of a frame, in pixels.
const WIDTH: u32 = 256;

/// A sheet that is being composed.
#[derive(Debug)]
pub(crate) struct ContactSheet {
    /// Size of a full frame.
    size: (u32, u32),
    /// Size of a frame on the sheet.
    small: (u32, u32),
    /// Indices of the selected frames.
    chosen: Vec<i64>,
    /// Number of frames so far.
    count: i64,
    pictures: Vec<RgbImage>,
}

impl ContactSheet {
    /// A sheet of evenly spaced frames, including the first and the last.
    pub(crate) fn new(plan: &Plan) -> Self {
        let (width, height) = (plan.width as u32, plan.height as u32);
        let small = width.min(WIDTH);
        let shown = plan.frames.min(FRAMES);
        let frame = |index| index * (plan.frames - 1) / (shown - 1).max(1);
        Self {
            size: (width, height),
            small: (small, (height * small / width.max(1)).max(1)),
            chosen: (0..shown).map(frame).collect(),
            count: 0,
            pictures: Vec::new(),
        }
    }

    /// Adds the next frame as RGB bytes in row-major order.
    pub(crate) fn push(&mut self, pixels: &[u8]) -> Result<(), Error> {
        if self.chosen.contains(&self.count) {
            let picture = RgbImage::from_raw(self.size.0, self.size.1, pixels.to_vec());
            let picture =
                picture.ok_or_else(|| Error::Internal("a frame of another size".into()))?;
            let (width, height) = self.small;
            self.pictures
                .push(imageops::thumbnail(&picture, width, height));
        }
        self.count += 1;
        Ok(())
    }

    /// Writes the sheet as a picture.
    pub(crate) fn save(&self, path: &Path) -> Result<(), Error> {
        let count = self.pictures.len() as u32;
        let (width, height) = self.small;
        let columns = count.clamp(1, COLUMNS);
        let mut sheet = RgbImage::new(width * columns, height * count.div_ceil(columns));
        for (index, picture) in (0..).zip(&self.pictures) {
            let (x, y) = (index % columns * width, index / columns * height);
            imageops::replace(&mut sheet, picture, x.into(), y.into());
        }
        sheet
            .save(path)
            .map_err(|error| Error::io("write", path, std::io::Error::other(error)))
    }
}
