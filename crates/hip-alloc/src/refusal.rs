//! The message for a request that cannot be served.
//!
//! It uses PyTorch's own wording where possible, since programs search for it; then
//! follows what PyTorch cannot know: what limits memory, and how to raise the limit.

use crate::driver::{LimitedBy, MemoryInfo};
use crate::pool::{AllocateError, PoolStats};
use crate::units::DeviceIndex;
use platform::Bytes;
use platform::memory::Limit;

/// A request that was not served, with the complete message.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// Not enough memory: the program may free some and try again.
    #[error("{0}")]
    OutOfMemory(String),
    /// A smaller request would not help.
    #[error("{0}")]
    Failed(String),
}

/// What is known when a request is refused.
pub(crate) struct Situation<'a> {
    pub(crate) device: DeviceIndex,
    /// The name of the runtime, at the start of PyTorch's message.
    pub(crate) runtime: &'static str,
    pub(crate) requested: u64,
    pub(crate) error: &'a AllocateError,
    pub(crate) stats: PoolStats,
    /// `None` if the driver does not answer.
    pub(crate) info: Option<MemoryInfo>,
}

impl Situation<'_> {
    pub(crate) fn refusal(&self) -> Refusal {
        let Situation {
            runtime, requested, ..
        } = *self;
        match self.error {
            AllocateError::Driver(error) => Refusal::Failed(format!(
                "{runtime} allocation of {} failed: {error}.",
                human(requested)
            )),
            AllocateError::OutOfMemory => Refusal::OutOfMemory(self.out_of_memory()),
        }
    }

    fn out_of_memory(&self) -> String {
        let (runtime, stats) = (self.runtime, self.stats);
        let unused = stats.held_bytes.saturating_sub(stats.live_bytes);
        let mut message = format!(
            "{runtime} out of memory. Tried to allocate {}.",
            human(self.requested)
        );
        if let Some(info) = self.info {
            message += &format!(
                " {} has a total capacity of {} of which {} is free.",
                self.place(),
                human(info.total),
                human(info.free)
            );
        }
        message += &format!(
            " Of the memory held by hip-alloc, {} are allocated by the program, and {} are not ({} held).",
            human(stats.live_bytes),
            human(unused),
            human(stats.held_bytes)
        );
        let advice = [self.limit(), self.others(), self.pieces(unused)];
        for sentence in advice.into_iter().flatten() {
            message += " ";
            message += &sentence;
        }
        message
    }

    fn place(&self) -> String {
        match self.device {
            DeviceIndex::HOST => "The host".to_owned(),
            DeviceIndex(index) => format!("GPU {index}"),
        }
    }

    /// What limits memory here, if that can be changed.
    fn limit(&self) -> Option<String> {
        let info = self.info?;
        Some(match info.limited_by {
            LimitedBy::Fraction => {
                "The program itself set this limit, with set_per_process_memory_fraction."
                    .to_owned()
            }
            LimitedBy::Machine(Limit::Cgroup) => {
                "The control group of this process allows no more: its memory limit is raised with \
                 --memory (containers), MemoryMax= (systemd) or --mem (Slurm)."
                    .to_owned()
            }
            LimitedBy::Machine(Limit::HostMemory) => {
                "This is the machine's own memory, part of which stays reserved for everything \
                 else: end other programs, or reserve less with HIP_ALLOC_CONF=reserve_mb:1024."
                    .to_owned()
            }
            LimitedBy::Machine(Limit::TtmPagesLimit | Limit::Gtt) => {
                "The kernel lends GPUs no more of this machine's memory: `surefoot doctor` says \
                 how ttm.pages_limit is raised."
                    .to_owned()
            }
            LimitedBy::Machine(Limit::VideoBudget) => {
                "Windows gives this program no more of the GPU's memory: end other programs that use it."
                    .to_owned()
            }
            LimitedBy::Machine(Limit::KfdPool | Limit::Driver | Limit::Unknown)
            | LimitedBy::Device => return None,
        })
    }

    /// Memory of a card that is neither free nor ours.
    fn others(&self) -> Option<String> {
        let info = self.info?;
        let of_the_card = matches!(
            info.limited_by,
            LimitedBy::Device | LimitedBy::Machine(Limit::Driver)
        );
        let others = (info.total - info.free.min(info.total)).saturating_sub(self.stats.live_bytes);
        // A runtime needs some hundred MiB for itself.
        (of_the_card && self.device != DeviceIndex::HOST && others > info.total / 8).then(|| {
            format!(
                "Other processes, or the runtime itself, take {} of it.",
                human(others)
            )
        })
    }

    /// Memory that is available, but not contiguous.
    fn pieces(&self, unused: u64) -> Option<String> {
        (unused >= self.requested).then(|| {
            "What is held and not allocated lies in smaller pieces, in blocks that are still in use: \
             HIP_ALLOC_CONF=max_split_size_mb:32 lets fewer requests share a block."
                .to_owned()
        })
    }
}

/// Two decimals, as PyTorch's messages have.
fn human(bytes: u64) -> String {
    // PyTorch's own messages have no unit beyond GiB.
    match bytes >= 1 << 40 {
        true => format!("{:.2} GiB", Bytes(bytes).as_gib()),
        false => format!("{:.2}", Bytes(bytes)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::driver::DriverError;
    use crate::units::GIB;

    fn message(change: impl FnOnce(&mut Situation<'_>)) -> String {
        let mut situation = Situation {
            device: DeviceIndex(0),
            runtime: "HIP",
            requested: 2 * GIB,
            error: &AllocateError::OutOfMemory,
            stats: PoolStats {
                live_bytes: 13 * GIB,
                held_bytes: 14 * GIB,
                ..PoolStats::default()
            },
            info: Some(MemoryInfo {
                free: GIB,
                total: 15 * GIB,
                limited_by: LimitedBy::Device,
            }),
        };
        change(&mut situation);
        situation.refusal().to_string()
    }

    fn limited_by(limit: LimitedBy) -> String {
        message(|situation| {
            if let Some(info) = &mut situation.info {
                info.limited_by = limit;
            }
        })
    }

    #[test]
    fn the_words_are_those_of_pytorch() {
        assert_eq!(
            message(|_| ()),
            "HIP out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 15.00 GiB \
             of which 1.00 GiB is free. Of the memory held by hip-alloc, 13.00 GiB are allocated by \
             the program, and 1.00 GiB are not (14.00 GiB held)."
        );
    }

    #[test]
    fn what_ends_memory_is_named_with_what_widens_it() {
        for (limit, words) in [
            (LimitedBy::Fraction, "set_per_process_memory_fraction"),
            (LimitedBy::Machine(Limit::Cgroup), "MemoryMax="),
            (LimitedBy::Machine(Limit::HostMemory), "reserve_mb"),
            (LimitedBy::Machine(Limit::TtmPagesLimit), "ttm.pages_limit"),
            (LimitedBy::Machine(Limit::Gtt), "ttm.pages_limit"),
            (LimitedBy::Machine(Limit::VideoBudget), "other programs"),
        ] {
            assert!(limited_by(limit).contains(words), "{limit:?}");
        }
    }

    #[test]
    fn other_processes_on_the_card_are_told_of() {
        let alone = message(|_| ());
        let crowded = message(|situation| situation.stats.live_bytes = 5 * GIB);
        assert!(!alone.contains("Other processes"), "{alone}");
        assert!(crowded.contains("take 9.00 GiB of it"), "{crowded}");
    }

    #[test]
    fn memory_in_pieces_is_told_of() {
        let of_requests = |requested| message(|situation| situation.requested = requested);
        assert!(of_requests(GIB / 2).contains("max_split_size_mb"));
        assert!(!of_requests(2 * GIB).contains("max_split_size_mb"));
    }

    #[test]
    fn a_failure_is_not_called_a_lack_of_memory() {
        let error = AllocateError::Driver(DriverError::Failed {
            call: "Malloc",
            code: 700,
            message: "hipErrorIllegalAddress".to_owned(),
        });
        let situation = Situation {
            device: DeviceIndex(0),
            runtime: "HIP",
            requested: 2 * GIB,
            error: &error,
            stats: PoolStats::default(),
            info: None,
        };
        assert!(matches!(situation.refusal(), Refusal::Failed(_)));
        assert_eq!(
            situation.refusal().to_string(),
            "HIP allocation of 2.00 GiB failed: Malloc failed with error 700: hipErrorIllegalAddress."
        );
    }
}
