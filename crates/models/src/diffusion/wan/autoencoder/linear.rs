//! A linear autoencoder for small models that are trained from scratch: the principal components of blocks of
//! pixels.
//!
//! A latent of the first frame represents a square of its pixels; a latent of the other frames represents the
//! same square of four frames. Wan's autoencoders have the same layout, so everything else is the same code.
//! The channels are the components with the largest variance, divided by the square root of their standard
//! deviation, so that the first ones remain the largest, stay visible in the noise the longest and count most
//! in the loss, without losing the others. Fitting takes seconds; what the components cannot represent, such
//! as fine detail of a motion, is lost.

use tch::{Device, Kind, Tensor};

use super::{AutoencoderConfig, FRAMES_PER_LATENT};
use crate::Error;
use crate::model::{Builder, Initial};
use crate::tensor::to_kind;

/// The two kinds of latent by their names in files, with their number of frames.
const PARTS: [(&str, i64); 2] = [("first", 1), ("later", FRAMES_PER_LATENT)];
/// Lower bound of the standard deviation that components are scaled by, as a share of the first one's.
const LEAST: f64 = 0.02;

/// Encoder and decoder.
#[derive(Debug)]
pub(super) struct Linear {
    /// For the first frame, and for the others.
    bases: [Basis; 2],
    step: i64,
}

#[derive(Debug)]
struct Basis {
    /// `[channels, elements of a block]` fp32, with orthonormal rows.
    components: Tensor,
    /// `[elements of a block]` fp32
    mean: Tensor,
    /// `[channels]` fp32: divisors of the latents' components.
    scales: Tensor,
    frames: i64,
}

impl Linear {
    pub(super) fn new(config: &AutoencoderConfig, builder: &mut Builder) -> Result<Self, Error> {
        let (channels, step) = (config.z_dim, config.scale_factor_spatial);
        let mut basis = |(part, frames): (&str, i64)| -> Result<Basis, Error> {
            let numbers = frames * 3 * step * step;
            let mut tensor = |name: &str, shape: &[i64]| {
                builder.kept(&format!("{part}.{name}"), shape, Initial::Zeros)
            };
            Ok(Basis {
                components: tensor("components", &[channels, numbers])?,
                mean: tensor("mean", &[numbers])?,
                scales: tensor("scales", &[channels])?,
                frames,
            })
        };
        let [first, later] = PARTS;
        Ok(Self {
            bases: [basis(first)?, basis(later)?],
            step,
        })
    }

    /// One or four frames, `[frames, 3, height, width]`, to `[1, channels, height / s, width / s]`.
    pub(super) fn encoded(&self, pixels: &Tensor) -> Result<Tensor, Error> {
        let (frames, _, height, width) = pixels.size4()?;
        let basis = &self.bases[usize::from(frames > 1)];
        let rows = blocks(&to_kind(pixels, Kind::Float)?, self.step)?.f_sub(&basis.mean)?;
        let latents = rows
            .f_matmul(&basis.components.f_transpose(0, 1)?)?
            .f_div(&basis.scales)?;
        Ok(latents
            .f_view([1, height / self.step, width / self.step, -1])?
            .f_permute([0, 3, 1, 2])?)
    }

    /// The inverse, up to what the components cannot represent.
    pub(super) fn decoded(&self, latent: &Tensor, is_first: bool) -> Result<Tensor, Error> {
        let (_, channels, height, width) = latent.size4()?;
        let basis = &self.bases[usize::from(!is_first)];
        let step = self.step;
        let rows = to_kind(latent, Kind::Float)?
            .f_permute([0, 2, 3, 1])?
            .f_reshape([-1, channels])?
            .f_mul(&basis.scales)?
            .f_matmul(&basis.components)?
            .f_add(&basis.mean)?;
        Ok(rows
            .f_view([height, width, basis.frames, 3, step, step])?
            .f_permute([2, 3, 0, 4, 1, 5])?
            .f_reshape([basis.frames, 3, height * step, width * step])?)
    }
}

/// `[frames, 3, height, width]` to `[squares, frames · 3 · s · s]`, in row-major order of the squares.
fn blocks(pixels: &Tensor, step: i64) -> Result<Tensor, Error> {
    let (frames, colours, height, width) = pixels.size4()?;
    let (rows, columns) = (height / step, width / step);
    Ok(pixels
        .f_reshape([frames, colours, rows, step, columns, step])?
        .f_permute([2, 4, 0, 1, 3, 5])?
        .f_reshape([rows * columns, frames * colours * step * step])?)
}

/// Fits the components to clips, which are added one after the other.
#[derive(Debug)]
pub struct LinearFit {
    step: i64,
    /// For blocks of the first frame, and of the others.
    sums: [Sums; 2],
}

#[derive(Debug)]
struct Sums {
    blocks: f64,
    /// `[elements]` fp64
    sum: Tensor,
    /// `[elements, elements]` fp64
    outer_products: Tensor,
}

/// The result of [`LinearFit::finish`].
#[derive(Debug)]
pub struct LinearWeights {
    /// The autoencoder's dimensions.
    pub config: AutoencoderConfig,
    /// Its weights, fp32, by their names in a file.
    pub tensors: Vec<(String, Tensor)>,
    /// Share of the variance that the components explain, for the first frame and for the others.
    pub kept: [f64; 2],
}

impl LinearFit {
    /// For squares of `step` pixels.
    pub fn new(step: i64) -> Result<Self, Error> {
        let sums = |frames: i64| -> Result<Sums, Error> {
            let (numbers, options) = (frames * 3 * step * step, (Kind::Double, Device::Cpu));
            Ok(Sums {
                blocks: 0.0,
                sum: Tensor::f_zeros([numbers], options)?,
                outer_products: Tensor::f_zeros([numbers, numbers], options)?,
            })
        };
        Ok(Self {
            step,
            sums: [sums(PARTS[0].1)?, sums(PARTS[1].1)?],
        })
    }

    /// Adds a clip `[4 n + 1, 3, height, width]` with values from −1 to 1.
    ///
    /// # Errors
    /// If the picture size is not a multiple of the squares, or memory runs out.
    pub fn push(&mut self, pixels: &Tensor) -> Result<(), Error> {
        let (frames, _, height, width) = pixels.size4()?;
        if height % self.step != 0 || width % self.step != 0 {
            return Err(Error::Invalid(format!(
                "pictures of {width} × {height} pixels: this autoencoder needs multiples of {}",
                self.step
            )));
        }
        let (mut start, mut kind) = (0, 0);
        while start < frames {
            let (_, length) = PARTS[kind];
            let length = length.min(frames - start);
            if length == PARTS[kind].1 {
                let rows = blocks(&pixels.f_narrow(0, start, length)?, self.step)?;
                let rows = rows.f_to_kind(Kind::Double)?;
                let sums = &mut self.sums[kind];
                sums.blocks += rows.size()[0] as f64;
                let total = rows.f_sum_dim_intlist([0].as_slice(), false, Kind::Double)?;
                sums.sum = sums.sum.f_add(&total)?;
                let products = rows.f_transpose(0, 1)?.f_matmul(&rows)?;
                sums.outer_products = sums.outer_products.f_add(&products)?;
            }
            start += length;
            kind = 1;
        }
        Ok(())
    }

    /// The autoencoder for all clips added, with `channels` latent channels. If no clip had more than one
    /// frame, the components for four frames repeat those for one.
    ///
    /// # Errors
    /// If there was no clip, all pixels are the same, there are more channels than values in a pixel block,
    /// or memory runs out.
    pub fn finish(self, channels: i64) -> Result<LinearWeights, Error> {
        let most = 3 * self.step * self.step;
        if !(1..=most).contains(&channels) {
            return Err(Error::Invalid(format!(
                "{channels} channels for latents that each represent {most} values"
            )));
        }
        let [first, later] = self.sums;
        let (first, kept_first) = first.components(channels)?;
        let (later, kept_later) = match later.blocks > 0.0 {
            true => later.components(channels)?,
            false => (first.repeated_in_time()?, kept_first),
        };
        let mut tensors = Vec::new();
        for (basis, (part, _)) in [first, later].into_iter().zip(PARTS) {
            for (name, tensor) in [
                ("components", basis.components),
                ("mean", basis.mean),
                ("scales", basis.scales),
            ] {
                let tensor = tensor.f_to_kind(Kind::Float)?.f_contiguous()?;
                tensors.push((format!("{part}.{name}"), tensor));
            }
        }
        Ok(LinearWeights {
            config: AutoencoderConfig::linear(channels, self.step),
            tensors,
            kept: [kept_first, kept_later],
        })
    }
}

impl Sums {
    /// The first `channels` components, and the share of the variance that they explain.
    fn components(self, channels: i64) -> Result<(Basis, f64), Error> {
        let same = || Error::Invalid("the clips are all of one colour".into());
        if self.blocks == 0.0 {
            return Err(same());
        }
        let mean = self.sum.f_div_scalar(self.blocks)?;
        let covariance = self
            .outer_products
            .f_div_scalar(self.blocks)?
            .f_sub(&mean.f_outer(&mean)?)?;
        // In ascending order.
        let (variances, vectors) = covariance.f_linalg_eigh("L")?;
        let variances = variances.f_flip([0])?.f_clamp_min(0.0)?;
        let kept = variances.f_narrow(0, 0, channels)?;
        let total = variances.f_sum(Kind::Double)?.f_double_value(&[])?;
        let largest = kept.f_double_value(&[0])?.sqrt();
        if largest < 1e-6 {
            return Err(same());
        }
        let share = kept.f_sum(Kind::Double)?.f_double_value(&[])? / total;
        let components = vectors.f_transpose(0, 1)?.f_flip([0])?;
        let deviations = kept.f_sqrt()?.f_clamp_min(LEAST * largest)?;
        // Latents have a standard deviation of 1 over all channels.
        let mean_deviation = deviations.f_mean(Kind::Double)?;
        let basis = Basis {
            components: components.f_narrow(0, 0, channels)?,
            mean,
            scales: deviations.f_mul(&mean_deviation)?.f_sqrt()?,
            frames: 0,
        };
        Ok((basis, share))
    }
}

impl Basis {
    /// The components for four identical frames.
    fn repeated_in_time(&self) -> Result<Self, Error> {
        // Unit rows again: four times the elements, half the magnitude.
        let components = self.components.f_repeat([1, FRAMES_PER_LATENT])?;
        Ok(Self {
            components: components.f_div_scalar((FRAMES_PER_LATENT as f64).sqrt())?,
            mean: self.mean.f_repeat([FRAMES_PER_LATENT])?,
            scales: self
                .scales
                .f_mul_scalar((FRAMES_PER_LATENT as f64).sqrt())?,
            frames: FRAMES_PER_LATENT,
        })
    }
}

#[cfg(test)]
mod tests {
    use placement::{Placer, Policy};

    use super::super::Autoencoder;
    use super::*;
    use crate::Parameters;
    use crate::formats::{SafetensorsFile, write_tensors};
    use crate::model::{Base, FileWeights};

    /// Grey clips of three patterns in changing shares, each moving in its own way.
    fn clip(seed: i64, frames: i64) -> Tensor {
        tch::manual_seed(seed);
        let options = (Kind::Float, Device::Cpu);
        let shares = Tensor::rand([frames, 3], options) - 0.5;
        let columns = Tensor::arange(12, options);
        let rows = Tensor::arange(8, options).unsqueeze(1);
        let patterns = [
            (&rows + &columns).cos(),
            (&rows * 0.3).sin() + &columns * 0.0,
            (&columns * 0.7).cos() + &rows * 0.0,
        ];
        let patterns = Tensor::stack(&patterns, 0).view([3, -1]);
        let grey = shares.matmul(&patterns).view([frames, 1, 8, 12]);
        grey.repeat([1, 3, 1, 1]) * 0.6
    }

    fn built(weights: &LinearWeights) -> Autoencoder {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("x.safetensors");
        let list: Vec<_> = weights
            .tensors
            .iter()
            .map(|(name, tensor)| (name.clone(), tensor))
            .collect();
        write_tensors(&path, &list).unwrap();
        let config = folder.path().join("config.json");
        std::fs::write(&config, weights.config.linear_json().to_string()).unwrap();
        let read = AutoencoderConfig::read(&config).unwrap();
        assert_eq!(read, weights.config);
        let file = SafetensorsFile::open(&path).unwrap();
        let mut placer = Placer::new(Device::Cpu, Policy::default()).unwrap();
        let mut source = FileWeights::new(&file, Kind::Float, &mut placer);
        let mut parameters = Parameters::default();
        let base = Base::Frozen(Kind::Float);
        let mut builder = Builder::new(&mut source, &mut parameters, Kind::Float, base);
        Autoencoder::new(&read, Device::Cpu, &mut builder).unwrap()
    }

    #[test]
    fn what_the_components_can_say_comes_back_and_latents_are_of_one_size() {
        let mut fit = LinearFit::new(4).unwrap();
        for seed in 0..40 {
            fit.push(&clip(seed, 9)).unwrap();
        }
        // Each wave has two degrees of freedom in a block (amplitude and phase): six for a frame, and 24 for
        // four.
        let weights = fit.finish(24).unwrap();
        assert!(weights.kept.iter().all(|share| *share > 0.9999));
        let autoencoder = built(&weights);
        let unseen = clip(1000, 13);
        let latents = autoencoder.encode(&unseen, None).unwrap();
        assert_eq!(latents.size(), [24, 4, 2, 3]);
        let back = autoencoder.decode(&latents, None).unwrap();
        assert_eq!(back.size(), unseen.size());
        let apart = (back - &unseen).abs().max().double_value(&[]);
        assert!(apart < 2e-3, "{apart}");
        let mut first = Vec::new();
        for seed in 0..40 {
            let latents = autoencoder.encode(&clip(seed, 9), None).unwrap();
            first.push(latents);
        }
        let all = Tensor::stack(&first, 0);
        let deviation = |of: &Tensor| of.std(false).double_value(&[]);
        // Four frames use all channels; for one frame most channels are unused.
        let later = deviation(&all.narrow(2, 1, 2));
        assert!((later - 1.0).abs() < 0.1, "{later}");
        let (largest, smallest) = (deviation(&all.select(1, 0)), deviation(&all.select(1, 23)));
        assert!(largest > 1.5 && smallest < 0.7, "{largest} {smallest}");
    }

    #[test]
    fn fewer_channels_lose_what_differs_least() {
        let fitted = |channels| {
            let mut fit = LinearFit::new(4).unwrap();
            for seed in 0..20 {
                fit.push(&clip(seed, 5)).unwrap();
            }
            let autoencoder = built(&fit.finish(channels).unwrap());
            let unseen = clip(99, 5);
            let latents = autoencoder.encode(&unseen, None).unwrap();
            let back = autoencoder.decode(&latents, None).unwrap();
            (back - unseen).square().mean(Kind::Float).double_value(&[])
        };
        let losses = [1, 2, 4].map(fitted);
        assert!(losses[0] > losses[1] && losses[1] > losses[2], "{losses:?}");
    }

    #[test]
    fn pictures_alone_make_an_autoencoder_of_clips_that_stand_still() {
        let mut fit = LinearFit::new(4).unwrap();
        for seed in 0..20 {
            fit.push(&clip(seed, 1)).unwrap();
        }
        let autoencoder = built(&fit.finish(8).unwrap());
        let still = clip(7, 1).repeat([5, 1, 1, 1]);
        let latents = autoencoder.encode(&still, None).unwrap();
        let back = autoencoder.decode(&latents, None).unwrap();
        let apart = (back - still).abs().max().double_value(&[]);
        assert!(apart < 2e-3, "{apart}");
    }

    #[test]
    fn what_cannot_be_fitted_is_refused() {
        let refused = |fit: LinearFit, channels| fit.finish(channels).unwrap_err().to_string();
        let empty = LinearFit::new(4).unwrap();
        assert!(refused(empty, 4).contains("of one colour"));
        let mut black = LinearFit::new(4).unwrap();
        black.push(&(clip(1, 5) * 0.0)).unwrap();
        assert!(refused(black, 4).contains("of one colour"));
        let mut fit = LinearFit::new(4).unwrap();
        fit.push(&clip(1, 5)).unwrap();
        assert!(refused(fit, 49).contains("49 channels"));
        let wrong = LinearFit::new(3).unwrap().push(&clip(1, 5)).unwrap_err();
        assert!(wrong.to_string().contains("multiples of 3"));
    }
}
