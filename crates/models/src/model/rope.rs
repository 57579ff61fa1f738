//! Settings of the rotary position embedding: base frequency, scaling for long contexts, and where Hugging
//! Face's configs store them. The arithmetic follows transformers' `modeling_rope_utils.py`.

use std::f64::consts::TAU;

use serde_json::{Value, json};

use crate::Error;
use crate::json::{self, Object};

/// Settings of the rotary position embedding.
#[derive(Debug, Clone, PartialEq)]
pub struct RopeSettings {
    /// Base of the geometric series of wavelengths.
    pub theta: f64,
    /// Scaling for longer contexts.
    pub scaling: RopeScaling,
}

/// Scaling of the rotary embedding beyond the context that the model was trained with.
#[derive(Debug, Clone, PartialEq)]
pub enum RopeScaling {
    /// No scaling.
    None,
    /// Every position is divided by `factor`.
    Linear {
        /// What frequencies are divided by.
        factor: f64,
    },
    /// No scaling up to `max_position_embeddings`, then more with growing length. Longer texts are not
    /// supported here.
    Dynamic {
        /// Scaling factor for longer texts.
        factor: f64,
    },
    /// Llama 3: long wavelengths are scaled, short ones kept, with a ramp between them.
    Llama3 {
        /// Scaling factor for long wavelengths.
        factor: f64,
        /// Wavelengths longer than the original context divided by this are scaled.
        low_freq_factor: f64,
        /// Wavelengths shorter than the original context divided by this are kept.
        high_freq_factor: f64,
        /// The original context, in tokens.
        original_max_position_embeddings: f64,
    },
    /// YaRN (Peng et al., 2023).
    Yarn(Yarn),
}

/// YaRN: dimension pairs that rotate often within the original context are kept, those that hardly rotate are
/// scaled, with a ramp between them; attention is sharpened by a factor.
#[derive(Debug, Clone, PartialEq)]
pub struct Yarn {
    /// Scaling factor for slow pairs.
    pub factor: f64,
    /// Multiplier of sines and cosines.
    pub attention_factor: f64,
    /// Rotations within the original context above which a pair is kept.
    pub beta_fast: f64,
    /// Rotations below which it is fully scaled.
    pub beta_slow: f64,
    /// Whether the ramp starts and ends at whole pair indices.
    pub truncate: bool,
    /// The original context, in tokens.
    pub original_max_position_embeddings: f64,
}

impl RopeSettings {
    /// Angle per position of each of the `head_dim / 2` pairs (transformers' `inv_freq`).
    pub fn frequencies(&self, head_dim: i64) -> Vec<f64> {
        let pairs = (0..head_dim / 2).map(|pair| pair as f64);
        pairs
            .map(|pair| {
                let frequency = self.theta.powf(-2.0 * pair / head_dim as f64);
                match &self.scaling {
                    RopeScaling::None | RopeScaling::Dynamic { .. } => frequency,
                    RopeScaling::Linear { factor } => frequency / factor,
                    RopeScaling::Llama3 {
                        factor,
                        low_freq_factor,
                        high_freq_factor,
                        original_max_position_embeddings,
                    } => {
                        let turns = original_max_position_embeddings * frequency / TAU;
                        let kept = (turns - low_freq_factor) / (high_freq_factor - low_freq_factor);
                        stretch(frequency, *factor, kept)
                    }
                    RopeScaling::Yarn(yarn) => {
                        let (first, last) = yarn.ramp(self.theta, head_dim as f64);
                        let stretched = (pair - first) / (last - first);
                        stretch(frequency, yarn.factor, 1.0 - stretched)
                    }
                }
            })
            .collect()
    }

    /// Multiplier of sines and cosines (transformers' `attention_scaling`).
    pub fn attention_factor(&self) -> f64 {
        match &self.scaling {
            RopeScaling::Yarn(yarn) => yarn.attention_factor,
            _ => 1.0,
        }
    }

    /// The keys for a `config.json`: `rope_scaling` (null without scaling) and the newer `rope_parameters`.
    pub(crate) fn to_json(&self) -> (Value, Value) {
        let scaling = match &self.scaling {
            RopeScaling::None => json!({"rope_type": "default"}),
            RopeScaling::Linear { factor } => json!({"rope_type": "linear", "factor": factor}),
            RopeScaling::Dynamic { factor } => json!({"rope_type": "dynamic", "factor": factor}),
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
                "original_max_position_embeddings": json::number(*original_max_position_embeddings),
            }),
            RopeScaling::Yarn(yarn) => json!({
                "rope_type": "yarn",
                "factor": yarn.factor,
                "attention_factor": yarn.attention_factor,
                "beta_fast": yarn.beta_fast,
                "beta_slow": yarn.beta_slow,
                "truncate": yarn.truncate,
                "original_max_position_embeddings": json::number(yarn.original_max_position_embeddings),
            }),
        };
        let mut parameters = scaling.clone();
        parameters["rope_theta"] = json!(self.theta);
        match self.scaling {
            RopeScaling::None => (Value::Null, parameters),
            _ => (scaling, parameters),
        }
    }
}

/// `frequency` with the share `kept` (clamped to 0 … 1) unchanged and the rest divided by `factor`.
fn stretch(frequency: f64, factor: f64, kept: f64) -> f64 {
    let kept = kept.clamp(0.0, 1.0);
    (1.0 - kept) * frequency / factor + kept * frequency
}

impl Yarn {
    /// The pairs at which the ramp from kept to scaled starts and ends.
    fn ramp(&self, theta: f64, width: f64) -> (f64, f64) {
        // The pair that rotates this often within the original context.
        let pair = |turns: f64| {
            let wavelength = self.original_max_position_embeddings / (turns * TAU);
            width * wavelength.ln() / (2.0 * theta.ln())
        };
        let (mut first, mut last) = (pair(self.beta_fast), pair(self.beta_slow));
        if self.truncate {
            (first, last) = (first.floor(), last.ceil());
        }
        let (first, last) = (first.max(0.0), last.min(width - 1.0));
        match first == last {
            true => (first, last + 0.001),
            false => (first, last),
        }
    }
}

/// Where a config says how the layers of a kind are rotated.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Place {
    /// The layers' section of `rope_parameters`, in models whose layers differ.
    pub(crate) section: Option<&'static str>,
    /// Where transformers 4 has the base.
    pub(crate) theta_key: &'static str,
    /// The base if no key says it.
    pub(crate) theta: f64,
    /// Whether `rope_scaling`, in which transformers 4 has the scaling, applies.
    pub(crate) scaled: bool,
}

impl Place {
    /// Of models whose layers do not differ.
    pub(crate) const FLAT: Self = Self {
        section: None,
        theta_key: "rope_theta",
        theta: 10_000.0,
        scaled: true,
    };
}

/// Reads the settings from both places: `rope_theta` and `rope_scaling` (transformers 4, and most files on
/// the Hub), or `rope_parameters` (transformers 5). If both are present, the older one wins, as in
/// transformers. `context` is `max_position_embeddings`.
pub(crate) fn read(object: &Object, context: i64, place: &Place) -> Result<RopeSettings, Error> {
    let old = match place.scaled {
        true => object.object("rope_scaling")?,
        false => None,
    };
    let parameters = match old.filter(|old| old.keys().next().is_some()) {
        Some(old) => Some(old),
        None => match (object.object("rope_parameters")?, place.section) {
            (Some(sections), Some(section)) => sections.object(section)?,
            (parameters, _) => parameters,
        },
    };
    let theta = match &parameters {
        Some(parameters) if parameters.get("rope_theta").is_some() => {
            parameters.positive("rope_theta", None)?
        }
        _ => object.positive(place.theta_key, Some(place.theta))?,
    };
    for place in [Some(object), parameters.as_ref()].into_iter().flatten() {
        let fraction = place.positive("partial_rotary_factor", Some(1.0))?;
        if fraction != 1.0 {
            let reason = format!("is {fraction}; only 1 is supported");
            return Err(place.error("partial_rotary_factor", reason));
        }
    }
    let scaling = match &parameters {
        None => RopeScaling::None,
        Some(parameters) => {
            let original = match object.get("original_max_position_embeddings") {
                Some(_) => object.positive("original_max_position_embeddings", None)?,
                None => {
                    parameters.positive("original_max_position_embeddings", Some(context as f64))?
                }
            };
            scaling(parameters, original, context as f64)?
        }
    };
    Ok(RopeSettings { theta, scaling })
}

fn scaling(object: &Object, original: f64, context: f64) -> Result<RopeScaling, Error> {
    // Models whose layers rotate differently have an object for each kind.
    if let Some((key, _)) = object.keys().find(|(_, value)| value.is_object()) {
        return Err(object.error(
            key,
            "is an object: different rotary embeddings per layer are not supported",
        ));
    }
    if object.get("mrope_section").is_some() {
        return Err(object.error(
            "mrope_section",
            "is set: multimodal models are not supported",
        ));
    }
    // Before transformers 4.45 the key was called `type`.
    let key = match object.get("rope_type") {
        Some(_) => "rope_type",
        None => "type",
    };
    match object.text(key)?.unwrap_or("default") {
        "default" => Ok(RopeScaling::None),
        "linear" => Ok(RopeScaling::Linear {
            factor: object.positive("factor", None)?,
        }),
        "dynamic" => Ok(RopeScaling::Dynamic {
            factor: object.positive("factor", None)?,
        }),
        "llama3" => {
            let low_freq_factor = object.positive("low_freq_factor", None)?;
            let high_freq_factor = object.positive("high_freq_factor", None)?;
            if high_freq_factor <= low_freq_factor {
                let reason = "must be greater than `low_freq_factor`";
                return Err(object.error("high_freq_factor", reason));
            }
            Ok(RopeScaling::Llama3 {
                factor: object.positive("factor", None)?,
                low_freq_factor,
                high_freq_factor,
                original_max_position_embeddings: original,
            })
        }
        "yarn" => yarn(object, original, context).map(RopeScaling::Yarn),
        other => Err(object.error(
            key,
            format!("is {other:?}; supported: default, linear, dynamic, llama3, yarn"),
        )),
    }
}

fn yarn(object: &Object, original: f64, context: f64) -> Result<Yarn, Error> {
    let factor = object.positive("factor", Some(context / original))?;
    let given = |key| match object.get(key) {
        None => Ok(None),
        Some(_) => object.positive(key, None).map(Some),
    };
    // The paper's formula for the attention factor.
    let sharper = |weight: f64| match factor <= 1.0 {
        true => 1.0,
        false => 0.1 * weight * factor.ln() + 1.0,
    };
    let attention_factor = match given("attention_factor")? {
        Some(factor) => factor,
        None => match (given("mscale")?, given("mscale_all_dim")?) {
            (Some(scale), Some(all)) => sharper(scale) / sharper(all),
            _ => sharper(1.0),
        },
    };
    let yarn = Yarn {
        factor,
        attention_factor,
        beta_fast: object.positive("beta_fast", Some(32.0))?,
        beta_slow: object.positive("beta_slow", Some(1.0))?,
        truncate: object.flag("truncate", true)?,
        original_max_position_embeddings: original,
    };
    match yarn.beta_fast > yarn.beta_slow {
        true => Ok(yarn),
        false => Err(object.error("beta_fast", "must be greater than `beta_slow`")),
    }
}
