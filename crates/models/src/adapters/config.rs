//! Which layers get an adapter, and of what rank. The rules are PEFT's, so a config means the same here as
//! there.

use indexmap::IndexMap;
use regex::Regex;

use super::change::AdapterType;
use super::naming::Naming;

/// Module name of the token embedding.
pub(crate) const EMBEDDING: &str = "model.embed_tokens";
/// Module name of the output head.
pub(crate) const HEAD: &str = "lm_head";

/// Settings of an adapter, as in PEFT's `LoraConfig`, `LoHaConfig` and `LoKrConfig`.
#[derive(Debug, Clone)]
pub struct LoraConfig {
    /// What each layer gets.
    pub kind: AdapterType,
    /// Rank of B·A.
    pub rank: i64,
    /// B·A is scaled by `alpha / rank`.
    pub alpha: f64,
    /// Dropout probability of the adapter's input in training.
    pub dropout: f64,
    /// Scale by `alpha / √rank` instead, so that high ranks do not train more slowly (Kalajdzievski, 2023).
    pub rslora: bool,
    /// Train each row's magnitude separately from its direction (DoRA; Liu et al., 2024).
    pub dora: bool,
    /// Layers that get an adapter.
    pub target_modules: Modules,
    /// Tensors of experts that get an adapter, by the end of their names: `mlp.experts.gate_up_proj`.
    pub target_parameters: Vec<String>,
    /// Layers that never get one; takes precedence over `target_modules`.
    pub exclude_modules: Option<Modules>,
    /// Restricts `target_modules` to these blocks; `None` for all blocks.
    pub layers: Option<Layers>,
    /// Modules that are trained in full besides the adapters, matched by the end of their names. A module is
    /// a layer, a norm, the embedding, or any container of these.
    pub modules_to_save: Vec<String>,
    /// Biases that are trained besides the adapters.
    pub bias: Biases,
    /// Ranks for individual layers, by regular expressions that match the end of the name. The first match
    /// counts.
    pub rank_pattern: IndexMap<String, i64>,
    /// Alphas for individual layers, matched in the same way.
    pub alpha_pattern: IndexMap<String, f64>,
}

impl Default for LoraConfig {
    /// PEFT's defaults.
    fn default() -> Self {
        Self {
            kind: AdapterType::Lora,
            rank: 8,
            alpha: 8.0,
            dropout: 0.0,
            rslora: false,
            dora: false,
            target_modules: Modules::Suffixes(vec!["q_proj".into(), "v_proj".into()]),
            target_parameters: Vec::new(),
            exclude_modules: None,
            layers: None,
            modules_to_save: Vec::new(),
            bias: Biases::None,
            rank_pattern: IndexMap::new(),
            alpha_pattern: IndexMap::new(),
        }
    }
}

/// Which of the model's own biases are trained: PEFT's `bias`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Biases {
    /// None.
    None,
    /// Every bias of the model.
    All,
    /// Those of layers that have an adapter.
    LoraOnly,
}

impl Biases {
    /// All variants with their PEFT names.
    pub(crate) const NAMED: [(Self, &'static str); 3] = [
        (Self::None, "none"),
        (Self::All, "all"),
        (Self::LoraOnly, "lora_only"),
    ];
}

/// A selection of layers.
#[derive(Debug, Clone)]
pub enum Modules {
    /// Every linear layer except the head, experts and their routers.
    AllLinear,
    /// Layers whose name equals one of these, or ends in it after a dot.
    Suffixes(Vec<String>),
    /// Layers whose full name matches.
    Regex(WholeRegex),
}

impl Modules {
    /// PEFT's meaning of a single string: `all-linear`, or a regular expression.
    pub fn from_text(text: &str) -> Result<Self, String> {
        if text.eq_ignore_ascii_case("all-linear") {
            return Ok(Self::AllLinear);
        }
        WholeRegex::new(text).map(Self::Regex)
    }

    /// Whether it selects the layer `name`.
    pub fn contains(&self, name: &str) -> bool {
        match self {
            Self::AllLinear => {
                let in_mixture = name.contains(".experts.")
                    || [
                        ".mlp.gate",
                        ".mlp.router",
                        ".router.proj",
                        ".embed_tokens_per_layer",
                    ]
                    .iter()
                    .any(|end| name.ends_with(end));
                !is_end(HEAD, name) && !is_end("embed_tokens", name) && !in_mixture
            }
            Self::Suffixes(suffixes) => suffixes.iter().any(|suffix| is_end(suffix, name)),
            Self::Regex(regex) => regex.compiled.is_match(name),
        }
    }
}

/// A selection of blocks by index: PEFT's `layers_to_transform` and `layers_pattern`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Layers {
    /// Indices of the blocks.
    pub indices: Vec<u64>,
    /// Names of the module lists that the indices refer to, such as `layers`; empty for any list.
    pub lists: Vec<String>,
}

/// A regular expression that has to match a full name, with its source text.
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

    /// The source text.
    pub fn text(&self) -> &str {
        &self.text
    }
}

fn compile(regex: &str, shown: &str) -> Result<Regex, String> {
    Regex::new(regex).map_err(|error| {
        let reason = error.to_string();
        let reason = reason.lines().last().unwrap_or_default().trim();
        format!("{shown:?} is not a supported regular expression: {reason}")
    })
}

/// Rank and scaling of one layer's adapter.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct RankAndScaling {
    pub(crate) rank: i64,
    pub(crate) scaling: f64,
}

/// The module names that a config matched in a model.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Effects<'a> {
    /// Layers that can have an adapter.
    pub(crate) seen: &'a [String],
    /// Layers that have one.
    pub(crate) attached: &'a [String],
    /// Tensors of experts that have one.
    pub(crate) parameters: &'a [String],
    /// Modules that are trained in full.
    pub(crate) saved: &'a [String],
}

/// Entries of a config that have no effect on a model, by key.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Unused {
    /// Entries of `target_modules` that match no layer.
    pub(crate) unknown: Vec<String>,
    /// Entries of `target_modules` that led to no adapter: `unknown`, and those that another key overrides.
    pub(crate) targets: Vec<String>,
    /// Entries of `target_parameters`.
    pub(crate) parameters: Vec<String>,
    /// Entries of `exclude_modules`.
    pub(crate) excluded: Vec<String>,
    /// Entries of `modules_to_save`.
    pub(crate) saved: Vec<String>,
    /// Numbers in `layers_to_transform`.
    pub(crate) layers: Vec<u64>,
    /// Keys of `rank_pattern`.
    pub(crate) ranks: Vec<String>,
    /// Keys of `alpha_pattern`.
    pub(crate) alphas: Vec<String>,
}

impl Unused {
    /// All entries, each as `key: entry`.
    pub(crate) fn list(&self) -> Vec<String> {
        let keys = [
            ("target_modules", &self.targets),
            ("target_parameters", &self.parameters),
            ("exclude_modules", &self.excluded),
            ("modules_to_save", &self.saved),
            ("rank_pattern", &self.ranks),
            ("alpha_pattern", &self.alphas),
        ];
        let entries = keys.into_iter().flat_map(|(key, entries)| {
            let line = move |entry: &String| format!("{key}: {entry}");
            entries.iter().map(line)
        });
        let layers = self.layers.iter();
        let layers = layers.map(|number| format!("layers_to_transform: {number}"));
        entries.chain(layers).collect()
    }

    /// `config` without these entries.
    pub(crate) fn removed_from(&self, mut config: LoraConfig) -> LoraConfig {
        let keep = |modules: &mut Modules, unused: &[String]| {
            if let Modules::Suffixes(names) = modules {
                names.retain(|name| !unused.contains(name));
            }
        };
        keep(&mut config.target_modules, &self.targets);
        (config.target_parameters).retain(|name| !self.parameters.contains(name));
        if let Some(excluded) = &mut config.exclude_modules {
            keep(excluded, &self.excluded);
        }
        config
            .modules_to_save
            .retain(|name| !self.saved.contains(name));
        if let Some(layers) = &mut config.layers {
            layers
                .indices
                .retain(|number| !self.layers.contains(number));
            if layers.indices.is_empty() {
                config.layers = None;
            }
        }
        config
            .rank_pattern
            .retain(|name, _| !self.ranks.contains(name));
        config
            .alpha_pattern
            .retain(|name, _| !self.alphas.contains(name));
        config
    }
}

/// A config with compiled patterns.
#[derive(Debug, Clone)]
pub(crate) struct Matcher {
    config: LoraConfig,
    /// What the config calls modules.
    naming: Naming,
    ranks: Vec<(Regex, i64)>,
    alphas: Vec<(Regex, f64)>,
    /// Patterns that extract the block index from a layer's name; the first match counts.
    numbers: Vec<Regex>,
    /// Layers inside these get no adapter, because they are trained in full.
    saved: Vec<Regex>,
}

impl Matcher {
    /// # Errors
    /// If the config is invalid; the message names the key and what is allowed.
    pub(crate) fn new(config: &LoraConfig, naming: Naming) -> Result<Self, String> {
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
        if !config.target_parameters.is_empty() {
            // As PEFT does: it adds the change to the tensor itself.
            let other = config.kind != AdapterType::Lora;
            let refused = [
                (config.dropout > 0.0, "dropout"),
                (config.dora, "DoRA"),
                (other, config.kind.name()),
            ];
            if let Some((_, what)) = refused.into_iter().find(|(is_set, _)| *is_set) {
                return Err(format!(
                    "adapters on experts (`target_parameters`) do not work with {what}"
                ));
            }
        }
        if let AdapterType::Lokr { factor, .. } = config.kind
            && !(factor == -1 || factor >= 1)
        {
            return Err(format!(
                "`decompose_factor` must be -1, or 1 or more, not {factor}"
            ));
        }
        for (key, is_set) in [
            ("use_dora", config.dora),
            ("use_rslora", config.rslora),
            ("lora_dropout", config.dropout > 0.0),
            ("bias", config.bias != Biases::None),
        ] {
            if is_set && config.kind != AdapterType::Lora {
                return Err(format!(
                    "`{key}` is for LoRAs: PEFT has it not for a {}",
                    config.kind.name()
                ));
            }
        }
        if let Some(layers) = &config.layers {
            // PEFT refuses both, too.
            if layers.indices.is_empty() {
                return Err("`layers_pattern` has no effect without `layers_to_transform`".into());
            }
            if matches!(config.target_modules, Modules::Regex(_)) {
                return Err(
                    "`layers_to_transform` needs a list of `target_modules`: a regular \
                            expression names its blocks itself"
                        .into(),
                );
            }
        }
        Ok(Self {
            numbers: config
                .layers
                .as_ref()
                .map_or(Ok(Vec::new()), block_numbers)?,
            ranks: patterns(&config.rank_pattern)?,
            alphas: patterns(&config.alpha_pattern)?,
            saved: config
                .modules_to_save
                .iter()
                .map(|name| compile(&format!(r"\A(?:.*\.)?{name}(?:\z|\.)"), name))
                .collect::<Result<_, _>>()?,
            config: config.clone(),
            naming,
        })
    }

    pub(crate) fn config(&self) -> &LoraConfig {
        &self.config
    }

    /// Whether the layer is in one of the blocks that `layers` selects.
    fn is_in_chosen_block(&self, name: &str) -> bool {
        let Some(layers) = &self.config.layers else {
            return true;
        };
        // In PEFT, a full name is not filtered by block.
        if matches!(&self.config.target_modules, Modules::Suffixes(names) if names.iter().any(|n| n == name))
        {
            return true;
        }
        self.block(name)
            .is_some_and(|number| layers.indices.contains(&number))
    }

    /// The index of the block that contains the layer `name`, as `layers` counts.
    fn block(&self, name: &str) -> Option<u64> {
        // PEFT matches from the root of the model it wraps, as this crate names layers.
        let found = self.numbers.iter().find_map(|regex| regex.captures(name));
        found.and_then(|found| found[1].parse().ok())
    }

    /// The module in `modules_to_save` that contains the tensor `tensor`.
    ///
    /// # Errors
    /// If there are several, one inside the other, or it is a list of blocks; PEFT refuses both.
    pub(crate) fn saved_module<'t>(&self, tensor: &'t str) -> Result<Option<&'t str>, String> {
        let ends = tensor.match_indices('.').map(|(end, _)| &tensor[..end]);
        let mut modules = ends.filter(|module| self.is_saved(module));
        let Some(outer) = modules.next() else {
            return Ok(None);
        };
        if outer.ends_with(".layers") {
            return Err(format!(
                "`modules_to_save`: `{outer}` is a list of blocks; name one, as in `layers.0`"
            ));
        }
        match modules.next() {
            None => Ok(Some(outer)),
            Some(inner) => Err(format!(
                "`modules_to_save`: `{inner}` is part of `{outer}`, which is already trained in full"
            )),
        }
    }

    /// Whether the name ends in an entry of `modules_to_save`.
    fn is_saved(&self, module: &str) -> bool {
        let module = self.naming.theirs(module);
        let mut entries = self.config.modules_to_save.iter();
        entries.any(|entry| module.ends_with(entry.as_str()))
    }

    /// Fails if the layer `name`, which has an adapter, is also to be trained in full.
    pub(crate) fn expect_not_saved(&self, name: &str) -> Result<(), String> {
        let parts = name.match_indices('.').map(|(end, _)| &name[..end]);
        match parts.chain([name]).find(|module| self.is_saved(module)) {
            None => Ok(()),
            Some(module) => Err(format!(
                "`modules_to_save` has the end of `{module}`, and `target_modules` puts an adapter on \
                 `{name}`: write the name in `modules_to_save` from its start, or from behind a dot"
            )),
        }
    }

    /// Entries of the config that have no effect on the model.
    pub(crate) fn unused(&self, model: &Effects) -> Unused {
        let theirs = |names: &[String]| -> Vec<String> {
            let names = names.iter().map(|name| self.naming.theirs(name));
            names.collect()
        };
        let (seen, attached) = (&theirs(model.seen), &theirs(model.attached));
        let (saved, parameters) = (theirs(model.saved), theirs(model.parameters));
        let config = &self.config;
        let unused = |modules: &Modules, among: &[String]| -> Vec<String> {
            let Modules::Suffixes(suffixes) = modules else {
                return Vec::new();
            };
            let is_unused = |suffix: &&String| {
                let one = Modules::Suffixes(vec![(*suffix).clone()]);
                !among.iter().any(|name| one.contains(name))
            };
            suffixes.iter().filter(is_unused).cloned().collect()
        };
        let adapted: Vec<_> = attached.iter().chain(&parameters).cloned().collect();
        let keys = |patterns: Vec<&Regex>, keys: Vec<&String>| -> Vec<String> {
            let pairs = patterns.into_iter().zip(keys);
            let unused =
                pairs.filter(|(regex, _)| !adapted.iter().any(|name| regex.is_match(name)));
            unused.map(|(_, name)| name.clone()).collect()
        };
        let excluded = config.exclude_modules.as_ref();
        let is_unsaved = |entry: &&String| !saved.iter().any(|name| name.ends_with(entry.as_str()));
        Unused {
            unknown: unused(&config.target_modules, seen),
            targets: unused(&config.target_modules, attached),
            parameters: {
                let targets = config.target_parameters.iter();
                let is_unused = |target: &&String| !parameters.iter().any(|p| is_end(target, p));
                targets.filter(is_unused).cloned().collect()
            },
            excluded: excluded.map_or(Vec::new(), |excluded| unused(excluded, seen)),
            saved: config
                .modules_to_save
                .iter()
                .filter(is_unsaved)
                .cloned()
                .collect(),
            layers: match &config.layers {
                None => Vec::new(),
                Some(layers) => {
                    let is_empty = |number: &&u64| {
                        !attached
                            .iter()
                            .any(|name| self.block(name) == Some(**number))
                    };
                    layers.indices.iter().filter(is_empty).copied().collect()
                }
            },
            ranks: keys(
                self.ranks.iter().map(|(regex, _)| regex).collect(),
                config.rank_pattern.keys().collect(),
            ),
            alphas: keys(
                self.alphas.iter().map(|(regex, _)| regex).collect(),
                config.alpha_pattern.keys().collect(),
            ),
        }
    }

    /// Rank and scaling of the adapter for the layer `name`, if it gets one.
    pub(crate) fn shape(&self, name: &str) -> Option<RankAndScaling> {
        let name = &self.naming.theirs(name);
        let excluded = self.config.exclude_modules.as_ref();
        if excluded.is_some_and(|modules| modules.contains(name))
            || !self.config.target_modules.contains(name)
            || !self.is_in_chosen_block(name)
            || self.saved.iter().any(|saved| saved.is_match(name))
        {
            return None;
        }
        Some(self.scaled(name))
    }

    /// The same for the tensor of experts `name`. As in PEFT, neither excluded modules nor chosen blocks matter.
    pub(crate) fn parameter_shape(&self, name: &str) -> Option<RankAndScaling> {
        let name = &self.naming.theirs(name);
        let mut targets = self.config.target_parameters.iter();
        (targets.any(|target| is_end(target, name))).then(|| self.scaled(name))
    }

    fn scaled(&self, name: &str) -> RankAndScaling {
        let (rank, alpha) = self.rank_and_alpha(name);
        let divisor = match self.config.rslora {
            true => (rank as f64).sqrt(),
            false => rank as f64,
        };
        RankAndScaling {
            rank,
            scaling: alpha / divisor,
        }
    }

    /// Rank and alpha of what the config calls `name`.
    pub(super) fn rank_and_alpha(&self, name: &str) -> (i64, f64) {
        let rank = first(&self.ranks, name).unwrap_or(self.config.rank);
        let alpha = first(&self.alphas, name).unwrap_or(self.config.alpha);
        (rank, alpha)
    }

    /// What the config calls modules.
    pub(super) fn naming(&self) -> Naming {
        self.naming
    }
}

/// Whether `name` is `end`, or ends in it after a dot.
fn is_end(end: &str, name: &str) -> bool {
    let rest = name.strip_suffix(end);
    rest.is_some_and(|rest| rest.is_empty() || rest.ends_with('.'))
}

/// Patterns that find a block's index in a name, as PEFT does (`check_target_module_exists`): the first
/// number after one of the lists, or after any component but the first.
fn block_numbers(layers: &Layers) -> Result<Vec<Regex>, String> {
    if layers.lists.is_empty() {
        return Ok(vec![compile(r"\A.*?\.[^.]*\.(\d+)\.", "layers")?]);
    }
    let lists = layers.lists.iter();
    lists
        .map(|list| compile(&format!(r"\A(?:.*?\.)?(?:{list})\.(\d+)\."), list))
        .collect()
}

/// Compiled patterns; a key matches at the end of a name, starting at its beginning or after a dot.
fn patterns<T: Copy>(map: &IndexMap<String, T>) -> Result<Vec<(Regex, T)>, String> {
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
