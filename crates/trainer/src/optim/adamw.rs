//! AdamW (Loshchilov and Hutter, 2019) with a state that can be saved.
//!
//! The arithmetic is libtorch's fused kernel: one call per group of parameters with fp32 moments, and one per
//! slice of a parameter with 8-bit moments. This module adds the groups and the named state.

use std::ops::Range;

use tch::Tensor;
use torch_ext::AdamWState;

use super::gradients::Gradients;
use super::groups::{ParameterGroup, parameter_groups};
use super::moments::{Moments, counter, step_in_slices};
use crate::Error;
use crate::config::{Config, TrainConfig};
use models::Parameters;
use models::quant::Dynamic8;
use models::tensor::bytes;

/// Hyperparameters of AdamW besides the learning rate.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct AdamWSettings {
    /// Decay rate of the first moment.
    pub beta1: f64,
    /// Decay rate of the second moment.
    pub beta2: f64,
    /// Added to the square root of the second moment.
    pub epsilon: f64,
    /// Decoupled weight decay, for parameters that have it.
    pub weight_decay: f64,
    /// Whether large parameters have 8-bit moments.
    pub eight_bit: bool,
}

impl From<&TrainConfig> for AdamWSettings {
    fn from(config: &TrainConfig) -> Self {
        Self {
            beta1: config.adam_beta1,
            beta2: config.adam_beta2,
            epsilon: config.adam_epsilon,
            weight_decay: config.weight_decay,
            eight_bit: config.optim.eight_bit(),
        }
    }
}

/// The optimizer and its state: two moments per parameter, and the number of steps.
#[derive(Debug)]
pub struct AdamW {
    settings: AdamWSettings,
    groups: Vec<Group>,
    turns: Vec<AlternatingGroup>,
}

/// Parameters that are stepped together.
#[derive(Debug)]
struct AlternatingGroup {
    /// Their indices.
    parameters: Range<usize>,
    steps: u64,
}

/// A parameter group with the state of its parameters, within one alternating group.
#[derive(Debug)]
struct Group {
    turn: usize,
    learning_rate_ratio: f64,
    weight_decay: f64,
    /// Parameters with fp32 moments, as the parallel lists that the kernel takes.
    full: Full,
    /// Parameters with 8-bit moments.
    eight: Vec<Eight>,
}

#[derive(Debug, Default)]
struct Full {
    /// Indices into [`Parameters`].
    indices: Vec<usize>,
    parameters: Vec<Tensor>,
    averages: Vec<Tensor>,
    squares: Vec<Tensor>,
    /// Number of steps: a float32 scalar per parameter.
    steps: Vec<Tensor>,
}

#[derive(Debug)]
struct Eight {
    /// Index into [`Parameters`].
    index: usize,
    parameter: Tensor,
    average: Dynamic8,
    square: Dynamic8,
}

impl AdamW {
    /// A new optimizer, with weight decay for the parameters that have it.
    pub fn new(settings: AdamWSettings, parameters: &Parameters) -> Result<Self, Error> {
        let groups = ParameterGroup::by_decay(settings.weight_decay, parameters);
        Self::with_groups(settings, groups, parameters)
    }

    /// Like [`AdamW::new`], with groups that have their own learning rate and weight decay.
    pub fn with_groups(
        settings: AdamWSettings,
        groups: Vec<ParameterGroup>,
        parameters: &Parameters,
    ) -> Result<Self, Error> {
        let all = 0..parameters.iter().len();
        Self::in_turns(settings, &groups, std::slice::from_ref(&all), parameters)
    }

    /// Like [`AdamW::with_groups`], for parameters that are trained in turns: each range of indices has its
    /// own steps, which are counted separately.
    pub fn in_turns(
        settings: AdamWSettings,
        groups: &[ParameterGroup],
        turns: &[Range<usize>],
        parameters: &Parameters,
    ) -> Result<Self, Error> {
        let mut own = Vec::new();
        for (turn, range) in turns.iter().enumerate() {
            for group in groups {
                let mut group = group.clone();
                group.indices.retain(|index| range.contains(index));
                if !group.indices.is_empty() {
                    own.push(Group::new(turn, group, settings, parameters)?);
                }
            }
        }
        let turns = turns.iter().map(|range| AlternatingGroup {
            parameters: range.clone(),
            steps: 0,
        });
        Ok(Self {
            settings,
            groups: own,
            turns: turns.collect(),
        })
    }

    /// The optimizer for `config`, with parameters trained in these turns; without any, all are trained in
    /// every step.
    pub fn from_config(
        config: &Config,
        parameters: &Parameters,
        turns: &[Range<usize>],
    ) -> Result<Self, Error> {
        let groups = parameter_groups(config, parameters)?;
        let all = 0..parameters.iter().len();
        let turns = match turns {
            [] => std::slice::from_ref(&all),
            turns => turns,
        };
        Self::in_turns((&config.train).into(), &groups, turns, parameters)
    }

    /// Updates the parameters of `gradients` in place.
    pub fn step(&mut self, gradients: &Gradients, learning_rate: f64) -> Result<(), Error> {
        let last = self.turns.last().map_or(0, |turn| turn.parameters.end);
        let range = gradients.range(last);
        let mut turns = self.turns.iter();
        let Some(number) = turns.position(|turn| turn.parameters == range) else {
            return Err(Error::Internal(format!(
                "gradients of parameters {range:?}, which are not an alternating group"
            )));
        };
        let turn = &self.turns[number];
        let AdamWSettings {
            beta1,
            beta2,
            epsilon,
            ..
        } = self.settings;
        for group in self.groups.iter().filter(|group| group.turn == number) {
            let options = torch_ext::AdamW {
                learning_rate: learning_rate * group.learning_rate_ratio,
                beta1,
                beta2,
                weight_decay: group.weight_decay,
                epsilon,
            };
            let full = &group.full;
            let gradient =
                |index: &usize| gradients.tensors()[*index - range.start].shallow_clone();
            let list: Vec<Tensor> = full.indices.iter().map(gradient).collect();
            let state = AdamWState {
                parameters: &full.parameters,
                gradients: &list,
                averages: &full.averages,
                squares: &full.squares,
                steps: &full.steps,
            };
            torch_ext::fused_adamw(&options, state)?;
            for part in &group.eight {
                let gradient = &gradients.tensors()[part.index - range.start];
                let moments = (&part.average, &part.square);
                step_in_slices(&options, (&part.parameter, gradient), moments, turn.steps)?;
            }
        }
        self.turns[number].steps += 1;
        Ok(())
    }

    /// Number of steps taken, over all turns.
    pub fn steps(&self) -> u64 {
        self.turns.iter().map(|turn| turn.steps).sum()
    }

    /// The same for each alternating group.
    pub fn steps_of_turns(&self) -> Vec<u64> {
        self.turns.iter().map(|turn| turn.steps).collect()
    }

    /// Sets the number of steps of each alternating group, after the state has been restored in place.
    pub fn set_steps(&mut self, steps: &[u64]) -> Result<(), Error> {
        if steps.len() != self.turns.len() {
            return Err(Error::Internal(format!(
                "the steps of {} turns for an optimizer of {}",
                steps.len(),
                self.turns.len()
            )));
        }
        for (turn, steps) in self.turns.iter_mut().zip(steps) {
            turn.steps = *steps;
        }
        for group in &mut self.groups {
            for counter in &mut group.full.steps {
                // Exact up to 2^24 steps, the kernel's own limit.
                let _ = counter.f_fill_(steps[group.turn] as f64)?;
            }
        }
        Ok(())
    }

    /// The state by name: `exp_avg.<parameter>` and `exp_avg_sq.<parameter>`, as in PyTorch; 8-bit moments
    /// are `….values` and `….scales`.
    pub fn state<'a>(&'a self, parameters: &Parameters) -> Vec<(String, &'a Tensor)> {
        let names: Vec<&str> = parameters
            .iter()
            .map(|parameter| &*parameter.name)
            .collect();
        let mut state = Vec::with_capacity(2 * names.len());
        for group in &self.groups {
            let full = &group.full;
            let moments = full.averages.iter().zip(&full.squares);
            for (index, (average, square)) in full.indices.iter().zip(moments) {
                state.push((format!("exp_avg.{}", names[*index]), average));
                state.push((format!("exp_avg_sq.{}", names[*index]), square));
            }
            for part in &group.eight {
                let name = names[part.index];
                for (moment, kept) in [("exp_avg", &part.average), ("exp_avg_sq", &part.square)] {
                    state.push((format!("{moment}.{name}.values"), &kept.values));
                    state.push((format!("{moment}.{name}.scales"), &kept.scales));
                }
            }
        }
        state
    }

    /// The two moments of the parameter `name`, in fp32.
    #[cfg(test)]
    pub(super) fn moments_of(
        &self,
        name: &str,
        parameters: &Parameters,
    ) -> Option<(Tensor, Tensor)> {
        let position = parameters.iter().position(|known| known.name == name)?;
        self.groups.iter().find_map(|group| {
            let eight = group.eight.iter().find(|part| part.index == position)?;
            Some((eight.average.load().ok()?, eight.square.load().ok()?))
        })
    }

    /// Bytes of the state.
    pub fn state_bytes(&self, parameters: &Parameters) -> u64 {
        let state = self.state(parameters);
        state.iter().map(|(_, tensor)| bytes(tensor)).sum()
    }
}

impl Group {
    fn new(
        turn: usize,
        group: ParameterGroup,
        settings: AdamWSettings,
        all: &Parameters,
    ) -> Result<Self, Error> {
        let ParameterGroup {
            learning_rate_ratio,
            weight_decay,
            indices,
        } = group;
        let mut group = Self {
            turn,
            learning_rate_ratio,
            weight_decay,
            full: Full::default(),
            eight: Vec::new(),
        };
        let list: Vec<_> = all.iter().collect();
        for index in indices {
            let parameter = list[index].tensor.shallow_clone();
            match Moments::zeros(&parameter, &list[index].name, settings.eight_bit)? {
                Moments::Full { average, square } => {
                    let full = &mut group.full;
                    full.indices.push(index);
                    full.averages.push(average);
                    full.squares.push(square);
                    full.steps.push(counter(0, parameter.device())?);
                    full.parameters.push(parameter);
                }
                Moments::Eight { average, square } => group.eight.push(Eight {
                    index,
                    parameter,
                    average,
                    square,
                }),
            }
        }
        Ok(group)
    }
}
