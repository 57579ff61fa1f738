//! Replays a trace on the simulated device, and measures what is held.

use crate::trace::{Event, Trace};
use hip_alloc::driver::sim::{SimConfig, SimDriver};
use hip_alloc::pool::{AllocateError, DeviceMemory, Keep, Pool, PoolConfig, PoolStats};
use hip_alloc::units::{MIB, StreamId};
use std::time::Duration;

/// A program is assumed to read and write the memory it requests at this many bytes per second, several times
/// over; that is its own time, to which the driver's is compared. The memory of an APU does 200 GB/s.
const PROGRAM_RATE: u64 = 50_000_000_000;

/// The results of a replay, in bytes and counts.
#[derive(Clone, Debug, Default)]
pub struct Outcome {
    /// Highest sum of live requests.
    pub peak_live: u64,
    /// The most bytes that the pool held at any time.
    pub peak_held: u64,
    /// At each step mark after the first: live and held.
    pub marks: Vec<(u64, u64)>,
    /// Number of requests in the trace.
    pub allocations: u64,
    /// Number of steps in the trace.
    pub steps: u64,
    /// Driver calls in total, and in the steps (after the first mark).
    pub driver_calls: u64,
    /// Driver calls after the first mark.
    pub driver_calls_in_steps: u64,
    /// Requests after the first mark.
    pub allocations_in_steps: u64,
    /// Number of requests that were refused for lack of memory.
    pub out_of_memory: u64,
    /// Driver calls of each step.
    pub calls_by_step: Vec<u64>,
    /// Bytes taken from the driver and given back after the first mark, in sum.
    pub driver_bytes_in_steps: u64,
    /// Simulated time of the driver's calls after the first mark.
    pub driver_time_in_steps: Duration,
    /// Bytes of all requests after the first mark.
    pub allocated_bytes_in_steps: u64,
}

impl Outcome {
    /// Peak held over peak live.
    pub fn peak_ratio(&self) -> f64 {
        self.peak_held as f64 / self.peak_live.max(1) as f64
    }

    /// The most that was held beyond the live memory at a step mark.
    pub fn idle_excess(&self) -> u64 {
        self.marks
            .iter()
            .map(|(live, held)| held.saturating_sub(*live))
            .max()
            .unwrap_or(0)
    }

    /// The smallest live memory at a step mark.
    pub fn idle_live(&self) -> u64 {
        self.marks.iter().map(|(live, _)| *live).min().unwrap_or(0)
    }

    /// Driver calls per step, once stepping.
    pub fn calls_per_step(&self) -> f64 {
        self.driver_calls_in_steps as f64 / self.steps.max(1) as f64
    }

    /// Bytes to and from the driver per step, once stepping.
    pub fn bytes_per_step(&self) -> f64 {
        self.driver_bytes_in_steps as f64 / self.steps.max(1) as f64
    }

    /// Simulated time in the driver per step, once stepping.
    pub fn driver_time_per_step(&self) -> Duration {
        self.driver_time_in_steps / self.steps.max(1) as u32
    }

    /// The time of the program itself in a step, as it is taken to be.
    pub fn program_time_per_step(&self) -> Duration {
        program_time(self.allocated_bytes_in_steps / self.steps.max(1))
    }

    /// Driver calls per step without a pool, where each request and each free is one.
    pub fn uncached_calls_per_step(&self) -> f64 {
        2.0 * self.allocations_in_steps as f64 / self.steps.max(1) as f64
    }
}

/// The allocator's bounds for a run, which its own replays are tested against, in bytes
/// and counts.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Bounds {
    /// The most that may be held: 1.05 × the live peak, or the warm-up floor if that is more.
    pub peak_allowed_bytes: u64,
    /// The most that may be held beyond live memory between steps: the warm-up floor and 256 MiB with
    /// `keep:off`, and otherwise no more than at the peak.
    pub idle_allowed_bytes: u64,
    /// 2 % of the calls without caching, or three for each 256 MiB that a step swings, if that is more.
    pub calls_allowed_per_step: f64,
}

impl Bounds {
    /// The bounds of a run with these settings and this `outcome`.
    pub fn of(outcome: &Outcome, config: &PoolConfig) -> Self {
        let floor = config.warmup_bytes;
        let block = 256 * MIB;
        let swing = outcome.peak_live.saturating_sub(outcome.idle_live()) as f64 / block as f64;
        let peak_allowed_bytes = ((outcome.peak_live as f64 * 1.05) as u64).max(floor);
        Self {
            peak_allowed_bytes,
            idle_allowed_bytes: match config.keep {
                Keep::Off => floor + block,
                _ => peak_allowed_bytes - outcome.idle_live(),
            },
            calls_allowed_per_step: (0.02 * outcome.uncached_calls_per_step()).max(3.0 * swing),
        }
    }

    /// Whether the bound on the peak was met.
    pub fn peak(&self, outcome: &Outcome) -> bool {
        outcome.peak_held <= self.peak_allowed_bytes
    }

    /// Whether the bound on memory between steps was met.
    pub fn idle(&self, outcome: &Outcome) -> bool {
        outcome.idle_excess() <= self.idle_allowed_bytes
    }

    /// Whether the bound on driver calls was met.
    pub fn calls(&self, outcome: &Outcome) -> bool {
        outcome.calls_per_step() <= self.calls_allowed_per_step
    }
}

/// The time that a program is assumed to work with `bytes` that it requests.
fn program_time(bytes: u64) -> Duration {
    Duration::from_nanos(bytes / (PROGRAM_RATE / 1_000_000_000))
}

/// Replays a trace.
pub fn replay(trace: &Trace, config: PoolConfig, sim: SimConfig) -> Outcome {
    replay_watched(trace, config, sim, &mut |_| {})
}

/// The state of the pool after an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sample {
    /// Number of the event.
    pub event: usize,
    /// Sum of live requests.
    pub live: u64,
    /// Bytes that the pool holds from the driver.
    pub held: u64,
}

/// As [`replay`], with the state of the pool after each event.
pub fn replay_watched(
    trace: &Trace,
    config: PoolConfig,
    sim: SimConfig,
    watch: &mut dyn FnMut(Sample),
) -> Outcome {
    let device = DeviceMemory::of(SimDriver::new(sim));
    let mut pool = Pool::new(config, device.clone());
    let mut addresses = vec![0u64; trace.requests as usize];
    let mut sizes = vec![0u64; trace.requests as usize];
    let mut outcome = Outcome::default();
    let mut live = 0u64;
    let calls = |stats: &PoolStats| stats.driver_allocs + stats.driver_frees;
    let mut before_steps = PoolStats::default();
    let mut last = 0;
    for (number, event) in trace.events.iter().enumerate() {
        match *event {
            Event::Allocate { id, bytes, stream } => {
                device.lock().driver.advance(program_time(bytes));
                match pool.allocate(bytes, StreamId(stream)) {
                    Ok(address) => {
                        addresses[id as usize] = address;
                        sizes[id as usize] = bytes;
                        live += bytes;
                        outcome.peak_live = outcome.peak_live.max(live);
                    }
                    Err(AllocateError::OutOfMemory | AllocateError::Driver(_)) => {
                        outcome.out_of_memory += 1;
                    }
                }
            }
            Event::Free { id } => {
                let address = std::mem::take(&mut addresses[id as usize]);
                if address != 0 && pool.free(address).is_ok() {
                    live -= sizes[id as usize];
                }
            }
            Event::Step => {
                let stats = pool.stats();
                if outcome.steps == 0 {
                    before_steps = stats;
                } else {
                    outcome.calls_by_step.push(calls(&stats) - last);
                }
                last = calls(&stats);
                outcome.steps += 1;
                outcome.marks.push((live, stats.held_bytes));
            }
        }
        watch(Sample {
            event: number,
            live,
            held: pool.stats().held_bytes,
        });
    }
    let stats = pool.stats();
    outcome.calls_by_step.push(calls(&stats) - last);
    outcome.peak_held = stats.held_peak_bytes;
    outcome.allocations = stats.allocations;
    outcome.driver_calls = calls(&stats);
    outcome.driver_calls_in_steps = calls(&stats) - calls(&before_steps);
    outcome.allocations_in_steps = stats.allocations - before_steps.allocations;
    outcome.allocated_bytes_in_steps = stats.allocated_bytes - before_steps.allocated_bytes;
    let bytes = |stats: &PoolStats| stats.driver_alloc_bytes + stats.driver_free_bytes;
    outcome.driver_bytes_in_steps = bytes(&stats) - bytes(&before_steps);
    let time = stats.driver_nanoseconds - before_steps.driver_nanoseconds;
    outcome.driver_time_in_steps = Duration::from_nanos(time);
    outcome
}
