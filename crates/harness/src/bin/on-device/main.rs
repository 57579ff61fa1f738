//! The transfer engine and block streaming with the real libtorch and its real calls of the GPU runtime, which
//! `device-sim` implements, with faults. Started by `python/tests/test_rust_placement.py` with
//! the simulator and the libtorch of a CUDA wheel; the program itself is built against a CPU libtorch of the
//! same version.
//!
//! ```text
//! on-device matrix    every fault × strategy × verification mode, as JSON
//! on-device stream    device memory of a streamed model, counted by hip-alloc, as JSON
//! on-device phases    device memory while components are loaded and offloaded, as JSON
//! on-device failing   the caller's tensors and device memory after a failed move of a module, as JSON
//! on-device facts     separate tests that need a device, as JSON
//! on-device times     the cost of verification at the configured latencies, as JSON
//! ```

mod facts;
mod failing;
mod phases;
mod simulator;
mod swap;
mod times;

use std::error::Error;
use std::process::ExitCode;

use placement::testing::matrix::fault_matrix_here;
use tch::Device;

const DEVICE: Device = Device::Cuda(0);

fn main() -> ExitCode {
    if torch_ext::accelerator::device_count() == 0 {
        eprintln!("error: libtorch sees no device: start this under device-sim (see the test)");
        return ExitCode::FAILURE;
    }
    let made = match std::env::args().nth(1).as_deref() {
        Some("matrix") => fault_matrix_here().map_err(Into::into).and_then(json),
        Some("stream") => swap::run().and_then(json),
        Some("phases") => phases::run().and_then(json),
        Some("failing") => failing::run().and_then(json),
        Some("facts") => facts::run().and_then(json),
        Some("times") => times::run().and_then(json),
        _ => {
            eprintln!("usage: on-device matrix|stream|phases|failing|facts|times");
            return ExitCode::from(2);
        }
    };
    match made {
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

fn json(value: impl serde::Serialize) -> Result<String, Box<dyn Error>> {
    Ok(serde_json::to_string_pretty(&value)?)
}
