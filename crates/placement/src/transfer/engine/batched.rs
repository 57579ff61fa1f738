//! Moves several tensors to the device, starting their direct copies together.
//!
//! One at a time, each tensor costs three waits on a device: for the copy, for its checksum, and for reading
//! that back. Here the direct copies of all tensors and their checksums are started first, which keeps the
//! device busy, and there is one wait. What did not arrive continues on its own with the next strategy.

use super::{PlacedBy, StartedCopy, TransferEngine};
use crate::transfer::policy::{MoveError, Placed, Request};
use crate::transfer::strategy::{StrategyContext, TransferStrategy};
use crate::transfer::transport::{SyncScope, Transport};

impl TransferEngine {
    /// Moves several tensors. On return all copies are complete and verified as the policy says.
    ///
    /// All sources and all copies are held until then; the caller has to bound their total size.
    ///
    /// # Errors
    /// That of the first tensor that fails as in [`TransferEngine::to_device`]. None is returned then.
    pub fn to_device_batched<T: Transport>(
        &mut self,
        transport: &mut T,
        loads: &[(&T::Host, Request<'_>)],
    ) -> Result<Vec<PlacedBy<T>>, MoveError> {
        let mut starts = Vec::with_capacity(loads.len());
        for (host, request) in loads {
            starts.push(self.start(transport, host, request)?);
        }
        let device = transport.facts();
        // `None` for tensors that cannot be copied directly: they are moved one by one.
        let plan: Vec<Option<bool>> = starts
            .iter()
            .zip(loads)
            .map(|(start, (_, request))| {
                let situation = StrategyContext {
                    device: &device,
                    source: start.source,
                    cast: start.cast,
                    last_failure: None,
                };
                let verified = || {
                    let (name, role) = (request.name, request.role);
                    self.tracker
                        .wants(start.decision, name, role, TransferStrategy::Direct)
                };
                situation
                    .skip_reason(TransferStrategy::Direct)
                    .is_none()
                    .then(verified)
            })
            .collect();
        let chosen: Vec<_> = starts
            .iter()
            .zip(&plan)
            .filter_map(|(start, verified)| Some((&start.contiguous, (*verified)?)))
            .collect();
        let mut copied = transport.copy_batched(&chosen).into_iter();

        let mut waited = false;
        let mut placed = Vec::with_capacity(loads.len());
        let mut transfers = starts.into_iter().zip(&plan).zip(loads);
        while let Some(((start, verified), (_, request))) = transfers.next() {
            let started = verified
                .and_then(|_| copied.next())
                .map(|copied| StartedCopy { copied, waited });
            let waits = started.as_ref().is_some_and(StartedCopy::is_in_flight);
            match self.transfer(transport, request, start, started).0 {
                Ok(one) => {
                    // Its transfer was waited for, and with it everything that was started before.
                    waited |= waits && matches!(one, Placed::OnDevice(_));
                    placed.push(one);
                }
                Err(error) => {
                    let sources = transfers.map(|((start, _), _)| start.contiguous).collect();
                    let rest = copied.flatten().map(|summed| summed.remote);
                    let arrived = placed.into_iter().filter_map(|one| match one {
                        Placed::OnDevice(remote) => Some(remote),
                        Placed::OnHost(_) => None,
                    });
                    give_up(transport, &error, rest.chain(arrived).collect(), sources);
                    return Err(error);
                }
            }
        }
        Ok(placed)
    }
}

/// Drops copies that are no longer wanted once the device is done with them; leaks them if that cannot be
/// determined.
fn give_up<T: Transport>(
    transport: &mut T,
    error: &MoveError,
    remotes: Vec<T::Remote>,
    sources: Vec<T::Host>,
) {
    if !error.context_is_usable() || transport.synchronize(SyncScope::Device).is_err() {
        transport.abandon(remotes, sources);
    }
}
