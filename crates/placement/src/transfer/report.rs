//! What happened to each tensor.
//!
//! A run moves many thousands of tensors, nearly all of them with the first strategy. Those are only counted;
//! for the others the whole trace is kept, up to a limit.

use std::fmt;

use serde::Serialize;

use crate::transfer::checksum::Damage;
use crate::transfer::policy::Request;
use crate::transfer::strategy::TransferStrategy;
use crate::transfer::transport::{Pool, TransportError};
use crate::transfer::verify::{Role, Verify};
use platform::Bytes;

/// Maximum number of traces kept.
const MAX_TRACES: usize = 256;

/// All moves of a [`TransferEngine`](crate::TransferEngine); can be printed as a table or as JSON.
#[derive(Clone, Debug, Serialize)]
pub struct PlacementReport {
    /// The verification mode.
    pub verify: Verify,
    /// The moves that ended with each strategy, in the engine's order.
    pub routes: Vec<RouteTotal>,
    /// Tensors that did not arrive with the first applicable strategy.
    pub traces: Vec<TransferTrace>,
    /// Number of further such tensors, beyond those in [`traces`](Self::traces).
    pub traces_left_out: u64,
    /// Counts of these tensors by problem, including those without a trace.
    #[serde(skip)]
    pub trouble: ProblemCounts,
}

/// Numbers of tensors with problems.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ProblemCounts {
    /// Tensors that needed another try, stayed on the host, or did not arrive at all.
    pub tensors: u64,
    /// How many of these arrived damaged, or were cast incorrectly.
    pub mismatched: u64,
    /// How many of these stayed on the host.
    pub on_host: u64,
}

/// The moves that ended with one strategy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct RouteTotal {
    /// The strategy.
    pub strategy: TransferStrategy,
    /// Number of tensors.
    pub tensors: u64,
    /// Their total size at the source.
    pub bytes: Bytes,
    /// Number of verified tensors.
    pub verified: u64,
}

/// The history of one tensor's transfer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct TransferTrace {
    /// Name of the tensor.
    pub tensor: String,
    /// Weight or batch.
    pub role: Role,
    /// Its size at the source.
    pub bytes: Bytes,
    /// The strategies, in the order in which they were tried or skipped.
    pub attempts: Vec<Attempt>,
}

/// A strategy and its outcome.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Attempt {
    /// The strategy.
    pub strategy: TransferStrategy,
    /// Its outcome.
    #[serde(flatten)]
    pub outcome: Outcome,
}

/// The outcome of a strategy.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "outcome", rename_all = "snake_case")]
pub enum Outcome {
    /// The tensor arrived.
    Arrived {
        /// Whether its bytes were compared.
        verified: bool,
    },
    /// The strategy does not apply.
    Skipped {
        /// The reason.
        why: &'static str,
    },
    /// It failed.
    Failed {
        /// What went wrong.
        failure: Failure,
    },
}

/// How a strategy failed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
#[allow(missing_docs)] // The variants explain the fields.
pub enum Failure {
    /// The device refused the operation.
    Refused { message: String },
    /// Memory ran out, even after trimming.
    OutOfMemory { pool: Pool, message: String },
    /// An operation missed its deadline, but the device responded afterwards.
    TimedOut { message: String },
    /// An operation missed its deadline, and the device does not respond.
    Hung { message: String },
    /// The device is unusable.
    ContextLost { message: String },
    /// The received bytes differ from those sent.
    WrongBytes { damage: Damage },
    /// The right bytes arrived, but the device's cast of them is wrong.
    WrongCast { damage: Damage },
    /// The right bytes arrived, but the device could not cast them.
    CastFailed { message: String },
    /// Neither a device checksum nor a read-back was possible.
    Unverifiable { message: String },
    /// The source was written to during the transfer.
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
            trouble: ProblemCounts::default(),
        }
    }

    /// Adds a finished move: only counted if it succeeded at once, otherwise traced.
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

    /// Keeps the trace of a transfer that had problems.
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

    /// The tensors that stayed on the host, among the kept traces.
    pub fn stayed_on_host(&self) -> impl Iterator<Item = &TransferTrace> {
        self.traces.iter().filter(|trace| trace.stayed_on_host())
    }
}

impl TransferTrace {
    /// For a transfer that has not tried anything yet.
    pub(crate) fn new(request: &Request<'_>, bytes: Bytes) -> TransferTrace {
        TransferTrace {
            tensor: request.name.to_owned(),
            role: request.role,
            bytes,
            attempts: Vec::new(),
        }
    }

    /// Number of attempts.
    pub(crate) fn tried(&self) -> u64 {
        let tried = self.attempts.iter();
        tried
            .filter(|attempt| !matches!(attempt.outcome, Outcome::Skipped { .. }))
            .count() as u64
    }

    /// Number of arrivals that were compared with the source.
    pub(crate) fn verified(&self) -> u64 {
        let compared = |attempt: &&Attempt| match &attempt.outcome {
            Outcome::Arrived { verified } => *verified,
            Outcome::Failed { failure } => matches!(failure, Failure::WrongBytes { .. }),
            Outcome::Skipped { .. } => false,
        };
        self.attempts.iter().filter(compared).count() as u64
    }

    /// The damage of the last damaged arrival.
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

    /// Whether it arrived damaged at least once.
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

    /// Whether the tensor is on the host although it was requested on the device.
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
                "\nand {} more tensors with problems",
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
