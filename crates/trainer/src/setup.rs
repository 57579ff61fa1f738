//! What happens before the first step: device, threads, data, model.

use placement::torch_transport::TransportOptions;
use placement::{Placer, Policy};
use tch::Device;

use crate::allocator::Allocator;
use crate::config::Config;
use crate::data::TextData;
use crate::memory::{self, MemorySample};
use crate::observer::Observer;
use crate::summary::{Environment, MemorySummary};
use crate::task::Task;
use crate::task::causal_lm::CausalLm;
use crate::task::fine_tune::FineTune;
use crate::{Error, device};

/// The machine as this run uses it.
pub(crate) struct Machine {
    device: Device,
    allocator: Allocator,
    /// Most bytes live and held at any look so far.
    peaks: (u64, u64),
}

impl Machine {
    /// Picks the device and sets the threads.
    pub(crate) fn prepare(config: &Config, allocator: &Allocator) -> Result<Self, Error> {
        let device = device::choose(&config.device)?;
        if let Some(threads) = config.threads {
            torch_ext::threads::set_count(threads as usize)?;
        }
        Ok(Self {
            device,
            allocator: allocator.clone(),
            peaks: (0, 0),
        })
    }

    /// What moves tensors to the device.
    pub(crate) fn placer(&self) -> Result<Placer, Error> {
        let options = TransportOptions {
            allocator: self.allocator.library(),
            ..TransportOptions::default()
        };
        Ok(Placer::with_options(
            self.device,
            Policy::default(),
            options,
        )?)
    }

    /// A look at the memory now, and at its peaks since the last look.
    pub(crate) fn memory(&mut self) -> MemorySample {
        let stats = self.allocator.take_stats();
        if let Some(stats) = &stats {
            self.peaks.0 = self.peaks.0.max(stats.live_peak_bytes);
            self.peaks.1 = self.peaks.1.max(stats.held_peak_bytes);
        }
        MemorySample {
            live: stats.map(|stats| stats.live_bytes),
            held: stats.map(|stats| stats.held_bytes),
            live_peak: stats.map(|stats| stats.live_peak_bytes),
            held_peak: stats.map(|stats| stats.held_peak_bytes),
            resident: memory::resident_bytes(),
        }
    }

    /// The memory of the whole run.
    pub(crate) fn memory_summary(&self) -> MemorySummary {
        let stats = self.allocator.stats();
        MemorySummary {
            peak_live_bytes: stats.map(|stats| stats.live_peak_bytes.max(self.peaks.0)),
            peak_held_bytes: stats.map(|stats| stats.held_peak_bytes.max(self.peaks.1)),
            driver_allocations: stats.map(|stats| stats.driver_allocs),
            driver_frees: stats.map(|stats| stats.driver_frees),
            peak_resident_bytes: memory::peak_resident_bytes(),
        }
    }

    /// How to describe all this.
    pub(crate) fn environment(&self, task: &dyn Task) -> Environment {
        Environment {
            surefoot: env!("CARGO_PKG_VERSION"),
            libtorch: device::describe_libtorch(),
            device: device::describe(self.device),
            allocator: self.allocator.describe(),
            data: task.data_description(),
            model: task.description(),
            cores: std::thread::available_parallelism().map_or(1, usize::from),
            system: format!("{} {}", std::env::consts::OS, std::env::consts::ARCH),
        }
    }
}

/// The task that a config describes, its model on the device.
pub(crate) fn task(
    config: &Config,
    placer: &mut Placer,
    observer: &mut dyn Observer,
) -> Result<Box<dyn Task>, Error> {
    if let Some(name) = &config.model.name_or_path {
        return Ok(Box::new(FineTune::open(config, name, placer, observer)?));
    }
    observer.preparing("reading and tokenising the text");
    let data = TextData::load(&config.data, config.data.block_size as usize)?;
    observer.preparing("building the model");
    Ok(Box::new(CausalLm::from_scratch(config, data, placer)?))
}
