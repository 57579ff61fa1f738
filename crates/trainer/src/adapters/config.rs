//! Which layers get an adapter, and of what rank. The rules are PEFT's, so that a
//! config means here what it means there.

use std::collections::BTreeMap;

use regex::Regex;

/// What a LoRA is made of: PEFT's `LoraConfig` by name.
#[derive(Debug, Clone)]
pub struct LoraConfig {
    /// Rank of the change.
    pub rank: i64,
    /// Strength: the change is scaled by `alpha / rank`.
    pub alpha: f64,
    /// Probability with which an input number is left out in training.
    pub dropout: f64,
    /// Scale by `alpha / √rank` instead, which keeps high ranks from learning slower
    /// (Kalajdzievski, 2023).
    pub rslora: bool,
    /// Learn each row's magnitude apart from its direction (Liu et al., 2024).
    pub dora: bool,
    /// Layers that get an adapter.
    pub target_modules: Modules,
    /// Layers that get none, whatever `target_modules` says.
    pub exclude_modules: Option<Modules>,
    /// Other ranks for some layers, by regular expression at the end of the name.
    pub rank_pattern: BTreeMap<String, i64>,
    /// Other alphas for some layers, likewise.
    pub alpha_pattern: BTreeMap<String, f64>,
}

impl Default for LoraConfig {
    /// PEFT's defaults.
    fn default() -> Self {
        Self {
            rank: 8,
            alpha: 8.0,
            dropout: 0.0,
            rslora: false,
            dora: false,
            target_modules: Modules::Suffixes(vec!["q_proj".into(), "v_proj".into()]),
            exclude_modules: None,
            rank_pattern: BTreeMap::new(),
            alpha_pattern: BTreeMap::new(),
        }
    }
}

/// A choice of layers.
#[derive(Debug, Clone)]
pub enum Modules {
    /// Every linear layer but the head.
    AllLinear,
    /// Layers of these names, whole or after a dot.
    Suffixes(Vec<String>),
    /// Layers whose whole name matches.
    Regex(WholeRegex),
}

impl Modules {
    /// What PEFT understands by one string: `all-linear`, or a regular expression.
    ///
    /// # Errors
    /// When it is not a regular expression that can be used here.
    pub fn from_text(text: &str) -> Result<Self, String> {
        if text.eq_ignore_ascii_case("all-linear") {
            return Ok(Self::AllLinear);
        }
        WholeRegex::new(text).map(Self::Regex)
    }

    /// Whether the layer called `name` is among them.
    pub fn contain(&self, name: &str) -> bool {
        match self {
            Self::AllLinear => name != "lm_head",
            Self::Suffixes(suffixes) => suffixes.iter().any(|suffix| {
                name.strip_suffix(suffix.as_str())
                    .is_some_and(|rest| rest.is_empty() || rest.ends_with('.'))
            }),
            Self::Regex(regex) => regex.compiled.is_match(name),
        }
    }
}

/// A regular expression that has to match all of a name, and the text it was made of.
#[derive(Debug, Clone)]
pub struct WholeRegex {
    text: String,
    compiled: Regex,
}

impl WholeRegex {
    fn new(text: &str) -> Result<Self, String> {
        let compiled = compile(&format!(r"\A(?:{text})\z"), text)?;
        Ok(Self {
            text: text.to_owned(),
            compiled,
        })
    }

    /// The expression as it was written.
    pub fn text(&self) -> &str {
        &self.text
    }
}

fn compile(regex: &str, shown: &str) -> Result<Regex, String> {
    Regex::new(regex).map_err(|error| {
        let reason = error.to_string();
        let reason = reason.lines().last().unwrap_or_default().trim();
        format!("{shown:?} is not a regular expression that is known here: {reason}")
    })
}

/// Rank and scale of one layer's adapter.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Shape {
    pub(crate) rank: i64,
    pub(crate) scaling: f64,
}

/// A config whose patterns are ready to be matched.
#[derive(Debug, Clone)]
pub(crate) struct Matcher {
    config: LoraConfig,
    ranks: Vec<(Regex, i64)>,
    alphas: Vec<(Regex, f64)>,
}

impl Matcher {
    /// # Errors
    /// What is wrong with the config: which key, and what would be right.
    pub(crate) fn new(config: &LoraConfig) -> Result<Self, String> {
        let ranks = config.rank_pattern.values().chain([&config.rank]);
        if let Some(rank) = ranks
            .into_iter()
            .find(|rank| !(1..=1 << 16).contains(*rank))
        {
            return Err(format!("a rank must be from 1 to 65536, not {rank}"));
        }
        let mut alphas = config.alpha_pattern.values().chain([&config.alpha]);
        if let Some(alpha) = alphas.find(|alpha| !alpha.is_finite()) {
            return Err(format!("an alpha must be finite, not {alpha}"));
        }
        if !(0.0..1.0).contains(&config.dropout) {
            return Err(format!(
                "the dropout must be at least 0 and less than 1, not {}",
                config.dropout
            ));
        }
        Ok(Self {
            ranks: patterns(&config.rank_pattern)?,
            alphas: patterns(&config.alpha_pattern)?,
            config: config.clone(),
        })
    }

    pub(crate) fn config(&self) -> &LoraConfig {
        &self.config
    }

    /// The adapter that the layer called `name` gets.
    pub(crate) fn shape(&self, name: &str) -> Option<Shape> {
        let excluded = self.config.exclude_modules.as_ref();
        if excluded.is_some_and(|modules| modules.contain(name))
            || !self.config.target_modules.contain(name)
        {
            return None;
        }
        let rank = first(&self.ranks, name).unwrap_or(self.config.rank);
        let alpha = first(&self.alphas, name).unwrap_or(self.config.alpha);
        let divisor = match self.config.rslora {
            true => (rank as f64).sqrt(),
            false => rank as f64,
        };
        Some(Shape {
            rank,
            scaling: alpha / divisor,
        })
    }
}

/// `key` matches at the end of a name, from its start or from behind a dot.
fn patterns<T: Copy>(map: &BTreeMap<String, T>) -> Result<Vec<(Regex, T)>, String> {
    map.iter()
        .map(|(key, value)| Ok((compile(&format!(r"\A(?:.*\.)?(?:{key})\z"), key)?, *value)))
        .collect()
}

fn first<T: Copy>(patterns: &[(Regex, T)], name: &str) -> Option<T> {
    patterns
        .iter()
        .find(|(regex, _)| regex.is_match(name))
        .map(|(_, value)| *value)
}
