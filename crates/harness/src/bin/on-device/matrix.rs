//! The fault matrix on the simulated device; see `placement::matrix` for what the cells mean.
//!
//! The simulator runs no kernels, so nothing is cast, and the transport detects that the device's checksums
//! are wrong and reads copies back.

use std::error::Error;
use std::time::Duration;

use placement::testing::matrix::{Cell, CellOutcome, FaultMatrix};
use placement::torch_transport::{HostTensor, TorchTransport, TransportOptions};
use placement::{Bytes, Placed, Policy, Request, Role, TransferEngine, TransferStrategy, Verify};
use tch::{Device, Kind, Tensor};

use crate::DEVICE;
use crate::gate::{Gate, Host};
use crate::simulator::configure;

/// Elements of the tensor: more than one chunk for every strategy.
const COUNT: i64 = 100_000;

/// Copies to which the fault applies.
const LARGE: &str = ">=4K";

/// A fault, and the settings that cause it in the simulator.
struct Fault {
    name: &'static str,
    /// Once, and every time from then on.
    settings: [Option<&'static str>; 2],
    /// It affects copies, and zero-copy has none.
    of_copies: bool,
    /// The deadline.
    deadline: Duration,
}

/// A successful call takes far less, even on a busy machine.
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
            settings: [
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
                settings: [Some(once), always],
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
    // The strategy with the fault, and the number of tensors that move together.
    let routes = [
        (FaultMatrix::BATCHED, TransferStrategy::Direct, 3),
        (TransferStrategy::Direct.name(), TransferStrategy::Direct, 1),
        (TransferStrategy::Retry.name(), TransferStrategy::Retry, 1),
        (TransferStrategy::Staged.name(), TransferStrategy::Staged, 1),
        (
            TransferStrategy::Chunked.name(),
            TransferStrategy::Chunked,
            1,
        ),
        (
            TransferStrategy::OtherStream.name(),
            TransferStrategy::OtherStream,
            1,
        ),
        (
            TransferStrategy::ZeroCopy.name(),
            TransferStrategy::ZeroCopy,
            1,
        ),
    ];
    let modes = [Verify::Off, Verify::First, Verify::SAMPLE, Verify::Always];
    let mut cells = Vec::new();
    for fault in faults() {
        eprintln!("{}", fault.name);
        for (every_time, text) in [false, true].into_iter().zip(fault.settings) {
            let Some(text) = text else { continue };
            for (name, route, tensors) in routes {
                if route == TransferStrategy::ZeroCopy && fault.of_copies {
                    continue;
                }
                for verify in modes {
                    cells.push(Cell {
                        device: "cuda",
                        fault: fault.name,
                        every_time,
                        route: name,
                        verify: FaultMatrix::mode_name(verify),
                        outcome: cell(&fault, text, route, tensors, verify)?,
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
    route: TransferStrategy,
    tensors: u8,
    verify: Verify,
) -> Result<CellOutcome, Box<dyn Error>> {
    configure("reset_faults")?;
    let options = TransportOptions {
        // To enable zero-copy.
        unified_memory: Some(true),
        deadline: fault.deadline,
        ..TransportOptions::default()
    };
    let mut gate = Gate::new(TorchTransport::new(DEVICE, options)?);
    let mut engine = TransferEngine::new(Policy {
        verify,
        chunk: Bytes(64 << 10),
        may_stay_on_host: true,
    });
    let mut place = |gate: &mut Gate, hosts: &[Host]| {
        let request = |name| Request {
            name,
            role: Role::Batch,
            cast: None,
        };
        let loads = hosts
            .iter()
            .zip(["batch", "batch.1", "batch.2"].map(request));
        match hosts {
            [host] => Ok(vec![engine.to_device(gate, host, &request("batch"))?]),
            _ => engine.to_device_batched(gate, &loads.collect::<Vec<_>>()),
        }
    };
    let batches = || -> Result<Vec<Host>, Box<dyn Error>> { (0..tensors).map(batch).collect() };
    // The previous batch uses the same strategy without a fault.
    gate.begin(route, None);
    place(&mut gate, &batches()?)?;

    let hosts = batches()?;
    // Memory in the cache of PyTorch would be allocated without a driver call.
    torch_ext::accelerator::empty_cache()?;
    gate.begin(route, Some(text.to_owned()));
    let placed = place(&mut gate, &hosts);
    configure("reset_faults")?;
    let mut outcome = CellOutcome::Recovered;
    match placed {
        Ok(placed) => {
            for (number, one) in (0..).zip(placed) {
                let (arrived, here) = match one {
                    Placed::OnDevice(remote) => {
                        (remote.f_to_device(Device::Cpu)?, CellOutcome::Recovered)
                    }
                    Placed::OnHost(host) => (host.into_tensor(), CellOutcome::Reported),
                };
                outcome = outcome.max(match arrived.equal(&batch_values(number)?) {
                    true => here,
                    false => CellOutcome::Missed,
                });
            }
        }
        Err(_) => outcome = CellOutcome::Reported,
    }
    if fault.name == "late_copy" {
        // A late copy must not affect the next cell.
        std::thread::sleep(Duration::from_millis(60));
    }
    Ok(outcome)
}

fn batch_values(number: u8) -> Result<Tensor, Box<dyn Error>> {
    let first = f64::from(number) + 1.0;
    Ok(Tensor::f_arange(COUNT, (Kind::Float, Device::Cpu))?.f_add_scalar(first)?)
}

/// In new memory each time, since a fault may change it.
fn batch(number: u8) -> Result<Host, Box<dyn Error>> {
    Ok(Host::new(HostTensor::new(&batch_values(number)?)?))
}
