//! When memory that one stream freed is there for others, and for the driver.

#![allow(clippy::unwrap_used, reason = "tests")]

use hip_alloc::driver::sim::{SimConfig, SimDriver};
use hip_alloc::pool::{Pool, PoolConfig};
use hip_alloc::units::{MIB, StreamId};

#[test]
fn memory_of_another_stream_is_taken_only_after_an_event() {
    let config = PoolConfig {
        warmup_bytes: 0,
        ..PoolConfig::default()
    };
    let mut driver = SimDriver::new(SimConfig {
        polls_per_event: 2,
        ..SimConfig::default()
    });
    let mut pool = Pool::new(config);
    let (first, second) = (StreamId(1), StreamId(2));
    let keep = pool.allocate(&mut driver, MIB / 2, first).unwrap();
    let a = pool.allocate(&mut driver, MIB / 2, first).unwrap();
    pool.free(&mut driver, a).unwrap();
    assert_eq!(
        pool.allocate(&mut driver, MIB / 2, first),
        Ok(a),
        "its own stream: at once"
    );
    pool.free(&mut driver, a).unwrap();
    let elsewhere = pool.allocate(&mut driver, MIB / 2, second).unwrap();
    assert_ne!(elsewhere, a, "the work on the first stream is not done");
    pool.free(&mut driver, keep).unwrap();
}

/// Nothing tells whether the work on a stream is done that the program does not use any more.
#[test]
fn what_an_abandoned_stream_freed_does_not_raise_the_peak() {
    let mut driver = SimDriver::new(SimConfig {
        polls_per_event: 1,
        ..SimConfig::default()
    });
    let mut pool = Pool::new(PoolConfig::default());
    let abandoned = pool.allocate(&mut driver, 2000 * MIB, StreamId(7)).unwrap();
    pool.free(&mut driver, abandoned).unwrap();
    for _ in 0..3 {
        pool.allocate(&mut driver, 600 * MIB, StreamId(0)).unwrap();
    }
    assert!(pool.stats().held_peak_bytes <= 2100 * MIB);
}

#[test]
fn a_recorded_stream_delays_reuse() {
    let mut driver = SimDriver::new(SimConfig {
        polls_per_event: 3,
        ..SimConfig::default()
    });
    let mut pool = Pool::new(PoolConfig::default());
    pool.warm_up(&mut driver);
    let a = pool.allocate(&mut driver, MIB, StreamId(1)).unwrap();
    pool.record_stream(a, StreamId(2)).unwrap();
    pool.free(&mut driver, a).unwrap();
    assert_eq!(pool.stats().pending_bytes, MIB);
    let b = pool.allocate(&mut driver, MIB, StreamId(1)).unwrap();
    assert_ne!(a, b);
    pool.trim(&mut driver, u64::MAX / 2);
    assert_eq!(pool.stats().pending_bytes, 0);
}
