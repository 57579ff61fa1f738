//! An exponential moving average of the weights.
//!
//! Averaged weights generalise better than the last ones while the learning rate is still high (Polyak and
//! Juditsky, 1992). The averaging window starts short and grows, as in diffusers: the decay is `min(decay, (1
//! + n) / (10 + n))` after `n` steps, so the initial weights are soon forgotten.

use std::ops::Range;

use tch::Tensor;

use crate::Error;
use crate::config::Config;
use models::Parameters;

/// The average of each parameter.
#[derive(Debug)]
pub struct Ema {
    decay: f64,
    averages: Vec<Tensor>,
}

impl Ema {
    /// An average initialised with the current parameters.
    pub fn new(decay: f64, parameters: &Parameters) -> Result<Self, Error> {
        let averages = parameters
            .tensors()
            .map(copy_of)
            .collect::<Result<_, _>>()?;
        Ok(Self { decay, averages })
    }

    /// The average configured in `config`, if any.
    pub fn from_config(config: &Config, parameters: &Parameters) -> Result<Option<Self>, Error> {
        let decay = config.train.ema_decay;
        decay.map(|decay| Self::new(decay, parameters)).transpose()
    }

    /// Adds the parameters in `range` after their `steps` steps.
    pub fn update(
        &mut self,
        parameters: &Parameters,
        range: Range<usize>,
        steps: u64,
    ) -> Result<(), Error> {
        let _no_grad = tch::no_grad_guard();
        let steps = steps as f64;
        let decay = self.decay.min((1.0 + steps) / (10.0 + steps));
        let both = self.averages.iter_mut().zip(parameters.tensors());
        for (average, tensor) in both.skip(range.start).take(range.len()) {
            let _ = average.f_lerp_(&tensor.f_detach()?, 1.0 - decay)?;
        }
        Ok(())
    }

    /// Swaps the parameters with their averages, so that the model has the averages until this is called
    /// again.
    pub fn swap(&mut self, parameters: &Parameters) -> Result<(), Error> {
        let _no_grad = tch::no_grad_guard();
        for (average, tensor) in self.averages.iter_mut().zip(parameters.tensors()) {
            let last = copy_of(tensor)?;
            tensor.f_detach()?.f_copy_(average)?;
            *average = last;
        }
        Ok(())
    }

    /// The averages by name, for a checkpoint: `ema.<parameter>`.
    pub fn state<'a>(&'a self, parameters: &Parameters) -> Vec<(String, &'a Tensor)> {
        let names = parameters
            .iter()
            .map(|parameter| format!("ema.{}", parameter.name));
        names.zip(&self.averages).collect()
    }
}

/// The numbers of a tensor, in memory of their own.
pub(super) fn copy_of(tensor: &Tensor) -> Result<Tensor, Error> {
    let source = tensor.f_detach()?;
    let mut copy = source.f_empty_like()?;
    copy.f_copy_(&source)?;
    Ok(copy)
}

#[cfg(test)]
mod tests {
    use tch::{Device, Kind};

    use super::*;

    fn value(parameters: &Parameters) -> f64 {
        parameters.tensors().next().unwrap().double_value(&[0])
    }

    #[test]
    fn an_average_starts_short_and_lengthens_to_its_decay() {
        let mut parameters = Parameters::default();
        let tensor = Tensor::zeros([1], (Kind::Float, Device::Cpu));
        let tensor = parameters.register("w", &tensor, true).unwrap();
        let mut ema = Ema::new(0.9, &parameters).unwrap();
        let _ = tensor.detach().fill_(1.0);
        // (1 + 0) / (10 + 0): nine tenths of the way at once.
        ema.update(&parameters, 0..1, 0).unwrap();
        assert!((ema.averages[0].double_value(&[0]) - 0.9).abs() < 1e-6);
        // Long after, a tenth of what is left.
        ema.update(&parameters, 0..1, 1_000_000).unwrap();
        assert!((ema.averages[0].double_value(&[0]) - 0.91).abs() < 1e-6);
        ema.swap(&parameters).unwrap();
        assert!((value(&parameters) - 0.91).abs() < 1e-6);
        assert_eq!(ema.averages[0].double_value(&[0]), 1.0);
        ema.swap(&parameters).unwrap();
        assert_eq!(value(&parameters), 1.0);
    }
}
