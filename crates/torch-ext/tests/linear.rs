//! A linear layer whose weight is made when it is needed is the stock one, bit for bit.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use tch::{Device, Kind, Tensor};
use torch_ext::{Error, backward, grouped_linear_with, linear_with};

fn random(size: &[i64], kind: Kind) -> Tensor {
    Tensor::randn(size, (Kind::Float, Device::Cpu)).to_kind(kind)
}

#[test]
fn outputs_and_gradients_are_those_of_the_stock_layer() {
    for kind in [Kind::Float, Kind::BFloat16] {
        for size in [&[6, 8][..], &[2, 3, 8]] {
            tch::manual_seed(3);
            let (values, weight, bias) = (
                random(size, kind),
                random(&[5, 8], kind),
                random(&[5], kind),
            );
            let run = |ours: bool| {
                let input = values.copy().set_requires_grad(true);
                let output = match ours {
                    false => input.linear(&weight, Some(&bias)),
                    true => {
                        let weight = weight.shallow_clone();
                        linear_with(&input, Some(&bias), move || {
                            Ok((weight.shallow_clone(), None))
                        })
                        .unwrap()
                    }
                };
                backward(&output.square().sum(kind)).unwrap();
                (output, input.grad())
            };
            let ((output, gradient), (stock, stock_gradient)) = (run(true), run(false));
            assert!(output.equal(&stock), "{kind:?} {size:?}");
            assert!(gradient.equal(&stock_gradient), "{kind:?} {size:?}");
        }
    }
}

#[test]
fn the_weight_is_made_once_each_way_and_not_at_all_for_a_constant() {
    let made = Arc::new(AtomicUsize::new(0));
    let product = |input: &Tensor| {
        let made = Arc::clone(&made);
        linear_with(input, None, move || {
            made.fetch_add(1, Ordering::Relaxed);
            Ok((Tensor::f_ones([4, 2], (Kind::Float, Device::Cpu))?, None))
        })
        .unwrap()
    };
    let input = random(&[3, 2], Kind::Float);
    let output = product(&input);
    assert!(!output.requires_grad());
    assert_eq!(made.load(Ordering::Relaxed), 1);
    let output = product(&input.set_requires_grad(true));
    backward(&output.sum(Kind::Float)).unwrap();
    assert_eq!(made.load(Ordering::Relaxed), 3);
    // Nothing holds the closure any more but the graph, and the graph is gone.
    drop(output);
    assert_eq!(Arc::strong_count(&made), 1);
}

#[test]
fn failures_keep_their_class() {
    let input = random(&[3, 2], Kind::Float).set_requires_grad(true);
    let panicked = linear_with(&input, None, || panic!("no weight")).unwrap_err();
    assert!(matches!(&panicked, Error::Callback(text) if text.contains("no weight")));
    let vector = linear_with(&input, None, || {
        Ok((Tensor::f_ones([2], (Kind::Float, Device::Cpu))?, None))
    });
    assert!(matches!(vector.unwrap_err(), Error::InvalidArgument(_)));
    let bias = random(&[4], Kind::Float).set_requires_grad(true);
    let trained = linear_with(&input, Some(&bias), || {
        Ok((Tensor::f_ones([4, 2], (Kind::Float, Device::Cpu))?, None))
    });
    assert!(matches!(trained.unwrap_err(), Error::InvalidArgument(_)));
    // The second call fails: the error comes out of backward.
    let calls = AtomicUsize::new(0);
    let output = linear_with(&input, None, move || {
        match calls.fetch_add(1, Ordering::Relaxed) {
            0 => Ok((Tensor::f_ones([4, 2], (Kind::Float, Device::Cpu))?, None)),
            _ => Err(Error::Callback("gone".into())),
        }
    })
    .unwrap();
    let error = backward(&output.sum(Kind::Float)).unwrap_err();
    assert!(error.to_string().contains("gone"), "{error}");
}

/// Scales make no difference but for the roundings: of the product and of its scaling, in place of the weight's.
#[test]
fn rows_that_are_still_to_be_scaled_give_the_product_of_the_scaled_ones() {
    for (kind, bound) in [(Kind::Float, 1e-6), (Kind::BFloat16, 6e-3)] {
        tch::manual_seed(5);
        let integers = Tensor::randint_low(-127, 128, [24, 64], (Kind::Int64, Device::Cpu));
        let scales = Tensor::rand([24], (Kind::Float, Device::Cpu)) * 0.01 + 1e-4;
        let whole = integers.to_kind(Kind::Double) * scales.view([24, 1]);
        let (values, bias) = (random(&[2, 5, 64], kind), random(&[24], kind));
        let exact = values.to_kind(Kind::Double).set_requires_grad(true);
        let product = exact.linear(&whole, Some(&bias.to_kind(Kind::Double)));
        let upstream = random(&[2, 5, 24], kind);
        backward(&(&product * upstream.to_kind(Kind::Double)).sum(Kind::Double)).unwrap();

        let input = values.set_requires_grad(true);
        let (integers, kept) = (integers.to_kind(kind), scales.shallow_clone());
        let ours = linear_with(&input, Some(&bias), move || {
            Ok((integers.shallow_clone(), Some(kept.shallow_clone())))
        })
        .unwrap();
        assert_eq!((ours.kind(), ours.size()), (kind, vec![2, 5, 24]));
        backward(&(&ours * upstream).sum(kind)).unwrap();
        for (ours, exact) in [(ours, product), (input.grad(), exact.grad())] {
            let error = (ours.to_kind(Kind::Double) - &exact).norm() / exact.norm();
            let error = f64::try_from(error).unwrap();
            assert!(error < bound, "{kind:?}: {error}");
        }
    }
    let input = random(&[3, 2], Kind::Float);
    let options = (Kind::Float, Device::Cpu);
    let refused = linear_with(&input, None, move || {
        Ok((
            Tensor::f_ones([4, 2], options)?,
            Some(Tensor::f_ones([3], options)?),
        ))
    });
    assert!(matches!(refused.unwrap_err(), Error::InvalidArgument(_)));
}

#[test]
fn matrices_of_groups_are_made_for_rows_that_are_there_and_a_few_at_a_time() {
    let weights = random(&[6, 3, 2], Kind::Float);
    let asked = Arc::new(Mutex::new(Vec::new()));
    let product = |input: &Tensor, bounds: &[i64]| {
        let (weights, asked) = (weights.shallow_clone(), Arc::clone(&asked));
        grouped_linear_with(input, bounds, 3, 2, move |range| {
            asked.lock().unwrap().push(range.clone());
            Ok(weights.f_narrow(0, range.start, range.end - range.start)?)
        })
    };
    let bounds = [0, 1, 3, 4, 4, 4, 5];
    let input = random(&[5, 2], Kind::Float).set_requires_grad(true);
    let output = product(&input, &bounds).unwrap();
    backward(&output.sum(Kind::Float)).unwrap();
    // Once each way.
    let once = [0..2, 2..3, 5..6];
    assert_eq!(*asked.lock().unwrap(), [&once[..], &once].concat());
    for (group, pair) in bounds.windows(2).enumerate() {
        let rows = |tensor: &Tensor| tensor.narrow(0, pair[0], pair[1] - pair[0]);
        let weight = weights.get(group as i64);
        assert!(rows(&output).allclose(&rows(&input).matmul(&weight.tr()), 1e-5, 1e-6, false));
        let sums = weight.sum_dim_intlist(0, false, Kind::Float);
        let gradient = rows(&input.grad());
        assert!(gradient.allclose(&sums.expand_as(&gradient), 1e-5, 1e-6, false));
    }
    for bounds in [&[][..], &[0, 1], &[0, 3, 2, 5], &[1, 5]] {
        let refused = product(&input, bounds).unwrap_err();
        assert!(matches!(refused, Error::InvalidArgument(_)), "{bounds:?}");
    }
}
