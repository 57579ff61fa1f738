//! Adafactor (Shazeer and Stern, 2018) as in transformers, and CAME (Luo et al., 2023) as in `came-pytorch`: the second
//! moments of a matrix are kept as the means of its rows and columns.

use tch::Tensor;

use super::{Kept, Moment, Rule, Step, average, decay};
use crate::Error;
use crate::config::OptimArgs;
use models::Parameter;

/// Adafactor with the learning rate of the schedule, which transformers calls `relative_step=False`.
#[derive(Debug)]
pub(super) struct Adafactor {
    eps: [f64; 2],
    clip_threshold: f64,
    decay_rate: f64,
    beta1: Option<f64>,
    scale_parameter: bool,
}

impl Adafactor {
    pub(super) fn new(args: &OptimArgs) -> Self {
        Self {
            eps: args.two_eps([1e-30, 1e-3]),
            clip_threshold: args.clip_threshold.unwrap_or(1.0),
            decay_rate: args.decay_rate.unwrap_or(-0.8),
            beta1: args.beta1,
            scale_parameter: args.scale_parameter.unwrap_or(false),
        }
    }
}

impl Rule for Adafactor {
    fn states(&self, parameter: &Parameter) -> Result<Vec<(&'static str, Kept)>, Error> {
        let mut states = squares(
            parameter,
            ["exp_avg_sq", "exp_avg_sq_row", "exp_avg_sq_col"],
        )?;
        if self.beta1.is_some() {
            states.push(("exp_avg", Kept::zeros(parameter, None)?));
        }
        Ok(states)
    }

    fn step(&self, steps: &[Step<'_>], moment: &mut Moment) -> Result<(), Error> {
        let beta2 = 1.0 - ((moment.done + 1) as f64).powf(self.decay_rate);
        for step in steps {
            let (mut parameter, gradient) = (step.parameter()?, step.gradient);
            // A scalar tensor, so that nothing waits for the device.
            let kind = (parameter.kind(), parameter.device());
            let mut rate = Tensor::f_full([], step.learning_rate, kind)?;
            if self.scale_parameter {
                let _ = rate.f_mul_(&rms(&parameter)?.f_clamp_min_(self.eps[1])?)?;
            }
            let square = gradient.f_square()?.f_add_scalar_(self.eps[0])?;
            let mut update = scaled(step, 0, beta2, &square, gradient)?;
            clip(&mut update, self.clip_threshold)?;
            let _ = update.f_mul_(&rate)?;
            if let Some(beta1) = self.beta1 {
                let mut kept = step.state(step.part.states.len() - 1)?;
                average(&mut kept, beta1, &update)?;
                update = kept;
            }
            if step.weight_decay != 0.0 {
                let rate = rate.f_mul_scalar_(step.weight_decay)?;
                let _ = parameter.f_sub_(&parameter.f_mul(&rate)?)?;
            }
            let _ = parameter.f_sub_(&update)?;
        }
        Ok(())
    }

    fn temporaries(&self) -> u64 {
        2
    }
}

/// CAME.
#[derive(Debug)]
pub(super) struct Came {
    betas: [f64; 3],
    eps: [f64; 2],
    clip_threshold: f64,
}

impl Came {
    pub(super) fn new(args: &OptimArgs) -> Self {
        Self {
            betas: args.betas([0.9, 0.999, 0.9999]),
            eps: args.two_eps([1e-30, 1e-16]),
            clip_threshold: args.clip_threshold.unwrap_or(1.0),
        }
    }
}

impl Rule for Came {
    fn states(&self, parameter: &Parameter) -> Result<Vec<(&'static str, Kept)>, Error> {
        let mut states = vec![("exp_avg", Kept::zeros(parameter, None)?)];
        states.extend(squares(
            parameter,
            ["exp_avg_sq", "exp_avg_sq_row", "exp_avg_sq_col"],
        )?);
        // Vectors have no confidence.
        if parameter.tensor.dim() >= 2 {
            states.extend(squares(
                parameter,
                ["", "exp_avg_res_row", "exp_avg_res_col"],
            )?);
        }
        Ok(states)
    }

    fn step(&self, steps: &[Step<'_>], _: &mut Moment) -> Result<(), Error> {
        let [beta1, beta2, beta3] = self.betas;
        for step in steps {
            let (mut parameter, gradient) = (step.parameter()?, step.gradient);
            let square = gradient.f_square()?.f_add_scalar_(self.eps[0])?;
            let mut update = scaled(step, 1, beta2, &square, gradient)?;
            clip(&mut update, self.clip_threshold)?;
            let mut mean = step.state(0)?;
            average(&mut mean, beta1, &update)?;
            if parameter.dim() >= 2 {
                let off = update
                    .f_sub_(&mean)?
                    .f_square_()?
                    .f_add_scalar_(self.eps[1])?;
                update = scaled(step, 3, beta3, &off, &mean)?;
            } else {
                update = mean.f_mul_scalar(1.0)?;
            }
            decay(&mut parameter, step.learning_rate * step.weight_decay)?;
            let _ = parameter.f_sub_(&update.f_mul_scalar_(step.learning_rate)?)?;
        }
        Ok(())
    }

    fn temporaries(&self) -> u64 {
        2
    }
}

/// Zeros for the means of squares: of each number of a vector, of the rows and columns of a matrix.
fn squares(
    parameter: &Parameter,
    names: [&'static str; 3],
) -> Result<Vec<(&'static str, Kept)>, Error> {
    let size = parameter.tensor.size();
    let [.., rows, columns] = size[..] else {
        return Ok(vec![(names[0], Kept::zeros(parameter, None)?)]);
    };
    let before = &size[..size.len() - 2];
    Ok(vec![
        (
            names[1],
            Kept::zeros_of(parameter, &[before, &[rows]].concat())?,
        ),
        (
            names[2],
            Kept::zeros_of(parameter, &[before, &[columns]].concat())?,
        ),
    ])
}

/// Adds `square` to the means in the states from `first` on; returns `tensor` over the root of what they stand for.
fn scaled(
    step: &Step<'_>,
    first: usize,
    beta: f64,
    square: &Tensor,
    tensor: &Tensor,
) -> Result<Tensor, Error> {
    if tensor.dim() < 2 {
        let mut mean = step.state(first)?;
        average(&mut mean, beta, square)?;
        return Ok(mean.f_rsqrt()?.f_mul_(tensor)?);
    }
    let (mut rows, mut columns) = (step.state(first)?, step.state(first + 1)?);
    average(&mut rows, beta, &square.f_mean_dim(-1, false, None)?)?;
    average(&mut columns, beta, &square.f_mean_dim(-2, false, None)?)?;
    let of_rows = rows.f_div(&rows.f_mean_dim(-1, true, None)?)?.f_rsqrt_()?;
    let mut root = of_rows
        .f_unsqueeze(-1)?
        .f_mul(&columns.f_rsqrt()?.f_unsqueeze_(-2)?)?;
    Ok(root.f_mul_(tensor)?)
}

/// Scales `update` down to this root mean square.
fn clip(update: &mut Tensor, threshold: f64) -> Result<(), Error> {
    let excess = rms(update)?.f_div_scalar_(threshold)?.f_clamp_min_(1.0)?;
    let _ = update.f_div_(&excess)?;
    Ok(())
}

fn rms(tensor: &Tensor) -> Result<Tensor, Error> {
    Ok(tensor
        .f_norm()?
        .f_div_scalar_((tensor.numel() as f64).sqrt())?)
}
