//! The optimizer with a state that can be saved: parameters in groups, and turns of training. What a step does is up to a
//! [`Rule`].

use std::ops::Range;

use tch::Tensor;

use super::ema::copy_of;
use super::gradients::Gradients;
use super::groups::{ParameterGroup, parameter_groups};
use super::rules::{self, Adam, Kept, Moment, Rule, Step, counter};
use crate::Error;
use crate::config::{Config, TrainConfig};
use models::Parameters;
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

/// The optimizer and its state: what its rule keeps of each parameter, and the number of steps.
#[derive(Debug)]
pub struct Optimizer {
    rule: Box<dyn Rule>,
    groups: Vec<Group>,
    turns: Vec<AlternatingGroup>,
}

/// Parameters that are stepped together.
#[derive(Debug)]
struct AlternatingGroup {
    /// Their indices.
    parameters: Range<usize>,
    steps: u64,
    /// [`Rule::numbers`], in fp64 and in host memory.
    numbers: Tensor,
}

/// A parameter group with the state of its parameters, within one alternating group.
#[derive(Debug)]
struct Group {
    turn: usize,
    learning_rate_ratio: f64,
    weight_decay: f64,
    parts: Vec<Part>,
}

/// A parameter and its state.
#[derive(Debug)]
pub(super) struct Part {
    /// Index into [`Parameters`].
    pub index: usize,
    pub parameter: Tensor,
    pub states: Vec<(&'static str, Kept)>,
    /// Number of steps: a float32 scalar, as the fused kernel takes it.
    pub counter: Tensor,
}

/// The weights that are trained, while the model has those that are evaluated.
#[derive(Debug)]
pub struct SetAside(Vec<(Tensor, Tensor)>);

impl Optimizer {
    /// AdamW, with weight decay for the parameters that have it.
    pub fn new(settings: AdamWSettings, parameters: &Parameters) -> Result<Self, Error> {
        let groups = ParameterGroup::by_decay(settings.weight_decay, parameters);
        Self::with_groups(settings, groups, parameters)
    }

    /// Like [`Optimizer::new`], with groups that have their own learning rate and weight decay.
    pub fn with_groups(
        settings: AdamWSettings,
        groups: Vec<ParameterGroup>,
        parameters: &Parameters,
    ) -> Result<Self, Error> {
        Self::in_turns(Box::new(Adam(settings)), &groups, &[], parameters)
    }

    /// The optimizer for `config`, with parameters trained in these turns; without any, all are trained in
    /// every step.
    pub fn from_config(
        config: &Config,
        parameters: &Parameters,
        turns: &[Range<usize>],
    ) -> Result<Self, Error> {
        let groups = parameter_groups(config, parameters)?;
        Self::in_turns(rules::of(&config.train), &groups, turns, parameters)
    }

    /// For parameters that are trained in turns: each range of indices has its own steps, which are counted separately.
    fn in_turns(
        rule: Box<dyn Rule>,
        groups: &[ParameterGroup],
        turns: &[Range<usize>],
        parameters: &Parameters,
    ) -> Result<Self, Error> {
        let one = |group: &ParameterGroup| [0.0, 1.0].contains(&group.learning_rate_ratio);
        if !rule.has_ratios() && !groups.iter().all(one) {
            return Err(Error::Data(
                "`train.optim: prodigy` estimates one learning rate for all parameters: remove `learning_rate` from \
                 `train.parameter_groups` (or set it to 0), and `adapter.loraplus_lr_ratio`"
                    .into(),
            ));
        }
        let all = 0..parameters.iter().len();
        let turns = match turns {
            [] => std::slice::from_ref(&all),
            turns => turns,
        };
        let list: Vec<_> = parameters.iter().collect();
        let mut own = Vec::new();
        for (turn, range) in turns.iter().enumerate() {
            for group in groups {
                let indices = group.indices.iter().filter(|index| range.contains(index));
                let parts = indices.map(|&index| {
                    let parameter = list[index].tensor.shallow_clone();
                    Ok(Part {
                        index,
                        states: rule.states(list[index])?,
                        counter: counter(0, parameter.device())?,
                        parameter,
                    })
                });
                let parts = parts.collect::<Result<Vec<_>, Error>>()?;
                if !parts.is_empty() {
                    own.push(Group {
                        turn,
                        learning_rate_ratio: group.learning_rate_ratio,
                        weight_decay: group.weight_decay,
                        parts,
                    });
                }
            }
        }
        let turns = turns.iter().map(|range| {
            Ok(AlternatingGroup {
                parameters: range.clone(),
                steps: 0,
                numbers: Tensor::f_from_slice(&rule.numbers())?,
            })
        });
        Ok(Self {
            groups: own,
            turns: turns.collect::<Result<_, Error>>()?,
            rule,
        })
    }

    /// Updates the parameters of `gradients` in place.
    pub fn step(&mut self, gradients: &Gradients, learning_rate: f64) -> Result<(), Error> {
        let _no_grad = tch::no_grad_guard();
        let last = self.turns.last().map_or(0, |turn| turn.parameters.end);
        let range = gradients.range(last);
        let mut turns = self.turns.iter();
        let Some(number) = turns.position(|turn| turn.parameters == range) else {
            return Err(Error::Internal(format!(
                "gradients of parameters {range:?}, which are not an alternating group"
            )));
        };
        let turn = &mut self.turns[number];
        let mut moment = Moment {
            learning_rate,
            done: turn.steps,
            numbers: Vec::try_from(&turn.numbers)?,
        };
        let groups = self.groups.iter().filter(|group| group.turn == number);
        let steps = groups.flat_map(|group| {
            group.parts.iter().map(|part| Step {
                part,
                gradient: &gradients.tensors()[part.index - range.start],
                learning_rate: learning_rate * group.learning_rate_ratio,
                weight_decay: group.weight_decay,
            })
        });
        self.rule.step(&steps.collect::<Vec<_>>(), &mut moment)?;
        turn.numbers
            .f_copy_(&Tensor::f_from_slice(&moment.numbers)?)?;
        turn.steps += 1;
        Ok(())
    }

    /// Puts the weights that are evaluated into the parameters, if those are not the trained ones.
    pub fn show_evaluated(&self) -> Result<SetAside, Error> {
        let _no_grad = tch::no_grad_guard();
        let mut aside = Vec::new();
        for part in self.parts() {
            if let Some(evaluated) = self.rule.evaluated(part)? {
                let mut parameter = part.parameter.f_detach()?;
                let trained = copy_of(&parameter)?;
                parameter.f_copy_(&evaluated)?;
                aside.push((parameter, trained));
            }
        }
        Ok(SetAside(aside))
    }

    /// Whether [`Optimizer::show_evaluated`] changes anything.
    pub fn evaluates_others(&self) -> bool {
        self.parts()
            .next()
            .is_some_and(|part| !matches!(self.rule.evaluated(part), Ok(None)))
    }

    fn parts(&self) -> impl Iterator<Item = &Part> {
        self.groups.iter().flat_map(|group| &group.parts)
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
            for part in &mut group.parts {
                // Exact up to 2^24 steps, the kernel's own limit.
                let _ = part.counter.f_fill_(steps[group.turn] as f64)?;
            }
        }
        Ok(())
    }

    /// The state of the parameters by name, for example `exp_avg.<parameter>` as in PyTorch; states in 8 bits are
    /// `….values` and `….scales`.
    pub fn moments<'a>(&'a self, parameters: &Parameters) -> Vec<(String, &'a Tensor)> {
        let names: Vec<&str> = parameters
            .iter()
            .map(|parameter| &*parameter.name)
            .collect();
        let mut state = Vec::with_capacity(2 * names.len());
        for part in self.parts() {
            let name = names[part.index];
            for (kind, kept) in &part.states {
                match kept {
                    Kept::Full(tensor) => state.push((format!("{kind}.{name}"), tensor)),
                    Kept::Eight(codes) => {
                        state.push((format!("{kind}.{name}.values"), &codes.values));
                        state.push((format!("{kind}.{name}.scales"), &codes.scales));
                    }
                }
            }
        }
        state
    }

    /// All of the state: [`Optimizer::moments`], and what the parameters of a turn share, `numbers.<turn>`.
    pub fn state<'a>(&'a self, parameters: &Parameters) -> Vec<(String, &'a Tensor)> {
        let mut state = self.moments(parameters);
        let turns = self
            .turns
            .iter()
            .enumerate()
            .filter(|(_, turn)| turn.numbers.numel() > 0);
        state.extend(turns.map(|(number, turn)| (format!("numbers.{number}"), &turn.numbers)));
        state
    }

    /// The states of the parameter `name`, in fp32.
    #[cfg(test)]
    pub(super) fn states_of(&self, name: &str, parameters: &Parameters) -> Vec<Tensor> {
        let position = parameters.iter().position(|known| known.name == name);
        let part = self
            .parts()
            .find(|part| Some(part.index) == position)
            .unwrap();
        let states = part.states.iter().map(|(_, kept)| match kept {
            Kept::Full(tensor) => tensor.shallow_clone(),
            Kept::Eight(codes) => codes.load().unwrap(),
        });
        states.collect()
    }

    /// Bytes of the state.
    pub fn state_bytes(&self, parameters: &Parameters) -> u64 {
        let state = self.moments(parameters);
        state.iter().map(|(_, tensor)| bytes(tensor)).sum()
    }

    /// Bytes of its state for `parameters`, and those that exist for a while besides: in a step, and of trained weights while
    /// others are evaluated.
    pub(crate) fn all_bytes(&self, parameters: &Parameters) -> (u64, u64, u64) {
        let all = || self.parts().map(|part| bytes(&part.parameter));
        let aside = if self.evaluates_others() {
            all().sum()
        } else {
            0
        };
        let step = self.rule.temporaries() * all().max().unwrap_or(0);
        (self.state_bytes(parameters), step, aside)
    }
}

impl SetAside {
    /// Puts the trained weights back, bit for bit.
    pub fn put_back(self) -> Result<(), Error> {
        let _no_grad = tch::no_grad_guard();
        for (mut parameter, trained) in self.0 {
            parameter.f_copy_(&trained)?;
        }
        Ok(())
    }
}
