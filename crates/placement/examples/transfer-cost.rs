//! What each way to the device costs, against a bare copy: run it in release.
//!
//! ```text
//! cargo run --release -p placement --example transfer-cost [-- --json]
//! ```
//!
//! For each size: a bare copy of the bytes into memory that is written already
//! (`memcpy`) and into fresh memory (what a move has to do), libtorch's copy, and the
//! ladder with each verification mode. Several rounds, in turn; the median counts.
//! The device is the first accelerator, or the CPU.

use std::time::{Duration, Instant};

use placement::torch_transport::{HostTensor, TorchTransport, TransportOptions};
use placement::transport::{CopyMethod, Transport};
use placement::{Bytes, Ladder, Policy, Request, Role, Verify};
use serde_json::json;
use tch::{Device, Kind, Tensor};

const SIZES: [u64; 5] = [64 << 10, 1 << 20, 16 << 20, 64 << 20, 256 << 20];
const ROUNDS: usize = 15;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let as_json = std::env::args().any(|argument| argument == "--json");
    let device = match torch_ext::accelerator::device_count() {
        0 => Device::Cpu,
        _ => Device::Cuda(0),
    };
    let mut rows = Vec::new();
    for size in SIZES {
        let row = measure(device, size)?;
        if !as_json {
            print(&row);
        }
        rows.push(row);
    }
    if as_json {
        let rows: Vec<_> = rows.iter().map(Row::json).collect();
        println!(
            "{}",
            serde_json::to_string_pretty(
                &json!({ "device": format!("{device:?}"), "sizes": rows })
            )?
        );
    }
    Ok(())
}

struct Row {
    size: u64,
    medians: Vec<(&'static str, Duration)>,
}

impl Row {
    fn time(&self, name: &str) -> f64 {
        let found = self.medians.iter().find(|(known, _)| *known == name);
        found.map_or(f64::NAN, |(_, time)| time.as_secs_f64())
    }

    /// What verifying every move adds to the copy, as a share of the copy's time.
    fn share_of_always(&self) -> f64 {
        (self.time("ladder, always") - self.time("ladder, off")) / self.time("ladder, off")
    }

    fn json(&self) -> serde_json::Value {
        let seconds = self
            .medians
            .iter()
            .map(|(name, time)| ((*name).to_owned(), json!(time.as_secs_f64())));
        json!({
            "bytes": self.size,
            "seconds": serde_json::Map::from_iter(seconds),
            "always_over_copy": self.share_of_always(),
        })
    }
}

fn measure(device: Device, size: u64) -> Result<Row, Box<dyn std::error::Error>> {
    let source = Tensor::f_randint(255, [size as i64], (Kind::Uint8, Device::Cpu))?;
    let host = HostTensor::new(&source)?;
    let mut transport = TorchTransport::new(device, TransportOptions::default())?;
    let mut ladders = [Verify::Off, Verify::First, Verify::Always].map(|verify| {
        Ladder::new(Policy {
            verify,
            ..Policy::default()
        })
    });
    let bytes = vec![7_u8; size as usize];
    let mut warm = vec![0_u8; size as usize];
    let mut times: Vec<(&'static str, Vec<Duration>)> = Vec::new();
    for _ in 0..ROUNDS {
        let mut note = |name, start: Instant| {
            let time = start.elapsed();
            match times.iter_mut().find(|(known, _)| *known == name) {
                Some((_, times)) => times.push(time),
                None => times.push((name, vec![time])),
            }
        };
        let start = Instant::now();
        warm.copy_from_slice(std::hint::black_box(&bytes));
        std::hint::black_box(&mut warm);
        note("memcpy", start);
        let start = Instant::now();
        let fresh = std::hint::black_box(&bytes).to_vec();
        note("memcpy into fresh memory", start);
        drop(std::hint::black_box(fresh));
        let start = Instant::now();
        let copied = transport.copy(&host, CopyMethod::Direct)?;
        note("libtorch", start);
        drop(copied);
        let names = ["ladder, off", "ladder, first", "ladder, always"];
        for (name, ladder) in names.into_iter().zip(&mut ladders) {
            let request = Request {
                name: "batch",
                role: Role::Batch,
                cast: None,
            };
            let start = Instant::now();
            let placed = ladder.place(&mut transport, &host, &request)?;
            note(name, start);
            drop(placed);
        }
        let start = Instant::now();
        std::hint::black_box(transport.sum_host(&host)?);
        note("one checksum on the host", start);
    }
    let medians = times.into_iter().map(|(name, mut times)| {
        times.sort();
        (name, times[times.len() / 2])
    });
    Ok(Row {
        size,
        medians: medians.collect(),
    })
}

fn print(row: &Row) {
    println!("{}", Bytes(row.size));
    for (name, time) in &row.medians {
        let rate = row.size as f64 / time.as_secs_f64() / 1e9;
        println!(
            "  {name:<26} {:>9.1} µs {rate:>7.2} GB/s",
            time.as_secs_f64() * 1e6
        );
    }
    println!(
        "  verifying every move adds {:.1} % to the move",
        row.share_of_always() * 100.0
    );
}
