//! The conditioner: what a language model knows of a prompt, as rows for T5's tokens of the same prompt.
//!
//! ```text
//! T5's tokens ─▶ embedding ─▶ ┌ self-attention ─▶ cross-attention to the states ─▶ feed-forward ┐ ─▶ linear ─▶ norm
//!                             └──────────────────────────── × layers ──────────────────────────┘
//! ```

use std::cell::Cell;

use tch::{Device, Kind, Tensor};

use super::config::ConditionerConfig;
use super::layers::{Attention, AttentionSizes, initial};
use crate::Error;
use crate::diffusion::parts::rotary::Rotary;
use crate::model::layers::{Embedding, Linear, RmsNorm};
use crate::model::{BlockList, Blocks, Builder, Initial, Layer, Pass};
use crate::tensor::{BaseMap, to_kind};

/// Base of the rotary frequencies.
const THETA: f64 = 10_000.0;

/// Of all norms.
const EPSILON: f64 = 1e-6;

/// Names of the parts of an attention.
const ATTENTION: [&str; 6] = ["q_proj", "k_proj", "v_proj", "o_proj", "q_norm", "k_norm"];

#[derive(Debug)]
pub(super) struct Conditioner {
    config: ConditionerConfig,
    embedding: Embedding,
    blocks: Blocks<Block>,
    output: Linear,
    norm: RmsNorm,
    /// Whether anything in it is trained.
    is_trained: bool,
    compute: Kind,
    device: Device,
}

impl Conditioner {
    pub(super) fn new(
        config: &ConditionerConfig,
        device: Device,
        builder: &mut Builder,
    ) -> Result<Self, Error> {
        let part = |part: &str| format!("text_conditioner.{part}");
        let width = config.target_dim;
        let table = [config.target_vocab_size, width];
        let (embedding, _) =
            builder.embedding(&part("embed"), &table, Initial::Normal(0.02), false)?;
        let count = usize::try_from(config.num_layers).unwrap_or(0);
        let is_trained = Cell::new(!builder.is_frozen());
        let list = part("blocks");
        let blocks = Blocks::new((&list, count), device, builder, |index, builder| {
            let block = Block::new(config, &format!("{list}.{index}"), builder)?;
            is_trained.set(is_trained.get() || block.is_adapted());
            Ok(block)
        })?;
        Ok(Self {
            embedding,
            blocks,
            output: builder.linear(&part("out_proj"), (width, width), true, initial(width))?,
            norm: builder.norm(&part("norm"), width, EPSILON)?,
            is_trained: is_trained.get(),
            compute: builder.compute(),
            config: config.clone(),
            device,
        })
    }

    pub(super) fn blocks(&self) -> &dyn BlockList {
        &self.blocks
    }

    /// The text for the transformer, `[batch, rows, width]` fp32, of the states `[batch, n, source width]`, of which as
    /// many count as `lengths` `[batch]` says, and of T5's tokens `[batch, m]`, which are −1 behind a shorter text.
    pub(super) fn forward(
        &self,
        (states, lengths): (&Tensor, &Tensor),
        tokens: &Tensor,
        pass: Pass,
    ) -> Result<Tensor, Error> {
        self.check(states, tokens)?;
        // Without gradients, the text is an input like the latents.
        let _frozen = (!self.is_trained).then(tch::no_grad_guard);
        let pass = if self.is_trained {
            pass
        } else {
            Pass::Evaluate
        };
        let dropout = pass != Pass::Evaluate;
        let ids = tokens.f_to_device(self.device)?.f_to_kind(Kind::Int64)?;
        let is_token = ids.f_ge(0)?;
        let states = to_kind(&states.f_to_device(self.device)?, self.compute)?;
        let rows = Tensor::f_arange(states.size3()?.1, (Kind::Float, self.device))?;
        let lengths = lengths.f_to_device(self.device)?.f_view([-1, 1])?;
        let seen = |mask: &Tensor| mask.f_unsqueeze(1)?.f_unsqueeze(1);
        let shared = Shared {
            positions: [&ids, &states]
                .map(|of| self.positions(of.size()[1]))
                .into_iter()
                .collect::<Result<Vec<_>, _>>()?
                .try_into()
                .map_err(|_| Error::Internal("positions of two sequences".into()))?,
            seen: [
                seen(&is_token)?,
                seen(&rows.f_unsqueeze(0)?.f_lt_tensor(&lengths)?)?,
            ],
        };
        let stream = self.embedding.forward(&ids.f_clamp_min(0)?)?;
        let stream = to_kind(&stream, self.compute)?;
        let stream = self.blocks.forward(stream, &[states], &shared, pass)?;
        let text = self.norm.forward(&self.output.forward(&stream, dropout)?)?;
        let text = text.f_mul(&to_kind(&is_token, Kind::Float)?.f_unsqueeze(2)?)?;
        let missing = self.config.min_sequence_length - text.size3()?.1;
        match missing > 0 {
            true => Ok(text.f_constant_pad_nd([0, 0, 0, missing])?),
            false => Ok(text),
        }
    }

    fn positions(&self, length: i64) -> Result<Rotary, Error> {
        let positions = Tensor::f_arange(length, (Kind::Double, Device::Cpu))?.f_unsqueeze(0)?;
        Rotary::of_halves(&[(positions, self.config.head_dim(), THETA)], self.device)
    }

    /// Refuses tokens that the table does not have: looking one up fails, on a GPU without a message.
    fn check(&self, states: &Tensor, tokens: &Tensor) -> Result<(), Error> {
        let (batch, rows, width) = states.size3()?;
        let (texts, count) = tokens.size2()?;
        let most = match tokens.numel() {
            0 => -1,
            _ => tokens.f_max()?.f_int64_value(&[])?,
        };
        let config = &self.config;
        let fits = texts == batch && rows > 0 && count > 0 && width == config.source_dim;
        match fits && most < config.target_vocab_size {
            true => Ok(()),
            false => Err(Error::Invalid(format!(
                "states of shape [{batch}, {rows}, {width}] and [{texts}, {count}] tokens of T5 up to {most}: this model \
                 takes states of width {}, and for each text at least one token, of {}",
                config.source_dim, config.target_vocab_size
            ))),
        }
    }
}

/// Input that all blocks share, for the text's tokens and for the states.
#[derive(Debug)]
pub(super) struct Shared {
    positions: [Rotary; 2],
    /// `[batch, 1, 1, rows]`: which count.
    seen: [Tensor; 2],
}

/// Self-attention, cross-attention to the language model's states, and a feed-forward layer.
#[derive(Debug)]
pub(super) struct Block {
    /// Before each of the three.
    norms: [RmsNorm; 3],
    to_itself: Attention,
    to_states: Attention,
    up: Linear,
    down: Linear,
}

impl Block {
    fn new(config: &ConditionerConfig, name: &str, builder: &mut Builder) -> Result<Self, Error> {
        let part = |part: &str| format!("{name}.{part}");
        let (width, inner) = (config.target_dim, config.inner());
        let attention = |name: &str, source: i64, builder: &mut Builder| {
            let sizes = AttentionSizes {
                width,
                source,
                heads: config.num_attention_heads,
                epsilon: EPSILON,
            };
            let names = ATTENTION.map(|of| part(&format!("{name}.{of}")));
            Attention::new(&sizes, &names, builder)
        };
        Ok(Self {
            norms: [
                builder.norm(&part("norm_self_attn"), width, EPSILON)?,
                builder.norm(&part("norm_cross_attn"), width, EPSILON)?,
                builder.norm(&part("norm_mlp"), width, EPSILON)?,
            ],
            to_itself: attention("self_attn", width, builder)?,
            to_states: attention("cross_attn", config.source_dim, builder)?,
            up: builder.linear(&part("mlp.0"), (width, inner), true, initial(width))?,
            down: builder.linear(&part("mlp.2"), (inner, width), true, initial(inner))?,
        })
    }

    fn is_adapted(&self) -> bool {
        let linears = [&self.up, &self.down];
        let attentions = [&self.to_itself, &self.to_states];
        linears.iter().any(|linear| linear.adapter.is_some())
            || attentions.iter().any(|attention| attention.is_adapted())
    }
}

impl Layer for Block {
    type Shared = Shared;

    fn share(shared: &Shared) -> Shared {
        Shared {
            positions: shared.positions.each_ref().map(Rotary::shallow_clone),
            seen: shared.seen.each_ref().map(Tensor::shallow_clone),
        }
    }

    /// Inputs: the residual stream `[batch, tokens, width]`, and the language model's states.
    fn forward(&self, inputs: &[Tensor], shared: &Shared, dropout: bool) -> Result<Tensor, Error> {
        let [stream, states] = inputs else {
            let reason = "a block of the conditioner takes the stream and the states";
            return Err(Error::Internal(reason.into()));
        };
        let normed = |number: usize, stream: &Tensor| {
            let normed = self.norms[number].forward(stream)?;
            to_kind(&normed, stream.kind())
        };
        let [of_tokens, of_states] = &shared.positions;
        let [tokens, known] = &shared.seen;
        let positions = Some((of_tokens, of_tokens));
        let change =
            self.to_itself
                .forward(normed(0, stream)?, None, positions, Some(tokens), dropout)?;
        let stream = stream.f_add(&change)?;
        let positions = Some((of_tokens, of_states));
        let input = normed(1, &stream)?;
        let change =
            self.to_states
                .forward(input, Some(states), positions, Some(known), dropout)?;
        let stream = stream.f_add(&change)?;
        let inner = self.up.forward(&normed(2, &stream)?, dropout)?;
        let change = self.down.forward(&inner.f_gelu("none")?, dropout)?;
        Ok(stream.f_add(&change)?)
    }

    fn with_base(&self, map: BaseMap<'_>) -> Result<Self, Error> {
        let [first, second, third] = &self.norms;
        Ok(Self {
            norms: [
                first.with_base(map)?,
                second.with_base(map)?,
                third.with_base(map)?,
            ],
            to_itself: self.to_itself.with_base(map)?,
            to_states: self.to_states.with_base(map)?,
            up: self.up.with_base(map)?,
            down: self.down.with_base(map)?,
        })
    }
}
