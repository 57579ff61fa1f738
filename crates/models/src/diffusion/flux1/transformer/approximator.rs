//! The network that makes the vectors by which the blocks of Chroma and its last norm are modulated, where FLUX.1 has a layer
//! in each. It makes each vector of the time and of the vector's number.
//!
//! ```text
//! sines of the time, of a guidance of 0, of the number ─▶ linear ─▶ ┌ norm ─▶ linear ─▶ SiLU ─▶ linear ─▶ + ┐ ─▶ linear
//!                                                                   └─────────────── × layers ──────────────┘
//! ```
//!
//! Since all blocks depend on it, it is never quantised, and what its layers are added to is in fp32.

use tch::{Kind, Tensor};

use crate::Error;
use crate::diffusion::flux1::names::APPROXIMATOR as NAME;
use crate::diffusion::objective::TRAIN_STEPS;
use crate::diffusion::parts::time::sinusoids;
use crate::model::layers::{Linear, RmsNorm};
use crate::model::{Builder, Initial};
use crate::tensor::to_kind;

/// Added to mean squares: what PyTorch adds where nothing is said.
const EPSILON: f64 = f32::EPSILON as f64;

/// Its dimensions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ApproximatorSizes {
    /// Sines and cosines: a quarter of the time, a quarter of the guidance, half of the number.
    pub channels: i64,
    /// Width inside.
    pub hidden: i64,
    /// Number of layers.
    pub layers: i64,
}

/// The network.
#[derive(Debug)]
pub(super) struct Approximator {
    input: Linear,
    layers: Vec<(RmsNorm, [Linear; 2])>,
    output: Linear,
    channels: i64,
    vectors: i64,
}

impl Approximator {
    /// One that makes so many `vectors` of this `width`.
    pub(super) fn new(
        sizes: ApproximatorSizes,
        (vectors, width): (i64, i64),
        builder: &mut Builder,
    ) -> Result<Self, Error> {
        let (channels, hidden) = (sizes.channels, sizes.hidden);
        let linear = |name: &str, shape, builder: &mut Builder| {
            let name = format!("{NAME}.{name}");
            builder.unquantized(&name, shape, true, Initial::Normal(0.02))
        };
        let input = linear("in_proj", (channels, hidden), builder)?;
        let layers = (0..sizes.layers).map(|number| {
            let norm = format!("{NAME}.norms.{number}");
            let norm = builder.norm(&norm, hidden, EPSILON)?;
            let mut inner = |part: &str| {
                let name = format!("layers.{number}.{part}");
                linear(&name, (hidden, hidden), builder)
            };
            Ok((norm, [inner("linear_1")?, inner("linear_2")?]))
        });
        let layers = layers.collect::<Result<Vec<_>, Error>>()?;
        Ok(Self {
            input,
            layers,
            output: linear("out_proj", (hidden, width), builder)?,
            channels,
            vectors,
        })
    }

    /// All vectors at `times` `[batch]` fp32: `[batch, vectors, width]` fp32.
    pub(super) fn forward(&self, times: &Tensor, dropout: bool) -> Result<Tensor, Error> {
        let quarter = self.channels / 4;
        let of_time = sinusoids(times, quarter)?;
        let of_guidance = sinusoids(&times.f_zeros_like()?, quarter)?;
        let of_both = Tensor::f_cat(&[of_time, of_guidance], 1)?;
        let numbers = Tensor::f_arange(self.vectors, (Kind::Float, times.device()))?;
        let of_number = sinusoids(&numbers.f_mul_scalar(TRAIN_STEPS)?, 2 * quarter)?;
        let sizes = [times.size1()?, self.vectors, 2 * quarter];
        let parts = [
            of_both.f_unsqueeze(1)?.f_expand(sizes, false)?,
            of_number.f_unsqueeze(0)?.f_expand(sizes, false)?,
        ];
        let stream = self.input.forward(&Tensor::f_cat(&parts, 2)?, dropout)?;
        let mut stream = to_kind(&stream, Kind::Float)?;
        for (norm, [first, second]) in &self.layers {
            let inner = first.forward(&norm.forward(&stream)?, dropout)?.f_silu()?;
            stream = stream.f_add(&second.forward(&inner, dropout)?)?;
        }
        to_kind(&self.output.forward(&stream, dropout)?, Kind::Float)
    }
}
