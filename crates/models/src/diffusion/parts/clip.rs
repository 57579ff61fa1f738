//! CLIP's text encoder: the tokens of a prompt to what its blocks know of it, and to one vector for all of it.
//!
//! ```text
//! tokens ─▶ embeddings + positions ─▶ ┌ block ┐ × layers ─▶ norm ─▶ row of the end token ─▶ matrix ─▶ vector
//!                                     └───────┘ before the last one ─▶ states
//! ```
//!
//! Tokens see those before them. There are always as many as there are positions: padding is seen, too.

mod config;
mod names;
mod tokens;

use tch::{Device, Kind, Tensor};

pub use config::{ClipActivation, ClipConfig};
pub use names::{OPEN_CLIP, TRANSFORMERS};
pub use tokens::ClipTokenizer;

use crate::Error;
use crate::diffusion::{self, Conditions, TEXT};
use crate::model::layers::{Embedding, LayerNorm, Linear};
use crate::model::{Blocks, Builder, Initial, Layer, Scoring, Sight, causal_attention};
use crate::tensor::{BaseMap, to_kind};

/// The name of the vector for all of a text: `[width]`, with a batch dimension in front for a batch.
pub const POOLED: &str = "pooled";

/// The linear layers of a block: names in transformers, twice.
pub const LAYERS: [(&str, &str); 6] = [
    ("self_attn.q_proj", "self_attn.q_proj"),
    ("self_attn.k_proj", "self_attn.k_proj"),
    ("self_attn.v_proj", "self_attn.v_proj"),
    ("self_attn.out_proj", "self_attn.out_proj"),
    ("mlp.fc1", "mlp.fc1"),
    ("mlp.fc2", "mlp.fc2"),
];

/// What is taken of an encoder.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Taken {
    /// The states before the last block, which is left out.
    States,
    /// These, and the vector behind the matrix.
    StatesAndVector,
    /// The vector behind the last norm alone.
    Vector,
}

/// An encoder whose states before the last block are taken, or the vector for all of a text.
#[derive(Debug)]
pub struct ClipText {
    config: ClipConfig,
    tokens: Embedding,
    positions: Tensor,
    blocks: Blocks<Block>,
    taken: Taken,
    /// The last norm, and perhaps a matrix, if there is a vector for all of the text.
    pooling: Option<(LayerNorm, Option<Linear>)>,
    compute: Kind,
    device: Device,
}

impl ClipText {
    /// Builds as much of the model on `device` as is `taken`, from weights whose names begin with `prefix`; blocks are streamed if
    /// `builder` is set up for it.
    ///
    /// # Errors
    /// If a weight is missing, or memory runs out.
    pub fn new(
        prefix: &str,
        config: &ClipConfig,
        taken: Taken,
        device: Device,
        builder: &mut Builder,
    ) -> Result<Self, Error> {
        let (width, initial) = (config.hidden_size, Initial::Normal(0.02));
        let table = format!("{prefix}embeddings.token_embedding");
        let (tokens, _) = builder.embedding(&table, &[config.vocab_size, width], initial, false)?;
        let positions = format!("{prefix}embeddings.position_embedding.weight");
        let shape = [config.max_position_embeddings, width];
        let positions = builder.matrix(&positions, &shape, initial, true)?;
        let count = config.num_hidden_layers as usize - usize::from(taken == Taken::States);
        let name = format!("{prefix}encoder.layers");
        let blocks = Blocks::new((&name, count), device, builder, |index, builder| {
            Block::new(config, &format!("{name}.{index}"), builder)
        })?;
        let pooling = match taken {
            Taken::States => None,
            _ => {
                let norm = format!("{prefix}final_layer_norm");
                let norm = builder.layer_norm(&norm, width, config.layer_norm_eps)?;
                let matrix = match taken {
                    Taken::StatesAndVector => Some(projection(prefix, config, builder)?),
                    _ => None,
                };
                Some((norm, matrix))
            }
        };
        builder.finish_blocks()?;
        Ok(Self {
            tokens,
            positions,
            blocks,
            taken,
            pooling,
            compute: builder.compute(),
            config: config.clone(),
            device,
        })
    }

    /// The states before the last block, `[tokens, width]`, and the vector for all of the text, `[projection]` or
    /// `[width]`, if the model was built with it; both in fp32.
    ///
    /// # Errors
    /// If there are no tokens or too many, or one is unknown; or if memory runs out.
    pub fn encode(&self, tokens: &[u32]) -> Result<(Tensor, Option<Tensor>), Error> {
        let ids: Vec<i64> = tokens.iter().map(|token| i64::from(*token)).collect();
        let (states, pooled) = self.encode_all(&[ids], false)?;
        let row = |tensor: Tensor| tensor.f_squeeze_dim(0);
        Ok((row(states)?, pooled.map(row).transpose()?))
    }

    /// The same of several texts of as many tokens: both have a batch dimension in front. With `dropout`, adapters learn.
    ///
    /// # Errors
    /// As [`ClipText::encode`].
    pub fn encode_all(
        &self,
        texts: &[Vec<i64>],
        dropout: bool,
    ) -> Result<(Tensor, Option<Tensor>), Error> {
        let config = &self.config;
        let length = texts.first().map_or(0, Vec::len);
        let unknown = texts
            .iter()
            .flatten()
            .find(|id| !(0..config.vocab_size).contains(*id));
        if length == 0 || length as i64 > config.max_position_embeddings || unknown.is_some() {
            return Err(Error::Invalid(format!(
                "a text of {length} tokens{}: from 1 to {} are encoded, of {} known ones",
                unknown.map_or(String::new(), |token| format!(", of which one is {token}")),
                config.max_position_embeddings,
                config.vocab_size
            )));
        }
        let positions = self.positions.f_narrow(0, 0, length as i64)?;
        let rows = Tensor::f_from_slice(&texts.concat())?.f_view([-1, length as i64])?;
        let rows = self.tokens.forward(&rows.f_to_device(self.device)?)?;
        let stream = to_kind(
            &rows.f_add(&to_kind(&positions, Kind::Float)?)?,
            self.compute,
        )?;
        let (mut states, count) = (None, self.blocks.count());
        let last = self.blocks.evaluate(stream, |block, index, stream| {
            if self.pooling.is_some() && index + 1 == count {
                states = Some(stream.shallow_clone());
            }
            block.forward(std::slice::from_ref(stream), &(), dropout)
        })?;
        let states = to_kind(states.as_ref().unwrap_or(&last), Kind::Float)?;
        let Some((norm, projection)) = &self.pooling else {
            return Ok((states, None));
        };
        let ends = texts.iter().enumerate().map(|(row, ids)| {
            let row = last.f_select(0, row as i64)?;
            Ok(row.f_select(0, config.end_of(ids) as i64)?)
        });
        let ends = ends.collect::<Result<Vec<_>, Error>>()?;
        let normed = norm.forward(&Tensor::f_stack(&ends, 0)?)?;
        let pooled = match projection {
            Some(matrix) => matrix.forward(&normed, false)?,
            None => normed,
        };
        Ok((states, Some(to_kind(&pooled, Kind::Float)?)))
    }
}

/// The matrix behind the last norm; OpenCLIP's files have it the other way round.
fn projection(prefix: &str, config: &ClipConfig, builder: &mut Builder) -> Result<Linear, Error> {
    let name = format!("{prefix}text_projection");
    let (width, outputs) = (config.hidden_size, config.projection_dim);
    let initial = Initial::Normal((width as f64).powf(-0.5));
    if !config.is_projection_transposed {
        return builder.linear(&name, (width, outputs), false, initial);
    }
    let weight = builder.matrix(&name, &[width, outputs], initial, true)?;
    Ok(Linear {
        weight: crate::weight::Weight::Dense(weight.f_tr()?),
        bias: None,
        compute: builder.compute(),
        adapter: None,
    })
}

impl diffusion::TextEncoder for ClipText {
    fn encode(&self, tokens: &[u32]) -> Result<Conditions, Error> {
        let (states, pooled) = self.encode(tokens)?;
        let mut conditions = Conditions::default();
        if self.taken != Taken::Vector {
            conditions.insert(TEXT, states);
        }
        if let Some(pooled) = pooled {
            conditions.insert(POOLED, pooled);
        }
        Ok(conditions)
    }
}

/// Attention to what came before and a feed-forward layer, each behind a norm.
#[derive(Debug)]
struct Block {
    norms: [LayerNorm; 2],
    /// Queries, keys, values, result.
    attention: [Linear; 4],
    feed_forward: [Linear; 2],
    heads: i64,
    activation: ClipActivation,
}

impl Block {
    fn new(config: &ClipConfig, name: &str, builder: &mut Builder) -> Result<Self, Error> {
        let (width, inner) = (config.hidden_size, config.intermediate_size);
        let part = |part: &str| format!("{name}.{part}");
        let mut linear = |suffix: &str, sizes: (i64, i64)| {
            let initial = Initial::Normal((sizes.0 as f64).powf(-0.5));
            builder.linear(&part(suffix), sizes, true, initial)
        };
        let attention = [
            linear("self_attn.q_proj", (width, width))?,
            linear("self_attn.k_proj", (width, width))?,
            linear("self_attn.v_proj", (width, width))?,
            linear("self_attn.out_proj", (width, width))?,
        ];
        let feed_forward = [
            linear("mlp.fc1", (width, inner))?,
            linear("mlp.fc2", (inner, width))?,
        ];
        let mut norm = |suffix| builder.layer_norm(&part(suffix), width, config.layer_norm_eps);
        Ok(Self {
            norms: [norm("layer_norm1")?, norm("layer_norm2")?],
            attention,
            feed_forward,
            heads: config.num_attention_heads,
            activation: config.hidden_act,
        })
    }
}

impl Layer for Block {
    type Shared = ();

    fn share((): &()) {}

    /// Input: the residual stream `[batch, tokens, width]`.
    fn forward(&self, inputs: &[Tensor], (): &(), dropout: bool) -> Result<Tensor, Error> {
        let [stream] = inputs else {
            return Err(Error::Internal("a block takes the stream alone".into()));
        };
        let (batch, length, width) = stream.size3()?;
        let normed = self.norms[0].forward(stream)?;
        let [query, key, value, output] = &self.attention;
        let heads = |linear: &Linear| -> Result<Tensor, Error> {
            let rows = linear.forward(&normed, dropout)?;
            let split = rows.f_reshape([batch, length, self.heads, width / self.heads])?;
            Ok(split.f_transpose(1, 2)?)
        };
        let (query, key, value) = (heads(query)?, heads(key)?, heads(value)?);
        let mixed = causal_attention(
            [&query, &key, &value],
            &Sight::default(),
            Scoring::default(),
        )?;
        let joined = mixed.f_transpose(1, 2)?.f_reshape([batch, length, width])?;
        let stream = stream.f_add(&output.forward(&joined, dropout)?)?;
        let [first, second] = &self.feed_forward;
        let inner = first.forward(&self.norms[1].forward(&stream)?, dropout)?;
        let inner = self.activation.of(&inner)?;
        Ok(stream.f_add(&second.forward(&inner, dropout)?)?)
    }

    fn with_base(&self, map: BaseMap<'_>) -> Result<Self, Error> {
        let [query, key, value, output] = &self.attention;
        Ok(Self {
            norms: [self.norms[0].with_base(map)?, self.norms[1].with_base(map)?],
            attention: [
                query.with_base(map)?,
                key.with_base(map)?,
                value.with_base(map)?,
                output.with_base(map)?,
            ],
            feed_forward: [
                self.feed_forward[0].with_base(map)?,
                self.feed_forward[1].with_base(map)?,
            ],
            heads: self.heads,
            activation: self.activation,
        })
    }
}
