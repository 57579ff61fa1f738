//! The allocators of this process: one for the host, one for each accelerator.
//!
//! Each is made at its first use, from the settings in the environment.

use crate::allocator::Allocator;
use crate::capacity::SystemMemory;
use crate::config::{Backend, Config, Mapped, Reserve};
use crate::driver::Driver;
use crate::driver::gpu::{Bound, GpuDriver};
use crate::driver::host::HostDriver;
use crate::driver::runtime::{self, Family, Runtime, Search};
use crate::driver::sim::{SimDriver, SimOrders};
use crate::fork::making;
use crate::limit::Limit;
use crate::lock::Slot;
use crate::report;
use crate::trace::record::Recorder;
use crate::units::DeviceIndex;
use platform::memory;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// More accelerators than any machine has.
const MOST_DEVICES: usize = 64;
/// Every address is a multiple of this: PyTorch's CPU kernels want 64.
const HOST_GRANULE: u64 = 64;
/// What PyTorch's own allocator aligns device memory to.
const DEVICE_GRANULE: u64 = 512;

/// The allocators of a process.
pub(crate) struct Registry {
    config: Config,
    /// `HIP_ALLOC_TRACE`.
    trace: Option<PathBuf>,
    /// The process that records; its forked children have the same name for the file.
    process: u32,
    /// Whether a device records to the file of that name already.
    recording: AtomicBool,
    /// How many entries of history each device keeps.
    history: AtomicUsize,
    host: Slot<Allocator>,
    devices: [Slot<Result<Allocator, String>>; MOST_DEVICES],
}

static REGISTRY: Slot<Registry> = Slot::new();

/// The registry; made at the first call. Settings that are wrong stop the program:
/// see the module of [`Config`].
pub(crate) fn registry() -> &'static Registry {
    if let Some(registry) = REGISTRY.get() {
        return registry;
    }
    crate::ffi::watch_forks();
    making(|| REGISTRY.get_or_make(make_registry))
}

fn make_registry() -> Registry {
    let text = std::env::var("HIP_ALLOC_CONF").unwrap_or_default();
    let config = Config::parse(&text).unwrap_or_else(|error| {
        report::warn(&error.to_string());
        std::process::exit(2);
    });
    crate::ffi::watch_exit();
    Registry {
        config,
        trace: std::env::var_os("HIP_ALLOC_TRACE")
            .filter(|name| !name.is_empty())
            .map(PathBuf::from),
        process: std::process::id(),
        recording: AtomicBool::new(false),
        history: AtomicUsize::new(0),
        host: Slot::new(),
        devices: [const { Slot::new() }; MOST_DEVICES],
    }
}

/// The registry, if anything was allocated yet.
pub(crate) fn existing() -> Option<&'static Registry> {
    REGISTRY.get()
}

impl Registry {
    /// The allocator of a device; the error says why there is none.
    pub(crate) fn get(&self, device: DeviceIndex) -> Result<&Allocator, String> {
        if device == DeviceIndex::HOST {
            if let Some(allocator) = self.host.get() {
                return Ok(allocator);
            }
            let make = || self.host.get_or_make(|| self.on_host(device, HOST_GRANULE));
            return Ok(making(make));
        }
        let slot = usize::try_from(device.0)
            .ok()
            .and_then(|index| self.devices.get(index))
            .ok_or_else(|| format!("{device} does not exist: devices are numbered from 0 to {}, and the host is -1", MOST_DEVICES - 1))?;
        let opened = match slot.get() {
            Some(opened) => opened,
            None => making(|| slot.get_or_make(|| self.open(device))),
        };
        opened.as_ref().map_err(Clone::clone)
    }

    /// Every allocator made so far.
    pub(crate) fn all(&self) -> impl Iterator<Item = &Allocator> {
        let devices = self
            .devices
            .iter()
            .filter_map(|slot| slot.get()?.as_ref().ok());
        self.host.get().into_iter().chain(devices)
    }

    /// Keeps this many entries of history of each device, also of those that come later.
    pub(crate) fn keep_history(&self, entries: usize) {
        self.history.store(entries, Ordering::Relaxed);
        self.all()
            .for_each(|allocator| allocator.keep_history(entries));
    }

    fn open(&self, device: DeviceIndex) -> Result<Allocator, String> {
        let found = match self.config.backend {
            Backend::Host => return Ok(self.on_host(device, DEVICE_GRANULE)),
            Backend::Sim => {
                let driver = Box::new(SimDriver::new(SimOrders::default()));
                return Ok(self.make(device, DEVICE_GRANULE, driver, Limit::default()));
            }
            Backend::Auto => match self.loaded_runtime() {
                Some(found) => found,
                None => return Ok(self.on_host(device, DEVICE_GRANULE)),
            },
            Backend::Hip => usable(Family::Hip, Search::LoadedOrDisk)?,
            Backend::Cuda => usable(Family::Cuda, Search::LoadedOrDisk)?,
        };
        let (runtime, devices) = found;
        if device.0 >= devices {
            return Err(format!(
                "{device} does not exist: the {:?} runtime has {devices}, numbered from 0",
                runtime.family
            ));
        }
        let mut memory = SystemMemory::device(runtime.place(device), self.reserve());
        let limit = Limit::default();
        let ours = limit.clone();
        let bound: Bound = Box::new(move |driver, held| ours.narrow(memory.bound(driver), held));
        let mut driver = GpuDriver::new(Arc::new(runtime), device, bound);
        if self.config.mapped == Mapped::On
            && let Err(problem) = driver.map_memory()
        {
            report::warn(&format!("{device}: memory is not mapped: {problem}"));
        }
        Ok(self.make(device, DEVICE_GRANULE, Box::new(driver), limit))
    }

    /// The runtime that the process uses, if it has a device: PyTorch's, where there is one.
    fn loaded_runtime(&self) -> Option<(Runtime, i32)> {
        let likely = runtime::of_pytorch();
        likely
            .into_iter()
            .chain([Family::Hip, Family::Cuda])
            .find_map(|family| usable(family, Search::Loaded).ok())
    }

    fn reserve(&self) -> memory::Reserve {
        match self.config.reserve {
            Reserve::Auto => memory::Reserve::Auto,
            Reserve::Bytes(bytes) => memory::Reserve::Fixed(platform::Bytes(bytes)),
        }
    }

    fn on_host(&self, device: DeviceIndex, granule: u64) -> Allocator {
        let limit = Limit::default();
        let memory = limit.clone().over(SystemMemory::host(self.reserve()));
        let mut driver = HostDriver::new(Box::new(memory));
        if self.config.mapped == Mapped::On {
            driver.map_memory();
        }
        self.make(device, granule, Box::new(driver), limit)
    }

    fn make(
        &self,
        device: DeviceIndex,
        granule: u64,
        driver: Box<dyn Driver>,
        limit: Limit,
    ) -> Allocator {
        let allocator = Allocator::new(
            device,
            self.config.pool(granule),
            driver,
            self.recorder(device),
        );
        allocator.keep_history(self.history.load(Ordering::Relaxed));
        allocator.with_limit(limit)
    }

    fn recorder(&self, device: DeviceIndex) -> Option<Recorder> {
        let named = self.trace.as_deref()?;
        if self.process != std::process::id() {
            return None;
        }
        let first = !self.recording.swap(true, Ordering::Relaxed);
        let path = Recorder::path_for(named, device, first);
        match Recorder::create(&path) {
            Ok(recorder) => Some(recorder),
            Err(error) => {
                report::warn(&format!(
                    "HIP_ALLOC_TRACE: cannot write {}: {error}",
                    path.display()
                ));
                None
            }
        }
    }
}

/// A runtime that has a device, and how many.
fn usable(family: Family, search: Search) -> Result<(Runtime, i32), String> {
    let runtime = Runtime::find(family, search).map_err(|error| error.to_string())?;
    let devices = runtime.device_count().map_err(|error| error.to_string())?;
    Ok((runtime, devices))
}
