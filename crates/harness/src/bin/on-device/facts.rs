//! Separate tests that need a device: its properties, pinned batches, and streams that hang.

use std::error::Error;
use std::time::Duration;

use placement::prefetch::{Activity, Prefetcher};
use placement::swap::{BackingStore, Block, BlockSwapper, SwapOptions};
use placement::torch_transport::{TorchTransport, TransportOptions};
use placement::transport::Transport;
use placement::{Placer, Policy};
use serde::Serialize;
use tch::{Device, Kind, Tensor};
use torch_ext::accelerator::{self, DeviceIndex};

use crate::DEVICE;
use crate::simulator::configure;

#[derive(Serialize)]
pub(crate) struct Facts {
    /// The properties in the runtime, and those of a transport with and without options.
    shares_host_memory: Option<bool>,
    unified: bool,
    unified_overridden: bool,
    /// Batches that are made ahead, in pinned memory: whether each is pinned, and its values on the device.
    pinned: Vec<bool>,
    batches: Vec<Vec<i64>>,
    /// The errors of a stream whose copies hang, at the first and at a later use.
    hang: [String; 2],
}

pub(crate) fn run() -> Result<Facts, Box<dyn Error>> {
    let unified = |unified_memory| -> Result<bool, Box<dyn Error>> {
        let options = TransportOptions {
            unified_memory,
            ..TransportOptions::default()
        };
        Ok(TorchTransport::new(DEVICE, options)?.facts().unified_memory)
    };
    let shares_host_memory = accelerator::shares_host_memory(DeviceIndex(0));
    let batches = batches()?;
    Ok(Facts {
        shares_host_memory,
        unified: unified(None)?,
        unified_overridden: unified(Some(shares_host_memory != Some(true)))?,
        pinned: batches.iter().map(|(pinned, _)| *pinned).collect(),
        batches: batches.into_iter().map(|(_, batch)| batch).collect(),
        hang: hang()?,
    })
}

type Seen = Vec<(bool, Vec<i64>)>;

fn batches() -> Result<Seen, Box<dyn Error>> {
    let make = |number: u64, _: &Activity| {
        let values = (2 * number as i64)..(2 * number as i64 + 2).min(5);
        Ok(Tensor::f_from_slice(&values.collect::<Vec<_>>())?)
    };
    let mut placer = Placer::new(DEVICE, Policy::default())?;
    let mut batches = Vec::new();
    for batch in Prefetcher::new(0, 2, DEVICE, make)?.take(3) {
        let batch = batch.map_err(|error| error.to_string())?;
        let pinned = accelerator::is_pinned(&batch)?;
        let there = placer.batch(batch)?;
        batches.push((pinned, Vec::try_from(there.f_to_device(Device::Cpu)?)?));
    }
    Ok(batches)
}

fn hang() -> Result<[String; 2], Box<dyn Error>> {
    let blocks = (0..3).map(|index| Block {
        name: format!("blocks.{index}"),
        weights: vec![(
            "w".to_owned(),
            Tensor::full([1 << 16], index, (Kind::Float, Device::Cpu)),
        )],
    });
    let options = SwapOptions {
        backing: BackingStore::Host,
        transport: TransportOptions {
            unified_memory: Some(false),
            deadline: Duration::from_millis(500),
            ..TransportOptions::default()
        },
        ..SwapOptions::default()
    };
    let stream = BlockSwapper::new(DEVICE, blocks, options)?;
    configure("hang=cudaMemcpyAsync@1")?;
    let use_it = || match stream.evaluate(0, &[], |_| Ok(())) {
        Ok(()) => "no error".to_owned(),
        Err(error) => error.to_string(),
    };
    let said = [use_it(), use_it()];
    configure("reset_faults")?;
    Ok(said)
}
