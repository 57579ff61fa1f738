//! Each available transfer strategy compared with a plain memcpy, and with and without verification.
//!
//! Weights are moved once: from memory that is not cached to memory that has not been touched. So a row does not move the
//! same tensor repeatedly, from the caches, but a module of many tensors that is larger
//! than the caches, and keeps all of them until the last one has arrived. (glibc reuses freed memory, which its
//! tunable `glibc.malloc.mmap_threshold`, set by `cargo xtask bench placement`, prevents.)
//!
//! All variants are interleaved within a round, so that other load affects all of them; the
//! reported numbers are medians over the rounds.

use std::error::Error;
use std::hint::black_box;
use std::time::Instant;

use placement::checksum::Checksum;
use placement::torch_transport::{HostTensor, TorchTransport, TransportOptions};
use placement::transport::{CopyMethod, SyncScope, Transport};
use placement::{Bytes, Placed, Policy, Request, Role, TransferEngine, Verify};
use serde::Serialize;
use tch::{Device, Kind, Tensor};

/// The minimum total size of the tensors in a row: more than the caches of most machines.
const TOGETHER: Bytes = Bytes::mib(256);

/// The cost of moving tensors of one size.
#[derive(Serialize)]
pub(crate) struct RouteCost {
    /// The size of one tensor.
    bytes: Bytes,
    /// The number of tensors.
    tensors: usize,
    /// Bytes per second of each strategy, a plain memcpy first.
    rates: Vec<Rate>,
    /// Median over the rounds of the overhead of `always`, relative to `off`.
    verify_overhead: f64,
    /// The quartiles of that overhead.
    verify_overhead_between: (f64, f64),
}

/// Bytes per second of one strategy.
#[derive(Serialize)]
struct Rate {
    way: &'static str,
    bytes_per_second: f64,
}

pub(crate) fn measure(device: Device, rounds: usize) -> Result<Vec<RouteCost>, Box<dyn Error>> {
    let sizes = [1, 2, 4, 16, 64, 256];
    let sizes = sizes.into_iter().enumerate();
    sizes
        .map(|(at, mib)| {
            eprintln!("[{}/6] tensors of {mib} MiB", at + 1);
            measure_size(device, Bytes::mib(mib), rounds.max(1))
        })
        .collect()
}

fn measure_size(device: Device, bytes: Bytes, rounds: usize) -> Result<RouteCost, Box<dyn Error>> {
    let count = usize::try_from((TOGETHER.0 / bytes.0).max(1))?;
    let shape = [(bytes.0 / 4) as i64];
    let mut sources = Vec::with_capacity(count);
    for _ in 0..count {
        let tensor = Tensor::f_rand(shape, (Kind::Float, Device::Cpu))?;
        sources.push(HostTensor::new(&tensor)?);
    }
    let length = usize::try_from(bytes.0)?;
    let plain: Vec<Vec<u8>> = (0..count).map(|at| vec![at as u8 + 1; length]).collect();
    let mut warm = vec![vec![1_u8; length]; count];

    let mut transport = TorchTransport::new(device, TransportOptions::default())?;
    let mut times = Times::default();
    let (mut off, mut always) = (Vec::new(), Vec::new());
    for round in 0..rounds {
        times.note("memcpy", || {
            for (to, from) in warm.iter_mut().zip(&plain) {
                black_box(to).copy_from_slice(black_box(from));
            }
            Ok(())
        })?;
        times.note("memcpy, fresh", || Ok(black_box(plain.clone())))?;
        times.note("checksum", || {
            let sums = plain.iter().map(|bytes| Checksum::of(black_box(bytes)));
            Ok(black_box(sums.collect::<Vec<_>>()))
        })?;
        for (way, method) in ways(device) {
            times.note(way, || copy_all(&mut transport, &sources, method))?;
        }
        // In alternating order, so that neither always benefits from the caches of the other.
        let mut pair = |verify| {
            let way = match verify {
                Verify::Off => "engine, off",
                _ => "engine, always",
            };
            times.note(way, || place_all(&mut transport, &sources, verify))
        };
        if round % 2 == 0 {
            off.push(pair(Verify::Off)?);
            always.push(pair(Verify::Always)?);
        } else {
            always.push(pair(Verify::Always)?);
            off.push(pair(Verify::Off)?);
        }
    }
    let mut shares: Vec<f64> = always.iter().zip(&off).map(|(a, o)| a / o - 1.0).collect();
    shares.sort_by(f64::total_cmp);
    let quarter = |number: usize| shares[(shares.len() - 1) * number / 4];
    Ok(RouteCost {
        bytes,
        tensors: count,
        rates: times.rates(bytes.0 as f64 * count as f64),
        verify_overhead: quarter(2),
        verify_overhead_between: (quarter(1), quarter(3)),
    })
}

/// The strategies that a device supports.
fn ways(device: Device) -> Vec<(&'static str, CopyMethod)> {
    let chunk = Bytes::mib(16);
    let mut ways = vec![
        ("direct", CopyMethod::Direct),
        ("chunked", CopyMethod::Chunked { chunk }),
    ];
    if device != Device::Cpu {
        ways.push(("other stream", CopyMethod::OtherStream));
        ways.push(("zero-copy", CopyMethod::ZeroCopy));
    }
    ways
}

fn copy_all(
    transport: &mut TorchTransport,
    sources: &[HostTensor],
    method: CopyMethod,
) -> Result<Vec<Tensor>, Box<dyn Error>> {
    let mut arrived = Vec::with_capacity(sources.len());
    for source in sources {
        arrived.push(transport.copy(source, method)?);
        transport.synchronize(SyncScope::Stream)?;
    }
    Ok(arrived)
}

fn place_all(
    transport: &mut TorchTransport,
    sources: &[HostTensor],
    verify: Verify,
) -> Result<Vec<Tensor>, Box<dyn Error>> {
    let mut engine = TransferEngine::new(Policy {
        verify,
        ..Policy::default()
    });
    let mut arrived = Vec::with_capacity(sources.len());
    for source in sources {
        let request = Request {
            name: "tensor",
            role: Role::Weight,
            cast: None,
        };
        match engine.to_device(transport, source, &request)? {
            Placed::OnDevice(tensor) => arrived.push(tensor),
            Placed::OnHost(_) => return Err("a tensor stayed on the host".into()),
        }
    }
    Ok(arrived)
}

/// The seconds of each strategy, by round.
#[derive(Default)]
struct Times(Vec<(&'static str, Vec<f64>)>);

impl Times {
    /// Measures some work, without freeing its result.
    fn note<T>(
        &mut self,
        way: &'static str,
        work: impl FnOnce() -> Result<T, Box<dyn Error>>,
    ) -> Result<f64, Box<dyn Error>> {
        let start = Instant::now();
        let made = work()?;
        let seconds = start.elapsed().as_secs_f64();
        drop(made);
        match self.0.iter_mut().find(|(known, _)| *known == way) {
            Some((_, times)) => times.push(seconds),
            None => self.0.push((way, vec![seconds])),
        }
        Ok(seconds)
    }

    fn rates(self, bytes: f64) -> Vec<Rate> {
        let ways = self.0.into_iter();
        ways.map(|(way, mut times)| {
            times.sort_by(f64::total_cmp);
            let bytes_per_second = bytes / times[times.len() / 2];
            Rate {
                way,
                bytes_per_second,
            }
        })
        .collect()
    }
}
