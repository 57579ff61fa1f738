//! AdamW (Loshchilov and Hutter, 2019) on tensors, with a state that can be saved.

use tch::{Tensor, no_grad};

use super::gradients::{Gradients, clip_divisor};
use crate::Error;
use crate::config::TrainConfig;
use crate::model::Parameters;

/// The numbers of AdamW besides the learning rate.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct AdamWSettings {
    /// Decay of the running mean of the gradient.
    pub beta1: f64,
    /// Decay of the running mean of its square.
    pub beta2: f64,
    /// Added to the root of the second moment.
    pub epsilon: f64,
    /// Decoupled weight decay, for the parameters that have it.
    pub weight_decay: f64,
}

impl From<&TrainConfig> for AdamWSettings {
    fn from(config: &TrainConfig) -> Self {
        Self {
            beta1: config.adam_beta1,
            beta2: config.adam_beta2,
            epsilon: config.adam_epsilon,
            weight_decay: config.weight_decay,
        }
    }
}

/// The optimizer and its state: two moments for each parameter, and the steps taken.
#[derive(Debug)]
pub struct AdamW {
    settings: AdamWSettings,
    first: Vec<Tensor>,
    second: Vec<Tensor>,
    steps: u64,
}

impl AdamW {
    /// An optimizer that has taken no step yet.
    ///
    /// # Errors
    /// When memory runs out.
    pub fn new(settings: AdamWSettings, parameters: &Parameters) -> Result<Self, Error> {
        let zeros = || -> Result<Vec<Tensor>, Error> {
            Ok(parameters
                .tensors()
                .map(|tensor| tensor.f_detach()?.f_zeros_like())
                .collect::<Result<_, _>>()?)
        };
        Ok(Self {
            settings,
            first: zeros()?,
            second: zeros()?,
            steps: 0,
        })
    }

    /// Updates the parameters in place. Gradients whose norm is above `max_grad_norm` are
    /// scaled down to it; 0 leaves them. Returns the norm before that, on the device.
    ///
    /// # Errors
    /// When memory runs out.
    pub fn step(
        &mut self,
        parameters: &Parameters,
        gradients: &Gradients,
        learning_rate: f64,
        max_grad_norm: f64,
    ) -> Result<Tensor, Error> {
        let norm = gradients.norm()?;
        let divisor = if max_grad_norm > 0.0 {
            Some(clip_divisor(&norm, max_grad_norm)?)
        } else {
            None
        };
        self.steps += 1;
        no_grad(|| self.update(parameters, gradients, learning_rate, divisor.as_ref()))?;
        Ok(norm)
    }

    fn update(
        &mut self,
        parameters: &Parameters,
        gradients: &Gradients,
        learning_rate: f64,
        divisor: Option<&Tensor>,
    ) -> Result<(), Error> {
        let AdamWSettings {
            beta1,
            beta2,
            epsilon,
            weight_decay,
        } = self.settings;
        let steps = self.steps as f64;
        let correction1 = 1.0 - beta1.powf(steps);
        let correction2 = 1.0 - beta2.powf(steps);
        let state = self.first.iter_mut().zip(&mut self.second);
        for ((parameter, gradient), (first, second)) in
            parameters.iter().zip(gradients.tensors()).zip(state)
        {
            let gradient = match divisor {
                Some(divisor) => gradient.f_div(divisor)?,
                None => gradient.shallow_clone(),
            };
            let mut value = parameter.tensor.f_detach()?;
            if parameter.decay && weight_decay != 0.0 {
                let _ = value.f_mul_scalar_(1.0 - learning_rate * weight_decay)?;
            }
            let _ = first.f_lerp_(&gradient, 1.0 - beta1)?;
            let squared = gradient.f_square()?.f_mul_scalar(1.0 - beta2)?;
            let _ = second.f_mul_scalar_(beta2)?.f_add_(&squared)?;
            let root = second.f_sqrt()?.f_div_scalar(correction2.sqrt())?;
            let change = first.f_div(&root.f_add_scalar(epsilon)?)?;
            let _ = value.f_sub_(&change.f_mul_scalar(learning_rate / correction1)?)?;
        }
        Ok(())
    }

    /// Steps taken.
    pub fn steps(&self) -> u64 {
        self.steps
    }

    /// The state by name: `exp_avg.<parameter>` and `exp_avg_sq.<parameter>`, as in PyTorch.
    pub fn state<'a>(&'a self, parameters: &'a Parameters) -> Vec<(String, &'a Tensor)> {
        let named = |prefix: &'static str, tensors: &'a [Tensor]| {
            parameters
                .iter()
                .zip(tensors)
                .map(move |(parameter, tensor)| (format!("{prefix}.{}", parameter.name), tensor))
        };
        named("exp_avg", &self.first)
            .chain(named("exp_avg_sq", &self.second))
            .collect()
    }

    /// Declares that the state, filled in place, is that after `steps` steps.
    pub fn set_steps(&mut self, steps: u64) {
        self.steps = steps;
    }
}
