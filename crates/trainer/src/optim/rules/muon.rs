//! Muon (Jordan et al., 2024), as in PyTorch, for matrices; AdamW for embeddings, output layers and vectors.

use tch::{Kind, Tensor};

use super::{Adam, Kept, Moment, Rule, Step, decay};
use crate::Error;
use crate::config::{AdjustLr, TrainConfig};
use models::Parameter;

/// Coefficients of the Newton–Schulz iteration.
const COEFFICIENTS: [f64; 3] = [3.4445, -4.775, 2.0315];
/// The least norm that a matrix is divided by.
const LEAST_NORM: f64 = 1e-7;
/// The state by which parameters of Muon are known.
const MOMENTUM: &str = "momentum_buffer";

/// The rule.
#[derive(Debug)]
pub(super) struct Muon {
    adam: Adam,
    momentum: f64,
    nesterov: bool,
    iterations: u32,
    adjust: AdjustLr,
}

impl Muon {
    pub(super) fn new(config: &TrainConfig) -> Self {
        let args = &config.optim_args;
        Self {
            adam: Adam(config.into()),
            momentum: args.momentum.unwrap_or(0.95),
            nesterov: args.nesterov.unwrap_or(true),
            iterations: args.ns_steps.unwrap_or(5),
            adjust: args.adjust_lr_fn.unwrap_or(AdjustLr::Original),
        }
    }

    /// A matrix with the same singular vectors, whose singular values are near 1, in bf16.
    fn orthogonalised(&self, matrix: &Tensor) -> Result<Tensor, Error> {
        let [a, b, c] = COEFFICIENTS;
        let is_tall = matrix.size()[0] > matrix.size()[1];
        let mut x = matrix.f_to_kind(Kind::BFloat16)?;
        if is_tall {
            x = x.f_tr()?;
        }
        let norm = x.f_norm()?.f_clamp_min_(LEAST_NORM)?;
        x = x.f_div(&norm)?.f_unsqueeze(0)?;
        for _ in 0..self.iterations {
            let gram = x.f_matmul(&x.f_transpose(1, 2)?)?;
            let update = gram.f_baddbmm(&gram, &gram, b, c)?;
            x = x.f_baddbmm(&update, &x, a, 1.0)?;
        }
        let x = x.f_squeeze_dim(0)?;
        Ok(if is_tall { x.f_tr()? } else { x })
    }
}

impl Rule for Muon {
    fn states(&self, parameter: &Parameter) -> Result<Vec<(&'static str, Kept)>, Error> {
        let is_head = ["embed", "lm_head"]
            .iter()
            .any(|word| parameter.name.contains(word));
        match parameter.decay && parameter.tensor.dim() == 2 && !is_head {
            true => Ok(vec![(MOMENTUM, Kept::zeros(parameter, None)?)]),
            false => self.adam.states(parameter),
        }
    }

    fn step(&self, steps: &[Step<'_>], moment: &mut Moment) -> Result<(), Error> {
        let (own, others): (Vec<_>, Vec<_>) = steps
            .iter()
            .copied()
            .partition(|step| step.part.states[0].0 == MOMENTUM);
        self.adam.step(&others, moment)?;
        for step in own {
            let (mut parameter, mut momentum) = (step.parameter()?, step.state(0)?);
            let _ = momentum.f_lerp_(step.gradient, 1.0 - self.momentum)?;
            let update = match self.nesterov {
                true => self.orthogonalised(&step.gradient.f_lerp(&momentum, self.momentum)?)?,
                false => self.orthogonalised(&momentum)?,
            };
            let (rows, columns) = (parameter.size()[0] as f64, parameter.size()[1] as f64);
            let ratio = match self.adjust {
                AdjustLr::Original => (rows / columns).max(1.0).sqrt(),
                AdjustLr::MatchRmsAdamw => 0.2 * rows.max(columns).sqrt(),
            };
            decay(&mut parameter, step.learning_rate * step.weight_decay)?;
            let update = update.f_to_kind(parameter.kind())?;
            let _ = parameter.f_sub_(&update.f_mul_scalar(step.learning_rate * ratio)?)?;
        }
        Ok(())
    }

    fn temporaries(&self) -> u64 {
        3
    }
}
