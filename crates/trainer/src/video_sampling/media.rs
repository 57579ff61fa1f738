//! Pictures and videos as tensors, and back.

use std::fs::File;
use std::io::{BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use image::codecs::gif::GifDecoder;
use image::codecs::webp::WebPDecoder;
use image::imageops::FilterType;
use image::{AnimationDecoder, DynamicImage, ImageDecoder, ImageReader, RgbImage};
use tch::{Kind, Tensor};

use crate::Error;

const PICTURES: [&str; 5] = ["png", "jpg", "jpeg", "bmp", "webp"];

/// The picture of a file, made `width` × `height` as diffusers does it (stretched, by Lanczos), from −1 to
/// 1: `[3, height, width]`.
pub(super) fn picture(path: &Path, width: i64, height: i64) -> Result<Tensor, Error> {
    let mut picture = still(path)?;
    let (width, height) = (width as u32, height as u32);
    if (picture.width(), picture.height()) != (width, height) {
        picture = image::imageops::resize(&picture, width, height, FilterType::Lanczos3);
    }
    Ok(stacked(&[picture])?.squeeze_dim(0))
}

/// All frames of a picture, an animation, a folder of pictures or a video, from −1 to 1:
/// `[frames, 3, height, width]`.
pub(super) fn video(path: &Path) -> Result<Tensor, Error> {
    let frames = match extension(path).as_str() {
        _ if path.is_dir() => folder(path)?,
        "gif" => animation(
            path,
            GifDecoder::new(open(path)?).map_err(|e| unreadable(path, &e))?,
        )?,
        "webp" => {
            let decoder =
                WebPDecoder::new(open(path)?).map_err(|error| unreadable(path, &error))?;
            match decoder.has_animation() {
                true => animation(path, decoder)?,
                false => vec![still(path)?],
            }
        }
        extension if PICTURES.contains(&extension) => vec![still(path)?],
        _ => decoded(path)?,
    };
    stacked(&frames).map_err(|error| Error::Data(format!("`{}`: {error}", path.display())))
}

fn open(path: &Path) -> Result<BufReader<File>, Error> {
    let file = File::open(path).map_err(|source| Error::Io {
        action: "read",
        path: path.to_owned(),
        source,
    })?;
    Ok(BufReader::new(file))
}

fn extension(path: &Path) -> String {
    path.extension()
        .map_or(String::new(), |e| e.to_string_lossy().to_lowercase())
}

fn unreadable(path: &Path, error: &dyn std::fmt::Display) -> Error {
    Error::Data(format!("`{}`: {error}", path.display()))
}

/// A picture, turned as its camera says.
fn still(path: &Path) -> Result<RgbImage, Error> {
    let reader = ImageReader::new(open(path)?).with_guessed_format();
    let reader = reader.map_err(|error| unreadable(path, &error))?;
    let mut decoder = reader
        .into_decoder()
        .map_err(|error| unreadable(path, &error))?;
    let turn = decoder
        .orientation()
        .map_err(|error| unreadable(path, &error))?;
    let mut picture =
        DynamicImage::from_decoder(decoder).map_err(|error| unreadable(path, &error))?;
    picture.apply_orientation(turn);
    Ok(picture.to_rgb8())
}

fn animation<'a>(path: &Path, decoder: impl AnimationDecoder<'a>) -> Result<Vec<RgbImage>, Error> {
    let frames = decoder
        .into_frames()
        .collect_frames()
        .map_err(|error| unreadable(path, &error))?;
    Ok(frames
        .into_iter()
        .map(|frame| DynamicImage::from(frame.into_buffer()).to_rgb8())
        .collect())
}

/// The pictures of a folder, by name.
fn folder(path: &Path) -> Result<Vec<RgbImage>, Error> {
    let error = |source| Error::Io {
        action: "read",
        path: path.to_owned(),
        source,
    };
    let entries = std::fs::read_dir(path).map_err(error)?;
    let mut files = entries
        .map(|entry| Ok(entry?.path()))
        .collect::<Result<Vec<PathBuf>, _>>()
        .map_err(error)?;
    files.retain(|file| PICTURES.contains(&extension(file).as_str()));
    files.sort();
    files.iter().map(|file| still(file)).collect()
}

/// The frames of a video, which ffmpeg decodes.
fn decoded(path: &Path) -> Result<Vec<RgbImage>, Error> {
    if !path.is_file() {
        let source = std::io::ErrorKind::NotFound.into();
        return Err(Error::Io {
            action: "read",
            path: path.to_owned(),
            source,
        });
    }
    let mut child = Command::new("ffmpeg")
        .args(["-nostdin", "-v", "error", "-i"])
        .arg(path)
        .args([
            "-sws_flags",
            "accurate_rnd+full_chroma_int",
            "-f",
            "image2pipe",
            "-c:v",
            "ppm",
            "-",
        ])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|error| {
            Error::Data(format!(
                "`{}`: {}",
                path.display(),
                no_ffmpeg("read videos", &error)
            ))
        })?;
    // Read beside the frames, so that neither pipe can fill up.
    let stderr = child.stderr.take();
    let told = std::thread::spawn(move || {
        let mut text = String::new();
        let _ = stderr.map(|mut stderr| stderr.read_to_string(&mut text));
        text
    });
    let mut bytes = Vec::new();
    let read = child
        .stdout
        .take()
        .map(|mut stdout| stdout.read_to_end(&mut bytes))
        .transpose();
    let status = child.wait();
    let told = told.join().unwrap_or_default();
    if read.is_err() || !status.is_ok_and(|status| status.success()) {
        let first = told.lines().next().unwrap_or("without a word").to_owned();
        return Err(Error::Data(format!(
            "`{}`: ffmpeg stopped: {first}",
            path.display()
        )));
    }
    let wrong = || unreadable(path, &"ffmpeg wrote no pictures");
    let mut frames = Vec::new();
    let mut rest = bytes.as_slice();
    while !rest.is_empty() {
        let (header, after) = ppm(rest).ok_or_else(wrong)?;
        let size = header.0 as usize * header.1 as usize * 3;
        let pixels = after.get(..size).ok_or_else(wrong)?;
        frames.extend(RgbImage::from_raw(header.0, header.1, Vec::from(pixels)));
        rest = &after[size..];
    }
    Ok(frames)
}

/// The width and height of a portable pixmap, and what follows its header.
fn ppm(bytes: &[u8]) -> Option<((u32, u32), &[u8])> {
    let mut rest = bytes.strip_prefix(b"P6")?;
    let mut numbers = [0; 3];
    for number in &mut numbers {
        rest = rest.trim_ascii_start();
        let end = rest.iter().position(u8::is_ascii_whitespace)?;
        *number = std::str::from_utf8(&rest[..end]).ok()?.parse().ok()?;
        rest = &rest[end..];
    }
    (numbers[2] == 255).then_some(((numbers[0], numbers[1]), rest.get(1..)?))
}

/// What to say when ffmpeg does not start.
pub(super) fn no_ffmpeg(what: &str, error: &std::io::Error) -> String {
    format!(
        "ffmpeg is needed to {what}, and does not start ({error}). Install it (Debian, Ubuntu: `apt install \
         ffmpeg`), or take an animated `.webp` or a folder of pictures"
    )
}

/// `[frames, 3, height, width]`, from −1 to 1.
fn stacked(frames: &[RgbImage]) -> Result<Tensor, Error> {
    let Some(first) = frames.first() else {
        return Err(Error::Data("there is no picture in it".into()));
    };
    let (width, height) = first.dimensions();
    if let Some(other) = frames
        .iter()
        .find(|frame| frame.dimensions() != (width, height))
    {
        return Err(Error::Data(format!(
            "its pictures are of different sizes: {width} × {height}, and {} × {}",
            other.width(),
            other.height()
        )));
    }
    let rows = frames
        .iter()
        .map(|frame| Tensor::from_slice(frame.as_raw()))
        .collect::<Vec<_>>();
    let shape = [frames.len() as i64, i64::from(height), i64::from(width), 3];
    let pixels = Tensor::cat(&rows, 0).view(shape).permute([0, 3, 1, 2]);
    Ok(pixels.to_kind(Kind::Float) / 255.0 * 2.0 - 1.0)
}

/// Frames `[n, 3, height, width]` from −1 to 1 as rows of red, green and blue bytes.
pub(super) fn bytes(frames: &Tensor) -> Result<Vec<Vec<u8>>, Error> {
    let scaled = ((frames + 1.0) / 2.0).clamp(0.0, 1.0) * 255.0;
    let rows = scaled
        .round()
        .to_kind(Kind::Uint8)
        .permute([0, 2, 3, 1])
        .contiguous();
    let count = rows.size()[0];
    (0..count)
        .map(|index| {
            Ok(Vec::<u8>::try_from(&rows.get(index).reshape([-1])).map_err(models::Error::from)?)
        })
        .collect()
}
