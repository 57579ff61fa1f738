//! `HIP_ALLOC_CONF`: what is accepted has a pool that works, and what is not has a message.

#![no_main]

use hip_alloc::config::Config;
use hip_alloc::driver::sim::{SimDriver, SimConfig};
use hip_alloc::pool::{DeviceMemory, Pool};
use hip_alloc::units::StreamId;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| {
    match Config::parse(text) {
        Ok(config) => {
            for needs_guard in [false, true] {
                let device = DeviceMemory::of(SimDriver::new(SimConfig::default()));
                let mut pool = Pool::new(config.pool(512, needs_guard), device);
                if let Ok(address) = pool.allocate(1 << 20, StreamId(0)) {
                    assert!(pool.free(address).is_ok());
                }
                assert_eq!(pool.stats().live_bytes, 0);
            }
        }
        Err(error) => assert!(error.to_string().starts_with("HIP_ALLOC_CONF")),
    }
});
