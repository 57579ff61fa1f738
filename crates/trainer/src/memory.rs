//! How much memory training uses.

use platform::Bytes;
use platform::memory::{MemoryBudget, Reserve};
use serde::{Deserialize, Serialize};

/// One look at the memory of the run's device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemorySample {
    /// Bytes in tensors; `None` without an allocator that counts them.
    pub live: Option<u64>,
    /// Bytes that the allocator holds.
    pub held: Option<u64>,
    /// Most bytes in tensors since the last look.
    pub live_peak: Option<u64>,
    /// Most bytes held since the last look.
    pub held_peak: Option<u64>,
    /// Bytes of this process in main memory.
    pub resident: u64,
}

impl MemorySample {
    /// What to show as the one number: what the allocator held at most since the last look
    /// where that is known, else the process.
    pub fn headline(&self) -> u64 {
        self.held_peak.unwrap_or(self.resident)
    }
}

/// Bytes of this process in main memory; 0 where the system does not say.
pub(crate) fn resident_bytes() -> u64 {
    status_field("VmRSS:")
}

/// The most bytes this process ever had in main memory; 0 where the system does not say.
pub(crate) fn peak_resident_bytes() -> u64 {
    status_field("VmHWM:")
}

/// Bytes of main memory that this process can still have, and that there are for it: within its control groups,
/// and beside what is left to the rest of the machine.
pub(crate) fn of_the_machine() -> Option<(u64, u64)> {
    let capacity = MemoryBudget::host(Reserve::Auto).host_capacity()?;
    Some((capacity.free.0, capacity.total.0))
}

fn status_field(name: &str) -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let value = status.lines().find_map(|line| line.strip_prefix(name));
    value
        .and_then(Bytes::parse_tool_output)
        .map_or(0, |bytes| bytes.0)
}
