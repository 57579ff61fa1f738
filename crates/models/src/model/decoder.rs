//! A decoder-only transformer of the Llama family: Llama, SmolLM2, Qwen2, Qwen3.
//!
//! ```text
//! tokens ─▶ embedding ─▶ ┌ norm ─▶ attention ─▶ + ─▶ norm ─▶ feed-forward ─▶ + ┐ ─▶ norm ─▶ head ─▶ logits
//!                        └────────────────── × layers ────────────────────────┘
//! ```
//!
//! Pre-norm with RMSNorm, rotary positions, causal grouped-query attention, and SwiGLU. Weights have the
//! names and shapes of `transformers`, which can load what is saved here.

use placement::swap::SwapReport;
use tch::{Device, Kind, Tensor};

use super::attention::{Attention, LayerCache};
use super::blocks::{self, BlockList, Blocks};
use super::layers::{Embedding, Linear, Positions, RmsNorm, Rope};
use super::{Builder, DecoderConfig, Initial, RopeScaling};
use crate::Error;
use crate::adapters::{EMBEDDING, HEAD};
use crate::tensor::{BaseMap, frozen_bytes, shared, to_kind};
use crate::weight::Weight;

/// The model. Its trainable tensors are in the [`Parameters`](crate::Parameters) it was built with.
#[derive(Debug)]
pub struct Decoder {
    embedding: Embedding,
    blocks: Blocks<Layer>,
    norm: RmsNorm,
    /// `None` if the head uses the embedding's weight as it is.
    head: Option<Linear>,
    positions: Positions,
    compute: Kind,
    /// Whether the base is frozen and only an adapter is trained.
    is_frozen: bool,
}

/// Settings of a model besides its config.
#[derive(Debug, Clone, Copy)]
pub struct DecoderOptions {
    /// Maximum sequence length, in tokens.
    pub positions: i64,
    /// Standard deviation of randomly initialised matrices.
    pub initializer_range: f64,
    /// Device of the weights and the computation.
    pub device: Device,
}

/// The purpose of a forward pass.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pass {
    /// Inference: no dropout.
    Evaluate,
    /// Training.
    Train {
        /// Recompute each block's activations in the backward pass instead of keeping them.
        checkpoint: bool,
    },
}

impl Decoder {
    /// Builds the model.
    ///
    /// # Errors
    /// If the source lacks a weight, or memory runs out.
    pub fn new(
        config: &DecoderConfig,
        options: DecoderOptions,
        builder: &mut Builder,
    ) -> Result<Self, Error> {
        let longest = config.max_position_embeddings;
        if matches!(config.rope.scaling, RopeScaling::Dynamic { .. }) && options.positions > longest
        {
            return Err(Error::Invalid(format!(
                "this model scales its rotary embedding for texts of more than {longest} tokens \
                 (`rope_type: dynamic`), which is not supported: sequences may have at most \
                 {longest} tokens, and {} were requested",
                options.positions
            )));
        }
        let initial = Initial::Normal(options.initializer_range);
        let (vocabulary, hidden) = (config.vocab_size, config.hidden_size);
        let tied = config.tie_word_embeddings;
        let (embedding, tied_head) =
            builder.embedding(EMBEDDING, &[vocabulary, hidden], initial, tied)?;
        let count = usize::try_from(config.num_hidden_layers).unwrap_or(0);
        let blocks = Blocks::new(
            ("model.layers", count),
            options.device,
            builder,
            |index, builder| Layer::new(config, index, initial, builder),
        )?;
        builder.finish_blocks()?;
        let norm = builder.norm("model.norm", hidden, config.rms_norm_eps)?;
        let head = match tied {
            true => tied_head,
            false => Some(builder.linear(HEAD, (hidden, vocabulary), false, initial)?),
        };
        let frequencies = config.rope.frequencies(config.head_dim);
        let factor = config.rope.attention_factor();
        Ok(Self {
            embedding,
            blocks,
            norm,
            head,
            positions: Positions {
                rope: Rope::new(&frequencies, factor, options.positions, options.device)?,
                mask: None,
            },
            compute: builder.compute(),
            is_frozen: builder.is_frozen(),
        })
    }

    /// Whether to offload the activation checkpoints of each block to host memory.
    pub fn offload_activations(&mut self, offload: bool) {
        self.blocks.offload_activations(offload);
    }

    /// Bytes of everything frozen on the device.
    ///
    /// # Errors
    /// If libtorch fails to create a handle to a tensor.
    pub fn bytes(&self) -> Result<u64, Error> {
        let table = &self.embedding.weight;
        let head = self.head.as_ref().and_then(|head| head.weight.as_dense());
        // A tied head may share the embedding's memory.
        let head = head.filter(|head| head.data_ptr() != table.data_ptr());
        let rest = head.map_or(0, frozen_bytes) + frozen_bytes(&self.norm.weight);
        Ok(frozen_bytes(table) + rest + self.rope_bytes() + self.blocks.bytes()?)
    }

    /// Bytes of the rotary tables that all blocks use.
    pub fn rope_bytes(&self) -> u64 {
        self.positions.rope.bytes()
    }

    /// Statistics of streaming, if blocks are streamed.
    pub fn streamed(&self) -> Option<SwapReport> {
        self.blocks.report()
    }

    /// The sizes of the frozen tensors of block `index`, in the order of [`BaseMap`].
    ///
    /// # Errors
    /// If libtorch fails to create a handle to a tensor.
    pub fn block_sizes(&self, index: usize) -> Result<Vec<Vec<i64>>, Error> {
        self.blocks.base_sizes(index)
    }

    /// The type of matrix products.
    pub fn compute(&self) -> Kind {
        self.compute
    }

    /// Logits for the token after each of `tokens`: integers `[batch, length]` to `[batch, length,
    /// vocabulary]` fp32.
    ///
    /// # Errors
    /// If a token is not in the vocabulary, the sequence is too long, or memory runs out.
    pub fn logits(&self, tokens: &Tensor, pass: Pass) -> Result<Tensor, Error> {
        self.head(&self.hidden(tokens, pass)?, pass)
    }

    /// The head's input: tokens `[batch, length]` to `[batch, length, hidden]` fp32.
    ///
    /// # Errors
    /// As [`Decoder::logits`].
    pub fn hidden(&self, tokens: &Tensor, pass: Pass) -> Result<Tensor, Error> {
        let stream = self.embedding.forward(tokens)?;
        let stream = self.blocks.forward(stream, &[], &self.positions, pass)?;
        self.norm.forward(&stream)
    }

    /// Like [`Decoder::hidden`], for rows that pack several texts, which do not attend to each other.
    /// `positions` are the tokens' positions within their text: each 0 starts one.
    ///
    /// # Errors
    /// As [`Decoder::logits`].
    pub fn hidden_packed(
        &self,
        tokens: &Tensor,
        positions: &Tensor,
        pass: Pass,
    ) -> Result<Tensor, Error> {
        let positions = Positions::packed(&self.positions.rope, positions, self.compute)?;
        let stream = self.embedding.forward(tokens)?;
        let stream = self.blocks.forward(stream, &[], &positions, pass)?;
        self.norm.forward(&stream)
    }

    /// Logits in fp32 for the output of [`Decoder::hidden`], or for some of its rows.
    ///
    /// # Errors
    /// If memory runs out.
    pub fn head(&self, hidden: &Tensor, pass: Pass) -> Result<Tensor, Error> {
        let logits = self
            .linear_head()?
            .forward(hidden, pass != Pass::Evaluate)?;
        to_kind(&logits, Kind::Float)
    }

    /// The head as a layer of its own that shares its tensors with this model.
    pub(crate) fn linear_head(&self) -> Result<Linear, Error> {
        match &self.head {
            Some(head) => head.with_base(&mut shared),
            None => Ok(Linear {
                weight: Weight::Dense(self.embedding.weight.shallow_clone()),
                bias: None,
                compute: self.compute,
                adapter: None,
            }),
        }
    }

    /// Whether the head has an adapter or is trained in full.
    pub(crate) fn has_adapted_head(&self) -> bool {
        let head = self.head.as_ref().filter(|_| self.is_frozen);
        head.is_some_and(|head| {
            head.adapter.is_some() || head.weight.as_dense().is_some_and(Tensor::requires_grad)
        })
    }

    /// Number of tokens in the head's vocabulary.
    pub fn vocabulary(&self) -> i64 {
        self.embedding.weight.size()[0]
    }

    /// The head's matrix `[vocabulary, hidden]` if it is frozen and has no adapter: a loss then only needs
    /// the gradient with respect to its input.
    pub fn frozen_head(&self) -> Option<Tensor> {
        let weight = match &self.head {
            Some(Linear {
                adapter: Some(_), ..
            }) => return None,
            Some(head) => head.weight.as_dense()?,
            None => &self.embedding.weight,
        };
        (!weight.requires_grad()).then(|| weight.shallow_clone())
    }

    /// Logits after the last of `tokens`, which continue the cached sequence: `[batch, length]` to `[batch,
    /// vocabulary]` fp32.
    ///
    /// # Errors
    /// Those of [`Decoder::logits`], and if the cache is full.
    pub fn next_logits(&self, tokens: &Tensor, cache: &mut Cache) -> Result<Tensor, Error> {
        let stream = self.embedding.forward(tokens)?;
        let stream = self
            .blocks
            .forward_cached(stream, &self.positions, &mut cache.layers)?;
        self.head(
            &self.norm.forward(&stream.f_select(1, -1)?)?,
            Pass::Evaluate,
        )
    }

    /// An empty cache for sequences of `capacity` tokens.
    pub fn cache(&self, capacity: i64) -> Cache {
        let layers = (0..self.blocks.count()).map(|_| LayerCache::new(capacity));
        Cache {
            layers: layers.collect(),
        }
    }
}

/// Keys and values of the tokens so far.
#[derive(Debug)]
pub struct Cache {
    layers: Vec<LayerCache>,
}

impl Cache {
    /// Number of cached tokens.
    pub fn length(&self) -> i64 {
        self.layers.first().map_or(0, LayerCache::length)
    }
}

#[derive(Debug)]
pub(super) struct Layer {
    input_norm: RmsNorm,
    attention: Attention,
    post_norm: RmsNorm,
    feed_forward: FeedForward,
}

impl Layer {
    fn new(
        config: &DecoderConfig,
        index: usize,
        initial: Initial,
        builder: &mut Builder,
    ) -> Result<Self, Error> {
        let prefix = format!("model.layers.{index}");
        let (hidden, epsilon) = (config.hidden_size, config.rms_norm_eps);
        let name = |part: &str| format!("{prefix}.{part}");
        Ok(Self {
            input_norm: builder.norm(&name("input_layernorm"), hidden, epsilon)?,
            attention: Attention::new(config, &name("self_attn"), initial, builder)?,
            post_norm: builder.norm(&name("post_attention_layernorm"), hidden, epsilon)?,
            feed_forward: FeedForward::new(config, &name("mlp"), initial, builder)?,
        })
    }

    /// `[batch, length, hidden]` to the same shape. With a cache, the input continues the cached sequence.
    pub(super) fn run(
        &self,
        stream: &Tensor,
        positions: &Positions,
        cache: Option<&mut LayerCache>,
        dropout: bool,
    ) -> Result<Tensor, Error> {
        let normed = self.input_norm.forward(stream)?;
        let attended = self.attention.forward(&normed, positions, cache, dropout)?;
        let stream = stream.f_add(&attended)?;
        let normed = self.post_norm.forward(&stream)?;
        Ok(stream.f_add(&self.feed_forward.forward(&normed, dropout)?)?)
    }
}

impl blocks::Layer for Layer {
    type Shared = Positions;

    fn share(shared: &Positions) -> Positions {
        shared.shallow_clone()
    }

    fn forward(
        &self,
        inputs: &[Tensor],
        shared: &Positions,
        dropout: bool,
    ) -> Result<Tensor, Error> {
        let [stream] = inputs else {
            return Err(Error::Internal("a decoder's block takes one input".into()));
        };
        self.run(stream, shared, None, dropout)
    }

    fn with_base(&self, map: BaseMap<'_>) -> Result<Self, Error> {
        Ok(Self {
            input_norm: self.input_norm.with_base(map)?,
            attention: self.attention.with_base(map)?,
            post_norm: self.post_norm.with_base(map)?,
            feed_forward: self.feed_forward.with_base(map)?,
        })
    }
}

#[derive(Debug)]
struct FeedForward {
    gate: Linear,
    up: Linear,
    down: Linear,
}

impl FeedForward {
    fn new(
        config: &DecoderConfig,
        name: &str,
        initial: Initial,
        builder: &mut Builder,
    ) -> Result<Self, Error> {
        let (hidden, inner) = (config.hidden_size, config.intermediate_size);
        let mut linear = |suffix: &str, shape| {
            let name = format!("{name}.{suffix}");
            builder.linear(&name, shape, config.mlp_bias, initial)
        };
        Ok(Self {
            gate: linear("gate_proj", (hidden, inner))?,
            up: linear("up_proj", (hidden, inner))?,
            down: linear("down_proj", (inner, hidden))?,
        })
    }

    fn forward(&self, input: &Tensor, dropout: bool) -> Result<Tensor, Error> {
        let up = self.up.forward(input, dropout)?;
        let gated = self.gate.forward(input, dropout)?.f_silu()?.f_mul(&up)?;
        self.down.forward(&gated, dropout)
    }

    fn with_base(&self, map: BaseMap<'_>) -> Result<Self, Error> {
        Ok(Self {
            gate: self.gate.with_base(map)?,
            up: self.up.with_base(map)?,
            down: self.down.with_base(map)?,
        })
    }
}
