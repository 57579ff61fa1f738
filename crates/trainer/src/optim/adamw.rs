//! AdamW (Loshchilov and Hutter, 2019) with a state that can be saved.
//!
//! The arithmetic is libtorch's fused kernel, one call for each group of parameters;
//! here is what surrounds it: the groups, the state and its names.

use tch::{Kind, Tensor};
use torch_ext::AdamWState;

use super::gradients::Gradients;
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
    /// Parameters with weight decay, and those without.
    groups: [Group; 2],
    steps: u64,
}

/// Parameters that are treated alike, as the parallel lists the kernel takes.
#[derive(Debug, Default)]
struct Group {
    weight_decay: f64,
    /// Positions in [`Parameters`].
    indices: Vec<usize>,
    parameters: Vec<Tensor>,
    averages: Vec<Tensor>,
    squares: Vec<Tensor>,
    /// Steps taken: a float32 scalar beside each parameter.
    steps: Vec<Tensor>,
}

impl AdamW {
    /// An optimizer that has taken no step yet.
    ///
    /// # Errors
    /// When memory runs out.
    pub fn new(settings: AdamWSettings, parameters: &Parameters) -> Result<Self, Error> {
        let mut decayed = Group {
            weight_decay: settings.weight_decay,
            ..Group::default()
        };
        let mut plain = Group::default();
        for (index, parameter) in parameters.iter().enumerate() {
            let group = if parameter.decay {
                &mut decayed
            } else {
                &mut plain
            };
            group.add(index, &parameter.tensor)?;
        }
        Ok(Self {
            settings,
            groups: [decayed, plain],
            steps: 0,
        })
    }

    /// Updates the parameters in place. Gradients whose norm is above `max_grad_norm` are
    /// first scaled down to it; 0 leaves them. Returns the norm before that, a scalar on the
    /// device.
    ///
    /// # Errors
    /// When gradients do not fit the parameters, or memory runs out.
    pub fn step(
        &mut self,
        gradients: &Gradients,
        learning_rate: f64,
        max_grad_norm: f64,
    ) -> Result<Tensor, Error> {
        let norm = if max_grad_norm > 0.0 {
            torch_ext::optimizer::clip_norm(gradients.tensors(), max_grad_norm)?
        } else {
            torch_ext::optimizer::total_norm(gradients.tensors())?
        };
        let AdamWSettings {
            beta1,
            beta2,
            epsilon,
            ..
        } = self.settings;
        for group in &self.groups {
            let weight_decay = group.weight_decay;
            let options = torch_ext::AdamW {
                learning_rate,
                beta1,
                beta2,
                weight_decay,
                epsilon,
            };
            let gradients: Vec<Tensor> = group
                .indices
                .iter()
                .map(|index| gradients.tensors()[*index].shallow_clone())
                .collect();
            let state = AdamWState {
                parameters: &group.parameters,
                gradients: &gradients,
                averages: &group.averages,
                squares: &group.squares,
                steps: &group.steps,
            };
            torch_ext::fused_adamw(&options, state)?;
        }
        self.steps += 1;
        Ok(norm)
    }

    /// Steps taken.
    pub fn steps(&self) -> u64 {
        self.steps
    }

    /// Declares that the state, filled in place, is that after `steps` steps.
    ///
    /// # Errors
    /// When the device fails.
    pub fn set_steps(&mut self, steps: u64) -> Result<(), Error> {
        self.steps = steps;
        for counter in self.groups.iter_mut().flat_map(|group| &mut group.steps) {
            // Exact up to 2^24 steps, which is the kernel's own limit.
            let _ = counter.f_fill_(steps as f64)?;
        }
        Ok(())
    }

    /// The state by name: `exp_avg.<parameter>` and `exp_avg_sq.<parameter>`, as in PyTorch.
    pub fn state<'a>(&'a self, parameters: &Parameters) -> Vec<(String, &'a Tensor)> {
        let names: Vec<&str> = parameters
            .iter()
            .map(|parameter| &*parameter.name)
            .collect();
        let mut state = Vec::with_capacity(2 * names.len());
        for group in &self.groups {
            let moments = group.averages.iter().zip(&group.squares);
            for (index, (average, square)) in group.indices.iter().zip(moments) {
                state.push((format!("exp_avg.{}", names[*index]), average));
                state.push((format!("exp_avg_sq.{}", names[*index]), square));
            }
        }
        state
    }
}

impl Group {
    fn add(&mut self, index: usize, parameter: &Tensor) -> Result<(), Error> {
        let zeros = || parameter.f_detach()?.f_zeros_like();
        self.indices.push(index);
        self.averages.push(zeros()?);
        self.squares.push(zeros()?);
        self.steps
            .push(Tensor::f_zeros([], (Kind::Float, parameter.device()))?);
        self.parameters.push(parameter.shallow_clone());
        Ok(())
    }
}
