//! Several tensors up the ladder, their first copies together.
//!
//! One tensor after the other is waited for, summed and read about on its own: on a device, three waits for each. Here
//! the direct copies of all are started first, and their sums with them, so that the device has something to do all
//! the time and answers once. What did not arrive goes on up the ladder alone, from where it stands.

use super::{Ladder, Landing, PlacedBy};
use crate::policy::{MoveError, Placed, Request};
use crate::rung::{Rung, Situation};
use crate::transport::{SyncScope, Transport};

impl Ladder {
    /// Moves several tensors. On return all copies are complete, and verified as the policy asks.
    ///
    /// All sources are held until then, and all copies: what may be held is for the caller to bound.
    ///
    /// # Errors
    /// That of the first tensor that fails as in [`Ladder::place`]. None is handed over then.
    pub fn place_together<T: Transport>(
        &mut self,
        transport: &mut T,
        loads: &[(&T::Host, Request<'_>)],
    ) -> Result<Vec<PlacedBy<T>>, MoveError> {
        let mut starts = Vec::with_capacity(loads.len());
        for (host, request) in loads {
            starts.push(self.start(transport, host, request)?);
        }
        let device = transport.facts();
        // `None` for those that may not be copied directly: they climb alone.
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
                    self.judge.wants(start.turn, name, role, Rung::Direct)
                };
                situation.obstacle(Rung::Direct).is_none().then(verified)
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
        let mut climbs = starts.into_iter().zip(&plan).zip(loads);
        while let Some(((start, verified), (_, request))) = climbs.next() {
            let landing = verified
                .and_then(|_| copied.next())
                .map(|copied| Landing { copied, waited });
            let waits = landing.as_ref().is_some_and(Landing::is_under_way);
            match self.climb(transport, request, start, landing) {
                Ok(one) => {
                    // Whatever brought it there was waited for, and with it all that was started before.
                    waited |= waits && matches!(one, Placed::OnDevice(_));
                    placed.push(one);
                }
                Err(error) => {
                    let sources = climbs.map(|((start, _), _)| start.contiguous).collect();
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

/// Lets go of what was started or has arrived, and nobody will ask for: when the device is done with it, or never.
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
