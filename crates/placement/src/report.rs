//! What happened to each tensor on its way.
//!
//! A run moves many thousands of tensors, nearly all of them by the first rung. Those are only counted; a
//! tensor that needed more than its first rung keeps its whole story, up to a bound.

use std::fmt;

use serde::Serialize;

use crate::bytes::Bytes;
use crate::checksum::Damage;
use crate::rung::Rung;
use crate::transport::{Pool, TransportError};
use crate::verify::{Role, Verify};

/// The stories that are kept in full.
const STORIES: usize = 256;

/// Every move of one [`Ladder`](crate::Ladder), printable as a table and as JSON.
#[derive(Clone, Debug, Serialize)]
pub struct PlacementReport {
    /// How arrivals were verified.
    pub verify: Verify,
    /// The moves that ended on each rung, in the order of the ladder.
    pub routes: Vec<RouteTotal>,
    /// The tensors that did not arrive by the first rung open to them.
    pub stories: Vec<Story>,
    /// How many more of them there were than [`stories`](Self::stories) holds.
    pub stories_left_out: u64,
}

/// The moves that ended on one rung.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct RouteTotal {
    /// The rung.
    pub rung: Rung,
    /// Tensors.
    pub tensors: u64,
    /// Their size at the source.
    pub bytes: Bytes,
    /// How many of them were verified.
    pub verified: u64,
}

/// The way of one tensor.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Story {
    /// The tensor.
    pub tensor: String,
    /// What it is.
    pub role: Role,
    /// Its size at the source.
    pub bytes: Bytes,
    /// The rungs, in the order they were tried or passed over.
    pub attempts: Vec<Attempt>,
}

/// One rung and what came of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Attempt {
    /// The rung.
    pub rung: Rung,
    /// What came of it.
    #[serde(flatten)]
    pub outcome: Outcome,
}

/// What came of a rung.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "outcome", rename_all = "snake_case")]
pub enum Outcome {
    /// The tensor is where the rung puts it.
    Arrived {
        /// And its bytes were compared.
        verified: bool,
    },
    /// The rung made no sense here.
    Skipped {
        /// Why.
        why: &'static str,
    },
    /// It did not work.
    Failed {
        /// How.
        failure: Failure,
    },
}

/// How a rung failed.
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
            stories: Vec::new(),
            stories_left_out: 0,
        }
    }

    /// Adds the end of a move: counted when it went well at once, told when it did not.
    pub(crate) fn record(&mut self, story: Story) {
        if let Some(Attempt {
            rung,
            outcome: Outcome::Arrived { verified },
        }) = story.attempts.last()
        {
            let total = self.total_of(*rung);
            total.tensors += 1;
            total.bytes += story.bytes;
            total.verified += u64::from(*verified);
        }
        let uneventful = story.attempts.iter().all(|attempt| {
            attempt.rung != Rung::StayOnHost && !matches!(attempt.outcome, Outcome::Failed { .. })
        });
        if uneventful {
            return;
        }
        if self.stories.len() < STORIES {
            self.stories.push(story);
        } else {
            self.stories_left_out += 1;
        }
    }

    fn total_of(&mut self, rung: Rung) -> &mut RouteTotal {
        let at = match self.routes.binary_search_by_key(&rung, |total| total.rung) {
            Ok(at) => at,
            Err(at) => {
                let empty = RouteTotal {
                    rung,
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

    /// The tensors that stayed on the host, among the stories that were kept.
    pub fn stayed_on_host(&self) -> impl Iterator<Item = &Story> {
        self.stories.iter().filter(|story| story.stayed_on_host())
    }
}

impl Story {
    /// Whether the tensor is on the host against the wish of the caller.
    pub fn stayed_on_host(&self) -> bool {
        matches!(
            self.attempts.last(),
            Some(Attempt {
                rung: Rung::StayOnHost,
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
                total.rung, total.tensors, total.bytes, total.verified
            )?;
        }
        if self.routes.is_empty() {
            writeln!(formatter, "nothing has been moved")?;
        }
        for story in &self.stories {
            write!(formatter, "\n{story}")?;
        }
        if self.stories_left_out > 0 {
            writeln!(
                formatter,
                "\nand {} more tensors with trouble",
                self.stories_left_out
            )?;
        }
        Ok(())
    }
}

impl fmt::Display for Story {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(formatter, "{} ({})", self.tensor, self.bytes)?;
        for attempt in &self.attempts {
            writeln!(formatter, "  {:<12} {}", attempt.rung, attempt.outcome)?;
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
