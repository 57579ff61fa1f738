//! Every call into the simulator passes through here: it is counted, takes the configured
//! time, and fails if a fault is configured.

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::{Mutex, MutexGuard};

use crate::process::{forked, tell};
use crate::settings::{CallEffect, CallFault, Pattern};
use crate::status::Status;

/// One exported function: its name and how often it was called.
pub(crate) struct CallSite {
    name: &'static str,
    calls: AtomicU64,
    registered: OnceLock<()>,
}

/// All functions that were called at least once.
static SITES: Mutex<Vec<&'static CallSite>> = Mutex::new(Vec::new());

/// Settings for calls; `ACTIVE` avoids taking the lock if there are none.
static SETTINGS: Mutex<CallSettings> = Mutex::new(CallSettings {
    latencies: Vec::new(),
    faults: Vec::new(),
});
static ACTIVE: AtomicBool = AtomicBool::new(false);

/// The status every call returns once the context is lost; 0 while it is not.
static LOST: AtomicU32 = AtomicU32::new(0);

struct CallSettings {
    latencies: Vec<(Pattern, Duration)>,
    faults: Vec<(CallFault, u64)>,
}

thread_local! {
    /// What `cudaGetLastError` returns on this thread.
    static LAST_ERROR: Cell<Status> = const { Cell::new(Status::SUCCESS) };
}

impl CallSite {
    pub(crate) const fn new(name: &'static str) -> Self {
        Self {
            name,
            calls: AtomicU64::new(0),
            registered: OnceLock::new(),
        }
    }

    /// Counts the call in a forked child, without waiting for locks: other threads of the parent may have
    /// held them.
    pub(crate) fn count_in_child(&'static self) {
        self.calls.fetch_add(1, Ordering::Relaxed);
        if let Some(mut sites) = sites()
            && !sites.iter().any(|site| std::ptr::eq(*site, self))
        {
            sites.push(self);
        }
    }

    /// Counts the call and applies the settings for it.
    pub(crate) fn enter(&'static self) -> Result<(), Status> {
        self.registered.get_or_init(|| SITES.lock().push(self));
        self.calls.fetch_add(1, Ordering::Relaxed);
        if ACTIVE.load(Ordering::Relaxed) {
            apply(self.name)?;
        }
        match LOST.load(Ordering::Relaxed) {
            0 => Ok(()),
            _ if outlives_context(self.name) => Ok(()),
            status => Err(Status(status)),
        }
    }
}

/// Whether a function still works after the context is lost: as on real devices, functions that only query
/// or select devices do.
fn outlives_context(name: &str) -> bool {
    const PREFIXES: [&str; 11] = [
        "cudaGetDevice",
        "cudaSetDevice",
        "cudaDeviceGet",
        "cuDevice",
        "cuCtx",
        "cuInit",
        "cuGetProcAddress",
        "nvml",
        "hipGetDevice",
        "hipSetDevice",
        "hipDeviceGet",
    ];
    name != "cuCtxSynchronize" && PREFIXES.iter().any(|prefix| name.starts_with(prefix))
}

/// Catches a panic (a bug in the simulator) before it unwinds into C. State that it
/// left inconsistent is not used again: the context is lost.
pub(crate) fn guarded<R>(body: impl FnOnce() -> Result<R, Status>) -> Result<R, Status> {
    // Unwind-safe: inconsistent state is guarded by `LOST` from now on.
    catch_unwind(AssertUnwindSafe(body)).unwrap_or_else(|_| {
        lose(Status::UNKNOWN);
        Err(Status::UNKNOWN)
    })
}

/// Loses the context: every later call returns this status.
pub(crate) fn lose(status: Status) {
    LOST.store(status.0, Ordering::Relaxed);
}

/// Remembers a failure for `cudaGetLastError`.
pub(crate) fn remembered(status: Status) -> Status {
    if status != Status::SUCCESS {
        LAST_ERROR.set(status);
    }
    status
}

/// The last failure on this thread; `forget` clears it. A lost context stays lost.
pub(crate) fn last_error(forget: bool) -> Status {
    match LOST.load(Ordering::Relaxed) {
        0 if forget => LAST_ERROR.replace(Status::SUCCESS),
        0 => LAST_ERROR.get(),
        status => Status(status),
    }
}

/// Adds latencies to the settings.
pub(crate) fn add_latencies(latencies: Vec<(Pattern, Duration)>) {
    SETTINGS.lock().latencies.extend(latencies);
    ACTIVE.store(true, Ordering::Relaxed);
}

/// Adds faults to the settings; each counts its own matches from now on.
pub(crate) fn add_faults(faults: Vec<CallFault>) {
    SETTINGS
        .lock()
        .faults
        .extend(faults.into_iter().map(|fault| (fault, 0)));
    ACTIVE.store(true, Ordering::Relaxed);
}

/// Removes all faults, and restores a lost context.
pub(crate) fn reset_faults() {
    let mut settings = SETTINGS.lock();
    settings.faults.clear();
    ACTIVE.store(!settings.latencies.is_empty(), Ordering::Relaxed);
    LOST.store(0, Ordering::Relaxed);
}

/// Counts from zero again.
pub(crate) fn reset_counters() {
    for site in SITES.lock().iter() {
        site.calls.store(0, Ordering::Relaxed);
    }
}

/// The functions that were called and their counts, by name.
pub(crate) fn counters() -> Vec<(&'static str, u64)> {
    let sites = sites();
    let mut counters: Vec<_> = sites
        .iter()
        .flat_map(|sites| sites.iter())
        .map(|site| (site.name, site.calls.load(Ordering::Relaxed)))
        .collect();
    counters.retain(|(_, calls)| *calls > 0);
    counters.sort_unstable();
    counters
}

/// The number of calls of one function.
pub(crate) fn count_of(name: &str) -> u64 {
    let sites = sites();
    sites
        .iter()
        .flat_map(|sites| sites.iter())
        .filter(|site| site.name == name)
        .map(|site| site.calls.load(Ordering::Relaxed))
        .sum()
}

/// The functions that were called; none in a forked child if the lock was held during the fork.
fn sites() -> Option<MutexGuard<'static, Vec<&'static CallSite>>> {
    match forked() {
        true => SITES.try_lock(),
        false => Some(SITES.lock()),
    }
}

fn apply(name: &str) -> Result<(), Status> {
    let mut settings = SETTINGS.lock();
    let time: Duration = settings
        .latencies
        .iter()
        .filter(|(pattern, _)| pattern.matches(name))
        .map(|(_, time)| *time)
        .fold(Duration::ZERO, Duration::saturating_add);
    let mut effect = None;
    for (fault, seen) in &mut settings.faults {
        if fault.function.matches(name) {
            *seen += 1;
            if fault.occurrence.covers(*seen) {
                effect = effect.or(Some(fault.effect));
            }
        }
    }
    drop(settings);
    spend(time);
    match effect {
        None => Ok(()),
        Some(CallEffect::Fail(status)) => Err(status),
        Some(CallEffect::Lose(status)) => {
            LOST.store(status.0, Ordering::Relaxed);
            Err(status)
        }
        Some(CallEffect::Crash) => {
            tell(&format!("crashing in {name}, as configured"));
            std::process::abort()
        }
        Some(CallEffect::Hang) => {
            tell(&format!("hanging in {name}, as configured"));
            loop {
                std::thread::park();
            }
        }
    }
}

/// Waits. Short times are spent spinning, since a sleep takes 50 µs or more.
pub(crate) fn spend(time: Duration) {
    if time >= Duration::from_micros(200) {
        std::thread::sleep(time);
    } else if !time.is_zero() {
        let start = Instant::now();
        while start.elapsed() < time {
            std::hint::spin_loop();
        }
    }
}
