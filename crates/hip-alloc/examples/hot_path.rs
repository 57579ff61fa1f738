//! Time of one request or free through the allocator as a program meets it (registry left
//! out, lock and lookup of the address included), as one line of JSON.
//!
//! ```text
//! cargo run --release -p hip-alloc --example hot_path -- gpt2.trace.zst …
//! ```
//!
//! The driver is simulated and takes no time. With two threads each replays the whole
//! trace, on a stream of its own: in one pool, where they wait for each other's lock, and
//! each on a device of its own. Of several rounds the median counts.

#![allow(clippy::unwrap_used, reason = "an example")]

use hip_alloc::allocator::Allocator;
use hip_alloc::driver::sim::{SimDriver, SimOrders};
use hip_alloc::pool::PoolConfig;
use hip_alloc::trace::format::{Event, Trace};
use hip_alloc::units::{DeviceIndex, StreamId};
use std::path::Path;
use std::sync::Barrier;
use std::time::Instant;

const ROUNDS: usize = 5;

fn main() {
    let traces: Vec<Trace> = std::env::args_os()
        .skip(1)
        .map(|path| Trace::read(Path::new(&path)).unwrap())
        .collect();
    let (mut alone, mut shared, mut apart) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        alone.push(run(&traces, &[&allocator(0)]));
        let one = allocator(0);
        shared.push(run(&traces, &[&one, &one]));
        apart.push(run(&traces, &[&allocator(0), &allocator(1)]));
    }
    println!(
        "{{\"one_thread\": {:.1}, \"two_threads_one_device\": {:.1}, \"two_threads_two_devices\": {:.1}}}",
        median(&mut alone),
        median(&mut shared),
        median(&mut apart)
    );
}

fn allocator(device: i32) -> Allocator {
    let driver = Box::new(SimDriver::new(SimOrders::default()));
    Allocator::new(DeviceIndex(device), PoolConfig::default(), driver, None)
}

/// Nanoseconds of wall time per operation of one thread, with a thread for each allocator.
fn run(traces: &[Trace], allocators: &[&Allocator]) -> f64 {
    let barrier = Barrier::new(allocators.len());
    let operations: usize = traces.iter().map(|trace| trace.events.len()).sum();
    let times: Vec<f64> = std::thread::scope(|scope| {
        let threads: Vec<_> = allocators
            .iter()
            .enumerate()
            .map(|(thread, allocator)| {
                let barrier = &barrier;
                scope.spawn(move || {
                    barrier.wait();
                    let began = Instant::now();
                    for trace in traces {
                        replay(trace, allocator, thread as u64);
                    }
                    began.elapsed().as_nanos() as f64
                })
            })
            .collect();
        let times = threads.into_iter().map(|thread| thread.join().unwrap());
        times.collect()
    });
    times.iter().copied().fold(0.0, f64::max) / operations as f64
}

fn replay(trace: &Trace, allocator: &Allocator, thread: u64) {
    let mut addresses = vec![0u64; trace.requests as usize];
    for event in &trace.events {
        match *event {
            Event::Allocate { id, bytes, stream } => {
                let stream = StreamId(stream * 2 + thread);
                addresses[id as usize] = allocator.allocate(bytes, stream).unwrap();
            }
            Event::Free { id } => allocator.free(std::mem::take(&mut addresses[id as usize])),
            Event::Step => {}
        }
    }
    for address in addresses.into_iter().filter(|address| *address != 0) {
        allocator.free(address);
    }
}

fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}
