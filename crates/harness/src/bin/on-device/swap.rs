//! A streamed model of 40 blocks: peak device memory, as counted by the allocator.

use std::error::Error;

use placement::swap::{
    BackingStore, Block, BlockSwapper, SwapOptions, SwapReport, Swapped, Weights,
};
use placement::torch_transport::TransportOptions;
use serde::Serialize;
use tch::{Device, Kind, Tensor};
use torch_ext::allocator::Library;

use crate::DEVICE;

const BLOCKS: usize = 40;
/// The size of a block: four MiB of floats.
const FLOATS: i64 = 1 << 20;

#[derive(Serialize)]
pub(crate) struct Row {
    way: &'static str,
    /// Device memory according to the block swapper.
    resident: u64,
    ring: u64,
    /// Additional device memory according to the allocator.
    peak: u64,
    report: SwapReport,
}

pub(crate) fn run() -> Result<Vec<Row>, Box<dyn Error>> {
    let library = Library::find()?;
    library.install_for_accelerator()?;
    let folder = std::env::temp_dir();
    let disk = || BackingStore::Disk {
        folder: folder.clone(),
    };
    let divided = BackingStore::Divided {
        folder: folder.clone(),
        from_file: (0..BLOCKS).step_by(2).collect(),
    };
    let ways = [
        ("all, from memory", Swapped::All, BackingStore::Host, false),
        (
            "half, from memory",
            Swapped::Count(20),
            BackingStore::Host,
            false,
        ),
        ("all, from a file", Swapped::All, disk(), false),
        (
            "all, half of them from a file",
            Swapped::All,
            divided.clone(),
            false,
        ),
        (
            "half mapped, half from a file, unified",
            Swapped::All,
            divided,
            true,
        ),
        ("all, from a file, unified", Swapped::All, disk(), true),
        (
            "all, mapped, unified",
            Swapped::All,
            BackingStore::Host,
            true,
        ),
    ];
    let ways = ways.into_iter();
    ways.map(|(way, streamed, backing, unified)| measure(&library, way, streamed, backing, unified))
        .collect()
}

fn measure(
    library: &Library,
    way: &'static str,
    streamed: Swapped,
    backing: BackingStore,
    unified: bool,
) -> Result<Row, Box<dyn Error>> {
    let before = library.stats(0)?.live_bytes;
    library.reset_peaks(0)?;
    let blocks = (0..BLOCKS).map(|index| Block {
        name: format!("blocks.{index}"),
        weights: vec![(
            "w".to_owned(),
            Tensor::full([FLOATS], index as i64, (Kind::Float, Device::Cpu)),
        )],
    });
    let options = SwapOptions {
        streamed,
        backing,
        transport: TransportOptions {
            unified_memory: Some(unified),
            ..TransportOptions::default()
        },
        ..SwapOptions::default()
    };
    let stream = BlockSwapper::new(DEVICE, blocks, options)?;
    for _ in 0..2 {
        pass(&stream)?;
    }
    let (report, peak) = (stream.report(), library.stats(0)?.live_peak_bytes);
    Ok(Row {
        way,
        resident: report.resident_bytes.0,
        ring: report.ring_bytes.0,
        peak: peak.saturating_sub(before),
        report,
    })
}

/// Forward and, under gradient checkpointing, backward. Copies are read back and checked, block by block.
fn pass(stream: &BlockSwapper) -> Result<(), Box<dyn Error>> {
    let mut x = Tensor::f_zeros([16], (Kind::Float, DEVICE))?.set_requires_grad(true);
    for block in 0..BLOCKS {
        let run = move |inputs: &[Tensor], weights: &Weights<'_>| {
            let seen = weights.get("w")?.f_to_device(Device::Cpu)?;
            let (first, last) = (
                seen.f_double_value(&[0])?,
                seen.f_double_value(&[FLOATS - 1])?,
            );
            if (first, last) != (block as f64, block as f64) {
                return Err(torch_ext::Error::Torch(format!(
                    "block {block} holds {first} to {last}"
                )));
            }
            Ok(vec![inputs[0].f_mul_scalar(1.0)?])
        };
        x = stream.train(block, &[&x], run)?.remove(0);
    }
    torch_ext::backward(&x.f_sum(Kind::Float)?)?;
    Ok(())
}
