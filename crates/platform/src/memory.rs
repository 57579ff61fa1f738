//! How much memory there really is.
//!
//! On a discrete card the driver knows. On an APU nothing does: the GPU allocates from host RAM, within three
//! limits that are set in different places (BIOS, kernel command line, cgroup), and the interfaces disagree:
//! sysfs shows the carve-out, `hipMemGetInfo` can report more free than total memory, and tools add numbers
//! that must not be added. The rules here are the kernel's.
//!
//! - [`mod@capacity`]: how much can be allocated, from given numbers.
//! - [`MemoryBudget`]: the same, from this machine's files.
//! - [`apu`]: which of its two pools an APU allocates from.
//! - [`host`]: `/proc/meminfo` and cgroups.
//! - [`MemoryPressure`]: how long programs stall on memory.

pub mod apu;
mod budget;
pub mod capacity;
pub mod host;
mod pressure;
mod video;

pub use apu::MemoryRule;
pub use budget::MemoryBudget;
pub use capacity::{Capacity, DeviceKind, Inputs, Limit, Reserve, capacity};
pub use host::{CgroupMemory, HostMemory};
pub use pressure::MemoryPressure;
pub use video::VideoMemory;
