//! The parts of a model with their weights.

use placement::Placer;
use placement::swap::SwapOptions;
use tch::{Device, Kind};

use super::files::PartFile;
use super::lora::{LoraFile, WithLoras};
use super::parts::codec::MediaCodec;
use super::{Denoiser, Diffusion, Expert, Part, TextEncoder};
use crate::Error;
use crate::model::{Load, Streaming};
use crate::quant::Quantization;

/// How a denoiser is held for sampling.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct DenoiserOptions {
    /// Device of the computation.
    pub device: Device,
    /// Type of the matrix products, and of matrices that are not quantised.
    pub compute: Kind,
    /// Quantisation of the linear layers' matrices.
    pub quantization: Option<Quantization>,
    /// Number of blocks that are kept in host memory and streamed to the device.
    pub streamed: usize,
}

impl DenoiserOptions {
    /// Everything on `device`, not quantised.
    pub fn whole(device: Device, compute: Kind) -> Self {
        Self {
            device,
            compute,
            quantization: None,
            streamed: 0,
        }
    }
}

/// A denoiser of these weights, with LoRAs of the given strengths, which are merged into them before quantisation.
///
/// # Errors
/// If a file is damaged, a LoRA is for another model, or memory runs out.
pub fn load_denoiser(
    model: &dyn Diffusion,
    expert: Expert,
    weights: PartFile,
    loras: Vec<(LoraFile, f64)>,
    options: DenoiserOptions,
    placer: &mut Placer,
) -> Result<Box<dyn Denoiser>, Error> {
    let count = model.arch().blocks(&weights).iter().sum::<usize>();
    let away = options.streamed.min(count);
    let streaming = (away > 0).then(|| Streaming {
        // Evenly spaced.
        blocks: (0..away).map(|index| index * count / away).collect(),
        options: SwapOptions::default(),
    });
    let tensors = WithLoras::new(Box::new(weights), loras)?;
    let load = Load {
        compute: options.compute,
        quantization: options.quantization,
        streaming,
    };
    load.frozen(&tensors, placer, |device, builder| {
        model.denoiser(expert, device, builder)
    })
}

/// A text encoder; with `stream`, its blocks are copied to a GPU one at a time as needed.
///
/// # Errors
/// If a file is missing or damaged, or memory runs out.
pub fn load_text_encoder(
    model: &dyn Diffusion,
    number: usize,
    compute: Kind,
    stream: bool,
    placer: &mut Placer,
) -> Result<Box<dyn TextEncoder>, Error> {
    let tensors = model.weights(Part::TextEncoder(number))?;
    let load = Load {
        streaming: (stream && placer.device() != Device::Cpu).then(|| Streaming {
            // As many as there can be.
            blocks: (0..1024).collect(),
            options: SwapOptions::default(),
        }),
        ..Load::whole(compute)
    };
    load.frozen(&tensors, placer, |device, builder| {
        model.text_encoder(number, device, builder)
    })
}

/// The autoencoder.
///
/// # Errors
/// If a file is missing or damaged, or memory runs out.
pub fn load_autoencoder(
    model: &dyn Diffusion,
    compute: Kind,
    placer: &mut Placer,
) -> Result<Box<dyn MediaCodec>, Error> {
    let tensors = model.weights(Part::Autoencoder)?;
    Load::whole(compute).frozen(&tensors, placer, |device, builder| {
        model.autoencoder(device, builder)
    })
}
