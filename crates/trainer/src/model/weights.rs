//! Where a model's tensors come from.

use tch::{Device, Kind, Tensor};

use crate::Error;
use crate::placing::Placing;

/// How a tensor starts when there is nothing to load.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Initial {
    /// Normally distributed around zero, with this standard deviation.
    Normal(f64),
    /// All ones, as norms start.
    Ones,
    /// All zeros, as biases start.
    Zeros,
}

/// Gives a model its tensors, on their device.
pub trait WeightSource {
    /// The tensor called `name`, of exactly `shape`.
    ///
    /// # Errors
    /// When there is no such tensor or its shape differs.
    fn tensor(&mut self, name: &str, shape: &[i64], initial: Initial) -> Result<Tensor, Error>;
}

/// Fresh weights. The same seed gives the same weights on every device, because
/// they are drawn on the CPU.
pub struct RandomWeights<'a> {
    placing: &'a mut Placing,
}

impl<'a> RandomWeights<'a> {
    /// Weights drawn from `seed`, moved to their device by `placing`.
    pub fn new(seed: u64, placing: &'a mut Placing) -> Self {
        tch::manual_seed(seed as i64);
        Self { placing }
    }
}

impl WeightSource for RandomWeights<'_> {
    fn tensor(&mut self, name: &str, shape: &[i64], initial: Initial) -> Result<Tensor, Error> {
        let options = (Kind::Float, Device::Cpu);
        let tensor = match initial {
            Initial::Normal(deviation) => {
                Tensor::f_randn(shape, options)?.f_mul_scalar(deviation)?
            }
            Initial::Ones => Tensor::f_ones(shape, options)?,
            Initial::Zeros => Tensor::f_zeros(shape, options)?,
        };
        self.placing.tensor(name, &tensor)
    }
}
