//! The device behind all APIs: memory, streams and events, copies, captures.
//!
//! ```text
//! APIs (cudart, driver, HIP)  ──▶  Engine (one lock, one clock)
//!                                      ├─ Memory    regions, budget, mappings ── pages (mmap)
//!                                      ├─ Timeline  streams, events, pending work, captures
//!                                      └─ Copies    transfers and their faults
//! ```

mod address_space;
mod capture;
mod copies;
mod mapping;
mod memory;
mod pages;
mod timeline;

use std::cell::Cell;
use std::collections::HashMap;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use parking_lot::{Mutex, MutexGuard};

use crate::architecture::Architecture;
use crate::calls;
use crate::environment;
use crate::process;
use crate::rdna::CodeObject;
use crate::settings::{DeviceTime, Setting};
use crate::status::Status;

pub(crate) use capture::Strictness;
pub(crate) use copies::Transfer;
pub(crate) use memory::{Budget, Kind, Memory, MemoryType, Region};
pub(crate) use timeline::{Effect, HostFunction, Nanos, Timeline};

use copies::Copies;

/// The simulator of this process.
pub(crate) struct Engine {
    state: Mutex<State>,
}

/// The state protected by the lock.
pub(crate) struct State {
    pub(crate) memory: Memory,
    pub(crate) timeline: Timeline,
    pub(crate) copies: Copies,
    pub(crate) device_time: DeviceTime,
    pub(crate) devices: usize,
    pub(crate) architecture: Architecture,
    /// Whether each device has a context: something asked about its memory, took some, or computed on it.
    pub(crate) contexts: Vec<bool>,
    /// Bytes that matrix products read behind each operand.
    pub(crate) overread: u64,
    /// The program that lists code objects; without one, their kernels do nothing.
    pub(crate) disassembler: Option<String>,
    /// Code objects by the handles of their modules.
    pub(crate) code: HashMap<u64, Arc<CodeObject>>,
    /// Kernels of code objects by the handles of their functions.
    pub(crate) kernels: HashMap<u64, (Arc<CodeObject>, String)>,
    /// The due time of the program's function that a thread is currently executing.
    calling: Option<Nanos>,
}

static ENGINE: OnceLock<Option<Engine>> = OnceLock::new();

thread_local! {
    /// Whether this thread is executing a function of the program for a stream.
    static IN_HOST_FUNCTION: Cell<bool> = const { Cell::new(false) };
    static DEVICE: Cell<usize> = const { Cell::new(0) };
    static STRICTNESS: Cell<Strictness> = const { Cell::new(Strictness::Global) };
}

impl Engine {
    /// The engine, created on first use with the settings in the environment.
    pub(crate) fn get() -> Result<&'static Engine, Status> {
        if process::forked() {
            return Err(Status::NOT_INITIALIZED);
        }
        process::mark_used();
        match ENGINE.get_or_init(Engine::start) {
            Some(engine) => Ok(engine),
            None => Err(Status::NO_DEVICE),
        }
    }

    fn start() -> Option<Engine> {
        let settings = environment::settings_from_environment();
        let devices = settings.iter().rev().find_map(|setting| match setting {
            Setting::Devices(count) => Some(*count as usize),
            _ => None,
        });
        let devices = devices.unwrap_or(1);
        let memory = match Memory::new(devices, Budget::default()) {
            Ok(memory) => memory,
            Err(problem) => {
                process::tell(&format!(
                    "cannot reserve addresses for device memory: {problem}"
                ));
                return None;
            }
        };
        let mut state = State {
            memory,
            timeline: Timeline::new(devices),
            copies: Copies::default(),
            device_time: DeviceTime::default(),
            devices,
            architecture: Architecture::default(),
            contexts: vec![false; devices],
            overread: 0,
            disassembler: None,
            code: HashMap::new(),
            kernels: HashMap::new(),
            calling: None,
        };
        settings
            .into_iter()
            .for_each(|setting| state.apply(setting));
        (devices > 0).then_some(Engine {
            state: Mutex::new(state),
        })
    }

    /// Runs `body` on the state after all effects that are due, and then those that became due
    /// because of it. The program's own functions run outside the lock.
    pub(crate) fn with<R>(&self, body: impl FnOnce(&mut State) -> R) -> R {
        let mut state = self.state.lock();
        self.progress(&mut state);
        let result = body(&mut state);
        self.progress(&mut state);
        result
    }

    /// Applies due effects in order. A function of the program runs without the lock, and
    /// later effects wait until it returns, whichever thread executes it.
    fn progress(&self, state: &mut MutexGuard<'_, State>) {
        while state.calling.is_none()
            && let Some((at, function)) = state.advance()
        {
            state.calling = Some(at);
            MutexGuard::unlocked(state, || run_host_function(function));
            state.calling = None;
        }
    }

    /// Waits on the host until all effects up to `at` have been applied.
    pub(crate) fn wait_until(&self, at: Nanos) {
        loop {
            let (now, done) = self.with(|state| (state.timeline.now(), state.done(at)));
            if done {
                return;
            }
            // The time has come, but another thread is still executing a function of the program.
            let rest = at.saturating_sub(now).max(20_000);
            calls::spend(Duration::from_nanos(rest).min(Duration::from_millis(50)));
        }
    }
}

/// Whether this thread is executing a host function of a stream, which must not call the runtime.
pub(crate) fn in_host_function() -> bool {
    IN_HOST_FUNCTION.get()
}

/// The current device of this thread.
pub(crate) fn current_device() -> usize {
    DEVICE.get()
}

/// Sets the current device of this thread.
pub(crate) fn set_current_device(device: usize) {
    DEVICE.set(device);
}

/// Sets the capture mode of this thread; returns the previous one.
pub(crate) fn exchange_strictness(strictness: Strictness) -> Strictness {
    STRICTNESS.replace(strictness)
}

impl State {
    /// Applies a setting. Settings for calls are passed on to [`calls`].
    pub(crate) fn apply(&mut self, setting: Setting) {
        match setting {
            Setting::Capacity(bytes) => self.memory.budget.capacity = bytes,
            Setting::Devices(_) => {}
            Setting::Unified(bytes) => self.memory.budget.unified = Some(bytes),
            Setting::ReportTotal(bytes) => self.memory.budget.report_total = Some(bytes),
            Setting::Granularity(bytes) => self.memory.budget.granularity = bytes,
            Setting::Data(moves) => self.copies.data = moves,
            Setting::Populate(on) => self.memory.budget.populate = on,
            Setting::Architecture(architecture) => self.architecture = architecture,
            Setting::Overread(bytes) => self.overread = bytes,
            Setting::Disassembler(program) => self.disassembler = Some(program),
            Setting::Latency(latencies) => calls::add_latencies(latencies),
            Setting::DeviceTime(times) => self.device_time = times,
            Setting::CallFaults(faults) => calls::add_faults(faults),
            Setting::CopyFaults(faults) => self.copies.add_faults(faults),
            Setting::ResetFaults => {
                calls::reset_faults();
                self.copies.reset_faults();
            }
            Setting::ResetCounters => {
                calls::reset_counters();
                self.copies.moved = Default::default();
            }
            Setting::ResetPeaks => self
                .memory
                .usage
                .iter_mut()
                .for_each(|usage| usage.peak = usage.held),
        }
    }

    /// Refuses calls that are not allowed during a graph capture.
    pub(crate) fn forbid_in_capture(&mut self) -> Result<(), Status> {
        self.timeline.captures.forbid(STRICTNESS.get())
    }

    /// Submits a copy or memset to a stream; returns the time at which it completes.
    pub(crate) fn transfer(
        &mut self,
        stream: u64,
        device: usize,
        mut transfer: Transfer,
    ) -> Result<Nanos, Status> {
        let bytes = transfer.bytes();
        if bytes == 0 {
            return Ok(self.timeline.now());
        }
        let direction = transfer.check(&self.memory)?;
        let fault = self.copies.damage(direction, bytes);
        if let Transfer::Copy { damage, .. } = &mut transfer {
            *damage = fault;
        }
        let times = self.device_time;
        let moving = times.mib.as_nanos() * u128::from(bytes) / (1 << 20);
        let cost = Nanos::try_from(times.copy.as_nanos() + moving).unwrap_or(Nanos::MAX);
        self.timeline
            .submit(stream, device, cost, Effect::Transfer(transfer))
    }

    /// Whether all effects up to `at` have been applied.
    pub(crate) fn done(&self, at: Nanos) -> bool {
        self.timeline.now() >= at
            && self.calling.is_none_or(|calling| calling > at)
            && self.timeline.next_due().is_none_or(|next| next > at)
    }

    /// Applies due effects up to the next function of the program, which is returned.
    fn advance(&mut self) -> Option<(Nanos, HostFunction)> {
        let now = self.timeline.now();
        while let Some((at, effect)) = self.timeline.due(now) {
            match effect {
                Effect::Kernel => {}
                Effect::ReadBehind(operands) => {
                    let bytes = self.overread;
                    let faults = |end: &&u64| !self.memory.is_mapped_behind(**end, bytes);
                    if let Some(end) = operands.iter().find(faults) {
                        // As ROCm's runtime says it.
                        process::tell(&format!(
                            "Memory access fault by GPU node-1 (Agent handle: 0x1) on address {end:#x}. Reason: Page not \
                             present or supervisor privilege. (A kernel read {bytes} bytes behind the operand that ends there.)"
                        ));
                        calls::lose(Status::ILLEGAL_ADDRESS);
                    }
                }
                Effect::Execute(launch) => {
                    let is_live = |address, bytes| {
                        let place = self.memory.classify(address, bytes);
                        place.is_ok_and(|place| place != MemoryType::Pageable)
                    };
                    if let Err(fault) = launch.run(&is_live) {
                        process::tell(&format!("a kernel failed: {fault}"));
                        calls::lose(Status::ILLEGAL_ADDRESS);
                    }
                }
                Effect::Transfer(transfer) => {
                    if let Some((delay, rest)) = transfer.run(&self.memory, self.copies.data) {
                        let late = now.saturating_add(delay.as_nanos() as Nanos);
                        self.timeline.schedule(late, Effect::Transfer(rest));
                    }
                }
                Effect::Free { start, id } => self.memory.free_leaving(start, id),
                Effect::Call(function) => return Some((at, function)),
            }
        }
        None
    }
}

fn run_host_function(function: HostFunction) {
    IN_HOST_FUNCTION.set(true);
    call_host_function(function);
    IN_HOST_FUNCTION.set(false);
}

fn call_host_function(function: HostFunction) {
    match function {
        // SAFETY: the program passed this function to be called with this data.
        HostFunction::Plain { function, data } => unsafe { function(data as *mut _) },
        HostFunction::Callback {
            function,
            stream,
            data,
        } => {
            // SAFETY: as above; a callback also takes the stream and its status.
            unsafe { function(stream as *mut _, Status::SUCCESS.0, data as *mut _) }
        }
    }
}
