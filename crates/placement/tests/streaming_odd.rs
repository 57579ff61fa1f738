//! Block streaming with irregular models and irregular traversals of their blocks.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use std::path::Path;

use surefoot_placement::swap::{BackingStore, Block, BlockSwapper, SwapOptions, Swapped, Weights};
use surefoot_placement::{Bytes, Verify};
use tch::{Device, Kind, Tensor};
use torch_ext::{Error, backward};

const WIDTH: i64 = 8;
/// Hidden sizes of the blocks: all different, the largest neither first nor last.
const HIDDEN: [i64; 7] = [3, 40, 1, 17, 96, 5, 64];

/// Frozen weights of three dtypes, the same each time.
fn weights(block: usize) -> Vec<(String, Tensor)> {
    torch_ext::random::manual_seed(block as u64 + 1).unwrap();
    let hidden = HIDDEN[block];
    let random = |size: &[i64]| Tensor::randn(size, (Kind::Float, Device::Cpu)) * 0.1;
    vec![
        (
            "up".into(),
            random(&[WIDTH, hidden]).to_kind(Kind::BFloat16),
        ),
        ("down".into(), random(&[hidden, WIDTH])),
        (
            "order".into(),
            Tensor::arange(WIDTH, (Kind::Int64, Device::Cpu)).flip([0]),
        ),
        (
            "nothing".into(),
            Tensor::zeros([0, 3], (Kind::Float, Device::Cpu)),
        ),
    ]
}

/// Name of a weight, and the weight.
type Named<'a> = &'a dyn Fn(&str) -> Result<Tensor, Error>;

fn forward(x: &Tensor, weight: Named<'_>, adapter: &Tensor) -> Result<Tensor, Error> {
    assert_eq!(weight("nothing")?.size(), [0, 3]);
    let up = weight("up")?.f_to_kind(Kind::Float)?;
    let turned = x.f_index_select(1, &weight("order")?)?;
    let hidden = turned.f_matmul(&up)?.f_silu()?;
    Ok(x.f_add(&hidden.f_matmul(&weight("down")?)?)?
        .f_add(&x.f_matmul(adapter)?)?)
}

fn adapters() -> Vec<Tensor> {
    torch_ext::random::manual_seed(99).unwrap();
    HIDDEN
        .iter()
        .map(|_| Tensor::randn([WIDTH, WIDTH], (Kind::Float, Device::Cpu)) * 0.05)
        .map(|adapter| adapter.set_requires_grad(true))
        .collect()
}

fn input() -> Tensor {
    Tensor::arange(3 * WIDTH, (Kind::Float, Device::Cpu)).view([3, WIDTH]) * 0.02
}

fn stream(options: SwapOptions) -> BlockSwapper {
    let blocks = (0..HIDDEN.len()).map(|index| Block {
        name: format!("blocks.{index}"),
        weights: weights(index),
    });
    BlockSwapper::new(Device::Cpu, blocks, options).unwrap()
}

/// The adapters after two passes over the blocks in this order.
fn train(
    order: &[usize],
    step: impl Fn(usize, &Tensor, &Tensor) -> Result<Tensor, Error>,
) -> Vec<Tensor> {
    let mut adapters = adapters();
    for _ in 0..2 {
        let mut x = input().set_requires_grad(true);
        for &block in order {
            x = step(block, &x, &adapters[block]).unwrap();
        }
        backward(&x.square().mean(Kind::Float)).unwrap();
        tch::no_grad(|| {
            for adapter in &mut adapters {
                let gradient = adapter.grad();
                if gradient.defined() {
                    let _ = adapter.g_sub_(&(gradient * 0.01));
                    adapter.zero_grad();
                }
            }
        });
    }
    adapters
}

fn resident(order: &[usize]) -> Vec<Tensor> {
    train(order, |block, x, adapter| {
        let weights = weights(block);
        let named = |name: &str| {
            let found = weights.iter().find(|(known, _)| known == name);
            Ok(found.unwrap().1.shallow_clone())
        };
        forward(x, &named, adapter)
    })
}

fn streamed(stream: &BlockSwapper, order: &[usize]) -> Vec<Tensor> {
    train(order, |block, x, adapter| {
        let adapter = adapter.shallow_clone();
        let run = move |inputs: &[Tensor], weights: &Weights<'_>| {
            Ok(vec![forward(
                &inputs[0],
                &|name| weights.get(name),
                &adapter,
            )?])
        };
        Ok(stream.train(block, &[x], run)?.remove(0))
    })
}

fn same(ours: &[Tensor], theirs: &[Tensor]) -> bool {
    ours.iter().zip(theirs).all(|(a, b)| a.equal(b))
}

fn divided(folder: &Path, from_file: &[usize]) -> BackingStore {
    BackingStore::Divided {
        folder: folder.to_owned(),
        from_file: from_file.iter().copied().collect(),
    }
}

const IN_ORDER: [usize; 7] = [0, 1, 2, 3, 4, 5, 6];

#[test]
fn blocks_of_any_size_and_kind_change_no_bit() {
    let expected = resident(&IN_ORDER);
    for slots in [1, 2, 4] {
        let stream = stream(SwapOptions {
            slots,
            verify: Verify::Always,
            ..SwapOptions::default()
        });
        assert!(
            same(&streamed(&stream, &IN_ORDER), &expected),
            "{slots} slots"
        );
        // A slot holds the largest: 96 columns of bfloat16, 96 rows of floats, eight integers.
        let largest = 96 * 8 * 2 + 96 * 8 * 4 + 256;
        assert_eq!(stream.report().ring_bytes, Bytes(slots as u64 * largest));
    }
}

#[test]
fn a_block_may_be_used_twice_and_blocks_left_out() {
    for order in [
        vec![0, 1, 1, 2, 1, 6],
        vec![6, 0, 6, 0],
        vec![3, 3, 3],
        vec![5, 2, 4, 0, 6, 1, 3],
    ] {
        let expected = resident(&order);
        for slots in [1, 2, 3] {
            let stream = stream(SwapOptions {
                slots,
                ..SwapOptions::default()
            });
            assert!(
                same(&streamed(&stream, &order), &expected),
                "{order:?}, {slots} slots"
            );
        }
    }
}

#[test]
fn each_block_comes_from_where_it_was_put() {
    let folder = tempfile::tempdir().unwrap();
    let sizes: Vec<u64> = stream_sizes();
    for order in [
        IN_ORDER.to_vec(),
        vec![5, 2, 4, 0, 6, 1, 3],
        vec![0, 1, 1, 2, 1, 6],
    ] {
        let expected = resident(&order);
        for from_file in [vec![4], vec![0, 2, 4, 6], vec![1, 3, 5]] {
            for slots in [1, 2, 3] {
                let stream = stream(SwapOptions {
                    backing: divided(folder.path(), &from_file),
                    slots,
                    verify: Verify::Always,
                    ..SwapOptions::default()
                });
                let case = format!("{order:?}, {from_file:?} from the file, {slots} slots");
                assert!(same(&streamed(&stream, &order), &expected), "{case}");
                let report = stream.report();
                let in_file: u64 = from_file.iter().map(|&block| sizes[block]).sum();
                assert_eq!(report.disk_bytes, Bytes(in_file), "{case}");
                let all: u64 = sizes.iter().sum();
                assert_eq!(report.host_bytes, Bytes(all - in_file), "{case}");
                assert_eq!(report.repeated, 0, "{case}");
            }
        }
    }
}

/// Bytes of each block in its flat buffer.
fn stream_sizes() -> Vec<u64> {
    let aligned = |bytes: i64| (bytes as u64).div_ceil(256) * 256;
    let hidden = HIDDEN.iter();
    hidden
        .map(|hidden| {
            aligned(hidden * WIDTH * 2) + aligned(hidden * WIDTH * 4) + aligned(WIDTH * 8)
        })
        .collect()
}

#[test]
fn what_stays_is_in_no_file_whatever_the_division_says() {
    let folder = tempfile::tempdir().unwrap();
    let stream = stream(SwapOptions {
        streamed: Swapped::Only(vec![1, 4]),
        backing: divided(folder.path(), &[0, 4]),
        ..SwapOptions::default()
    });
    let sizes = stream_sizes();
    let report = stream.report();
    assert_eq!(
        (report.host_bytes, report.disk_bytes),
        (Bytes(sizes[1]), Bytes(sizes[4]))
    );
    assert!(same(&streamed(&stream, &IN_ORDER), &resident(&IN_ORDER)));
}

#[test]
fn a_block_that_is_not_there_cannot_be_in_the_file() {
    let blocks = [Block {
        name: "only".into(),
        weights: weights(0),
    }];
    let options = SwapOptions {
        backing: divided(&std::env::temp_dir(), &[0, 3]),
        ..SwapOptions::default()
    };
    let error = BlockSwapper::new(Device::Cpu, blocks, options)
        .err()
        .unwrap();
    assert_eq!(
        error.to_string(),
        "block 3 cannot be kept in a file: there are only 1 blocks"
    );
}

#[test]
fn evaluation_between_steps_changes_nothing() {
    let stream = stream(SwapOptions::default());
    let evaluate = || {
        tch::no_grad(|| {
            let mut x = input();
            for (block, adapter) in adapters().iter().enumerate() {
                x = stream
                    .evaluate(block, &[&x], |weights| {
                        forward(&x, &|name| weights.get(name), adapter)
                    })
                    .unwrap();
            }
            x
        })
    };
    let before = evaluate();
    assert!(same(&streamed(&stream, &IN_ORDER), &resident(&IN_ORDER)));
    assert!(evaluate().equal(&before));
    assert!(same(&streamed(&stream, &IN_ORDER), &resident(&IN_ORDER)));
}

#[test]
fn an_error_in_the_middle_of_a_forward_pass_ends_that_pass_only() {
    let stream = stream(SwapOptions::default());
    let x = input().set_requires_grad(true);
    for block in 0..3 {
        let result = stream.train(block, &[&x], move |inputs, _| match block {
            2 => Err(Error::InvalidArgument("on purpose".into())),
            _ => Ok(vec![inputs[0].f_mul_scalar(1.0)?]),
        });
        assert_eq!(result.is_err(), block == 2);
    }
    assert!(same(&streamed(&stream, &IN_ORDER), &resident(&IN_ORDER)));
}

/// Otherwise autograd would keep views of the slot for the adapter's gradient, and backward would read the
/// weights of another block there.
#[test]
fn an_evaluation_records_nothing_of_what_it_captured() {
    let stream = stream(SwapOptions::default());
    let adapters = adapters();
    let forward = |block: usize| {
        let run =
            |weights: &Weights<'_>| forward(&input(), &|name| weights.get(name), &adapters[block]);
        stream.evaluate(block, &[&input()], run).unwrap()
    };
    assert!(!forward(0).requires_grad());
    assert!(torch_ext::gradients_are_recorded(), "as before");
}

/// The blocks of a model that uses some of them twice: the same tensors under other names.
fn tied(of: &[usize]) -> Vec<Block> {
    let model: Vec<_> = (0..HIDDEN.len()).map(weights).collect();
    let blocks = of.iter().enumerate();
    blocks
        .map(|(number, &block)| Block {
            name: format!("blocks.{number}"),
            weights: model[block]
                .iter()
                .map(|(name, tensor)| (name.clone(), tensor.shallow_clone()))
                .collect(),
        })
        .collect()
}

#[test]
fn tied_blocks_are_kept_once_and_change_no_bit() {
    let of = [1, 1, 4, 1, 4, 4, 2];
    let all: Vec<usize> = (0..of.len()).collect();
    let apart = |options: SwapOptions| {
        let blocks = tied(&of).into_iter().map(|mut block| {
            for (_, tensor) in &mut block.weights {
                *tensor = tensor.copy();
            }
            block
        });
        BlockSwapper::new(Device::Cpu, blocks.collect::<Vec<_>>(), options).unwrap()
    };
    let folder = tempfile::tempdir().unwrap();
    let sizes = stream_sizes();
    let once = Bytes([1, 4, 2].iter().map(|&block: &usize| sizes[block]).sum());
    for backing in [
        BackingStore::Host,
        BackingStore::Disk {
            folder: folder.path().to_owned(),
        },
    ] {
        for slots in [1, 2, 3] {
            let options = SwapOptions {
                backing: backing.clone(),
                slots,
                verify: Verify::Always,
                ..SwapOptions::default()
            };
            let ours = BlockSwapper::new(Device::Cpu, tied(&of), options.clone()).unwrap();
            let theirs = apart(options);
            assert!(same(&streamed(&ours, &all), &streamed(&theirs, &all)));
            let (ours, theirs) = (ours.report(), theirs.report());
            assert_eq!(ours.host_bytes + ours.disk_bytes, once);
            assert!(theirs.host_bytes + theirs.disk_bytes > once);
            assert!(ours.copies < theirs.copies, "{ours:?} {theirs:?}");
        }
    }
}

#[test]
fn blocks_that_share_only_some_weights_are_kept_apart_and_counted_so() {
    let mut blocks = tied(&[1, 1]);
    blocks[1].weights[1].1 = blocks[1].weights[1].1.copy();
    let sizes = stream_sizes();
    let stream = BlockSwapper::new(Device::Cpu, blocks, SwapOptions::default()).unwrap();
    assert_eq!(stream.report().host_bytes, Bytes(2 * sizes[1]));
}

#[test]
fn another_block_at_an_address_that_was_used_before_is_another_block() {
    let tensor = Tensor::zeros([64], (Kind::Float, Device::Cpu));
    let blocks = (0..3).map(|number| {
        // One buffer, refilled for each block, as a reader of files may do.
        let _ = tensor.shallow_clone().fill_(f64::from(number));
        Block {
            name: format!("blocks.{number}"),
            weights: vec![("w".into(), tensor.shallow_clone())],
        }
    });
    let stream = BlockSwapper::new(Device::Cpu, blocks, SwapOptions::default()).unwrap();
    for number in 0..3 {
        let first = stream.evaluate(number, &[], |weights| {
            Ok(weights.get("w")?.double_value(&[0]))
        });
        assert_eq!(first.unwrap(), number as f64);
    }
}

#[test]
fn two_weights_of_one_name_are_refused() {
    let mut weights = weights(0);
    let again = weights[1].1.shallow_clone();
    weights.push(("down".into(), again));
    let block = Block {
        name: "b".into(),
        weights,
    };
    let error = BlockSwapper::new(Device::Cpu, [block], SwapOptions::default());
    let error = error.err().unwrap().to_string();
    assert_eq!(error, "block `b` has two weights named `down`");
}

#[test]
fn a_block_without_weights_is_a_block() {
    let block = |name: &str, weights| Block {
        name: name.into(),
        weights,
    };
    for blocks in [
        vec![block("empty", vec![])],
        vec![block("empty", vec![]), block("full", weights(1))],
    ] {
        let count = blocks.len();
        let stream = BlockSwapper::new(Device::Cpu, blocks, SwapOptions::default()).unwrap();
        for number in (0..count).chain(0..count) {
            let found = stream.evaluate(number, &[], |weights| Ok(weights.get("up").is_ok()));
            assert_eq!(found.unwrap(), number == 1);
        }
    }
}
