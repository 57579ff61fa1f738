//! Copies a tensor from the device to host memory, verified.

use super::TransferEngine;
use crate::transfer::checksum::Checksum;
use crate::transfer::policy::{MoveError, Request};
use crate::transfer::report::{Attempt, Failure, Outcome, TransferTrace};
use crate::transfer::strategy::TransferStrategy;
use crate::transfer::transport::{SyncScope, Transport, TransportError};
use crate::transfer::verify::Verify;

impl TransferEngine {
    /// Copies a contiguous tensor from the device to new host memory with a direct copy, and up to two more
    /// if that is refused or wrong. It is verified in every mode except [`Verify::Off`], with a checksum
    /// computed on the device; if the device cannot compute one, two consecutive copies must agree.
    ///
    /// # Errors
    /// [`MoveError`]; the tensor on the device is unchanged.
    pub fn to_host<T: Transport>(
        &mut self,
        transport: &mut T,
        remote: &T::Remote,
        request: &Request<'_>,
    ) -> Result<T::Host, MoveError> {
        let mut trace = TransferTrace::new(request, transport.remote_bytes(remote));
        let mut before = None;
        let strategies = [TransferStrategy::Direct, TransferStrategy::Retry];
        let mut attempts = strategies.into_iter().chain([TransferStrategy::Retry]);
        let result = loop {
            let Some(strategy) = attempts.next() else {
                break Err(MoveError::NotFetched {
                    trace: trace.clone(),
                });
            };
            match self.read(transport, remote, &mut before) {
                Ok(Some(host)) => break Ok(host),
                // The first copy from a device without checksums; compare it with the next one.
                Ok(None) => {}
                Err(error) => match settled(transport, error) {
                    Failure::ContextLost { message } => {
                        let tensor = request.name.to_owned();
                        break Err(MoveError::ContextLost { tensor, message });
                    }
                    Failure::Hung { message } => {
                        let tensor = request.name.to_owned();
                        break Err(MoveError::Hung { tensor, message });
                    }
                    failure => trace.attempts.push(Attempt {
                        strategy,
                        outcome: Outcome::Failed { failure },
                    }),
                },
            }
        };
        if !trace.attempts.is_empty() {
            self.report.keep(&trace);
        }
        result
    }

    /// One copy, compared with the device's checksum or else with the previous copy.
    fn read<T: Transport>(
        &mut self,
        transport: &mut T,
        remote: &T::Remote,
        before: &mut Option<Checksum>,
    ) -> Result<Option<T::Host>, Failure> {
        let host = transport.read_back(remote)?;
        if self.policy.verify == Verify::Off {
            return Ok(Some(host));
        }
        let arrived = transport.sum_host(&host)?;
        let sent = match transport.sum_device(remote) {
            Ok(sent) => sent,
            Err(error @ (TransportError::ContextLost { .. } | TransportError::TimedOut { .. })) => {
                return Err(error.into());
            }
            Err(_) => None,
        };
        let Some(expected) = sent.or_else(|| before.take()) else {
            *before = Some(arrived);
            return Ok(None);
        };
        match expected.damage(&arrived) {
            None => Ok(Some(host)),
            Some(damage) => {
                *before = Some(arrived);
                self.tracker.distrust();
                Err(Failure::WrongBytes { damage })
            }
        }
    }
}

/// The meaning of a failure after waiting for the device.
fn settled<T: Transport>(transport: &mut T, failure: Failure) -> Failure {
    let Failure::TimedOut { message } = failure else {
        return failure;
    };
    match transport.synchronize(SyncScope::Device) {
        Ok(()) => Failure::TimedOut { message },
        Err(TransportError::ContextLost { message, .. }) => Failure::ContextLost { message },
        Err(_) => Failure::Hung { message },
    }
}
