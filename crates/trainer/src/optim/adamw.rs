//! AdamW (Loshchilov and Hutter, 2019) with a state that can be saved.
//!
//! The arithmetic is libtorch's fused kernel, one call for each group of parameters;
//! here is what surrounds it: the groups, the state and its names.

use tch::{Kind, Tensor};
use torch_ext::AdamWState;

use super::gradients::Gradients;
use super::groups::{Treatment, alike};
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
    groups: Vec<Group>,
    steps: u64,
}

/// Parameters that are treated alike, as the parallel lists the kernel takes.
#[derive(Debug)]
struct Group {
    treatment: Treatment,
    /// Positions in [`Parameters`].
    indices: Vec<usize>,
    parameters: Vec<Tensor>,
    averages: Vec<Tensor>,
    squares: Vec<Tensor>,
    /// Steps taken: a float32 scalar beside each parameter.
    steps: Vec<Tensor>,
}

impl AdamW {
    /// An optimizer that has taken no step yet, with weight decay where a parameter has it.
    ///
    /// # Errors
    /// When memory runs out.
    pub fn new(settings: AdamWSettings, parameters: &Parameters) -> Result<Self, Error> {
        let treatments = Treatment::usual(settings.weight_decay, parameters);
        Self::with_treatments(settings, &treatments, parameters)
    }

    /// As [`AdamW::new`], with a treatment of its own for each parameter.
    ///
    /// # Errors
    /// When memory runs out.
    pub fn with_treatments(
        settings: AdamWSettings,
        treatments: &[Treatment],
        parameters: &Parameters,
    ) -> Result<Self, Error> {
        let tensors: Vec<&Tensor> = parameters.tensors().collect();
        let groups = alike(treatments)
            .into_iter()
            .map(|(treatment, indices)| Group::new(treatment, indices, &tensors))
            .collect::<Result<_, _>>()?;
        Ok(Self {
            settings,
            groups,
            steps: 0,
        })
    }

    /// Updates the parameters in place.
    ///
    /// # Errors
    /// When gradients do not fit the parameters, or memory runs out.
    pub fn step(&mut self, gradients: &Gradients, learning_rate: f64) -> Result<(), Error> {
        let AdamWSettings {
            beta1,
            beta2,
            epsilon,
            ..
        } = self.settings;
        for group in &self.groups {
            let options = torch_ext::AdamW {
                learning_rate: learning_rate * group.treatment.learning_rate_ratio,
                beta1,
                beta2,
                weight_decay: group.treatment.weight_decay,
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
        Ok(())
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
    fn new(treatment: Treatment, indices: Vec<usize>, all: &[&Tensor]) -> Result<Self, Error> {
        let mut group = Self {
            treatment,
            parameters: Vec::new(),
            averages: Vec::new(),
            squares: Vec::new(),
            steps: Vec::new(),
            indices,
        };
        for index in &group.indices {
            let parameter = all[*index];
            let zeros = || parameter.f_detach()?.f_zeros_like();
            group.averages.push(zeros()?);
            group.squares.push(zeros()?);
            let none = Tensor::f_zeros([], (Kind::Float, parameter.device()))?;
            group.steps.push(none);
            group.parameters.push(parameter.shallow_clone());
        }
        Ok(group)
    }
}
