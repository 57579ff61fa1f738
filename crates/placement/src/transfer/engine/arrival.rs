//! The second half of an attempt: verifies what arrived.

use super::{AttemptError, InFlight, Transfer};
use crate::transfer::checksum::{Checksum, Damage};
use crate::transfer::report::Failure;
use crate::transfer::transport::{Element, SyncScope, Transport, TransportError};

impl<T: Transport> Transfer<'_, T> {
    /// Casts what arrived, and compares it with a cast on the host: kernels that write zeros are as bad as
    /// copies that do.
    ///
    /// The two sides may give a NaN different payloads; that counts as damage, and the tensor is cast on the
    /// host instead.
    pub(super) fn cast_on_device(
        &mut self,
        element: Element,
        verified: bool,
        in_flight: &mut InFlight<T>,
    ) -> Result<(), AttemptError> {
        let Some(arrived) = in_flight.remotes.last() else {
            return Ok(());
        };
        let cast = match self.transport.cast_on_device(arrived, element) {
            Ok(cast) => cast,
            Err(TransportError::Refused { message, .. }) => {
                return Err(AttemptError::Failed(Failure::CastFailed { message }));
            }
            Err(error) => return Err(error.into()),
        };
        in_flight.remotes.push(cast);
        self.transport.synchronize(SyncScope::Stream)?;
        if verified {
            self.sum_cast()?;
            if let Some(damage) = self.compare(self.cast_sum.clone(), None, in_flight)? {
                self.tracker.distrust();
                self.check_source()?;
                return Err(AttemptError::Failed(Failure::WrongCast { damage }));
            }
        }
        Ok(())
    }

    /// Checksums the source, once, before it is staged or copied again.
    pub(super) fn sum_source(&mut self) -> Result<(), AttemptError> {
        if self.source_sum.is_none() {
            self.source_sum = Some(
                self.transport
                    .sum_host(&self.contiguous)
                    .map_err(AttemptError::Host)?,
            );
        }
        Ok(())
    }

    /// Checksums the host-cast source, once.
    pub(super) fn sum_cast(&mut self) -> Result<(), AttemptError> {
        if let (None, Some(element)) = (&self.cast_sum, self.cast) {
            let cast = self.transport.cast_on_host(&self.contiguous, element);
            let sum = cast.and_then(|cast| self.transport.sum_host(&cast));
            self.cast_sum = Some(sum.map_err(AttemptError::Host)?);
        }
        Ok(())
    }

    /// How the last tensor to arrive differs from what was expected. `summed` is its checksum if the copy has
    /// already computed it.
    pub(super) fn compare(
        &mut self,
        expected: Option<Checksum>,
        summed: Option<Checksum>,
        in_flight: &InFlight<T>,
    ) -> Result<Option<Damage>, AttemptError> {
        if let (Some(expected), Some(arrived)) = (&expected, &summed) {
            return Ok(expected.damage(arrived));
        }
        let (Some(expected), Some(remote)) = (expected, in_flight.remotes.last()) else {
            return Err(AttemptError::Failed(Failure::Unverifiable {
                message: "there is no checksum to compare with".to_owned(),
            }));
        };
        let arrived = match self.transport.sum_device(remote) {
            Ok(Some(sum)) => Ok(sum),
            Err(error @ (TransportError::ContextLost { .. } | TransportError::TimedOut { .. })) => {
                return Err(error.into());
            }
            // The device cannot compute it, so read the tensor back.
            Ok(None) | Err(_) => self
                .transport
                .read_back(remote)
                .and_then(|copy| self.transport.sum_host(&copy)),
        };
        match arrived {
            Ok(arrived) => Ok(expected.damage(&arrived)),
            Err(error @ (TransportError::ContextLost { .. } | TransportError::TimedOut { .. })) => {
                Err(error.into())
            }
            Err(error) => Err(AttemptError::Failed(Failure::Unverifiable {
                message: error.to_string(),
            })),
        }
    }

    /// Whether the source is unchanged; if not, no other strategy can help.
    pub(super) fn check_source(&mut self) -> Result<(), AttemptError> {
        let now = self
            .transport
            .sum_host(&self.contiguous)
            .map_err(AttemptError::Host)?;
        match &self.source_sum {
            Some(before) if *before != now => Err(AttemptError::Failed(Failure::SourceChanged)),
            _ => Ok(()),
        }
    }
}
