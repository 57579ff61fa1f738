//! What would the allocator hold in a recorded run?
//!
//! ```sh
//! cargo run --release -p alloc-lab --example 01-replay -- run.trace
//! ```

use std::path::PathBuf;

use alloc_lab::replay::replay;
use alloc_lab::synthetic::Shape;
use alloc_lab::trace::Trace;
use hip_alloc::driver::sim::SimConfig;
use hip_alloc::pool::PoolConfig;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let trace = match std::env::args_os().nth(1).map(PathBuf::from) {
        Some(path) => Trace::read(&path)?,
        // None of your own: a made-up training run.
        None => Shape::examples().swap_remove(0).1.trace(),
    };
    let outcome = replay(&trace, PoolConfig::default(), SimConfig::default());
    println!("peak held / peak live     {:.3}", outcome.peak_ratio());
    println!("held beyond live at ends  {} bytes", outcome.idle_excess());
    println!("driver calls per step     {:.0}", outcome.calls_per_step());
    Ok(())
}
