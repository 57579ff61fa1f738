//! The limit of an allocator, on a device and on the host, and what it does with its lock.

use super::*;
use crate::device_pools::Filter;
use crate::driver::LimitedBy;
use crate::driver::host::{HostDriver, HostMemory};
use crate::driver::sim::{SimConfig, SimDriver};
use crate::history::Action;
use crate::units::{GIB, MIB, PoolId};
use std::sync::Arc;

#[test]
fn a_fraction_that_cannot_be_set_leaves_the_limit_before() {
    let refused = DriverError::Failed {
        call: "MemGetInfo",
        code: 1,
        message: "invalid argument".to_owned(),
    };
    let driver = SimDriver::new(SimConfig {
        capacity: 8 * GIB,
        // The first asks for the warm-up, the second for the first fraction.
        fail_call: Some((3, refused.clone())),
        ..SimConfig::default()
    });
    let allocator = without_floor(driver);
    assert_eq!(allocator.set_memory_fraction(0.5), Ok(()));
    assert_eq!(allocator.set_memory_fraction(0.75), Err(refused));
    assert_eq!(allocator.inner.lock().pools.device().lock().limit, 4 * GIB);
    assert_eq!(allocator.memory_info().map(|info| info.total), Ok(4 * GIB));
}

fn without_floor(driver: impl Driver + 'static) -> Allocator {
    let config = PoolConfig {
        warmup_bytes: 0,
        ..PoolConfig::default()
    };
    Allocator::builder(DeviceIndex(0), driver)
        .config(config)
        .build()
}

/// As many bytes as the allocator gives, in requests of 64 MiB.
fn fill(allocator: &Allocator, most: u64) -> u64 {
    let request = 64 * MIB;
    let given =
        (0..most / request).take_while(|_| allocator.allocate(request, StreamId::DEFAULT).is_ok());
    given.count() as u64 * request
}

#[test]
fn half_of_a_simulated_device_is_half() {
    let driver = SimDriver::new(SimConfig {
        capacity: 4 * GIB,
        ..SimConfig::default()
    });
    let allocator = without_floor(driver);
    assert_eq!(allocator.set_memory_fraction(0.5), Ok(()));
    assert_eq!(fill(&allocator, 4 * GIB), 2 * GIB);
    assert!(allocator.stats().held_bytes <= 2 * GIB);
    let Err(Refusal::OutOfMemory(message)) = allocator.allocate(MIB, StreamId::DEFAULT) else {
        panic!("beyond the limit");
    };
    assert!(
        message.contains("set_per_process_memory_fraction"),
        "{message}"
    );
    assert_eq!(allocator.set_memory_fraction(1.0), Ok(()));
    assert_eq!(fill(&allocator, GIB), GIB);
}

#[test]
fn a_part_of_the_host_is_that_part() {
    struct Memory;
    impl HostMemory for Memory {
        fn read(&mut self, untouched: u64) -> MemoryInfo {
            MemoryInfo {
                free: 2 * GIB - untouched,
                total: 2 * GIB,
                ..MemoryInfo::default()
            }
        }
    }
    let allocator = without_floor(HostDriver::new(Box::new(Memory)));
    assert_eq!(allocator.set_memory_fraction(0.25), Ok(()));
    assert_eq!(fill(&allocator, 2 * GIB), GIB / 2);
    assert_eq!(
        allocator.memory_info().map(|info| info.limited_by),
        Ok(LimitedBy::Fraction)
    );
}

#[test]
fn what_goes_back_for_a_fraction_is_in_the_history() {
    let driver = SimDriver::new(SimConfig {
        capacity: 4 * GIB,
        ..SimConfig::default()
    });
    let config = PoolConfig {
        warmup_bytes: 0,
        keep: Keep::Auto,
        ..PoolConfig::default()
    };
    let allocator = Allocator::builder(DeviceIndex(0), driver)
        .config(config)
        .build();
    allocator.record_history(1000);
    let addresses: Vec<_> = (0..8)
        .map(|_| allocator.allocate(64 * MIB, StreamId::DEFAULT).unwrap())
        .collect();
    addresses.into_iter().for_each(|at| allocator.free(at));
    let held = allocator.stats().held_bytes;
    assert!(held > 128 * MIB, "{held}");
    assert_eq!(allocator.set_memory_fraction(1.0 / 32.0), Ok(()));
    assert!(allocator.stats().held_bytes <= 128 * MIB);
    let (mut taken, mut given_back) = (0, 0);
    for entry in allocator.state().history {
        match entry.action {
            Action::SegmentAllocate => taken += entry.bytes,
            Action::SegmentFree => given_back += entry.bytes,
            _ => {}
        }
    }
    assert_eq!(taken - given_back, allocator.stats().held_bytes);
}

/// A filter that owns memory of the allocator which asks it.
struct Owns(Arc<Allocator>, u64);

impl Filter for Owns {
    fn takes(&mut self, _stream: StreamId) -> Result<bool, String> {
        Ok(false)
    }
}

impl Drop for Owns {
    fn drop(&mut self) {
        self.0.free(self.1);
    }
}

#[test]
fn a_filter_that_owns_memory_of_the_allocator_is_dropped_without_its_lock() {
    let allocator = Arc::new(without_floor(SimDriver::new(SimConfig {
        capacity: GIB,
        ..SimConfig::default()
    })));
    let id = PoolId {
        first: 1,
        second: 2,
    };
    // Where one of these waits for its own lock, so does the test.
    let filter = || {
        let address = allocator.allocate(MIB, StreamId::DEFAULT).unwrap();
        Box::new(Owns(Arc::clone(&allocator), address))
    };
    assert!(allocator.begin_pool(id, filter()).is_ok());
    assert!(allocator.begin_pool(id, filter()).is_err());
    assert!(allocator.end_pool(id));
    assert_eq!(allocator.stats().live_allocations, 0);
}

#[test]
fn statistics_need_no_driver() {
    let driver = SimDriver::new(SimConfig {
        capacity: GIB,
        // The first asks for the warm-up.
        fail_call: Some((2, DriverError::OutOfMemory)),
        fail_later_calls: true,
        ..SimConfig::default()
    });
    let allocator = without_floor(driver);
    let stats = allocator.stats();
    assert_eq!((stats.held_bytes, stats.capacity_bytes), (0, GIB));
    assert_eq!(allocator.memory_info(), Err(DriverError::OutOfMemory));
}

/// A new thread may wait for the loader, whose lock may be held by a thread that allocates.
#[test]
fn the_background_thread_is_started_without_the_lock() {
    let (asks, asked) = std::sync::mpsc::channel();
    let allocator = Arc::new_cyclic(|allocator: &std::sync::Weak<Allocator>| {
        let allocator = allocator.clone();
        let config = PoolConfig {
            keep: Keep::Auto,
            ..PoolConfig::default()
        };
        let driver = SimDriver::new(SimConfig::default());
        let builder = Allocator::builder(DeviceIndex(0), driver).config(config);
        let builder = builder.looked_after(move || {
            let free = allocator
                .upgrade()
                .is_some_and(|it| it.inner.try_lock().is_some());
            asks.send(free).is_ok()
        });
        builder.build()
    });
    let addresses: Vec<_> = (0..8)
        .map(|_| allocator.allocate(128 * MIB, StreamId::DEFAULT).unwrap())
        .collect();
    addresses.into_iter().for_each(|at| allocator.free(at));
    assert_eq!(asked.try_iter().collect::<Vec<_>>(), [true]);
}
