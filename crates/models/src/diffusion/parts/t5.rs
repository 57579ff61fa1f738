//! The encoders of T5 1.1 and UMT5: the tokens of a prompt to the transformer's text input.
//!
//! ```text
//! tokens ─▶ embedding ─▶ ┌ norm ─▶ attention + bias by distance ─▶ + ─▶ norm ─▶ gated layer ─▶ + ┐ ─▶ norm
//!                        └──────────────────────────── × layers ──────────────────────────────────┘
//! ```
//!
//! In UMT5 each layer has its own position bias, in T5 all have that of the first. Texts are encoded one at a time, and all
//! tokens are seen, unless one of padding [is hidden](TextEncoder::hiding). Where no padding is seen, texts come without: the
//! reference implementation masks it and replaces it by zeros afterwards.

mod names;

use std::path::Path;

use serde_json::json;
use tch::{Device, Kind, Tensor};

pub(crate) use self::names::of_llama_cpp;

use crate::Error;
use crate::diffusion::{self, Conditions, TEXT};
use crate::formats::TensorSource;
use crate::json::Object;
use crate::model::layers::{Linear, RmsNorm};
use crate::model::{Blocks, Builder, Initial, Layer, Pass};
use crate::tensor::{BaseMap, map_frozen, to_kind};

/// Rows of every embedding; those after the text are zeros.
pub const TEXT_ROWS: i64 = 512;

/// A kind of encoder.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Family {
    /// T5 1.1.
    T5,
    /// UMT5.
    Umt5,
}

/// Dimensions of a text encoder, with transformers' names.
#[derive(Debug, Clone, PartialEq)]
pub struct TextEncoderConfig {
    /// What it is.
    pub family: Family,
    /// Size of the vocabulary.
    pub vocab_size: i64,
    /// Width of the residual stream.
    pub d_model: i64,
    /// Width of a head.
    pub d_kv: i64,
    /// Width of the gated layer.
    pub d_ff: i64,
    /// Number of blocks.
    pub num_layers: i64,
    /// Number of heads.
    pub num_heads: i64,
    /// Number of position biases, for both directions together.
    pub relative_attention_num_buckets: i64,
    /// Distance from which on all positions share a bias.
    pub relative_attention_max_distance: i64,
    /// Added to mean squares.
    pub layer_norm_epsilon: f64,
}

/// Keys that are applied or refused.
const KEYS: [&str; 13] = [
    "model_type",
    "vocab_size",
    "d_model",
    "d_kv",
    "d_ff",
    "num_layers",
    "num_heads",
    "relative_attention_num_buckets",
    "relative_attention_max_distance",
    "layer_norm_epsilon",
    "feed_forward_proj",
    "dense_act_fn",
    "is_gated_act",
];

/// Keys that do not affect the encoder.
const WITHOUT_EFFECT: [&str; 24] = [
    "architectures",
    "bos_token_id",
    "classifier_dropout",
    "decoder_start_token_id",
    "dropout_rate",
    "dtype",
    "eos_token_id",
    "initializer_factor",
    "n_positions",
    "task_specific_params",
    "is_decoder",
    "is_encoder_decoder",
    "num_decoder_layers",
    "output_past",
    "pad_token_id",
    "scalable_attention",
    "scale_decoder_outputs",
    "tie_word_embeddings",
    "tokenizer_class",
    "torch_dtype",
    "transformers_version",
    "use_cache",
    "id2label",
    "label2id",
];

impl TextEncoderConfig {
    /// Reads a `config.json`, with a warning for each unknown key.
    pub fn read(path: &Path, family: Family) -> Result<Self, Error> {
        let object = Object::read(path)?;
        object.warn_about_unknown_keys(&[&KEYS[..], &WITHOUT_EFFECT].concat());
        let gated = json!("gated-gelu");
        // Where nothing is said, T5 is the first version.
        let (name, unsaid) = match family {
            Family::T5 => ("t5", json!("relu")),
            Family::Umt5 => ("umt5", gated.clone()),
        };
        object.require("model_type", &json!(name), &json!(name))?;
        object.require("feed_forward_proj", &gated, &unsaid)?;
        for (key, supported) in [
            ("dense_act_fn", json!("gelu_new")),
            ("is_gated_act", json!(true)),
        ] {
            object.require(key, &supported, &supported)?;
        }
        // The defaults of their classes.
        let [vocabulary, wide, layers, heads] = match family {
            Family::T5 => [32_128, 2048, 6, 8],
            Family::Umt5 => [250_112, 1024, 8, 6],
        };
        let integer = |key, default, largest| object.integer(key, Some(default), 1..=largest);
        let config = Self {
            family,
            vocab_size: integer("vocab_size", vocabulary, 1 << 24)?,
            d_model: integer("d_model", 512, 1 << 20)?,
            d_kv: integer("d_kv", 64, 1 << 16)?,
            d_ff: integer("d_ff", wide, 1 << 20)?,
            num_layers: integer("num_layers", layers, 1024)?,
            num_heads: integer("num_heads", heads, 1024)?,
            relative_attention_num_buckets: integer("relative_attention_num_buckets", 32, 4096)?,
            relative_attention_max_distance: integer(
                "relative_attention_max_distance",
                128,
                1 << 20,
            )?,
            layer_norm_epsilon: object.positive("layer_norm_epsilon", Some(1e-6))?,
        };
        let buckets = config.relative_attention_num_buckets;
        if buckets % 4 != 0 || config.relative_attention_max_distance <= buckets / 4 {
            let reason = "must be a multiple of 4, and a quarter of it less than \
                          `relative_attention_max_distance`";
            return Err(object.error("relative_attention_num_buckets", reason));
        }
        Ok(config)
    }

    /// Infers the config from the shapes in a file with transformers' names.
    pub fn of_shapes(tensors: &dyn TensorSource, family: Family) -> Result<Self, Error> {
        let title = match family {
            Family::T5 => "T5",
            Family::Umt5 => "UMT5",
        };
        let matrix = |name: &str| {
            let shape = tensors.shape(name).filter(|shape| shape.len() == 2);
            shape.ok_or_else(|| {
                let reason = format!("not a {title} encoder: there is no matrix `{name}`");
                Error::file(tensors.path(), reason)
            })
        };
        let layer = |name: &String| -> Option<i64> {
            let rest = name.strip_prefix("encoder.block.")?;
            rest.split('.').next()?.parse().ok()
        };
        let first = "encoder.block.0.layer.0.SelfAttention";
        let embedding = matrix("shared.weight")?;
        let bias = matrix(&format!("{first}.relative_attention_bias.weight"))?;
        let inner = matrix(&format!("{first}.q.weight"))?[0];
        let second = "encoder.block.1.layer.0.SelfAttention.relative_attention_bias.weight";
        if family == Family::T5 && tensors.shape(second).is_some() {
            let reason = format!("not a {title} encoder but one of UMT5: there is `{second}`");
            return Err(Error::file(tensors.path(), reason));
        }
        if bias[1] == 0 || inner % bias[1] != 0 {
            let reason = format!("queries of width {inner} for {} heads", bias[1]);
            return Err(Error::file(tensors.path(), reason));
        }
        Ok(Self {
            family,
            vocab_size: embedding[0],
            d_model: embedding[1],
            d_kv: inner / bias[1],
            d_ff: matrix("encoder.block.0.layer.1.DenseReluDense.wi_0.weight")?[0],
            num_layers: tensors
                .names()
                .iter()
                .filter_map(layer)
                .max()
                .map_or(0, |last| last + 1),
            num_heads: bias[1],
            relative_attention_num_buckets: bias[0],
            relative_attention_max_distance: 128,
            layer_norm_epsilon: 1e-6,
        })
    }
}

/// The model.
#[derive(Debug)]
pub struct TextEncoder {
    config: TextEncoderConfig,
    /// `[vocabulary, width]` in host memory: a fifth of the weights, of which a prompt needs a few rows.
    embedding: Tensor,
    /// The position bias of all blocks, if they have none of their own.
    bias: Option<Tensor>,
    blocks: Blocks<Block>,
    norm: RmsNorm,
    /// A token that no other sees at the end of a text.
    hidden: Option<u32>,
    device: Device,
}

impl TextEncoder {
    /// Builds the model on `device`; blocks are streamed if `builder` is set up for it.
    pub fn new(
        config: &TextEncoderConfig,
        device: Device,
        builder: &mut Builder,
    ) -> Result<Self, Error> {
        let initial = Initial::Normal(0.02);
        let table = [config.vocab_size, config.d_model];
        let embedding = builder.on_the_host(device, |builder| {
            builder.matrix("shared.weight", &table, initial, false)
        })?;
        let count = usize::try_from(config.num_layers).unwrap_or(0);
        let norm = "encoder.final_layer_norm";
        let bias = match config.family {
            Family::T5 => Some(bias_of(config, 0, builder)?),
            Family::Umt5 => None,
        };
        let model = Self {
            embedding,
            bias,
            blocks: Blocks::new(
                ("encoder.block", count),
                device,
                builder,
                |index, builder| Block::new(config, index, builder),
            )?,
            norm: builder.norm(norm, config.d_model, config.layer_norm_epsilon)?,
            hidden: None,
            config: config.clone(),
            device,
        };
        builder.finish_blocks()?;
        Ok(model)
    }

    /// The same encoder of T5, in which the token `padding` at the end of a text has a state, but is not seen by any token.
    #[must_use]
    pub fn hiding(self, padding: Option<u32>) -> Self {
        Self {
            hidden: padding,
            ..self
        }
    }

    /// Its dimensions.
    pub fn config(&self) -> &TextEncoderConfig {
        &self.config
    }

    /// The embedding of one text of at most [`TEXT_ROWS`] tokens: `[tokens, width]` fp32.
    ///
    /// # Errors
    /// If there is no token, there are too many, or one is not in the vocabulary; or if memory runs out.
    pub fn encode(&self, tokens: &[u32]) -> Result<Tensor, Error> {
        let length = tokens.len() as i64;
        let ends_hidden = self.hidden.is_some() && self.hidden == tokens.last().copied();
        let unknown = tokens
            .iter()
            .find(|t| i64::from(**t) >= self.config.vocab_size);
        if length == 0 || length > TEXT_ROWS || unknown.is_some() {
            return Err(Error::Invalid(format!(
                "a text of {length} tokens{}: from 1 to {TEXT_ROWS} are encoded, of {} known ones",
                unknown.map_or(String::new(), |token| format!(", of which one is {token}")),
                self.config.vocab_size
            )));
        }
        let tokens: Vec<i64> = tokens.iter().map(|token| i64::from(*token)).collect();
        let rows = self
            .embedding
            .f_index_select(0, &Tensor::f_from_slice(&tokens)?)?;
        let stream = to_kind(&rows.f_to_device(self.device)?, Kind::Float)?.f_unsqueeze(0)?;
        let buckets = buckets(&self.config, length)?.f_to_device(self.device)?;
        let shared = match &self.bias {
            Some(table) => position_bias(table, &buckets)?,
            None => buckets,
        };
        if ends_hidden {
            let _ = shared
                .f_narrow(3, length - 1, 1)?
                .f_fill_(f64::NEG_INFINITY)?;
        }
        let stream = self.blocks.forward(stream, &[], &shared, Pass::Evaluate)?;
        Ok(self.norm.forward(&stream)?.f_squeeze_dim(0)?)
    }
}

impl diffusion::TextEncoder for TextEncoder {
    fn encode(&self, tokens: &[u32]) -> Result<Conditions, Error> {
        Ok(Conditions::of(TEXT, self.encode(tokens)?))
    }
}

/// The index of the position bias for each query (row) and key (column) of `length` tokens.
fn buckets(config: &TextEncoderConfig, length: i64) -> Result<Tensor, Error> {
    let side = config.relative_attention_num_buckets / 2;
    let exact = side / 2;
    let positions = Tensor::f_arange(length, (Kind::Int64, Device::Cpu))?;
    let distance = positions
        .f_unsqueeze(0)?
        .f_sub(&positions.f_unsqueeze(1)?)?;
    let later = distance
        .f_gt(0)?
        .f_to_kind(Kind::Int64)?
        .f_mul_scalar(side)?;
    let distance = distance.f_abs()?;
    // One for each short distance, then one for each step on a logarithmic scale.
    let range = (config.relative_attention_max_distance as f64 / exact as f64).ln();
    let far = distance
        .f_to_kind(Kind::Float)?
        .f_div_scalar(exact as f64)?
        .f_log()?
        .f_div_scalar(range)?
        .f_mul_scalar((side - exact) as f64)?
        .f_clamp_min(0.0)?
        .f_to_kind(Kind::Int64)?
        .f_add_scalar(exact)?
        .f_clamp_max(side - 1)?;
    let near = distance.f_where_self(&distance.f_lt(exact)?, &far)?;
    Ok(near.f_add(&later)?)
}

/// The table of position biases of a block, `[buckets, heads]`.
fn bias_of(
    config: &TextEncoderConfig,
    block: usize,
    builder: &mut Builder,
) -> Result<Tensor, Error> {
    let shape = [config.relative_attention_num_buckets, config.num_heads];
    let name =
        format!("encoder.block.{block}.layer.0.SelfAttention.relative_attention_bias.weight");
    builder.kept(&name, &shape, Initial::Normal(0.02))
}

/// The bias of each query and key, `[1, heads, length, length]`.
fn position_bias(table: &Tensor, buckets: &Tensor) -> Result<Tensor, Error> {
    let bias = Tensor::f_embedding(table, buckets, -1, false, false)?;
    Ok(bias.f_permute([2, 0, 1])?.f_unsqueeze(0)?)
}

#[derive(Debug)]
struct Block {
    norms: [RmsNorm; 2],
    query: Linear,
    key: Linear,
    value: Linear,
    output: Linear,
    heads: i64,
    /// Its own table, if it has one.
    bias: Option<Tensor>,
    gate: Linear,
    up: Linear,
    down: Linear,
}

impl Block {
    fn new(config: &TextEncoderConfig, index: usize, builder: &mut Builder) -> Result<Self, Error> {
        let name = |part: &str| format!("encoder.block.{index}.layer.{part}");
        let (width, inner, wide) = (config.d_model, config.num_heads * config.d_kv, config.d_ff);
        let initial = Initial::Normal(0.02);
        let epsilon = config.layer_norm_epsilon;
        let bias = match config.family {
            Family::T5 => None,
            Family::Umt5 => Some(bias_of(config, index, builder)?),
        };
        let norms = [
            builder.norm(&name("0.layer_norm"), width, epsilon)?,
            builder.norm(&name("1.layer_norm"), width, epsilon)?,
        ];
        let mut linear = |part, shape| builder.linear(&name(part), shape, false, initial);
        Ok(Self {
            norms,
            query: linear("0.SelfAttention.q", (width, inner))?,
            key: linear("0.SelfAttention.k", (width, inner))?,
            value: linear("0.SelfAttention.v", (width, inner))?,
            output: linear("0.SelfAttention.o", (inner, width))?,
            heads: config.num_heads,
            bias,
            gate: linear("1.DenseReluDense.wi_0", (width, wide))?,
            up: linear("1.DenseReluDense.wi_1", (width, wide))?,
            down: linear("1.DenseReluDense.wo", (wide, width))?,
        })
    }

    /// `[1, length, width]` to the same shape.
    fn self_attention(&self, input: &Tensor, shared: &Tensor) -> Result<Tensor, Error> {
        let (batch, length, _) = input.size3()?;
        let heads = self.heads;
        let split = |linear: &Linear| -> Result<Tensor, Error> {
            let rows = linear.forward(input, false)?;
            Ok(rows.f_view([batch, length, heads, -1])?.f_transpose(1, 2)?)
        };
        let (query, key, value) = (split(&self.query)?, split(&self.key)?, split(&self.value)?);
        let bias = match &self.bias {
            Some(table) => position_bias(table, shared)?,
            None => shared.shallow_clone(),
        };
        // Scores are not scaled; the softmax is in fp32.
        let scores = query.f_matmul(&key.f_transpose(2, 3)?)?;
        let weights = to_kind(&scores, Kind::Float)?
            .f_add(&bias)?
            .f_softmax(-1, Kind::Float)?;
        let mixed = to_kind(&weights, value.kind())?.f_matmul(&value)?;
        let joined = mixed.f_transpose(1, 2)?.f_reshape([batch, length, -1])?;
        self.output.forward(&joined, false)
    }
}

impl Layer for Block {
    /// The bias of each query and key, or its index if blocks have tables of their own.
    type Shared = Tensor;

    fn share(shared: &Tensor) -> Tensor {
        shared.shallow_clone()
    }

    fn forward(&self, inputs: &[Tensor], shared: &Tensor, _dropout: bool) -> Result<Tensor, Error> {
        let [stream] = inputs else {
            return Err(Error::Internal("a block of T5 takes one input".into()));
        };
        let self_attention = self.self_attention(&self.norms[0].forward(stream)?, shared)?;
        let stream = stream.f_add(&self_attention)?;
        let normed = self.norms[1].forward(&stream)?;
        let gate = self.gate.forward(&normed, false)?.f_gelu("tanh")?;
        let made = gate.f_mul(&self.up.forward(&normed, false)?)?;
        Ok(stream.f_add(&self.down.forward(&made, false)?)?)
    }

    fn with_base(&self, map: BaseMap<'_>) -> Result<Self, Error> {
        Ok(Self {
            norms: [self.norms[0].with_base(map)?, self.norms[1].with_base(map)?],
            query: self.query.with_base(map)?,
            key: self.key.with_base(map)?,
            value: self.value.with_base(map)?,
            output: self.output.with_base(map)?,
            heads: self.heads,
            bias: match &self.bias {
                Some(table) => Some(map_frozen(table, map)?),
                None => None,
            },
            gate: self.gate.with_base(map)?,
            up: self.up.with_base(map)?,
            down: self.down.with_base(map)?,
        })
    }
}

#[cfg(test)]
mod tests {
    use placement::swap::SwapOptions;
    use placement::{Placer, Policy};

    use super::*;
    use crate::Parameters;
    use crate::diffusion::files::PartFile;
    use crate::diffusion::wan::names::TEXT_ENCODER;
    use crate::formats::SafetensorsFile;
    use crate::golden::golden;
    use crate::json::testing::reading;
    use crate::model::{Base, FileWeights, Streaming};

    #[test]
    fn each_key_of_a_config_is_obeyed_refused_or_without_effect() {
        let read = reading(|path| TextEncoderConfig::read(path, Family::Umt5));
        let plain = json!({"model_type": "umt5"});
        let base = read(&plain).unwrap();
        for key in KEYS.iter().chain(&WITHOUT_EFFECT) {
            let mut config = plain.clone();
            config[*key] = match *key {
                "model_type" | "feed_forward_proj" | "dense_act_fn" => json!("relu"),
                "is_gated_act" => json!(false),
                "layer_norm_epsilon" => json!(0.5),
                "relative_attention_num_buckets" => json!(16),
                _ => json!(10),
            };
            match read(&config) {
                Ok(found) => assert_eq!(found != base, KEYS.contains(key), "{key}"),
                Err(reason) => assert!(
                    KEYS.contains(key) && reason.contains(key),
                    "{key}: {reason}"
                ),
            }
        }
    }

    fn open(compute: Kind, streaming: Option<Streaming>) -> TextEncoder {
        let folder = golden("wan/text-encoder");
        let config = TextEncoderConfig::read(&folder.join("config.json"), Family::Umt5).unwrap();
        let tensors = PartFile::open(&TEXT_ENCODER, &folder).unwrap();
        assert!(tensors.unknown().is_empty());
        assert_eq!(
            TextEncoderConfig {
                relative_attention_max_distance: config.relative_attention_max_distance,
                ..TextEncoderConfig::of_shapes(&tensors, Family::Umt5).unwrap()
            },
            config
        );
        let mut placer = Placer::new(Device::Cpu, Policy::default()).unwrap();
        let mut source = FileWeights::new(&tensors, compute, &mut placer);
        let mut parameters = Parameters::default();
        let base = Base::Frozen(compute);
        let mut builder =
            Builder::new(&mut source, &mut parameters, compute, base).streamed(streaming);
        TextEncoder::new(&config, Device::Cpu, &mut builder).unwrap()
    }

    /// The tokens of each text, and 512 rows with zeros after the text.
    fn expected() -> Vec<(Vec<u32>, Tensor)> {
        let file = golden("wan/text-encoder/expected.safetensors");
        let file = SafetensorsFile::open(&file).unwrap();
        let count = file.names().len() / 2;
        assert!(count >= 3);
        let text = |index: usize| {
            let tokens = file.read(&format!("{index}.tokens"), Kind::Int64).unwrap();
            let tokens = Vec::<i64>::try_from(&tokens).unwrap();
            let rows = file.read(&format!("{index}.rows"), Kind::Float).unwrap();
            (tokens.into_iter().map(|token| token as u32).collect(), rows)
        };
        (0..count).map(text).collect()
    }

    fn difference(ours: &Tensor, theirs: &Tensor) -> f64 {
        assert_eq!(ours.size(), theirs.size());
        f64::try_from((ours - theirs).abs().max()).unwrap()
    }

    #[test]
    fn embeddings_are_those_of_transformers() {
        let model = open(Kind::Float, None);
        for (tokens, theirs) in expected() {
            let ours = model.encode(&tokens).unwrap();
            let apart = difference(&ours, &theirs);
            assert!(apart <= 2e-5, "{} tokens: {apart}", tokens.len());
        }
    }

    #[test]
    fn streamed_blocks_change_nothing_and_bfloat16_little() {
        let streaming = Streaming {
            blocks: vec![0, 1, 2],
            options: SwapOptions::default(),
        };
        let (whole, streamed) = (open(Kind::Float, None), open(Kind::Float, Some(streaming)));
        let half = open(Kind::BFloat16, None);
        for (tokens, theirs) in expected() {
            let ours = whole.encode(&tokens).unwrap();
            assert_eq!(streamed.encode(&tokens).unwrap(), ours);
            let apart = (half.encode(&tokens).unwrap() - &theirs).std(false) / theirs.std(false);
            assert!(f64::try_from(apart).unwrap() < 0.1);
        }
    }

    #[test]
    fn what_cannot_be_encoded_is_refused() {
        let model = open(Kind::Float, None);
        let long = vec![3; 513];
        for tokens in [&[][..], &[60_000], &long] {
            let error = model.encode(tokens).unwrap_err().to_string();
            assert!(error.contains("from 1 to 512"), "{error}");
        }
    }
}
