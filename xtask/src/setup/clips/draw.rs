//! Draws a clip: a garment that moves across a black square.

use std::f64::consts::TAU;
use std::fs::File;
use std::io::BufReader;
use std::path::Path;

use anyhow::{Context, Result, bail};
use image::codecs::gif::{GifDecoder, GifEncoder};
use image::codecs::webp::WebPDecoder;
use image::{AnimationDecoder, Delay, Frame, Frames, GrayImage, Luma, RgbaImage};

/// Side of a clip, in pixels.
pub(crate) const CANVAS: u32 = 32;
/// Frames in a clip; Wan needs 4 n + 1.
pub(crate) const FRAMES: u32 = 13;
/// Side of a garment, in pixels.
pub(crate) const GARMENT: u32 = 16;
/// Duration of a frame, in milliseconds.
const DELAY: u32 = 100;
/// Distance that a garment moves in a clip, and the radius of a circle, in pixels.
const WAY: f64 = 12.0;
const RADIUS: f64 = 6.0;

/// How a garment moves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Motion {
    Left,
    Right,
    Up,
    Down,
    /// One clockwise circle from the top.
    Circle,
}

impl Motion {
    pub(crate) const STRAIGHT: [Self; 4] = [Self::Left, Self::Right, Self::Up, Self::Down];

    /// The words of the caption.
    pub(crate) fn words(self) -> &'static str {
        match self {
            Self::Left => "moves to the left",
            Self::Right => "moves to the right",
            Self::Up => "moves up",
            Self::Down => "moves down",
            Self::Circle => "moves in a circle",
        }
    }

    /// The garment's left and top edge in each frame.
    fn places(self, random: &mut Random) -> Vec<(f64, f64)> {
        let room = f64::from(CANVAS - GARMENT);
        // Whole pixels, so that straight movements stay sharp.
        let mut within = |room: f64| (random.next() * (room + 1.0)).floor();
        let along = |frame: u32| f64::from(frame) / f64::from(FRAMES - 1);
        let frames = 0..FRAMES;
        let (across, start) = (within(room), within(room - WAY));
        match self {
            Self::Left => frames
                .map(|frame| (start + WAY * (1.0 - along(frame)), across))
                .collect(),
            Self::Right => frames
                .map(|frame| (start + WAY * along(frame), across))
                .collect(),
            Self::Up => frames
                .map(|frame| (across, start + WAY * (1.0 - along(frame))))
                .collect(),
            Self::Down => frames
                .map(|frame| (across, start + WAY * along(frame)))
                .collect(),
            Self::Circle => {
                let middle = (start + RADIUS, within(room - 2.0 * RADIUS) + RADIUS);
                frames
                    .map(|frame| {
                        let (sine, cosine) = (TAU * along(frame)).sin_cos();
                        (middle.0 + RADIUS * sine, middle.1 - RADIUS * cosine)
                    })
                    .collect()
            }
        }
    }
}

/// Pseudorandom numbers seeded by a text (SplitMix64).
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(text: &str) -> Self {
        // FNV-1a
        let hash = text.bytes().fold(0xcbf2_9ce4_8422_2325, |hash: u64, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
        });
        Self(hash)
    }

    /// Uniform in [0, 1).
    pub(crate) fn next(&mut self) -> f64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^= mixed >> 31;
        (mixed >> 11) as f64 / (1u64 << 53) as f64
    }
}

/// Draws the frames of a clip of `picture`, a square of `side` greyscale pixels.
pub(crate) fn frames(
    picture: &[u8],
    side: usize,
    motion: Motion,
    random: &mut Random,
) -> Vec<GrayImage> {
    let small = scaled(picture, side);
    let places = motion.places(random).into_iter();
    places.map(|place| placed(&small, place)).collect()
}

/// Scales a picture to [`GARMENT`] pixels per side by area averaging.
fn scaled(picture: &[u8], side: usize) -> Vec<f64> {
    let small = GARMENT as usize;
    let scale = side as f64 / small as f64;
    // The pixels that each scaled pixel covers, and the fraction of each.
    let covered = |of: usize| {
        let (from, to) = (of as f64 * scale, (of + 1) as f64 * scale);
        (from as usize..side.min(to.ceil() as usize)).map(move |index| {
            let share = to.min(index as f64 + 1.0) - from.max(index as f64);
            (index, share / scale)
        })
    };
    let grey = |x: usize, y: usize| f64::from(picture[y * side + x]);
    let mut result = Vec::with_capacity(small * small);
    for row in 0..small {
        for column in 0..small {
            let line = |y: usize| {
                covered(column)
                    .map(|(x, share)| share * grey(x, y))
                    .sum::<f64>()
            };
            result.push(covered(row).map(|(y, share)| share * line(y)).sum());
        }
    }
    result
}

/// Draws the garment with its left and top edge at `place`, which may lie between pixels.
fn placed(small: &[f64], (left, top): (f64, f64)) -> GrayImage {
    let side = i64::from(GARMENT);
    let pixel = |x: i64, y: i64| {
        let inside = (0..side).contains(&x) && (0..side).contains(&y);
        if inside {
            small[(y * side + x) as usize]
        } else {
            0.0
        }
    };
    GrayImage::from_fn(CANVAS, CANVAS, |x, y| {
        let (x, y) = (f64::from(x) - left, f64::from(y) - top);
        let (column, row) = (x.floor(), y.floor());
        let (right, below) = (x - column, y - row);
        let (column, row) = (column as i64, row as i64);
        let grey = (1.0 - below)
            * ((1.0 - right) * pixel(column, row) + right * pixel(column + 1, row))
            + below * ((1.0 - right) * pixel(column, row + 1) + right * pixel(column + 1, row + 1));
        Luma([grey.round().clamp(0.0, 255.0) as u8])
    })
}

/// Writes an animated GIF, which keeps grey values exactly.
pub(crate) fn save(path: &Path, frames: &[GrayImage]) -> Result<()> {
    let context = || format!("cannot write `{}`", path.display());
    let file = File::create(path).with_context(context)?;
    let mut encoder = GifEncoder::new_with_speed(std::io::BufWriter::new(file), 1);
    for picture in frames {
        let coloured = RgbaImage::from_fn(picture.width(), picture.height(), |x, y| {
            let Luma([grey]) = *picture.get_pixel(x, y);
            image::Rgba([grey, grey, grey, 255])
        });
        let delay = Delay::from_numer_denom_ms(DELAY, 1);
        let frame = Frame::from_parts(coloured, 0, 0, delay);
        encoder.encode_frame(frame).with_context(context)?;
    }
    Ok(())
}

/// Reads the frames of an animated GIF or WebP, or of a folder of pictures.
pub(crate) fn load(path: &Path) -> Result<Vec<GrayImage>> {
    let context = || format!("cannot read `{}`", path.display());
    if path.is_dir() {
        let entries = path.read_dir().with_context(context)?;
        let mut files = entries
            .map(|entry| Ok(entry?.path()))
            .collect::<Result<Vec<_>>>()?;
        files.sort();
        let open = |file: &std::path::PathBuf| Ok(image::open(file)?.to_luma8());
        return files.iter().map(open).collect();
    }
    let file = BufReader::new(File::open(path).with_context(context)?);
    let frames: Frames<'_> = match path.extension().and_then(|ending| ending.to_str()) {
        Some("gif") => GifDecoder::new(file).with_context(context)?.into_frames(),
        Some("webp") => WebPDecoder::new(file).with_context(context)?.into_frames(),
        _ => bail!("`{}` is not a supported animation", path.display()),
    };
    let grey = |frame: image::ImageResult<Frame>| {
        let picture = frame.with_context(context)?.into_buffer();
        Ok(image::DynamicImage::from(picture).to_luma8())
    };
    frames.map(grey).collect()
}

/// Centre of brightness of a picture, in pixels; `None` if it is nearly black.
pub(crate) fn centre(picture: &GrayImage) -> Option<(f64, f64)> {
    let (mut x_sum, mut y_sum, mut sum) = (0.0, 0.0, 0.0);
    for (x, y, Luma([grey])) in picture.enumerate_pixels() {
        let light = f64::from(*grey);
        x_sum += light * f64::from(x);
        y_sum += light * f64::from(y);
        sum += light;
    }
    // A garment sums to several thousand.
    (sum > 500.0).then(|| (x_sum / sum, y_sum / sum))
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIDE: usize = 28;

    #[test]
    fn a_picture_keeps_its_light_when_it_is_scaled_and_placed() {
        let picture: Vec<u8> = (0..SIDE * SIDE).map(|n| (n * 7 % 200) as u8).collect();
        let mean = |numbers: &[f64]| numbers.iter().sum::<f64>() / numbers.len() as f64;
        let before: Vec<f64> = picture.iter().map(|grey| f64::from(*grey)).collect();
        let small = scaled(&picture, SIDE);
        assert!((mean(&small) - mean(&before)).abs() < 1e-9);
        let light = |place| {
            let pixels = placed(&small, place);
            pixels.pixels().map(|p| f64::from(p.0[0])).sum::<f64>()
        };
        let whole = light((3.0, 5.0));
        assert!((light((3.4, 5.7)) / whole - 1.0).abs() < 0.01);
    }

    #[test]
    fn a_circle_goes_once_around_and_ends_where_it_began() {
        let picture = vec![255; SIDE * SIDE];
        for number in 0..20 {
            let mut random = Random::new(&format!("circle {number}"));
            let clip = frames(&picture, SIDE, Motion::Circle, &mut random);
            assert_eq!(clip.len(), 13);
            let centres: Vec<_> = clip.iter().map(|frame| centre(frame).unwrap()).collect();
            let mean = |of: fn(&(f64, f64)) -> f64| centres[1..].iter().map(of).sum::<f64>() / 12.0;
            let middle = (mean(|c| c.0), mean(|c| c.1));
            let top = (centres[0].0 - middle.0, centres[0].1 - middle.1 + 6.0);
            assert!(top.0.hypot(top.1) < 0.2, "{top:?}");
            for (x, y) in &centres {
                let radius = (x - middle.0).hypot(y - middle.1);
                assert!((radius - 6.0).abs() < 0.2, "{radius}");
            }
            assert!((centres[0].0 - centres[12].0).hypot(centres[0].1 - centres[12].1) < 0.1);
        }
    }

    #[test]
    fn what_is_written_is_read_as_it_was() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.gif");
        let picture: Vec<u8> = (0..SIDE * SIDE).map(|n| (n % 251) as u8).collect();
        let clip = frames(&picture, SIDE, Motion::Down, &mut Random::new("x"));
        save(&path, &clip).unwrap();
        assert_eq!(load(&path).unwrap(), clip);
        assert!(load(&folder.path().join("none.gif")).is_err());
    }

    #[test]
    fn the_dark_has_no_middle() {
        assert_eq!(centre(&GrayImage::new(CANVAS, CANVAS)), None);
    }
}
