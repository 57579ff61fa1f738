//! The allocators of this process: one for the host, one for each accelerator.
//!
//! Each is made at its first use, from the settings in the environment.

use crate::allocator::Allocator;
use crate::capacity::SystemMemory;
use crate::config::{Backend, Config, Reserve};
use crate::driver::Driver;
use crate::driver::host::HostDriver;
use crate::driver::sim::{SimDriver, SimOrders};
use crate::report;
use crate::units::DeviceIndex;
use platform::memory;
use std::sync::OnceLock;

/// More accelerators than any machine has.
const MOST_DEVICES: usize = 64;
/// Every address is a multiple of this: PyTorch's CPU kernels want 64.
const HOST_GRANULE: u64 = 64;
/// What PyTorch's own allocator aligns device memory to.
const DEVICE_GRANULE: u64 = 512;

/// The allocators of a process.
pub(crate) struct Registry {
    config: Config,
    host: OnceLock<Allocator>,
    devices: [OnceLock<Result<Allocator, String>>; MOST_DEVICES],
}

static REGISTRY: OnceLock<Registry> = OnceLock::new();

/// The registry; made at the first call. Settings that are wrong stop the program:
/// see the module of [`Config`].
pub(crate) fn registry() -> &'static Registry {
    REGISTRY.get_or_init(|| {
        let text = std::env::var("HIP_ALLOC_CONF").unwrap_or_default();
        let config = Config::parse(&text).unwrap_or_else(|error| {
            report::warn(&error.to_string());
            std::process::exit(2);
        });
        crate::ffi::watch_forks();
        Registry {
            config,
            host: OnceLock::new(),
            devices: [const { OnceLock::new() }; MOST_DEVICES],
        }
    })
}

/// The registry, if anything was allocated yet.
pub(crate) fn existing() -> Option<&'static Registry> {
    REGISTRY.get()
}

impl Registry {
    /// The allocator of a device; the error says why there is none.
    pub(crate) fn get(&self, device: DeviceIndex) -> Result<&Allocator, String> {
        if device == DeviceIndex::HOST {
            return Ok(self.host.get_or_init(|| self.on_host(device, HOST_GRANULE)));
        }
        let slot = usize::try_from(device.0)
            .ok()
            .and_then(|index| self.devices.get(index))
            .ok_or_else(|| format!("{device} does not exist: devices are numbered from 0 to {}, and the host is -1", MOST_DEVICES - 1))?;
        slot.get_or_init(|| self.open(device))
            .as_ref()
            .map_err(Clone::clone)
    }

    /// Every allocator made so far.
    pub(crate) fn all(&self) -> impl Iterator<Item = &Allocator> {
        let devices = self
            .devices
            .iter()
            .filter_map(|slot| slot.get()?.as_ref().ok());
        self.host.get().into_iter().chain(devices)
    }

    fn open(&self, device: DeviceIndex) -> Result<Allocator, String> {
        let driver: Box<dyn Driver> = match self.config.backend {
            Backend::Host | Backend::Auto => return Ok(self.on_host(device, DEVICE_GRANULE)),
            Backend::Sim => Box::new(SimDriver::new(SimOrders::default())),
            Backend::Hip => return Err("backend:hip is not there yet".to_owned()),
            Backend::Cuda => return Err("backend:cuda is not there yet".to_owned()),
        };
        Ok(Allocator::new(
            device,
            self.config.pool(DEVICE_GRANULE),
            driver,
        ))
    }

    fn on_host(&self, device: DeviceIndex, granule: u64) -> Allocator {
        let reserve = match self.config.reserve {
            Reserve::Auto => memory::Reserve::Auto,
            Reserve::Bytes(bytes) => memory::Reserve::Fixed(platform::Bytes(bytes)),
        };
        let driver = HostDriver::new(Box::new(SystemMemory::host(reserve)));
        Allocator::new(device, self.config.pool(granule), Box::new(driver))
    }
}
