//! The ladder: one tensor to the device, by the first way that works.
//!
//! ```text
//!   contiguous ─▶ direct ─▶ sync ─▶ verify ─▶ cast on the device ─▶ verify the cast ─▶ there
//!                   │ refused, out of memory, stalled, or wrong bytes
//!                   ▼
//!                 retry ─▶ staged ─▶ chunked ─▶ other stream ─▶ zero copy ─▶ cast on host ─▶ stay on host
//! ```
//!
//! Which rung is open when is decided in [`crate::rung`], what is verified in [`crate::verify`]. Three things
//! end the climb at once, because going on would corrupt the run: a context that is lost, a device that does
//! not answer even to a full synchronisation, and a source that somebody writes to meanwhile.

mod arrival;
mod together;

use crate::checksum::Checksum;
use crate::policy::{MoveError, Placed, Policy, Request};
use crate::report::{Attempt, Failure, Outcome, PlacementReport, Story};
use crate::rung::{Rung, Situation};
use crate::transport::{
    CopyMethod, DeviceFacts, Element, Pool, SourceFacts, Summed, SyncScope, Transport,
    TransportError,
};
use crate::verify::{Judge, Turn};

/// What [`Ladder::place`] gives for a transport.
pub type PlacedBy<T> = Placed<<T as Transport>::Remote, <T as Transport>::Host>;

/// Moves tensors under one policy, and remembers what happened.
#[derive(Debug)]
pub struct Ladder {
    policy: Policy,
    judge: Judge,
    report: PlacementReport,
}

impl Ladder {
    /// A ladder that has moved nothing yet.
    pub fn new(policy: Policy) -> Ladder {
        Ladder {
            policy,
            judge: Judge::new(policy.verify),
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
        self.judge.forget(name);
    }

    /// Moves one tensor. On return the copy is complete, and the source may be written to again
    /// (unless the tensor arrived by [`Rung::ZeroCopy`]: then it *is* the source).
    ///
    /// # Errors
    /// See [`MoveError`]; what can be tried again has been tried.
    pub fn place<T: Transport>(
        &mut self,
        transport: &mut T,
        host: &T::Host,
        request: &Request<'_>,
    ) -> Result<PlacedBy<T>, MoveError> {
        let start = self.start(transport, host, request)?;
        self.climb(transport, request, start, None)
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
            turn: self.judge.begin(request.name, request.role),
            cast: request.cast.filter(|element| *element != source.element),
            source,
            contiguous,
        })
    }

    /// Moves one tensor, whose first copy may have been made already.
    fn climb<T: Transport>(
        &mut self,
        transport: &mut T,
        request: &Request<'_>,
        start: Start<T::Host>,
        landing: Option<Landing<T::Remote>>,
    ) -> Result<PlacedBy<T>, MoveError> {
        let climb = Climb {
            device: transport.facts(),
            transport,
            policy: self.policy,
            turn: start.turn,
            judge: &mut self.judge,
            request,
            cast: start.cast,
            source: start.source,
            contiguous: start.contiguous,
            landing,
            source_sum: None,
            cast_sum: None,
            attempts: Vec::new(),
        };
        let (result, story) = climb.run();
        let result = result.map_err(|end| end.explain(&story));
        self.report.record(story);
        result
    }
}

/// What is known of a move before its first rung.
struct Start<Host> {
    turn: Turn,
    source: SourceFacts,
    /// The element type to arrive at, when it is not the source's.
    cast: Option<Element>,
    contiguous: Host,
}

/// A direct copy that was made before its climb, together with others.
struct Landing<Remote> {
    copied: Result<Summed<Remote>, TransportError>,
    /// What was on the stream has been waited for since.
    waited: bool,
}

impl<Remote> Landing<Remote> {
    /// Whether it was started, and nobody has waited for it.
    fn is_under_way(&self) -> bool {
        let arrived = |copied: &Summed<Remote>| copied.arrived.is_some();
        !self.waited && self.copied.as_ref().is_ok_and(|copied| !arrived(copied))
    }
}

/// The way of one tensor up the ladder.
struct Climb<'a, T: Transport> {
    transport: &'a mut T,
    device: DeviceFacts,
    policy: Policy,
    judge: &'a mut Judge,
    turn: Turn,
    request: &'a Request<'a>,
    source: SourceFacts,
    /// The element type to arrive at, when it is not the source's.
    cast: Option<Element>,
    contiguous: T::Host,
    /// What the first rung finds done.
    landing: Option<Landing<T::Remote>>,
    /// What the source summed to before its first verified copy.
    source_sum: Option<Checksum>,
    /// What the source sums to after a cast on the host.
    cast_sum: Option<Checksum>,
    attempts: Vec<Attempt>,
}

/// How a climb ends without the tensor.
enum End {
    /// With this failure, at once.
    At(Failure),
    /// After the last rung.
    Exhausted,
    /// Because the host failed.
    Host(TransportError),
}

/// Why an attempt brought nothing.
enum Miss {
    Failed(Failure),
    Host(TransportError),
}

impl From<TransportError> for Miss {
    fn from(error: TransportError) -> Miss {
        Miss::Failed(error.into())
    }
}

/// What an attempt holds while the device may still work with it.
struct Flight<T: Transport> {
    remotes: Vec<T::Remote>,
    sources: Vec<T::Host>,
}

impl<T: Transport> Climb<'_, T> {
    fn run(mut self) -> (Result<PlacedBy<T>, End>, Story) {
        let result = self.climb();
        let story = Story {
            tensor: self.request.name.to_owned(),
            role: self.request.role,
            bytes: self.source.bytes,
            attempts: std::mem::take(&mut self.attempts),
        };
        if let Ok(Placed::OnHost(_)) = result {
            tracing::warn!(
                tensor = story.tensor,
                bytes = story.bytes.0,
                "`{}` stays on the CPU: what uses it runs there, or moves {} each time.\n{story}",
                story.tensor,
                story.bytes,
            );
        }
        let result = match result {
            Err(End::At(failure @ (Failure::Hung { .. } | Failure::ContextLost { .. }))) => {
                self.transport.abandon(Vec::new(), vec![self.contiguous]);
                Err(End::At(failure))
            }
            other => other,
        };
        (result, story)
    }

    fn climb(&mut self) -> Result<PlacedBy<T>, End> {
        for rung in Rung::ALL {
            if let Some(why) = self.obstacle(rung) {
                self.note(rung, Outcome::Skipped { why });
                continue;
            }
            if rung == Rung::StayOnHost {
                return self.stay();
            }
            for method in self.methods(rung) {
                if let Some(remote) = self.try_twice_if_full(rung, method)? {
                    return Ok(Placed::OnDevice(remote));
                }
            }
        }
        Err(End::Exhausted)
    }

    fn obstacle(&self, rung: Rung) -> Option<&'static str> {
        if rung == Rung::StayOnHost && !self.policy.may_stay_on_host {
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
        .obstacle(rung)
    }

    /// The ways of copying that a rung tries, in order.
    fn methods(&self, rung: Rung) -> Vec<CopyMethod> {
        let chunked = CopyMethod::Chunked {
            chunk: self.policy.chunk,
        };
        match rung {
            Rung::Direct | Rung::Retry | Rung::Staged | Rung::StayOnHost => {
                vec![CopyMethod::Direct]
            }
            Rung::Chunked => vec![chunked],
            Rung::OtherStream => vec![CopyMethod::OtherStream],
            Rung::ZeroCopy => vec![CopyMethod::ZeroCopy],
            Rung::CastOnHost => vec![CopyMethod::Direct, chunked],
        }
    }

    /// Tries a rung, and once more after trimming when the device was full. (`direct` leaves that second
    /// try to `retry`, which comes next anyway.)
    fn try_twice_if_full(
        &mut self,
        rung: Rung,
        method: CopyMethod,
    ) -> Result<Option<T::Remote>, End> {
        for may_repeat in [true, false] {
            let failure = match self.attempt(rung, method) {
                Ok((remote, verified)) => {
                    self.note(rung, Outcome::Arrived { verified });
                    return Ok(Some(remote));
                }
                Err(Miss::Host(error)) => return Err(End::Host(error)),
                Err(Miss::Failed(failure)) => failure,
            };
            self.note(
                rung,
                Outcome::Failed {
                    failure: failure.clone(),
                },
            );
            match failure {
                Failure::ContextLost { .. } | Failure::Hung { .. } | Failure::SourceChanged => {
                    return Err(End::At(failure));
                }
                Failure::OutOfMemory {
                    pool: Pool::Device, ..
                } => {
                    self.trim()?;
                    if may_repeat && rung != Rung::Direct {
                        continue;
                    }
                }
                _ => {}
            }
            break;
        }
        Ok(None)
    }

    fn trim(&mut self) -> Result<(), End> {
        match self.transport.trim() {
            Err(error @ TransportError::ContextLost { .. }) => Err(End::At(error.into())),
            // A trim that does not work leaves things as they were; the next try will tell.
            Ok(_) | Err(_) => Ok(()),
        }
    }

    /// One attempt, with what may still be in flight kept safe when it fails.
    fn attempt(&mut self, rung: Rung, method: CopyMethod) -> Result<(T::Remote, bool), Miss> {
        let mut flight = Flight {
            remotes: Vec::new(),
            sources: Vec::new(),
        };
        let failure = match self.fly(rung, method, &mut flight) {
            Ok(arrived) => return Ok(arrived),
            Err(Miss::Failed(failure)) => failure,
            Err(host) => return Err(host),
        };
        let failure = self.settle(failure, &flight);
        if matches!(failure, Failure::Hung { .. } | Failure::ContextLost { .. }) {
            self.transport.abandon(flight.remotes, flight.sources);
        }
        Err(Miss::Failed(failure))
    }

    /// Waits for everything in flight before its memory is freed: a copy that is late must not land in
    /// memory that belongs to somebody else by then.
    fn settle(&mut self, failure: Failure, flight: &Flight<T>) -> Failure {
        let stalled = matches!(failure, Failure::TimedOut { .. });
        let lost = matches!(failure, Failure::ContextLost { .. });
        if lost || (flight.remotes.is_empty() && !stalled) {
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

    fn fly(
        &mut self,
        rung: Rung,
        method: CopyMethod,
        flight: &mut Flight<T>,
    ) -> Result<(T::Remote, bool), Miss> {
        let verified = self
            .judge
            .wants(self.turn, self.request.name, self.request.role, rung);
        let landing = self.landing.take_if(|_| rung == Rung::Direct);
        let sums_on_the_way = landing.is_some()
            || (verified && self.source_sum.is_none() && !self.prepares(rung, method));
        if verified && !sums_on_the_way {
            self.sum_source()?;
        }
        self.prepare(rung, method, flight)?;
        if verified && rung == Rung::CastOnHost {
            self.sum_cast()?;
        }
        let mut arrived = None;
        let mut waited = false;
        let remote = if sums_on_the_way {
            let summed = match landing {
                Some(landing) => {
                    waited = landing.waited;
                    landing.copied?
                }
                None => self.transport.copy_summed(&self.contiguous, method)?,
            };
            self.source_sum = summed.sent;
            arrived = summed.arrived;
            summed.remote
        } else {
            let payload = flight.sources.last().unwrap_or(&self.contiguous);
            self.transport.copy(payload, method)?
        };
        flight.remotes.push(remote);
        let scope = match method {
            CopyMethod::OtherStream => SyncScope::Device,
            _ => SyncScope::Stream,
        };
        // What has been summed where it arrived has been waited for.
        if arrived.is_none() && !waited {
            self.transport.synchronize(scope)?;
        }
        flight.sources.clear();

        if verified {
            // The trust may have ended since it was copied with others.
            self.sum_source()?;
            let expected = if rung == Rung::CastOnHost {
                &self.cast_sum
            } else {
                &self.source_sum
            }
            .clone();
            if let Some(damage) = self.compare(expected, arrived, flight)? {
                self.judge.distrust();
                self.check_source()?;
                return Err(Miss::Failed(Failure::WrongBytes { damage }));
            }
        }
        if let (Some(element), true) = (self.cast, rung != Rung::CastOnHost) {
            self.cast_on_device(element, verified, flight)?;
        }
        if verified {
            self.judge
                .passed(self.request.name, self.request.role, rung);
        }
        match flight.remotes.pop() {
            Some(remote) => Ok((remote, verified)),
            None => Err(Miss::Failed(Failure::Unverifiable {
                message: "it is gone".to_owned(),
            })),
        }
    }

    /// Whether a rung copies from a buffer of its own instead of the source.
    fn prepares(&self, rung: Rung, method: CopyMethod) -> bool {
        rung == Rung::CastOnHost || self.stages(rung, method)
    }

    fn stages(&self, rung: Rung, method: CopyMethod) -> bool {
        let cast = rung == Rung::CastOnHost && method == CopyMethod::Direct;
        rung == Rung::Staged || (cast && self.device.pinned_memory)
    }

    /// Makes the buffers a rung copies from; the last of them is what is copied.
    fn prepare(
        &mut self,
        rung: Rung,
        method: CopyMethod,
        flight: &mut Flight<T>,
    ) -> Result<(), Miss> {
        if let (Rung::CastOnHost, Some(element)) = (rung, self.cast) {
            flight
                .sources
                .push(self.transport.cast_on_host(&self.contiguous, element)?);
        }
        if self.stages(rung, method) {
            let payload = flight.sources.last().unwrap_or(&self.contiguous);
            let staged = self.transport.stage(payload)?;
            flight.sources.push(staged);
        }
        Ok(())
    }

    fn stay(&mut self) -> Result<PlacedBy<T>, End> {
        let host = match self.cast {
            Some(element) => self.transport.cast_on_host(&self.contiguous, element),
            None => self.transport.contiguous(&self.contiguous),
        };
        let host = host.map_err(End::Host)?;
        self.note(Rung::StayOnHost, Outcome::Arrived { verified: false });
        Ok(Placed::OnHost(host))
    }

    fn note(&mut self, rung: Rung, outcome: Outcome) {
        self.attempts.push(Attempt { rung, outcome });
    }
}

impl End {
    fn explain(self, story: &Story) -> MoveError {
        let tensor = story.tensor.clone();
        match self {
            End::At(Failure::Hung { message }) => MoveError::Hung { tensor, message },
            End::At(Failure::SourceChanged) => MoveError::SourceChanged { tensor },
            End::At(Failure::ContextLost { message }) => MoveError::ContextLost { tensor, message },
            End::At(_) | End::Exhausted => MoveError::NotPlaced {
                story: story.clone(),
            },
            End::Host(source) => MoveError::Host { tensor, source },
        }
    }
}
