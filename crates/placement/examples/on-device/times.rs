//! What verifying adds to a copy, at the latencies that the simulator was told (`DEVICE_SIM_DEVICE_TIME`).
//!
//! The simulator launches kernels and runs none, so the sum on the device takes the time of its launches and its
//! result means nothing: the calls are timed one by one, as the ladder makes them, and nothing is compared.

use std::error::Error;
use std::time::Instant;

use placement::torch_transport::{HostTensor, TorchTransport, TransportOptions};
use placement::transport::{CopyMethod, SyncScope, Transport};
use serde::Serialize;
use tch::{Device, Kind, Tensor};

use crate::DEVICE;

const ROUNDS: usize = 25;

#[derive(Serialize)]
pub(crate) struct Row {
    mib: i64,
    pinned: bool,
    /// Medians, in seconds.
    copy: f64,
    verified: f64,
    /// What the second adds to the first: the median of the rounds, and of the fastest of each, which is what a
    /// machine does that is not busy with something else.
    overhead: f64,
    overhead_of_fastest: f64,
}

pub(crate) fn run() -> Result<Vec<Row>, Box<dyn Error>> {
    let options = TransportOptions {
        device_sums: Some(true),
        ..TransportOptions::default()
    };
    let mut transport = TorchTransport::new(DEVICE, options)?;
    let mut rows = Vec::new();
    for mib in [2, 4, 16, 64, 256] {
        for pinned in [false, true] {
            rows.push(measure(&mut transport, mib, pinned)?);
        }
    }
    Ok(rows)
}

fn measure(transport: &mut TorchTransport, mib: i64, pinned: bool) -> Result<Row, Box<dyn Error>> {
    let tensor = Tensor::f_rand([mib << 18], (Kind::Float, Device::Cpu))?;
    let tensor = match pinned {
        true => torch_ext::accelerator::pin_memory(&tensor)?,
        false => tensor,
    };
    let host = HostTensor::new(&tensor)?;
    let (mut copies, mut verified, mut shares) = (Vec::new(), Vec::new(), Vec::new());
    for round in 0..=ROUNDS {
        let start = Instant::now();
        let there = transport.copy(&host, CopyMethod::Direct)?;
        transport.synchronize(SyncScope::Stream)?;
        let copy = start.elapsed().as_secs_f64();
        drop(there);
        let start = Instant::now();
        let summed = transport.copy_summed(&host, CopyMethod::Direct)?;
        if summed.arrived.is_none() {
            transport.synchronize(SyncScope::Stream)?;
            transport.sum_device(&summed.remote)?;
        }
        let with_sums = start.elapsed().as_secs_f64();
        if round > 0 {
            // The first round allocates.
            copies.push(copy);
            verified.push(with_sums);
            shares.push(with_sums / copy - 1.0);
        }
    }
    let least = |times: &[f64]| times.iter().copied().fold(f64::INFINITY, f64::min);
    let fastest = least(&verified) / least(&copies) - 1.0;
    Ok(Row {
        mib,
        pinned,
        copy: median(copies),
        verified: median(verified),
        overhead: median(shares),
        overhead_of_fastest: fastest,
    })
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}
