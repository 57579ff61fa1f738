//! A step with a backward pass of its own takes part in the graph like any other.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use std::sync::Arc;

use tch::{Device, Kind, Tensor, no_grad};
use torch_ext::{Error, backward, differentiable, differentiable_outputs, launched};

fn random(size: &[i64]) -> Tensor {
    Tensor::randn(size, (Kind::Double, Device::Cpu))
}

/// The product of two matrices and its sine, of which only the product is kept.
fn sine_of_product(left: &Tensor, right: &Tensor) -> torch_ext::Result<Tensor> {
    let (product, output) = no_grad(|| {
        let product = left.mm(right);
        let output = product.sin();
        (product, output)
    });
    differentiable(&[left, right], &[&product], &output, |saved| match saved {
        [left, right, product, gradient] => {
            let inner = gradient.f_mul(&product.f_cos()?)?;
            Ok(vec![
                inner.f_mm(&right.f_tr()?)?,
                left.f_tr()?.f_mm(&inner)?,
            ])
        }
        _ => Err(Error::Callback("other tensors".into())),
    })
}

#[test]
fn gradients_are_those_that_its_backward_pass_makes() {
    let (left, right) = (random(&[3, 4]), random(&[4, 2]));
    let run = |ours: bool| {
        let inputs = [&left, &right].map(|input| input.copy().set_requires_grad(true));
        let doubled = &inputs[0] * 2.0;
        let output = match ours {
            true => sine_of_product(&doubled, &inputs[1]).unwrap(),
            false => doubled.mm(&inputs[1]).sin(),
        };
        backward(&output.square().sum(Kind::Double)).unwrap();
        inputs.map(|input| input.grad())
    };
    for (ours, theirs) in run(true).iter().zip(run(false)) {
        assert!(ours.allclose(&theirs, 1e-12, 1e-12, false));
    }
}

#[test]
fn an_input_that_needs_none_gets_no_gradient() {
    let (left, right) = (random(&[3, 4]), random(&[4, 2]).set_requires_grad(true));
    let output = sine_of_product(&left, &right).unwrap();
    backward(&output.sum(Kind::Double)).unwrap();
    assert!(right.grad().defined() && !left.grad().defined());
    assert!(!sine_of_product(&left, &left.tr()).unwrap().requires_grad());
}

#[test]
fn several_outputs_bring_a_gradient_each() {
    let input = random(&[3]).set_requires_grad(true);
    let outputs = no_grad(|| [&input * 2.0, &input * 3.0]);
    let [twice, thrice] = &outputs;
    let steps = differentiable_outputs(
        &[&input],
        &[],
        &[twice, thrice],
        |gradients| match gradients {
            [twice, thrice] => Ok(vec![twice * 2.0 + thrice * 3.0]),
            _ => Err(Error::Callback("other tensors".into())),
        },
    );
    let [twice, thrice] = &steps.unwrap()[..] else {
        panic!("other outputs");
    };
    backward(&(twice + thrice * thrice).sum(Kind::Double)).unwrap();
    let expected = &input * 18.0 + 2.0;
    assert!(input.grad().allclose(&expected, 1e-12, 1e-12, false));
    // One that is not used counts as zero.
    let input = random(&[3]).set_requires_grad(true);
    let outputs = no_grad(|| [&input * 2.0, &input * 3.0]);
    let steps = differentiable_outputs(&[&input], &[], &[&outputs[0], &outputs[1]], |given| {
        Ok(vec![&given[0] * 2.0 + &given[1] * 3.0])
    });
    backward(&steps.unwrap()[1].sum(Kind::Double)).unwrap();
    assert!(
        input
            .grad()
            .allclose(&input.full_like(3.0), 1e-12, 1e-12, false)
    );
}

#[test]
fn what_is_launched_is_called_once() {
    let (from, mut to) = (random(&[2]), random(&[2]));
    let written = to.shallow_clone();
    let result = launched(c"test::copy", &[&from], &[&written], || {
        to.copy_(&from);
        7
    });
    assert_eq!(result.unwrap(), 7);
    assert!(written.equal(&from));
}

#[test]
fn failures_keep_their_class_and_nothing_is_left_behind() {
    let input = random(&[2]).set_requires_grad(true);
    let output = no_grad(|| &input * 2.0);
    let held = Arc::new(());
    let run = |gradients: usize| {
        let held = Arc::clone(&held);
        let step = differentiable(&[&input], &[], &output, move |_| match gradients {
            0 => panic!("on purpose {held:?}"),
            count => Ok((0..count).map(|_| random(&[2])).collect()),
        });
        backward(&step.unwrap().sum(Kind::Double))
    };
    assert!(matches!(run(0), Err(Error::Callback(text)) if text.contains("on purpose")));
    assert!(matches!(run(2), Err(Error::InvalidArgument(_))));
    let recorded = differentiable(&[&input], &[], &(&input * 2.0), |_| Ok(Vec::new()));
    assert!(matches!(recorded, Err(Error::InvalidArgument(_))));
    assert_eq!(Arc::strong_count(&held), 1);
}
