//! The cost of streaming compared with a resident run of the same blocks.
//!
//! A training step of a stack of frozen linear blocks, with gradient checkpointing on both sides, so that the
//! difference is only the streaming. On the CPU the "device" is the same memory and copies do not overlap
//! with computation: this is the worst case. The overhead is smaller the longer a block computes per byte, which
//! `tokens` varies.

use std::error::Error;
use std::time::Instant;

use placement::swap::{BackingStore, Block, BlockSwapper, SwapOptions, Swapped, Weights};
use placement::{Bytes, Verify};
use serde::Serialize;
use tch::{Device, Kind, Tensor};

const BLOCKS: usize = 12;
const WIDTH: i64 = 1024;

/// One streaming mode, with one number of tokens.
#[derive(Serialize)]
pub(crate) struct StreamCost {
    /// Rows in each block's input.
    tokens: i64,
    way: &'static str,
    verify: Verify,
    /// Bytes that streaming uses on the device.
    device: Bytes,
    /// Median time of a step, forward and backward.
    seconds: f64,
    /// Median over the rounds of the overhead, relative to the resident step.
    overhead: f64,
}

pub(crate) fn measure(device: Device, rounds: usize) -> Result<Vec<StreamCost>, Box<dyn Error>> {
    let mut costs = Vec::new();
    for tokens in [64, 256] {
        eprintln!("streaming {BLOCKS} blocks for {tokens} tokens");
        costs.extend(measure_tokens(device, tokens, rounds.clamp(1, 5))?);
    }
    Ok(costs)
}

fn measure_tokens(
    device: Device,
    tokens: i64,
    rounds: usize,
) -> Result<Vec<StreamCost>, Box<dyn Error>> {
    let folder = std::env::temp_dir();
    let disk = BackingStore::Disk { folder };
    let all = Swapped::All;
    let ways = [
        (
            "resident",
            Swapped::Count(0),
            BackingStore::Host,
            Verify::First,
        ),
        (
            "half of them",
            Swapped::Count(BLOCKS / 2),
            BackingStore::Host,
            Verify::First,
        ),
        (
            "all of them",
            all.clone(),
            BackingStore::Host,
            Verify::First,
        ),
        (
            "all, verified",
            all.clone(),
            BackingStore::Host,
            Verify::Always,
        ),
        ("all, from a file", all, disk, Verify::First),
    ];
    let mut streams = Vec::new();
    for (_, streamed, backing, verify) in &ways {
        let options = SwapOptions {
            streamed: streamed.clone(),
            backing: backing.clone(),
            verify: *verify,
            ..SwapOptions::default()
        };
        streams.push(BlockSwapper::new(device, blocks()?, options)?);
    }
    let input = Tensor::f_rand([tokens, WIDTH], (Kind::Float, device))?.set_requires_grad(true);
    let mut seconds = vec![Vec::new(); ways.len()];
    // The first round fills caches and rings.
    for round in 0..=rounds {
        for (stream, seconds) in streams.iter().zip(&mut seconds) {
            let start = Instant::now();
            step(stream, &input)?;
            if round > 0 {
                seconds.push(start.elapsed().as_secs_f64());
            }
        }
    }
    let resident = seconds[0].clone();
    let rows = ways.iter().zip(&streams).zip(seconds);
    let costs = rows.map(|(((way, _, _, verify), stream), seconds)| {
        let shares = seconds.iter().zip(&resident).map(|(s, r)| s / r - 1.0);
        StreamCost {
            tokens,
            way,
            verify: *verify,
            device: stream.report().device_bytes(),
            overhead: median(shares.collect()),
            seconds: median(seconds),
        }
    });
    Ok(costs.collect())
}

fn blocks() -> Result<Vec<Block>, tch::TchError> {
    let block = |index: usize| {
        let weight = Tensor::f_rand([WIDTH, 4 * WIDTH], (Kind::Float, Device::Cpu))?;
        let back = Tensor::f_rand([4 * WIDTH, WIDTH], (Kind::Float, Device::Cpu))?;
        Ok(Block {
            name: format!("blocks.{index}"),
            weights: vec![("up".to_owned(), weight), ("down".to_owned(), back)],
        })
    };
    (0..BLOCKS).map(block).collect()
}

fn step(stream: &BlockSwapper, input: &Tensor) -> Result<(), torch_ext::Error> {
    let run = |inputs: &[Tensor], weights: &Weights<'_>| {
        let hidden = inputs[0].f_matmul(&weights.get("up")?)?.f_relu()?;
        let out = hidden.f_matmul(&weights.get("down")?)?;
        Ok(vec![out.f_mul_scalar(1e-6)?])
    };
    let mut x = input.shallow_clone();
    for block in 0..BLOCKS {
        x = stream.train(block, &[&x], run)?.remove(0);
    }
    torch_ext::backward(&x.f_mean(Kind::Float)?)
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}
