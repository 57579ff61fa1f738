//! The cost of verifying a copy, at the configured latencies of the simulator (`DEVICE_SIM_DEVICE_TIME`).
//!
//! The simulator launches kernels but does not run them, so a checksum on the device takes the time of its launches and its
//! result is meaningless: the calls of the engine are timed, for one tensor and for a group of tensors, and nothing is compared.

use std::error::Error;
use std::time::Instant;

use placement::torch_transport::{HostTensor, TorchTransport, TransportOptions};
use placement::transport::{SyncScope, Transport};
use serde::Serialize;
use tch::{Device, Kind, Tensor};

use crate::DEVICE;

const ROUNDS: usize = 25;

/// Total bytes of a group of tensors.
const TOGETHER: i64 = 64;

#[derive(Serialize)]
pub(crate) struct Row {
    /// The size of a tensor, and the number of tensors that move together.
    mib: i64,
    tensors: usize,
    pinned: bool,
    /// Medians, in seconds.
    copy: f64,
    verified: f64,
    /// The overhead of verification: the median over the rounds, and from the fastest rounds, which approximate an
    /// idle machine.
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
    for pinned in [false, true] {
        for mib in [1, 2, 4, 16, 64] {
            rows.push(measure(&mut transport, mib, TOGETHER / mib, pinned)?);
        }
        for mib in [2, 4, 16, 256] {
            rows.push(measure(&mut transport, mib, 1, pinned)?);
        }
    }
    Ok(rows)
}

fn measure(
    transport: &mut TorchTransport,
    mib: i64,
    tensors: i64,
    pinned: bool,
) -> Result<Row, Box<dyn Error>> {
    let mut hosts = Vec::new();
    for _ in 0..tensors {
        let tensor = Tensor::f_rand([mib << 18], (Kind::Float, Device::Cpu))?;
        hosts.push(HostTensor::new(&match pinned {
            true => torch_ext::accelerator::pin_memory(&tensor)?,
            false => tensor,
        })?);
    }
    let mut once = |summed: bool| -> Result<f64, Box<dyn Error>> {
        let loads: Vec<_> = hosts.iter().map(|host| (host, summed)).collect();
        let start = Instant::now();
        let copied = transport.copy_batched(&loads);
        let copied = copied.into_iter().collect::<Result<Vec<_>, _>>()?;
        if copied.iter().any(|one| one.arrived.is_none()) {
            transport.synchronize(SyncScope::Stream)?;
        }
        let seconds = start.elapsed().as_secs_f64();
        match copied.iter().all(|one| one.arrived.is_some() == summed) {
            true => Ok(seconds),
            false => Err("the checksums were not computed".into()),
        }
    };
    let (mut copies, mut verified, mut shares) = (Vec::new(), Vec::new(), Vec::new());
    for round in 0..=ROUNDS {
        // In alternating order.
        let (copy, with_sums) = match round % 2 {
            0 => (once(false)?, once(true)?),
            _ => {
                let with_sums = once(true)?;
                (once(false)?, with_sums)
            }
        };
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
        tensors: hosts.len(),
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
