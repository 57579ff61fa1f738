//! A contact sheet: some frames of a video beside each other, to see a motion at a glance.

use std::path::Path;

use image::{RgbImage, imageops};

use super::Plan;
use crate::Error;

/// Frames of a video at most.
const FRAMES: i64 = 8;
/// Frames in a row.
const COLUMNS: u32 = 4;
/// Pixels of a frame in a row at most.
const WIDTH: u32 = 256;

/// A sheet on its way.
#[derive(Debug)]
pub(crate) struct ContactSheet {
    /// Of a whole frame.
    size: (u32, u32),
    /// Of a frame on the sheet.
    small: (u32, u32),
    /// Numbers of the frames that are shown.
    chosen: Vec<i64>,
    /// Frames so far.
    count: i64,
    pictures: Vec<RgbImage>,
}

impl ContactSheet {
    /// A sheet of frames that are spread evenly, the first and the last among them.
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

    /// Takes the next frame: red, green and blue of each pixel, row by row.
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
