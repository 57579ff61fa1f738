//! Background reclaim: returns kept memory if another program needs it, or if it is unused.
//!
//! A pool that keeps memory for the next step is not called when another program runs short of memory, nor when its
//! own program stops making requests. So a thread checks every 50 ms, from the time when something is kept until a
//! second after the last request; after that there is no thread, so that a paused program causes no
//! wake-ups.
//!
//! ```text
//!   nothing kept ──free──▶ checks every 50 ms ──quiet for a second──▶ at the floor, thread ends
//!                              │      ▲
//!                    memory is short  │ there is room for the peak so far
//!                              ▼      │
//!                           at the floor, nothing is kept
//! ```
//!
//! All of its driver calls happen under the allocator's lock, so that a fork never interrupts one, and
//! none happens once the process has begun to exit or the device is lost.

use crate::allocator::{Allocator, ReclaimView};
use crate::driver::{MemoryInfo, gpu};
use crate::other_processes::OtherProcesses;
use crate::report;
use crate::system;
use crate::units::{DeviceIndex, MIB};
use platform::memory::MemoryPressure;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Time between checks.
const INTERVAL: Duration = Duration::from_millis(50);
/// A program without requests for this long is paused.
const QUIET: Duration = Duration::from_secs(1);
/// But not one that uses host memory, and this fraction of a processor: on a busy machine an operation takes longer.
const WORKS_PART: u32 = 20;
/// Memory is short below this fraction of the total,
const NEAR_PART: u64 = 16;
/// but at least and at most this (a program that takes 256 MiB between two checks must find more),
const NEAR: (u64, u64) = (768 * MIB, 2048 * MIB);
/// and no more than this fraction.
const NEAR_MOST_PART: u64 = 4;
/// Memory is short if programs waited for it for this fraction of the time.
const WAITED_PART: u32 = 5;

/// The process is exiting: no driver may be called.
static ENDING: AtomicBool = AtomicBool::new(false);

/// Makes every thread of this kind end at its next check.
pub(crate) fn end() {
    ENDING.store(true, Ordering::SeqCst);
}

/// Starts a thread for an allocator, which runs until there is nothing to return; returns whether
/// it was started. The caller must not hold the allocator's lock: the new thread may wait for the loader.
pub(crate) fn start(allocator: &'static Allocator) -> bool {
    if ENDING.load(Ordering::SeqCst) {
        return false;
    }
    let builder = std::thread::Builder::new().name("hip-alloc".to_owned());
    let started = system::without_signals(|| {
        builder.spawn(move || {
            gpu::thread_is_ours();
            let mut reclaim = BackgroundReclaim::new();
            let began = std::time::Instant::now();
            while reclaim.check(allocator, began.elapsed()) {
                std::thread::sleep(INTERVAL);
            }
        })
    });
    if let Err(error) = &started {
        report::warn(&format!(
            "no memory is kept between steps: there is no thread to give it back ({error})"
        ));
    }
    started.is_ok()
}

/// Background reclaim of one allocator.
pub struct BackgroundReclaim {
    pressure: MemoryPressure,
    waited: Option<Duration>,
    /// Requests and frees so far, and since when there have been no more.
    operations: u64,
    quiet_since: Duration,
    looked_at: Duration,
    /// The processor time of this process, and what it was at the last check.
    processor_time: Box<dyn FnMut() -> Duration + Send>,
    processor_time_before: Duration,
}

impl BackgroundReclaim {
    /// A new one.
    pub fn new() -> Self {
        Self::watching(MemoryPressure::new())
    }

    /// Like [`new`](Self::new); `pressure` reports whether programs wait for memory.
    pub fn watching(pressure: MemoryPressure) -> Self {
        BackgroundReclaim {
            pressure,
            processor_time: Box::new(system::processor_time),
            processor_time_before: Duration::ZERO,
            waited: None,
            operations: 0,
            quiet_since: Duration::ZERO,
            looked_at: Duration::ZERO,
        }
    }

    /// With another source of this process's processor time.
    pub fn processor_time(self, time: impl FnMut() -> Duration + Send + 'static) -> Self {
        Self {
            processor_time: Box::new(time),
            ..self
        }
    }

    /// Checks whether memory is short or unused, at the time `now`, and if so returns kept
    /// memory. `false` once there is nothing more to return.
    pub fn check(&mut self, allocator: &Allocator, now: Duration) -> bool {
        if ENDING.load(Ordering::SeqCst) {
            return false;
        }
        let passed = now.saturating_sub(std::mem::replace(&mut self.looked_at, now));
        let waits = self.somebody_waits(passed);
        // Of host memory no event tells whether work uses it.
        if self.uses_processors(passed) && allocator.device() == DeviceIndex::HOST {
            self.quiet_since = now;
        }
        allocator.for_reclaim(|view| self.judge(view, waits, now))
    }

    /// Whether programs spend part of their time waiting for memory.
    fn somebody_waits(&mut self, passed: Duration) -> bool {
        let waited = self.pressure.waited();
        let before = std::mem::replace(&mut self.waited, waited);
        let (Some(waited), Some(before)) = (waited, before) else {
            return false;
        };
        !passed.is_zero() && waited.saturating_sub(before) > passed / WAITED_PART
    }

    /// Whether this process has used more than a small part of a processor.
    fn uses_processors(&mut self, passed: Duration) -> bool {
        let used = (self.processor_time)();
        let before = std::mem::replace(&mut self.processor_time_before, used);
        used.saturating_sub(before) > passed / WORKS_PART
    }

    fn judge(&mut self, view: &mut ReclaimView<'_>, waits: bool, now: Duration) -> bool {
        if ENDING.load(Ordering::SeqCst) {
            return false;
        }
        if view.operations() != self.operations {
            self.operations = view.operations();
            self.quiet_since = now;
        }
        let quiet = now.saturating_sub(self.quiet_since) >= QUIET;
        let Ok(free) = view.free_memory() else {
            // A device that does not answer is left alone, and nothing is kept on it.
            view.keep(false);
            return !quiet;
        };
        let near = near(free);
        let needed = view.other_processes().is_some_and(OtherProcesses::need);
        if needed || waits || free.free < near {
            view.keep(false);
            view.trim_to_floor();
        } else if free.free - near >= view.growth() {
            view.keep(true);
        }
        if !quiet || view.works() {
            return true;
        }
        // Check again as long as there is more to return.
        view.trim_to_floor() && view.kept() > 0
    }
}

impl Default for BackgroundReclaim {
    fn default() -> Self {
        Self::new()
    }
}

/// The number of free bytes below which memory is short.
fn near(memory: MemoryInfo) -> u64 {
    let (least, most) = NEAR;
    let part = (memory.total / NEAR_PART).clamp(least, most);
    part.min(memory.total / NEAR_MOST_PART)
}
