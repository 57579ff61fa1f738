//! What a pass of fake tensors counts.

#![allow(clippy::unwrap_used, reason = "tests")]

use tch::{Device, Kind, Tensor};
use torch_ext::{Error, checkpoint, fake};

const WEIGHTS: u64 = 256 * 512 * 4;

/// What a pass through `layer` of a weight keeps for its backward pass, which reaches the weight.
fn kept(layer: impl Fn(&Tensor) -> Result<Tensor, Error>) -> u64 {
    let build = || -> Result<Tensor, Error> {
        let weight = Tensor::f_ones([256, 512], (Kind::Float, Device::Cpu))?;
        Ok(weight.f_set_requires_grad(true)?)
    };
    let pass = fake::pass(Device::Cpu, build, |weight| {
        Ok(layer(weight)?.f_sum(Kind::Float)?.f_div_scalar(4.0)?)
    });
    let pass = pass.unwrap();
    assert!(!fake::is_on());
    assert_eq!(pass.weights, WEIGHTS);
    // The gradient of the weight.
    assert!(pass.temporary >= WEIGHTS, "{pass:?}");
    pass.kept
}

#[test]
fn operators_with_numbers_are_recorded_and_counted() {
    let layer = |weight: &Tensor| Ok(weight.f_mul_scalar(2.0)?.f_exp()?.f_add_scalar(1.0)?);
    assert_eq!(kept(layer), WEIGHTS);
}

#[test]
fn what_is_run_again_keeps_nothing() {
    let layer = |weight: &Tensor| {
        let outputs = checkpoint(&[weight], |inputs| {
            let sum = inputs[0].f_exp()?.f_sin()?.f_sum(Kind::Float)?;
            Ok(vec![sum.f_mul_scalar(2.0)?])
        });
        Ok(outputs?.remove(0))
    };
    assert_eq!(kept(layer), 0);
}

#[test]
fn the_numbers_of_a_fake_tensor_cannot_be_read() {
    let pass = fake::pass(
        Device::Cpu,
        || Ok::<_, Error>(()),
        |()| {
            let made = Tensor::f_ones([4096], (Kind::Float, Device::Cpu))?;
            assert!(f64::try_from(&made.f_sum(Kind::Float)?).is_err());
            let real = Tensor::f_from_slice(&[3_i64, -100, 5])?;
            assert_eq!(Vec::<i64>::try_from(&real.f_add_scalar(1)?)?, [4, -99, 6]);
            Ok(made.f_set_requires_grad(true)?.f_sum(Kind::Float)?)
        },
    );
    assert!(pass.unwrap().kept >= 4096 * 4);
}
