//! Schedule-free AdamW (Defazio et al., 2024), as in `schedulefree`. Gradients are taken at *y*, the trained weights; *z* takes
//! the steps, and *x*, the average of all *z*, is what is evaluated: *y* = (1 − β₁)·*z* + β₁·*x*.

use tch::Tensor;

use super::{Kept, Moment, Rule, Step, average};
use crate::Error;
use crate::config::OptimArgs;
use crate::optim::optimizer::Part;
use models::Parameter;

/// The rule. Its numbers are the sum of all weights, and the largest learning rate so far.
#[derive(Debug)]
pub(super) struct ScheduleFree {
    betas: [f64; 2],
    eps: f64,
    r: f64,
    weight_lr_power: f64,
}

impl ScheduleFree {
    pub(super) fn new(args: &OptimArgs) -> Self {
        Self {
            betas: args.betas([0.9, 0.999]),
            eps: args.eps(),
            r: args.r.unwrap_or(0.0),
            weight_lr_power: args.weight_lr_power.unwrap_or(2.0),
        }
    }
}

impl Rule for ScheduleFree {
    fn states(&self, parameter: &Parameter) -> Result<Vec<(&'static str, Kept)>, Error> {
        Ok(vec![
            ("z", Kept::copy(parameter)?),
            ("exp_avg_sq", Kept::zeros(parameter, None)?),
        ])
    }

    fn numbers(&self) -> Vec<f64> {
        vec![0.0, -1.0]
    }

    fn step(&self, steps: &[Step<'_>], moment: &mut Moment) -> Result<(), Error> {
        let [beta1, beta2] = self.betas;
        let step_number = (moment.done + 1) as f64;
        let correction = 1.0 - beta2.powf(step_number);
        let largest = moment.learning_rate.max(moment.numbers[1]);
        let weight = step_number.powf(self.r) * largest.powf(self.weight_lr_power);
        let sum = moment.numbers[0] + weight;
        moment.numbers = vec![sum, largest];
        let share = if sum == 0.0 { 0.0 } else { weight / sum };
        for step in steps {
            let rate = step.learning_rate;
            step.in_slices(|y, gradient, states| {
                let [z, square] = states else {
                    return Err(Error::Internal("states of another optimizer".into()));
                };
                average(square, beta2, &gradient.f_square()?)?;
                let mut root = square.f_div_scalar(correction)?.f_sqrt_()?;
                let mut update = gradient.f_div(&root.f_add_scalar_(self.eps)?)?;
                if step.weight_decay != 0.0 {
                    let _ = update.f_add_(&y.f_mul_scalar(step.weight_decay)?)?;
                }
                let _ = y.f_lerp_(z, share)?;
                let of_y = rate * (beta1 * (1.0 - share) - 1.0);
                let _ = y.f_add_(&update.f_mul_scalar(of_y)?)?;
                let _ = z.f_sub_(&update.f_mul_scalar_(rate)?)?;
                Ok(())
            })?;
        }
        Ok(())
    }

    fn evaluated(&self, part: &Part) -> Result<Option<Tensor>, Error> {
        let z = part.states[0].1.full()?;
        let y = part.parameter.f_detach()?;
        Ok(Some(y.f_lerp(&z, 1.0 - 1.0 / self.betas[0])?))
    }
}
