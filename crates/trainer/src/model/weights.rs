//! Where a model's tensors come from.

use placement::Placer;
use tch::{Device, Kind, Tensor};

use crate::Error;
use crate::weights::{TensorSource, WeightsError};

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

/// The weights of a published model.
pub struct FileWeights<'a> {
    tensors: &'a dyn TensorSource,
    placer: &'a mut Placer,
    kind: Kind,
}

impl<'a> FileWeights<'a> {
    /// The weights of `tensors`, read as `kind` and moved to their device by `placer`.
    pub fn new(tensors: &'a dyn TensorSource, kind: Kind, placer: &'a mut Placer) -> Self {
        Self {
            tensors,
            placer,
            kind,
        }
    }
}

impl WeightSource for FileWeights<'_> {
    fn tensor(&mut self, name: &str, shape: &[i64], _initial: Initial) -> Result<Tensor, Error> {
        let path = self.tensors.path();
        match self.tensors.shape(name) {
            Some(found) if found == shape => {}
            Some(found) => {
                let reason = format!("`{name}` is {found:?}, and its config makes it {shape:?}");
                return Err(WeightsError::file(path, reason).into());
            }
            None => {
                let reason = format!("there is no `{name}`, which its config asks for");
                return Err(WeightsError::file(path, reason).into());
            }
        }
        let tensor = self.tensors.read(name, self.kind)?;
        Ok(self.placer.weight(name, &tensor, None)?)
    }
}

/// Fresh weights. The same seed gives the same weights on every device, because
/// they are drawn on the CPU.
pub struct RandomWeights<'a> {
    placer: &'a mut Placer,
}

impl<'a> RandomWeights<'a> {
    /// Weights drawn from `seed`, moved to their device by `placer`.
    pub fn new(seed: u64, placer: &'a mut Placer) -> Self {
        tch::manual_seed(seed as i64);
        Self { placer }
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
        Ok(self.placer.weight(name, &tensor, None)?)
    }
}
