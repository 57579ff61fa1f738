//! Sums of gradients that overlap with the backward pass.
//!
//! All gradients are in one buffer, which is summed in buckets: each as soon as the last backward pass of a step has
//! computed its gradients. After the pass, ranks wait for little more than the last bucket.

use std::time::Instant;

use models::Parameters;
use tch::{Device, Kind, Tensor};
use torch_ext::distributed::Reduction;

use super::Ranks;
use super::process_group::ProcessGroup;
use crate::Error;

/// Bytes of the first bucket and of the others, as in PyTorch's DDP.
const FIRST: u64 = 1 << 20;
const LARGEST: u64 = 25 << 20;
/// If there are few gradients, buckets are smaller, so that there are about this many: an adapter would otherwise be a
/// single bucket, which is complete only at the end of the pass.
const BUCKETS: u64 = 16;
/// Minimum size, since each sum costs round trips.
const SMALLEST: u64 = 256 << 10;

/// Sums that start during the backward pass.
pub(super) struct OverlappedSums {
    reduction: Reduction,
    /// The earliest time at which the first sum of this step may have started.
    began: Option<Instant>,
}

impl Ranks {
    /// Overlaps the sums of these gradients with the backward pass from now on, if it `is_possible` on every rank.
    /// They are sent as `kind`. All ranks must call this.
    pub(crate) fn overlap_sums(
        &mut self,
        parameters: &Parameters,
        kind: Kind,
        is_possible: bool,
    ) -> Result<(), Error> {
        let bytes = |tensor: &Tensor| tensor.numel() as u64 * kind.elt_size_in_bytes() as u64;
        let buckets = buckets(&parameters.tensors().map(bytes).collect::<Vec<_>>());
        // The same on all ranks. A single bucket is complete only at the end of the pass.
        if self.size() == 1 || buckets.len() < 2 {
            return Ok(());
        }
        let made = match &self.joined {
            Some(joined) if is_possible => joined.reduction(parameters, kind, &buckets),
            _ => Ok(None),
        };
        let made = match made {
            Err(error) if error.is_out_of_memory() => None,
            made => made?,
        };
        let missing = self.sum_numbers(&[f64::from(u8::from(made.is_none()))])?;
        if let (Some(joined), Some(reduction), Some(0.0)) =
            (&mut self.joined, made, missing.first().copied())
        {
            joined.link = format!(
                "{}, gradients summed in {} buckets during the backward pass",
                joined.link,
                buckets.len()
            );
            joined.overlapped = Some(OverlappedSums {
                reduction,
                began: None,
            });
        }
        Ok(())
    }

    /// Whether sums of gradients overlap with the backward pass.
    pub(crate) fn overlaps_sums(&self) -> bool {
        let joined = self.joined.as_ref();
        joined.is_some_and(|joined| joined.overlapped.is_some())
    }

    /// Announces that the next backward pass is the last one of the step: the gradients that it leaves are summed.
    pub(crate) fn last_pass_begins(&mut self) -> Result<(), Error> {
        let joined = self.joined.as_mut();
        if let Some(sums) = joined.and_then(|joined| joined.overlapped.as_mut()) {
            sums.began = Some(Instant::now());
            sums.reduction.prepare()?;
        }
        Ok(())
    }

    /// Waits for the overlapping sums. All ranks do so once per step: with their gradients, or with `None` after a pass
    /// that failed. Returns false if a gradient was computed after its sum had started; in this case, and if another
    /// rank failed, the sums are invalid.
    pub(crate) fn finish_sums(&mut self, gradients: Option<&[Tensor]>) -> Result<bool, Error> {
        let Some(joined) = &mut self.joined else {
            return Ok(true);
        };
        let Some(sums) = &mut joined.overlapped else {
            return Ok(true);
        };
        let began = sums.began.take().unwrap_or_else(Instant::now);
        let finished = sums.reduction.finish(gradients);
        finished.map_err(|error| joined.explain(error, began))
    }

    /// The sums, in the order of the parameters.
    pub(crate) fn overlapped_sums(&self) -> Option<&Tensor> {
        let overlapped = self.joined.as_ref()?.overlapped.as_ref()?;
        Some(overlapped.reduction.buffer())
    }
}

impl ProcessGroup {
    fn reduction(
        &self,
        parameters: &Parameters,
        kind: Kind,
        buckets: &[usize],
    ) -> Result<Option<Reduction>, Error> {
        let leaves: Vec<_> = parameters.tensors().collect();
        // On a GPU, sums and copies would have to wait for the stream that computes, which nothing here does.
        let is_here = leaves.iter().all(|leaf| leaf.device() == Device::Cpu);
        let Some(group) = self
            .group
            .as_ref()
            .filter(|_| is_here && self.rccl.is_none())
        else {
            return Ok(None);
        };
        let buffer = Tensor::f_zeros([parameters.count() as i64], (kind, Device::Cpu))?;
        Ok(Some(Reduction::new(group, &leaves, buffer, buckets)?))
    }
}

/// The number of parameters in each bucket, starting with the last parameter, for parameters of these sizes in bytes.
fn buckets(bytes: &[u64]) -> Vec<usize> {
    let usual = (bytes.iter().sum::<u64>() / BUCKETS).clamp(SMALLEST, LARGEST);
    let mut buckets = Vec::new();
    let (mut count, mut size) = (0, 0);
    for bytes in bytes.iter().rev() {
        count += 1;
        size += bytes;
        let enough = match buckets.is_empty() {
            true => usual.min(FIRST),
            false => usual,
        };
        if size >= enough {
            buckets.push(count);
            (count, size) = (0, 0);
        }
    }
    buckets.extend((count > 0).then_some(count));
    buckets
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    #[test]
    fn buckets_are_those_of_ddp_and_smaller_ones_of_few_gradients() {
        // 600 MiB in tensors of 5 MiB: 1 MiB is reached by the first, 25 by five.
        let large = buckets(&[5 * MIB; 120]);
        assert_eq!(large[..3], [1, 5, 5]);
        assert_eq!(large.len(), 25);
        assert_eq!(large.iter().sum::<usize>(), 120);
        // An adapter of 8 MiB: sixteen of half a MiB.
        assert_eq!(buckets(&[MIB / 8; 64]), [4; 16]);
        // The last parameters come first.
        assert_eq!(buckets(&[30 * MIB, MIB, 2 * MIB, MIB]), [1, 2, 1]);
        // Not worth it.
        assert_eq!(buckets(&[1000; 64]), [64]);
        assert!(buckets(&[]).is_empty());
    }
}
