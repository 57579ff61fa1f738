//! What is kept for the next step goes back when somebody needs it, or nobody uses it. Time and
//! other programs are simulated.

#![allow(clippy::unwrap_used, reason = "tests")]

use hip_alloc::allocator::Allocator;
use hip_alloc::background_reclaim::BackgroundReclaim;
use hip_alloc::driver::sim::{SimConfig, SimDriver};
use hip_alloc::driver::{Driver, DriverCost, DriverError, EventId, MemoryInfo};
use hip_alloc::pool::{Keep, PoolConfig};
use hip_alloc::units::{DeviceIndex, GIB, MIB, StreamId};
use platform::memory::MemoryPressure;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

/// Memory of which others take a part, and work that goes on.
#[derive(Clone, Default)]
struct Machine {
    others: Arc<AtomicU64>,
    busy: Arc<AtomicBool>,
    lost: Arc<AtomicBool>,
    /// Milliseconds that the program used a processor.
    used: Arc<AtomicU64>,
    /// Calls since the device was lost.
    calls_when_lost: Arc<AtomicU64>,
}

struct Shared {
    machine: Machine,
    device: SimDriver,
}

impl Shared {
    fn check(&self) -> Result<(), DriverError> {
        if !self.machine.lost.load(Ordering::Relaxed) {
            return Ok(());
        }
        self.machine.calls_when_lost.fetch_add(1, Ordering::Relaxed);
        Err(DriverError::Failed {
            call: "Free",
            code: 700,
            message: "hipErrorIllegalAddress".to_owned(),
        })
    }
}

impl Driver for Shared {
    fn allocate(&mut self, bytes: u64) -> Result<u64, DriverError> {
        self.check()?;
        if bytes > self.memory_info()?.free {
            return Err(DriverError::OutOfMemory);
        }
        self.device.allocate(bytes)
    }

    fn release(&mut self, address: u64, bytes: u64) -> Result<(), DriverError> {
        self.check()?;
        self.device.release(address, bytes)
    }

    fn record(&mut self, _stream: StreamId) -> Result<Option<EventId>, DriverError> {
        self.check()?;
        let busy = self.machine.busy.load(Ordering::Relaxed);
        Ok(busy.then_some(EventId(1)))
    }

    fn reached(&mut self, _event: EventId) -> Result<bool, DriverError> {
        self.check()?;
        Ok(!self.machine.busy.load(Ordering::Relaxed))
    }

    fn wait(&mut self, _event: EventId) -> Result<(), DriverError> {
        self.check()
    }

    fn synchronize(&mut self) -> Result<(), DriverError> {
        self.check()
    }

    fn is_capturing(&mut self, stream: StreamId) -> Result<bool, DriverError> {
        self.device.is_capturing(stream)
    }

    fn enter_capture(&mut self) {}

    fn leave_capture(&mut self) {}

    fn runtime(&self) -> &'static str {
        self.device.runtime()
    }

    fn survives_fork(&self) -> bool {
        true
    }

    fn survives_exit(&self) -> bool {
        true
    }

    fn needs_guard(&self) -> bool {
        false
    }

    fn cheap_memory_info(&mut self) -> Result<MemoryInfo, DriverError> {
        self.memory_info()
    }

    fn measure(&mut self) -> Option<DriverCost> {
        None
    }

    fn now(&mut self) -> Duration {
        self.device.now()
    }

    fn memory_info(&mut self) -> Result<MemoryInfo, DriverError> {
        self.check()?;
        let info = self.device.memory_info()?;
        let others = self.machine.others.load(Ordering::Relaxed);
        Ok(MemoryInfo {
            free: info.free.saturating_sub(others),
            ..info
        })
    }
}

/// A program on a device of 16 GiB.
struct Program {
    machine: Machine,
    allocator: Allocator,
    reclaim: BackgroundReclaim,
    now: Duration,
}

impl Program {
    fn new() -> Self {
        Self::on(DeviceIndex(0))
    }

    fn on(device: DeviceIndex) -> Self {
        let machine = Machine::default();
        let driver = Shared {
            machine: machine.clone(),
            device: SimDriver::new(SimConfig {
                capacity: 16 * GIB,
                ..SimConfig::default()
            }),
        };
        let allocator = Allocator::builder(device, driver).config(PoolConfig {
            keep: Keep::Auto,
            ..PoolConfig::default()
        });
        let nothing = tempfile::tempdir().unwrap();
        let used = Arc::clone(&machine.used);
        let reclaim = BackgroundReclaim::watching(MemoryPressure::below(nothing.path()));
        Program {
            machine,
            allocator: allocator.build(),
            reclaim: reclaim
                .processor_time(move || Duration::from_millis(used.load(Ordering::Relaxed))),
            now: Duration::ZERO,
        }
    }

    /// Uses 8 GiB for a moment.
    fn step(&self) {
        self.step_on(StreamId::DEFAULT);
    }

    fn step_on(&self, stream: StreamId) {
        let addresses: Vec<_> = (0..64)
            .map(|_| self.allocator.allocate(128 * MIB, stream).unwrap())
            .collect();
        for address in addresses {
            self.allocator.free(address);
        }
    }

    fn held(&self) -> u64 {
        self.allocator.stats().held_bytes
    }

    /// Lets it look after so many milliseconds.
    fn look_after(&mut self, milliseconds: u64) -> bool {
        self.now += Duration::from_millis(milliseconds);
        self.reclaim.check(&self.allocator, self.now)
    }
}

/// A quarter of what was live at most.
const FLOOR: u64 = GIB;

#[test]
fn a_program_that_goes_on_keeps_its_memory() {
    let mut program = Program::new();
    for _ in 0..100 {
        program.step();
        assert_eq!(program.held(), 8 * GIB);
        assert!(program.look_after(900));
    }
    assert_eq!(program.allocator.stats().driver_frees, 0);
}

#[test]
fn a_program_that_paused_is_at_its_floor_after_a_second_and_wakes_nothing() {
    let mut program = Program::new();
    program.step();
    assert!(program.look_after(50));
    assert!(program.look_after(950));
    assert_eq!(program.held(), 8 * GIB);
    assert!(!program.look_after(50), "nothing is left to look after");
    assert!(program.held() <= FLOOR, "{} MiB", program.held() / MIB);
    assert_eq!(program.allocator.stats().give_backs, 1);
    // It goes on, and keeps as before.
    program.step();
    assert_eq!(program.held(), 8 * GIB);
}

#[test]
fn a_program_that_waits_for_its_device_has_not_paused() {
    let mut program = Program::new();
    program.step();
    program.machine.busy.store(true, Ordering::Relaxed);
    assert!(program.look_after(50) && program.look_after(30_000));
    assert_eq!(program.held(), 8 * GIB);
    program.machine.busy.store(false, Ordering::Relaxed);
    assert!(!program.look_after(50));
    assert!(program.held() <= FLOOR);
}

/// An operation on the host that takes seconds, because the machine is busy or it is large.
#[test]
fn a_program_that_computes_on_the_host_has_not_paused() {
    let mut program = Program::on(DeviceIndex::HOST);
    program.step();
    for _ in 0..100 {
        program.machine.used.fetch_add(20, Ordering::Relaxed);
        assert!(program.look_after(50));
    }
    assert_eq!(program.held(), 8 * GIB);
    assert!((0..30).any(|_| !program.look_after(50)), "it paused");
    assert!(program.held() <= FLOOR);
}

#[test]
fn what_is_kept_goes_back_at_once_when_another_program_takes_the_rest() {
    let mut program = Program::new();
    program.step();
    assert!(program.look_after(50));
    // In steps of 256 MiB, each of which is there when it is asked for.
    for taken in (0..15 * GIB).step_by(256 << 20) {
        program.machine.others.store(taken, Ordering::Relaxed);
        assert!(taken + program.held() <= 16 * GIB, "{} MiB", taken / MIB);
        assert!(program.look_after(10), "not for having paused");
    }
    assert!(program.held() <= FLOOR);
}

/// The program may have destroyed the stream, so the device is waited for.
#[test]
fn what_a_stream_of_the_program_freed_goes_back_too() {
    let mut program = Program::new();
    program.step_on(StreamId(7));
    program.machine.busy.store(true, Ordering::Relaxed);
    assert!(program.look_after(50));
    assert_eq!(program.held(), 8 * GIB);
    program
        .machine
        .others
        .store(7 * GIB + 512 * MIB, Ordering::Relaxed);
    assert!(program.look_after(50));
    assert!(program.held() <= FLOOR, "{} MiB", program.held() / MIB);
}

#[test]
fn nothing_is_kept_until_the_program_could_grow_to_its_most_again() {
    let mut program = Program::new();
    program.step();
    assert!(program.look_after(50));
    program
        .machine
        .others
        .store(7 * GIB + 512 * MIB, Ordering::Relaxed);
    assert!(program.look_after(50));
    for _ in 0..20 {
        program.step();
        assert!(program.held() <= FLOOR + 256 * MIB);
        program.look_after(50);
    }
    program.machine.others.store(GIB, Ordering::Relaxed);
    program.step();
    program.look_after(50);
    program.step();
    assert_eq!(program.held(), 8 * GIB);
}

#[test]
fn a_lost_device_is_left_alone() {
    let mut program = Program::new();
    program.step();
    assert!(program.look_after(50));
    program.machine.lost.store(true, Ordering::Relaxed);
    let calls = || program.machine.calls_when_lost.load(Ordering::Relaxed);
    // The program hears of it first, or the one that looks.
    program.allocator.trim(0);
    let before = calls();
    assert!(before > 0);
    for _ in 0..100 {
        let now = Duration::from_secs(100);
        assert!(!program.reclaim.check(&program.allocator, now));
    }
    assert_eq!(calls(), before);
}

#[test]
fn a_device_that_is_found_lost_is_not_looked_at_for_ever() {
    let mut program = Program::new();
    program.step();
    program.machine.lost.store(true, Ordering::Relaxed);
    let looks = (0..1000).take_while(|_| program.look_after(50)).count();
    assert!(looks <= 25, "{looks}");
}
