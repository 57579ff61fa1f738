//! Every call into the simulator passes here: it is counted, takes the time it
//! was ordered to take, and goes wrong when it was ordered to.

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::{Mutex, MutexGuard};

use crate::orders::{CallEffect, CallFault, Pattern};
use crate::process::{forked, tell};
use crate::status::Status;

/// One exported function: its name and how often it was called.
pub(crate) struct CallSite {
    name: &'static str,
    calls: AtomicU64,
    registered: OnceLock<()>,
}

/// All functions that were called at least once.
static SITES: Mutex<Vec<&'static CallSite>> = Mutex::new(Vec::new());

/// Orders about calls; `ACTIVE` spares the lock when there are none.
static ORDERS: Mutex<CallOrders> = Mutex::new(CallOrders {
    latencies: Vec::new(),
    faults: Vec::new(),
});
static ACTIVE: AtomicBool = AtomicBool::new(false);

/// The status every call returns once the context is lost; 0 while it is not.
static LOST: AtomicU32 = AtomicU32::new(0);

struct CallOrders {
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

    /// Counts the call in a child, which finds our locks as other threads of its parent left
    /// them, and waits for none.
    pub(crate) fn count_in_child(&'static self) {
        self.calls.fetch_add(1, Ordering::Relaxed);
        if let Some(mut sites) = sites()
            && !sites.iter().any(|site| std::ptr::eq(*site, self))
        {
            sites.push(self);
        }
    }

    /// Counts the call and lets orders about it take effect.
    pub(crate) fn enter(&'static self) -> Result<(), Status> {
        self.registered.get_or_init(|| SITES.lock().push(self));
        self.calls.fetch_add(1, Ordering::Relaxed);
        if ACTIVE.load(Ordering::Relaxed) {
            obey(self.name)?;
        }
        match LOST.load(Ordering::Relaxed) {
            0 => Ok(()),
            _ if outlives_context(self.name) => Ok(()),
            status => Err(Status(status)),
        }
    }
}

/// Whether a function still works when the context is lost: what only asks about
/// devices or chooses one does, on real devices too.
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

/// Keeps a panic, which is a mistake of ours, from leaving through a C function. What it
/// left half done is not used again: the context is lost.
pub(crate) fn guarded<R>(body: impl FnOnce() -> Result<R, Status>) -> Result<R, Status> {
    // Unwind-safe: whatever was broken is behind `LOST` from now on.
    catch_unwind(AssertUnwindSafe(body)).unwrap_or_else(|_| {
        LOST.store(Status::UNKNOWN.0, Ordering::Relaxed);
        Err(Status::UNKNOWN)
    })
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

/// Adds latencies to the standing orders.
pub(crate) fn add_latencies(latencies: Vec<(Pattern, Duration)>) {
    ORDERS.lock().latencies.extend(latencies);
    ACTIVE.store(true, Ordering::Relaxed);
}

/// Adds faults to the standing orders; each counts its own matches from now.
pub(crate) fn add_faults(faults: Vec<CallFault>) {
    ORDERS
        .lock()
        .faults
        .extend(faults.into_iter().map(|fault| (fault, 0)));
    ACTIVE.store(true, Ordering::Relaxed);
}

/// Forgets all faults, and that the context was lost.
pub(crate) fn reset_faults() {
    let mut orders = ORDERS.lock();
    orders.faults.clear();
    ACTIVE.store(!orders.latencies.is_empty(), Ordering::Relaxed);
    LOST.store(0, Ordering::Relaxed);
}

/// Counts from zero again.
pub(crate) fn reset_counters() {
    for site in SITES.lock().iter() {
        site.calls.store(0, Ordering::Relaxed);
    }
}

/// Functions that were called, with how often, by name.
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

/// How often one function was called.
pub(crate) fn count_of(name: &str) -> u64 {
    let sites = sites();
    sites
        .iter()
        .flat_map(|sites| sites.iter())
        .filter(|site| site.name == name)
        .map(|site| site.calls.load(Ordering::Relaxed))
        .sum()
}

/// The functions that were called; in a child none, if the lock was left closed.
fn sites() -> Option<MutexGuard<'static, Vec<&'static CallSite>>> {
    match forked() {
        true => SITES.try_lock(),
        false => Some(SITES.lock()),
    }
}

fn obey(name: &str) -> Result<(), Status> {
    let mut orders = ORDERS.lock();
    let time: Duration = orders
        .latencies
        .iter()
        .filter(|(pattern, _)| pattern.matches(name))
        .map(|(_, time)| *time)
        .fold(Duration::ZERO, Duration::saturating_add);
    let mut effect = None;
    for (fault, seen) in &mut orders.faults {
        if fault.function.matches(name) {
            *seen += 1;
            if fault.occurrence.covers(*seen) {
                effect = effect.or(Some(fault.effect));
            }
        }
    }
    drop(orders);
    spend(time);
    match effect {
        None => Ok(()),
        Some(CallEffect::Fail(status)) => Err(status),
        Some(CallEffect::Lose(status)) => {
            LOST.store(status.0, Ordering::Relaxed);
            Err(status)
        }
        Some(CallEffect::Crash) => {
            tell(&format!("crashing in {name}, as ordered"));
            std::process::abort()
        }
        Some(CallEffect::Hang) => {
            tell(&format!("hanging in {name}, as ordered"));
            loop {
                std::thread::park();
            }
        }
    }
}

/// Lets time pass. Short times are spun, since a sleep costs 50 µs or more.
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
