//! What differs between optimizers: a [`Rule`] says which states a parameter has, and what a step does to both.
//!
//! The formulas are those of the packages that [`Optim`] names, and tests compare 50 steps of each with them. States are in
//! fp32, as parameters and gradients are; a step of a large parameter is computed in slices where elements do not depend on
//! each other.

mod adamw;
mod factored;
mod lion;
mod muon;
mod prodigy;
mod schedule_free;

use std::fmt::Debug;

use tch::Tensor;

use super::ema::copy_of;
use super::optimizer::Part;
use crate::Error;
use crate::config::{Optim, TrainConfig};
use models::Parameter;
use models::quant::{Code, Dynamic8};

pub(super) use adamw::{Adam, counter};

/// Smaller parameters keep fp32 moments: they take little memory, and norms are sensitive.
const SMALLEST_IN_EIGHT_BITS: usize = 4096;
/// Elements that are stepped at a time: 4 MB of each temporary tensor.
const SLICE: i64 = 1 << 20;

/// An optimizer's own part.
pub(super) trait Rule: Debug {
    /// The states of a parameter by the names of the original, as they are before the first step.
    fn states(&self, parameter: &Parameter) -> Result<Vec<(&'static str, Kept)>, Error>;

    /// Numbers that all parameters share, as they are before the first step.
    fn numbers(&self) -> Vec<f64> {
        Vec::new()
    }

    /// Whether parameters may have learning rates of their own, other than 0.
    fn has_ratios(&self) -> bool {
        true
    }

    /// Changes the parameters and states of `steps`. Gradients are not recorded.
    fn step(&self, steps: &[Step<'_>], moment: &mut Moment) -> Result<(), Error>;

    /// The value of a parameter to evaluate, if that is not the trained one.
    fn evaluated(&self, _: &Part) -> Result<Option<Tensor>, Error> {
        Ok(None)
    }

    /// Temporary tensors of the size of the largest parameter.
    fn temporaries(&self) -> u64 {
        0
    }
}

/// A parameter in a step.
#[derive(Clone, Copy)]
pub(super) struct Step<'a> {
    pub part: &'a Part,
    pub gradient: &'a Tensor,
    pub learning_rate: f64,
    pub weight_decay: f64,
}

/// What all parameters of a step share.
pub(super) struct Moment {
    /// The schedule's learning rate.
    pub learning_rate: f64,
    /// Steps before this one.
    pub done: u64,
    /// [`Rule::numbers`].
    pub numbers: Vec<f64>,
}

/// A state of a parameter.
#[derive(Debug)]
pub(super) enum Kept {
    /// In fp32.
    Full(Tensor),
    /// In eight bits per element.
    Eight(Dynamic8),
}

/// The rule that a config names.
pub(super) fn of(config: &TrainConfig) -> Box<dyn Rule> {
    let (optim, args) = (config.optim, &config.optim_args);
    match optim {
        Optim::AdamwTorchFused | Optim::AdamwTorch | Optim::Adamw8bit | Optim::AdamwBnb8bit => {
            Box::new(Adam(config.into()))
        }
        Optim::Lion | Optim::Lion8bit => Box::new(lion::Lion::new(args, optim.eight_bit())),
        Optim::Adafactor => Box::new(factored::Adafactor::new(args)),
        Optim::Came => Box::new(factored::Came::new(args)),
        Optim::Prodigy => Box::new(prodigy::Prodigy::new(args)),
        Optim::ScheduleFreeAdamw => Box::new(schedule_free::ScheduleFree::new(args)),
        Optim::Muon => Box::new(muon::Muon::new(config)),
    }
}

impl Kept {
    /// Zeros of the parameter's shape. As in bitsandbytes, `eight` does not apply to small parameters and to embeddings:
    /// rows of an embedding are rarely updated and differ widely, which blocks with one scale represent badly.
    fn zeros(parameter: &Parameter, eight: Option<Code>) -> Result<Self, Error> {
        let Parameter { name, tensor, .. } = parameter;
        let eight = eight.filter(|_| tensor.numel() >= SMALLEST_IN_EIGHT_BITS);
        Ok(match eight.filter(|_| !name.contains("embed")) {
            Some(code) => Self::Eight(Dynamic8::zeros(&tensor.size(), code, tensor.device())?),
            None => Self::Full(tensor.f_detach()?.f_zeros_like()?),
        })
    }

    /// Zeros of this shape beside the parameter.
    fn zeros_of(parameter: &Parameter, shape: &[i64]) -> Result<Self, Error> {
        Ok(Self::Full(parameter.tensor.f_detach()?.f_new_zeros(
            shape,
            (parameter.tensor.kind(), parameter.tensor.device()),
        )?))
    }

    /// A copy of the parameter.
    fn copy(parameter: &Parameter) -> Result<Self, Error> {
        Ok(Self::Full(copy_of(&parameter.tensor)?))
    }

    /// The tensor of a state in fp32.
    fn full(&self) -> Result<Tensor, Error> {
        match self {
            Self::Full(tensor) => Ok(tensor.shallow_clone()),
            Self::Eight(_) => Err(Error::Internal("a state in eight bits as a tensor".into())),
        }
    }
}

impl Step<'_> {
    /// The parameter, without the graph.
    fn parameter(&self) -> Result<Tensor, Error> {
        Ok(self.part.parameter.f_detach()?)
    }

    /// The state with this number.
    fn state(&self, number: usize) -> Result<Tensor, Error> {
        self.part.states[number].1.full()
    }

    /// Calls `work` with the parameter, its gradient and its states in fp32, in slices if it is large.
    fn in_slices(
        &self,
        mut work: impl FnMut(&mut Tensor, &Tensor, &mut [Tensor]) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let Part {
            parameter, states, ..
        } = self.part;
        if self.gradient.size() != parameter.size() {
            return Err(Error::Internal(format!(
                "a gradient of {:?} for a parameter of {:?}",
                self.gradient.size(),
                parameter.size()
            )));
        }
        let count = parameter.numel() as i64;
        let full = states.iter().all(|(_, kept)| matches!(kept, Kept::Full(_)));
        if full && (count <= SLICE || !parameter.is_contiguous()) {
            let states = states.iter().map(|(_, kept)| kept.full());
            let mut states = states.collect::<Result<Vec<_>, _>>()?;
            return work(&mut self.parameter()?, self.gradient, &mut states);
        }
        let flat = self.parameter()?.f_view([-1])?;
        let gradient = self.gradient.f_detach()?.f_reshape([-1])?;
        for start in (0..count).step_by(SLICE as usize) {
            let length = SLICE.min(count - start);
            let parts = states.iter().map(|(_, kept)| -> Result<Tensor, Error> {
                Ok(match kept {
                    Kept::Full(tensor) => tensor.f_view([-1])?.f_narrow(0, start, length)?,
                    Kept::Eight(codes) => codes.load_range(start, length)?,
                })
            });
            let mut parts = parts.collect::<Result<Vec<_>, _>>()?;
            let gradient = gradient.f_narrow(0, start, length)?;
            work(&mut flat.f_narrow(0, start, length)?, &gradient, &mut parts)?;
            for ((_, kept), part) in states.iter().zip(&parts) {
                if let Kept::Eight(codes) = kept {
                    codes.store_range(start, part)?;
                }
            }
        }
        Ok(())
    }
}

/// `average = beta * average + (1 - beta) * tensor`.
fn average(average: &mut Tensor, beta: f64, tensor: &Tensor) -> Result<(), Error> {
    let _ = average
        .f_mul_scalar_(beta)?
        .f_add_(&tensor.f_mul_scalar(1.0 - beta)?)?;
    Ok(())
}

/// Decay that is independent of the gradient: `parameter *= 1 - rate`.
fn decay(parameter: &mut Tensor, rate: f64) -> Result<(), Error> {
    if rate != 0.0 {
        let _ = parameter.f_mul_scalar_(1.0 - rate)?;
    }
    Ok(())
}
