//! What happens before the first step: threads, device, allocator, data, model.

use tch::Device;

use crate::config::Config;
use crate::data::TextData;
use crate::memory::{self, MemorySample};
use crate::observer::Observer;
use crate::placing::Placing;
use crate::summary::{Environment, MemorySummary};
use crate::task::Task;
use crate::task::causal_lm::CausalLm;
use crate::{Error, device};

/// The machine as this run uses it.
pub(crate) struct Machine {
    pub(crate) device: Device,
}

impl Machine {
    /// Sets threads, picks the device.
    pub(crate) fn prepare(config: &Config) -> Result<Self, Error> {
        if let Some(threads) = config.threads {
            tch::set_num_threads(threads as i32);
        }
        Ok(Self {
            device: device::choose(&config.device)?,
        })
    }

    /// A look at the memory now.
    pub(crate) fn memory(&self) -> MemorySample {
        MemorySample {
            live: None,
            held: None,
            resident: memory::resident_bytes(),
        }
    }

    /// The memory of the whole run.
    pub(crate) fn memory_summary(&self) -> MemorySummary {
        MemorySummary {
            peak_resident_bytes: memory::peak_resident_bytes(),
            ..MemorySummary::default()
        }
    }

    /// How to describe all this.
    pub(crate) fn environment(&self, task: &dyn Task) -> Environment {
        Environment {
            surefoot: env!("CARGO_PKG_VERSION"),
            libtorch: device::describe_libtorch(),
            device: device::describe(self.device),
            allocator: "PyTorch's own".into(),
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
    placing: &mut Placing,
    observer: &mut dyn Observer,
) -> Result<Box<dyn Task>, Error> {
    observer.preparing("reading and tokenising the text");
    let data = TextData::load(&config.data, config.data.block_size as usize)?;
    observer.preparing("building the model");
    Ok(Box::new(CausalLm::from_scratch(config, data, placing)?))
}
