//! The row of blocks of a decoder: in memory for good, or streamed.
//!
//! A streamed block is taken apart when it is built: its frozen tensors go to a
//! [`BlockStream`], and what is left is a frame with the adapters in it. For each use the
//! frame is put on the tensors that the stream has just brought. What is computed is the same
//! either way, so that the losses are, bit for bit.

use placement::stream::{BlockStream, StreamBuilder, StreamOptions, StreamReport, Weights};
use tch::{Device, Kind, Tensor};
use torch_ext::{CheckpointOptions, checkpoint_with};

use super::Builder;
use super::attention::LayerCache;
use super::decoder::{Layer, Pass};
use super::layers::{Rope, shared};
use crate::Error;

/// Which blocks of a frozen base are streamed, and how.
#[derive(Debug, Clone)]
pub struct Streaming {
    /// Their numbers.
    pub blocks: Vec<usize>,
    /// Where they come from, and through how many slots.
    pub options: StreamOptions,
}

/// The blocks, in order.
#[derive(Debug)]
pub(super) struct Blocks {
    list: Vec<Block>,
    stream: Option<BlockStream>,
    /// Whether checkpoints wait in host memory.
    offload: bool,
}

#[derive(Debug)]
enum Block {
    Resident(Layer),
    Streamed {
        /// The layer without its base.
        frame: Layer,
        /// What the stream calls it.
        number: usize,
    },
}

impl Blocks {
    /// Builds `count` blocks one after the other, and streams those that `builder` says.
    ///
    /// # Errors
    /// What `build` returns; no memory, or no room on the disk, for the stream.
    pub(super) fn new(
        count: usize,
        device: Device,
        builder: &mut Builder,
        build: impl Fn(usize, &mut Builder) -> Result<Layer, Error>,
    ) -> Result<Self, Error> {
        let streaming = builder.take_streaming();
        let streamed = |index| {
            let streaming = streaming.as_ref();
            streaming.is_some_and(|streaming| streaming.blocks.contains(&index))
        };
        let mut stream = match &streaming {
            Some(streaming) if (0..count).any(streamed) => {
                Some(StreamBuilder::new(device, streaming.options.clone())?)
            }
            _ => None,
        };
        let mut list = Vec::with_capacity(count);
        for index in 0..count {
            list.push(match &mut stream {
                Some(stream) if streamed(index) => {
                    let layer = builder.on_the_host(device, |builder| build(index, builder))?;
                    let (frame, weights) = taken_apart(&layer)?;
                    let name = format!("model.layers.{index}");
                    let number = stream.add(placement::stream::Block { name, weights })?;
                    Block::Streamed { frame, number }
                }
                _ => Block::Resident(build(index, builder)?),
            });
        }
        let stream = stream.map(StreamBuilder::finish).transpose()?;
        let options = streaming.map(|streaming| streaming.options);
        Ok(Self {
            list,
            stream,
            offload: options.is_some_and(|options| options.offload_inputs),
        })
    }

    /// Lets what checkpointing keeps of each resident block wait in host memory.
    pub(super) fn offload_activations(&mut self, offload: bool) {
        self.offload = offload;
    }

    /// How many there are.
    pub(super) fn count(&self) -> usize {
        self.list.len()
    }

    /// `[batch, length, hidden]` through all blocks. Streamed ones are computed a second time
    /// in the backward pass whatever `pass` says: by then their weights have left.
    pub(super) fn forward(
        &self,
        mut stream: Tensor,
        rope: &Rope,
        pass: Pass,
    ) -> Result<Tensor, Error> {
        for block in &self.list {
            stream = match (block, pass) {
                (Block::Resident(layer), Pass::Train { checkpoint: true }) => {
                    self.checkpointed(layer, &stream, rope)?
                }
                (Block::Resident(layer), _) => {
                    let dropout = pass != Pass::Evaluate;
                    layer.forward(&stream, rope, None, dropout)?
                }
                (Block::Streamed { frame, number }, Pass::Train { .. }) => {
                    self.trained(frame, *number, &stream, rope)?
                }
                (Block::Streamed { frame, number }, Pass::Evaluate) => {
                    self.evaluated(frame, *number, &stream, rope, None)?
                }
            };
        }
        Ok(stream)
    }

    /// As [`Blocks::forward`] for tokens that continue what `caches` hold.
    pub(super) fn continued(
        &self,
        mut stream: Tensor,
        rope: &Rope,
        caches: &mut [LayerCache],
    ) -> Result<Tensor, Error> {
        for (block, cache) in self.list.iter().zip(caches) {
            stream = match block {
                Block::Resident(layer) => layer.forward(&stream, rope, Some(cache), false)?,
                Block::Streamed { frame, number } => {
                    self.evaluated(frame, *number, &stream, rope, Some(cache))?
                }
            };
        }
        Ok(stream)
    }

    /// Bytes of the blocks on their device: those that stay, and the ring.
    pub(super) fn bytes(&self) -> Result<u64, Error> {
        let mut bytes = self.report().map_or(0, |report| report.device_bytes().0);
        for block in &self.list {
            if let Block::Resident(layer) = block {
                layer.with_base(&mut |tensor| {
                    bytes += (tensor.numel() * tensor.kind().elt_size_in_bytes()) as u64;
                    shared(tensor)
                })?;
            }
        }
        Ok(bytes)
    }

    /// The sizes of the tensors of block `index`, if it is in memory.
    pub(super) fn base_sizes(&self, index: usize) -> Result<Vec<Vec<i64>>, Error> {
        let mut sizes = Vec::new();
        if let Some(Block::Resident(layer)) = self.list.get(index) {
            layer.with_base(&mut |tensor| {
                sizes.push(tensor.size());
                shared(tensor)
            })?;
        }
        Ok(sizes)
    }

    /// What streaming did so far, if anything is streamed.
    pub(super) fn report(&self) -> Option<StreamReport> {
        self.stream.as_ref().map(BlockStream::report)
    }

    /// A resident block of which only the input is kept for the backward pass.
    fn checkpointed(&self, layer: &Layer, stream: &Tensor, rope: &Rope) -> Result<Tensor, Error> {
        let stream = reachable(stream)?;
        let (layer, rope) = (layer.with_base(&mut shared)?, rope.shallow_clone());
        let options = CheckpointOptions {
            offload: self.offload,
            ..CheckpointOptions::default()
        };
        let outputs = checkpoint_with(options, &[&stream], move |inputs| {
            let output = layer.forward(&inputs[0], &rope, None, true);
            output.map(|output| vec![output]).map_err(Error::into_torch)
        })?;
        only(outputs)
    }

    /// A streamed block that learns: its weights come once now, and once in the backward pass.
    fn trained(
        &self,
        frame: &Layer,
        number: usize,
        stream: &Tensor,
        rope: &Rope,
    ) -> Result<Tensor, Error> {
        let stream = reachable(stream)?;
        let (frame, rope) = (frame.with_base(&mut shared)?, rope.shallow_clone());
        let outputs = self
            .source()?
            .train(number, &[&stream], move |inputs, weights| {
                let output = put_together(&frame, weights)
                    .and_then(|layer| layer.forward(&inputs[0], &rope, None, true));
                output.map(|output| vec![output]).map_err(Error::into_torch)
            })?;
        only(outputs)
    }

    fn evaluated(
        &self,
        frame: &Layer,
        number: usize,
        stream: &Tensor,
        rope: &Rope,
        cache: Option<&mut LayerCache>,
    ) -> Result<Tensor, Error> {
        let forward = |weights: &Weights<'_>| {
            put_together(frame, weights)
                .and_then(|layer| layer.forward(stream, rope, cache, false))
                .map_err(Error::into_torch)
        };
        Ok(self.source()?.evaluate(number, &[stream], forward)?)
    }

    fn source(&self) -> Result<&BlockStream, Error> {
        let stream = self.stream.as_ref();
        stream.ok_or_else(|| Error::Internal("a streamed block without a stream".into()))
    }
}

/// A layer's frozen tensors, numbered, and what is left of it.
fn taken_apart(layer: &Layer) -> Result<(Layer, Vec<(String, Tensor)>), Error> {
    let mut weights = Vec::new();
    let frame = layer.with_base(&mut |tensor| {
        weights.push((weights.len().to_string(), tensor.shallow_clone()));
        Ok(Tensor::f_empty([0], (Kind::Uint8, Device::Cpu))?)
    })?;
    Ok((frame, weights))
}

/// The layer of a frame and the tensors that it was taken apart into.
fn put_together(frame: &Layer, weights: &Weights<'_>) -> Result<Layer, Error> {
    let mut number = 0..;
    frame.with_base(&mut |_| {
        let number: usize = number.next().unwrap_or_default();
        Ok(weights.get(&number.to_string())?)
    })
}

/// The first block's input comes from the embedding, which may be frozen; but backward reaches
/// a checkpoint only through its input.
fn reachable(stream: &Tensor) -> Result<Tensor, Error> {
    Ok(match stream.requires_grad() {
        true => stream.shallow_clone(),
        false => stream.f_detach()?.f_set_requires_grad(true)?,
    })
}

fn only(outputs: Vec<Tensor>) -> Result<Tensor, Error> {
    let output = outputs.into_iter().next();
    output.ok_or_else(|| Error::Internal("a checkpointed block without output".into()))
}
