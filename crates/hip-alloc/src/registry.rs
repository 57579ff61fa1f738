//! The allocators of this process: one for the host, one for each accelerator.
//!
//! Each is created at its first use, from the settings in the environment.

#[cfg(unix)]
pub(crate) mod fork_handlers;

use crate::allocator::{Allocator, ORPHANED};
use crate::background_reclaim;
use crate::capacity;
use crate::config::{Backend, Config, ConfigError, Reserve, Warmup};
use crate::device_pools::Captured;
use crate::driver::gpu::GpuDriver;
use crate::driver::host::HostDriver;
use crate::driver::runtime::{self, Family, Runtime, RuntimeError, Search};
use crate::driver::sim::{SimConfig, SimDriver};
use crate::driver::{Driver, DriverError, MemoryInfo};
use crate::fork::{self, Opening, forking_on_its_own, making};
use crate::limit::within;
use crate::lock::Slot;
use crate::other_processes::OtherProcesses;
use crate::pool::PoolConfig;
use crate::recorder::Recorder;
use crate::report;
use crate::system;
use crate::turns::Turns;
use crate::units::{DeviceIndex, MIB};
use platform::memory;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

/// More accelerators than any machine has.
const MOST_DEVICES: usize = 64;
/// Every address is a multiple of this: PyTorch's CPU kernels require 64.
const HOST_GRANULE: u64 = 64;
/// The floor for host memory: two blocks for small requests.
const HOST_FLOOR: u64 = 4 * MIB;
/// The name of the machine's own memory for `other_processes`.
const HOST_MEMORY: &str = "host";
/// The alignment of device memory in PyTorch's own allocator.
const DEVICE_GRANULE: u64 = 512;

/// The allocators of a process.
pub(crate) struct Registry {
    config: Config,
    /// `HIP_ALLOC_TRACE`.
    trace: Option<PathBuf>,
    /// The recording process; its forked children have the same file name.
    process: u32,
    /// Whether a device already records to the file of that name.
    recording: AtomicBool,
    /// How many history entries each device keeps.
    history: AtomicUsize,
    host: Place<Allocator>,
    devices: [Place<Result<Allocator, String>>; MOST_DEVICES],
    /// The fraction of its memory that the program allows on each device and, last, the host: bits of a number.
    fractions: [AtomicU64; MOST_DEVICES + 1],
}

/// The slot of an allocator.
struct Place<T> {
    made: Slot<T>,
    opening: Opening,
}

impl<T> Place<T> {
    const fn new() -> Self {
        Place {
            made: Slot::new(),
            opening: Opening::new(),
        }
    }

    /// The value; at the first call the result of `open`, which no fork waits for.
    fn get_or_open(&self, open: impl FnOnce() -> T) -> &T {
        forking_on_its_own(|| {
            self.opening.alone(|| {
                if let Some(made) = self.made.get() {
                    return made;
                }
                let opened = open();
                making(|| self.made.get_or_make(|| opened))
            })
        })
    }
}

/// The driver of a usable device, and the other inputs for its allocator.
enum Found {
    Gpu {
        driver: Box<GpuDriver>,
        memory: String,
    },
    Sim,
    Host,
}

static REGISTRY: Slot<Registry> = Slot::new();

/// The registry, created if there is none; the error is for invalid settings. It is returned
/// to every caller until they are valid: a program must not run with other settings than intended.
/// `first` is called once, before the registry exists.
pub(crate) fn get_or_make(first: impl FnOnce()) -> Result<&'static Registry, ConfigError> {
    making(|| {
        if let Some(registry) = REGISTRY.get() {
            return Ok(registry);
        }
        let config = settings()?;
        first();
        Ok(REGISTRY.get_or_make(|| Registry::new(config)))
    })
}

/// The current settings in `HIP_ALLOC_CONF`.
pub(crate) fn settings() -> Result<Config, ConfigError> {
    Config::from_variable(std::env::var_os("HIP_ALLOC_CONF").as_deref())
}

/// The registry, if it exists.
pub(crate) fn existing() -> Option<&'static Registry> {
    REGISTRY.get()
}

impl Registry {
    fn new(config: Config) -> Self {
        Registry {
            config,
            trace: std::env::var_os("HIP_ALLOC_TRACE")
                .filter(|name| !name.is_empty())
                .map(PathBuf::from),
            process: std::process::id(),
            recording: AtomicBool::new(false),
            history: AtomicUsize::new(0),
            host: Place::new(),
            devices: [const { Place::new() }; MOST_DEVICES],
            fractions: [const { AtomicU64::new(f64::INFINITY.to_bits()) }; MOST_DEVICES + 1],
        }
    }

    /// The allocator of a device that memory is requested from; it is opened at the first call. The error says why
    /// there is none.
    pub(crate) fn open(&self, device: DeviceIndex) -> Result<&Allocator, String> {
        if device == DeviceIndex::HOST {
            if let Some(allocator) = self.host.made.get() {
                return Ok(allocator);
            }
            let open = || self.on_host(device, HOST_GRANULE);
            let allocator = self.host.get_or_open(open);
            self.limit(allocator);
            return Ok(allocator);
        }
        let place = self.place(device)?;
        let opened = match place.made.get() {
            Some(opened) => opened,
            None => {
                // Without any lock: a thread in the constructor of a library may need the same
                // device. The result of the slower thread is dropped.
                let found = forking_on_its_own(|| self.find(device));
                let opened = place.get_or_open(|| found.map(|found| self.make_of(device, found)));
                if let Ok(allocator) = opened {
                    self.limit(allocator);
                    // Captures that began meanwhile have not seen it.
                    for captured in self.captures_beside(device) {
                        allocator.heed_capture(captured);
                    }
                }
                opened
            }
        };
        opened.as_ref().map_err(Clone::clone)
    }

    /// The allocator of a device, if memory was requested from it; the error says why it cannot be used. Asking
    /// opens nothing: that would take memory of every device of the machine.
    pub(crate) fn existing(&self, device: DeviceIndex) -> Result<Option<&Allocator>, String> {
        if device == DeviceIndex::HOST {
            return Ok(self.host.made.get());
        }
        let opened = self.place(device)?.made.get();
        opened
            .map(|opened| opened.as_ref().map_err(Clone::clone))
            .transpose()
    }

    fn place(&self, device: DeviceIndex) -> Result<&Place<Result<Allocator, String>>, String> {
        let index = usize::try_from(device.0).ok();
        let place = index.and_then(|index| self.devices.get(index));
        place.ok_or_else(|| {
            format!(
                "{device} does not exist: devices are numbered from 0 to {}, and the host is -1",
                MOST_DEVICES - 1
            )
        })
    }

    /// What can still be allocated on a device, and the total. Of one that is not in use the runtime is asked,
    /// as PyTorch's own function does.
    pub(crate) fn memory_info(&self, device: DeviceIndex) -> Result<MemoryInfo, String> {
        let failed = |error: DriverError| error.to_string();
        if let Some(allocator) = self.existing(device)? {
            return allocator.memory_info().map_err(failed);
        }
        let found = match device {
            DeviceIndex::HOST => Found::Host,
            device => forking_on_its_own(|| self.find(device))?,
        };
        let info = match found {
            Found::Gpu { mut driver, .. } => driver.memory_info(),
            Found::Sim => SimDriver::new(SimConfig::default()).memory_info(),
            Found::Host => self.host_driver().memory_info(),
        };
        let info = info.map_err(failed)?;
        Ok(match self.fraction(device) {
            fraction if fraction < 1.0 => within((info.total as f64 * fraction) as u64, 0, info),
            _ => info,
        })
    }

    /// Limits the memory of a device to a fraction of its total, from 0 to 1, also if it is opened later.
    pub(crate) fn set_memory_fraction(
        &self,
        device: DeviceIndex,
        fraction: f64,
    ) -> Result<(), String> {
        let existing = self.existing(device)?;
        self.fraction_slot(device)
            .store(fraction.to_bits(), Ordering::SeqCst);
        match existing {
            Some(allocator) => {
                let set = allocator.set_memory_fraction(fraction);
                set.map_err(|error| error.to_string())
            }
            None => Ok(()),
        }
    }

    fn fraction(&self, device: DeviceIndex) -> f64 {
        f64::from_bits(self.fraction_slot(device).load(Ordering::SeqCst))
    }

    fn fraction_slot(&self, device: DeviceIndex) -> &AtomicU64 {
        let at = usize::try_from(device.0).unwrap_or(MOST_DEVICES);
        &self.fractions[at.min(MOST_DEVICES)]
    }

    /// Applies what the program set before the device was opened.
    fn limit(&self, allocator: &Allocator) {
        let fraction = self.fraction(allocator.device());
        if fraction < 1.0
            && let Err(error) = allocator.set_memory_fraction(fraction)
        {
            let device = allocator.device();
            report::warn(&format!(
                "{device}: its memory is not limited to a fraction: {error}"
            ));
        }
    }

    /// All existing allocators.
    pub(crate) fn all(&self) -> impl Iterator<Item = &Allocator> {
        let devices = self
            .devices
            .iter()
            .filter_map(|place| place.made.get()?.as_ref().ok());
        self.host.made.get().into_iter().chain(devices)
    }

    /// The captures that have begun on accelerators other than this one.
    fn captures_beside(&self, device: DeviceIndex) -> Vec<Captured> {
        let others = self.all().filter(|other| other.device() != device);
        others.flat_map(Allocator::captures_begun).collect()
    }

    #[cfg(unix)]
    /// To be called in a forked child: threads that were opening a device do not exist in it.
    fn forked(&self) {
        self.host.opening.forget();
        self.devices.iter().for_each(|place| place.opening.forget());
        fork::runtime_is_the_parents();
    }

    /// Keeps this many history entries for each device, also for those that are opened later.
    pub(crate) fn record_history(&self, entries: usize) {
        self.history.store(entries, Ordering::Relaxed);
        self.all()
            .for_each(|allocator| allocator.record_history(entries));
    }

    fn make_of(&self, device: DeviceIndex, found: Found) -> Allocator {
        match found {
            Found::Gpu { driver, memory } => {
                let pool = self.config.pool(DEVICE_GRANULE, driver.needs_guard());
                self.make(device, pool, Some(&memory), *driver)
            }
            Found::Sim => {
                let driver = SimDriver::new(SimConfig::default());
                let pool = self.config.pool(DEVICE_GRANULE, driver.needs_guard());
                self.make(device, pool, None, driver)
            }
            Found::Host => self.on_host(device, DEVICE_GRANULE),
        }
    }

    /// Finds the driver of a device, which needs the loader, and makes a first call to it.
    fn find(&self, device: DeviceIndex) -> Result<Found, String> {
        let found = match self.config.backend {
            Backend::Host => return Ok(Found::Host),
            Backend::Sim => return Ok(Found::Sim),
            Backend::Auto => match self.loaded_runtime()? {
                Some(found) => found,
                None => return Ok(Found::Host),
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
        let place = runtime.place(device);
        let memory = match place {
            Some(place) if place.integrated => HOST_MEMORY.to_owned(),
            Some(place) => format!("{:04x}:{:02x}:{:02x}", place.domain, place.bus, place.slot),
            None => format!("gpu-{}", device.0),
        };
        let budget = capacity::budget_of_gpu(place, self.reserve());
        let video = system::video_memory(runtime.luid(device));
        let bound = capacity::bound(budget, video);
        let mut driver = GpuDriver::new(Arc::new(runtime), device, bound);
        if memory == HOST_MEMORY {
            driver.take_turns(Turns::at(&memory));
        }
        // The first call creates the device's context. If it fails, so does every request.
        let _ = driver.memory_info();
        let driver = Box::new(driver);
        Ok(Found::Gpu { driver, memory })
    }

    /// The runtime that the process uses: PyTorch's, if there is one, which must work; otherwise
    /// one that has a device, if any.
    fn loaded_runtime(&self) -> Result<Option<(Runtime, i32)>, String> {
        if let Some(family) = runtime::of_pytorch() {
            return usable(family, Search::Loaded).map(Some);
        }
        for family in [Family::Hip, Family::Cuda] {
            let runtime = match Runtime::find(family, Search::Loaded) {
                Ok(runtime) => runtime,
                Err(several @ RuntimeError::Several { .. }) => return Err(several.to_string()),
                Err(_) => continue,
            };
            match with_device(runtime) {
                Ok(found) => return Ok(Some(found)),
                Err(problem) if problem == ORPHANED => return Err(problem),
                Err(_) => {}
            }
        }
        Ok(None)
    }

    fn reserve(&self) -> memory::Reserve {
        match self.config.reserve {
            Reserve::Auto => memory::Reserve::Auto,
            Reserve::Bytes(bytes) => memory::Reserve::Fixed(platform::Bytes(bytes)),
        }
    }

    fn host_driver(&self) -> HostDriver {
        HostDriver::new(Box::new(capacity::budget_of_host(self.reserve())))
    }

    fn on_host(&self, device: DeviceIndex, granule: u64) -> Allocator {
        let driver = self.host_driver();
        let mut pool = self.config.pool(granule, driver.needs_guard());
        if self.config.warmup == Warmup::Auto {
            // Pages of the host need no driver.
            pool.warmup_bytes = HOST_FLOOR;
        }
        self.make(device, pool, Some(HOST_MEMORY), driver)
    }

    /// An allocator on `memory`, as other processes name it; `None` if no other process can use it.
    fn make(
        &self,
        device: DeviceIndex,
        pool: PoolConfig,
        memory: Option<&str>,
        driver: impl Driver + 'static,
    ) -> Allocator {
        let builder = Allocator::builder(device, driver)
            .config(pool)
            .other_processes(memory.and_then(OtherProcesses::of))
            .looked_after(move || {
                let registry = existing();
                registry
                    .and_then(|registry| registry.existing(device).ok()?)
                    .is_some_and(background_reclaim::start)
            })
            .history(self.history.load(Ordering::Relaxed))
            .captures(match device {
                DeviceIndex::HOST => Vec::new(),
                _ => self.captures_beside(device),
            });
        match self.recorder(device) {
            Some(recorder) => builder.recorder(recorder).build(),
            None => builder.build(),
        }
    }

    fn recorder(&self, device: DeviceIndex) -> Option<Recorder> {
        let named = self.trace.as_deref()?;
        if self.process != std::process::id() {
            return None;
        }
        let first = !self.recording.swap(true, Ordering::Relaxed);
        let named = Recorder::path_in_process(named, self.process);
        let path = Recorder::path_for(&named, device, first);
        match Recorder::create_or_beside(&path, self.process) {
            Ok((recorder, used)) => {
                if used != path {
                    report::warn(&format!(
                        "HIP_ALLOC_TRACE: another process records to {}, this one to {} (`%p` in \
                         the name is the process id)",
                        path.display(),
                        used.display()
                    ));
                }
                Some(recorder)
            }
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

/// A runtime with a device, and the number of devices.
fn usable(family: Family, search: Search) -> Result<(Runtime, i32), String> {
    with_device(Runtime::find(family, search).map_err(|error| error.to_string())?)
}

fn with_device(runtime: Runtime) -> Result<(Runtime, i32), String> {
    if !fork::may_call_runtime() {
        return Err(ORPHANED.to_owned());
    }
    match runtime.device_count() {
        Ok(devices) => Ok((runtime, devices)),
        Err(error) => {
            fork::runtime_is_of_no_use();
            Err(error.to_string())
        }
    }
}
