//! Sums of gradients that start in the backward pass.

use std::sync::atomic::{AtomicUsize, Ordering};

use tch::{Device, Kind, Tensor};
use torch_ext::Error;
use torch_ext::distributed::{Group, Reduction, Store};

use super::{LONG, expect_success, finish, join, start};

const WIDTH: i64 = 60;
/// Of one matrix, two and two.
const BUCKETS: [usize; 3] = [1, 2, 2];

/// Matrices through which a signal passes, one after another.
struct Layers {
    matrices: Vec<Tensor>,
    input: Tensor,
}

/// What is done with the third matrix, of which the second bucket has one more.
#[derive(Clone, Copy, PartialEq)]
enum Third {
    Once,
    /// By two checkpointed functions, each with a backward pass of its own.
    Twice,
    /// By one that runs out of memory in the backward pass.
    Short,
}

impl Layers {
    fn new(rank: usize) -> Self {
        let numbers = |phase: f64| {
            let numbers = Tensor::arange(WIDTH * WIDTH, (Kind::Float, Device::Cpu));
            ((numbers * 0.7 + phase).sin() * 0.2).view([WIDTH, WIDTH])
        };
        // So that the signal is neither lost nor grows.
        let matrix = |index: i32| {
            let matrix =
                Tensor::eye(WIDTH, (Kind::Float, Device::Cpu)) + numbers(f64::from(index)) * 0.1;
            matrix.set_requires_grad(true)
        };
        Self {
            matrices: (0..5).map(matrix).collect(),
            input: numbers(9.0 + rank as f64),
        }
    }

    fn leaves(&self) -> Vec<&Tensor> {
        self.matrices.iter().collect()
    }

    fn reduction(&self, group: &Group, kind: Kind) -> Reduction {
        let buffer = Tensor::zeros([5 * WIDTH * WIDTH], (kind, Device::Cpu));
        Reduction::new(group, &self.leaves(), buffer, &BUCKETS).unwrap()
    }

    fn backward(&self, third: Third) -> Result<(), Error> {
        let mut signal = self.input.shallow_clone();
        for (index, matrix) in self.matrices.iter().enumerate() {
            let times = match third {
                Third::Twice if index == 2 => 2,
                _ => 1,
            };
            for _ in 0..times {
                signal = match index {
                    2 if third != Third::Once => {
                        checkpointed(&signal, matrix, third == Third::Short)
                    }
                    _ => signal.matmul(matrix).tanh(),
                };
            }
        }
        torch_ext::backward(&signal.square().sum(Kind::Float))
    }

    /// The gradients that the leaves have, taken from them.
    fn gradients(&self) -> Vec<Tensor> {
        let leaves = self.matrices.iter();
        leaves
            .map(|leaf| {
                let mut leaf = leaf.shallow_clone();
                torch_ext::take_gradient(&mut leaf).unwrap().unwrap()
            })
            .collect()
    }

    fn discard(&self) {
        for leaf in &self.matrices {
            torch_ext::take_gradient(&mut leaf.shallow_clone()).unwrap();
        }
    }
}

fn checkpointed(signal: &Tensor, matrix: &Tensor, is_short: bool) -> Tensor {
    let matrix = matrix.shallow_clone();
    let runs = AtomicUsize::new(0);
    let function = move |inputs: &[Tensor]| {
        if is_short && runs.fetch_add(1, Ordering::Relaxed) > 0 {
            let message = "too small for the second run".into();
            return Err(Error::OutOfMemory { message });
        }
        Ok(vec![inputs[0].matmul(&matrix).tanh()])
    };
    let mut outputs = torch_ext::checkpoint(&[signal], function).unwrap();
    outputs.pop().unwrap()
}

fn flat(gradients: &[Tensor]) -> Tensor {
    Tensor::cat(
        &gradients
            .iter()
            .map(|g| g.reshape([-1]))
            .collect::<Vec<_>>(),
        0,
    )
}

fn bits(tensor: &Tensor) -> Vec<u32> {
    let numbers = Vec::<f32>::try_from(&tensor.to_kind(Kind::Float)).unwrap();
    numbers.iter().map(|number| number.to_bits()).collect()
}

/// The tensors of all ranks, in a new first dimension: a sum in which each has only its own row.
fn rows_of_all(group: &Group, own: &Tensor) -> Tensor {
    let shape = [&[group.size() as i64], &own.size()[..]].concat();
    let mut rows = Tensor::zeros(shape, (own.kind(), own.device()));
    rows.get(group.rank() as i64).copy_(&own.detach());
    group.sum(&mut rows).unwrap();
    rows
}

/// That the buffer has the sum of these, and of no other rank other bits.
fn expect_sum(group: &Group, reduction: &Reduction, own: &Tensor) {
    let sum = rows_of_all(group, own).sum_dim_intlist(0, false, Kind::Float);
    let made = reduction.buffer().copy();
    let apart = (&made - &sum).abs().max().double_value(&[]);
    let largest = sum.abs().max().double_value(&[]);
    assert!(largest > 1e-4, "nothing to sum: {largest}");
    // Two are added in one way only; of more, the order may be another one.
    let bound = if group.size() == 2 {
        0.0
    } else {
        1e-6 * largest
    };
    assert!(apart <= bound, "{apart}");
    let rows = rows_of_all(group, &made);
    for rank in 0..group.size() as i64 {
        assert_eq!(bits(&rows.get(rank)), bits(&made), "rank {rank}");
    }
}

/// What each process does: steps in which all goes well, and others.
pub(super) fn reduce(group: &Group) {
    let layers = Layers::new(group.rank());
    let mut reduction = layers.reduction(group, Kind::Float);
    let step = |reduction: &mut Reduction, third: Third| {
        reduction.prepare().unwrap();
        layers.backward(third).unwrap();
        let started = reduction.started().unwrap();
        let gradients = layers.gradients();
        let is_complete = reduction.finish(Some(&gradients)).unwrap();
        assert_eq!(reduction.started().unwrap(), 0);
        (started, is_complete, gradients)
    };
    // In the first step the accumulations are counted; later the sums start in the pass, which changes no bit.
    let (started, is_complete, gradients) = step(&mut reduction, Third::Once);
    assert_eq!((started, is_complete), (0, true));
    expect_sum(group, &reduction, &flat(&gradients));
    let first = bits(reduction.buffer());
    for _ in 0..3 {
        let (started, is_complete, gradients) = step(&mut reduction, Third::Once);
        assert_eq!((started, is_complete), (BUCKETS.len(), true));
        expect_sum(group, &reduction, &flat(&gradients));
        assert_eq!(bits(reduction.buffer()), first);
    }

    // Passes that are not prepared are not summed; what they leave is, once one is.
    layers.backward(Third::Once).unwrap();
    assert_eq!(reduction.started().unwrap(), 0);
    let earlier = layers.gradients();
    for (leaf, gradient) in layers.matrices.iter().zip(&earlier) {
        torch_ext::put_gradient(&mut leaf.shallow_clone(), gradient).unwrap();
    }
    let (started, is_complete, gradients) = step(&mut reduction, Third::Once);
    assert_eq!((started, is_complete), (BUCKETS.len(), true));
    expect_sum(group, &reduction, &flat(&gradients));
    let twice = Vec::<f32>::try_from(reduction.buffer()).unwrap();
    let once = first.iter().map(|bits| f32::from_bits(*bits));
    assert!(twice.iter().zip(once).all(|(two, one)| *two == 2.0 * one));

    // One rank fails before its pass, another one in it.
    for third in [None, Some(Third::Short)] {
        if group.rank() == 1 {
            if let Some(third) = third {
                reduction.prepare().unwrap();
                let error = layers.backward(third).unwrap_err();
                assert!(matches!(error, Error::OutOfMemory { .. }), "{error:?}");
                // The matrices behind the third one are in the first bucket and half of the second.
                assert_eq!(reduction.started().unwrap(), 1);
            }
            layers.discard();
            reduction.finish(None).unwrap();
        } else {
            step(&mut reduction, Third::Once);
        }
        let (_, is_complete, gradients) = step(&mut reduction, Third::Once);
        assert!(is_complete);
        expect_sum(group, &reduction, &flat(&gradients));
        assert_eq!(bits(reduction.buffer()), first);
    }

    // In one rank, a gradient is added to once more than before, after its sum has started.
    let third = match group.rank() {
        1 => Third::Twice,
        _ => Third::Once,
    };
    let (_, is_complete, gradients) = step(&mut reduction, third);
    assert_eq!(is_complete, group.rank() != 1);
    assert!(reduction.finish(Some(&gradients)).unwrap());
    expect_sum(group, &reduction, &flat(&gradients));
    // And is waited for from then on, also where it does not come.
    for third in [third, Third::Once] {
        let (started, is_complete, gradients) = step(&mut reduction, third);
        assert!(is_complete);
        let is_whole = group.rank() != 1 || third == Third::Twice;
        assert_eq!(started, if is_whole { BUCKETS.len() } else { 1 });
        expect_sum(group, &reduction, &flat(&gradients));
    }

    // A leaf without a gradient takes part.
    let unused: Vec<Tensor> = gradients_without_last(&layers);
    assert!(reduction.finish(Some(&unused)).unwrap());
    expect_sum(group, &reduction, &flat(&unused));

    let shorter = &unused[1..];
    let refused = reduction.finish(Some(shorter));
    assert!(matches!(refused, Err(Error::InvalidArgument(_))));
    drop(reduction);
    // Nothing is left at the leaves.
    layers.backward(Third::Once).unwrap();
    layers.discard();

    let mut rounded = layers.reduction(group, Kind::BFloat16);
    for _ in 0..2 {
        let (_, is_complete, gradients) = step(&mut rounded, Third::Once);
        assert!(is_complete);
        let own = flat(&gradients).to_kind(Kind::BFloat16);
        let mut sum = own.copy();
        if group.size() == 2 {
            group.sum(&mut sum).unwrap();
            assert_eq!(bits(&sum), bits(rounded.buffer()));
        }
    }
    for (length, buckets) in [
        (5, &BUCKETS[..]),
        (5 * WIDTH * WIDTH, &[1, 2]),
        (5 * WIDTH * WIDTH, &[5, 1]),
    ] {
        let buffer = Tensor::zeros([length], (Kind::Float, Device::Cpu));
        let refused = Reduction::new(group, &layers.leaves(), buffer, buckets);
        assert!(matches!(refused, Err(Error::InvalidArgument(_))));
    }
}

fn gradients_without_last(layers: &Layers) -> Vec<Tensor> {
    layers.backward(Third::Once).unwrap();
    let mut gradients = layers.gradients();
    let last = gradients.pop().unwrap();
    gradients.push(last.zeros_like());
    gradients
}

/// One step, and then a pass in which this process ends.
pub(super) fn leave_in_pass(group: &Group) {
    let layers = Layers::new(group.rank());
    let mut reduction = layers.reduction(group, Kind::Float);
    one_step(&layers, &mut reduction).unwrap();
    reduction.prepare().unwrap();
    layers.backward(Third::Short).unwrap_err();
    assert_eq!(reduction.started().unwrap(), 1);
    std::process::abort();
}

fn one_step(layers: &Layers, reduction: &mut Reduction) -> Result<bool, Error> {
    reduction.prepare()?;
    layers.backward(Third::Once)?;
    reduction.finish(Some(&layers.gradients()))
}

#[test]
fn two_to_four_processes_sum_gradients_in_the_backward_pass() {
    for size in [2, 3, 4] {
        let store = Store::host("127.0.0.1", 0).unwrap();
        expect_success(start(0, size, store.port(), "reduce"));
    }
}

#[test]
fn a_process_that_ends_in_its_backward_pass_is_an_error_for_the_others() {
    let store = Store::host("127.0.0.1", 0).unwrap();
    let children = start(1, 2, store.port(), "leave-in-pass");
    let group = join(&store, 0, 2, LONG).unwrap();
    let layers = Layers::new(0);
    let mut reduction = layers.reduction(&group, Kind::Float);
    one_step(&layers, &mut reduction).unwrap();
    let error = one_step(&layers, &mut reduction).unwrap_err();
    assert!(matches!(error, Error::Peer(_)), "{error:?}");
    // Both let go of the group at once.
    drop(reduction);
    drop(group);
    assert!(!finish(children)[0].status.success());
}
