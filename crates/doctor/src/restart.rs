//! Whether a program that died of a page fault on the GPU is started again: at most three times, and only while it
//! comes further. Which address faults depends on where memory happens to be mapped, so the next try often gets past
//! the place; but with the same data in the same order it may also die there each time
//! (ROCm/legacy-rocm-build#6600).

use crate::explain::Catalogue;
use serde::{Deserialize, Serialize};

/// The most restarts of one program.
pub const MOST: u32 = 3;

/// Whether this output is the end of a program that a page fault ended: its entries in the catalogue have `page_fault`.
#[must_use]
pub fn is_page_fault(output: &str) -> bool {
    let catalogue = Catalogue::built_in();
    output.lines().any(|line| catalogue.is_page_fault(line))
}

/// What is said of a start from the checkpoint of `step`, the `count`th.
#[must_use]
pub fn announced(step: Option<u64>, count: u32) -> String {
    let from = match step {
        Some(step) => format!("from its checkpoint of step {step}"),
        None => "from the beginning".to_owned(),
    };
    format!("starting it again {from} (restart {count} of {MOST})")
}

/// The restarts of one program so far.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Restarts {
    count: u32,
    /// How far it had come at the last fault.
    reached: Option<String>,
}

/// Why a program is not started again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// It was, often enough.
    #[error("it was started again {MOST} times")]
    TooOften,
    /// It died at the same place.
    #[error("it came no further than before the fault before")]
    NoProgress,
}

impl Restarts {
    /// How many there were.
    #[must_use]
    pub fn count(&self) -> u32 {
        self.count
    }

    /// Whether there was none.
    #[must_use]
    pub fn are_none(&self) -> bool {
        self.count == 0
    }

    /// Counts another restart of a program that had come as far as `reached`.
    ///
    /// # Errors
    /// Why it should not be started again.
    pub fn next(&mut self, reached: String) -> Result<u32, Refusal> {
        if self.count >= MOST {
            return Err(Refusal::TooOften);
        }
        if self.reached.as_ref() == Some(&reached) {
            return Err(Refusal::NoProgress);
        }
        self.count += 1;
        self.reached = Some(reached);
        Ok(self.count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn three_restarts_are_allowed_and_none_without_progress() {
        let mut restarts = Restarts::default();
        assert_eq!(restarts.next("step 10".into()), Ok(1));
        assert_eq!(restarts.next("step 10".into()), Err(Refusal::NoProgress));
        assert_eq!(restarts.next("step 20".into()), Ok(2));
        assert_eq!(restarts.next("step 30".into()), Ok(3));
        assert_eq!(restarts.next("step 40".into()), Err(Refusal::TooOften));
    }

    #[test]
    fn a_page_fault_is_told_from_other_ends() {
        for fault in [
            "Memory access fault by GPU node-1 (Agent handle: 0x1) on address 0x7f0000000000. Reason: Page not present.",
            ":0:rocdevice.cpp :3678: 21989940725 us:  Memory Fault Error [host: a, GPU index: 0, faulting addr: 0x7f1665600000]",
            "RuntimeError: CUDA error: an illegal memory access was encountered",
        ] {
            assert!(is_page_fault(fault), "{fault}");
        }
        for other in [
            "HIP out of memory. Tried to allocate 2.00 GiB",
            "Segmentation fault (core dumped)",
            "HIP error: invalid device function",
        ] {
            assert!(!is_page_fault(other), "{other}");
        }
    }
}
