//! This rank's part of the batches of a step.

use super::Run;
use crate::Error;
use crate::observer::Observer;
use crate::task::Batch;

impl Run<'_> {
    /// This rank's batches of a step on the host, each with its share of the step's loss, and the units of
    /// all ranks. The loss is the mean over all targets of the step, however they are divided into batches;
    /// with DiLoCo, over this rank's targets.
    pub(super) fn batches(&mut self) -> Result<(Vec<(Batch, f64)>, u64), Error> {
        if self.shares.is_some() {
            return self.batch_by_shares();
        }
        let passes = self.config.train.gradient_accumulation_steps as usize;
        let (rank, size) = (self.ranks.rank(), self.ranks.size());
        // Every rank goes through the batches of all ranks, so that the position in the data is that of the
        // step, and N ranks train on the same data as one with N times the batch.
        let (mut own, mut total, mut units, mut given) = (Vec::new(), 0.0, 0, 0);
        let mut last = None;
        while given < passes * size {
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
        if self.learns_apart() {
            total = own.iter().map(|(_, weight)| weight).sum();
        }
        let share = |weight: f64| match total > 0.0 {
            true => weight / total,
            false if self.learns_apart() => 0.0,
            // No targets: every loss is zero.
            false => 1.0 / given as f64,
        };
        let own = own
            .into_iter()
            .map(|(batch, weight)| (batch, share(weight)));
        Ok((own.collect(), units))
    }

    /// Like `batches`, with ranks' shares that depend on their speed: a part of the step's only batch.
    fn batch_by_shares(&mut self) -> Result<(Vec<(Batch, f64)>, u64), Error> {
        let batch = self.task.next_batch()?;
        let units = batch.units;
        let rows = usize::try_from(batch.rows()?).unwrap_or_default();
        let shares = self.shares.as_ref();
        let own = shares.map(|shares| shares.of(self.ranks.rank(), rows));
        let own = own.unwrap_or(0..rows);
        if own.is_empty() {
            // The smaller batch at the end of an epoch has nothing for this rank: run a sample with weight zero.
            return Ok((vec![(batch.narrow(0, 1)?, 0.0)], units));
        }
        let part = batch.narrow(own.start as i64, own.len() as i64)?;
        let whole = self.task.loss_weight(&batch)?;
        let share = match whole > 0.0 {
            true => self.task.loss_weight(&part)? / whole,
            // No targets: every loss is zero.
            false => own.len() as f64 / rows as f64,
        };
        Ok((vec![(part, share)], units))
    }

    /// Sets the shares of the ranks once all have measured their speed.
    pub(super) fn settle_shares(&mut self, observer: &mut dyn Observer) -> Result<(), Error> {
        let told = match &mut self.shares {
            Some(shares) => shares.fix(self.ranks)?,
            None => None,
        };
        if let Some(told) = told {
            observer.shared_out(self.step, &told);
        }
        Ok(())
    }
}
