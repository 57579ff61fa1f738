//! A limit of the program's own on what it holds: `set_per_process_memory_fraction`.
//!
//! It narrows what the drivers know as the memory of their device, so that everything that
//! follows from running out (giving back what is empty, the message, what is free) follows
//! from this limit too.

use crate::driver::host::HostMemory;
use crate::driver::{LimitedBy, MemoryInfo};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// How many bytes may be held; shared between a driver, which obeys it, and the allocator
/// around it, which sets it under its lock.
#[derive(Clone)]
pub(crate) struct Limit(Arc<AtomicU64>);

impl Default for Limit {
    fn default() -> Self {
        Limit(Arc::new(AtomicU64::new(u64::MAX)))
    }
}

impl Limit {
    pub(crate) fn set(&self, bytes: u64) {
        // Read under the same lock as it is written: no order is needed.
        self.0.store(bytes, Ordering::Relaxed);
    }

    pub(crate) fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    /// What is left of a device's memory when we hold `held` bytes.
    pub(crate) fn narrow(&self, memory: MemoryInfo, held: u64) -> MemoryInfo {
        let limit = self.get();
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

    /// The memory of the host within the limit.
    pub(crate) fn over(self, memory: impl HostMemory) -> impl HostMemory {
        Limited {
            memory,
            limit: self,
        }
    }
}

struct Limited<M> {
    memory: M,
    limit: Limit,
}

impl<M: HostMemory> HostMemory for Limited<M> {
    fn read(&mut self, held: u64) -> MemoryInfo {
        self.limit.narrow(self.memory.read(held), held)
    }
}

#[cfg(test)]
mod tests {
    use super::Limit;
    use crate::driver::{LimitedBy, MemoryInfo};

    const MACHINE: MemoryInfo = MemoryInfo {
        free: 700,
        total: 1000,
        limited_by: LimitedBy::Device,
    };

    #[test]
    fn without_a_limit_there_is_what_the_machine_has() {
        assert_eq!(Limit::default().narrow(MACHINE, 250), MACHINE);
    }

    #[test]
    fn what_is_held_counts_against_the_limit() {
        let limit = Limit::default();
        limit.set(400);
        let (free, total) = (150, 400);
        let limited_by = LimitedBy::Fraction;
        let narrowed = MemoryInfo {
            free,
            total,
            limited_by,
        };
        assert_eq!(limit.narrow(MACHINE, 250), narrowed);
    }

    #[test]
    fn a_limit_that_is_not_reached_is_not_blamed() {
        let limit = Limit::default();
        limit.set(990);
        assert_eq!(limit.narrow(MACHINE, 100).limited_by, LimitedBy::Device);
    }

    #[test]
    fn a_limit_below_what_is_held_leaves_nothing() {
        let limit = Limit::default();
        limit.set(100);
        assert_eq!(limit.narrow(MACHINE, 250).free, 0);
    }
}
