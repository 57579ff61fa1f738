//! How much precision a quantised matrix loses.
//!
//! ```sh
//! cargo run -p surefoot-models --example 01-quantise
//! ```

use surefoot_models::quant::{Int8Rows, Nf4};
use tch::{Device, Kind, Tensor};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let matrix = Tensor::f_randn([1024, 1024], (Kind::Float, Device::Cpu))?;
    let norm = matrix.norm().double_value(&[]);
    let error = |back: Tensor| (back - &matrix).norm().double_value(&[]) / norm;
    let eight = Int8Rows::quantize(&matrix)?.dequantize(Kind::Float)?;
    let four = Nf4::quantize(&matrix)?.dequantize(Kind::Float)?;
    println!("int8: relative error {:.4}", error(eight));
    println!("nf4:  relative error {:.4}", error(four));
    Ok(())
}
