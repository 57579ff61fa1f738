//! Local SGD and DiLoCo: with `train.sync_every` ranks train independently for that many steps, and then exchange
//! their updates.
//!
//! An exchange averages the changes of the weights over all ranks, from which the outer optimizer computes the next
//! weights, and averages the optimizer moments. After it all ranks are bit for bit equal, so one rank's checkpoint
//! holds for all.

use tch::{Kind, Tensor};

use super::measure::due;
use super::{Run, StepPhase};
use crate::Error;
use crate::checkpoint::Trained;

/// The most elements that are summed in one call.
const MAX_SUM_ELEMENTS: usize = 32 << 20;

impl Run<'_> {
    /// Whether ranks train independently between exchanges.
    pub(super) fn learns_apart(&self) -> bool {
        self.outer.is_some()
    }

    /// Whether the ranks must be equal after this step: an exchange is due, or something is evaluated, sampled or
    /// saved.
    pub(super) fn must_sync(&self) -> bool {
        let train = &self.config.train;
        self.step >= self.timetable.max_steps
            || self.asked.sample
            || self.asked.save
            || due(self.step, train.sync_every)
            || due(self.step, self.config.sample.sample_steps)
            || self.is_due(train.eval_strategy, train.eval_steps)
            || self.is_due(train.save_strategy, train.save_steps)
    }

    /// Makes weights and moments the same on all ranks, unless they already are.
    pub(super) fn exchange_weights(&mut self) -> Result<(), Error> {
        if self.outer.is_none() || self.exchanged_at == self.step {
            return Ok(());
        }
        self.ranks
            .doing(&format!("the exchange of weights after step {}", self.step))?;
        self.enter(StepPhase::Update)?;
        let _no_grad = tch::no_grad_guard();
        let sent = self.config.train.reduce_dtype.kind();
        let sizes: Vec<_> = self
            .task
            .parameters()
            .tensors()
            .map(Tensor::numel)
            .collect();
        for range in groups(&sizes) {
            let Some(outer) = &self.outer else { break };
            let moved = self.task.parameters().tensors().enumerate();
            let moved = moved.skip(range.start).take(range.len());
            let moved = moved.map(|(index, tensor)| outer.moved(index, tensor));
            let means = self.means(&moved.collect::<Result<Vec<_>, _>>()?, sent)?;
            for (index, mean) in range.zip(&means) {
                let Some(outer) = &mut self.outer else { break };
                let anchor = outer.step(index, mean)?;
                if let Some(parameter) = self.task.parameters().iter().nth(index) {
                    let arrived = self.placer.weight(&parameter.name, anchor, None)?;
                    parameter.tensor.f_detach()?.f_copy_(&arrived)?;
                }
            }
        }
        self.average_moments()?;
        self.exchanged_at = self.step;
        Ok(())
    }

    /// Averages the moments over all ranks. They are sent as fp32: rounding to bf16 would change even moments that
    /// are equal everywhere.
    fn average_moments(&mut self) -> Result<(), Error> {
        if self.ranks.size() == 1 {
            return Ok(());
        }
        let trained = Trained {
            parameters: self.task.parameters(),
            optimizer: &mut self.optimizer,
            ema: None,
            outer: None,
        };
        let moments: Vec<(String, Tensor)> = trained
            .state()
            .into_iter()
            .map(|(name, tensor)| (name, tensor.shallow_clone()))
            .collect();
        let sizes: Vec<_> = moments.iter().map(|(_, tensor)| tensor.numel()).collect();
        for range in groups(&sizes) {
            let group = &moments[range];
            let mut own = Vec::with_capacity(group.len());
            for (name, tensor) in group {
                own.push(super::ranks::on_host(&mut self.placer, name, tensor)?);
            }
            let means = self.means(&own, Kind::Float)?;
            for ((name, tensor), mean) in group.iter().zip(&means) {
                let arrived = self.placer.weight(name, mean, None)?;
                tensor.f_detach()?.f_copy_(&arrived)?;
            }
        }
        Ok(())
    }

    /// The means of tensors in host memory over all ranks; `sent` is the data type for the transfer.
    fn means(&mut self, own: &[Tensor], sent: Kind) -> Result<Vec<Tensor>, Error> {
        let size = self.ranks.size();
        if size == 1 {
            return Ok(own.iter().map(Tensor::shallow_clone).collect());
        }
        let rows = own
            .iter()
            .map(|tensor| Ok(tensor.f_reshape([-1])?.f_to_kind(sent)?));
        let flat = Tensor::f_cat(&rows.collect::<Result<Vec<_>, Error>>()?, 0)?;
        let sum = match self.ranks.sums_on_device() {
            false => self.ranks.sum(flat)?,
            true => {
                let there = self.placer.batch(flat)?;
                let sum = self.ranks.sum(there)?;
                super::ranks::on_host(&mut self.placer, "a sum of weights", &sum)?
            }
        };
        let mean = sum.f_to_kind(Kind::Float)?.f_div_scalar(size as f64)?;
        let mut begin = 0;
        let mut means = Vec::with_capacity(own.len());
        for tensor in own {
            let length = tensor.numel() as i64;
            let part = mean.f_narrow(0, begin, length)?;
            means.push(part.f_reshape(tensor.size())?);
            begin += length;
        }
        Ok(means)
    }
}

/// Groups consecutive tensors, given their sizes, for one sum each.
fn groups(sizes: &[usize]) -> Vec<std::ops::Range<usize>> {
    let mut groups = Vec::new();
    let (mut begin, mut numbers) = (0, 0);
    for (index, size) in sizes.iter().enumerate() {
        if numbers > 0 && numbers + size > MAX_SUM_ELEMENTS {
            groups.push(begin..index);
            (begin, numbers) = (index, 0);
        }
        numbers += size;
    }
    if begin < sizes.len() {
        groups.push(begin..sizes.len());
    }
    groups
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_are_split_between_tensors() {
        let of = |sizes: &[usize]| groups(sizes);
        assert!(of(&[]).is_empty());
        assert_eq!(of(&[1, 2, MAX_SUM_ELEMENTS]), [0..2, 2..3]);
        assert_eq!(
            of(&[MAX_SUM_ELEMENTS, 1, MAX_SUM_ELEMENTS - 1, 1]),
            [0..1, 1..3, 3..4]
        );
        assert_eq!(of(&[2 * MAX_SUM_ELEMENTS, 5]), [0..1, 1..2]);
    }
}
