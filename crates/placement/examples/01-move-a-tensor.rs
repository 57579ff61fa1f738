//! Moves a tensor to the device, verifies it there, and prints the report.
//!
//! ```sh
//! cargo run -p surefoot-placement --example 01-move-a-tensor
//! ```

use surefoot_placement::{Placer, Policy, Verify};
use tch::{Device, Kind, Tensor};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let policy = Policy {
        verify: Verify::Always,
        ..Policy::default()
    };
    let mut placer = Placer::new(Device::cuda_if_available(), policy)?;
    let weight = Tensor::f_randn([1024, 1024], (Kind::Float, Device::Cpu))?;
    let placed = placer.weight("head.weight", &weight, None)?;
    println!("on {:?}\n{}", placed.device(), placer.report());
    Ok(())
}
