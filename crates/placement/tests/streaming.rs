//! Block streaming gives the results of a resident run in the memory of a ring.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use surefoot_placement::swap::{BackingStore, Block, BlockSwapper, SwapOptions, Swapped, Weights};
use surefoot_placement::{Bytes, Verify};
use tch::{Device, Kind, Tensor};
use torch_ext::{Error, backward};

const BLOCKS: usize = 40;
const WIDTH: i64 = 16;

/// Frozen weights of a stack of small residual blocks, the same each time.
fn weights() -> Vec<Vec<(String, Tensor)>> {
    torch_ext::random::manual_seed(5).unwrap();
    let random = |size: &[i64]| Tensor::randn(size, (Kind::Float, Device::Cpu)) * 0.05;
    (0..BLOCKS)
        .map(|_| {
            vec![
                ("up".to_owned(), random(&[WIDTH, 3 * WIDTH])),
                ("scale".to_owned(), random(&[5]).to_kind(Kind::BFloat16)),
                ("down".to_owned(), random(&[3 * WIDTH, WIDTH])),
            ]
        })
        .collect()
}

/// One trainable adapter per block.
fn adapters() -> Vec<Tensor> {
    torch_ext::random::manual_seed(6).unwrap();
    (0..BLOCKS)
        .map(|_| Tensor::randn([WIDTH, WIDTH], (Kind::Float, Device::Cpu)) * 0.02)
        .map(|adapter| adapter.set_requires_grad(true))
        .collect()
}

fn block(
    x: &Tensor,
    up: &Tensor,
    scale: &Tensor,
    down: &Tensor,
    adapter: &Tensor,
) -> Result<Tensor, Error> {
    let scale = scale.f_narrow(0, 2, 1)?.f_to_kind(Kind::Float)?;
    let hidden = x.f_matmul(up)?.f_silu()?.f_mul(&scale)?;
    Ok(x.f_add(&hidden.f_matmul(down)?)?
        .f_add(&x.f_matmul(adapter)?)?)
}

fn streamed(x: &Tensor, weights: &Weights<'_>, adapter: &Tensor) -> Result<Tensor, Error> {
    block(
        x,
        &weights.get("up")?,
        &weights.get("scale")?,
        &weights.get("down")?,
        adapter,
    )
}

fn input() -> Tensor {
    Tensor::arange(4 * WIDTH, (Kind::Float, Device::Cpu)).view([4, WIDTH]) * 0.01
}

/// Losses of three steps of SGD on the adapters, and their gradients at the end.
fn train(mut step: impl FnMut(usize, &Tensor, &Tensor) -> Tensor) -> (Vec<f64>, Vec<Tensor>) {
    let mut adapters = adapters();
    let mut losses = Vec::new();
    for _ in 0..3 {
        let mut x = input().set_requires_grad(true);
        for (index, adapter) in adapters.iter_mut().enumerate() {
            adapter.zero_grad();
            x = step(index, &x, adapter);
        }
        let loss = x.square().mean(Kind::Float);
        losses.push(f64::try_from(&loss).unwrap());
        backward(&loss).unwrap();
        tch::no_grad(|| {
            for adapter in &mut adapters {
                let _ = adapter.g_sub_(&(adapter.grad() * 0.001));
            }
        });
    }
    (losses, adapters.iter().map(Tensor::grad).collect())
}

fn resident() -> (Vec<f64>, Vec<Tensor>) {
    let weights = weights();
    train(|index, x, adapter| {
        let [(_, up), (_, scale), (_, down)] = &weights[index][..] else {
            unreachable!()
        };
        block(x, up, scale, down, adapter).unwrap()
    })
}

fn stream(options: SwapOptions) -> BlockSwapper {
    let blocks = weights().into_iter().enumerate();
    let blocks = blocks.map(|(index, weights)| Block {
        name: format!("blocks.{index}"),
        weights,
    });
    BlockSwapper::new(Device::Cpu, blocks, options).unwrap()
}

fn train_streamed(stream: &BlockSwapper) -> (Vec<f64>, Vec<Tensor>) {
    train(|index, x, adapter| {
        let adapter = adapter.shallow_clone();
        let run = move |inputs: &[Tensor], weights: &Weights<'_>| {
            Ok(vec![streamed(&inputs[0], weights, &adapter)?])
        };
        stream.train(index, &[x], run).unwrap().remove(0)
    })
}

#[test]
fn losses_and_gradients_are_bit_equal_to_the_resident_run() {
    let (losses, gradients) = resident();
    assert!(losses[2] < losses[0], "it trains: {losses:?}");
    for slots in [1, 2, 3, BLOCKS] {
        let stream = stream(SwapOptions {
            slots,
            ..SwapOptions::default()
        });
        let (streamed_losses, streamed_gradients) = train_streamed(&stream);
        assert_eq!(streamed_losses, losses, "{slots} slots");
        assert!(
            streamed_gradients
                .iter()
                .zip(&gradients)
                .all(|(a, b)| a.equal(b)),
            "{slots} slots"
        );
    }
}

/// Two weights of 3·16·16 floats, and one of 256 bytes after alignment.
const BLOCK: u64 = 2 * 3 * 16 * 16 * 4 + 256;

#[test]
fn the_device_holds_the_ring_and_nothing_else() {
    let report = stream(SwapOptions::default()).report();
    assert_eq!(report.device_bytes(), Bytes(2 * BLOCK));
    assert_eq!(report.host_bytes, Bytes(BLOCKS as u64 * BLOCK));
}

#[test]
fn blocks_that_do_not_travel_stay_on_the_device_and_change_no_bit() {
    let (losses, gradients) = resident();
    for streamed in [
        Swapped::Count(0),
        Swapped::Count(1),
        Swapped::Count(13),
        Swapped::Count(BLOCKS),
        Swapped::Only(vec![39, 0, 7]),
    ] {
        let count = match &streamed {
            Swapped::Count(count) => *count as u64,
            _ => 3,
        };
        let stream = stream(SwapOptions {
            streamed: streamed.clone(),
            verify: Verify::Always,
            ..SwapOptions::default()
        });
        let (streamed_losses, streamed_gradients) = train_streamed(&stream);
        assert_eq!(streamed_losses, losses, "{streamed:?}");
        let same = streamed_gradients.iter().zip(&gradients);
        assert!(same.into_iter().all(|(a, b)| a.equal(b)), "{streamed:?}");
        let report = stream.report();
        assert_eq!(
            report.ring_bytes,
            Bytes(count.min(2) * BLOCK),
            "{streamed:?}"
        );
        assert_eq!(report.host_bytes, Bytes(count * BLOCK));
        assert_eq!(
            report.resident_bytes,
            Bytes((BLOCKS as u64 - count) * BLOCK)
        );
        assert_eq!(report.used, 3 * 2 * count);
    }
}

/// Only the ring is in memory.
#[test]
fn blocks_in_a_file_change_no_bit() {
    let (losses, gradients) = resident();
    let folder = tempfile::tempdir().unwrap();
    for slots in [1, 2, 3] {
        let stream = stream(SwapOptions {
            slots,
            backing: BackingStore::Disk {
                folder: folder.path().to_owned(),
            },
            streamed: Swapped::Count(30),
            verify: Verify::Always,
            ..SwapOptions::default()
        });
        let (streamed_losses, streamed_gradients) = train_streamed(&stream);
        assert_eq!(streamed_losses, losses, "{slots} slots");
        let mut same = streamed_gradients.iter().zip(&gradients);
        assert!(same.all(|(a, b)| a.equal(b)), "{slots} slots");
        let report = stream.report();
        assert_eq!((report.host_bytes, report.repeated), (Bytes::ZERO, 0));
        assert_eq!(report.disk_bytes, Bytes(30 * BLOCK));
        assert_eq!(report.ring_bytes, Bytes(slots as u64 * BLOCK));
    }
    let left = std::fs::read_dir(folder.path()).unwrap().count();
    assert_eq!(left, 0, "the file has no name, so nothing is left of it");
}

#[test]
fn a_folder_that_cannot_be_written_to_is_named() {
    let backing = BackingStore::Disk {
        folder: "/nonexistent/folder".into(),
    };
    let options = SwapOptions {
        backing,
        ..SwapOptions::default()
    };
    let error = BlockSwapper::new(Device::Cpu, [], options).err().unwrap();
    assert!(
        error
            .to_string()
            .contains("cannot be kept in `/nonexistent/folder`"),
        "{error}"
    );
}

#[test]
fn blocks_that_are_not_there_cannot_be_streamed() {
    let refused = |streamed| {
        let blocks = weights().into_iter().take(4).enumerate();
        let blocks = blocks.map(|(index, weights)| Block {
            name: format!("blocks.{index}"),
            weights,
        });
        let options = SwapOptions {
            streamed,
            ..SwapOptions::default()
        };
        let made = BlockSwapper::new(Device::Cpu, blocks, options);
        made.err().unwrap().to_string()
    };
    assert_eq!(
        refused(Swapped::Count(5)),
        "`blocks_to_swap: 5`: only 4 blocks can be streamed"
    );
    assert_eq!(
        refused(Swapped::Only(vec![0, 9])),
        "block 9 cannot be streamed: there are only 4 blocks"
    );
}

#[test]
fn each_block_travels_once_per_pass_and_only_the_first_is_waited_for() {
    let stream = stream(SwapOptions::default());
    train_streamed(&stream);
    let report = stream.report();
    assert_eq!(report.used, 3 * 2 * BLOCKS as u64);
    assert_eq!(report.waited, 1);
    // The first pass copies all blocks; later ones copy all but the two that are in the ring.
    assert_eq!(report.copies, (BLOCKS + 5 * (BLOCKS - 2)) as u64);
    assert_eq!(
        report.verified, BLOCKS as u64,
        "`first` verifies each block once"
    );
}

#[test]
fn always_verifies_every_copy() {
    let stream = stream(SwapOptions {
        verify: Verify::Always,
        ..SwapOptions::default()
    });
    train_streamed(&stream);
    let report = stream.report();
    assert_eq!((report.verified, report.repeated), (report.copies, 0));
}

#[test]
fn evaluation_needs_no_gradients() {
    let stream = stream(SwapOptions::default());
    let weights = weights();
    let adapters = adapters();
    tch::no_grad(|| {
        let (mut x, mut expected) = (input(), input());
        for (index, adapter) in adapters.iter().enumerate() {
            let [(_, up), (_, scale), (_, down)] = &weights[index][..] else {
                unreachable!()
            };
            expected = block(&expected, up, scale, down, adapter).unwrap();
            x = stream
                .evaluate(index, &[&x], |weights| streamed(&x, weights, adapter))
                .unwrap();
        }
        assert!(x.equal(&expected));
    });
}

#[test]
fn a_block_that_would_be_overwritten_before_backward_is_refused() {
    let stream = stream(SwapOptions::default());
    let x = input().set_requires_grad(true);
    let error = stream
        .evaluate(0, &[&x], |_| Ok(()))
        .unwrap_err()
        .to_string();
    assert!(
        error.contains("`blocks.0` is streamed") && error.contains("checkpointing"),
        "{error}"
    );
}

#[test]
fn a_base_that_is_not_frozen_is_refused() {
    let mut blocks = weights();
    blocks.truncate(1);
    let weights = vec![("up".to_owned(), blocks[0][0].1.set_requires_grad(true))];
    let block = Block {
        name: "b".into(),
        weights,
    };
    let error = BlockSwapper::new(Device::Cpu, [block], SwapOptions::default())
        .err()
        .unwrap();
    assert!(
        error.to_string().contains("`b.up` requires a gradient"),
        "{error}"
    );
}

#[test]
fn unknown_blocks_and_weights_are_named() {
    let stream = stream(SwapOptions::default());
    tch::no_grad(|| {
        let error = stream
            .evaluate(99, &[], |_| Ok(()))
            .unwrap_err()
            .to_string();
        assert_eq!(error, "there is no block 99: there are 40");
        let error = stream
            .evaluate(0, &[], |weights| weights.get("sideways"))
            .unwrap_err();
        assert!(
            error.to_string().ends_with("it has up, scale, down"),
            "{error}"
        );
    });
}
