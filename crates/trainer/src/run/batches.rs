//! This rank's part of the batches of a step.

use super::Run;
use crate::Error;
use crate::task::Batch;

impl Run<'_> {
    /// This rank's batches of a step on the host, each with its share of the step's loss, and the units of
    /// all ranks. The loss is the mean over all targets of the step, however they are divided into batches.
    pub(super) fn batches(&mut self) -> Result<(Vec<(Batch, f64)>, u64), Error> {
        let (rank, size) = (self.ranks.rank(), self.ranks.size());
        let batches = self.config.train.batches_in_step(size) as usize;
        // Every rank goes through the batches of all ranks, so that the position in the data is that of the
        // step, and N ranks train on the same data as one with N times the batch.
        let (mut own, mut total, mut units, mut given) = (Vec::new(), 0.0, 0, 0);
        let mut last = None;
        while given < batches {
            let batch = self.task.next_batch()?;
            let weight = self.task.loss_weight(&batch)?;
            total += weight;
            units += batch.units;
            // If the last step of an epoch has no batch for a rank, it runs another rank's batch with weight
            // zero, because all ranks must take the same steps.
            last = (size > 1).then(|| batch.shallow_clone());
            if given % size == rank {
                own.push((batch, weight));
            }
            given += 1;
            if self.config.train.by_epoch() && self.epoch_is_over() {
                break;
            }
        }
        if own.is_empty() {
            own.extend(last.map(|batch| (batch, 0.0)));
        }
        let share = |weight: f64| match total > 0.0 {
            true => weight / total,
            // No targets: every loss is zero.
            false => 1.0 / given as f64,
        };
        let own = own
            .into_iter()
            .map(|(batch, weight)| (batch, share(weight)));
        Ok((own.collect(), units))
    }
}
