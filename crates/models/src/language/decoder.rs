//! The decoder-only transformer that a [`DecoderConfig`] describes.
//!
//! ```text
//! tokens ─▶ embedding ─▶ ┌ norm ─▶ attention ─▶ + ─▶ norm ─▶ feed-forward ─▶ + ┐ ─▶ norm ─▶ head ─▶ logits
//!                        └────────────────── × layers ────────────────────────┘
//! ```
//!
//! RMS norms before attention and feed-forward layer, after them, or both; rotary positions, causal
//! grouped-query attention, in some blocks with a window or replaced by a gated delta rule, and a gated feed-forward layer. Weights have the names
//! and shapes of `transformers`, which can load what is saved here.

use placement::swap::SwapReport;
use tch::{Device, Kind, Tensor};
use torch_ext::accelerator::{self, DeviceIndex, MemoryInfo};

use super::attention::LayerCache;
use super::block::{Inputs, Layer, Views, scaled};
use super::mixture::{Balance, Mixture};
use super::norm::Norm;
use super::per_layer::PerLayer;
use super::{DecoderConfig, EmbeddingScale};
use crate::Error;
use crate::adapters::{EMBEDDING, HEAD};
use crate::model::layers::{Embedding, Linear, Positions, Rope};
use crate::model::{BlockList, Blocks, Builder, Initial, Pass, RopeScaling, RopeSettings, Sight};
use crate::tensor::{frozen_bytes, shared, to_kind};
use crate::weight::Weight;

/// The model. Its trainable tensors are in the [`Parameters`](crate::Parameters) it was built with.
#[derive(Debug)]
pub struct Decoder {
    embedding: Embedding,
    embedding_scale: f64,
    noise: EmbeddingNoise,
    logits_divisor: f64,
    /// What logits are between (see [`capped`]).
    pub(crate) logits_cap: Option<f64>,
    per_layer: Option<PerLayer>,
    blocks: Blocks<Layer>,
    norm: Norm,
    /// `None` if the head uses the embedding's weight as it is.
    head: Option<Linear>,
    views: Views,
    /// What the routers of experts learn beside the text, if anything.
    balance: Option<Balance>,
    compute: Kind,
    /// Logits that a loss computes at a time, as many as suit the device that the model was built for.
    pub logits_at_once: i64,
}

/// Noise that embeddings have in training (NEFTune).
#[derive(Debug, Clone, Copy)]
struct EmbeddingNoise {
    /// Its strength; 0 for none.
    alpha: f64,
    /// Whether embeddings are multiplied by their scale after it was added: transformers adds it to what the layer gives.
    is_scaled: bool,
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

/// Logits that a loss computes at a time on `device`. The head is read once for each chunk, so a GPU computes as many as take a
/// 64th of its memory in fp32 (rounded down to a power of two, at most 512 MB). The CPU, whose caches are small, computes 32 MB,
/// or 256 rows of a `vocabulary` for which that is less: reading a head of 262,144 rows for 32 tokens at a time took twice as long.
fn logits_at_once(device: Device, vocabulary: i64) -> i64 {
    const FEWEST: i64 = 1 << 23;
    const MOST: i64 = 1 << 27;
    let memory = DeviceIndex::try_from(device).and_then(accelerator::memory_info);
    let elements = memory.map_or(256 * vocabulary, |memory: MemoryInfo| {
        1 << (memory.total / 64 / 4).max(1).ilog2()
    });
    elements.clamp(FEWEST, MOST)
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
        let (mut embedding, tied_head) =
            builder.embedding(EMBEDDING, &[vocabulary, hidden], initial, tied)?;
        let padding = config
            .pad_token_id
            .filter(|token| (0..vocabulary).contains(token));
        embedding.padding = padding.unwrap_or(-1);
        let place = (options.device, embedding.padding);
        let per_layer = config.per_layer;
        let per_layer =
            per_layer.map(|inputs| PerLayer::new(config, inputs, place, initial, builder));
        let count = usize::try_from(config.num_hidden_layers).unwrap_or(0);
        let blocks = Blocks::new(
            ("model.layers", count),
            options.device,
            builder,
            |index, builder| Layer::new(config, index, initial, builder),
        )?;
        builder.finish_blocks()?;
        let norm = Norm::new(config, "model.norm", hidden, builder)?;
        let head = match tied {
            true => tied_head,
            false => Some(builder.linear(HEAD, (hidden, vocabulary), false, initial)?),
        };
        let positions = |rope: &RopeSettings, window: Option<i64>| -> Result<Positions, Error> {
            let (_, head_dim) = config.heads(window.is_some());
            let table = |frequencies: &[f64]| -> Result<Rope, Error> {
                let factor = rope.attention_factor();
                let table = Rope::new(frequencies, factor, options.positions, options.device)?;
                match rope
                    .query_growth
                    .filter(|growth| growth.context < options.positions as f64)
                {
                    Some(growth) => table.growing(growth.rate, growth.context),
                    None => Ok(table),
                }
            };
            let long = rope.long_frequencies(head_dim);
            let long = long.filter(|(most, _)| *most < options.positions);
            Ok(Positions {
                rope: table(&rope.frequencies(head_dim))?,
                long: match long {
                    Some((most, frequencies)) => Some((most, table(&frequencies)?)),
                    None => None,
                },
                sight: Sight {
                    window,
                    ..Sight::default()
                },
            })
        };
        Ok(Self {
            embedding_scale: match config.embedding_scale {
                EmbeddingScale::Number(scale) => scale,
                // As in transformers, which stores it as a number of the embedding's type.
                EmbeddingScale::RootOfWidth => {
                    rounded((hidden as f64).sqrt(), embedding.weight.kind())?
                }
            },
            noise: EmbeddingNoise {
                alpha: 0.0,
                is_scaled: matches!(config.embedding_scale, EmbeddingScale::Number(_)),
            },
            logits_divisor: config.logits_divisor,
            logits_cap: config.logits_cap,
            per_layer: per_layer.transpose()?,
            embedding,
            blocks,
            norm,
            head,
            views: Views {
                whole: positions(&config.rope, None)?,
                local: match &config.local {
                    Some(local) => Some(positions(&local.rope, Some(local.window))?),
                    None => None,
                },
                texts: None,
                counted: None,
            },
            balance: config.experts.as_ref().and_then(Mixture::balance),
            compute: builder.compute(),
            logits_at_once: logits_at_once(options.device, vocabulary),
        })
    }

    /// Whether to offload the activation checkpoints of each block to host memory.
    pub fn offload_activations(&mut self, offload: bool) {
        self.blocks.offload_activations(offload);
    }

    /// Adds uniform noise to embeddings in training: of a sequence of `n` tokens, up to `alpha` over the root of `n` times the
    /// width (NEFTune; Jain et al., 2023).
    pub fn add_noise(&mut self, alpha: f64) {
        self.noise.alpha = alpha;
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
        let mut rest = head.map_or(0, frozen_bytes) + frozen_bytes(self.norm.weight());
        if let Some(layer) = &self.per_layer {
            rest += layer.bytes()?;
        }
        Ok(frozen_bytes(table) + rest + self.rope_bytes() + self.blocks.bytes()?)
    }

    /// Bytes of the rotary tables that all blocks use.
    pub fn rope_bytes(&self) -> u64 {
        let local = self.views.local.as_ref();
        self.views.whole.bytes() + local.map_or(0, Positions::bytes)
    }

    /// Statistics of streaming, if blocks are streamed.
    pub fn streamed(&self) -> Option<SwapReport> {
        self.blocks.report()
    }

    /// The sizes and types of the frozen tensors of block `index`, in the order of `BaseMap`.
    ///
    /// # Errors
    /// If libtorch fails to create a handle to a tensor.
    pub fn block_sizes(&self, index: usize) -> Result<Vec<(Vec<i64>, Kind)>, Error> {
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
        let length = tokens.size2()?.1;
        let views = self
            .views
            .map(|positions| positions.of_length((0, length), self.compute))?;
        self.through(tokens, &views, pass)
    }

    /// The head's input, for tokens with these positions.
    fn through(&self, tokens: &Tensor, views: &Views, pass: Pass) -> Result<Tensor, Error> {
        self.finish(&self.run(tokens, None, views, pass)?[0])
    }

    /// What leaves the last block: the residual stream, and the routers' `sums` if their balance is learned.
    fn run(
        &self,
        tokens: &Tensor,
        sums: Option<Tensor>,
        views: &Views,
        pass: Pass,
    ) -> Result<Vec<Tensor>, Error> {
        let stream = self.embed(tokens, pass)?;
        let parts = self.parts(tokens, &stream, pass)?;
        let part = |index: usize| parts.get(index).map(Tensor::shallow_clone);
        let mut start = vec![stream];
        start.extend(sums);
        let part = |index| part(index).into_iter().collect();
        self.blocks.carry(start, &part, views, pass)
    }

    /// The blocks' parts of the per-layer embeddings; none if there are no such embeddings.
    fn parts(&self, tokens: &Tensor, embedded: &Tensor, pass: Pass) -> Result<Vec<Tensor>, Error> {
        match &self.per_layer {
            Some(layer) => layer.parts(tokens, embedded, pass != Pass::Evaluate),
            None => Ok(Vec::new()),
        }
    }

    /// The residual stream after the last block, without gradients, of tokens whose embeddings are `stream`; `see` gets the index of each block and the stream before
    /// it. With a cache, the tokens continue the cached sequence.
    fn evaluate(
        &self,
        (tokens, stream): (&Tensor, Tensor),
        views: &Views,
        mut cache: Option<&mut Cache>,
        mut see: impl FnMut(usize, &Tensor),
    ) -> Result<Tensor, Error> {
        let parts = self.parts(tokens, &stream, Pass::Evaluate)?;
        let mut handed_on = Vec::new();
        self.blocks.evaluate(stream, |layer, index, stream| {
            see(index, stream);
            let inputs = Inputs {
                stream,
                handed_on: &handed_on,
                part: parts.get(index),
            };
            let layers = cache.as_mut().map(|cache| &mut cache.layers);
            let cache = layers.and_then(|layers| layers.get_mut(index));
            let given = layer.run(inputs, views, cache, false)?;
            handed_on.extend(given.handed_on);
            Ok(given.stream)
        })
    }

    /// The residual stream before each block and after the last, without the final norm, of tokens `[batch, length]`:
    /// those that `wanted` lists, in its order, `[batch, length, hidden]` fp32. Blocks after the last of them are not
    /// computed only if the model was built without them. If rows are texts of `text` tokens that are filled up, what
    /// fills them up sees only the text.
    ///
    /// # Errors
    /// As [`Decoder::logits`]; or if there is no such state.
    pub fn states(
        &self,
        tokens: &Tensor,
        text: Option<i64>,
        wanted: &[usize],
    ) -> Result<Vec<Tensor>, Error> {
        let length = tokens.size2()?.1;
        let views = self.views.map(|positions| match text {
            Some(text) => positions.filled(text, length, self.compute),
            None => positions.of_length((0, length), self.compute),
        })?;
        let stream = self.embed(tokens, Pass::Evaluate)?;
        self.states_of((tokens, stream), &views, wanted)
    }

    /// As [`Decoder::states`], for one text in which the embeddings of the tokens at `places`, integers `[count]`, are
    /// `rows` `[count, hidden]`, and whose tokens have several positions: `positions` `[kinds, length]`, by which the
    /// frequencies of [`Rope::in_sections`] turn.
    ///
    /// # Errors
    /// As [`Decoder::logits`].
    pub fn states_with(
        &self,
        tokens: &Tensor,
        (places, rows): (&Tensor, &Tensor),
        (positions, sections): (&Tensor, &[i64]),
        wanted: &[usize],
    ) -> Result<Vec<Tensor>, Error> {
        let views = (self.views).map(|view| view.in_sections(positions, sections, self.compute))?;
        let stream = self.embed(tokens, Pass::Evaluate)?;
        let rows = to_kind(rows, stream.kind())?.f_unsqueeze(0)?;
        let stream = stream.f_index_copy(1, places, &rows)?;
        self.states_of((tokens, stream), &views, wanted)
    }

    fn states_of(
        &self,
        (tokens, stream): (&Tensor, Tensor),
        views: &Views,
        wanted: &[usize],
    ) -> Result<Vec<Tensor>, Error> {
        let mut states = Vec::with_capacity(self.blocks.count() + 1);
        let last = self.evaluate((tokens, stream), views, None, |index, stream| {
            states.push(wanted.contains(&index).then(|| stream.shallow_clone()));
        })?;
        states.push(Some(last));
        let state = |index: &usize| {
            let state = states.get(*index).and_then(Option::as_ref);
            state
                .map(Tensor::shallow_clone)
                .ok_or_else(|| Error::Internal(format!("a decoder without state {index}")))
        };
        wanted.iter().map(state).collect()
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
        let views = self.views.packed(positions, self.compute)?;
        self.through(tokens, &views, pass)
    }

    /// What is learned from: the head's input, as [`Decoder::hidden`] or with `positions` as [`Decoder::hidden_packed`];
    /// and if the model has routers whose balance is learned (`output_router_logits`), that part of the loss, a
    /// scalar. There, only tokens count that are not zero in `real` (`[batch, length]`), if it is given: not padding.
    ///
    /// # Errors
    /// As [`Decoder::logits`].
    pub fn learned(
        &self,
        tokens: &Tensor,
        (positions, real): (Option<&Tensor>, Option<&Tensor>),
        pass: Pass,
    ) -> Result<(Tensor, Option<Tensor>), Error> {
        let Some(balance) = &self.balance else {
            let hidden = match positions {
                Some(positions) => self.hidden_packed(tokens, positions, pass)?,
                None => self.hidden(tokens, pass)?,
            };
            return Ok((hidden, None));
        };
        let length = tokens.size2()?.1;
        let mut views = match positions {
            Some(positions) => self.views.packed(positions, self.compute)?,
            None => {
                let place = (0, length);
                (self.views).map(|view| view.of_length(place, self.compute))?
            }
        };
        let counted = match real {
            Some(real) => real.f_ne(0)?.f_to_kind(Kind::Float)?,
            None => tokens.f_ones_like()?.f_to_kind(Kind::Float)?,
        };
        let counted = counted.f_reshape([-1])?;
        views.counted = Some(counted.shallow_clone());
        let start = balance.start(tokens.device())?;
        match &self.run(tokens, Some(start), &views, pass)?[..] {
            [stream, sums, ..] => Ok((self.finish(stream)?, Some(balance.loss(sums, &counted)?))),
            _ => Err(Error::Internal("blocks that hand on no balance".into())),
        }
    }

    /// The first block's input.
    fn embed(&self, tokens: &Tensor, pass: Pass) -> Result<Tensor, Error> {
        let rows = self.embedding.forward(tokens)?;
        let EmbeddingNoise { alpha, is_scaled } = self.noise;
        if alpha == 0.0 || pass == Pass::Evaluate {
            return scaled(rows, self.embedding_scale);
        }
        let noisy = |rows: Tensor| -> Result<Tensor, Error> {
            let numbers = rows.size().iter().skip(1).product::<i64>();
            let most = alpha / (numbers as f64).sqrt();
            Ok(rows.f_add(&rows.f_zeros_like()?.f_uniform_(-most, most)?)?)
        };
        match is_scaled {
            true => scaled(noisy(rows)?, self.embedding_scale),
            false => noisy(scaled(rows, self.embedding_scale)?),
        }
    }

    /// The head's input for the last block's output. Logits are linear in it, so what divides them divides it.
    pub(crate) fn finish(&self, stream: &Tensor) -> Result<Tensor, Error> {
        scaled(self.norm.forward(stream)?, 1.0 / self.logits_divisor)
    }

    /// Logits in fp32 for the output of [`Decoder::hidden`], or for some of its rows.
    ///
    /// # Errors
    /// If memory runs out.
    pub fn head(&self, hidden: &Tensor, pass: Pass) -> Result<Tensor, Error> {
        let logits = self
            .linear_head()?
            .forward(hidden, pass != Pass::Evaluate)?;
        capped(&to_kind(&logits, Kind::Float)?, self.logits_cap)
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
        let tokens = self.to_compute(tokens, cache)?;
        let places = (cache.length(), tokens.size2()?.1);
        let views = self
            .views
            .map(|positions| positions.of_length(places, self.compute))?;
        let stream = self.embed(&tokens, Pass::Evaluate)?;
        let stream = self.evaluate((&tokens, stream), &views, Some(cache), |_, _| ())?;
        self.head(&self.finish(&stream.f_select(1, -1)?)?, Pass::Evaluate)
    }

    /// The tokens that have to be computed for `tokens`: all of the text once it is longer than the context within
    /// which its rotations were others.
    fn to_compute(&self, tokens: &Tensor, cache: &mut Cache) -> Result<Tensor, Error> {
        let Some((most, _)) = self.views.whole.long else {
            return Ok(tokens.shallow_clone());
        };
        let text = match cache.text.take() {
            Some(before) => Tensor::f_cat(&[&before, tokens], 1)?,
            None => tokens.shallow_clone(),
        };
        cache.text = Some(text.shallow_clone());
        if cache.length() <= most && text.size2()?.1 > most {
            cache.layers.iter_mut().for_each(LayerCache::clear);
            return Ok(text);
        }
        Ok(tokens.shallow_clone())
    }

    /// An empty cache for sequences of `capacity` tokens.
    pub fn cache(&self, capacity: i64) -> Cache {
        let layers = (0..self.blocks.count()).map(|_| LayerCache::new(capacity));
        Cache {
            layers: layers.collect(),
            text: None,
        }
    }
}

/// What the blocks remember of the tokens so far.
#[derive(Debug)]
pub struct Cache {
    layers: Vec<LayerCache>,
    /// The tokens, if they may have to be computed again.
    text: Option<Tensor>,
}

impl Cache {
    /// Number of cached tokens.
    pub fn length(&self) -> i64 {
        self.layers.first().map_or(0, LayerCache::length)
    }
}

/// Logits between `cap` and its negative, if there is one: `cap` times the tanh of their share of it.
pub(crate) fn capped(logits: &Tensor, cap: Option<f64>) -> Result<Tensor, Error> {
    Ok(match cap {
        Some(cap) => logits.f_div_scalar(cap)?.f_tanh()?.f_mul_scalar(cap)?,
        None => logits.shallow_clone(),
    })
}

/// `number` as it is in the type `kind`.
pub(super) fn rounded(number: f64, kind: Kind) -> Result<f64, Error> {
    let rounded = Tensor::from(number).f_to_kind(kind)?;
    Ok(f64::try_from(&rounded.f_to_kind(Kind::Double)?)?)
}
