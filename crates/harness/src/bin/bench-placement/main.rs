//! Measures the cost of placement on this machine and the quality of its plans; started by
//! `cargo xtask bench placement`. Prints JSON.

mod plans;
mod routes;
mod streaming;

use std::error::Error;
use std::process::ExitCode;

use serde::Serialize;
use tch::Device;

#[derive(Serialize)]
struct Report {
    /// The target: `cpu`, or the first accelerator.
    device: String,
    routes: Vec<routes::RouteCost>,
    streaming: Vec<streaming::StreamCost>,
    plans: Vec<plans::PlanQuality>,
}

fn main() -> ExitCode {
    let rounds = match std::env::args().nth(1).map(|rounds| rounds.parse()) {
        None => 20,
        Some(Ok(rounds)) => rounds,
        Some(Err(_)) => {
            eprintln!("usage: bench [ROUNDS]");
            return ExitCode::from(2);
        }
    };
    let device = match torch_ext::accelerator::device_count() {
        0 => Device::Cpu,
        _ => Device::Cuda(0),
    };
    let measured = measure(device, rounds);
    let printed = measured
        .map_err(|error| error.to_string())
        .and_then(|report| {
            serde_json::to_string_pretty(&report).map_err(|error| error.to_string())
        });
    match printed {
        Ok(json) => {
            println!("{json}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

fn measure(device: Device, rounds: usize) -> Result<Report, Box<dyn Error>> {
    Ok(Report {
        device: format!("{device:?}").to_lowercase(),
        routes: routes::measure(device, rounds)?,
        streaming: streaming::measure(device, rounds)?,
        plans: plans::measure(),
    })
}
