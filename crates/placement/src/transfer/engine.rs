//! The engine: moves one tensor to the device or back, with the first strategy that works.
//!
//! ```text
//!   contiguous ─▶ direct ─▶ sync ─▶ verify ─▶ cast on the device ─▶ verify the cast ─▶ done
//!                   │ refused, out of memory, timed out, or wrong bytes
//!                   ▼
//!                 retry ─▶ staged ─▶ chunked ─▶ other stream ─▶ zero copy ─▶ cast on host ─▶ stay on host
//! ```
//!
//! [`super::strategy`] decides which strategies are skipped, [`super::verify`] what is verified. Three things
//! end a transfer at once, because going on would corrupt the run: a lost context, a device that does not
//! respond even to a full synchronisation, and a source that is written to during the transfer.

mod arrival;
mod batched;
mod to_host;

use crate::transfer::checksum::Checksum;
use crate::transfer::policy::{MoveError, Placed, Policy, Request};
use crate::transfer::report::{Attempt, Failure, Outcome, PlacementReport, TransferTrace};
use crate::transfer::strategy::{StrategyContext, TransferStrategy};
use crate::transfer::transport::{
    ChecksummedCopy, CopyMethod, DeviceFacts, Element, Pool, SourceFacts, SyncScope, Transport,
    TransportError,
};
use crate::transfer::verify::{Role, SampleDecision, VerificationTracker};
use platform::Bytes;

/// The result of [`TransferEngine::to_device`] for a transport.
pub type PlacedBy<T> = Placed<<T as Transport>::Remote, <T as Transport>::Host>;

/// Moves tensors under one policy, and records what happened.
#[derive(Debug)]
pub struct TransferEngine {
    policy: Policy,
    tracker: VerificationTracker,
    report: PlacementReport,
}

impl TransferEngine {
    /// An engine that has moved nothing yet.
    pub fn new(policy: Policy) -> TransferEngine {
        TransferEngine {
            policy,
            tracker: VerificationTracker::new(policy.verify),
            report: PlacementReport::new(policy.verify),
        }
    }

    /// Its policy.
    pub fn policy(&self) -> &Policy {
        &self.policy
    }

    /// All moves so far.
    pub fn report(&self) -> &PlacementReport {
        &self.report
    }

    /// Announces that a weight has changed since it was moved: its new bytes are verified like those of a new
    /// weight.
    pub fn expect_new_bytes(&mut self, name: &str) {
        self.tracker.forget(name);
    }

    /// Moves one tensor. On return the copy is complete, and the source may be written to again (unless the
    /// tensor arrived by [`TransferStrategy::ZeroCopy`]: then it *is* the source).
    ///
    /// # Errors
    /// [`MoveError`], after everything that can be tried has been tried.
    pub fn to_device<T: Transport>(
        &mut self,
        transport: &mut T,
        host: &T::Host,
        request: &Request<'_>,
    ) -> Result<PlacedBy<T>, MoveError> {
        let start = self.start(transport, host, request)?;
        self.transfer(transport, request, start, None).0
    }

    /// Whether the next direct copy of a weight will be verified.
    pub(crate) fn verifies_weight(&mut self, name: &str) -> bool {
        let decision = self.tracker.begin(name, Role::Weight);
        let direct = TransferStrategy::Direct;
        self.tracker.wants(decision, name, Role::Weight, direct)
    }

    /// Completes a move whose direct copy was started earlier. `source_sum` is the checksum of the source before its first
    /// verified copy, if it is known.
    pub(crate) fn finish<T: Transport>(
        &mut self,
        transport: &mut T,
        host: &T::Host,
        request: &Request<'_>,
        started: StartedCopy<T::Remote>,
        source_sum: Option<Checksum>,
    ) -> (Result<PlacedBy<T>, MoveError>, TransferTrace) {
        match self.start(transport, host, request) {
            Ok(start) => {
                let start = Start {
                    source_sum,
                    ..start
                };
                self.transfer(transport, request, start, Some(started))
            }
            Err(error) => (Err(error), TransferTrace::new(request, Bytes::ZERO)),
        }
    }

    /// Prepares a move.
    fn start<T: Transport>(
        &mut self,
        transport: &mut T,
        host: &T::Host,
        request: &Request<'_>,
    ) -> Result<Start<T::Host>, MoveError> {
        let source = transport.source(host);
        let contiguous = transport.contiguous(host).map_err(|error| {
            let tensor = request.name.to_owned();
            match error {
                TransportError::ContextLost { message, .. } => {
                    MoveError::ContextLost { tensor, message }
                }
                source => MoveError::Host { tensor, source },
            }
        })?;
        Ok(Start {
            decision: self.tracker.begin(request.name, request.role),
            cast: request.cast.filter(|element| *element != source.element),
            source,
            contiguous,
            source_sum: None,
        })
    }

    /// Carries out a prepared move, whose direct copy may have been started already.
    fn transfer<T: Transport>(
        &mut self,
        transport: &mut T,
        request: &Request<'_>,
        start: Start<T::Host>,
        started: Option<StartedCopy<T::Remote>>,
    ) -> (Result<PlacedBy<T>, MoveError>, TransferTrace) {
        let transfer = Transfer {
            device: transport.facts(),
            transport,
            policy: self.policy,
            decision: start.decision,
            tracker: &mut self.tracker,
            request,
            cast: start.cast,
            source: start.source,
            contiguous: start.contiguous,
            started,
            source_sum: start.source_sum,
            cast_sum: None,
            attempts: Vec::new(),
        };
        let (result, trace) = transfer.run();
        let result = result.map_err(|end| end.explain(&trace));
        self.report.record(&trace);
        (result, trace)
    }
}

/// What is known before the first strategy.
struct Start<Host> {
    decision: SampleDecision,
    source: SourceFacts,
    /// Target element type, if it differs from the source's.
    cast: Option<Element>,
    contiguous: Host,
    source_sum: Option<Checksum>,
}

/// A direct copy that was started before its transfer, together with others or ahead of time.
pub(crate) struct StartedCopy<Remote> {
    pub(crate) copied: Result<ChecksummedCopy<Remote>, TransportError>,
    /// Whether it has been waited for, or the stream that uses the tensor is ordered after it.
    pub(crate) waited: bool,
}

impl<Remote> StartedCopy<Remote> {
    /// Whether it was started and has not been waited for.
    fn is_in_flight(&self) -> bool {
        let arrived = |copied: &ChecksummedCopy<Remote>| copied.arrived.is_some();
        !self.waited && self.copied.as_ref().is_ok_and(|copied| !arrived(copied))
    }
}

/// The transfer of one tensor to the device.
struct Transfer<'a, T: Transport> {
    transport: &'a mut T,
    device: DeviceFacts,
    policy: Policy,
    tracker: &'a mut VerificationTracker,
    decision: SampleDecision,
    request: &'a Request<'a>,
    source: SourceFacts,
    /// Target element type, if it differs from the source's.
    cast: Option<Element>,
    contiguous: T::Host,
    /// The direct copy, if it was started already.
    started: Option<StartedCopy<T::Remote>>,
    /// What the source summed to before its first verified copy.
    source_sum: Option<Checksum>,
    /// Checksum of the source after a cast on the host.
    cast_sum: Option<Checksum>,
    attempts: Vec<Attempt>,
}

/// How a transfer ends without success.
enum Abort {
    /// With this failure, at once.
    At(Failure),
    /// After the last strategy.
    Exhausted,
    /// Because of a failure on the host.
    Host(TransportError),
}

/// Why an attempt failed.
enum AttemptError {
    Failed(Failure),
    Host(TransportError),
}

impl From<TransportError> for AttemptError {
    fn from(error: TransportError) -> AttemptError {
        AttemptError::Failed(error.into())
    }
}

/// Buffers of an attempt that the device may still be using.
struct InFlight<T: Transport> {
    remotes: Vec<T::Remote>,
    sources: Vec<T::Host>,
}

impl<T: Transport> Transfer<'_, T> {
    fn run(mut self) -> (Result<PlacedBy<T>, Abort>, TransferTrace) {
        let result = self.try_strategies();
        let trace = TransferTrace {
            attempts: std::mem::take(&mut self.attempts),
            ..TransferTrace::new(self.request, self.source.bytes)
        };
        if let Ok(Placed::OnHost(_)) = result {
            tracing::warn!(
                tensor = trace.tensor,
                bytes = trace.bytes.0,
                "`{}` stays on the CPU: operations on it run there, or copy {} each time.\n{trace}",
                trace.tensor,
                trace.bytes,
            );
        }
        let result = match result {
            Err(Abort::At(failure @ (Failure::Hung { .. } | Failure::ContextLost { .. }))) => {
                self.transport.abandon(Vec::new(), vec![self.contiguous]);
                Err(Abort::At(failure))
            }
            other => other,
        };
        (result, trace)
    }

    fn try_strategies(&mut self) -> Result<PlacedBy<T>, Abort> {
        for strategy in TransferStrategy::ALL {
            if let Some(why) = self.skip_reason(strategy) {
                self.note(strategy, Outcome::Skipped { why });
                continue;
            }
            if strategy == TransferStrategy::StayOnHost {
                return self.stay();
            }
            for method in self.methods(strategy) {
                if let Some(remote) = self.try_twice_if_full(strategy, method)? {
                    return Ok(Placed::OnDevice(remote));
                }
            }
        }
        Err(Abort::Exhausted)
    }

    fn skip_reason(&self, strategy: TransferStrategy) -> Option<&'static str> {
        if strategy == TransferStrategy::StayOnHost && !self.policy.may_stay_on_host {
            return Some("not allowed");
        }
        let last_failure = self
            .attempts
            .iter()
            .rev()
            .find_map(|attempt| match &attempt.outcome {
                Outcome::Failed { failure } => Some(failure),
                _ => None,
            });
        StrategyContext {
            device: &self.device,
            source: self.source,
            cast: self.cast,
            last_failure,
        }
        .skip_reason(strategy)
    }

    /// The copy methods of a strategy, tried in order.
    fn methods(&self, strategy: TransferStrategy) -> Vec<CopyMethod> {
        let chunked = CopyMethod::Chunked {
            chunk: self.policy.chunk,
        };
        match strategy {
            TransferStrategy::Direct
            | TransferStrategy::Retry
            | TransferStrategy::Staged
            | TransferStrategy::StayOnHost => {
                vec![CopyMethod::Direct]
            }
            TransferStrategy::Chunked => vec![chunked],
            TransferStrategy::OtherStream => vec![CopyMethod::OtherStream],
            TransferStrategy::ZeroCopy => vec![CopyMethod::ZeroCopy],
            TransferStrategy::CastOnHost => vec![CopyMethod::Direct, chunked],
        }
    }

    /// Tries a strategy, and once more after trimming if the device was out of memory. (For `direct`, that
    /// second try is `retry`, which follows anyway.)
    fn try_twice_if_full(
        &mut self,
        strategy: TransferStrategy,
        method: CopyMethod,
    ) -> Result<Option<T::Remote>, Abort> {
        for may_repeat in [true, false] {
            let failure = match self.attempt(strategy, method) {
                Ok((remote, verified)) => {
                    self.note(strategy, Outcome::Arrived { verified });
                    return Ok(Some(remote));
                }
                Err(AttemptError::Host(error)) => return Err(Abort::Host(error)),
                Err(AttemptError::Failed(failure)) => failure,
            };
            self.note(
                strategy,
                Outcome::Failed {
                    failure: failure.clone(),
                },
            );
            match failure {
                Failure::ContextLost { .. } | Failure::Hung { .. } | Failure::SourceChanged => {
                    return Err(Abort::At(failure));
                }
                Failure::OutOfMemory {
                    pool: Pool::Device, ..
                } => {
                    self.trim()?;
                    if may_repeat && strategy != TransferStrategy::Direct {
                        continue;
                    }
                }
                _ => {}
            }
            break;
        }
        Ok(None)
    }

    fn trim(&mut self) -> Result<(), Abort> {
        match self.transport.trim() {
            Err(error @ TransportError::ContextLost { .. }) => Err(Abort::At(error.into())),
            // A failed trim changes nothing; the next attempt will tell.
            Ok(_) | Err(_) => Ok(()),
        }
    }

    /// One attempt; on failure, buffers that may still be in flight are kept safe.
    fn attempt(
        &mut self,
        strategy: TransferStrategy,
        method: CopyMethod,
    ) -> Result<(T::Remote, bool), AttemptError> {
        let mut in_flight = InFlight {
            remotes: Vec::new(),
            sources: Vec::new(),
        };
        let failure = match self.copy_and_verify(strategy, method, &mut in_flight) {
            Ok(arrived) => return Ok(arrived),
            Err(AttemptError::Failed(failure)) => failure,
            Err(host) => return Err(host),
        };
        let failure = self.settle(failure, &in_flight);
        if matches!(failure, Failure::Hung { .. } | Failure::ContextLost { .. }) {
            self.transport.abandon(in_flight.remotes, in_flight.sources);
        }
        Err(AttemptError::Failed(failure))
    }

    /// Waits for everything in flight before its memory is freed: a late copy must not write to memory that
    /// has been reused.
    fn settle(&mut self, failure: Failure, in_flight: &InFlight<T>) -> Failure {
        let stalled = matches!(failure, Failure::TimedOut { .. });
        let lost = matches!(failure, Failure::ContextLost { .. });
        if lost || (in_flight.remotes.is_empty() && !stalled) {
            return failure;
        }
        match self.transport.synchronize(SyncScope::Device) {
            Err(TransportError::ContextLost { message, .. }) => Failure::ContextLost { message },
            Err(error @ TransportError::TimedOut { .. }) => Failure::Hung {
                message: error.to_string(),
            },
            // The error of the failed copy may be reported here a second time.
            Ok(()) | Err(_) => failure,
        }
    }

    fn copy_and_verify(
        &mut self,
        strategy: TransferStrategy,
        method: CopyMethod,
        in_flight: &mut InFlight<T>,
    ) -> Result<(T::Remote, bool), AttemptError> {
        let verified = self.tracker.wants(
            self.decision,
            self.request.name,
            self.request.role,
            strategy,
        );
        let started = self
            .started
            .take_if(|_| strategy == TransferStrategy::Direct);
        let sums_on_the_way = started.is_some()
            || (verified && self.source_sum.is_none() && !self.prepares(strategy, method));
        if verified && !sums_on_the_way {
            self.sum_source()?;
        }
        self.prepare(strategy, method, in_flight)?;
        if verified && strategy == TransferStrategy::CastOnHost {
            self.sum_cast()?;
        }
        let mut arrived = None;
        let mut waited = false;
        let remote = if sums_on_the_way {
            let summed = match started {
                Some(started) => {
                    waited = started.waited;
                    started.copied?
                }
                None => self
                    .transport
                    .copy_with_checksum(&self.contiguous, method)?,
            };
            self.source_sum = self.source_sum.take().or(summed.sent);
            arrived = summed.arrived;
            summed.remote
        } else {
            let payload = in_flight.sources.last().unwrap_or(&self.contiguous);
            self.transport.copy(payload, method)?
        };
        in_flight.remotes.push(remote);
        let scope = match method {
            CopyMethod::OtherStream => SyncScope::Device,
            _ => SyncScope::Stream,
        };
        // A copy whose received bytes have been checksummed has been waited for.
        if arrived.is_none() && !waited {
            self.transport.synchronize(scope)?;
        }
        in_flight.sources.clear();

        if verified {
            // The device may have become untrusted since this was copied along with others.
            self.sum_source()?;
            let expected = if strategy == TransferStrategy::CastOnHost {
                &self.cast_sum
            } else {
                &self.source_sum
            }
            .clone();
            if let Some(damage) = self.compare(expected, arrived, in_flight)? {
                self.tracker.distrust();
                self.check_source()?;
                return Err(AttemptError::Failed(Failure::WrongBytes { damage }));
            }
        }
        if let (Some(element), true) = (self.cast, strategy != TransferStrategy::CastOnHost) {
            self.cast_on_device(element, verified, in_flight)?;
        }
        if verified {
            self.tracker
                .passed(self.request.name, self.request.role, strategy);
        }
        match in_flight.remotes.pop() {
            Some(remote) => Ok((remote, verified)),
            None => Err(AttemptError::Failed(Failure::Unverifiable {
                message: "it is gone".to_owned(),
            })),
        }
    }

    /// Whether a strategy copies from its own buffer instead of the source.
    fn prepares(&self, strategy: TransferStrategy, method: CopyMethod) -> bool {
        strategy == TransferStrategy::CastOnHost || self.stages(strategy, method)
    }

    fn stages(&self, strategy: TransferStrategy, method: CopyMethod) -> bool {
        let cast = strategy == TransferStrategy::CastOnHost && method == CopyMethod::Direct;
        strategy == TransferStrategy::Staged || (cast && self.device.pinned_memory)
    }

    /// Creates the buffers of a strategy; the last one is the source of the copy.
    fn prepare(
        &mut self,
        strategy: TransferStrategy,
        method: CopyMethod,
        in_flight: &mut InFlight<T>,
    ) -> Result<(), AttemptError> {
        if let (TransferStrategy::CastOnHost, Some(element)) = (strategy, self.cast) {
            in_flight
                .sources
                .push(self.transport.cast_on_host(&self.contiguous, element)?);
        }
        if self.stages(strategy, method) {
            let payload = in_flight.sources.last().unwrap_or(&self.contiguous);
            let staged = self.transport.stage(payload)?;
            in_flight.sources.push(staged);
        }
        Ok(())
    }

    fn stay(&mut self) -> Result<PlacedBy<T>, Abort> {
        let host = match self.cast {
            Some(element) => self.transport.cast_on_host(&self.contiguous, element),
            None => self.transport.contiguous(&self.contiguous),
        };
        let host = host.map_err(Abort::Host)?;
        self.note(
            TransferStrategy::StayOnHost,
            Outcome::Arrived { verified: false },
        );
        Ok(Placed::OnHost(host))
    }

    fn note(&mut self, strategy: TransferStrategy, outcome: Outcome) {
        self.attempts.push(Attempt { strategy, outcome });
    }
}

impl Abort {
    fn explain(self, trace: &TransferTrace) -> MoveError {
        let tensor = trace.tensor.clone();
        match self {
            Abort::At(Failure::Hung { message }) => MoveError::Hung { tensor, message },
            Abort::At(Failure::SourceChanged) => MoveError::SourceChanged { tensor },
            Abort::At(Failure::ContextLost { message }) => {
                MoveError::ContextLost { tensor, message }
            }
            Abort::At(_) | Abort::Exhausted => MoveError::NotPlaced {
                trace: trace.clone(),
            },
            Abort::Host(source) => MoveError::Host { tensor, source },
        }
    }
}
