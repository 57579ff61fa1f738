//! How much memory training uses.

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

/// Bytes of main memory that programs can still have, and that there are.
pub(crate) fn of_the_machine() -> Option<(u64, u64)> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let field = |name: &str| -> Option<u64> {
        let rest = text.lines().find_map(|line| line.strip_prefix(name))?;
        Some(rest.split_whitespace().next()?.parse::<u64>().ok()? * 1024)
    };
    Some((field("MemAvailable:")?, field("MemTotal:")?))
}

fn status_field(name: &str) -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix(name));
    let kibibytes = line.and_then(|rest| rest.split_whitespace().next()?.parse::<u64>().ok());
    kibibytes.unwrap_or(0) * 1024
}
