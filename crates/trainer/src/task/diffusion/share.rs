//! What one of several processes measures and shows, and a process that trains alone all of.

use std::path::Path;

use models::model::Pass;
use placement::Placer;
use tch::{Kind, Tensor};

use super::DiffusionTask;
use super::expert::Expert;
use crate::Error;
use crate::events::Sample;
use crate::task::{EvaluationSums, Share};

/// Levels at which the held-out loss is measured, spread evenly over what is trained.
const LEVELS: u32 = 5;

impl DiffusionTask {
    /// What the experts make of a process's share of the held-out clips.
    pub(super) fn measure_share(
        &self,
        limit: Option<u64>,
        share: Share,
        placer: &mut Placer,
    ) -> Result<EvaluationSums, Error> {
        let _no_grad = tch::no_grad_guard();
        let (numbers, complete) = self.measured(limit);
        let mut sums = EvaluationSums {
            samples: numbers.len() as u64,
            complete,
            ..EvaluationSums::default()
        };
        let numbers = share.part(&numbers);
        let units = numbers.len() as u64 * u64::from(LEVELS);
        for (index, expert) in self.experts.iter().enumerate() {
            if !numbers.is_empty() {
                self.load_expert(Some(index), placer)?;
            }
            let loss = self.held_out_losses(expert, &numbers, placer)?;
            sums.loss += loss;
            sums.units += units;
            if self.experts.len() > 1 {
                sums.turns.insert(expert.name(), (loss, units));
            }
        }
        Ok(sums)
    }

    /// The sum over held-out clips, each at the same levels with the same noise every time.
    fn held_out_losses(
        &self,
        expert: &Expert,
        numbers: &[u64],
        placer: &mut Placer,
    ) -> Result<f64, Error> {
        let (low, high) = expert.range;
        let mut sum = 0.0;
        for number in numbers {
            for level in 0..LEVELS {
                let share = (f64::from(level) + 0.5) / f64::from(LEVELS);
                let sigma = low + share * (high - low);
                let sigma = Tensor::f_from_slice(&[sigma as f32])?;
                torch_ext::random::manual_seed((number << 8) | u64::from(level))?;
                let clip = self.held_out.batch_of(*number as usize)?;
                let batch = placer.batch(self.batch(clip, &[false], &sigma)?)?;
                let losses = self.losses(expert, &batch, Pass::Evaluate)?;
                sum += f64::try_from(&losses.f_mean(Kind::Float)?)?;
            }
        }
        Ok(sum)
    }

    /// Numbers of held-out clips to measure, and whether those are all.
    fn measured(&self, limit: Option<u64>) -> (Vec<u64>, bool) {
        super::super::blocks::spread(self.data.held_out.len() as u64, limit)
    }

    /// The previews of a share, by their numbers; where they cannot be made, a run that is learning goes on without
    /// them.
    pub(super) fn samples_of(
        &self,
        step: u64,
        share: Share,
        folder: &Path,
        placer: &mut Placer,
    ) -> Result<Vec<(usize, Sample)>, Error> {
        let Some(previews) = &self.previews else {
            return Ok(Vec::new());
        };
        match previews.make(self, share, folder, placer) {
            Err(error)
                if error.is_out_of_memory()
                    || matches!(error, Error::Data(_) | Error::Io { .. }) =>
            {
                tracing::warn!("no previews after step {step}: {error}");
                Ok(Vec::new())
            }
            made => made,
        }
    }
}
