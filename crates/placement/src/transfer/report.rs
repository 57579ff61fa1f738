//! What happened to each tensor on its way.
//!
//! A run moves many thousands of tensors, nearly all of them by the first strategy. Those are only counted; a
//! tensor that needed more than its first strategy keeps its whole trace, up to a bound.

use std::fmt;

use serde::Serialize;

use crate::transfer::checksum::Damage;
use crate::transfer::policy::Request;
use crate::transfer::strategy::TransferStrategy;
use crate::transfer::transport::{Pool, TransportError};
use crate::transfer::verify::{Role, Verify};
use platform::Bytes;

/// The traces that are kept in full.
const MAX_TRACES: usize = 256;

/// Every move of one [`TransferEngine`](crate::TransferEngine), printable as a table and as JSON.
#[derive(Clone, Debug, Serialize)]
pub struct PlacementReport {
    /// How arrivals were verified.
    pub verify: Verify,
    /// The moves that ended on each strategy, in the order of the engine.
    pub routes: Vec<RouteTotal>,
    /// The tensors that did not arrive by the first strategy open to them.
    #[serde(rename = "stories")]
    pub traces: Vec<TransferTrace>,
    /// How many more of them there were than [`traces`](Self::traces) holds.
    #[serde(rename = "stories_left_out")]
    pub traces_left_out: u64,
    /// The same tensors by what went wrong, those without a trace too.
    #[serde(skip)]
    pub trouble: Trouble,
}

/// How many tensors had trouble.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Trouble {
    /// Tensors that needed another try, stayed on the host, or did not arrive at all.
    pub tensors: u64,
    /// Of these, those that arrived with other bytes than were sent, or were cast wrong.
    pub mismatched: u64,
    /// Of these, those that stayed on the host.
    pub on_host: u64,
}

/// The moves that ended on one strategy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct RouteTotal {
    /// The strategy that these numbers are about.
    #[serde(rename = "rung")]
    pub strategy: TransferStrategy,
    /// Number of tensors.
    pub tensors: u64,
    /// Their size at the source.
    pub bytes: Bytes,
    /// How many of them were verified.
    pub verified: u64,
}

/// The way of one tensor.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct TransferTrace {
    /// Name of the tensor.
    pub tensor: String,
    /// What it is.
    pub role: Role,
    /// Its size at the source.
    pub bytes: Bytes,
    /// The strategies, in the order they were tried or passed over.
    pub attempts: Vec<Attempt>,
}

/// One strategy and what came of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Attempt {
    /// The strategy that these numbers are about.
    #[serde(rename = "rung")]
    pub strategy: TransferStrategy,
    /// What came of it.
    #[serde(flatten)]
    pub outcome: Outcome,
}

/// What came of a strategy.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "outcome", rename_all = "snake_case")]
pub enum Outcome {
    /// The tensor is where the strategy puts it.
    Arrived {
        /// And its bytes were compared.
        verified: bool,
    },
    /// The strategy made no sense here.
    Skipped {
        /// Why it was not tried.
        why: &'static str,
    },
    /// It did not work.
    Failed {
        /// What went wrong.
        failure: Failure,
    },
}

/// How a strategy failed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
#[allow(missing_docs)] // The fields are what the variants say.
pub enum Failure {
    /// The device said no.
    Refused { message: String },
    /// A memory was full, also after trimming.
    OutOfMemory { pool: Pool, message: String },
    /// Something did not end in time, but the device answered afterwards.
    TimedOut { message: String },
    /// Something did not end in time, and the device does not answer.
    Hung { message: String },
    /// The device is unusable.
    ContextLost { message: String },
    /// Other bytes arrived than were sent.
    WrongBytes { damage: Damage },
    /// The right bytes arrived, and the device's cast of them is wrong.
    WrongCast { damage: Damage },
    /// The right bytes arrived, and the device could not cast them.
    CastFailed { message: String },
    /// Neither the device nor a copy back could say what arrived.
    Unverifiable { message: String },
    /// The source was written to while it moved.
    SourceChanged,
}

impl From<TransportError> for Failure {
    fn from(error: TransportError) -> Failure {
        let message = error.to_string();
        match error {
            TransportError::Refused { .. } => Failure::Refused { message },
            TransportError::OutOfMemory { pool, .. } => Failure::OutOfMemory { pool, message },
            TransportError::TimedOut { .. } => Failure::TimedOut { message },
            TransportError::ContextLost { .. } => Failure::ContextLost { message },
        }
    }
}

impl PlacementReport {
    pub(crate) fn new(verify: Verify) -> PlacementReport {
        PlacementReport {
            verify,
            routes: Vec::new(),
            traces: Vec::new(),
            traces_left_out: 0,
            trouble: Trouble::default(),
        }
    }

    /// Adds the end of a move: counted when it went well at once, told when it did not.
    pub(crate) fn record(&mut self, trace: &TransferTrace) {
        if let Some(Attempt {
            strategy,
            outcome: Outcome::Arrived { verified },
        }) = trace.attempts.last()
        {
            let total = self.total_of(*strategy);
            total.tensors += 1;
            total.bytes += trace.bytes;
            total.verified += u64::from(*verified);
        }
        let uneventful = trace.attempts.iter().all(|attempt| {
            attempt.strategy != TransferStrategy::StayOnHost
                && !matches!(attempt.outcome, Outcome::Failed { .. })
        });
        if !uneventful {
            self.keep(trace);
        }
    }

    /// Keeps the trace of a transfer that had trouble.
    pub(crate) fn keep(&mut self, trace: &TransferTrace) {
        self.trouble.tensors += 1;
        self.trouble.mismatched += u64::from(trace.is_mismatched());
        self.trouble.on_host += u64::from(trace.stayed_on_host());
        if self.traces.len() < MAX_TRACES {
            self.traces.push(trace.clone());
        } else {
            self.traces_left_out += 1;
        }
    }

    fn total_of(&mut self, strategy: TransferStrategy) -> &mut RouteTotal {
        let at = match self
            .routes
            .binary_search_by_key(&strategy, |total| total.strategy)
        {
            Ok(at) => at,
            Err(at) => {
                let empty = RouteTotal {
                    strategy,
                    tensors: 0,
                    bytes: Bytes::ZERO,
                    verified: 0,
                };
                self.routes.insert(at, empty);
                at
            }
        };
        &mut self.routes[at]
    }

    /// The tensors that stayed on the host, among the traces that were kept.
    pub fn stayed_on_host(&self) -> impl Iterator<Item = &TransferTrace> {
        self.traces.iter().filter(|trace| trace.stayed_on_host())
    }
}

impl TransferTrace {
    /// Of a transfer that has tried nothing yet.
    pub(crate) fn new(request: &Request<'_>, bytes: Bytes) -> TransferTrace {
        TransferTrace {
            tensor: request.name.to_owned(),
            role: request.role,
            bytes,
            attempts: Vec::new(),
        }
    }

    /// How many attempts were made.
    pub(crate) fn tried(&self) -> u64 {
        let tried = self.attempts.iter();
        tried
            .filter(|attempt| !matches!(attempt.outcome, Outcome::Skipped { .. }))
            .count() as u64
    }

    /// How many arrivals were compared with what was sent.
    pub(crate) fn verified(&self) -> u64 {
        let compared = |attempt: &&Attempt| match &attempt.outcome {
            Outcome::Arrived { verified } => *verified,
            Outcome::Failed { failure } => matches!(failure, Failure::WrongBytes { .. }),
            Outcome::Skipped { .. } => false,
        };
        self.attempts.iter().filter(compared).count() as u64
    }

    /// How the last wrong arrival differed from what was sent.
    pub(crate) fn last_damage(&self) -> Option<&Damage> {
        let attempts = self.attempts.iter().rev();
        attempts
            .filter_map(|attempt| match &attempt.outcome {
                Outcome::Failed {
                    failure: Failure::WrongBytes { damage },
                } => Some(damage),
                _ => None,
            })
            .next()
    }

    /// Whether it arrived wrong at least once.
    fn is_mismatched(&self) -> bool {
        let mut attempts = self.attempts.iter();
        attempts.any(|attempt| {
            matches!(
                attempt.outcome,
                Outcome::Failed {
                    failure: Failure::WrongBytes { .. } | Failure::WrongCast { .. }
                }
            )
        })
    }

    /// Whether the tensor is on the host although the caller wanted it on the device.
    pub fn stayed_on_host(&self) -> bool {
        matches!(
            self.attempts.last(),
            Some(Attempt {
                strategy: TransferStrategy::StayOnHost,
                outcome: Outcome::Arrived { .. }
            })
        )
    }
}

impl fmt::Display for PlacementReport {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            formatter,
            "{:<14} {:>9} {:>12} {:>9}",
            "route", "tensors", "bytes", "verified"
        )?;
        for total in &self.routes {
            writeln!(
                formatter,
                "{:<14} {:>9} {:>12} {:>9}",
                total.strategy, total.tensors, total.bytes, total.verified
            )?;
        }
        if self.routes.is_empty() {
            writeln!(formatter, "nothing has been moved")?;
        }
        for trace in &self.traces {
            write!(formatter, "\n{trace}")?;
        }
        if self.traces_left_out > 0 {
            writeln!(
                formatter,
                "\nand {} more tensors with trouble",
                self.traces_left_out
            )?;
        }
        Ok(())
    }
}

impl fmt::Display for TransferTrace {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(formatter, "{} ({})", self.tensor, self.bytes)?;
        for attempt in &self.attempts {
            writeln!(formatter, "  {:<12} {}", attempt.strategy, attempt.outcome)?;
        }
        Ok(())
    }
}

impl fmt::Display for Outcome {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Outcome::Arrived { verified: true } => formatter.pad("arrived, verified"),
            Outcome::Arrived { verified: false } => formatter.pad("arrived, not verified"),
            Outcome::Skipped { why } => write!(formatter, "skipped: {why}"),
            Outcome::Failed { failure } => failure.fmt(formatter),
        }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Failure::Refused { message }
            | Failure::OutOfMemory { message, .. }
            | Failure::TimedOut { message }
            | Failure::Hung { message }
            | Failure::ContextLost { message } => formatter.pad(message),
            Failure::CastFailed { message } => {
                write!(formatter, "arrived, but the cast failed: {message}")
            }
            Failure::Unverifiable { message } => {
                write!(formatter, "arrived, but could not be verified: {message}")
            }
            Failure::WrongBytes { damage } => write!(formatter, "wrong bytes arrived: {damage}"),
            Failure::WrongCast { damage } => {
                write!(formatter, "the cast on the device is wrong: {damage}")
            }
            Failure::SourceChanged => formatter.pad("the source was written to while it moved"),
        }
    }
}
