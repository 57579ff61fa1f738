//! The shape of a decoder: what Hugging Face's `config.json` says about it.
//!
//! One struct for the whole Llama family, because its members differ only in which
//! parts they have: Qwen2 adds biases to q, k and v; Qwen3 drops them and normalises
//! q and k per head.

use std::path::Path;

use serde_json::{Value, json};

use crate::weights::WeightsError;
use crate::weights::json::Object;

/// Which of the family a model is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Architecture {
    /// Llama, SmolLM2, TinyLlama and all others that say `LlamaForCausalLM`.
    Llama,
    /// Qwen2 and Qwen2.5.
    Qwen2,
    /// Qwen3 without mixture of experts.
    Qwen3,
}

impl Architecture {
    /// The whole family.
    pub const ALL: [Self; 3] = [Self::Llama, Self::Qwen2, Self::Qwen3];

    /// `model_type` in `config.json`, and the prefix of the keys in a GGUF file.
    pub fn model_type(self) -> &'static str {
        match self {
            Self::Llama => "llama",
            Self::Qwen2 => "qwen2",
            Self::Qwen3 => "qwen3",
        }
    }

    /// The class in `transformers`.
    pub fn class(self) -> &'static str {
        match self {
            Self::Llama => "LlamaForCausalLM",
            Self::Qwen2 => "Qwen2ForCausalLM",
            Self::Qwen3 => "Qwen3ForCausalLM",
        }
    }

    /// The architecture that calls itself `model_type`.
    pub fn from_model_type(model_type: &str) -> Option<Self> {
        Self::ALL
            .into_iter()
            .find(|known| known.model_type() == model_type)
    }
}

/// How positions become rotations.
#[derive(Debug, Clone, PartialEq)]
pub struct RopeSettings {
    /// Base of the geometric series of wavelengths.
    pub theta: f64,
    /// What stretches it for longer contexts.
    pub scaling: RopeScaling,
}

/// What stretches the rotary embedding beyond the context it was trained with.
#[derive(Debug, Clone, PartialEq)]
pub enum RopeScaling {
    /// Nothing.
    None,
    /// Every position is divided by `factor`.
    Linear {
        /// The divisor.
        factor: f64,
    },
    /// Llama 3: long wavelengths are stretched, short ones kept, a ramp between.
    Llama3 {
        /// How far long wavelengths are stretched.
        factor: f64,
        /// Wavelengths longer than the original context divided by this are stretched.
        low_freq_factor: f64,
        /// Wavelengths shorter than the original context divided by this are kept.
        high_freq_factor: f64,
        /// The original context, in tokens.
        original_max_position_embeddings: f64,
    },
}

impl RopeSettings {
    /// Angle per position of each of the `head_dim / 2` pairs (transformers'
    /// `inv_freq`, `modeling_rope_utils.py`).
    pub fn frequencies(&self, head_dim: i64) -> Vec<f64> {
        (0..head_dim / 2)
            .map(|pair| {
                let frequency = self.theta.powf(-2.0 * pair as f64 / head_dim as f64);
                self.scaling.scale(frequency)
            })
            .collect()
    }
}

impl RopeScaling {
    fn scale(&self, frequency: f64) -> f64 {
        match *self {
            Self::None => frequency,
            Self::Linear { factor } => frequency / factor,
            Self::Llama3 {
                factor,
                low_freq_factor,
                high_freq_factor,
                original_max_position_embeddings: context,
            } => {
                let wavelength = std::f64::consts::TAU / frequency;
                if wavelength < context / high_freq_factor {
                    frequency
                } else if wavelength > context / low_freq_factor {
                    frequency / factor
                } else {
                    let ramp = (context / wavelength - low_freq_factor)
                        / (high_freq_factor - low_freq_factor);
                    (1.0 - ramp) * frequency / factor + ramp * frequency
                }
            }
        }
    }
}

/// The shape of a decoder. Sizes are checked: positive, of a sane magnitude, and
/// consistent with each other.
#[derive(Debug, Clone, PartialEq)]
pub struct DecoderConfig {
    /// Which of the family it is.
    pub architecture: Architecture,
    /// Number of tokens that the embedding knows.
    pub vocab_size: i64,
    /// Width of the residual stream.
    pub hidden_size: i64,
    /// Width of the gated feed-forward layer.
    pub intermediate_size: i64,
    /// Number of blocks.
    pub num_hidden_layers: i64,
    /// Number of query heads.
    pub num_attention_heads: i64,
    /// Number of key and value heads; divides the query heads.
    pub num_key_value_heads: i64,
    /// Width of one head; even.
    pub head_dim: i64,
    /// Longest context the model was made for, in tokens.
    pub max_position_embeddings: i64,
    /// Epsilon of the RMS norms.
    pub rms_norm_eps: f64,
    /// How positions become rotations.
    pub rope: RopeSettings,
    /// Whether the output head is the embedding.
    pub tie_word_embeddings: bool,
    /// Whether the q, k and v projections have biases.
    pub qkv_bias: bool,
    /// Whether the output projection of the attention has a bias.
    pub output_bias: bool,
    /// Whether the three projections of the feed-forward layer have biases.
    pub mlp_bias: bool,
    /// The token that begins a text, if the model has one.
    pub bos_token_id: Option<i64>,
    /// The tokens that end a text.
    pub eos_token_ids: Vec<i64>,
}

impl DecoderConfig {
    /// Reads a `config.json`.
    ///
    /// # Errors
    /// Names the file, the key, what it must be and what it is.
    pub fn read(path: &Path) -> Result<Self, WeightsError> {
        Self::from_object(&Object::read(path)?)
    }

    /// Reads the text of a `config.json`; `path` stands for the file in messages.
    ///
    /// # Errors
    /// As [`DecoderConfig::read`].
    pub fn parse(path: &Path, text: &str) -> Result<Self, WeightsError> {
        Self::from_object(&Object::parse(path, text)?)
    }

    fn from_object(object: &Object) -> Result<Self, WeightsError> {
        let model_type = object.text("model_type")?.unwrap_or_default();
        let architecture = Architecture::from_model_type(model_type).ok_or_else(|| {
            let known: Vec<_> = Architecture::ALL
                .iter()
                .map(|known| known.model_type())
                .collect();
            object.error(
                "model_type",
                format!(
                    "is {model_type:?}; the models known here are {}",
                    known.join(", ")
                ),
            )
        })?;
        refuse_what_would_be_computed_wrongly(object)?;

        let size = |key, default| object.whole(key, default, 1..=1 << 20);
        let hidden_size = size("hidden_size", None)?;
        let heads = object.whole("num_attention_heads", None, 1..=4096)?;
        // Only Llama falls back to this; a Qwen3 file always says it.
        let head_dim = object.whole("head_dim", Some(hidden_size / heads), 2..=4096)?;
        let attention_bias = object.flag("attention_bias", architecture == Architecture::Qwen2)?;
        let config = Self {
            architecture,
            vocab_size: object.whole("vocab_size", None, 1..=1 << 24)?,
            hidden_size,
            intermediate_size: size("intermediate_size", None)?,
            num_hidden_layers: object.whole("num_hidden_layers", None, 1..=4096)?,
            num_attention_heads: heads,
            num_key_value_heads: object.whole("num_key_value_heads", Some(heads), 1..=4096)?,
            head_dim,
            max_position_embeddings: object.whole(
                "max_position_embeddings",
                Some(2048),
                1..=1 << 30,
            )?,
            rms_norm_eps: object.positive("rms_norm_eps", Some(1e-6))?,
            rope: rope(object)?,
            tie_word_embeddings: object.flag("tie_word_embeddings", false)?,
            qkv_bias: architecture == Architecture::Qwen2 || attention_bias,
            output_bias: architecture != Architecture::Qwen2 && attention_bias,
            mlp_bias: architecture == Architecture::Llama && object.flag("mlp_bias", false)?,
            bos_token_id: token_ids(object, "bos_token_id")?.first().copied(),
            eos_token_ids: token_ids(object, "eos_token_id")?,
        };
        config
            .check()
            .map_err(|(key, reason)| object.error(key, reason))?;
        Ok(config)
    }

    /// What does not fit together: the key and what is wrong with it.
    pub(crate) fn check(&self) -> Result<(), (&'static str, String)> {
        if self.head_dim % 2 != 0 {
            return Err((
                "head_dim",
                format!(
                    "must be even for the rotary embedding, not {}",
                    self.head_dim
                ),
            ));
        }
        if self.num_attention_heads % self.num_key_value_heads != 0 {
            return Err((
                "num_key_value_heads",
                format!(
                    "must divide the {} query heads, which {} does not",
                    self.num_attention_heads, self.num_key_value_heads
                ),
            ));
        }
        Ok(())
    }

    /// Whether q and k are normalised per head.
    pub fn qk_norm(&self) -> bool {
        self.architecture == Architecture::Qwen3
    }

    /// The `config.json` that `transformers` reads, with the keys where both its
    /// fourth and its fifth version look for them.
    pub fn to_json(&self) -> Value {
        let rope_type = match self.rope.scaling {
            RopeScaling::None => json!({"rope_type": "default"}),
            RopeScaling::Linear { factor } => json!({"rope_type": "linear", "factor": factor}),
            RopeScaling::Llama3 {
                factor,
                low_freq_factor,
                high_freq_factor,
                original_max_position_embeddings,
            } => json!({
                "rope_type": "llama3",
                "factor": factor,
                "low_freq_factor": low_freq_factor,
                "high_freq_factor": high_freq_factor,
                "original_max_position_embeddings": original_max_position_embeddings as i64,
            }),
        };
        let mut rope_parameters = rope_type.clone();
        rope_parameters["rope_theta"] = json!(self.rope.theta);
        let mut value = json!({
            "architectures": [self.architecture.class()],
            "model_type": self.architecture.model_type(),
            "vocab_size": self.vocab_size,
            "hidden_size": self.hidden_size,
            "intermediate_size": self.intermediate_size,
            "num_hidden_layers": self.num_hidden_layers,
            "num_attention_heads": self.num_attention_heads,
            "num_key_value_heads": self.num_key_value_heads,
            "head_dim": self.head_dim,
            "hidden_act": "silu",
            "max_position_embeddings": self.max_position_embeddings,
            "rms_norm_eps": self.rms_norm_eps,
            "rope_theta": self.rope.theta,
            "rope_scaling": if self.rope.scaling == RopeScaling::None { Value::Null } else { rope_type },
            "rope_parameters": rope_parameters,
            "tie_word_embeddings": self.tie_word_embeddings,
            "attention_bias": self.output_bias || (self.qkv_bias && self.architecture != Architecture::Qwen2),
            "mlp_bias": self.mlp_bias,
            "bos_token_id": self.bos_token_id,
            "eos_token_id": match self.eos_token_ids.as_slice() {
                [] => Value::Null,
                [one] => json!(one),
                more => json!(more),
            },
        });
        if self.architecture == Architecture::Qwen2 {
            // Implied by the class, and not a key of its config.
            value
                .as_object_mut()
                .map(|keys| keys.remove("attention_bias"));
        }
        value
    }
}

/// Features of a `config.json` that would silently change the result.
fn refuse_what_would_be_computed_wrongly(object: &Object) -> Result<(), WeightsError> {
    if let Some(activation) = object.text("hidden_act")?
        && activation != "silu"
    {
        return Err(object.error(
            "hidden_act",
            format!("is {activation:?}; only \"silu\" is known here"),
        ));
    }
    if object.flag("use_sliding_window", false)? {
        return Err(object.error(
            "use_sliding_window",
            "is true; sliding windows are not known here",
        ));
    }
    if object.get("quantization_config").is_some() {
        return Err(object.error(
            "quantization_config",
            "is set: the weights are quantised in a format that is not known here; take the original model",
        ));
    }
    Ok(())
}

/// Both places of the rotary embedding: `rope_theta` and `rope_scaling` beside each
/// other (transformers 4, and every file on the hub), or both in `rope_parameters`
/// (transformers 5).
fn rope(object: &Object) -> Result<RopeSettings, WeightsError> {
    let new = object.object("rope_parameters")?;
    let old = object.object("rope_scaling")?;
    let theta = match &new {
        Some(parameters) if parameters.get("rope_theta").is_some() => {
            parameters.positive("rope_theta", None)?
        }
        _ => object.positive("rope_theta", Some(10_000.0))?,
    };
    let scaling = match new.or(old) {
        None => RopeScaling::None,
        Some(scaling) => rope_scaling(&scaling)?,
    };
    let fraction = object.positive("partial_rotary_factor", Some(1.0))?;
    if fraction != 1.0 {
        return Err(object.error(
            "partial_rotary_factor",
            format!("is {fraction}; only 1 is known here"),
        ));
    }
    Ok(RopeSettings { theta, scaling })
}

fn rope_scaling(object: &Object) -> Result<RopeScaling, WeightsError> {
    // `type` is how the key was called before transformers 4.45.
    let key = if object.get("rope_type").is_some() {
        "rope_type"
    } else {
        "type"
    };
    match object.text(key)?.unwrap_or("default") {
        "default" => Ok(RopeScaling::None),
        "linear" => Ok(RopeScaling::Linear {
            factor: object.positive("factor", None)?,
        }),
        "llama3" => {
            let low_freq_factor = object.positive("low_freq_factor", None)?;
            let high_freq_factor = object.positive("high_freq_factor", None)?;
            if high_freq_factor <= low_freq_factor {
                return Err(
                    object.error("high_freq_factor", "must be greater than `low_freq_factor`")
                );
            }
            Ok(RopeScaling::Llama3 {
                factor: object.positive("factor", None)?,
                low_freq_factor,
                high_freq_factor,
                original_max_position_embeddings: object
                    .positive("original_max_position_embeddings", None)?,
            })
        }
        other => Err(object.error(
            key,
            format!("is {other:?}; known here are default, linear, llama3"),
        )),
    }
}

/// One token, several, or none.
fn token_ids(object: &Object, key: &str) -> Result<Vec<i64>, WeightsError> {
    let id = |value: &Value| match value.as_i64() {
        Some(id) if (0..1 << 24).contains(&id) => Ok(id),
        _ => Err(object.error(
            key,
            format!("must be a token number or a list of them, not {value}"),
        )),
    };
    match object.get(key) {
        None => Ok(Vec::new()),
        Some(Value::Array(ids)) => ids.iter().map(id).collect(),
        Some(one) => Ok(vec![id(one)?]),
    }
}
