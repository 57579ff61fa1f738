//! How pictures are prepared for the tower, from `preprocessor_config.json` in the folder `processor`.
//!
//! A picture is scaled twice: to an area of 384 × 384, as the pipeline does it, and to whole patches, as the text encoder's
//! processor does it without torchvision.

use std::path::Path;

use serde_json::json;
use tch::Tensor;

use super::{FRAMES, MERGED, PATCH};
use crate::Error;
use crate::diffusion::Picture;
use crate::diffusion::controls::of_area;
use crate::diffusion::parts::resample::Filter;
use crate::json::Object;

/// The area at which pictures are seen, and what sides are multiples of before whole patches are made of them.
const AREA: u32 = 384 * 384;
const STEP: u32 = 32;

/// Numbers by which colours are normalised, and the fewest and the most pixels.
#[derive(Debug, Clone, PartialEq)]
pub(in crate::diffusion::qwen_image) struct Pixels {
    mean: [f32; 3],
    deviation: [f32; 3],
    least: f64,
    most: f64,
}

/// Keys that are obeyed or refused.
const KEYS: [&str; 15] = [
    "do_resize",
    "do_rescale",
    "do_normalize",
    "do_convert_rgb",
    "resample",
    "rescale_factor",
    "patch_size",
    "merge_size",
    "temporal_patch_size",
    "image_mean",
    "image_std",
    "min_pixels",
    "max_pixels",
    "size",
    "crop_size",
];

/// Others that change nothing here.
const WITHOUT_EFFECT: [&str; 13] = [
    "image_processor_type",
    "feature_extractor_type",
    "processor_class",
    "default_to_square",
    "data_format",
    "input_data_format",
    "device",
    "return_tensors",
    "disable_grouping",
    "do_center_crop",
    "do_pad",
    "pad_size",
    "image_seq_length",
];

/// What a byte is multiplied by before it is normalised.
const SCALE: f64 = 0.003_921_568_627_450_98;

impl Default for Pixels {
    /// As published.
    fn default() -> Self {
        Self {
            mean: [0.481_454_66, 0.457_827_5, 0.408_210_73],
            deviation: [0.268_629_54, 0.261_302_6, 0.275_777_1],
            least: 3136.0,
            most: 12_845_056.0,
        }
    }
}

impl Pixels {
    /// Reads the file in this folder; without one, all is as published.
    pub(in crate::diffusion::qwen_image) fn read(folder: &Path) -> Result<Self, Error> {
        let path = folder.join("preprocessor_config.json");
        let together = folder.join("processor_config.json");
        let object = match (path.is_file(), together.is_file()) {
            (true, _) => Object::read(&path)?,
            (false, true) => match Object::read(&together)?.object("image_processor")? {
                Some(object) => object,
                None => return Ok(Self::default()),
            },
            (false, false) => return Ok(Self::default()),
        };
        let known: Vec<_> = KEYS.iter().chain(&WITHOUT_EFFECT).copied().collect();
        object.warn_about_unknown_keys(&known);
        for key in ["do_resize", "do_rescale", "do_normalize", "do_convert_rgb"] {
            object.require(key, &json!(true), &json!(true))?;
        }
        for (key, only) in [
            ("resample", json!(3)),
            ("rescale_factor", json!(SCALE)),
            ("patch_size", json!(PATCH)),
            ("merge_size", json!(MERGED)),
            ("temporal_patch_size", json!(FRAMES)),
        ] {
            object.require(key, &only, &only)?;
        }
        if object.get("crop_size").is_some() {
            return Err(object.error("crop_size", "is not supported: pictures are not cropped"));
        }
        let usual = Self::default();
        let colours = |key: &str, usual: [f32; 3]| match object.numbers(key)? {
            None => Ok(usual),
            Some(numbers) => {
                let numbers: Vec<f32> = numbers.iter().map(|number| *number as f32).collect();
                let wrong = |_| object.error(key, "must be three numbers");
                <[f32; 3]>::try_from(numbers).map_err(wrong)
            }
        };
        let size = object.object("size")?;
        if let Some(size) = &size {
            size.warn_about_unknown_keys(&["shortest_edge", "longest_edge"]);
        }
        let bound = |key: &str, of_size: &str, usual: f64| match &size {
            _ if object.get(key).is_some() => object.positive(key, None),
            Some(size) => size.positive(of_size, Some(usual)),
            None => Ok(usual),
        };
        Ok(Self {
            mean: colours("image_mean", usual.mean)?,
            deviation: colours("image_std", usual.deviation)?,
            least: bound("min_pixels", "shortest_edge", usual.least)?,
            most: bound("max_pixels", "longest_edge", usual.most)?,
        })
    }

    /// The patches of a picture, `[patches, colours · frames · rows · columns]`, those of a place one after the other, and how
    /// many rows and columns of places there are.
    pub(in crate::diffusion::qwen_image) fn patches(
        &self,
        picture: &Picture,
    ) -> Result<(Tensor, (i64, i64)), Error> {
        let (small, (rows, columns)) = self.sizes(picture.size());
        let side = |places: i64| (places * MERGED * PATCH) as u32;
        let picture = picture
            .resized(small, Filter::Lanczos)
            .resized((side(columns), side(rows)), Filter::Bicubic);
        let number = |colour: usize| {
            let (mean, deviation) = (self.mean[colour], self.deviation[colour]);
            move |byte: u8| ((f64::from(byte) * SCALE) as f32 - mean) / deviation
        };
        let numbers = picture.numbers([&number(0), &number(1), &number(2)])?;
        let patches = numbers
            .f_view(&[3, rows, MERGED, PATCH, columns, MERGED, PATCH][..])?
            .f_permute([1, 4, 2, 5, 0, 3, 6])?
            .f_unsqueeze(5)?
            .f_expand(
                [rows, columns, MERGED, MERGED, 3, FRAMES, PATCH, PATCH],
                false,
            )?;
        let count = rows * columns * MERGED * MERGED;
        Ok((patches.f_reshape([count, -1])?, (rows, columns)))
    }

    /// The size to which a picture of `size` is scaled first, and the rows and columns of its places.
    pub(in crate::diffusion::qwen_image) fn sizes(
        &self,
        size: (u32, u32),
    ) -> ((u32, u32), (i64, i64)) {
        let small = of_area(AREA, size, STEP);
        let (width, height) = (f64::from(small.0), f64::from(small.1));
        let place = (PATCH * MERGED) as f64;
        let all = [height, width];
        let whole = all.map(|side| (side / place).round_ties_even());
        let pixels = whole[0] * whole[1] * place * place;
        let sides = if pixels > self.most {
            let beta = (height * width / self.most).sqrt();
            all.map(|side| (side / beta / place).floor().max(1.0))
        } else if pixels < self.least {
            let beta = (self.least / (height * width)).sqrt();
            all.map(|side| (side * beta / place).ceil())
        } else {
            whole
        };
        (small, (sides[0] as i64, sides[1] as i64))
    }
}
