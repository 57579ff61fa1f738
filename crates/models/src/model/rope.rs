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
    /// The part of a head that is rotated, from its start.
    pub partial_rotary_factor: f64,
    /// How queries grow with their position, if they do.
    pub query_growth: Option<QueryGrowth>,
}

/// Queries are multiplied by 1 + `rate` · ln(1 + ⌊position / `context`⌋).
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct QueryGrowth {
    /// Transformers' `llama_4_scaling_beta`.
    pub rate: f64,
    /// The original context, in tokens.
    pub context: f64,
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
    /// LongRoPE (Ding et al., 2024).
    LongRope(LongRope),
    /// The first pairs of a head have the frequencies that they would have if all were rotated, and the others none.
    Proportional {
        /// The part of the pairs that is rotated.
        part: f64,
        /// What frequencies are divided by.
        factor: f64,
    },
}

/// LongRoPE: each pair's frequency is divided by a factor of its own, and all by others in texts that are longer than
/// the original context.
#[derive(Debug, Clone, PartialEq)]
pub struct LongRope {
    /// The divisors in texts within the original context, one for each rotated pair.
    pub short_factor: Vec<f64>,
    /// Those in longer texts.
    pub long_factor: Vec<f64>,
    /// Multiplier of sines and cosines in all texts.
    pub attention_factor: f64,
    /// The original context, in tokens.
    pub original_max_position_embeddings: i64,
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
    /// Number of dimensions of a head of `head_dim` that are rotated.
    pub fn rotated(&self, head_dim: i64) -> i64 {
        (head_dim as f64 * self.partial_rotary_factor) as i64
    }

    /// Angle per position of each rotated pair of a head of `head_dim` dimensions (transformers' `inv_freq`).
    pub fn frequencies(&self, head_dim: i64) -> Vec<f64> {
        let width = self.rotated(head_dim);
        let pairs = (0..width / 2).map(|pair| pair as f64);
        if let RopeScaling::LongRope(scaling) = &self.scaling {
            return self.divided(head_dim, &scaling.short_factor);
        }
        let moving = match self.scaling {
            RopeScaling::Proportional { part, .. } => (part * width as f64 / 2.0).floor(),
            _ => f64::INFINITY,
        };
        pairs
            .map(|pair| {
                let frequency = self.theta.powf(-2.0 * pair / width as f64);
                match &self.scaling {
                    RopeScaling::Proportional { .. } if pair >= moving => 0.0,
                    RopeScaling::None | RopeScaling::Dynamic { .. } | RopeScaling::LongRope(_) => {
                        frequency
                    }
                    RopeScaling::Linear { factor } | RopeScaling::Proportional { factor, .. } => {
                        frequency / factor
                    }
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
                        let (first, last) = yarn.ramp(self.theta, width as f64);
                        let stretched = (pair - first) / (last - first);
                        stretch(frequency, yarn.factor, 1.0 - stretched)
                    }
                }
            })
            .collect()
    }

    /// The same in texts that are longer than the original context, which is returned too, if theirs are others.
    pub fn long_frequencies(&self, head_dim: i64) -> Option<(i64, Vec<f64>)> {
        let RopeScaling::LongRope(scaling) = &self.scaling else {
            return None;
        };
        let most = scaling.original_max_position_embeddings;
        Some((most, self.divided(head_dim, &scaling.long_factor)))
    }

    /// The frequencies without scaling, each divided by its factor.
    fn divided(&self, head_dim: i64, factors: &[f64]) -> Vec<f64> {
        let width = self.rotated(head_dim) as f64;
        let pairs = factors.iter().enumerate();
        pairs
            .map(|(pair, factor)| self.theta.powf(-2.0 * pair as f64 / width) / factor)
            .collect()
    }

    /// Multiplier of sines and cosines (transformers' `attention_scaling`).
    pub fn attention_factor(&self) -> f64 {
        match &self.scaling {
            RopeScaling::Yarn(yarn) => yarn.attention_factor,
            RopeScaling::LongRope(long) => long.attention_factor,
            _ => 1.0,
        }
    }

    /// The keys for a `config.json`: `rope_scaling` (null without scaling) and the newer `rope_parameters`.
    pub(crate) fn to_json(&self) -> (Value, Value) {
        let mut scaling = match &self.scaling {
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
            RopeScaling::LongRope(long) => json!({
                "rope_type": "longrope",
                "short_factor": long.short_factor,
                "long_factor": long.long_factor,
                "attention_factor": long.attention_factor,
                "original_max_position_embeddings": long.original_max_position_embeddings,
            }),
            RopeScaling::Proportional { part, .. } => {
                json!({"rope_type": "proportional", "partial_rotary_factor": part})
            }
        };
        if let RopeScaling::Proportional { factor, .. } = self.scaling
            && factor != 1.0
        {
            scaling["factor"] = json!(factor);
        }
        if self.partial_rotary_factor != 1.0 {
            scaling["partial_rotary_factor"] = json!(self.partial_rotary_factor);
        }
        if let Some(growth) = &self.query_growth {
            scaling["llama_4_scaling_beta"] = json!(growth.rate);
            scaling["original_max_position_embeddings"] = json::number(growth.context);
        }
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

/// The context before scaling.
const ORIGINAL: &str = "original_max_position_embeddings";
/// The part of a head, or of its pairs, that is rotated.
const PART: &str = "partial_rotary_factor";
/// How fast queries grow.
const BETA: &str = "llama_4_scaling_beta";

/// Where a config says how the layers of a kind are rotated.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Place {
    /// The layers' section of `rope_parameters`, in models whose layers differ.
    pub(crate) section: Option<&'static str>,
    /// Where transformers 4 has the base, if it has one for these layers.
    pub(crate) theta_key: Option<&'static str>,
    /// The base if no key says it.
    pub(crate) theta: f64,
    /// Whether `rope_scaling`, in which transformers 4 has the scaling, applies.
    pub(crate) scaled: bool,
    /// Whether there is no scaling but LongRoPE, which has several names.
    pub(crate) longrope: bool,
    /// The part of a head that is rotated without a key that says it; `None` if it must be all of it.
    pub(crate) part: Option<f64>,
    /// Whether rotations may be proportional, and the part of the pairs that moves where nothing is said of them.
    pub(crate) proportional: Option<f64>,
    /// Whether pairs may be divided among the axes of pictures (`mrope_section`), which for a text are one.
    pub(crate) axes: bool,
    /// Whether queries grow with their position.
    pub(crate) growth: bool,
}

impl Place {
    /// Of models whose layers do not differ.
    pub(crate) const FLAT: Self = Self {
        section: None,
        theta_key: Some("rope_theta"),
        theta: 10_000.0,
        scaled: true,
        longrope: false,
        part: None,
        proportional: None,
        axes: false,
        growth: false,
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
        _ => match place.theta_key {
            Some(key) => object.positive(key, Some(place.theta))?,
            None => place.theta,
        },
    };
    let mut part = place.part.unwrap_or(1.0);
    // That of proportional rotations is another.
    let is_proportional = |parameters: &&Object| {
        place.proportional.is_some()
            && parameters.get(kind_key(parameters)) == Some(&json!("proportional"))
    };
    let of_layers = parameters.as_ref().filter(|own| !is_proportional(own));
    for source in [Some(object), of_layers].into_iter().flatten() {
        let found = source.positive(PART, Some(part))?;
        if found > 1.0 || (found != 1.0 && place.part.is_none()) {
            let most = if place.part.is_some() {
                "at most 1"
            } else {
                "only 1"
            };
            return Err(source.error(PART, format!("is {found}; {most} is supported")));
        }
        part = found;
    }
    let scaling = match &parameters {
        None => match place.proportional {
            Some(part) => RopeScaling::Proportional { part, factor: 1.0 },
            None => RopeScaling::None,
        },
        Some(parameters) if is_proportional(&parameters) => {
            let factor = parameters.positive("factor", Some(1.0))?;
            match parameters.positive(PART, Some(1.0))? {
                part if part <= 1.0 => RopeScaling::Proportional { part, factor },
                part => {
                    let reason = format!("is {part}; at most 1 is supported");
                    return Err(parameters.error(PART, reason));
                }
            }
        }
        Some(parameters) => {
            let original = match object.get(ORIGINAL) {
                Some(_) => object.positive(ORIGINAL, None)?,
                None => parameters.positive(ORIGINAL, Some(context as f64))?,
            };
            // transformers looks for this key where it does not stand in models whose layers differ.
            if place.section.is_some() && !parameters.flag("truncate", true)? {
                let reason = "is false, which transformers does not apply to layers of one kind";
                return Err(parameters.error("truncate", reason));
            }
            match place.longrope {
                true => longrope(object, parameters, context)?,
                false => {
                    const AXES: &str = "mrope_section";
                    if parameters.get(AXES).is_some() && !place.axes {
                        let reason = "is set: multimodal models are not supported";
                        return Err(parameters.error(AXES, reason));
                    }
                    scaling(parameters, original, context as f64)?
                }
            }
        }
    };
    let query_growth = match (&parameters, place.growth) {
        (Some(parameters), true) if parameters.get(BETA).is_some() => Some(QueryGrowth {
            rate: parameters.positive(BETA, None)?,
            context: parameters.positive(ORIGINAL, Some(context as f64))?,
        }),
        _ => None,
    };
    Ok(RopeSettings {
        theta,
        scaling,
        partial_rotary_factor: part,
        query_growth,
    })
}

/// LongRoPE or no scaling. `parameters` describe it, and `object` is the config that they are in.
fn longrope(object: &Object, parameters: &Object, context: i64) -> Result<RopeScaling, Error> {
    let key = kind_key(parameters);
    match parameters.text(key)?.unwrap_or("default") {
        "default" => return Ok(RopeScaling::None),
        // Names of older files.
        "longrope" | "su" | "yarn" => {}
        other => {
            let reason = format!("is {other:?}; supported: default, longrope");
            return Err(parameters.error(key, reason));
        }
    }
    let factors = |key| match parameters.numbers(key)? {
        Some(factors) if factors.iter().all(|factor| *factor > 0.0) => Ok(factors),
        Some(_) => Err(parameters.error(key, "must have numbers greater than zero")),
        None => Err(parameters.error(key, "is missing")),
    };
    // The config's own key counts, whose class has this default.
    let original = object.integer(ORIGINAL, Some(4096), 2..=1 << 30)?;
    let factor = match parameters.get("factor") {
        Some(_) => parameters.positive("factor", None)?,
        None => context as f64 / original as f64,
    };
    let attention_factor = match parameters.get("attention_factor") {
        Some(_) => parameters.positive("attention_factor", None)?,
        None if factor <= 1.0 => 1.0,
        None => (1.0 + factor.ln() / (original as f64).ln()).sqrt(),
    };
    Ok(RopeScaling::LongRope(LongRope {
        short_factor: factors("short_factor")?,
        long_factor: factors("long_factor")?,
        attention_factor,
        original_max_position_embeddings: original,
    }))
}

/// Where the kind of scaling is named: before transformers 4.45 the key was called `type`.
fn kind_key(parameters: &Object) -> &'static str {
    match parameters.get("rope_type") {
        Some(_) => "rope_type",
        None => "type",
    }
}

fn scaling(object: &Object, original: f64, context: f64) -> Result<RopeScaling, Error> {
    // Models whose layers rotate differently have an object for each kind.
    if let Some((key, _)) = object.keys().find(|(_, value)| value.is_object()) {
        return Err(object.error(
            key,
            "is an object: different rotary embeddings per layer are not supported",
        ));
    }
    let key = kind_key(object);
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
