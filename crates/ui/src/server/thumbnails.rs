//! Small versions of pictures, and what tells a blurred picture or one that is there twice.

use std::collections::{HashMap, VecDeque};
use std::fs::File;
use std::io::{BufRead, BufReader, Cursor, Read as _, Seek};
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::SystemTime;

use axum::body::Bytes;
use image::codecs::jpeg::JpegEncoder;
use image::metadata::Orientation::{Rotate90, Rotate90FlipH, Rotate270, Rotate270FlipH};
use image::{DynamicImage, GrayImage, ImageDecoder, ImageReader, Limits, RgbaImage};
use tokio::sync::Semaphore;

use super::lock;

/// The longest side of a thumbnail, in pixels.
const SIDE: u32 = 320;
/// The longest side of the picture that sharpness is measured on: a large one would seem more blurred than a small one.
const MEASURED_SIDE: u32 = 512;
/// The longest side of a picture that is read, in pixels, and the most memory that reading one may take.
const MAX_SIDE: u32 = 30_000;
const MAX_BYTES: u64 = 1 << 30;
/// The most pixels of a picture that is read, and the most bytes of its file.
const MAX_PIXELS: u64 = 100_000_000;
const MAX_FILE_BYTES: u64 = 256 << 20;
/// In how much of a file the size of a picture is found, in bytes.
const HEAD_BYTES: u64 = 1 << 20;
/// The quality of thumbnails and of pictures for a model, from 1 to 100.
const QUALITY: u8 = 82;
/// How many bytes of thumbnails are kept.
const MAX_KEPT: usize = 48 << 20;
/// How many pictures are read at once.
const AT_ONCE: usize = 4;

/// What is known of a picture.
#[derive(Debug)]
pub(crate) struct Look {
    /// As JPEG.
    pub(super) thumbnail: Bytes,
    /// For each pixel of an 8 × 8 version, whether its right neighbour is brighter: nearly equal for pictures that look
    /// the same, whatever their sizes and formats.
    pub(super) hash: u64,
    /// The variance of the Laplacian over brightness from 0 to 255: small for a blurred picture.
    pub(super) sharpness: f32,
}

/// Tells a file from what it was before.
type Key = (PathBuf, u64, Option<SystemTime>);

#[derive(Default)]
struct Kept {
    looks: HashMap<Key, Arc<Look>>,
    order: VecDeque<Key>,
    bytes: usize,
}

/// The pictures looked at most recently.
pub(crate) struct Cache {
    kept: Mutex<Kept>,
    /// Limits how many are read at once.
    pub(super) turns: Arc<Semaphore>,
}

impl Default for Cache {
    fn default() -> Self {
        Self {
            kept: Mutex::default(),
            turns: Arc::new(Semaphore::new(AT_ONCE)),
        }
    }
}

impl Cache {
    /// Looks at the picture in a file of this path.
    ///
    /// # Errors
    /// Why it cannot be read.
    pub(super) fn look(&self, path: PathBuf, file: File) -> Result<Arc<Look>, String> {
        let metadata = file.metadata().map_err(|error| error.to_string())?;
        let key = (path, metadata.len(), metadata.modified().ok());
        if let Some(look) = lock(&self.kept).looks.get(&key) {
            return Ok(look.clone());
        }
        let look = Arc::new(looked_at(&read(file, MEASURED_SIDE)?)?);
        let mut kept = lock(&self.kept);
        kept.bytes += look.thumbnail.len();
        if let Some(before) = kept.looks.insert(key.clone(), look.clone()) {
            kept.bytes -= before.thumbnail.len();
        } else {
            kept.order.push_back(key);
        }
        while kept.bytes > MAX_KEPT
            && let Some(oldest) = kept.order.pop_front()
        {
            if let Some(gone) = kept.looks.remove(&oldest) {
                kept.bytes -= gone.thumbnail.len();
            }
        }
        Ok(look)
    }
}

/// A picture upright, on white where it is transparent, and no larger than `side` pixels in each direction.
fn read(file: File, side: u32) -> Result<DynamicImage, String> {
    let length = file.metadata().map_err(|error| error.to_string())?.len();
    if length > MAX_FILE_BYTES {
        return Err("the file has more than 256 MiB".into());
    }
    let mut decoder = decoder(BufReader::new(file))?;
    let (width, height) = decoder.dimensions();
    // The limit of a decoder is not on the picture that it returns.
    let is_large = u64::from(width) * u64::from(height) > MAX_PIXELS;
    if is_large || decoder.total_bytes() > MAX_BYTES {
        return Err(format!("{width} × {height} pixels are too many"));
    }
    let turned = decoder.orientation().map_err(|error| error.to_string())?;
    let picture = DynamicImage::from_decoder(decoder).map_err(|error| error.to_string())?;
    let picture = within(picture, side);
    let mut picture = match picture.color().has_alpha() {
        true => {
            let mut white = RgbaImage::from_pixel(
                picture.width(),
                picture.height(),
                image::Rgba([255, 255, 255, 255]),
            );
            image::imageops::overlay(&mut white, &picture.to_rgba8(), 0, 0);
            DynamicImage::from(white)
        }
        false => picture,
    };
    picture.apply_orientation(turned);
    Ok(picture)
}

fn decoder<'a>(file: impl BufRead + Seek + 'a) -> Result<Box<dyn ImageDecoder + 'a>, String> {
    let mut reader = ImageReader::new(file);
    let mut limits = Limits::default();
    (limits.max_image_width, limits.max_image_height) = (Some(MAX_SIDE), Some(MAX_SIDE));
    limits.max_alloc = Some(MAX_BYTES);
    reader.limits(limits);
    let reader = reader.with_guessed_format();
    let reader = reader.map_err(|error| error.to_string())?;
    let decoder = reader.into_decoder().map_err(|error| error.to_string())?;
    Ok(Box::new(decoder))
}

/// Width and height of a picture once it is upright, from the head of its file.
pub(super) fn size(file: File) -> Option<(u32, u32)> {
    let mut reader = BufReader::new(file);
    // The decoder of JPEG reads all that there is.
    let mut decoder = match reader.fill_buf().ok()?.starts_with(&[0xff, 0xd8]) {
        true => {
            let mut head = Vec::new();
            reader.take(HEAD_BYTES).read_to_end(&mut head).ok()?;
            decoder(Cursor::new(head)).ok()?
        }
        false => decoder(reader).ok()?,
    };
    let (width, height) = decoder.dimensions();
    Some(match decoder.orientation() {
        Ok(Rotate90 | Rotate270 | Rotate90FlipH | Rotate270FlipH) => (height, width),
        _ => (width, height),
    })
}

/// A picture no larger than `side` pixels in each direction, as JPEG.
pub(super) fn jpeg(file: File, side: u32) -> Result<Vec<u8>, String> {
    encoded(&read(file, side)?)
}

fn within(picture: DynamicImage, side: u32) -> DynamicImage {
    match picture.width().max(picture.height()) > side {
        true => picture.thumbnail(side, side),
        false => picture,
    }
}

fn encoded(picture: &DynamicImage) -> Result<Vec<u8>, String> {
    let mut bytes = Cursor::new(Vec::new());
    picture
        .to_rgb8()
        .write_with_encoder(JpegEncoder::new_with_quality(&mut bytes, QUALITY))
        .map_err(|error| error.to_string())?;
    Ok(bytes.into_inner())
}

fn looked_at(picture: &DynamicImage) -> Result<Look, String> {
    let measured = within(picture.clone(), MEASURED_SIDE).to_luma8();
    let tiny = image::imageops::thumbnail(&measured, 9, 8);
    let mut hash = 0;
    for y in 0..8 {
        for x in 0..8 {
            let is_brighter = tiny.get_pixel(x + 1, y).0 > tiny.get_pixel(x, y).0;
            hash = hash << 1 | u64::from(is_brighter);
        }
    }
    Ok(Look {
        thumbnail: encoded(&within(picture.clone(), SIDE))?.into(),
        hash,
        sharpness: sharpness(&measured),
    })
}

/// The variance of the differences between each pixel and its four neighbours.
fn sharpness(picture: &GrayImage) -> f32 {
    let (width, height) = picture.dimensions();
    let at = |x: u32, y: u32| f64::from(picture.get_pixel(x, y).0[0]);
    let (mut sum, mut squares, mut count) = (0.0, 0.0, 0.0);
    for y in 1..height.saturating_sub(1) {
        for x in 1..width.saturating_sub(1) {
            let edge = at(x - 1, y) + at(x + 1, y) + at(x, y - 1) + at(x, y + 1) - 4.0 * at(x, y);
            (sum, squares, count) = (sum + edge, squares + edge * edge, count + 1.0);
        }
    }
    match count > 0.0 {
        true => (squares / count - (sum / count) * (sum / count)) as f32,
        false => 0.0,
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::*;

    /// Bars of a hundred widths, as wide as a phase of the seed.
    fn bars(width: u32, height: u32, seed: u32) -> DynamicImage {
        let wave = |x: u32, by: u32| ((x * by * (seed + 3) / width) % 7 * 40) as u8;
        let picture = image::RgbImage::from_fn(width, height, |x, y| {
            image::Rgb([wave(x, 8), wave(x + y, 13), wave(y, 5)])
        });
        DynamicImage::from(picture)
    }

    #[test]
    fn a_blurred_picture_is_less_sharp_and_still_looks_the_same() {
        let picture = bars(400, 300, 1);
        let sharp = looked_at(&picture).unwrap();
        let blurred = looked_at(&picture.blur(4.0)).unwrap();
        assert!(
            blurred.sharpness * 10.0 < sharp.sharpness,
            "{} {}",
            blurred.sharpness,
            sharp.sharpness
        );
        assert!((blurred.hash ^ sharp.hash).count_ones() <= 3);
    }

    #[test]
    fn a_smaller_version_looks_the_same_and_another_picture_does_not() {
        let picture = bars(600, 400, 1);
        let look = looked_at(&picture).unwrap();
        let smaller = looked_at(&picture.thumbnail(300, 200)).unwrap();
        let other = looked_at(&bars(600, 400, 2)).unwrap();
        assert!((look.hash ^ smaller.hash).count_ones() <= 3);
        assert!((look.hash ^ other.hash).count_ones() > 10);
    }

    #[test]
    fn a_picture_that_says_it_is_huge_is_refused_before_it_is_read() {
        for (side, why) in [(60_000_u32, ""), (20_000, "20000 × 20000 pixels")] {
            let mut file = tempfile::tempfile().unwrap();
            // A BMP without any pixels.
            let mut head = b"BM\0\0\0\0\0\0\0\0\x36\0\0\0\x28\0\0\0".to_vec();
            head.extend(side.to_le_bytes());
            head.extend(side.to_le_bytes());
            head.extend([1, 0, 24, 0]);
            head.extend([0; 24]);
            file.write_all(&head).unwrap();
            file.rewind().unwrap();
            let said = read(file, 8).unwrap_err();
            assert!(said.contains(why), "{said}");
        }
    }

    #[test]
    fn the_size_of_a_jpeg_is_looked_for_in_its_head_only() {
        let picture = encoded(&bars(60, 40, 1)).unwrap();
        // Comments in front of what says the size.
        let comment = [&[0xff, 0xfe, 0xff, 0xff][..], &[b'x'; 0xfffd]].concat();
        for (comments, wanted) in [(1, Some((60, 40))), (20, None)] {
            let mut file = tempfile::tempfile().unwrap();
            file.write_all(&picture[..2]).unwrap();
            file.write_all(&comment.repeat(comments)).unwrap();
            file.write_all(&picture[2..]).unwrap();
            file.rewind().unwrap();
            assert_eq!(size(file.try_clone().unwrap()), wanted);
            file.rewind().unwrap();
            assert_eq!(read(file, 60).unwrap().width(), 60);
        }
    }

    #[test]
    fn a_picture_of_a_huge_file_is_refused() {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(&encoded(&bars(60, 40, 1)).unwrap()).unwrap();
        file.rewind().unwrap();
        file.set_len(MAX_FILE_BYTES + 1).unwrap();
        assert!(read(file, 8).unwrap_err().contains("256 MiB"));
    }
}
