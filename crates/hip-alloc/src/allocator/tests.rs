//! The limit of an allocator, on a device and on the host.

use super::*;
use crate::driver::host::{HostDriver, HostMemory};
use crate::driver::sim::{SimConfig, SimDriver};
use crate::driver::{LimitedBy, Mapping};
use crate::units::{GIB, MIB};

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
    assert_eq!(allocator.inspect(Pool::limit), 4 * GIB);
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
    for handle in [None, Some(32 * MIB)] {
        let driver = SimDriver::new(SimConfig {
            capacity: 4 * GIB,
            mapping: handle.map(|handle| Mapping {
                handle,
                granule: 2 * MIB,
            }),
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
