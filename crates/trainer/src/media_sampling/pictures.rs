//! Pictures and videos as tensors, and back.

use std::path::Path;

use image::RgbImage;
use tch::{Kind, Tensor};

use crate::Error;
use crate::media::{Source, frames};

fn unreadable(path: &Path, reason: &dyn std::fmt::Display) -> Error {
    Error::Data(format!("`{}`: {reason}", path.display()))
}

/// The picture in a file, scaled and cropped to `width` × `height` as in training, with values from −1 to 1:
/// `[3, height, width]`.
pub(super) fn picture(path: &Path, width: i64, height: i64) -> Result<Tensor, Error> {
    require_file(path)?;
    let picture = frames::picture(path).map_err(|reason| unreadable(path, &reason))?;
    let picture = frames::fitted(&picture, (width as u32, height as u32));
    Ok(stacked(&[picture])?.squeeze_dim(0))
}

/// Width and height of the picture in a file.
pub(super) fn size(path: &Path) -> Result<(u32, u32), Error> {
    require_file(path)?;
    frames::picture_size(path).map_err(|reason| unreadable(path, &reason))
}

/// Refuses what is neither a file nor a folder: a pipe would block, and a device may never end.
fn require_file(path: &Path) -> Result<(), Error> {
    let found = path.metadata();
    let found = found.map_err(|error| Error::io("read", path, error))?;
    match found.is_file() || found.is_dir() {
        true => Ok(()),
        false => Err(unreadable(path, &"neither a file nor a folder")),
    }
}

/// All frames of a picture, an animation, a folder of pictures or a video, with values from −1 to 1:
/// `[frames, 3, height, width]`.
pub(super) fn video(path: &Path) -> Result<Tensor, Error> {
    require_file(path)?;
    // Leave unknown extensions to ffmpeg.
    let source = Source::of(path)?.unwrap_or_else(|| Source::Video(path.to_owned()));
    let frames = match (path.is_dir(), &source) {
        (true, Source::Video(_)) => return Err(unreadable(path, &"there is no picture in it")),
        _ => frames::all(&source).map_err(|reason| unreadable(path, &reason))?,
    };
    stacked(&frames).map_err(|error| unreadable(path, &error))
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
            "its pictures have different sizes: {width} × {height} and {} × {}",
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

/// Frames `[n, 3, height, width]` from −1 to 1 as RGB bytes.
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
