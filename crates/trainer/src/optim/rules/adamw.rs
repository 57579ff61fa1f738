//! AdamW (Loshchilov and Hutter, 2019), by libtorch's fused kernel: one call for many parameters with fp32 moments, and one
//! for each slice of a parameter with 8-bit moments.
//!
//! The 8-bit format is bitsandbytes' ([`Dynamic8`](models::quant::Dynamic8)): a quarter of the memory; the step itself is
//! computed in fp32.

use tch::{Device, Kind, Tensor};
use torch_ext::AdamWState;

use super::{Kept, Moment, Rule, Step};
use crate::Error;
use crate::optim::AdamWSettings;
use models::Parameter;
use models::quant::Code;

/// The rule.
#[derive(Debug)]
pub(in crate::optim) struct Adam(pub AdamWSettings);

impl Rule for Adam {
    fn states(&self, parameter: &Parameter) -> Result<Vec<(&'static str, Kept)>, Error> {
        let eight = |code| self.0.eight_bit.then_some(code);
        Ok(vec![
            ("exp_avg", Kept::zeros(parameter, eight(Code::Signed))?),
            ("exp_avg_sq", Kept::zeros(parameter, eight(Code::Unsigned))?),
        ])
    }

    fn step(&self, steps: &[Step<'_>], moment: &mut Moment) -> Result<(), Error> {
        let same = |one: &Step<'_>, other: &Step<'_>| {
            (one.learning_rate, one.weight_decay) == (other.learning_rate, other.weight_decay)
        };
        for steps in steps.chunk_by(same) {
            let options = torch_ext::AdamW {
                learning_rate: steps[0].learning_rate,
                beta1: self.0.beta1,
                beta2: self.0.beta2,
                weight_decay: steps[0].weight_decay,
                epsilon: self.0.epsilon,
            };
            let [
                mut parameters,
                mut gradients,
                mut averages,
                mut squares,
                mut counters,
            ] = std::array::from_fn(|_| Vec::with_capacity(steps.len()));
            for step in steps {
                let [(_, Kept::Full(average)), (_, Kept::Full(square))] = &step.part.states[..]
                else {
                    step.in_slices(|parameter, gradient, moments| {
                        let state = AdamWState {
                            parameters: &[parameter.shallow_clone()],
                            gradients: &[gradient.shallow_clone()],
                            averages: &moments[..1],
                            squares: &moments[1..],
                            steps: &[counter(moment.done, parameter.device())?],
                        };
                        Ok(torch_ext::fused_adamw(&options, state)?)
                    })?;
                    continue;
                };
                for (list, tensor) in [
                    (&mut parameters, &step.part.parameter),
                    (&mut gradients, step.gradient),
                    (&mut averages, average),
                    (&mut squares, square),
                    (&mut counters, &step.part.counter),
                ] {
                    list.push(tensor.shallow_clone());
                }
            }
            let state = AdamWState {
                parameters: &parameters,
                gradients: &gradients,
                averages: &averages,
                squares: &squares,
                steps: &counters,
            };
            torch_ext::fused_adamw(&options, state)?;
        }
        Ok(())
    }
}

/// The number of steps, in the form that the kernel takes: exact up to 2^24, its own limit.
pub(in crate::optim) fn counter(steps: u64, device: Device) -> Result<Tensor, Error> {
    Ok(Tensor::f_full([], steps as f64, (Kind::Float, device))?)
}
