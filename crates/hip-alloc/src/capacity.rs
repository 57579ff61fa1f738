//! The memory of this machine, for the drivers.

use crate::driver::gpu::Bound;
use crate::driver::host::HostMemory;
use crate::driver::runtime::{Family, PciDevice};
use crate::driver::{LimitedBy, MemoryInfo};
use crate::system;
use platform::Bytes;
use platform::memory::{Capacity, DeviceKind, VideoMemory};

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
    system::budget(MemoryBudget::gpu(kind, address, reserve))
}

/// The memory budget of the host.
pub(crate) fn budget_of_host(reserve: Reserve) -> MemoryBudget {
    system::budget(MemoryBudget::host(reserve))
}

/// Limits the driver's numbers to what the machine really has; `video` is what the system itself says of the device,
/// which then also stands in for a driver that does not answer.
pub(crate) fn bound(
    mut budget: MemoryBudget,
    mut video: impl FnMut() -> Option<VideoMemory> + Send + 'static,
) -> Bound {
    Box::new(move |driver| {
        let video = video();
        let numbers = match driver {
            Ok(driver) => Some((Bytes(driver.free), Bytes(driver.total))),
            Err(error) if video.is_none() || error.loses_device() => return Err(error),
            Err(_) => None,
        };
        Ok(info(budget.capacity_within(numbers, video)))
    })
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
