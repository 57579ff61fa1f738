//! Masks: what of a picture or video counts in the loss. White counts, black only as far as `data.mask_min_value` says.

use std::path::{Path, PathBuf};

use image::{DynamicImage, GrayImage, imageops};
use tch::Tensor;

use super::buckets::Size;
use super::cache::Cache;
use super::frames::{self, Shape};
use super::sources::{IMAGES, Source, stay_within};
use crate::Error;
use crate::config::{Confinement, DataConfig};

/// The name of a clip's mask among its conditions: `[height, width]` of the latents, from 0 to 1.
pub(crate) const LOSS_MASK: &str = "loss_mask";
/// How far the aspect ratios of a picture and its mask may differ: they were scaled to whole pixels.
const ASPECT_TOLERANCE: f64 = 0.02;

/// Where the masks of a run are.
pub(super) enum Masks {
    Folder(PathBuf),
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
        let real = |path: &Path| path.canonicalize().unwrap_or_else(|_| path.to_owned());
        let reason = match () {
            () if !folder.is_dir() => "which is not a folder",
            () if path.is_dir() && real(folder).starts_with(real(path)) => {
                "inside the data, so that masks would be trained on: move it out of there"
            }
            () => return Ok(Some(Self::Folder(folder.clone()))),
        };
        let folder = folder.display();
        Err(Error::Data(format!(
            "`data.mask_path` names `{folder}`, {reason}"
        )))
    }

    /// The mask of `source`, a medium below `root`: in a folder, a picture of its name, at the same place or at the top.
    pub(super) fn of_medium(&self, source: &Source, root: &Path) -> Result<Mask, String> {
        let path = source.path();
        let Self::Folder(folder) = self else {
            return Ok(match source {
                Source::Image(_) | Source::Moving(_) => Mask::Alpha(path.to_owned()),
                Source::Video(_) | Source::Frames(..) => Mask::Whole,
            });
        };
        let below = path.strip_prefix(root).unwrap_or(path);
        let top = path.file_name().map(Path::new);
        let places = [Some(below).filter(|below| below.is_relative()), top];
        let mut files = places.into_iter().flatten().flat_map(|name| {
            let endings = IMAGES.iter().chain(&["webp"]);
            endings.map(move |ending| folder.join(name).with_extension(ending))
        });
        match files.find(|file| file.is_file()) {
            None => Ok(Mask::Whole),
            Some(file) => {
                stay_within(Confinement::of_the_environment().as_ref(), &file)?;
                Ok(Mask::Picture(file))
            }
        }
    }
}

impl Mask {
    /// What the mask in a cache file depends on, beside the medium.
    pub(super) fn identity(&self, cache: &Cache) -> Result<String, Error> {
        Ok(match self {
            Self::Whole => "whole".into(),
            Self::Alpha(_) => "alpha".into(),
            Self::Picture(file) => cache.content_of(file)?,
        })
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
                let picture = frames::picture(path);
                let named = |reason| wrong(format!("`{}`: {reason}", path.display()));
                let picture = picture.map_err(named)?;
                Some(DynamicImage::ImageRgb8(picture).to_luma8())
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

    #[test]
    fn masks_are_found_by_the_names_of_the_media() {
        let place = tempfile::tempdir().unwrap();
        let (data, masks) = (place.path().join("data"), place.path().join("masks"));
        for folder in [data.join("a"), masks.join("a")] {
            std::fs::create_dir_all(folder).unwrap();
        }
        for file in ["a/1.png", "2.webp"] {
            std::fs::write(masks.join(file), "").unwrap();
        }
        let found = |name: &str| {
            let source = Source::Image(data.join(name));
            let folder = Masks::Folder(masks.clone());
            folder.of_medium(&source, &data).unwrap()
        };
        assert_eq!(found("a/1.jpg"), Mask::Picture(masks.join("a/1.png")));
        assert_eq!(found("a/2.png"), Mask::Picture(masks.join("2.webp")));
        assert_eq!(found("3.png"), Mask::Whole);
        for (folder, told) in [
            (data.join("a"), "move it out"),
            (data.join("x"), "not a folder"),
        ] {
            let mut config = crate::Config::default().data;
            config.mask_path = Some(folder);
            let reason = Masks::of(&config, &data).err().unwrap().to_string();
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
