//! Time of one request or free through the allocator as a program sees it (with the default settings; without the
//! registry, but with the lock and the lookup of the address), as one line of JSON.
//!
//! ```text
//! cargo run --release -p alloc-lab --example hot_path -- gpt2.trace.zst …
//! ```
//!
//! The driver is simulated and takes no time. The result for one thread is that of the fastest round of each trace, in which
//! other programs took the processor least. With two threads each replays the whole trace on its own stream: in one pool, where they
//! compete for the lock, and each on its own device; these are medians, since in the fastest round one waited for a processor.
//!
//! Where other programs take much of the machine, count instructions instead; `--once` replays
//! once, in one thread, and prints a number that two programs share if they place every request
//! at the same address:
//!
//! ```text
//! valgrind --tool=callgrind --toggle-collect='hot_path::replay' hot_path --once gpt2.trace.zst …
//! ```

#![allow(clippy::unwrap_used, reason = "an example")]

use alloc_lab::trace::{Event, Trace};
use hip_alloc::allocator::Allocator;
use hip_alloc::config::Config;
use hip_alloc::driver::sim::{SimConfig, SimDriver};
use hip_alloc::units::{DeviceIndex, StreamId};
use std::path::Path;
use std::sync::Barrier;
use std::time::Instant;

const ROUNDS: usize = 5;

fn main() {
    let (options, paths): (Vec<_>, Vec<_>) = std::env::args_os()
        .skip(1)
        .partition(|argument| argument == "--once");
    let traces: Vec<Trace> = paths
        .iter()
        .map(|path| Trace::read(Path::new(path)).unwrap())
        .collect();
    if !options.is_empty() {
        let allocator = allocator(0);
        let (mut events, mut placed) = (0, 0u64);
        for trace in &traces {
            events += trace.events.len();
            replay(trace, &allocator, 0, |address| {
                placed = placed.rotate_left(7).wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ address;
            });
        }
        println!("{{\"events\": {events}, \"placed\": \"{placed:016x}\"}}");
        return;
    }
    let mut fastest = vec![f64::INFINITY; traces.len()];
    for _ in 0..ROUNDS {
        let one = allocator(0);
        for (trace, fastest) in traces.iter().zip(&mut fastest) {
            let began = Instant::now();
            replay(trace, &one, 0, |_| ());
            *fastest = fastest.min(began.elapsed().as_nanos() as f64);
        }
    }
    let events: usize = traces.iter().map(|trace| trace.events.len()).sum();
    let alone = fastest.iter().sum::<f64>() / events as f64;
    let (mut shared, mut apart) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        let one = allocator(0);
        shared.push(run(&traces, &[&one, &one]));
        apart.push(run(&traces, &[&allocator(0), &allocator(1)]));
    }
    println!(
        "{{\"one_thread\": {:.1}, \"two_threads_one_device\": {:.1}, \"two_threads_two_devices\": {:.1}}}",
        alone,
        median(&mut shared),
        median(&mut apart)
    );
}

fn allocator(device: i32) -> Allocator {
    let driver = SimDriver::new(SimConfig::default());
    let config = Config::default().pool(512, false);
    Allocator::builder(DeviceIndex(device), driver)
        .config(config)
        .build()
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
                        replay(trace, allocator, thread as u64, |_| ());
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

#[inline(never)]
fn replay(trace: &Trace, allocator: &Allocator, thread: u64, mut placed: impl FnMut(u64)) {
    let mut addresses = vec![0u64; trace.requests as usize];
    for event in &trace.events {
        match *event {
            Event::Allocate { id, bytes, stream } => {
                let stream = StreamId(stream * 2 + thread);
                let address = allocator.allocate(bytes, stream).unwrap();
                placed(address);
                addresses[id as usize] = address;
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
