//! The memory of this machine, for the drivers.

use crate::driver::host::HostMemory;
use crate::driver::runtime::{Family, PciDevice};
use crate::driver::{LimitedBy, MemoryInfo};
use platform::Bytes;
use platform::memory::{Capacity, DeviceKind};

pub use platform::memory::{MemoryBudget, Reserve};
use platform::pci::PciAddress;

/// The memory budget of this process on a GPU. `place` is `None` if only the
/// driver's numbers are known.
pub(crate) fn budget_of_gpu(place: Option<PciDevice>, reserve: Reserve) -> MemoryBudget {
    let kind = match place {
        Some(place) if place.integrated && place.family == Family::Hip => DeviceKind::Apu,
        Some(place) if place.integrated => DeviceKind::Unified,
        _ => DeviceKind::Discrete,
    };
    let address = place.and_then(|place| {
        Some(PciAddress {
            domain: place.domain,
            bus: place.bus.try_into().ok()?,
            device: place.slot.try_into().ok()?,
            function: 0,
        })
    });
    MemoryBudget::gpu(kind, address, reserve)
}

/// The driver's numbers, limited to what the machine really has.
pub(crate) fn bound(budget: &mut MemoryBudget, driver: MemoryInfo) -> MemoryInfo {
    info(budget.capacity(Some((Bytes(driver.free), Bytes(driver.total)))))
}

impl HostMemory for MemoryBudget {
    fn read(&mut self, untouched: u64) -> MemoryInfo {
        let info = info(self.capacity(None));
        MemoryInfo {
            free: info.free.saturating_sub(untouched),
            ..info
        }
    }
}

fn info(capacity: Capacity) -> MemoryInfo {
    MemoryInfo {
        free: capacity.free.0,
        total: capacity.total.0,
        limited_by: LimitedBy::Machine(capacity.free_limited_by),
    }
}
