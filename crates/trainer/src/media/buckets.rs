//! Chooses the width and height of a picture from a few sizes, so that batches can be formed.
//!
//! The rule is musubi-tuner's: sizes with about the area of `data.resolution`, in steps that the model
//! supports; a picture gets the one with the closest aspect ratio.

use models::diffusion::Diffusion;

use crate::Error;
use crate::config::{Config, DataConfig, Numbers};

/// Width and height in pixels.
pub(crate) type Size = (u32, u32);

/// The available sizes.
#[derive(Debug)]
pub(crate) struct Buckets {
    /// In ascending order.
    sizes: Vec<Size>,
    area: u64,
    step: u32,
    no_upscale: bool,
}

impl Buckets {
    /// Sizes with about the area of `size`, in multiples of `step`; without `bucketed`, only that one.
    pub(crate) fn new(
        size: Size,
        step: u32,
        bucketed: bool,
        no_upscale: bool,
    ) -> Result<Self, Error> {
        let (width, height) = size;
        let area = u64::from(width) * u64::from(height);
        let wrong = |reason: String| Err(Error::Data(format!("`data.resolution`: {reason}")));
        if !bucketed && (width % step != 0 || height % step != 0) {
            return wrong(format!(
                "{width} × {height} is no multiple of {step}, in which this model counts pixels; {} × {} \
                 is near, and so are the sizes that `data.enable_bucket: true` chooses",
                (width / step).max(1) * step,
                (height / step).max(1) * step
            ));
        }
        if area < u64::from(step) * u64::from(step) {
            return wrong(format!(
                "{width} × {height} is less than the smallest picture of this model, {step} × {step}"
            ));
        }
        let mut sizes = vec![size];
        if bucketed {
            sizes.clear();
            let side = area.isqrt() as u32;
            let least = (side / 2 / step * step).max(step);
            for width in (least..side + step).step_by(step as usize) {
                let height = (area / u64::from(width)) as u32 / step * step;
                if height > 0 {
                    sizes.extend([(width, height), (height, width)]);
                }
            }
            sizes.sort_unstable();
            sizes.dedup();
        }
        Ok(Self {
            sizes,
            area,
            step,
            no_upscale: bucketed && no_upscale,
        })
    }

    /// The size for a picture; `None` if it is too small to keep its own.
    pub(crate) fn of(&self, (width, height): Size) -> Option<Size> {
        if self.no_upscale && u64::from(width) * u64::from(height) <= self.area {
            let kept = (
                width / self.step * self.step,
                height / self.step * self.step,
            );
            return (kept.0 > 0 && kept.1 > 0).then_some(kept);
        }
        let shape = |(width, height): Size| f64::from(width) / f64::from(height);
        let wanted = shape((width.max(1), height.max(1)));
        let apart = |size: &Size| (shape(*size) - wanted).abs();
        // The first one on a tie.
        self.sizes.iter().copied().reduce(|best, size| {
            if apart(&size) < apart(&best) {
                size
            } else {
                best
            }
        })
    }
}

/// The size of a square picture in training, in which none has more pixels.
pub(crate) fn largest_size(config: &Config, model: &dyn Diffusion) -> Result<Size, Error> {
    let mut all = other_buckets(config, model)?;
    all.push(buckets(config, model)?);
    let square = (u32::from(u16::MAX), u32::from(u16::MAX));
    let sizes = all.iter().filter_map(|buckets| buckets.of(square));
    let largest = sizes.max_by_key(|&(width, height)| u64::from(width) * u64::from(height));
    largest.ok_or_else(|| Error::Internal("no bucket".into()))
}

/// The available picture sizes for a model.
pub(super) fn buckets(config: &Config, model: &dyn Diffusion) -> Result<Buckets, Error> {
    let data = &config.data;
    let sides = data.resolution.as_ref().map(|numbers| numbers.list());
    let size = match sides {
        Some([side]) => (*side, *side),
        Some([width, height]) => (*width, *height),
        _ => return Err(Error::Data("`data.resolution` is not set".into())),
    };
    of_size(size, data, model)
}

/// Those of the resolutions that media have besides.
pub(super) fn other_buckets(config: &Config, model: &dyn Diffusion) -> Result<Vec<Buckets>, Error> {
    let data = &config.data;
    let sides = data.other_resolutions.iter().flat_map(Numbers::list);
    sides
        .map(|&side| of_size((side, side), data, model))
        .collect()
}

fn of_size(size: Size, data: &DataConfig, model: &dyn Diffusion) -> Result<Buckets, Error> {
    Buckets::new(
        size,
        model.bucket_step() as u32,
        data.enable_bucket.unwrap_or(true),
        data.bucket_no_upscale.unwrap_or(false),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_picture_gets_the_size_of_its_shape() {
        let buckets = Buckets::new((960, 544), 16, true, false).unwrap();
        for size in &buckets.sizes {
            assert!(size.0 % 16 == 0 && size.1 % 16 == 0);
            assert!(u64::from(size.0) * u64::from(size.1) <= 960 * 544);
        }
        assert_eq!(buckets.of((1920, 1080)), Some((960, 544)));
        assert_eq!(buckets.of((1080, 1920)), Some((544, 960)));
        assert_eq!(buckets.of((64, 64)), Some((720, 720)));
        // Beyond the most extreme aspect ratio.
        let longest = buckets.sizes.last().copied();
        assert_eq!(buckets.of((10_000, 100)), longest);
    }

    #[test]
    fn one_size_for_all_and_sizes_that_are_kept() {
        let one = Buckets::new((64, 32), 16, false, false).unwrap();
        assert_eq!(one.of((10, 900)), Some((64, 32)));
        let kept = Buckets::new((64, 64), 16, true, true).unwrap();
        assert_eq!(kept.of((50, 40)), Some((48, 32)));
        assert_eq!(kept.of((500, 500)), Some((64, 64)));
        assert_eq!(kept.of((500, 8)), None);
    }

    #[test]
    fn sizes_that_the_model_cannot_take_are_refused() {
        let error = Buckets::new((50, 32), 16, false, false).unwrap_err();
        assert!(error.to_string().contains("48 × 32"), "{error}");
        let error = Buckets::new((16, 16), 32, true, false).unwrap_err();
        assert!(error.to_string().contains("32 × 32"), "{error}");
    }
}
