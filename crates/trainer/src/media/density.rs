//! How noise levels are drawn: a distribution, shifted, and restricted to a range.
//!
//! A level is the inverse distribution function at a uniform random number, so restricting it to a range
//! needs no rejection sampling.

use tch::{Kind, Tensor};

use crate::Error;
use crate::config::{TrainConfig, WeightingScheme};

/// The distribution of noise levels.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Density {
    scheme: Scheme,
    shift: f64,
    /// The range of uniform numbers that gives levels within the range.
    from: f64,
    to: f64,
    /// The range of levels.
    low: f64,
    high: f64,
}

#[derive(Debug, Clone, Copy)]
enum Scheme {
    Uniform,
    LogitNormal { mean: f64, deviation: f64 },
    InvertedParabola,
}

/// The density of an inverted parabola at a level is in proportion to 2 − 7.7 · (level − ½)².
const CURVATURE: f64 = 7.7;

impl Scheme {
    /// The level, before the shift, below which the share `p` of all levels lies.
    fn level(self, p: f64) -> Result<f64, Error> {
        Ok(match self {
            Self::Uniform => p,
            Self::LogitNormal { mean, deviation } => {
                let p = Tensor::f_from_slice(&[p])?.f_clamp(1e-15, 1.0 - 1e-15)?;
                let normal = f64::try_from(&p.f_special_ndtri()?)?;
                1.0 / (1.0 + (-(mean + deviation * normal)).exp())
            }
            Self::InvertedParabola => {
                let (mut low, mut high) = (0.0, 1.0);
                // To the last bit.
                for _ in 0..60 {
                    let middle = 0.5 * (low + high);
                    match self.share(middle)? < p {
                        true => low = middle,
                        false => high = middle,
                    }
                }
                high
            }
        })
    }

    /// The inverse of [`Scheme::level`].
    fn share(self, level: f64) -> Result<f64, Error> {
        Ok(match self {
            Self::Uniform => level,
            Self::LogitNormal { mean, deviation } => {
                let odds = (level / (1.0 - level)).ln();
                let normal = Tensor::f_from_slice(&[(odds - mean) / deviation])?;
                f64::try_from(&normal.f_to_kind(Kind::Double)?.f_special_ndtr()?)?
            }
            Self::InvertedParabola => {
                // From 0, and from the middle.
                let below = |level: f64| {
                    let middle = level - 0.5;
                    2.0 * level - CURVATURE / 3.0 * (middle.powi(3) + 0.125)
                };
                below(level) / below(1.0)
            }
        })
    }
}

impl Density {
    /// The distribution in `train`, restricted to levels from `low` to `high`. `usual` is the shift of models of this
    /// kind if the config says nothing.
    ///
    /// # Errors
    /// If libtorch cannot compute it.
    pub(crate) fn new(
        train: &TrainConfig,
        usual: f64,
        (low, high): (f64, f64),
    ) -> Result<Self, Error> {
        let weighting = train.weighting_scheme.unwrap_or(WeightingScheme::Shift);
        let scheme = match weighting {
            WeightingScheme::Uniform | WeightingScheme::Shift => Scheme::Uniform,
            WeightingScheme::LogitNormal => Scheme::LogitNormal {
                mean: train.logit_mean.unwrap_or(0.0),
                deviation: train.logit_std.unwrap_or(1.0),
            },
            WeightingScheme::InvertedParabola => Scheme::InvertedParabola,
        };
        let unset = match weighting {
            WeightingScheme::Shift => usual,
            _ => 1.0,
        };
        let shift = train.flow_shift.unwrap_or(unset);
        // The inverse of the shift.
        let before = |sigma: f64| sigma / (shift - (shift - 1.0) * sigma);
        Ok(Self {
            scheme,
            shift,
            from: scheme.share(before(low))?,
            to: scheme.share(before(high))?,
            low,
            high,
        })
    }

    /// The level for a uniform number in `[0, 1)`.
    pub(crate) fn sigma(&self, uniform: f64) -> Result<f64, Error> {
        let level = self
            .scheme
            .level(self.from + uniform * (self.to - self.from))?;
        let sigma = self.shift * level / (1.0 + (self.shift - 1.0) * level);
        Ok(sigma.clamp(self.low, self.high))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Evaluated on a fine grid of uniform numbers.
    fn drawn(train: &TrainConfig, low: f64, high: f64) -> Vec<f64> {
        let density = Density::new(train, 5.0, (low, high)).unwrap();
        let grid = (0..2000).map(|index| (f64::from(index) + 0.5) / 2000.0);
        let mut levels: Vec<f64> = grid.map(|u| density.sigma(u).unwrap()).collect();
        levels.sort_by(f64::total_cmp);
        levels
    }

    fn train(scheme: WeightingScheme) -> TrainConfig {
        TrainConfig {
            weighting_scheme: Some(scheme),
            ..TrainConfig::default()
        }
    }

    #[test]
    fn medians_are_those_of_the_formulas() {
        let median = |train: &TrainConfig| drawn(train, 0.0, 1.0)[1000];
        let close = |value: f64, wanted: f64| assert!((value - wanted).abs() < 2e-3, "{value}");
        close(median(&train(WeightingScheme::Uniform)), 0.5);
        close(median(&train(WeightingScheme::Shift)), 5.0 * 0.5 / 3.0);
        let normal = TrainConfig {
            logit_mean: Some(1.0),
            logit_std: Some(0.5),
            flow_shift: Some(3.0),
            ..train(WeightingScheme::LogitNormal)
        };
        let level = 1.0 / (1.0 + (-1.0f64).exp());
        close(median(&normal), 3.0 * level / (1.0 + 2.0 * level));
    }

    /// As many levels are in each tenth as a sum over the density gives, which others draw from by a table.
    #[test]
    fn an_inverted_parabola_has_its_density() {
        let levels = drawn(&train(WeightingScheme::InvertedParabola), 0.0, 1.0);
        let density = |level: f64| 2.0 - 7.7 * (level - 0.5).powi(2);
        let table: Vec<f64> = (0..1000)
            .map(|at| density((f64::from(at) + 0.5) / 1000.0))
            .collect();
        let all: f64 = table.iter().sum();
        for (tenth, part) in table.chunks(100).enumerate() {
            let range = tenth as f64 / 10.0..(tenth + 1) as f64 / 10.0;
            let found = levels.iter().filter(|level| range.contains(*level)).count() as f64;
            let wanted = 2000.0 * part.iter().sum::<f64>() / all;
            assert!(
                (found - wanted).abs() <= 1.0,
                "{range:?}: {found} and {wanted}"
            );
        }
    }

    #[test]
    fn a_range_is_what_drawing_again_would_give() {
        use WeightingScheme::{InvertedParabola, LogitNormal, Shift, Uniform};
        for scheme in [Uniform, Shift, LogitNormal, InvertedParabola] {
            let train = train(scheme);
            let all = drawn(&train, 0.0, 1.0);
            let kept: Vec<f64> = all.into_iter().filter(|s| (0.3..0.8).contains(s)).collect();
            let ranged = drawn(&train, 0.3, 0.8);
            assert!(ranged.iter().all(|s| (0.3..=0.8).contains(s)));
            for share in [0.1, 0.5, 0.9] {
                let at = |list: &[f64]| list[(share * list.len() as f64) as usize];
                let (one, other) = (at(&kept), at(&ranged));
                assert!((one - other).abs() < 5e-3, "{scheme:?}: {one} {other}");
            }
        }
    }
}
