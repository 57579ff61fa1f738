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
use std::sync::OnceLock;
use std::time::Duration;

use parking_lot::{Mutex, MutexGuard};

use crate::calls;
use crate::environment;
use crate::orders::{DeviceTime, Order};
use crate::process;
use crate::status::Status;

pub(crate) use capture::Strictness;
pub(crate) use copies::Transfer;
pub(crate) use memory::{Budget, Kind, Memory, Region};
pub(crate) use timeline::{Effect, HostFunction, Nanos, Timeline};

use copies::Copies;

/// The simulator of this process.
pub(crate) struct Engine {
    state: Mutex<State>,
}

/// Everything behind the lock.
pub(crate) struct State {
    pub(crate) memory: Memory,
    pub(crate) timeline: Timeline,
    pub(crate) copies: Copies,
    pub(crate) device_time: DeviceTime,
    pub(crate) devices: usize,
    /// When the function of the program was due that some thread is in just now.
    calling: Option<Nanos>,
}

static ENGINE: OnceLock<Option<Engine>> = OnceLock::new();

thread_local! {
    /// Whether this thread is in a function of the program that a stream came to.
    static IN_HOST_FUNCTION: Cell<bool> = const { Cell::new(false) };
    static DEVICE: Cell<usize> = const { Cell::new(0) };
    static STRICTNESS: Cell<Strictness> = const { Cell::new(Strictness::Global) };
}

impl Engine {
    /// The engine, made on first use from the orders in the environment.
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
        let orders = environment::orders_of_environment();
        let devices = orders.iter().rev().find_map(|order| match order {
            Order::Devices(count) => Some(*count as usize),
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
            calling: None,
        };
        orders.into_iter().for_each(|order| state.obey(order));
        (devices > 0).then_some(Engine {
            state: Mutex::new(state),
        })
    }

    /// Runs `body` on the state after everything that is due, and what is due
    /// because of it. The program's own functions run outside the lock.
    pub(crate) fn with<R>(&self, body: impl FnOnce(&mut State) -> R) -> R {
        let mut state = self.state.lock();
        self.progress(&mut state);
        let result = body(&mut state);
        self.progress(&mut state);
        result
    }

    /// Does what is due, in its order. A function of the program runs without the lock, and
    /// nothing that comes after it happens until it is back, whichever thread is in it.
    fn progress(&self, state: &mut MutexGuard<'_, State>) {
        while state.calling.is_none()
            && let Some((at, function)) = state.advance()
        {
            state.calling = Some(at);
            MutexGuard::unlocked(state, || run_host_function(function));
            state.calling = None;
        }
    }

    /// Lets host time pass until all that was to happen up to `at` has happened.
    pub(crate) fn wait_until(&self, at: Nanos) {
        loop {
            let (now, done) = self.with(|state| (state.timeline.now(), state.done(at)));
            if done {
                return;
            }
            // Time is up, but another thread is in a function of the program's.
            let rest = at.saturating_sub(now).max(20_000);
            calls::spend(Duration::from_nanos(rest).min(Duration::from_millis(50)));
        }
    }
}

/// Whether this thread is in a function that was put on a stream: it may not call the runtime.
pub(crate) fn in_host_function() -> bool {
    IN_HOST_FUNCTION.get()
}

/// The device that this thread uses.
pub(crate) fn current_device() -> usize {
    DEVICE.get()
}

/// Makes this thread use another device.
pub(crate) fn set_current_device(device: usize) {
    DEVICE.set(device);
}

/// How much this thread minds disturbing captures; returns what was set before.
pub(crate) fn exchange_strictness(strictness: Strictness) -> Strictness {
    STRICTNESS.replace(strictness)
}

impl State {
    /// Takes an order. Orders about calls go on to [`calls`].
    pub(crate) fn obey(&mut self, order: Order) {
        match order {
            Order::Capacity(bytes) => self.memory.budget.capacity = bytes,
            Order::Devices(_) => {}
            Order::Unified(bytes) => self.memory.budget.unified = Some(bytes),
            Order::ReportTotal(bytes) => self.memory.budget.report_total = Some(bytes),
            Order::Granularity(bytes) => self.memory.budget.granularity = bytes,
            Order::Data(moves) => self.copies.data = moves,
            Order::Populate(on) => self.memory.budget.populate = on,
            Order::Latency(latencies) => calls::add_latencies(latencies),
            Order::DeviceTime(times) => self.device_time = times,
            Order::CallFaults(faults) => calls::add_faults(faults),
            Order::CopyFaults(faults) => self.copies.add_faults(faults),
            Order::ResetFaults => {
                calls::reset_faults();
                self.copies.reset_faults();
            }
            Order::ResetCounters => {
                calls::reset_counters();
                self.copies.moved = Default::default();
            }
            Order::ResetPeaks => self
                .memory
                .usage
                .iter_mut()
                .for_each(|usage| usage.peak = usage.held),
        }
    }

    /// Refuses calls that may not be made while a graph is captured.
    pub(crate) fn forbid_in_capture(&mut self) -> Result<(), Status> {
        self.timeline.captures.forbid(STRICTNESS.get())
    }

    /// Puts a copy or memset on a stream; returns when it is done.
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
        let ordered = self.copies.damage(direction, bytes);
        if let Transfer::Copy { damage, .. } = &mut transfer {
            *damage = ordered;
        }
        let times = self.device_time;
        let moving = times.mib.as_nanos() * u128::from(bytes) / (1 << 20);
        let cost = Nanos::try_from(times.copy.as_nanos() + moving).unwrap_or(Nanos::MAX);
        self.timeline
            .submit(stream, device, cost, Effect::Transfer(transfer))
    }

    /// Whether all that was to happen up to `at` has happened.
    pub(crate) fn done(&self, at: Nanos) -> bool {
        self.timeline.now() >= at
            && self.calling.is_none_or(|calling| calling > at)
            && self.timeline.next_due().is_none_or(|next| next > at)
    }

    /// Does what is due, up to the next function of the program, which is given back.
    fn advance(&mut self) -> Option<(Nanos, HostFunction)> {
        let now = self.timeline.now();
        while let Some((at, effect)) = self.timeline.due(now) {
            match effect {
                Effect::Kernel => {}
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
