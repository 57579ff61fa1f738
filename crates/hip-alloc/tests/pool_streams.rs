//! When memory that one stream freed is there for others, and for the driver.

#![allow(clippy::unwrap_used, reason = "tests")]

use hip_alloc::driver::sim::{SimConfig, SimDriver};
use hip_alloc::pool::{DeviceMemory, Pool, PoolConfig};
use hip_alloc::units::{MIB, StreamId};

#[test]
fn memory_of_another_stream_is_taken_only_after_an_event() {
    let config = PoolConfig {
        warmup_bytes: 0,
        ..PoolConfig::default()
    };
    let device = DeviceMemory::of(SimDriver::new(SimConfig {
        polls_per_event: 2,
        ..SimConfig::default()
    }));
    let mut pool = Pool::new(config, device);
    let (first, second) = (StreamId(1), StreamId(2));
    let keep = pool.allocate(MIB / 2, first).unwrap();
    let a = pool.allocate(MIB / 2, first).unwrap();
    pool.free(a).unwrap();
    assert_eq!(
        pool.allocate(MIB / 2, first),
        Ok(a),
        "its own stream: at once"
    );
    pool.free(a).unwrap();
    let elsewhere = pool.allocate(MIB / 2, second).unwrap();
    assert_ne!(elsewhere, a, "the work on the first stream is not done");
    pool.free(keep).unwrap();
}

/// Nothing tells whether the work on a stream is done that the program does not use any more.
#[test]
fn what_an_abandoned_stream_freed_does_not_raise_the_peak() {
    let device = DeviceMemory::of(SimDriver::new(SimConfig {
        polls_per_event: 1,
        ..SimConfig::default()
    }));
    let mut pool = Pool::new(PoolConfig::default(), device);
    let abandoned = pool.allocate(2000 * MIB, StreamId(7)).unwrap();
    pool.free(abandoned).unwrap();
    for _ in 0..3 {
        pool.allocate(600 * MIB, StreamId(0)).unwrap();
    }
    assert!(pool.stats().held_peak_bytes <= 2100 * MIB);
}

#[test]
fn a_recorded_stream_delays_reuse() {
    let device = DeviceMemory::of(SimDriver::new(SimConfig {
        polls_per_event: 3,
        ..SimConfig::default()
    }));
    let mut pool = Pool::new(PoolConfig::default(), device);
    let a = pool.allocate(MIB, StreamId(1)).unwrap();
    pool.record_stream(a, StreamId(2)).unwrap();
    pool.free(a).unwrap();
    assert_eq!(pool.stats().pending_bytes, MIB);
    let b = pool.allocate(MIB, StreamId(1)).unwrap();
    assert_ne!(a, b);
    pool.trim(u64::MAX / 2);
    assert_eq!(pool.stats().pending_bytes, 0);
}
