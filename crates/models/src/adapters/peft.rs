//! PEFT's adapter folder: `adapter_config.json` and `adapter_model.safetensors`.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use indexmap::IndexMap;
use serde_json::{Value, json};
use tch::Tensor;

use super::attachment::{Attached, IN_WHOLE};
use super::config::{Biases, Layers, LoraConfig, Modules};
use crate::Error;
use crate::formats::{SafetensorsFile, write_tensors};
use crate::json::{self, Object};
use crate::parameters::Parameters;

const CONFIG: &str = "adapter_config.json";
const TENSORS: &str = "adapter_model.safetensors";

/// A saved adapter.
#[derive(Debug, Clone)]
pub struct PeftAdapter {
    folder: PathBuf,
    config: LoraConfig,
    base_model: Option<String>,
    tensors: Arc<SafetensorsFile>,
}

impl PeftAdapter {
    /// Opens an adapter folder, which may be named by the file of its tensors.
    ///
    /// # Errors
    /// If a file is missing or damaged, or the adapter uses unsupported features, because ignoring them would
    /// silently change its effect.
    pub fn open(path: &Path) -> Result<Self, Error> {
        let beside = path
            .parent()
            .filter(|_| path.ends_with(TENSORS) && path.is_file());
        let folder = beside.unwrap_or(path);
        let object = Object::read(&folder.join(CONFIG))?;
        let config = config(&object)?;
        Ok(Self {
            folder: folder.to_owned(),
            config,
            base_model: object.text("base_model_name_or_path")?.map(str::to_owned),
            tensors: Arc::new(SafetensorsFile::open(&folder.join(TENSORS))?),
        })
    }

    /// Its settings.
    pub fn config(&self) -> &LoraConfig {
        &self.config
    }

    /// Name of the base model, as recorded by the program that wrote the adapter.
    pub fn base_model(&self) -> Option<&str> {
        self.base_model.as_deref()
    }

    pub(crate) fn tensors(&self) -> &SafetensorsFile {
        &self.tensors
    }

    pub(crate) fn error(&self, reason: impl Into<String>) -> Error {
        Error::file(&self.folder.join(TENSORS), reason)
    }
}

/// Keys of PEFT's `LoraConfig` (0.21.2) that are applied.
pub(super) const APPLIED: [&str; 15] = [
    "alpha_pattern",
    "bias",
    "exclude_modules",
    "init_lora_weights",
    "layers_pattern",
    "layers_to_transform",
    "lora_alpha",
    "lora_dropout",
    "modules_to_save",
    "peft_type",
    "r",
    "rank_pattern",
    "target_modules",
    "use_dora",
    "use_rslora",
];

/// Keys that do not affect the output of a saved adapter: where it came from, how it was initialised, and how
/// PEFT runs it.
pub(super) const NO_EFFECT: [&str; 15] = [
    "auto_mapping",
    "base_model_name_or_path",
    "corda_config",
    "eva_config",
    "inference_mode",
    "loftq_config",
    "lora_ga_config",
    "megatron_config",
    "megatron_core",
    "peft_version",
    "qalora_group_size",
    "revision",
    "runtime_config",
    "task_type",
    "tp_config",
];

/// Unsupported keys that affect the output, with the values at which they have no effect.
pub(super) const UNSUPPORTED: [(&str, &[&str]); 13] = [
    ("fan_in_fan_out", &["false"]),
    ("layer_replication", &["[]"]),
    ("trainable_token_indices", &["[]", "{}"]),
    ("target_parameters", &["[]"]),
    ("lora_bias", &["false"]),
    ("use_qalora", &["false"]),
    ("use_bdlora", &["false"]),
    ("alora_invocation_tokens", &["[]"]),
    ("arrow_config", &["{}"]),
    ("monteclora_config", &["{}"]),
    ("velora_config", &["{}"]),
    ("kasa_config", &["{}"]),
    ("ensure_weight_tying", &["false"]),
];

/// Values of `init_lora_weights` that leave the base weights unchanged.
const INITIALISATIONS: [&str; 3] = ["gaussian", "orthogonal", "eva"];

/// Reads `adapter_config.json`.
///
/// # Errors
/// The error names the file, the key, what is allowed and what was found.
pub(super) fn config(object: &Object) -> Result<LoraConfig, Error> {
    match object.text("peft_type")? {
        Some("LORA") => {}
        other => {
            let other = other.unwrap_or("missing");
            return Err(object.error("peft_type", format!("is {other}; only LORA is supported")));
        }
    }
    check_keys(object)?;
    check_initialisation(object)?;
    // In PEFT a missing key has its default value, but null is an error.
    for key in ["r", "lora_alpha", "lora_dropout"] {
        if object.has(key) && object.get(key).is_none() {
            return Err(object.error(key, "must be a number, not null"));
        }
    }
    let default = LoraConfig::default();
    let config = LoraConfig {
        rank: object.integer("r", Some(default.rank), 1..=1 << 16)?,
        alpha: number(object, "lora_alpha", object.get("lora_alpha"))?.unwrap_or(default.alpha),
        dropout: number(object, "lora_dropout", object.get("lora_dropout"))?.unwrap_or(0.0),
        rslora: object.flag("use_rslora", false)?,
        dora: object.flag("use_dora", false)?,
        target_modules: modules(object, "target_modules")?
            .ok_or_else(|| object.error("target_modules", "is missing"))?,
        exclude_modules: modules(object, "exclude_modules")?,
        layers: layers(object)?,
        modules_to_save: names(object, "modules_to_save")?,
        bias: biases(object)?,
        rank_pattern: pattern(object, "rank_pattern", |object, key, value| {
            match value.as_i64().filter(|rank| (1..=1 << 16).contains(rank)) {
                Some(rank) => Ok(rank),
                None => Err(object.error(key, format!("must be from 1 to 65536, not {value}"))),
            }
        })?,
        alpha_pattern: pattern(object, "alpha_pattern", |object, key, value| {
            number(object, key, Some(value))?.ok_or_else(|| object.error(key, "is missing"))
        })?,
    };
    super::config::Matcher::new(&config).map_err(|reason| Error::file(object.path(), reason))?;
    Ok(config)
}

/// Refuses unsupported and unknown keys that affect the output.
fn check_keys(object: &Object) -> Result<(), Error> {
    for (key, value) in object.keys().filter(|(_, value)| !value.is_null()) {
        let name = key.as_str();
        if APPLIED.contains(&name) || NO_EFFECT.contains(&name) {
            continue;
        }
        let text = value.to_string();
        match UNSUPPORTED.iter().find(|(key, _)| *key == name) {
            Some((_, harmless)) if harmless.contains(&text.as_str()) => {}
            Some(_) => {
                return Err(object.error(key, format!("is {text}, which is not supported")));
            }
            // A newer PEFT writes its new options too, most of them off.
            None if ["false", "[]", "{}", "\"\""].contains(&text.as_str()) => {
                tracing::warn!(
                    "`{}`: `{key}: {text}` is not supported and assumed to be off",
                    object.path().display()
                );
            }
            None => {
                let reason = format!(
                    "is {text}: this key is not supported and may change the adapter's output"
                );
                return Err(object.error(key, reason));
            }
        }
    }
    Ok(())
}

/// Refuses adapters that were trained on modified base weights (PiSSA, OLoRA, CorDA, LoftQ, LoRA-GA, …): PEFT
/// modifies the base again when it loads them.
fn check_initialisation(object: &Object) -> Result<(), Error> {
    const KEY: &str = "init_lora_weights";
    match object.get(KEY) {
        None | Some(Value::Bool(_)) => Ok(()),
        Some(Value::String(name)) if INITIALISATIONS.contains(&name.to_lowercase().as_str()) => {
            Ok(())
        }
        Some(value) => Err(object.error(
            KEY,
            format!(
                "is {value}: such an adapter belongs to a base model whose weights were changed with it. \
                 Save it in PEFT with `save_pretrained(…, path_initial_model_for_weight_conversion=…)`, \
                 which makes it an adapter for the published weights"
            ),
        )),
    }
}

/// `layers_to_transform` (a number or a list) and `layers_pattern` (a name or a list).
fn layers(object: &Object) -> Result<Option<Layers>, Error> {
    const INDICES: &str = "layers_to_transform";
    const LISTS: &str = "layers_pattern";
    let indices = match object.get(INDICES) {
        None => Vec::new(),
        Some(Value::Array(values)) => values.clone(),
        Some(value) => vec![value.clone()],
    };
    let indices: Option<Vec<u64>> = indices.iter().map(Value::as_u64).collect();
    let indices = indices
        .ok_or_else(|| object.error(INDICES, "must be a block's number or a list of them"))?;
    let lists = match object.get(LISTS) {
        Some(Value::String(name)) => vec![name.clone()],
        _ => names(object, LISTS)?,
    };
    let lists = lists.into_iter().filter(|name| !name.is_empty()).collect();
    let layers = Layers { indices, lists };
    Ok((layers != Layers::default()).then_some(layers))
}

fn number(object: &Object, key: &str, value: Option<&Value>) -> Result<Option<f64>, Error> {
    match value {
        None => Ok(None),
        Some(value) => match value.as_f64() {
            Some(number) => Ok(Some(number)),
            None => Err(object.error(key, format!("must be a number, not {value}"))),
        },
    }
}

/// A list of names; empty if the key is missing.
fn names(object: &Object, key: &str) -> Result<Vec<String>, Error> {
    let names = match object.get(key) {
        None => Some(Vec::new()),
        Some(Value::Array(names)) => {
            let names = names.iter().map(|name| name.as_str().map(str::to_owned));
            names.collect()
        }
        Some(_) => None,
    };
    names.ok_or_else(|| object.error(key, "must be a list of names"))
}

fn biases(object: &Object) -> Result<Biases, Error> {
    const KEY: &str = "bias";
    let name = object.text(KEY)?.unwrap_or("none");
    let found = Biases::NAMED.into_iter().find(|(_, known)| *known == name);
    match found {
        Some((biases, _)) => Ok(biases),
        None => Err(object.error(
            KEY,
            format!("is {name:?}; `none`, `all` and `lora_only` are known"),
        )),
    }
}

fn modules(object: &Object, key: &str) -> Result<Option<Modules>, Error> {
    match object.get(key) {
        None => Ok(None),
        Some(Value::String(text)) => Modules::from_text(text)
            .map(Some)
            .map_err(|reason| object.error(key, reason)),
        Some(Value::Array(_)) => Ok(Some(Modules::Suffixes(names(object, key)?))),
        Some(_) => Err(object.error(key, "must be a name pattern or a list of names")),
    }
}

fn pattern<T>(
    object: &Object,
    key: &str,
    read: impl Fn(&Object, &str, &Value) -> Result<T, Error>,
) -> Result<IndexMap<String, T>, Error> {
    let Some(map) = object.object(key)? else {
        return Ok(IndexMap::new());
    };
    map.keys()
        .map(|(name, value)| Ok((name.clone(), read(&map, name, value)?)))
        .collect()
}

/// Writes an adapter that PEFT loads with `PeftModel.from_pretrained(base, folder)`. `base_model` is recorded
/// as the name of the base model.
pub fn write_peft(
    folder: &Path,
    attached: &Attached,
    parameters: &Parameters,
    base_model: &str,
) -> Result<(), Error> {
    let mut tensors = parameters.named();
    let tables = attached.tables.iter();
    tensors.extend(tables.map(|(name, table)| (name.clone(), table)));
    write_folder(folder, &adapter_config(attached, base_model), &tensors)
}

/// Writes the two files of an adapter.
pub(crate) fn write_folder(
    folder: &Path,
    config: &Value,
    tensors: &[(String, &Tensor)],
) -> Result<(), Error> {
    std::fs::create_dir_all(folder).map_err(|error| Error::io("create", folder, error))?;
    write_tensors(&folder.join(TENSORS), tensors)?;
    let path = folder.join(CONFIG);
    std::fs::write(&path, format!("{config:#}\n")).map_err(|error| Error::io("write", &path, error))
}

/// The `adapter_config.json` that [`write_peft`] writes.
pub fn adapter_config(attached: &Attached, base_model: &str) -> Value {
    let config = &attached.config;
    let in_whole = attached
        .modules
        .iter()
        .any(|name| name.starts_with(IN_WHOLE));
    let modules = |modules: &Modules| match modules {
        // Listed explicitly, because PEFT also writes what `all-linear` resolved to.
        Modules::AllLinear => {
            let mut names: Vec<&str> = attached
                .modules
                .iter()
                .map(|name| name.rsplit('.').next().unwrap_or(name))
                .collect();
            names.sort_unstable();
            names.dedup();
            json!(names)
        }
        Modules::Suffixes(names) => json!(names),
        Modules::Regex(regex) => json!(regex.text()),
    };
    json!({
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": base_model,
        "inference_mode": true,
        "r": config.rank,
        // PEFT declares alphas as integers, but fractions work too.
        "lora_alpha": json::number(config.alpha),
        "lora_dropout": config.dropout,
        "use_rslora": config.rslora,
        "use_dora": config.dora,
        // In a larger model, the ends of names may be those of layers in other parts, too.
        "target_modules": match in_whole {
            true => json!(attached.modules),
            false => modules(&config.target_modules),
        },
        "exclude_modules": config.exclude_modules.as_ref().map(modules),
        "layers_to_transform": config.layers.as_ref().map(|layers| &layers.indices),
        "layers_pattern": config
            .layers
            .as_ref()
            .map(|layers| &layers.lists)
            .filter(|lists| !lists.is_empty()),
        "rank_pattern": config.rank_pattern,
        "alpha_pattern": config
            .alpha_pattern
            .iter()
            .map(|(name, alpha)| (name.clone(), json::number(*alpha)))
            .collect::<serde_json::Map<_, _>>(),
        "bias": Biases::NAMED.iter().find(|(bias, _)| *bias == config.bias).map(|(_, name)| name),
        "fan_in_fan_out": false,
        "init_lora_weights": true,
        "modules_to_save": Some(&config.modules_to_save).filter(|names| !names.is_empty()),
    })
}
