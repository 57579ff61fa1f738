//! What happens before the first step: device, threads, data, model.

use std::path::{Path, PathBuf};
use std::time::Duration;

use models::diffusion;
use placement::plan::Memory;
use placement::torch_transport::TransportOptions;
use placement::{Bytes, Placer, Verify};
use serde::Serialize;
use tch::Device;
use torch_ext::allocator::Stats;

use crate::allocator::Allocator;
use crate::config::Config;
use crate::data::{TextData, models_folder};
use crate::estimate::Estimate;
use crate::hub::{ModelKind, locate_model};
use crate::locate::Located;
use crate::media::ShownMedia;
use crate::memory::{self, MemorySample};
use crate::observer::Observer;
use crate::optim::Optimizer;
use crate::pass_size::PassSize;
use crate::records::texts;
use crate::summary::{Environment, MemorySummary};
use crate::task::causal_lm::CausalLm;
use crate::task::diffusion::{DiffusionTask, show_media};
use crate::task::fine_tune::FineTune;
use crate::task::{ShownData, Task};
use crate::{Error, device, ranks};

/// The machine as this run uses it.
pub(crate) struct Machine {
    device: Device,
    allocator: Allocator,
    verify: Verify,
    transfer_deadline: Duration,
    /// Most bytes live and held at any look so far.
    peaks: (u64, u64),
    /// As `peaks`, since the last record.
    window: (u64, u64),
    /// Most bytes live while a step was made.
    step_peak: u64,
}

impl Machine {
    /// Picks the device and sets the threads.
    pub(crate) fn prepare(config: &Config, allocator: &Allocator) -> Result<Self, Error> {
        let device = device::choose(&config.device)?;
        let threads = match (config.threads, ranks::on_this_machine().1) {
            (Some(threads), _) => Some(threads as usize),
            (None, 1) => None,
            // Several processes share the cores.
            (None, processes) => {
                let cores = std::thread::available_parallelism().map_or(1, usize::from);
                Some((cores / processes).max(1))
            }
        };
        if let Some(threads) = threads {
            torch_ext::threads::set_count(threads)?;
        }
        device::choose_products(device)?;
        Ok(Self {
            device,
            allocator: allocator.clone(),
            verify: config.train.verify.into(),
            transfer_deadline: Duration::from_secs(config.train.transfer_deadline.into()),
            peaks: (0, 0),
            window: (0, 0),
            step_peak: 0,
        })
    }

    /// What moves tensors to the device.
    pub(crate) fn placer(&self) -> Result<Placer, Error> {
        let options = TransportOptions {
            allocator: self.allocator.library(),
            deadline: self.transfer_deadline,
            ..TransportOptions::default()
        };
        Ok(Placer::with_options(
            self.device,
            device::policy(self.verify),
            options,
        )?)
    }

    /// Hands cached memory back.
    pub(crate) fn trim(&self) -> Result<(), Error> {
        self.allocator.trim()?;
        match self.device {
            Device::Cpu => Ok(()),
            _ => Ok(torch_ext::accelerator::empty_cache()?),
        }
    }

    /// Bytes that can still be allocated, and that there are, where that is known.
    pub(crate) fn free_and_total(&self) -> (Option<u64>, Option<u64>) {
        let known = free_and_total(&self.allocator, self.device);
        (known.map(|memory| memory.0), known.map(|memory| memory.1))
    }

    /// What a plan may use of the memory, as far as that is known.
    pub(crate) fn memory_for_plans(&self, placer: &Placer) -> Memory {
        memory_for_plans(&self.allocator, placer)
    }

    /// A look at the memory now, and at its peaks since the last look.
    pub(crate) fn memory(&mut self) -> MemorySample {
        let stats = self.look();
        let window = std::mem::take(&mut self.window);
        MemorySample {
            live: stats.map(|stats| stats.live_bytes),
            held: stats.map(|stats| stats.held_bytes),
            live_peak: stats.map(|_| window.0),
            held_peak: stats.map(|_| window.1),
            resident: memory::resident_bytes(),
        }
    }

    /// The counters, whose peaks are remembered and start anew.
    fn look(&mut self) -> Option<Stats> {
        let stats = self.allocator.take_stats()?;
        for peaks in [&mut self.peaks, &mut self.window] {
            peaks.0 = peaks.0.max(stats.live_peak_bytes);
            peaks.1 = peaks.1.max(stats.held_peak_bytes);
        }
        Some(stats)
    }

    /// A step begins: its peak is its own.
    pub(crate) fn step_begins(&mut self) {
        self.look();
    }

    /// A step is over.
    pub(crate) fn step_ends(&mut self) {
        if let Some(stats) = self.look() {
            self.step_peak = self.step_peak.max(stats.live_peak_bytes);
        }
    }

    /// Most bytes in tensors during the steps, where that was counted.
    pub(crate) fn step_peak(&self) -> Option<u64> {
        (self.step_peak > 0).then_some(self.step_peak)
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

    /// What a step will take, now that all that stays is in memory.
    pub(crate) fn estimate(
        &self,
        config: &Config,
        task: &dyn Task,
        optimizer: &Optimizer,
    ) -> Estimate {
        let parameters = task.parameters();
        let moments = optimizer.all_bytes(parameters);
        let (free, _) = self.free_and_total();
        let config = &config.in_passes_of(PassSize::rows(task.pass_size(), config));
        Estimate::new(config, task.footprint(), parameters, moments, free)
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
            attention: task.attention().map(str::to_owned),
            batch: task.pass_size().map(ToString::to_string),
            cores: std::thread::available_parallelism().map_or(1, usize::from),
            system: format!("{} {}", std::env::consts::OS, std::env::consts::ARCH),
        }
    }
}

/// The task that a config describes, its model on the device.
pub(crate) fn task(
    config: &Config,
    allocator: &Allocator,
    placer: &mut Placer,
    observer: &mut dyn Observer,
) -> Result<Box<dyn Task>, Error> {
    if config.is_video() {
        let path = video_model(config, observer)?;
        let memory = memory_for_plans(allocator, placer);
        let task = DiffusionTask::open(config, &path, placer, memory, observer)?;
        return Ok(Box::new(task));
    }
    if let Some(name) = &config.model.name_or_path {
        let places = [PathBuf::from(name), models_folder().join(name)];
        if places.iter().any(|path| diffusion::is_at(path)) {
            return Err(Error::Data(format!(
                "`{name}` is a model of videos: set `data.resolution` (and `data.num_frames`) to train it \
                 on videos and images"
            )));
        }
        let memory = memory_for_plans(allocator, placer);
        let task = FineTune::open(config, name, placer, memory, observer)?;
        return Ok(Box::new(task));
    }
    observer.preparing("reading and tokenising the text");
    let data = text_data(config, observer)?;

    observer.preparing("building the model");
    let memory = memory_for_plans(allocator, placer);
    Ok(Box::new(CausalLm::from_scratch(
        config, data, placer, memory,
    )?))
}

/// The text that a model from nothing learns.
fn text_data(config: &Config, observer: &mut dyn Observer) -> Result<TextData, Error> {
    let located = Located::find(&config.data, &mut |text| observer.preparing(text))?;
    let records = |path: &Path, format| texts(path, format, &config.data.columns);
    // A config allows several sets for published models alone.
    let [training] = &located.training[..] else {
        return Err(Error::Internal("a text of several sets".into()));
    };
    TextData::load(
        &config.data,
        config.seed,
        &training.path,
        located.held_out.first().map(|place| place.path.as_path()),
        &records,
    )
}

/// What a config trains on, for people to look at.
#[derive(Debug, Clone, Serialize)]
#[serde(untagged)]
pub enum Shown {
    /// Rows of text.
    Rows(ShownData),
    /// Pictures and videos.
    Media(ShownMedia),
}

/// The first `count` rows of the training data of `config`, as text, in the order in which a run would
/// see them, or the first media, in the order of their names. No weights are loaded.
///
/// # Errors
/// What a run would end with before it loads its model.
pub fn show_data(config: &Config, count: u64, observer: &mut dyn Observer) -> Result<Shown, Error> {
    if config.is_video() {
        observer.preparing("looking at the media");
        let path = video_model(config, observer)?;
        let count = usize::try_from(count).unwrap_or(usize::MAX);
        let media = show_media(config, &path, count, observer)?;
        return Ok(Shown::Media(media));
    }
    if let Some(name) = &config.model.name_or_path {
        let rows = FineTune::show_data(config, name, count, observer)?;
        return Ok(Shown::Rows(rows));
    }
    observer.preparing("reading and tokenising the text");
    let data = text_data(config, observer)?;

    Ok(Shown::Rows(CausalLm::show_data(config, &data, count)?))
}

/// The folder or the file of the video model that `config` names.
pub(crate) fn video_model(config: &Config, observer: &mut dyn Observer) -> Result<PathBuf, Error> {
    let name = config.model.name_or_path.as_deref();
    let name = name.ok_or_else(|| Error::Internal("a run on videos without a model".into()))?;
    locate_model(Path::new(name), ModelKind::Video, &mut |text| {
        observer.preparing(text);
    })
}

/// Bytes of the device that can still be allocated, and that there are.
pub(crate) fn free_and_total(allocator: &Allocator, device: Device) -> Option<(u64, u64)> {
    let known = allocator.memory_info();
    known.or_else(|| match device {
        Device::Cpu => memory::of_the_machine(),
        device => {
            let index = u8::try_from(device::gpu_index(device)?).ok()?;
            let index = torch_ext::accelerator::DeviceIndex(index);
            let info = torch_ext::accelerator::memory_info(index).ok()?;
            Some((info.free, info.total))
        }
    })
}

/// What a plan may use of the memory, as far as that is known.
fn memory_for_plans(allocator: &Allocator, placer: &Placer) -> Memory {
    memory_of(allocator, placer, |(free, _)| free)
}

/// What a plan could use if nothing else ran: nine tenths of all there is, as the system needs some.
pub(crate) fn memory_of_the_machine(allocator: &Allocator, placer: &Placer) -> Memory {
    memory_of(allocator, placer, |(_, total)| total / 10 * 9)
}

/// A part of the memory, given what is free of it and the whole.
fn memory_of(
    allocator: &Allocator,
    placer: &Placer,
    free: impl Fn((u64, u64)) -> u64 + Copy,
) -> Memory {
    let device = free_and_total(allocator, placer.device()).map(free);
    let host = match placer.device() {
        // The allocator may know a limit that the machine does not.
        Device::Cpu => device,
        _ => {
            let host = allocator.host_memory_info();
            host.or_else(memory::of_the_machine).map(free)
        }
    };
    let bytes = |known: Option<u64>| Bytes(known.unwrap_or(u64::MAX / 4));
    placer.memory(bytes(device), bytes(host))
}

#[cfg(test)]
mod tests {
    use placement::testing::{Fault, FaultInjection, FaultyHost, FaultyTransport};
    use placement::transport::{Element, Operation, Origin};
    use placement::{PlaceError, Placed, Request, Role, TransferEngine, TransferStrategy};

    use super::*;
    use crate::config::VerifyMode;

    /// The loop makes room and tries again after an error, and after nothing else: a tensor that was left on the
    /// host would end the run in the next kernel.
    #[test]
    fn what_finds_a_full_device_is_an_error_that_the_loop_answers() {
        let machine = Machine::prepare(&Config::default(), &Allocator::torch()).unwrap();
        let placer = machine.placer().unwrap();
        let mut device = FaultyTransport::apu(true).unwrap();
        device.inject(FaultInjection {
            fault: Fault::OutOfMemory(Operation::Copy),
            route: TransferStrategy::Direct,
            every_time: true,
        });
        let moment = FaultyHost::new(&[1; 4096], Element::F32, Origin::Memory).unwrap();
        for role in [Role::Weight, Role::Batch] {
            let request = Request {
                name: "optimizer.exp_avg.head.weight",
                role,
                cast: None,
            };
            let placed =
                TransferEngine::new(*placer.policy()).to_device(&mut device, &moment, &request);
            let error = Error::from(PlaceError::from(placed.unwrap_err()));
            assert!(error.is_out_of_memory(), "{error}");
        }
    }

    /// The device damages a batch that it has received well twice.
    #[test]
    fn the_mode_of_the_config_decides_whether_a_fault_is_found() {
        for (mode, found) in [
            (VerifyMode::Off, false),
            (VerifyMode::First, false),
            (VerifyMode::Sample, false),
            (VerifyMode::Always, true),
        ] {
            let mut config = Config::default();
            config.train.verify = mode;
            config.train.transfer_deadline = 7;
            let machine = Machine::prepare(&config, &Allocator::torch()).unwrap();
            let placer = machine.placer().unwrap();
            assert_eq!(placer.options().deadline, Duration::from_secs(7));
            assert_eq!(
                placer.report().verify,
                Verify::from(mode),
                "what reports say"
            );

            let mut device = FaultyTransport::apu(true).unwrap();
            let mut engine = TransferEngine::new(*placer.policy());
            let tokens = FaultyHost::new(&[1; 4096], Element::U8, Origin::Memory).unwrap();
            let request = Request {
                name: "batch.tokens",
                role: Role::Batch,
                cast: None,
            };
            for _ in 0..2 {
                engine.to_device(&mut device, &tokens, &request).unwrap();
            }
            device.inject(FaultInjection {
                fault: Fault::Zeros,
                route: TransferStrategy::Direct,
                every_time: false,
            });
            let placed = engine.to_device(&mut device, &tokens, &request).unwrap();
            let Placed::OnDevice(arrived) = placed else {
                panic!("{placed:?}")
            };
            let same = arrived == tokens.into_tensor();
            assert_eq!(same, found, "{mode:?}");
        }
    }
}
