//! How much memory training uses.

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
    #[cfg(windows)]
    return counters().map_or(0, |counters| counters.WorkingSetSize as u64);
    #[cfg(not(windows))]
    status_field("VmRSS:")
}

/// The most bytes this process ever had in main memory; 0 where the system does not say.
pub(crate) fn peak_resident_bytes() -> u64 {
    #[cfg(windows)]
    return counters().map_or(0, |counters| counters.PeakWorkingSetSize as u64);
    #[cfg(not(windows))]
    status_field("VmHWM:")
}

/// Bytes of main memory that this process can still have, and that there are for it: within its control groups,
/// and beside what is left to the rest of the machine.
pub(crate) fn of_the_machine() -> Option<(u64, u64)> {
    let mut memory = MemoryBudget::host(Reserve::Auto);
    #[cfg(windows)]
    {
        memory = memory.reading_host(|| platform::live::Live::default().host_memory());
    }
    let capacity = memory.host_capacity()?;
    Some((capacity.free.0, capacity.total.0))
}

#[cfg(windows)]
fn counters() -> Option<windows_sys::Win32::System::ProcessStatus::PROCESS_MEMORY_COUNTERS> {
    use windows_sys::Win32::System::ProcessStatus::{
        K32GetProcessMemoryInfo, PROCESS_MEMORY_COUNTERS,
    };
    use windows_sys::Win32::System::Threading::GetCurrentProcess;
    let mut counters = PROCESS_MEMORY_COUNTERS::default();
    // SAFETY: the handle means this process, and `counters` has that size and is written during the call.
    let is_told = unsafe {
        K32GetProcessMemoryInfo(
            GetCurrentProcess(),
            &mut counters,
            size_of_val(&counters) as u32,
        )
    };
    (is_told != 0).then_some(counters)
}

#[cfg(not(windows))]
fn status_field(name: &str) -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let value = status.lines().find_map(|line| line.strip_prefix(name));
    value
        .and_then(platform::Bytes::parse_tool_output)
        .map_or(0, |bytes| bytes.0)
}
