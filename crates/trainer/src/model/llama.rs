//! A decoder-only transformer of the Llama family.
//!
//! ```text
//! tokens ─▶ embedding ─▶ ┌ norm ─▶ attention ─▶ + ─▶ norm ─▶ feed-forward ─▶ + ┐ ─▶ norm ─▶ head ─▶ logits
//!                        └────────────────── × layers ────────────────────────┘
//! ```
//!
//! Pre-norm with RMSNorm, rotary positions, causal attention with grouped heads, and
//! SwiGLU. Names and shapes of the weights are those of `LlamaForCausalLM`, so that
//! what is saved here opens there.

use tch::{Device, Kind, Tensor};

use super::layers::{Linear, RmsNorm, Rope, to_kind};
use super::{Initial, Parameters, WeightSource};
use crate::Error;
use crate::config::ModelConfig;

/// The model. Its trainable tensors are in the [`Parameters`] it was built with.
#[derive(Debug)]
pub struct Llama {
    embedding: Tensor,
    layers: Vec<Layer>,
    norm: RmsNorm,
    /// Unset when the head shares the embedding's weight.
    head: Option<Linear>,
    rope: Rope,
    compute: Kind,
}

/// What a model is besides its config.
#[derive(Debug, Clone, Copy)]
pub struct LlamaOptions {
    /// Number of tokens in the vocabulary.
    pub vocab_size: i64,
    /// The longest sequence it will see.
    pub positions: i64,
    /// The type of matrix products: fp32 or bf16.
    pub compute: Kind,
    /// Where it computes.
    pub device: Device,
}

impl Llama {
    /// Builds the model from a source of weights and registers what is trained.
    ///
    /// # Errors
    /// When the source lacks a weight, or memory runs out.
    pub fn new(
        config: &ModelConfig,
        options: LlamaOptions,
        source: &mut dyn WeightSource,
        parameters: &mut Parameters,
    ) -> Result<Self, Error> {
        let hidden = i64::from(config.hidden_size);
        let initial = Initial::Normal(config.initializer_range);
        let name = "model.embed_tokens.weight";
        let embedding = source.tensor(name, &[options.vocab_size, hidden], initial)?;
        let embedding = parameters.register(name, &embedding, false)?;
        let layers = (0..config.num_hidden_layers)
            .map(|index| Layer::new(config, index, options.compute, source, parameters))
            .collect::<Result<_, _>>()?;
        let norm = RmsNorm::new(
            "model.norm",
            hidden,
            config.rms_norm_eps,
            source,
            parameters,
        )?;
        let head = if config.tie_word_embeddings {
            None
        } else {
            let shape = (hidden, options.vocab_size);
            Some(Linear::new(
                "lm_head",
                shape,
                initial,
                options.compute,
                source,
                parameters,
            )?)
        };
        let width = i64::from(config.head_dim());
        let rope = Rope::new(config.rope_theta, width, options.positions, options.device)?;
        Ok(Self {
            embedding,
            layers,
            norm,
            head,
            rope,
            compute: options.compute,
        })
    }

    /// Logits for the token after each of `tokens`.
    ///
    /// `[batch, length]` whole numbers to `[batch, length, vocabulary]` fp32.
    ///
    /// # Errors
    /// When a token is not in the vocabulary, the sequence is too long, or memory runs out.
    pub fn logits(&self, tokens: &Tensor) -> Result<Tensor, Error> {
        let mut stream = Tensor::f_embedding(&self.embedding, tokens, -1, false, false)?;
        for layer in &self.layers {
            stream = layer.forward(&stream, &self.rope)?;
        }
        let stream = self.norm.forward(&stream)?;
        let logits = match &self.head {
            Some(head) => head.forward(&stream)?,
            None => to_kind(&stream, self.compute)?
                .f_linear(&to_kind(&self.embedding, self.compute)?, None::<&Tensor>)?,
        };
        to_kind(&logits, Kind::Float)
    }
}

#[derive(Debug)]
struct Layer {
    input_norm: RmsNorm,
    attention: Attention,
    post_norm: RmsNorm,
    feed_forward: FeedForward,
}

impl Layer {
    fn new(
        config: &ModelConfig,
        index: u32,
        compute: Kind,
        source: &mut dyn WeightSource,
        parameters: &mut Parameters,
    ) -> Result<Self, Error> {
        let prefix = format!("model.layers.{index}");
        let (hidden, epsilon) = (i64::from(config.hidden_size), config.rms_norm_eps);
        let norm = |name: &str, parameters: &mut Parameters, source: &mut dyn WeightSource| {
            RmsNorm::new(
                &format!("{prefix}.{name}"),
                hidden,
                epsilon,
                source,
                parameters,
            )
        };
        let input_norm = norm("input_layernorm", parameters, source)?;
        let name = format!("{prefix}.self_attn");
        let attention = Attention::new(config, &name, compute, source, parameters)?;
        let post_norm = norm("post_attention_layernorm", parameters, source)?;
        let name = format!("{prefix}.mlp");
        let feed_forward = FeedForward::new(config, &name, compute, source, parameters)?;
        Ok(Self {
            input_norm,
            attention,
            post_norm,
            feed_forward,
        })
    }

    fn forward(&self, stream: &Tensor, rope: &Rope) -> Result<Tensor, Error> {
        let attended = self
            .attention
            .forward(&self.input_norm.forward(stream)?, rope)?;
        let stream = stream.f_add(&attended)?;
        let fed = self
            .feed_forward
            .forward(&self.post_norm.forward(&stream)?)?;
        Ok(stream.f_add(&fed)?)
    }
}

#[derive(Debug)]
struct Attention {
    query: Linear,
    key: Linear,
    value: Linear,
    output: Linear,
    heads: i64,
    key_value_heads: i64,
    width: i64,
}

impl Attention {
    fn new(
        config: &ModelConfig,
        name: &str,
        compute: Kind,
        source: &mut dyn WeightSource,
        parameters: &mut Parameters,
    ) -> Result<Self, Error> {
        let hidden = i64::from(config.hidden_size);
        let heads = i64::from(config.num_attention_heads);
        let key_value_heads = i64::from(config.num_key_value_heads());
        let width = i64::from(config.head_dim());
        let initial = Initial::Normal(config.initializer_range);
        let mut linear = |suffix: &str, shape| {
            let name = format!("{name}.{suffix}");
            Linear::new(&name, shape, initial, compute, source, parameters)
        };
        Ok(Self {
            query: linear("q_proj", (hidden, heads * width))?,
            key: linear("k_proj", (hidden, key_value_heads * width))?,
            value: linear("v_proj", (hidden, key_value_heads * width))?,
            output: linear("o_proj", (heads * width, hidden))?,
            heads,
            key_value_heads,
            width,
        })
    }

    fn forward(&self, input: &Tensor, rope: &Rope) -> Result<Tensor, Error> {
        let (batch, length, _) = input.size3()?;
        let split = |tensor: Tensor, heads: i64| {
            tensor
                .f_view([batch, length, heads, self.width])?
                .f_transpose(1, 2)
        };
        let query = rope.forward(&split(self.query.forward(input)?, self.heads)?, 0)?;
        let key = rope.forward(&split(self.key.forward(input)?, self.key_value_heads)?, 0)?;
        let value = split(self.value.forward(input)?, self.key_value_heads)?;
        let grouped = self.heads != self.key_value_heads;
        let mixed = Tensor::f_scaled_dot_product_attention(
            &query,
            &key,
            &value,
            None::<&Tensor>,
            0.0,
            true,
            None,
            grouped,
        )?;
        let joined =
            mixed
                .f_transpose(1, 2)?
                .f_reshape([batch, length, self.heads * self.width])?;
        self.output.forward(&joined)
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
        config: &ModelConfig,
        name: &str,
        compute: Kind,
        source: &mut dyn WeightSource,
        parameters: &mut Parameters,
    ) -> Result<Self, Error> {
        let (hidden, inner) = (
            i64::from(config.hidden_size),
            i64::from(config.intermediate_size),
        );
        let initial = Initial::Normal(config.initializer_range);
        let mut linear = |suffix: &str, shape| {
            let name = format!("{name}.{suffix}");
            Linear::new(&name, shape, initial, compute, source, parameters)
        };
        Ok(Self {
            gate: linear("gate_proj", (hidden, inner))?,
            up: linear("up_proj", (hidden, inner))?,
            down: linear("down_proj", (inner, hidden))?,
        })
    }

    fn forward(&self, input: &Tensor) -> Result<Tensor, Error> {
        let gated = self
            .gate
            .forward(input)?
            .f_silu()?
            .f_mul(&self.up.forward(input)?)?;
        self.down.forward(&gated)
    }
}
