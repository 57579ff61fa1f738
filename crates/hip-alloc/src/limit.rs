//! The program's own limit on held memory: `set_per_process_memory_fraction`.
//!
//! The pool allocates no more than that from any driver; this computes what remains of the memory
//! that the driver reports.

use crate::driver::{LimitedBy, MemoryInfo};

/// The memory that remains under a limit when `held` bytes are ours.
pub(crate) fn within(limit: u64, held: u64, memory: MemoryInfo) -> MemoryInfo {
    let free = limit.saturating_sub(held);
    MemoryInfo {
        free: memory.free.min(free),
        total: memory.total.min(limit),
        limited_by: if free < memory.free {
            LimitedBy::Fraction
        } else {
            memory.limited_by
        },
    }
}

#[cfg(test)]
mod tests {
    use super::within;
    use crate::driver::{LimitedBy, MemoryInfo};

    const MACHINE: MemoryInfo = MemoryInfo {
        free: 700,
        total: 1000,
        limited_by: LimitedBy::Device,
    };

    #[test]
    fn without_a_limit_there_is_what_the_machine_has() {
        assert_eq!(within(u64::MAX, 250, MACHINE), MACHINE);
    }

    #[test]
    fn what_is_held_counts_against_the_limit() {
        let limit = 400;
        let (free, total) = (150, 400);
        let limited_by = LimitedBy::Fraction;
        let narrowed = MemoryInfo {
            free,
            total,
            limited_by,
        };
        assert_eq!(within(limit, 250, MACHINE), narrowed);
    }

    #[test]
    fn a_limit_that_is_not_reached_is_not_blamed() {
        let limit = 990;
        assert_eq!(within(limit, 100, MACHINE).limited_by, LimitedBy::Device);
    }

    #[test]
    fn a_limit_below_what_is_held_leaves_nothing() {
        let limit = 100;
        assert_eq!(within(limit, 250, MACHINE).free, 0);
    }
}
