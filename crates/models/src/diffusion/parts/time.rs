//! The time of a denoiser as a vector.

use tch::{Kind, Tensor};

use crate::Error;
use crate::model::layers::Linear;
use crate::model::{Builder, Initial};
use crate::weight::Weight;

/// Sines of the time, and two linear layers with SiLU or GELU between them; in fp32 whatever the model's types.
#[derive(Debug)]
pub(crate) struct TimeEmbedding {
    layers: [Linear; 2],
    sines: i64,
    /// Whether it is GELU (approximated by tanh).
    is_gelu: bool,
}

impl TimeEmbedding {
    /// Builds the layers `linear_1` and `linear_2` of the module `name`, as [`Self::of_layers`] does.
    pub(crate) fn new(
        name: &str,
        widths: [i64; 3],
        bias: bool,
        builder: &mut Builder,
    ) -> Result<Self, Error> {
        let [first, second] = [1, 2].map(|number| format!("{name}.linear_{number}"));
        Self::of_layers([&first, &second], widths, bias, builder)
    }

    /// Builds the layers with these `names`; `widths` are the number of sines and cosines, that between the layers and
    /// that of the result.
    pub(crate) fn of_layers(
        names: [&str; 2],
        [sines, inner, outputs]: [i64; 3],
        bias: bool,
        builder: &mut Builder,
    ) -> Result<Self, Error> {
        let initial = Initial::Normal(0.02);
        let mut layer = |name: &str, inputs: i64, outputs: i64| -> Result<Linear, Error> {
            let weight = builder.kept(&format!("{name}.weight"), &[outputs, inputs], initial)?;
            Ok(Linear {
                weight: Weight::Dense(weight),
                bias: match bias {
                    true => {
                        Some(builder.kept(&format!("{name}.bias"), &[outputs], Initial::Zeros)?)
                    }
                    false => None,
                },
                compute: Kind::Float,
                adapter: None,
            })
        };
        Ok(Self {
            layers: [
                layer(names[0], sines, inner)?,
                layer(names[1], inner, outputs)?,
            ],
            sines,
            is_gelu: false,
        })
    }

    /// The same with GELU between the layers.
    pub(crate) fn with_gelu(self) -> Self {
        Self {
            is_gelu: true,
            ..self
        }
    }

    /// `times` `[batch]` fp32, on the device of the layers, to `[batch, width]` fp32.
    pub(crate) fn forward(&self, times: &Tensor) -> Result<Tensor, Error> {
        self.of_rows(&sinusoids(times, self.sines)?)
    }

    /// Rows `[batch, sines]` fp32 in place of the sines of times, to `[batch, width]` fp32.
    pub(crate) fn of_rows(&self, rows: &Tensor) -> Result<Tensor, Error> {
        let inner = self.layers[0].forward(rows, false)?;
        let inner = match self.is_gelu {
            true => inner.f_gelu("tanh")?,
            false => inner.f_silu()?,
        };
        self.layers[1].forward(&inner, false)
    }
}

/// Cosines, then sines, of each time at `count / 2` frequencies: `[…, count]` fp32.
pub(crate) fn sinusoids(times: &Tensor, count: i64) -> Result<Tensor, Error> {
    let half = count / 2;
    let exponents = Tensor::f_arange(half, (Kind::Float, times.device()))?
        .f_mul_scalar(-10_000f64.ln())?
        .f_div_scalar(half as f64)?;
    let angles = times.f_unsqueeze(-1)?.f_mul(&exponents.f_exp()?)?;
    Ok(Tensor::f_cat(&[angles.f_cos()?, angles.f_sin()?], -1)?)
}
