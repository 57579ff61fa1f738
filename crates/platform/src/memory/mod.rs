//! How much memory there really is.
//!
//! On a discrete card the driver knows. On an APU nobody does: the GPU allocates
//! from the RAM of the host, behind three limits that are set in different places
//! (BIOS, kernel command line, cgroup), and the interfaces disagree: sysfs shows
//! the carve-out, `hipMemGetInfo` can report more free than there is in total, and
//! tools add numbers up that must not be added. The rules here are the kernel's.
//!
//! - [`mod@capacity`]: the one honest number, for an allocator.
//! - [`apu`]: which of its two pools an APU allocates from.
//! - [`host`]: `/proc/meminfo` and cgroups.

pub mod apu;
pub mod capacity;
pub mod host;

pub use apu::MemoryRule;
pub use capacity::{Capacity, DeviceKind, Inputs, Limit, Reserve, capacity};
pub use host::{CgroupMemory, HostMemory};
