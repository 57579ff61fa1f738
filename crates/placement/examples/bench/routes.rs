//! Each route that is open on the CPU against a bare memcpy, and verification against none.
//!
//! Everything is measured in turn within a round, so that a machine that slows down slows all of it; the
//! reported numbers are medians over the rounds.

use std::error::Error;
use std::hint::black_box;
use std::time::Instant;

use placement::checksum::Checksum;
use placement::torch_transport::{HostTensor, TorchTransport, TransportOptions};
use placement::transport::{CopyMethod, Transport};
use placement::{Bytes, Ladder, Policy, Request, Role, Verify};
use serde::Serialize;
use tch::{Device, Kind, Tensor};

/// What one size costs, in bytes per second.
#[derive(Serialize)]
pub(crate) struct RouteCost {
    bytes: Bytes,
    /// Into memory that is there already.
    memcpy: f64,
    /// Into memory fresh from the system, as each route has it.
    memcpy_fresh: f64,
    direct: f64,
    chunked: f64,
    /// Reading alone.
    checksum: f64,
    /// The ladder with `verify: off` and `always`.
    ladder_off: f64,
    ladder_always: f64,
    /// Median over the rounds of the time that `always` adds to `off`, by the time of `off`.
    verify_overhead: f64,
}

pub(crate) fn measure(rounds: usize) -> Result<Vec<RouteCost>, Box<dyn Error>> {
    [1, 4, 16, 64, 256]
        .into_iter()
        .map(|mib| measure_size(Bytes::mib(mib), rounds))
        .collect()
}

fn measure_size(bytes: Bytes, rounds: usize) -> Result<RouteCost, Box<dyn Error>> {
    let length = usize::try_from(bytes.0)?;
    let tensor = Tensor::f_rand([(bytes.0 / 4) as i64], (Kind::Float, Device::Cpu))?;
    let source: Vec<u8> = (0..length).map(|at| ((at * 31) >> 3) as u8).collect();
    let mut target = vec![1_u8; length];
    let mut transport = TorchTransport::new(Device::Cpu, TransportOptions::default())?;
    let host = HostTensor::new(&tensor)?;
    let mut ladders = [Verify::Off, Verify::Always].map(|verify| {
        Ladder::new(Policy {
            verify,
            ..Policy::default()
        })
    });
    let request = Request {
        name: "tensor",
        role: Role::Weight,
        cast: None,
    };
    let chunked = CopyMethod::Chunked {
        chunk: Bytes::mib(16),
    };

    let mut seconds: [Vec<f64>; 7] = Default::default();
    for _ in 0..rounds.max(1) {
        seconds[0].push(timed(|| {
            black_box(&mut target).copy_from_slice(black_box(&source));
            Ok(())
        })?);
        seconds[1].push(timed(|| Ok(black_box(source.clone())))?);
        seconds[2].push(timed(|| Ok(transport.copy(&host, CopyMethod::Direct)?))?);
        seconds[3].push(timed(|| Ok(transport.copy(&host, chunked)?))?);
        seconds[4].push(timed(|| Ok(black_box(Checksum::of(black_box(&source)))))?);
        for (ladder, seconds) in ladders.iter_mut().zip(&mut seconds[5..]) {
            seconds.push(timed(|| {
                Ok(ladder.place(&mut transport, &host, &request)?)
            })?);
        }
    }
    let overheads: Vec<f64> = seconds[5]
        .iter()
        .zip(&seconds[6])
        .map(|(off, always)| always / off - 1.0)
        .collect();
    let rate = |seconds: &Vec<f64>| bytes.0 as f64 / median(seconds);
    let [
        memcpy,
        memcpy_fresh,
        direct,
        chunked,
        checksum,
        ladder_off,
        ladder_always,
    ] = seconds.each_ref().map(rate);
    let verify_overhead = median(&overheads);
    Ok(RouteCost {
        bytes,
        memcpy,
        memcpy_fresh,
        direct,
        chunked,
        checksum,
        ladder_off,
        ladder_always,
        verify_overhead,
    })
}

/// The seconds that some work takes, with freeing what it made.
fn timed<T>(work: impl FnOnce() -> Result<T, Box<dyn Error>>) -> Result<f64, Box<dyn Error>> {
    let start = Instant::now();
    drop(work()?);
    Ok(start.elapsed().as_secs_f64())
}

fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted[sorted.len() / 2]
}
