//! Memory from the pool: what is live, and what is held.
//!
//! ```sh
//! cargo run -p hip-alloc --example 01-allocate
//! ```

use hip_alloc::allocator::Allocator;
use hip_alloc::capacity::{MemoryBudget, Reserve};
use hip_alloc::driver::host::HostDriver;
use hip_alloc::pool::PoolConfig;
use hip_alloc::units::{DeviceIndex, StreamId};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let driver = HostDriver::new(Box::new(MemoryBudget::host(Reserve::Auto)));
    let config = PoolConfig {
        warmup_bytes: 0,
        ..PoolConfig::default()
    };
    let allocator = Allocator::builder(DeviceIndex(0), driver)
        .config(config)
        .build();

    let weights = allocator.allocate(64 << 20, StreamId(0))?;
    let activations = allocator.allocate(16 << 20, StreamId(0))?;
    allocator.free(activations);
    let stats = allocator.stats();
    println!("live {}, held {} bytes", stats.live_bytes, stats.held_bytes);

    allocator.free(weights);
    allocator.trim(0);
    println!("held in the end: {} bytes", allocator.stats().held_bytes);
    Ok(())
}
