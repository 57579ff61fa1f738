//! Masks: what of a picture or video counts in the loss. White counts, black only as far as `data.mask_min_value` says.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use image::{DynamicImage, GrayImage, imageops};
use tch::Tensor;

use super::buckets::Size;
use super::cache::Cache;
use super::frames::{self, Shape};
use super::sources::{IMAGES, Source, ending, is_inside, stay_within, stem_below};
use crate::Error;
use crate::config::{Confinement, DataConfig};

/// The name of a clip's mask among its conditions: `[height, width]` of the latents, from 0 to 1.
pub(crate) const LOSS_MASK: &str = "loss_mask";
/// How far the aspect ratios of a picture and its mask may differ: they were scaled to whole pixels.
const ASPECT_TOLERANCE: f64 = 0.02;

/// Where the masks of a run are.
#[derive(Debug)]
pub(super) enum Masks {
    /// By the places of their media below the data's folder, without the ending.
    Files(BTreeMap<PathBuf, PathBuf>),
    Alpha,
}

/// The mask of a medium.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Mask {
    /// It has none: everything counts.
    Whole,
    /// Its own opacity.
    Alpha(PathBuf),
    /// Another picture.
    Picture(PathBuf),
}

impl Masks {
    /// What `data` says of the media at `path`; `None` if there are no masks.
    ///
    /// # Errors
    /// If the folder of masks does not exist, or its pictures would be trained on.
    pub(super) fn of(data: &DataConfig, path: &Path) -> Result<Option<Self>, Error> {
        let Some(folder) = &data.mask_path else {
            return Ok((data.alpha_mask == Some(true)).then_some(Self::Alpha));
        };
        pictures_below(folder, path, "mask_path").map(|files| Some(Self::Files(files)))
    }

    /// The mask of `source`, a medium of `shape` in the folder or the file `data`.
    pub(super) fn of_medium(&self, source: &Source, shape: Shape, data: &Path) -> Mask {
        let path = source.path();
        match self {
            Self::Alpha if shape.still && frames::has_opacity(path) => Mask::Alpha(path.to_owned()),
            Self::Alpha => Mask::Whole,
            Self::Files(files) => {
                let name = stem_below(source, data);
                files.get(&name).cloned().map_or(Mask::Whole, Mask::Picture)
            }
        }
    }
}

/// The pictures in `folder`, which the key `data.KEY` names, by their places below it, without the ending. `media` is the
/// folder or the file of the media.
///
/// # Errors
/// If it is not a folder, its pictures would be trained on, or two of them have one name.
pub(super) fn pictures_below(
    folder: &Path,
    media: &Path,
    key: &str,
) -> Result<BTreeMap<PathBuf, PathBuf>, Error> {
    let wrong = |reason: &str| {
        let folder = folder.display();
        Err(Error::Data(format!(
            "`data.{key}` names `{folder}`, {reason}"
        )))
    };
    if !folder.is_dir() {
        return wrong("which is not a folder");
    }
    if media.is_dir() && is_inside(folder, media) {
        return wrong(
            "inside the data, so that its pictures would be trained on: move it out of there",
        );
    }
    let confinement = Confinement::of_the_environment();
    let (mut files, mut left) = (BTreeMap::new(), vec![folder.to_owned()]);
    while let Some(inside) = left.pop() {
        let io = |error| Error::io("read", &inside, error);
        for entry in fs::read_dir(&inside).map_err(io)? {
            let path = entry.map_err(io)?.path();
            let is_picture = IMAGES.contains(&&*ending(&path)) || ending(&path) == "webp";
            if path.is_dir() && !path.is_symlink() {
                left.push(path);
            } else if is_picture && path.is_file() {
                stay_within(confinement.as_ref(), &path).map_err(Error::Data)?;
                let below = path.strip_prefix(folder).unwrap_or(&path);
                if let Some(other) = files.insert(below.with_extension(""), path.clone()) {
                    return Err(Error::Data(format!(
                        "`data.{key}`: `{}` and `{}` are for the same medium: remove one",
                        other.display(),
                        path.display()
                    )));
                }
            }
        }
    }
    Ok(files)
}

impl Mask {
    /// What the mask in a cache file depends on, beside the medium: whether it may be black, too.
    pub(super) fn identity(&self, cache: &Cache, least: f64) -> Result<String, Error> {
        let mask = match self {
            Self::Whole => "whole".into(),
            Self::Alpha(_) => "alpha".into(),
            Self::Picture(file) => cache.content_of(file)?,
        };
        let black = if least > 0.0 { " or black" } else { "" };
        Ok(mask + black)
    }

    /// The mask for `latents` `[channels, frames, rows, columns]` of a medium of `shape`, trained at `size`, as
    /// `[rows, columns]`.
    ///
    /// # Errors
    /// Why it cannot be read, that it is of a picture of another form, or that nothing counts.
    pub(super) fn for_latents(
        &self,
        latents: &Tensor,
        shape: Shape,
        size: Size,
        least: f64,
    ) -> Result<Tensor, Error> {
        let (_, _, rows, columns) = latents.size4()?;
        let mask = self.at(shape, size, (rows, columns))?;
        match f64::try_from(&mask.f_max()?)? {
            0.0 if least == 0.0 => Err(Error::Data(
                "its mask is black: nothing of it would be learned".into(),
            )),
            _ => Ok(mask),
        }
    }

    /// The share of each of `rows` × `columns` areas that counts.
    fn at(&self, shape: Shape, size: Size, (rows, columns): (i64, i64)) -> Result<Tensor, Error> {
        let wrong = |reason: String| Error::Data(format!("its mask: {reason}"));
        let mask = match self {
            Self::Whole => None,
            Self::Alpha(path) => frames::opacity(path).map_err(wrong)?,
            Self::Picture(path) => {
                let named = |reason| wrong(format!("`{}`: {reason}", path.display()));
                Some(frames::brightness(path).map_err(named)?)
            }
        };
        let Some(mask) = mask else {
            let options = (tch::Kind::Float, tch::Device::Cpu);
            return Ok(Tensor::f_ones([rows, columns], options)?);
        };
        let mask = of_size(mask, shape.size).map_err(wrong)?;
        let mask = frames::fitted(&DynamicImage::ImageLuma8(mask).to_rgb8(), size);
        let shares = frames::pixels(&mask)?
            .f_add_scalar(1.0)?
            .f_div_scalar(2.0)?;
        let shares = shares.f_adaptive_avg_pool2d([rows, columns])?;
        Ok(shares.f_select(1, 0)?.f_squeeze_dim(0)?)
    }
}

/// `mask` at the size of its picture.
fn of_size(mask: GrayImage, size: Size) -> Result<GrayImage, String> {
    let (width, height) = mask.dimensions();
    let aspect = |(width, height): Size| f64::from(width) / f64::from(height);
    let ratio = aspect((width, height)) / aspect(size);
    if !(1.0 - ASPECT_TOLERANCE..=1.0 + ASPECT_TOLERANCE).contains(&ratio) {
        return Err(format!(
            "{width} × {height} pixels, for a picture of {} × {}: both must have one form",
            size.0, size.1
        ));
    }
    Ok(match (width, height) == size {
        true => mask,
        false => imageops::resize(&mask, size.0, size.1, imageops::FilterType::Triangle),
    })
}

/// The mean squares of each clip of a batch `[rows]`, of `squares` `[rows, channels, frames, height, width]` and masks
/// `[rows, height, width]`: as a weighted mean, in which what is masked counts `least`, so that a picture with a small mask
/// counts as much as others.
pub(crate) fn masked_means(squares: &Tensor, masks: &Tensor, least: f64) -> Result<Tensor, Error> {
    let weights = masks.f_mul_scalar(1.0 - least)?.f_add_scalar(least)?;
    let weights = weights.f_unsqueeze(1)?.f_unsqueeze(1)?;
    let all: &[i64] = &[1, 2, 3, 4];
    let kind = tch::Kind::Float;
    let sum = squares.f_mul(&weights)?.f_mean_dim(all, false, kind)?;
    Ok(sum.f_div(&weights.f_mean_dim(all, false, kind)?)?)
}

#[cfg(test)]
mod tests {
    use image::{Luma, Rgba, RgbaImage};

    use super::*;

    fn still(size: Size) -> Shape {
        Shape {
            size,
            frames: 1,
            still: true,
        }
    }

    #[test]
    fn a_mask_is_scaled_and_cropped_as_its_picture() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("mask.png");
        // The left half of a picture that is cut at the left and right; half the size of the picture.
        let half = GrayImage::from_fn(32, 16, |x, _| Luma([if x < 16 { 255 } else { 0 }]));
        half.save(&path).unwrap();
        let mask = Mask::Picture(path);
        let shares = mask.at(still((64, 32)), (32, 32), (4, 4)).unwrap();
        let expected = Tensor::from_slice(&[1.0_f32, 1.0, 0.0, 0.0]).expand([4, 4], false);
        // Lanczos overshoots beside the edge.
        assert!(f64::try_from((&shares - expected).abs().max()).unwrap() < 0.1);
        let reason = mask.at(still((32, 32)), (32, 32), (4, 4)).unwrap_err();
        assert!(
            reason
                .to_string()
                .contains("32 × 16 pixels, for a picture of 32 × 32")
        );
        let whole = Mask::Whole.at(still((64, 32)), (32, 32), (2, 2)).unwrap();
        assert_eq!(f64::try_from(whole.min()).unwrap(), 1.0);
    }

    #[test]
    fn opacity_is_a_mask() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("cat.png");
        let picture =
            RgbaImage::from_fn(16, 16, |_, y| Rgba([9, 9, 9, if y < 8 { 0 } else { 255 }]));
        picture.save(&path).unwrap();
        let shares = |path: &Path| {
            let mask = Mask::Alpha(path.to_owned());
            let shares = mask.at(still((16, 16)), (16, 16), (2, 1)).unwrap();
            Vec::<f64>::try_from(shares.flatten(0, 1)).unwrap()
        };
        assert_eq!(shares(&path), [0.0, 1.0]);
        DynamicImage::ImageRgba8(picture)
            .to_rgb8()
            .save(&path)
            .unwrap();
        assert_eq!(shares(&path), [1.0, 1.0]);
    }

    /// They count as media without a mask, of which there is a warning.
    #[test]
    fn pictures_without_transparency_have_no_mask() {
        let place = tempfile::tempdir().unwrap();
        let of = |picture: DynamicImage, name: &str| {
            let path = place.path().join(name);
            picture.save(&path).unwrap();
            Masks::Alpha.of_medium(&Source::Image(path), still((8, 8)), place.path())
        };
        let alpha = of(DynamicImage::new_rgba8(8, 8), "a.png");
        assert_eq!(alpha, Mask::Alpha(place.path().join("a.png")));
        for (picture, name) in [
            (DynamicImage::new_rgb8(8, 8), "b.png"),
            (DynamicImage::new_luma8(8, 8), "c.jpg"),
        ] {
            assert_eq!(of(picture, name), Mask::Whole);
        }
    }

    #[test]
    fn a_mask_that_is_transparent_where_it_is_not_white_is_a_mask() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("mask.png");
        let white = |x| if x < 8 { 255 } else { 0 };
        let mask = RgbaImage::from_fn(16, 16, |x, _| Rgba([255, 255, 255, white(x)]));
        mask.save(&path).unwrap();
        let mask = Mask::Picture(path);
        let shares = mask.at(still((16, 16)), (16, 16), (1, 2)).unwrap();
        let shares = Vec::<f64>::try_from(shares.flatten(0, 1));
        assert_eq!(shares.unwrap(), [1.0, 0.0]);
    }

    #[test]
    fn masks_are_found_by_the_names_of_the_media() {
        let place = tempfile::tempdir().unwrap();
        let (data, masks) = (place.path().join("data"), place.path().join("masks"));
        for folder in [data.join("a"), masks.join("a")] {
            fs::create_dir_all(folder).unwrap();
        }
        for file in ["a/1.PNG", "2.webp", "shot.01.png"] {
            fs::write(masks.join(file), "").unwrap();
        }
        let mut config = crate::Config::default().data;
        config.mask_path = Some(masks.clone());
        let found = |source: Source, path: &Path| {
            let masks = Masks::of(&config, path).unwrap().unwrap();
            masks.of_medium(&source, still((8, 8)), path)
        };
        let image = |name: &str| found(Source::Image(data.join(name)), &data);
        assert_eq!(image("a/1.jpg"), Mask::Picture(masks.join("a/1.PNG")));
        assert_eq!(image("2.png"), Mask::Picture(masks.join("2.webp")));
        // One of the same name elsewhere is another medium's.
        assert_eq!(image("a/2.png"), Mask::Whole);
        let lines = data.join("metadata.jsonl");
        let listed = found(Source::Image(data.join("a/1.jpg")), &lines);
        assert_eq!(listed, Mask::Picture(masks.join("a/1.PNG")));
        let frames = Source::Frames(data.join("shot.01"), Vec::new());
        let frames = found(frames, &data);
        assert_eq!(frames, Mask::Picture(masks.join("shot.01.png")));
        fs::write(masks.join("2.png"), "").unwrap();
        for (folder, told) in [
            (masks, "for the same medium"),
            (data.join("a"), "move it out"),
            (data.join("x"), "not a folder"),
        ] {
            let mut config = crate::Config::default().data;
            config.mask_path = Some(folder);
            let reason = Masks::of(&config, &data).unwrap_err().to_string();
            assert!(reason.contains(told), "{reason}");
        }
    }

    #[test]
    fn what_is_masked_does_not_count() {
        let squares = Tensor::from_slice(&[1.0_f32, 5.0, 2.0, 2.0]).view([2, 1, 1, 1, 2]);
        let masks = Tensor::from_slice(&[1.0_f32, 0.0, 1.0, 1.0]).view([2, 1, 2]);
        let means = |least| Vec::<f64>::try_from(masked_means(&squares, &masks, least).unwrap());
        assert_eq!(means(0.0).unwrap(), [1.0, 2.0]);
        assert_eq!(means(1.0).unwrap(), [3.0, 2.0]);
        let quarter = means(0.25).unwrap();
        assert!((quarter[0] - 2.25 / 1.25).abs() < 1e-6);
    }
}
