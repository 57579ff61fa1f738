//! Which transfers are verified.
//!
//! [`crate::transfer::checksum`] and [`crate::transfer`] define how; this module decides *when*. A device
//! that has once delivered wrong bytes is no longer trusted: from then on, `first` and `sample` verify like
//! `always`.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::num::NonZeroU32;
use std::str::FromStr;

use serde::{Serialize, Serializer};

use crate::transfer::strategy::TransferStrategy;

/// How often transfers are verified.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Verify {
    /// Never. Wrong bytes go unnoticed.
    Off,
    /// Each weight once, and each batch field once per strategy.
    #[default]
    First,
    /// Every transfer.
    Always,
    /// Each weight once, and a sample of the batches.
    Sample {
        /// The first batch and then one in this many are verified.
        one_in: NonZeroU32,
    },
}

/// The role of a tensor, which determines how often it moves.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    /// A parameter or buffer of a module: moves once, or repeatedly with the same bytes.
    Weight,
    /// Part of a batch: new bytes each time, under the same name.
    Batch,
}

/// A text that names no mode.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{0}` is not a verification mode: use `off`, `first`, `always`, `sample` or `sample:N` (one batch in N)"
)]
pub struct ParseVerifyError(String);

impl Verify {
    /// One batch in 64: `sample` without a number.
    pub const SAMPLE: Verify = Verify::Sample {
        one_in: NonZeroU32::new(64).expect("64 is not 0"),
    };
}

impl FromStr for Verify {
    type Err = ParseVerifyError;

    fn from_str(text: &str) -> Result<Verify, ParseVerifyError> {
        match text {
            "off" => Ok(Verify::Off),
            "first" => Ok(Verify::First),
            "always" => Ok(Verify::Always),
            "sample" => Ok(Verify::SAMPLE),
            _ => text
                .strip_prefix("sample:")
                .and_then(|number| number.parse().ok())
                .map(|one_in| Verify::Sample { one_in })
                .ok_or_else(|| ParseVerifyError(text.to_owned())),
        }
    }
}

impl fmt::Display for Verify {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Verify::Off => formatter.pad("off"),
            Verify::First => formatter.pad("first"),
            Verify::Always => formatter.pad("always"),
            Verify::Sample { one_in } => formatter.pad(&format!("sample:{one_in}")),
        }
    }
}

impl Serialize for Verify {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// Records what has been verified and decides what will be.
#[derive(Debug)]
pub(crate) struct VerificationTracker {
    verify: Verify,
    seen_weights: HashSet<String>,
    seen_batches: HashSet<(String, TransferStrategy)>,
    /// Number of batches so far, for each field that `sample` counts.
    batches: HashMap<String, u64>,
    distrusts: bool,
}

impl VerificationTracker {
    pub(crate) fn new(verify: Verify) -> VerificationTracker {
        VerificationTracker {
            verify,
            seen_weights: HashSet::new(),
            seen_batches: HashSet::new(),
            batches: HashMap::new(),
            distrusts: false,
        }
    }

    /// Starts a new move: whether this mode selects it, whatever the strategy. All fields of a batch are
    /// selected together.
    pub(crate) fn begin(&mut self, name: &str, role: Role) -> SampleDecision {
        let (Verify::Sample { one_in }, Role::Batch) = (self.verify, role) else {
            return SampleDecision { sampled: false };
        };
        let number = match self.batches.get_mut(name) {
            Some(number) => number,
            None => self.batches.entry(name.to_owned()).or_default(),
        };
        let sampled = number.is_multiple_of(u64::from(one_in.get()));
        *number += 1;
        SampleDecision { sampled }
    }

    /// Whether a transfer by this strategy has to be verified.
    pub(crate) fn wants(
        &self,
        decision: SampleDecision,
        name: &str,
        role: Role,
        strategy: TransferStrategy,
    ) -> bool {
        match (self.verify, role) {
            (Verify::Off, _) => false,
            (Verify::Always, _) => true,
            _ if self.distrusts => true,
            (Verify::First | Verify::Sample { .. }, Role::Weight) => {
                !self.seen_weights.contains(name)
            }
            (Verify::First, Role::Batch) => {
                !self.seen_batches.contains(&(name.to_owned(), strategy))
            }
            (Verify::Sample { .. }, Role::Batch) => decision.sampled,
        }
    }

    /// A transfer was verified and intact.
    pub(crate) fn passed(&mut self, name: &str, role: Role, strategy: TransferStrategy) {
        // `always` and `off` do not use this, so they need not keep a name per tensor.
        match (self.verify, role) {
            (Verify::First | Verify::Sample { .. }, Role::Weight) => {
                self.seen_weights.insert(name.to_owned());
            }
            (Verify::First, Role::Batch) => {
                self.seen_batches.insert((name.to_owned(), strategy));
            }
            _ => {}
        }
    }

    /// A weight has changed since its last transfer.
    pub(crate) fn forget(&mut self, name: &str) {
        self.seen_weights.remove(name);
    }

    /// A transfer was damaged.
    pub(crate) fn distrust(&mut self) {
        self.distrusts = true;
    }
}

/// Whether a move was selected for verification.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SampleDecision {
    sampled: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Moves one tensor through a tracker and says whether it was verified.
    fn moved(
        tracker: &mut VerificationTracker,
        name: &str,
        role: Role,
        strategy: TransferStrategy,
    ) -> bool {
        let decision = tracker.begin(name, role);
        let wanted = tracker.wants(decision, name, role, strategy);
        if wanted {
            tracker.passed(name, role, strategy);
        }
        wanted
    }

    #[test]
    fn reads_and_prints_every_mode() {
        for text in ["off", "first", "always", "sample:64", "sample:3"] {
            assert_eq!(text.parse::<Verify>().unwrap().to_string(), text);
        }
        assert_eq!("sample".parse(), Ok(Verify::SAMPLE));
        for text in ["", "on", "sample:0", "sample:x", "Always"] {
            assert!(text.parse::<Verify>().is_err(), "{text}");
        }
    }

    #[test]
    fn first_verifies_a_weight_once_on_whatever_route() {
        let mut tracker = VerificationTracker::new(Verify::First);
        assert!(moved(
            &mut tracker,
            "w",
            Role::Weight,
            TransferStrategy::Direct
        ));
        assert!(!moved(
            &mut tracker,
            "w",
            Role::Weight,
            TransferStrategy::Direct
        ));
        assert!(!moved(
            &mut tracker,
            "w",
            Role::Weight,
            TransferStrategy::Staged
        ));
        assert!(moved(
            &mut tracker,
            "v",
            Role::Weight,
            TransferStrategy::Direct
        ));
    }

    #[test]
    fn first_verifies_a_batch_once_on_each_route() {
        let mut tracker = VerificationTracker::new(Verify::First);
        assert!(moved(
            &mut tracker,
            "tokens",
            Role::Batch,
            TransferStrategy::Direct
        ));
        assert!(!moved(
            &mut tracker,
            "tokens",
            Role::Batch,
            TransferStrategy::Direct
        ));
        assert!(moved(
            &mut tracker,
            "tokens",
            Role::Batch,
            TransferStrategy::Staged
        ));
    }

    #[test]
    fn sample_takes_the_first_and_each_nth_batch() {
        let mut tracker = VerificationTracker::new("sample:3".parse().unwrap());
        let taken: Vec<bool> = (0..7)
            .map(|_| moved(&mut tracker, "b", Role::Batch, TransferStrategy::Direct))
            .collect();
        assert_eq!(taken, [true, false, false, true, false, false, true]);
    }

    #[test]
    fn all_fields_of_a_sampled_batch_are_taken() {
        let mut tracker = VerificationTracker::new("sample:2".parse().unwrap());
        let mut field = |name| moved(&mut tracker, name, Role::Batch, TransferStrategy::Direct);
        for batch in 0..4 {
            assert_eq!([field("ids"), field("labels")], [batch % 2 == 0; 2]);
        }
    }

    #[test]
    fn a_wrong_arrival_ends_the_trust() {
        for mode in [Verify::First, Verify::SAMPLE] {
            let mut tracker = VerificationTracker::new(mode);
            moved(&mut tracker, "w", Role::Weight, TransferStrategy::Direct);
            tracker.distrust();
            assert!(
                moved(&mut tracker, "w", Role::Weight, TransferStrategy::Direct),
                "{mode}"
            );
        }
        let mut off = VerificationTracker::new(Verify::Off);
        off.distrust();
        assert!(!moved(
            &mut off,
            "w",
            Role::Weight,
            TransferStrategy::Direct
        ));
    }
}
