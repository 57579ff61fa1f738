//! Handles steps with a non-finite loss or gradient.
//!
//! ```text
//! finite     ──▶ the optimizer steps
//! not finite ──▶ the step is skipped and described
//!                  └─ three in a row ──▶ back to the last checkpoint, continuing with the next data
//!                                          └─ three times to the same one ──▶ the run ends
//! ```
//!
//! One such step is an unlucky batch or an overflow; after three in a row the model has diverged, and every
//! further step would be skipped as well.

use tch::{Kind, Tensor};

use crate::Error;
use crate::events::{NonFiniteTensor, Rollback, SkippedStep};
use crate::optim::Gradients;
use models::Parameters;

/// Consecutive skipped steps after which the run returns to a checkpoint.
const MAX_SKIPPED: usize = 3;
/// How often a run returns to the same checkpoint before it gives up.
const MAX_ROLLBACKS: u32 = 2;
/// Maximum number of tensors that are named.
const MAX_LISTED: usize = 8;

/// Counts skipped steps and rollbacks.
#[derive(Debug, Default)]
pub(super) struct DivergenceGuard {
    /// The skipped steps since the last good one.
    in_a_row: Vec<SkippedStep>,
    /// Total number of skipped steps.
    pub(super) skipped: u64,
    /// Total number of rollbacks.
    pub(super) rollbacks: u64,
    /// The checkpoint last returned to, and how often.
    target: Option<(u64, u32)>,
}

impl DivergenceGuard {
    /// A step succeeded.
    pub(super) fn stepped(&mut self) {
        self.in_a_row.clear();
    }

    /// A step was skipped. Returns whether the run must return to a checkpoint.
    pub(super) fn skipped(&mut self, step: SkippedStep) -> bool {
        self.in_a_row.push(step);
        self.skipped += 1;
        self.in_a_row.len() >= MAX_SKIPPED
    }

    /// Decides to return to the checkpoint of `to_step`, if there is one and it has not been tried too often.
    pub(super) fn roll_back(&mut self, to_step: Option<u64>) -> Result<Rollback, Error> {
        let seen = std::mem::take(&mut self.in_a_row);
        let from_step = seen.last().map_or(0, |step| step.step);
        let Some(to_step) = to_step else {
            return Err(Error::Diverged(diverged(
                &seen,
                "there is no checkpoint to return to",
            )));
        };
        let before = match self.target {
            Some((target, times)) if target == to_step => times,
            _ => 0,
        };
        if before >= MAX_ROLLBACKS {
            let reason = format!("returning to step {to_step} {before} times did not help");
            return Err(Error::Diverged(diverged(&seen, &reason)));
        }
        self.target = Some((to_step, before + 1));
        self.rollbacks += 1;
        Ok(Rollback {
            from_step,
            to_step,
            seen,
        })
    }
}

fn diverged(seen: &[SkippedStep], reason: &str) -> String {
    let steps: Vec<String> = seen.iter().map(|step| format!("\n  {step}")).collect();
    format!(
        "{MAX_SKIPPED} steps in a row had no finite loss and gradient, and {reason}:{}\n\
         a lower `train.learning_rate`, a longer `train.warmup_steps` or `train.bf16: false` \
         may help; when the very first step is among them, look at the model and the data",
        steps.concat()
    )
}

/// Describes every gradient of a failed step.
pub(super) fn describe(
    step: u64,
    loss: f64,
    norm: f64,
    batch: String,
    gradients: &Gradients,
    parameters: &Parameters,
) -> Result<SkippedStep, Error> {
    let mut tensors = Vec::new();
    let mut further_tensors = 0;
    let own = gradients.of_parameters(parameters);
    for (parameter, gradient) in own.zip(gradients.tensors()) {
        let count = |tensor: Tensor| -> Result<u64, Error> {
            Ok(i64::try_from(&tensor.f_sum(Kind::Int64)?)? as u64)
        };
        let nan = count(gradient.f_isnan()?)?;
        let infinite = count(gradient.f_isinf()?)?;
        if nan + infinite == 0 {
            continue;
        }
        if tensors.len() == MAX_LISTED {
            further_tensors += 1;
            continue;
        }
        tensors.push(NonFiniteTensor {
            name: parameter.name.clone(),
            nan,
            infinite,
            of: gradient.numel() as u64,
        });
    }
    Ok(SkippedStep {
        step,
        loss: loss.to_string(),
        grad_norm: norm.to_string(),
        batch,
        tensors,
        further_tensors,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bad(step: u64) -> SkippedStep {
        SkippedStep {
            step,
            loss: "NaN".into(),
            grad_norm: "NaN".into(),
            batch: "block 7".into(),
            tensors: Vec::new(),
            further_tensors: 0,
        }
    }

    #[test]
    fn three_in_a_row_are_too_many_and_three_apart_are_not() {
        let mut guard = DivergenceGuard::default();
        assert!(!guard.skipped(bad(1)) && !guard.skipped(bad(2)));
        guard.stepped();
        assert!(!guard.skipped(bad(4)) && !guard.skipped(bad(5)));
        assert!(guard.skipped(bad(6)));
        assert_eq!(guard.skipped, 5);
        let back = guard.roll_back(Some(3)).unwrap();
        assert_eq!((back.from_step, back.to_step, back.seen.len()), (6, 3, 3));
        assert!(guard.in_a_row.is_empty());
    }

    #[test]
    fn going_back_in_vain_ends_the_run() {
        let mut guard = DivergenceGuard::default();
        for _ in 0..2 {
            guard.skipped(bad(9));
            guard.roll_back(Some(3)).unwrap();
        }
        // Another checkpoint is another chance.
        guard.skipped(bad(9));
        guard.roll_back(Some(5)).unwrap();
        guard.skipped(bad(9));
        guard.roll_back(Some(5)).unwrap();
        guard.skipped(bad(9));
        let error = guard.roll_back(Some(5)).unwrap_err().to_string();
        assert!(error.contains("returning to step 5 2 times"), "{error}");
        assert!(error.contains("step 9: loss NaN"), "{error}");
        assert!(DivergenceGuard::default().roll_back(None).is_err());
    }

    #[test]
    fn the_damaged_gradients_are_named_and_counted() {
        let mut parameters = Parameters::default();
        for index in 0..12 {
            let tensor = Tensor::ones([3], (Kind::Float, tch::Device::Cpu));
            let name = format!("layer.{index}");
            let _ = parameters.register(&name, &tensor, true).unwrap();
        }
        let mut gradients = Gradients::default();
        let mut loss = Tensor::from(0.0f32);
        for (index, tensor) in parameters.tensors().enumerate() {
            let factor = match index {
                0 => 1.0,
                1 => f64::INFINITY,
                _ => f64::NAN,
            };
            loss += tensor.get(1) * factor + tensor.sum(Kind::Float);
        }
        gradients.accumulate(&loss, &parameters).unwrap();
        let seen = describe(
            4,
            f64::NAN,
            f64::NAN,
            "here".into(),
            &gradients,
            &parameters,
        );
        let seen = seen.unwrap();
        assert_eq!(seen.tensors.len(), 8);
        assert_eq!(seen.further_tensors, 3);
        let first = &seen.tensors[0];
        assert_eq!((&*first.name, first.infinite, first.of), ("layer.1", 1, 3));
        assert_eq!(seen.tensors[1].nan, 1);
        assert!(seen.to_string().ends_with("and 3 more"), "{seen}");
    }
}
