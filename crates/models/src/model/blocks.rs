//! The row of blocks of a model: in memory for good, or streamed.
//!
//! A streamed block is taken apart when it is built: its frozen tensors go to a
//! [`BlockSwapper`], and what is left is a template with the adapters in it. For each use the
//! template is put on the tensors that the stream has just brought. What is computed is the same
//! either way, so that the losses are, bit for bit.

use placement::swap::{BlockSwapper, SwapBuilder, SwapOptions, SwapReport, Weights};
use tch::{Device, Kind, Tensor};
use torch_ext::{CheckpointOptions, checkpoint_with};

use super::attention::LayerCache;
use super::layers::Positions;
use super::{Builder, Pass, decoder};
use crate::Error;
use crate::tensor::{BaseMap, frozen_bytes, shared};

/// Which blocks of a frozen base are streamed, and how.
#[derive(Debug, Clone)]
pub struct Streaming {
    /// Numbers of the streamed blocks, counted from zero.
    pub blocks: Vec<usize>,
    /// Where they come from, and through how many slots.
    pub options: SwapOptions,
}

/// One block of a row: it can be taken apart into its tensors, and put on others.
pub(crate) trait Layer: Sized + Send + 'static {
    /// What all blocks see besides their inputs, and what no gradient goes to.
    type Shared: Send + 'static;

    /// Another handle to the same.
    fn share(shared: &Self::Shared) -> Self::Shared;

    /// The stream, first of `inputs`, after this block.
    ///
    /// # Errors
    /// When shapes do not fit or memory runs out.
    fn forward(
        &self,
        inputs: &[Tensor],
        shared: &Self::Shared,
        dropout: bool,
    ) -> Result<Tensor, Error>;

    /// The same layer on another base (see [`BaseMap`]).
    ///
    /// # Errors
    /// Those of `map`.
    fn with_base(&self, map: BaseMap<'_>) -> Result<Self, Error>;
}

/// The blocks, in order.
#[derive(Debug)]
pub(crate) struct Blocks<L> {
    list: Vec<Block<L>>,
    stream: Option<BlockSwapper>,
    /// Whether checkpoints wait in host memory.
    offload: bool,
}

#[derive(Debug)]
enum Block<L> {
    Resident(L),
    Streamed {
        /// The layer without its base.
        template: L,
        /// What the stream calls it.
        number: usize,
    },
}

impl<L: Layer> Blocks<L> {
    /// Builds `count` blocks one after the other, and streams those that `builder` says. They are
    /// called `prefix` and their number.
    ///
    /// # Errors
    /// What `build` returns; no memory, or no room on the disk, for the stream.
    pub(crate) fn new(
        (prefix, count): (&str, usize),
        device: Device,
        builder: &mut Builder,
        build: impl Fn(usize, &mut Builder) -> Result<L, Error>,
    ) -> Result<Self, Error> {
        let streaming = builder.take_streaming();
        let streamed = |index| {
            let streaming = streaming.as_ref();
            streaming.is_some_and(|streaming| streaming.blocks.contains(&index))
        };
        let mut stream = match &streaming {
            Some(streaming) if (0..count).any(streamed) => {
                Some(SwapBuilder::new(device, streaming.options.clone())?)
            }
            _ => None,
        };
        let mut list = Vec::with_capacity(count);
        for index in 0..count {
            list.push(match &mut stream {
                Some(stream) if streamed(index) => {
                    let layer = builder.on_the_host(device, |builder| build(index, builder))?;
                    let (template, weights) = detach_weights(&layer)?;
                    let name = format!("{prefix}.{index}");
                    let number = stream.add(placement::swap::Block { name, weights })?;
                    Block::Streamed { template, number }
                }
                _ => Block::Resident(build(index, builder)?),
            });
        }
        let stream = stream.map(SwapBuilder::finish).transpose()?;
        let options = streaming.map(|streaming| streaming.options);
        Ok(Self {
            list,
            stream,
            offload: options.is_some_and(|options| options.offload_inputs),
        })
    }

    /// Lets what checkpointing keeps of each resident block wait in host memory.
    pub(crate) fn offload_activations(&mut self, offload: bool) {
        self.offload = offload;
    }

    /// How many there are.
    pub(crate) fn count(&self) -> usize {
        self.list.len()
    }

    /// `stream` through all blocks, each of which also gets `others`, to which gradients may go, and
    /// what is `shared`. Streamed ones are computed a second time in the backward pass whatever `pass`
    /// says: by then their weights have left.
    pub(crate) fn forward(
        &self,
        mut stream: Tensor,
        others: &[Tensor],
        shared: &L::Shared,
        pass: Pass,
    ) -> Result<Tensor, Error> {
        for block in &self.list {
            let mut inputs = vec![stream];
            inputs.extend(others.iter().map(Tensor::shallow_clone));
            stream = match (block, pass) {
                (Block::Resident(layer), Pass::Train { checkpoint: true }) => {
                    self.checkpointed(layer, inputs, shared)?
                }
                (Block::Resident(layer), _) => {
                    layer.forward(&inputs, shared, pass != Pass::Evaluate)?
                }
                (Block::Streamed { template, number }, Pass::Train { .. }) => {
                    self.trained(template, *number, inputs, shared)?
                }
                (Block::Streamed { template, number }, Pass::Evaluate) => {
                    let run = |layer: L| layer.forward(&inputs, shared, false);
                    self.evaluated(template, *number, &inputs[0], run)?
                }
            };
        }
        Ok(stream)
    }

    /// Bytes of the blocks on their device: those that stay, and the ring.
    pub(crate) fn bytes(&self) -> Result<u64, Error> {
        let mut sum = self.report().map_or(0, |report| report.device_bytes().0);
        self.look(&mut |_, tensor| sum += frozen_bytes(tensor))?;
        Ok(sum)
    }

    /// Shows `see` the frozen tensors of the blocks that stay, with the number of the block.
    pub(crate) fn look(&self, see: &mut dyn FnMut(usize, &Tensor)) -> Result<(), Error> {
        for (index, block) in self.list.iter().enumerate() {
            if let Block::Resident(layer) = block {
                layer.with_base(&mut |tensor| {
                    see(index, tensor);
                    shared(tensor)
                })?;
            }
        }
        Ok(())
    }

    /// The sizes of the tensors of block `index`, if it is in memory.
    pub(crate) fn base_sizes(&self, index: usize) -> Result<Vec<Vec<i64>>, Error> {
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
    pub(crate) fn report(&self) -> Option<SwapReport> {
        self.stream.as_ref().map(BlockSwapper::report)
    }

    /// A resident block of which only the input is kept for the backward pass.
    fn checkpointed(
        &self,
        layer: &L,
        inputs: Vec<Tensor>,
        common: &L::Shared,
    ) -> Result<Tensor, Error> {
        let inputs = reachable(inputs)?;
        let (layer, common) = (layer.with_base(&mut shared)?, L::share(common));
        let options = CheckpointOptions {
            offload: self.offload,
            ..CheckpointOptions::default()
        };
        let inputs: Vec<&Tensor> = inputs.iter().collect();
        let outputs = checkpoint_with(options, &inputs, move |inputs| {
            let output = layer.forward(inputs, &common, true);
            output.map(|output| vec![output]).map_err(Error::into_torch)
        })?;
        only(outputs)
    }

    /// A streamed block that learns: its weights come once now, and once in the backward pass.
    fn trained(
        &self,
        template: &L,
        number: usize,
        inputs: Vec<Tensor>,
        common: &L::Shared,
    ) -> Result<Tensor, Error> {
        let inputs = reachable(inputs)?;
        let (template, common) = (template.with_base(&mut shared)?, L::share(common));
        let inputs: Vec<&Tensor> = inputs.iter().collect();
        let outputs = self
            .source()?
            .train(number, &inputs, move |inputs, weights| {
                let output = attach_weights(&template, weights)
                    .and_then(|layer| layer.forward(inputs, &common, true));
                output.map(|output| vec![output]).map_err(Error::into_torch)
            })?;
        only(outputs)
    }

    /// Runs a streamed block on the tensors that have been brought.
    fn evaluated(
        &self,
        template: &L,
        number: usize,
        stream: &Tensor,
        run: impl FnOnce(L) -> Result<Tensor, Error>,
    ) -> Result<Tensor, Error> {
        let forward = |weights: &Weights<'_>| {
            attach_weights(template, weights)
                .and_then(run)
                .map_err(Error::into_torch)
        };
        Ok(self.source()?.evaluate(number, &[stream], forward)?)
    }

    fn source(&self) -> Result<&BlockSwapper, Error> {
        let stream = self.stream.as_ref();
        stream.ok_or_else(|| Error::Internal("a streamed block without a stream".into()))
    }
}

impl Blocks<decoder::Layer> {
    /// As [`Blocks::forward`] for tokens that continue what `caches` hold.
    pub(crate) fn continued(
        &self,
        mut stream: Tensor,
        positions: &Positions,
        caches: &mut [LayerCache],
    ) -> Result<Tensor, Error> {
        for (block, cache) in self.list.iter().zip(caches) {
            stream = match block {
                Block::Resident(layer) => layer.run(&stream, positions, Some(cache), false)?,
                Block::Streamed { template, number } => {
                    let run =
                        |layer: decoder::Layer| layer.run(&stream, positions, Some(cache), false);
                    self.evaluated(template, *number, &stream, run)?
                }
            };
        }
        Ok(stream)
    }
}

/// A layer's frozen tensors, numbered, and what is left of it.
fn detach_weights<L: Layer>(layer: &L) -> Result<(L, Vec<(String, Tensor)>), Error> {
    let mut weights = Vec::new();
    let template = layer.with_base(&mut |tensor| {
        weights.push((weights.len().to_string(), tensor.shallow_clone()));
        Ok(Tensor::f_empty([0], (Kind::Uint8, Device::Cpu))?)
    })?;
    Ok((template, weights))
}

/// The layer of a template and the tensors that it was taken apart into.
fn attach_weights<L: Layer>(template: &L, weights: &Weights<'_>) -> Result<L, Error> {
    let mut number = 0..;
    template.with_base(&mut |_| {
        let number: usize = number.next().unwrap_or_default();
        Ok(weights.get(&number.to_string())?)
    })
}

/// The first block's input comes from the embedding, which may be frozen; but backward reaches
/// a checkpoint only through its input.
fn reachable(mut inputs: Vec<Tensor>) -> Result<Vec<Tensor>, Error> {
    if !inputs.iter().any(Tensor::requires_grad)
        && let Some(stream) = inputs.first_mut()
    {
        *stream = stream.f_detach()?.f_set_requires_grad(true)?;
    }
    Ok(inputs)
}

fn only(outputs: Vec<Tensor>) -> Result<Tensor, Error> {
    let output = outputs.into_iter().next();
    output.ok_or_else(|| Error::Internal("a checkpointed block without output".into()))
}
