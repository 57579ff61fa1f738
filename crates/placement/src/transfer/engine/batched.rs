//! Several tensors to the device, their direct copies started together.
//!
//! One tensor after the other is waited for, summed and read about on its own: on a device, three waits for each. Here
//! the direct copies of all are started first, and their sums with them, so that the device has something to do all
//! the time and answers once. What did not arrive goes on alone, with the next strategy.

use super::{PlacedBy, StartedCopy, TransferEngine};
use crate::transfer::policy::{MoveError, Placed, Request};
use crate::transfer::strategy::{Situation, TransferStrategy};
use crate::transfer::transport::{SyncScope, Transport};

impl TransferEngine {
    /// Moves several tensors. On return all copies are complete, and verified as the policy asks.
    ///
    /// All sources are held until then, and all copies: what may be held is for the caller to bound.
    ///
    /// # Errors
    /// That of the first tensor that fails as in [`TransferEngine::to_device`]. None is handed over then.
    pub fn to_device_together<T: Transport>(
        &mut self,
        transport: &mut T,
        loads: &[(&T::Host, Request<'_>)],
    ) -> Result<Vec<PlacedBy<T>>, MoveError> {
        let mut starts = Vec::with_capacity(loads.len());
        for (host, request) in loads {
            starts.push(self.start(transport, host, request)?);
        }
        let device = transport.facts();
        // `None` for those that may not be copied directly: they move alone.
        let plan: Vec<Option<bool>> = starts
            .iter()
            .zip(loads)
            .map(|(start, (_, request))| {
                let situation = Situation {
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
                    .obstacle(TransferStrategy::Direct)
                    .is_none()
                    .then(verified)
            })
            .collect();
        let chosen: Vec<_> = starts
            .iter()
            .zip(&plan)
            .filter_map(|(start, verified)| Some((&start.contiguous, (*verified)?)))
            .collect();
        let mut copied = transport.copy_together(&chosen).into_iter();

        let mut waited = false;
        let mut placed = Vec::with_capacity(loads.len());
        let mut transfers = starts.into_iter().zip(&plan).zip(loads);
        while let Some(((start, verified), (_, request))) = transfers.next() {
            let started = verified
                .and_then(|_| copied.next())
                .map(|copied| StartedCopy { copied, waited });
            let waits = started.as_ref().is_some_and(StartedCopy::is_under_way);
            match self.transfer(transport, request, start, started).0 {
                Ok(one) => {
                    // Whatever brought it there was waited for, and with it all that was started before.
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

/// Drops what was started or has arrived and is not wanted any more, once the device is done with it; never, where
/// that cannot be known.
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
