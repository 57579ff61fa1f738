//! The engine: one tensor to the device or back, by the first strategy that works.
//!
//! ```text
//!   contiguous ─▶ direct ─▶ sync ─▶ verify ─▶ cast on the device ─▶ verify the cast ─▶ there
//!                   │ refused, out of memory, stalled, or wrong bytes
//!                   ▼
//!                 retry ─▶ staged ─▶ chunked ─▶ other stream ─▶ zero copy ─▶ cast on host ─▶ stay on host
//! ```
//!
//! Which strategy is open when is decided in [`super::strategy`], what is verified in [`super::verify`]. Three things
//! end a transfer at once, because going on would corrupt the run: a context that is lost, a device that does
//! not answer even to a full synchronisation, and a source that somebody writes to meanwhile.

mod arrival;
mod batched;
mod to_host;

use crate::transfer::checksum::Checksum;
use crate::transfer::policy::{MoveError, Placed, Policy, Request};
use crate::transfer::report::{Attempt, Failure, Outcome, PlacementReport, TransferTrace};
use crate::transfer::strategy::{Situation, TransferStrategy};
use crate::transfer::transport::{
    ChecksummedCopy, CopyMethod, DeviceFacts, Element, Pool, SourceFacts, SyncScope, Transport,
    TransportError,
};
use crate::transfer::verify::{Role, SampleDecision, VerificationTracker};
use platform::Bytes;

/// What [`TransferEngine::to_device`] gives for a transport.
pub type PlacedBy<T> = Placed<<T as Transport>::Remote, <T as Transport>::Host>;

/// Moves tensors under one policy, and remembers what happened.
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

    /// The policy it was made with.
    pub fn policy(&self) -> &Policy {
        &self.policy
    }

    /// Every move so far.
    pub fn report(&self) -> &PlacementReport {
        &self.report
    }

    /// A weight that was trained since it was moved comes with new bytes: they are verified like those of a new one.
    pub fn expect_new_bytes(&mut self, name: &str) {
        self.tracker.forget(name);
    }

    /// Moves one tensor. On return the copy is complete, and the source may be written to again
    /// (unless the tensor arrived by [`TransferStrategy::ZeroCopy`]: then it *is* the source).
    ///
    /// # Errors
    /// See [`MoveError`]; what can be tried again has been tried.
    pub fn to_device<T: Transport>(
        &mut self,
        transport: &mut T,
        host: &T::Host,
        request: &Request<'_>,
    ) -> Result<PlacedBy<T>, MoveError> {
        let start = self.start(transport, host, request)?;
        self.transfer(transport, request, start, None).0
    }

    /// Whether the next direct copy of a weight is to be verified.
    pub(crate) fn verifies_weight(&mut self, name: &str) -> bool {
        let decision = self.tracker.begin(name, Role::Weight);
        let direct = TransferStrategy::Direct;
        self.tracker.wants(decision, name, Role::Weight, direct)
    }

    /// Goes on with a transfer whose direct copy was started by the caller: verifies what arrived as the policy asks,
    /// and tries the remaining strategies if it did not arrive. `source_sum` is what the source is known to sum to.
    /// Also returns what was tried.
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

    /// Prepares a move, of which nothing has happened yet.
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

    /// Moves one tensor, whose first copy may have been made already.
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

/// What is known of a transfer before its first strategy.
struct Start<Host> {
    decision: SampleDecision,
    source: SourceFacts,
    /// The element type to arrive at, when it is not the source's.
    cast: Option<Element>,
    contiguous: Host,
    source_sum: Option<Checksum>,
}

/// A direct copy that was started before its transfer, together with others or in advance.
pub(crate) struct StartedCopy<Remote> {
    pub(crate) copied: Result<ChecksummedCopy<Remote>, TransportError>,
    /// The stream that the tensor is used on has waited for it, or its work is ordered after the copy.
    pub(crate) waited: bool,
}

impl<Remote> StartedCopy<Remote> {
    /// Whether it was started, and nobody has waited for it.
    fn is_under_way(&self) -> bool {
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
    /// The element type to arrive at, when it is not the source's.
    cast: Option<Element>,
    contiguous: T::Host,
    /// The direct copy, if it was started already.
    started: Option<StartedCopy<T::Remote>>,
    /// What the source summed to before its first verified copy.
    source_sum: Option<Checksum>,
    /// What the source sums to after a cast on the host.
    cast_sum: Option<Checksum>,
    attempts: Vec<Attempt>,
}

/// How a transfer ends without the tensor.
enum Abort {
    /// With this failure, at once.
    At(Failure),
    /// After the last strategy.
    Exhausted,
    /// Because the host failed.
    Host(TransportError),
}

/// Why an attempt brought nothing.
enum AttemptError {
    Failed(Failure),
    Host(TransportError),
}

impl From<TransportError> for AttemptError {
    fn from(error: TransportError) -> AttemptError {
        AttemptError::Failed(error.into())
    }
}

/// What an attempt holds while the device may still work with it.
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
                "`{}` stays on the CPU: what uses it runs there, or moves {} each time.\n{trace}",
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
            if let Some(why) = self.obstacle(strategy) {
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

    fn obstacle(&self, strategy: TransferStrategy) -> Option<&'static str> {
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
        Situation {
            device: &self.device,
            source: self.source,
            cast: self.cast,
            last_failure,
        }
        .obstacle(strategy)
    }

    /// How a strategy copies; several are tried in order.
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

    /// Tries a strategy, and once more after trimming when the device was full. (`direct` leaves that second
    /// try to `retry`, which comes next anyway.)
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
            // A trim that does not work leaves things as they were; the next try will tell.
            Ok(_) | Err(_) => Ok(()),
        }
    }

    /// One attempt, with what may still be in in_flight kept safe when it fails.
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

    /// Waits for everything in in_flight before its memory is freed: a copy that is late must not land in
    /// memory that belongs to somebody else by then.
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
            // An error of the copy that failed may surface here a second time.
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
        // What has been summed where it arrived has been waited for.
        if arrived.is_none() && !waited {
            self.transport.synchronize(scope)?;
        }
        in_flight.sources.clear();

        if verified {
            // The trust may have ended since it was copied with others.
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

    /// Whether a strategy copies from a buffer of its own instead of the source.
    fn prepares(&self, strategy: TransferStrategy, method: CopyMethod) -> bool {
        strategy == TransferStrategy::CastOnHost || self.stages(strategy, method)
    }

    fn stages(&self, strategy: TransferStrategy, method: CopyMethod) -> bool {
        let cast = strategy == TransferStrategy::CastOnHost && method == CopyMethod::Direct;
        strategy == TransferStrategy::Staged || (cast && self.device.pinned_memory)
    }

    /// Makes the buffers a strategy copies from; the last of them is what is copied.
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
