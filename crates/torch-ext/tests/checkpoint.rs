//! Gradient checkpointing gives the gradients of the plain pass, bit for bit.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tch::{Device, Kind, Tensor};
use torch_ext::random::manual_seed;
use torch_ext::{CheckpointOptions, Error, backward, checkpoint, checkpoint_with};

fn random(size: [i64; 2]) -> Tensor {
    Tensor::randn(size, (Kind::Float, Device::Cpu)).set_requires_grad(true)
}

/// Two layers with dropout between them: needs the generator's state again.
fn block(input: &Tensor, weights: &[Tensor]) -> Result<Vec<Tensor>, Error> {
    let hidden = input
        .f_matmul(&weights[0])?
        .f_silu()?
        .f_dropout(0.5, true)?;
    Ok(vec![hidden.f_matmul(&weights[1])?.f_add(input)?])
}

/// What the generator draws next.
fn drawn() -> Vec<f32> {
    Vec::try_from(random([1, 64]).view(-1)).unwrap()
}

/// Gradients of the input and the weights, and what the generator draws afterwards.
fn gradients(checkpointed: Option<CheckpointOptions>) -> (Vec<Tensor>, Vec<f32>) {
    manual_seed(7).unwrap();
    let (input, weights) = (random([4, 8]), vec![random([8, 16]), random([16, 8])]);
    let outputs = match checkpointed {
        Some(options) => {
            let weights: Vec<Tensor> = weights.iter().map(Tensor::shallow_clone).collect();
            checkpoint_with(options, &[&input], move |inputs| {
                block(&inputs[0], &weights)
            })
            .unwrap()
        }
        None => block(&input, &weights).unwrap(),
    };
    backward(&outputs[0].square().sum(Kind::Float)).unwrap();
    let grads = [&input, &weights[0], &weights[1]].map(Tensor::grad);
    (grads.into(), drawn())
}

#[test]
fn gradients_are_bit_equal_and_the_generator_goes_on_as_before() {
    let (plain, plain_generator) = gradients(None);
    for offload in [false, true] {
        let options = CheckpointOptions {
            offload,
            ..CheckpointOptions::default()
        };
        let (checkpointed, generator) = gradients(Some(options));
        for (plain, checkpointed) in plain.iter().zip(&checkpointed) {
            assert!(plain.equal(checkpointed), "offload: {offload}");
        }
        assert!(generator == plain_generator);
    }
}

/// An offloaded input is a copy: its own memory is free before the backward pass.
#[test]
fn an_offloaded_input_does_not_outlive_the_forward_pass() {
    let options = CheckpointOptions {
        offload: true,
        ..CheckpointOptions::default()
    };
    let input = random([2, 2]);
    let expected = input.exp();
    let between = &input * 1.0;
    let outputs =
        checkpoint_with(options, &[&between], |inputs| Ok(vec![inputs[0].f_exp()?])).unwrap();
    // What the forward pass read is overwritten; the backward pass has its copy. Without
    // offloading, libtorch refuses to go on with a changed input.
    let _ = between.detach().fill_(7.0);
    backward(&outputs[0].sum(Kind::Float)).unwrap();
    assert!(input.grad().equal(&expected));
}

#[test]
fn nothing_between_is_kept_and_backward_runs_it_once_more() {
    let runs = Arc::new(AtomicUsize::new(0));
    let counter = Arc::clone(&runs);
    let input = random([2, 2]);
    let outputs = checkpoint(&[&input], move |inputs| {
        counter.fetch_add(1, Ordering::Relaxed);
        // Recording is off in the forward pass, on in the backward pass.
        let recorded = inputs[0].f_exp()?.requires_grad();
        assert_eq!(recorded, counter.load(Ordering::Relaxed) == 2);
        Ok(vec![inputs[0].f_exp()?])
    })
    .unwrap();
    assert_eq!(runs.load(Ordering::Relaxed), 1);
    backward(&outputs[0].sum(Kind::Float)).unwrap();
    assert_eq!(runs.load(Ordering::Relaxed), 2);
}

#[test]
fn checkpoints_nest() {
    let input = random([3, 3]);
    let outer = checkpoint(&[&input], |inputs| {
        checkpoint(&[&inputs[0]], |inner| Ok(vec![inner[0].f_exp()?]))
    });
    backward(&outer.unwrap()[0].sum(Kind::Float)).unwrap();
    assert!(input.grad().equal(&input.detach().exp()));
}

#[test]
fn several_outputs_of_which_one_is_unused() {
    let (a, b) = (random([2, 2]), random([2, 2]));
    let outputs = checkpoint(&[&a, &b], |inputs| {
        Ok(vec![&inputs[0] * &inputs[1], &inputs[0] * 3.0])
    })
    .unwrap();
    backward(&outputs[0].sum(Kind::Float)).unwrap();
    assert!(a.grad().equal(&b.detach()));
    assert!(b.grad().equal(&a.detach()));
}

#[test]
fn the_closure_is_dropped_with_the_graph() {
    let alive = Arc::new(());
    let held = Arc::clone(&alive);
    let input = random([2, 2]);
    let outputs = checkpoint(&[&input], move |inputs| {
        let _ = &held;
        Ok(vec![inputs[0].f_exp()?])
    })
    .unwrap();
    assert_eq!(Arc::strong_count(&alive), 2);
    drop(outputs);
    assert_eq!(Arc::strong_count(&alive), 1);
}

#[test]
fn an_error_of_the_second_run_comes_out_of_backward_with_its_class() {
    let runs = AtomicUsize::new(0);
    let input = random([2, 2]);
    let outputs = checkpoint(&[&input], move |inputs| {
        if runs.fetch_add(1, Ordering::Relaxed) == 0 {
            Ok(vec![inputs[0].f_exp()?])
        } else {
            Err(Error::OutOfMemory {
                message: "HIP out of memory".into(),
            })
        }
    })
    .unwrap();
    let error = backward(&outputs[0].sum(Kind::Float)).unwrap_err();
    assert!(error.is_out_of_memory(), "{error:?}");
}

#[test]
fn a_panic_of_the_second_run_is_an_error_and_not_the_end() {
    let runs = AtomicUsize::new(0);
    let input = random([2, 2]);
    let outputs = checkpoint(&[&input], move |inputs| {
        assert_eq!(runs.fetch_add(1, Ordering::Relaxed), 0, "on purpose");
        Ok(vec![inputs[0].f_exp()?])
    })
    .unwrap();
    let error = backward(&outputs[0].sum(Kind::Float)).unwrap_err();
    assert!(
        matches!(&error, Error::Callback(message) if message.contains("on purpose")),
        "{error:?}"
    );
    // The thread's autograd still works.
    backward(&input.exp().sum(Kind::Float)).unwrap();
}

#[test]
fn an_error_inside_keeps_its_class_on_the_way_through_backward() {
    let lost = || Error::DeviceLost {
        message: "of a kind that no list knows".into(),
    };
    let errors: [(fn() -> Error, bool); 3] = [
        (lost, false),
        (|| Error::Peer("gone".into()), true),
        (|| Error::InvalidArgument("no".into()), true),
    ];
    for (make, usable) in errors {
        let input = Tensor::ones([2], (Kind::Float, Device::Cpu)).set_requires_grad(true);
        let calls = AtomicUsize::new(0);
        let outputs = checkpoint(&[&input], move |inputs| {
            match calls.fetch_add(1, Ordering::Relaxed) {
                0 => Ok(vec![inputs[0].f_exp()?]),
                _ => Err(make()),
            }
        });
        let error = backward(&outputs.unwrap()[0].sum(Kind::Float)).unwrap_err();
        assert_eq!(error.context_is_usable(), usable, "{error:?}");
        assert_eq!(error.to_string(), make().to_string());
        let at_once = checkpoint(&[&input], move |_| Err(make())).unwrap_err();
        assert_eq!(format!("{at_once:?}"), format!("{:?}", make()));
    }
}

#[test]
fn inputs_that_require_no_gradient_are_refused_while_recording() {
    let input = Tensor::ones([2], (Kind::Float, Device::Cpu));
    let run = || checkpoint(&[&input], |inputs| Ok(vec![inputs[0].f_exp()?]));
    assert!(matches!(run(), Err(Error::InvalidArgument(_))));
    tch::no_grad(|| assert!(run().is_ok(), "evaluation needs no gradients"));
}

#[test]
fn without_preserving_the_generator_it_moves_on_twice() {
    let after = |preserve_generators| {
        manual_seed(3).unwrap();
        let input = random([4, 4]);
        let outputs = checkpoint_with(
            CheckpointOptions {
                preserve_generators,
                ..CheckpointOptions::default()
            },
            &[&input],
            |inputs| Ok(vec![inputs[0].f_dropout(0.5, true)?]),
        )
        .unwrap();
        backward(&outputs[0].sum(Kind::Float)).unwrap();
        drawn()
    };
    assert!(after(true) != after(false));
}
