//! A picture of clips in rows: some frames of each, and all of its frames combined at the end.

use image::{GrayImage, Luma, imageops};

/// One of so many frames is shown.
const EVERY: usize = 2;
/// Magnification.
const SCALE: u32 = 3;
/// Pixels between pictures.
const GAP: u32 = 4;

/// Draws clips of one size, one in each row.
pub(super) fn draw(clips: &[Vec<GrayImage>]) -> GrayImage {
    let rows: Vec<Vec<GrayImage>> = clips
        .iter()
        .map(|frames| {
            let mut row: Vec<_> = frames.iter().step_by(EVERY).cloned().collect();
            row.extend(together(frames));
            row
        })
        .collect();
    let side = rows.iter().flatten().map(GrayImage::width).max();
    let side = side.unwrap_or(1) * SCALE;
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0) as u32;
    let size = |count: u32| (count * (side + GAP)).saturating_sub(GAP).max(1);
    let mut sheet = GrayImage::from_pixel(size(columns), size(rows.len() as u32), Luma([255]));
    for (row, pictures) in (0..).zip(&rows) {
        for (column, picture) in (0..).zip(pictures) {
            let large = imageops::resize(picture, side, side, imageops::FilterType::Nearest);
            let (x, y) = (column * (side + GAP), row * (side + GAP));
            imageops::replace(&mut sheet, &large, x.into(), y.into());
        }
    }
    sheet
}

/// The maximum of all frames at each pixel, with earlier frames darker, so that the path shows.
fn together(frames: &[GrayImage]) -> Option<GrayImage> {
    let first = frames.first()?;
    let last = (frames.len() - 1).max(1);
    let mut way = GrayImage::new(first.width(), first.height());
    for (x, y, pixel) in way.enumerate_pixels_mut() {
        let greys = frames.iter().enumerate().map(|(number, frame)| {
            let Luma([grey]) = *frame.get_pixel(x, y);
            (usize::from(grey) * (last + 2 * number) / (3 * last)) as u8
        });
        *pixel = Luma([greys.max().unwrap_or(0)]);
    }
    Some(way)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_has_every_other_frame_and_the_way() {
        let frame = |at: u32| GrayImage::from_fn(8, 8, |x, _| Luma([u8::from(x == at) * 240]));
        let clip: Vec<_> = (0..5).map(frame).collect();
        let sheet = draw(&[clip.clone(), clip]);
        assert_eq!(sheet.dimensions(), (4 * 28 - 4, 2 * 28 - 4));
        let way = |x: u32| sheet.get_pixel(3 * 28 + 3 * x, 0).0[0];
        assert_eq!(way(5), 0);
        assert!(way(0) < way(4) && way(0) > 0 && way(4) == 240);
    }
}
