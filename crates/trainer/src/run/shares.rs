//! The number of samples per step of each rank, if it follows from their speed
//! (`train.per_device_train_batch_size: auto`).
//!
//! In the first steps all ranks take the same number and measure their time; then the shares are fixed for the rest
//! of the run so that the slowest rank takes the shortest time. A step has the same result whatever the shares are:
//! they are whole samples of the one batch that a single process would use, in its order, and each loss is weighted
//! by the number of targets.

use std::ops::Range;
use std::time::Duration;

use crate::Error;
use crate::ranks::Ranks;

/// Steps before measuring: the first ones allocate memory and select kernels.
const WARM_UP: usize = 2;
/// Steps that are measured.
const MEASURED: usize = 5;

/// The samples of each rank in a step.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Shares {
    counts: Vec<u32>,
    /// Seconds per sample of this rank in each measured step; unset once the shares are fixed.
    measured: Option<Vec<f64>>,
}

impl Shares {
    /// Equal shares, to be measured; or those of a checkpoint with the same number of ranks and samples.
    ///
    /// # Errors
    /// If there are more ranks than samples.
    pub(super) fn new(samples: u32, ranks: usize, saved: Option<&[u32]>) -> Result<Self, Error> {
        let fits = |saved: &&[u32]| saved.len() == ranks && saved.iter().sum::<u32>() == samples;
        if let Some(saved) = saved.filter(fits) {
            return Ok(Self {
                counts: saved.to_vec(),
                measured: None,
            });
        }
        if (samples as usize) < ranks {
            return Err(Error::RankDiffers(format!(
                "`train.train_batch_size` is {samples}, too few for {ranks} processes to have one each: \
                 raise it, or start fewer"
            )));
        }
        Ok(Self {
            counts: distribute(samples, &vec![1.0; ranks]),
            measured: (ranks > 1).then(Vec::new),
        })
    }

    /// The shares to save in a checkpoint; `None` before they are fixed.
    pub(super) fn set(&self) -> Option<&[u32]> {
        let is_set = self.measured.is_none() && self.counts.len() > 1;
        is_set.then_some(&self.counts)
    }

    /// The samples of `rank` in a step of `rows` samples, which are fewer than usual at the end of an epoch.
    pub(super) fn of(&self, rank: usize, rows: usize) -> Range<usize> {
        let all: u64 = self.counts.iter().map(|count| u64::from(*count)).sum();
        let before = |rank: usize| {
            let counts = self.counts.iter().take(rank);
            let count: u64 = counts.map(|count| u64::from(*count)).sum();
            (count * rows as u64 / all.max(1)) as usize
        };
        before(rank)..before(rank + 1)
    }

    /// Records the time that this rank took for its samples of a step.
    pub(super) fn record(&mut self, taken: Duration, samples: usize) {
        if let Some(measured) = &mut self.measured {
            measured.push(taken.as_secs_f64() / samples.max(1) as f64);
        }
    }

    /// Fixes the shares once enough was measured, and returns a description; all ranks do so after the same step.
    pub(super) fn fix(&mut self, ranks: &mut Ranks) -> Result<Option<String>, Error> {
        let Some(measured) = self.measured.as_mut() else {
            return Ok(None);
        };
        if measured.len() < WARM_UP + MEASURED {
            return Ok(None);
        }
        // The median: a single slow step does not matter.
        let steps = &mut measured[WARM_UP..];
        steps.sort_by(f64::total_cmp);
        let seconds = steps[steps.len() / 2].max(1e-9);
        let mut speeds = vec![0.0; ranks.size()];
        speeds[ranks.rank()] = 1.0 / seconds;
        let speeds = ranks.sum_numbers(&speeds)?;
        let samples = self.counts.iter().sum();
        self.counts = distribute(samples, &speeds);
        self.measured = None;
        let described = self.counts.iter().zip(&speeds).enumerate();
        let described = described.map(|(rank, (count, speed))| {
            let name = ranks.name_of(rank);
            format!("{count} on {name} ({speed:.3} per second)")
        });
        let described: Vec<_> = described.collect();
        Ok(Some(format!(
            "of {samples} samples {}",
            described.join(", ")
        )))
    }
}

/// One sample for each rank, and the remaining ones one by one to the rank that would finish it first.
fn distribute(samples: u32, speeds: &[f64]) -> Vec<u32> {
    let mut counts = vec![1u32; speeds.len()];
    for _ in speeds.len() as u32..samples {
        let time = |rank: usize| f64::from(counts[rank] + 1) / speeds[rank];
        let first = (0..speeds.len()).min_by(|one, other| time(*one).total_cmp(&time(*other)));
        if let Some(first) = first {
            counts[first] += 1;
        }
    }
    counts
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn samples_are_distributed_so_that_all_ranks_finish_together() {
        assert_eq!(distribute(8, &[1.0, 1.0]), [4, 4]);
        assert_eq!(distribute(8, &[3.0, 1.0]), [6, 2]);
        assert_eq!(distribute(7, &[1.0, 1.0, 1.0]), [3, 2, 2]);
        // Even the slowest rank takes part.
        assert_eq!(distribute(8, &[1000.0, 1.0]), [7, 1]);
        assert_eq!(distribute(2, &[1.0, 5.0]), [1, 1]);
    }

    #[test]
    fn the_shares_of_a_checkpoint_are_kept_for_the_same_ranks_and_samples() {
        let saved = [5, 3];
        let same = Shares::new(8, 2, Some(&saved)).unwrap();
        assert_eq!(same.set(), Some(&saved[..]));
        for (samples, ranks) in [(8, 4), (9, 2)] {
            let other = Shares::new(samples, ranks, Some(&saved)).unwrap();
            assert_eq!(other.set(), None, "{samples} samples, {ranks} ranks");
        }
        let error = Shares::new(3, 4, None).unwrap_err().to_string();
        assert!(error.contains("too few for 4 processes"), "{error}");
    }

    proptest! {
        #[test]
        fn shares_are_all_samples_in_order(
            counts in prop::collection::vec(1u32..50, 1..6), rows in 0usize..200,
        ) {
            let shares = Shares { counts: counts.clone(), measured: None };
            let mut next = 0;
            for rank in 0..counts.len() {
                let part = shares.of(rank, rows);
                prop_assert_eq!(part.start, next);
                next = part.end;
            }
            prop_assert_eq!(next, rows);
            let whole: u32 = counts.iter().sum();
            for (rank, count) in counts.iter().enumerate() {
                prop_assert_eq!(shares.of(rank, whole as usize).len(), *count as usize);
            }
        }

        #[test]
        fn no_other_distribution_finishes_sooner(
            samples in 2u32..12, speeds in prop::collection::vec(0.1f64..10.0, 2..3),
        ) {
            let time = |counts: &[u32]| {
                let times = counts.iter().zip(&speeds).map(|(count, speed)| f64::from(*count) / speed);
                times.fold(0.0, f64::max)
            };
            let found = time(&distribute(samples, &speeds));
            for first in 1..samples {
                prop_assert!(found <= time(&[first, samples - first]) * (1.0 + 1e-12));
            }
        }
    }
}
