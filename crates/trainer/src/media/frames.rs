//! Frames of any medium, at the model's frame rate by their time stamps, and at one size.

use std::fs::File;
use std::io::{BufReader, Cursor, Read};
use std::path::{Path, PathBuf};

use image::codecs::gif::GifDecoder;
use image::codecs::png::PngDecoder;
use image::codecs::webp::WebPDecoder;
use image::imageops::{self, FilterType};
use image::{AnimationDecoder, DynamicImage, GrayImage, ImageDecoder, ImageReader, RgbImage};

use tch::{Kind, Tensor};

use super::buckets::Size;
use super::clips::Span;
use super::ffmpeg;
use super::sources::{Source, ending};
use crate::Error;

/// Properties of a medium.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Shape {
    /// Display width and height.
    pub(crate) size: Size,
    /// Number of frames at the requested rate.
    pub(crate) frames: u32,
    /// Whether it is a still image.
    pub(crate) still: bool,
}

/// The properties of a medium at `fps` frames per second.
pub(crate) fn shape(source: &Source, fps: f64) -> Result<Shape, String> {
    let still = |size| Shape {
        size,
        frames: 1,
        still: true,
    };
    match source {
        Source::Image(path) => Ok(still(picture_size(path)?)),
        Source::Video(path) => {
            let (size, frames) = ffmpeg::probe(path, fps)?;
            Ok(Shape {
                size,
                frames,
                still: false,
            })
        }
        Source::Frames(_, files) => {
            let sizes = files.iter().map(|file| {
                picture_size(file).map_err(|error| format!("`{}`: {error}", file.display()))
            });
            let sizes = sizes.collect::<Result<Vec<_>, _>>()?;
            let first = sizes[0];
            if let Some(other) = sizes.iter().position(|size| *size != first) {
                return Err(format!(
                    "`{}` is {:?}, but the frames before it are {first:?}",
                    files[other].display(),
                    sizes[other]
                ));
            }
            Ok(Shape {
                size: first,
                frames: files.len() as u32,
                still: false,
            })
        }
        Source::Moving(path) => {
            let (size, delays) = moving(path, &mut |_, _| Ok(true))?;
            Ok(match delays.len() {
                1 => still(size),
                _ => Shape {
                    size,
                    frames: resampled(&delays, fps).len() as u32,
                    still: false,
                },
            })
        }
    }
}

/// Passes the frames of `span`, scaled and cropped to `size`, to `take`.
///
/// # Errors
/// Why they cannot be read, or the error of `take`.
pub(crate) fn read(
    source: &Source,
    shape: Shape,
    fps: f64,
    span: Span,
    size: Size,
    take: &mut dyn FnMut(RgbImage) -> Result<(), String>,
) -> Result<(), String> {
    match source {
        Source::Image(path) => take(fitted(&picture(path)?, size)),
        Source::Frames(_, files) => {
            let files = files.iter().skip(span.start as usize);
            for file in files.take(span.frames as usize) {
                let picture = picture(file).map_err(|e| format!("`{}`: {e}", file.display()))?;
                take(fitted(&picture, size))?;
            }
            Ok(())
        }
        Source::Video(path) => {
            let range = (span.start, span.frames);
            ffmpeg::read(path, fps, range, (scaled(shape.size, size), size), take)
        }
        Source::Moving(path) => {
            let (_, delays) = moving(path, &mut |_, _| Ok(true))?;
            let wanted = resampled(&delays, fps).into_iter();
            let wanted: Vec<usize> = wanted
                .skip(span.start as usize)
                .take(span.frames as usize)
                .collect();
            let last = wanted.last().copied().unwrap_or(0);
            moving(path, &mut |index, frame| {
                let times = wanted.iter().filter(|wanted| **wanted == index).count();
                if times > 0 {
                    let picture = fitted(&on_white(frame), size);
                    for _ in 0..times {
                        take(picture.clone())?;
                    }
                }
                Ok(index < last)
            })?;
            Ok(())
        }
    }
}

/// All frames at their own rate and size.
///
/// # Errors
/// Why they cannot be read.
pub(crate) fn all(source: &Source) -> Result<Vec<RgbImage>, String> {
    match source {
        Source::Image(path) => Ok(vec![picture(path)?]),
        Source::Video(path) => ffmpeg::all(path),
        Source::Frames(_, files) => {
            let named = |file: &PathBuf| {
                picture(file).map_err(|error| format!("`{}`: {error}", file.display()))
            };
            files.iter().map(named).collect()
        }
        Source::Moving(path) => {
            let mut frames = Vec::new();
            moving(path, &mut |_, frame| {
                frames.push(on_white(frame));
                Ok(true)
            })?;
            Ok(frames)
        }
    }
}

/// The index of the source frame for each frame at `fps`, given how long each source frame is shown, in
/// seconds. Rounds like ffmpeg's filter `fps`.
fn resampled(delays: &[f64], fps: f64) -> Vec<usize> {
    let mut end = 0.0;
    let mut list = Vec::new();
    for (index, delay) in delays.iter().enumerate() {
        // This frame replaces the previous one from here on.
        let begins = (end * fps).round() as usize;
        list.truncate(begins);
        end += delay;
        let ends = ((end * fps).round() as usize).max(begins);
        list.extend((list.len()..ends).map(|_| index));
    }
    if list.is_empty() && !delays.is_empty() {
        list.push(0);
    }
    list
}

/// Width and height after applying the EXIF orientation.
pub(crate) fn picture_size(path: &Path) -> Result<Size, String> {
    let mut decoder = decoder(path)?;
    let turned = decoder.orientation().map_err(|error| error.to_string())?;
    let (width, height) = decoder.dimensions();
    use image::metadata::Orientation::{Rotate90, Rotate90FlipH, Rotate270, Rotate270FlipH};
    Ok(match turned {
        Rotate90 | Rotate270 | Rotate90FlipH | Rotate270FlipH => (height, width),
        _ => (width, height),
    })
}

/// What a file is by its first bytes: pictures of the web, and of telephones, often have the ending of another kind.
enum Content {
    Avif,
    Gif,
    Heic,
    WebP,
    /// What can be told apart by the library that reads it.
    Other,
}

fn content(path: &Path) -> Result<Content, String> {
    let mut start = Vec::new();
    let file = File::open(path).map_err(|error| error.to_string())?;
    let read = file.take(64).read_to_end(&mut start);
    read.map_err(|error| error.to_string())?;
    let has = |brands: &[u8], names: &[&[u8; 4]]| {
        brands
            .chunks_exact(4)
            .any(|brand| names.iter().any(|name| brand == *name))
    };
    Ok(match &start[..] {
        [b'G', b'I', b'F', b'8', ..] => Content::Gif,
        [
            b'R',
            b'I',
            b'F',
            b'F',
            _,
            _,
            _,
            _,
            b'W',
            b'E',
            b'B',
            b'P',
            ..,
        ] => Content::WebP,
        [_, _, _, _, b'f', b't', b'y', b'p', brands @ ..] => match brands {
            brands if has(brands, &[b"avif", b"avis"]) => Content::Avif,
            brands if has(brands, &[b"heic", b"heix", b"hevc", b"mif1", b"msf1"]) => Content::Heic,
            _ => Content::Other,
        },
        // ffmpeg says what is wrong with it.
        start if image::guess_format(start).is_err() && ending(path) == "avif" => Content::Avif,
        _ => Content::Other,
    })
}

fn decoder(path: &Path) -> Result<Box<dyn ImageDecoder>, String> {
    match content(path)? {
        Content::Avif => {
            refuse_hdr(path)?;
            let png = PngDecoder::new(Cursor::new(ffmpeg::still(path)?));
            return Ok(Box::new(png.map_err(|error| error.to_string())?));
        }
        Content::Heic => return Err(super::HEIC.into()),
        _ => {}
    }
    let reader = ImageReader::open(path).and_then(ImageReader::with_guessed_format);
    let reader = reader.map_err(|error| error.to_string())?;
    Ok(Box::new(
        reader.into_decoder().map_err(|error| error.to_string())?,
    ))
}

/// Fails for an AVIF file with a high dynamic range: read without tone mapping, its colours would be pale.
fn refuse_hdr(path: &Path) -> Result<(), String> {
    let bytes = std::fs::read(path).map_err(|error| error.to_string())?;
    // The box of its colours: primaries, then the transfer function by its number in ITU-T H.273.
    let colours = b"colrnclx";
    let found = bytes.windows(12).find(|window| window.starts_with(colours));
    let transfer = match found.map(|window| &window[10..]) {
        Some([0, 16]) => "PQ",
        Some([0, 18]) => "HLG",
        _ => return Ok(()),
    };
    Err(format!(
        "it is HDR ({transfer}), and tone mapping is not supported: convert it to an SDR picture, as with `magick IN.avif \
         -colorspace sRGB -depth 8 OUT.png`"
    ))
}

/// A picture with its EXIF orientation applied.
pub(crate) fn picture(path: &Path) -> Result<RgbImage, String> {
    Ok(on_white(&oriented(path)?))
}

/// Whether these are a JPEG file that ends within its picture, of which decoders make up the rest.
fn is_cut_jpeg(bytes: &[u8]) -> bool {
    if !bytes.starts_with(&[0xFF, 0xD8]) {
        return false;
    }
    let mut at = 2;
    loop {
        at += match bytes[at.min(bytes.len())..] {
            [0xFF, 0xD9, ..] => return false,
            [0xFF, 0xFF, ..] => 1,
            // In the data of a scan.
            [0xFF, 0x00 | 0xD0..=0xD7, ..] => 2,
            [0xFF, _, high, low, ..] => 2 + usize::from(u16::from_be_bytes([high, low])),
            [] | [0xFF, ..] => return true,
            _ => 1,
        };
    }
}

fn oriented(path: &Path) -> Result<DynamicImage, String> {
    if is_cut_jpeg(&std::fs::read(path).map_err(|error| error.to_string())?) {
        return Err("the file ends before its picture does".into());
    }
    let mut decoder = decoder(path)?;
    let turned = decoder.orientation().map_err(|error| error.to_string())?;
    let decoded = DynamicImage::from_decoder(decoder);
    let mut decoded = decoded.map_err(|error| error.to_string())?;
    decoded.apply_orientation(turned);
    Ok(decoded)
}

/// Whether a picture says of each pixel how opaque it is.
pub(super) fn has_opacity(path: &Path) -> bool {
    decoder(path).is_ok_and(|decoder| decoder.color_type().has_alpha())
}

/// How opaque each pixel of a picture is; `None` if all are.
pub(super) fn opacity(path: &Path) -> Result<Option<GrayImage>, String> {
    let decoded = oriented(path)?;
    if !decoded.color().has_alpha() {
        return Ok(None);
    }
    let picture = decoded.to_rgba8();
    let (width, height) = picture.dimensions();
    let alpha = |x, y| image::Luma([picture.get_pixel(x, y).0[3]]);
    Ok(Some(GrayImage::from_fn(width, height, alpha)))
}

/// How bright each pixel of a picture is; one that is transparent is black.
pub(super) fn brightness(path: &Path) -> Result<GrayImage, String> {
    let picture = oriented(path)?.to_luma_alpha8();
    let (width, height) = picture.dimensions();
    Ok(GrayImage::from_fn(width, height, |x, y| {
        let [light, alpha] = picture.get_pixel(x, y).0.map(u32::from);
        image::Luma([((light * alpha + 127) / 255) as u8])
    }))
}

/// Replaces transparency with white.
fn on_white(picture: &DynamicImage) -> RgbImage {
    if !picture.color().has_alpha() {
        return picture.to_rgb8();
    }
    let picture = picture.to_rgba8();
    RgbImage::from_fn(picture.width(), picture.height(), |x, y| {
        let [red, green, blue, alpha] = picture.get_pixel(x, y).0;
        let mixed = |colour: u8| {
            let (colour, alpha) = (u32::from(colour), u32::from(alpha));
            ((colour * alpha + 255 * (255 - alpha) + 127) / 255) as u8
        };
        image::Rgb([mixed(red), mixed(green), mixed(blue)])
    })
}

/// Called with each frame of a possibly animated picture and its index, until it returns `false`.
type FrameVisitor<'a> = &'a mut dyn FnMut(usize, &DynamicImage) -> Result<bool, String>;

/// The size of a possibly animated picture, and how long each visited frame is shown, in seconds.
fn moving(path: &Path, look: FrameVisitor<'_>) -> Result<(Size, Vec<f64>), String> {
    let open = || File::open(path).map(BufReader::new);
    let file = open().map_err(|error| error.to_string())?;
    let wrong = |error: image::ImageError| error.to_string();
    let moves = match content(path)? {
        Content::Gif => Some(GifDecoder::new(file).map_err(wrong)?.into_frames()),
        Content::WebP => {
            let decoder = WebPDecoder::new(file).map_err(wrong)?;
            decoder.has_animation().then(|| decoder.into_frames())
        }
        _ => None,
    };
    let Some(frames) = moves else {
        let picture = DynamicImage::from(picture(path)?);
        look(0, &picture)?;
        return Ok(((picture.width(), picture.height()), vec![0.0]));
    };
    let (mut size, mut delays) = (None, Vec::new());
    for (index, frame) in frames.enumerate() {
        let frame = frame.map_err(wrong)?;
        let (numerator, denominator) = frame.delay().numer_denom_ms();
        let delay = f64::from(numerator) / f64::from(denominator.max(1)) / 1000.0;
        // Like browsers and ffmpeg: shorter delays are not intended.
        delays.push(if delay < 0.02 { 0.1 } else { delay });
        let picture = DynamicImage::from(frame.into_buffer());
        size = Some((picture.width(), picture.height()));
        if !look(index, &picture)? {
            break;
        }
    }
    let size = size.ok_or("it has no frames")?;
    Ok((size, delays))
}

/// The size to which a picture of `size` is scaled before it is cropped to `wanted`.
fn scaled(size: Size, wanted: Size) -> Size {
    let (width, height) = (f64::from(size.0), f64::from(size.1));
    let scale = (f64::from(wanted.0) / width).max(f64::from(wanted.1) / height);
    let side = |side: f64, least: u32| ((side * scale + 0.5) as u32).max(least);
    (side(width, wanted.0), side(height, wanted.1))
}

/// What share of a picture of `size` is left after it was scaled and cropped.
pub(super) fn kept(size: Size, wanted: Size) -> f64 {
    let area = |(width, height): Size| f64::from(width) * f64::from(height);
    area(wanted) / area(scaled(size, wanted))
}

/// Columns at the left and rows at the top that are cut off a picture of `size` after it was scaled.
pub(crate) fn corner(size: Size, wanted: Size) -> (u32, u32) {
    let (width, height) = scaled(size, wanted);
    ((width - wanted.0) / 2, (height - wanted.1) / 2)
}

/// `picture` scaled until it covers `size`, and cropped around its centre.
pub(crate) fn fitted(picture: &RgbImage, size: Size) -> RgbImage {
    let (width, height) = scaled(picture.dimensions(), size);
    let scaled = match (width, height) == picture.dimensions() {
        true => picture.clone(),
        false => imageops::resize(picture, width, height, FilterType::Lanczos3),
    };
    let (left, top) = corner(picture.dimensions(), size);
    imageops::crop_imm(&scaled, left, top, size.0, size.1).to_image()
}

/// A picture as `[1, 3, height, width]` from −1 to 1.
pub(super) fn pixels(picture: &image::RgbImage) -> Result<Tensor, Error> {
    let (width, height) = (i64::from(picture.width()), i64::from(picture.height()));
    let bytes = Tensor::f_from_slice(picture.as_raw())?;
    Ok(bytes
        .f_view([1, height, width, 3])?
        .f_permute([0, 3, 1, 2])?
        .f_to_kind(Kind::Float)?
        .f_div_scalar(127.5)?
        .f_sub_scalar(1.0)?)
}

#[cfg(test)]
mod tests;
