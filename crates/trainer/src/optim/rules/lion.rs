//! Lion (Chen et al., 2023), as in `lion-pytorch`.

use super::{Kept, Moment, Rule, Step, average, decay};
use crate::Error;
use crate::config::OptimArgs;
use models::Parameter;
use models::quant::Code;

/// The rule.
#[derive(Debug)]
pub(super) struct Lion {
    betas: [f64; 2],
    eight_bit: bool,
}

impl Lion {
    pub(super) fn new(args: &OptimArgs, eight_bit: bool) -> Self {
        Self {
            betas: args.betas([0.9, 0.99]),
            eight_bit,
        }
    }
}

impl Rule for Lion {
    fn states(&self, parameter: &Parameter) -> Result<Vec<(&'static str, Kept)>, Error> {
        let eight = self.eight_bit.then_some(Code::Signed);
        Ok(vec![("exp_avg", Kept::zeros(parameter, eight)?)])
    }

    fn step(&self, steps: &[Step<'_>], _: &mut Moment) -> Result<(), Error> {
        let [beta1, beta2] = self.betas;
        for step in steps {
            step.in_slices(|parameter, gradient, states| {
                decay(parameter, step.learning_rate * step.weight_decay)?;
                let mut update = states[0].f_mul_scalar(beta1)?;
                let _ = update.f_add_(&gradient.f_mul_scalar(1.0 - beta1)?)?;
                let _ = parameter.f_sub_(&update.f_sgn_()?.f_mul_scalar_(step.learning_rate)?)?;
                average(&mut states[0], beta2, gradient)
            })?;
        }
        Ok(())
    }
}
