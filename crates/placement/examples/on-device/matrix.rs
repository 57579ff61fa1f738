//! The fault matrix on the simulated device; see `placement::matrix` for what the cells mean.
//!
//! The simulator runs no kernels, so nothing is cast, and the transport finds out by itself that the device's sums
//! prove nothing and reads back what arrived.

use std::error::Error;
use std::time::Duration;

use placement::matrix::{Cell, CellOutcome, FaultMatrix};
use placement::torch_transport::{HostTensor, TorchTransport, TransportOptions};
use placement::{Bytes, Ladder, Placed, Policy, Request, Role, Rung, Verify};
use tch::{Device, Kind, Tensor};

use crate::DEVICE;
use crate::gate::{Gate, Host};
use crate::simulator::order;

/// Floats of the tensor that moves: more than one piece of every route.
const COUNT: i64 = 100_000;

/// Copies that count as the tensor's own.
const LARGE: &str = ">=4K";

/// A fault, and how the simulator is told of it.
struct Fault {
    name: &'static str,
    /// Once, and every time from then on.
    orders: [Option<&'static str>; 2],
    /// It is about copies, of which the zero-copy route has none.
    of_copies: bool,
    /// How long anybody waits.
    deadline: Duration,
}

/// A call that answers takes far less, also on a busy machine.
const PATIENT: Duration = Duration::from_secs(60);

fn faults() -> Vec<Fault> {
    let silent = [
        ("zeros", "zeros"),
        ("nan", "nan"),
        ("bit_flip", "flip"),
        ("truncated", "truncate"),
        ("stale", "stale"),
        ("swapped_chunks", "swap"),
        ("late_copy", "late(40ms)"),
        ("mutated_source", "mutate"),
    ];
    let leak = |text: String| -> &'static str { Box::leak(text.into_boxed_str()) };
    let mut faults: Vec<Fault> = silent
        .into_iter()
        .map(|(name, damage)| Fault {
            name,
            orders: [
                Some(leak(format!("copy=h2d{LARGE}@1:{damage}"))),
                Some(leak(format!("copy=h2d{LARGE}:{damage}"))),
            ],
            of_copies: true,
            deadline: PATIENT,
        })
        .collect();
    let calls: [(&str, &str, Option<&str>, bool); 7] = [
        (
            "refused",
            "fail=cudaMemcpyAsync@1:invalid_value",
            Some("fail=cudaMemcpyAsync:invalid_value"),
            true,
        ),
        (
            "out_of_memory_device",
            "fail=cudaMalloc@1:out_of_memory",
            Some("fail=cudaMalloc:out_of_memory"),
            false,
        ),
        (
            "out_of_memory_pinned",
            "fail=cudaHostAlloc@1:out_of_memory",
            Some("fail=cudaHostAlloc:out_of_memory"),
            false,
        ),
        (
            "context_lost",
            "lose=cudaMemcpyAsync@1:illegal_address",
            None,
            true,
        ),
        (
            "hang_device",
            "hang=cudaMemcpyAsync@1,cudaDeviceSynchronize",
            None,
            true,
        ),
        ("hang_copy", "hang=cudaMemcpyAsync@1", None, true),
        (
            "hang_synchronize",
            "hang=cudaStreamSynchronize@1",
            None,
            true,
        ),
    ];
    faults.extend(
        calls
            .into_iter()
            .map(|(name, once, always, of_copies)| Fault {
                name,
                orders: [Some(once), always],
                of_copies,
                deadline: match name.starts_with("hang") {
                    true => Duration::from_millis(300),
                    false => PATIENT,
                },
            }),
    );
    faults
}

pub(crate) fn run() -> Result<FaultMatrix, Box<dyn Error>> {
    let routes = [
        Rung::Direct,
        Rung::Retry,
        Rung::Staged,
        Rung::Chunked,
        Rung::OtherStream,
        Rung::ZeroCopy,
    ];
    let modes = [Verify::Off, Verify::First, Verify::SAMPLE, Verify::Always];
    let mut cells = Vec::new();
    for fault in faults() {
        eprintln!("{}", fault.name);
        for (every_time, text) in [false, true].into_iter().zip(fault.orders) {
            let Some(text) = text else { continue };
            for route in routes {
                if route == Rung::ZeroCopy && fault.of_copies {
                    continue;
                }
                for verify in modes {
                    cells.push(Cell {
                        device: "cuda",
                        fault: fault.name,
                        every_time,
                        route: route.name(),
                        verify: FaultMatrix::mode_name(verify),
                        outcome: cell(&fault, text, route, verify)?,
                    });
                }
            }
        }
    }
    Ok(FaultMatrix::from_cells(cells))
}

fn cell(
    fault: &Fault,
    text: &str,
    route: Rung,
    verify: Verify,
) -> Result<CellOutcome, Box<dyn Error>> {
    order("reset_faults")?;
    let options = TransportOptions {
        // So that the zero-copy route is open.
        unified_memory: Some(true),
        deadline: fault.deadline,
        ..TransportOptions::default()
    };
    let mut gate = Gate::new(TorchTransport::new(DEVICE, options)?);
    let mut ladder = Ladder::new(Policy {
        verify,
        chunk: Bytes(64 << 10),
        may_stay_on_host: true,
    });
    let request = Request {
        name: "batch",
        role: Role::Batch,
        cast: None,
    };
    // The batch before this one takes the same route without a fault.
    gate.begin(route, None);
    ladder.place(&mut gate, &batch()?, &request)?;

    let host = batch()?;
    let sent = batch_values()?;
    // Memory that PyTorch has cached would be given without a call.
    torch_ext::accelerator::empty_cache()?;
    gate.begin(route, Some(text.to_owned()));
    let placed = ladder.place(&mut gate, &host, &request);
    order("reset_faults")?;
    let outcome = match placed {
        Ok(Placed::OnDevice(remote)) => match remote.f_to_device(Device::Cpu)?.equal(&sent) {
            true => CellOutcome::Recovered,
            false => CellOutcome::Missed,
        },
        Ok(Placed::OnHost(host)) => match host.into_tensor().equal(&sent) {
            true => CellOutcome::Reported,
            false => CellOutcome::Missed,
        },
        Err(_) => CellOutcome::Reported,
    };
    if fault.name == "late_copy" {
        // Nothing late may land in the next cell.
        std::thread::sleep(Duration::from_millis(60));
    }
    Ok(outcome)
}

fn batch_values() -> Result<Tensor, Box<dyn Error>> {
    Ok(Tensor::f_arange(COUNT, (Kind::Float, Device::Cpu))?.f_add_scalar(1.0)?)
}

/// In memory of its own each time, since a fault may change it.
fn batch() -> Result<Host, Box<dyn Error>> {
    Ok(Host::new(HostTensor::new(&batch_values()?)?))
}
