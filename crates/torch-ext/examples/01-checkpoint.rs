//! Gradient checkpointing: what lies between input and output is computed twice and kept never.
//!
//! ```sh
//! cargo run -p torch-ext --example 01-checkpoint
//! ```

use tch::{Device, Kind, Tensor};
use torch_ext::{backward, checkpoint};

fn main() -> torch_ext::Result<()> {
    let input = Tensor::ones([4, 256], (Kind::Float, Device::Cpu)).set_requires_grad(true);
    let weight = Tensor::ones([256, 256], (Kind::Float, Device::Cpu)).set_requires_grad(true);
    let inside = weight.shallow_clone();
    let output = checkpoint(&[&input], move |inputs| {
        Ok(vec![inputs[0].f_matmul(&inside)?.f_relu()?])
    })?;
    backward(&output[0].sum(Kind::Float))?;
    println!("{:?}", weight.grad().size());
    Ok(())
}
