//! The engine and block streaming on a real runtime: real libtorch, real calls of its GPU runtime, and below them
//! `device-sim`, which does wrong what it is told. Started by `python/tests/test_rust_placement.py`, which puts
//! the simulator and the libtorch of a CUDA wheel under this program; it was built against a CPU libtorch of the
//! same version, and needs nothing else of a GPU.
//!
//! ```text
//! on-device matrix    every fault × route × way to verify, as JSON
//! on-device stream    what a streamed model holds on the device, counted by hip-alloc, as JSON
//! on-device phases    what the device holds while components come and go, as JSON
//! on-device failing   what the caller and the device hold after a module's move has failed, as JSON
//! on-device facts     single things that only a device has, as JSON
//! on-device times     what verifying adds to a copy at the latencies that the simulator was told, as JSON
//! ```

mod facts;
mod failing;
mod gate;
mod matrix;
mod phases;
mod simulator;
mod swap;
mod times;

use std::error::Error;
use std::process::ExitCode;

use tch::Device;

const DEVICE: Device = Device::Cuda(0);

fn main() -> ExitCode {
    if torch_ext::accelerator::device_count() == 0 {
        eprintln!("error: libtorch sees no device: start this under device-sim (see the test)");
        return ExitCode::FAILURE;
    }
    let made = match std::env::args().nth(1).as_deref() {
        Some("matrix") => matrix::run().and_then(json),
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
