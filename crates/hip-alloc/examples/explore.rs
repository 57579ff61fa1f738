//! The table of `POLICIES.md`: every trace through the pool, beside what is promised.
//!
//! ```text
//! cargo run --release -p hip-alloc --example explore             recorded and made-up traces
//! cargo run --release -p hip-alloc --example explore -- a.trace  these traces
//! HIP_ALLOC_CONF=large_block_mb:128 cargo run …                  with other settings
//! HANDLE_MB=64 cargo run …                                       memory mapped in handles
//! ```

#![allow(clippy::unwrap_used, reason = "an example")]

use hip_alloc::config::Config;
use hip_alloc::driver::Mapping;
use hip_alloc::driver::sim::SimOrders;
use hip_alloc::pool::PoolConfig;
use hip_alloc::trace::format::Trace;
use hip_alloc::trace::replay::{Promises, replay};
use hip_alloc::trace::synthetic::Shape;
use hip_alloc::units::MIB;
use std::path::{Path, PathBuf};

fn main() {
    let settings = std::env::var("HIP_ALLOC_CONF").unwrap_or_default();
    let config = Config::parse(&settings).unwrap().pool(512);
    let named: Vec<PathBuf> = std::env::args_os().skip(1).map(PathBuf::from).collect();
    println!(
        "{:32} {:>8} {:>7} {:>7} {:>7} {:>7} {:>7} {:>4} {:>8}",
        "trace", "live", "peak", "excess", "calls", "allowed", "no-cach", "oom", "tight"
    );
    let files = if named.is_empty() {
        recorded()
    } else {
        named.clone()
    };
    for file in files {
        let name = file.file_name().unwrap().display().to_string();
        print(&name, &Trace::read(&file).unwrap(), &config);
    }
    if named.is_empty() {
        for (name, shape) in Shape::examples() {
            print(name, &shape.trace(), &config);
        }
    }
}

fn recorded() -> Vec<PathBuf> {
    let tests = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests");
    let files = |folder| {
        let entries = std::fs::read_dir(tests.join(folder)).unwrap();
        let mut files: Vec<_> = entries.map(|entry| entry.unwrap().path()).collect();
        files.sort();
        files
    };
    [files("traces"), files("held_out")].concat()
}

fn print(name: &str, trace: &Trace, config: &PoolConfig) {
    let handle = std::env::var("HANDLE_MB").map(|text| text.parse::<u64>().unwrap() * MIB);
    let orders = SimOrders {
        mapping: handle.ok().map(|handle| Mapping {
            handle,
            granule: 2 * MIB,
        }),
        ..SimOrders::default()
    };
    let roomy = replay(trace, config.clone(), orders.clone());
    let capacity = roomy.peak_live / 100 * 103;
    let orders = SimOrders { capacity, ..orders };
    let pressed = replay(trace, config.clone(), orders);
    let promises = Promises::of(&roomy, config.warmup_bytes);
    let flag = |met: bool| if met { ' ' } else { '*' };
    println!(
        "{name:32} {:>8} {:>6.4}{} {:>6}{} {:>6.0}{} {:>7.0} {:>7.0} {:>3}{} {:>8.0}",
        roomy.peak_live / MIB,
        roomy.peak_ratio(),
        flag(promises.peak(&roomy)),
        roomy.idle_excess() / MIB,
        flag(promises.idle(&roomy)),
        roomy.calls_per_step(),
        flag(promises.calls(&roomy)),
        promises.calls_allowed_per_step,
        roomy.uncached_calls_per_step(),
        pressed.out_of_memory,
        flag(pressed.out_of_memory == 0),
        pressed.calls_per_step(),
    );
}
