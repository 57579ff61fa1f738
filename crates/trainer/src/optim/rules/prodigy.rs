//! Prodigy (Mishchenko and Defazio, 2023), as in `prodigyopt`: AdamW whose learning rate is estimated from how far the
//! parameters have come and how their gradients agree with that.

use tch::{Kind, Tensor};

use super::{Kept, Moment, Rule, Step, copy_of, decay};
use crate::Error;
use crate::config::OptimArgs;
use models::Parameter;

/// The rule. Its numbers are the estimate, the largest so far, and the numerator.
#[derive(Debug)]
pub(super) struct Prodigy {
    betas: [f64; 2],
    beta3: f64,
    eps: f64,
    decouple: bool,
    use_bias_correction: bool,
    safeguard_warmup: bool,
    d0: f64,
    d_coef: f64,
    growth_rate: f64,
    slice_p: i64,
}

impl Prodigy {
    pub(super) fn new(args: &OptimArgs) -> Self {
        let betas = args.betas([0.9, 0.999]);
        Self {
            betas,
            beta3: args.beta3.unwrap_or(betas[1].sqrt()),
            eps: args.eps(),
            decouple: args.decouple.unwrap_or(true),
            use_bias_correction: args.use_bias_correction.unwrap_or(false),
            safeguard_warmup: args.safeguard_warmup.unwrap_or(false),
            d0: args.d0.unwrap_or(1e-6),
            d_coef: args.d_coef.unwrap_or(1.0),
            growth_rate: args.growth_rate.unwrap_or(f64::INFINITY),
            slice_p: args.slice_p.unwrap_or(1),
        }
    }

    /// The numbers from which the rate is estimated.
    fn sample(&self, tensor: &Tensor) -> Result<Tensor, Error> {
        Ok(tensor
            .f_detach()?
            .f_reshape([-1])?
            .f_slice(0, None, None, self.slice_p)?)
    }

    /// The gradient, with the decay that is added to it.
    fn gradient(&self, step: &Step<'_>) -> Result<Tensor, Error> {
        match self.decouple || step.weight_decay == 0.0 {
            true => Ok(step.gradient.shallow_clone()),
            false => Ok(step
                .parameter()?
                .f_mul_scalar(step.weight_decay)?
                .f_add_(step.gradient)?),
        }
    }
}

impl Rule for Prodigy {
    fn states(&self, parameter: &Parameter) -> Result<Vec<(&'static str, Kept)>, Error> {
        let start = self.sample(&parameter.tensor)?;
        Ok(vec![
            ("exp_avg", Kept::zeros(parameter, None)?),
            ("exp_avg_sq", Kept::zeros(parameter, None)?),
            ("s", Kept::Full(start.f_zeros_like()?)),
            ("p0", Kept::Full(copy_of(&start)?)),
        ])
    }

    fn numbers(&self) -> Vec<f64> {
        vec![self.d0, self.d0, 0.0]
    }

    fn has_ratios(&self) -> bool {
        false
    }

    fn step(&self, steps: &[Step<'_>], moment: &mut Moment) -> Result<(), Error> {
        let ([beta1, beta2], beta3) = (self.betas, self.beta3);
        let &[d, d_max, numerator] = &moment.numbers[..] else {
            return Err(Error::Internal("numbers of another optimizer".into()));
        };
        let power = i32::try_from(moment.done + 1).unwrap_or(i32::MAX);
        let correction = match self.use_bias_correction {
            true => (1.0 - beta2.powi(power)).sqrt() / (1.0 - beta1.powi(power)),
            false => 1.0,
        };
        let dlr = d * moment.learning_rate * correction;
        let weight = d / self.d0 * if self.safeguard_warmup { d } else { dlr };
        let mut sums = Vec::with_capacity(2 * steps.len());
        for step in steps.iter().filter(|step| step.learning_rate > 0.0) {
            let gradient = self.gradient(step)?;
            let of_rate = self.sample(&gradient)?;
            let way = step.state(3)?.f_sub(&self.sample(&step.part.parameter)?)?;
            sums.push(of_rate.f_dot(&way)?);
            let mut mean = step.state(0)?;
            let _ = mean
                .f_mul_scalar_(beta1)?
                .f_add_(&gradient.f_mul_scalar(d * (1.0 - beta1))?)?;
            let square = gradient.f_square()?.f_mul_scalar_(d * d * (1.0 - beta2))?;
            let _ = step.state(1)?.f_mul_scalar_(beta2)?.f_add_(&square)?;
            let mut sum = step.state(2)?;
            let _ = sum
                .f_mul_scalar_(beta3)?
                .f_add_(&of_rate.f_mul_scalar(weight)?)?;
            sums.push(sum.f_abs()?.f_sum(Kind::Float)?);
        }
        if sums.is_empty() {
            return Ok(());
        }
        let sums = Vec::<f64>::try_from(&Tensor::f_stack(&sums, 0)?.f_to_kind(Kind::Double)?)?;
        let (mut delta, mut denominator) = (0.0, 0.0);
        for sums in sums.chunks(2) {
            delta += d / self.d0 * dlr * sums[0];
            denominator += sums[1];
        }
        if denominator == 0.0 {
            return Ok(());
        }
        let numerator = numerator * beta3 + delta;
        let estimate = self.d_coef * numerator / denominator;
        let d = if d == self.d0 { d.max(estimate) } else { d };
        let d_max = d_max.max(estimate);
        let d = d_max.min(d * self.growth_rate);
        moment.numbers = vec![d, d_max, numerator];
        for step in steps.iter().filter(|step| step.learning_rate > 0.0) {
            let mut parameter = step.parameter()?;
            let root = step.state(1)?.f_sqrt()?.f_add_scalar_(d * self.eps)?;
            if self.decouple {
                decay(&mut parameter, step.weight_decay * dlr)?;
            }
            let (moved, rate) = match beta1 > 0.0 {
                true => (step.state(0)?, dlr),
                false => (self.gradient(step)?, dlr * d),
            };
            let _ = parameter.f_sub_(&moved.f_div(&root)?.f_mul_scalar_(rate)?)?;
        }
        Ok(())
    }

    fn temporaries(&self) -> u64 {
        2
    }
}
