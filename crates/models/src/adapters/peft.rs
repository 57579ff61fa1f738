//! PEFT's adapter folder: `adapter_config.json` and `adapter_model.safetensors`.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use indexmap::IndexMap;
use serde_json::{Value, json};
use tch::Tensor;

use super::attached::Attached;
use super::attachment::PREFIX;
use super::change::AdapterType;
use super::config::{Biases, Layers, LoraConfig, Modules};
use super::module::LoraModule;
use super::naming::{Naming, exactly};
use crate::Error;
use crate::formats::{SafetensorsFile, TensorSource, write_tensors};
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
    naming: Naming,
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
        let tensors = SafetensorsFile::open(&folder.join(TENSORS))?;
        let names = tensors.names();
        let modules = names.iter().filter_map(|name| name.strip_prefix(PREFIX));
        Ok(Self {
            folder: folder.to_owned(),
            config,
            base_model: object.text("base_model_name_or_path")?.map(str::to_owned),
            naming: Naming::of(modules),
            tensors: Arc::new(tensors),
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

    /// What its config and its file call modules.
    pub(super) fn naming(&self) -> Naming {
        self.naming
    }

    /// The name in its file of the tensor that is called `name` here.
    pub(super) fn stored_name(&self, name: &str) -> String {
        renamed(self.naming, name)
    }

    /// The shape of the tensor that is called `name` here.
    pub(super) fn shape(&self, name: &str) -> Option<Vec<i64>> {
        self.tensors.shape(&self.stored_name(name))
    }

    pub(crate) fn error(&self, reason: impl Into<String>) -> Error {
        Error::file(&self.folder.join(TENSORS), reason)
    }
}

/// Keys of PEFT's `LoraConfig` (0.21.2) that are applied.
pub(super) const APPLIED: [&str; 16] = [
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
    "target_parameters",
    "use_dora",
    "use_rslora",
];

/// The same of `LoHaConfig` and `LoKrConfig`; the last three are of the latter alone.
pub(super) const APPLIED_LYCORIS: [&str; 13] = [
    "alpha",
    "alpha_pattern",
    "exclude_modules",
    "init_weights",
    "layers_pattern",
    "layers_to_transform",
    "modules_to_save",
    "peft_type",
    "r",
    "rank_pattern",
    "target_modules",
    "decompose_both",
    "decompose_factor",
];

/// Unsupported keys of these, with the values at which they have no effect on linear layers and on training.
pub(super) const UNSUPPORTED_LYCORIS: [(&str, &[&str]); 3] = [
    ("rank_dropout", &["0", "0.0"]),
    ("module_dropout", &["0", "0.0"]),
    ("rank_dropout_scale", &["false"]),
];

/// Keys that do not affect the output of a saved adapter: where it came from, how it was initialised, and how
/// PEFT runs it.
pub(super) const NO_EFFECT: [&str; 16] = [
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
    // How convolutions are taken apart; the layers here are linear.
    "use_effective_conv2d",
];

/// Unsupported keys that affect the output, with the values at which they have no effect.
pub(super) const UNSUPPORTED: [(&str, &[&str]); 12] = [
    ("fan_in_fan_out", &["false"]),
    ("layer_replication", &["[]"]),
    ("trainable_token_indices", &["[]", "{}"]),
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
    let kind = match object.text("peft_type")? {
        Some("LORA") => AdapterType::Lora,
        Some("LOHA") => AdapterType::Loha,
        Some("LOKR") => AdapterType::Lokr {
            factor: object.integer("decompose_factor", Some(-1), -1..=1 << 16)?,
            decompose_both: object.flag("decompose_both", false)?,
        },
        other => {
            let other = other.unwrap_or("missing");
            return Err(object.error(
                "peft_type",
                format!("is {other}; only LORA, LOHA and LOKR are supported"),
            ));
        }
    };
    check_keys(object, kind)?;
    check_initialisation(object)?;
    // In PEFT a missing key has its default value, but null is an error.
    let alpha = alpha_key(kind);
    for key in ["r", alpha, "lora_dropout"] {
        if object.has(key) && object.get(key).is_none() {
            return Err(object.error(key, "must be a number, not null"));
        }
    }
    let default = LoraConfig::default();
    let parameters = names(object, "target_parameters")?;
    let config = LoraConfig {
        kind,
        rank: object.integer("r", Some(default.rank), 1..=1 << 16)?,
        alpha: number(object, alpha, object.get(alpha))?.unwrap_or(default.alpha),
        dropout: number(object, "lora_dropout", object.get("lora_dropout"))?.unwrap_or(0.0),
        rslora: object.flag("use_rslora", false)?,
        dora: object.flag("use_dora", false)?,
        target_modules: match modules(object, "target_modules")? {
            Some(modules) => modules,
            None if !parameters.is_empty() => Modules::Suffixes(Vec::new()),
            None => return Err(object.error("target_modules", "is missing")),
        },
        target_parameters: parameters,
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
    super::config::Matcher::new(&config, Naming::ALONE)
        .map_err(|reason| Error::file(object.path(), reason))?;
    Ok(config)
}

/// What PEFT calls alpha.
fn alpha_key(kind: AdapterType) -> &'static str {
    match kind {
        AdapterType::Lora => "lora_alpha",
        _ => "alpha",
    }
}

/// Refuses unsupported and unknown keys that affect the output.
fn check_keys(object: &Object, kind: AdapterType) -> Result<(), Error> {
    let (applied, unsupported): (&[&str], &[(&str, &[&str])]) = match kind {
        AdapterType::Lora => (&APPLIED, &UNSUPPORTED),
        AdapterType::Loha => (&APPLIED_LYCORIS[..11], &UNSUPPORTED_LYCORIS),
        AdapterType::Lokr { .. } => (&APPLIED_LYCORIS, &UNSUPPORTED_LYCORIS),
    };
    for (key, value) in object.keys().filter(|(_, value)| !value.is_null()) {
        let name = key.as_str();
        if applied.contains(&name) || NO_EFFECT.contains(&name) {
            continue;
        }
        let text = value.to_string();
        match unsupported.iter().find(|(key, _)| *key == name) {
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
/// as the name of the base model, in whose class modules have the names of `naming`.
pub fn write_peft(
    folder: &Path,
    attached: &Attached,
    parameters: &Parameters,
    (base_model, naming): (&str, Naming),
) -> Result<(), Error> {
    let mut tensors = parameters.named();
    let restored = tensors.iter().enumerate().map(|(place, (name, tensor))| {
        let restored = attached.restoring(name, tensor)?;
        Ok(restored.map(|restored| (place, restored)))
    });
    let restored: Vec<_> = restored
        .filter_map(Result::transpose)
        .collect::<Result<_, Error>>()?;
    for (place, tensor) in &restored {
        tensors[*place].1 = tensor;
    }
    let tables = attached.tables.iter();
    tensors.extend(tables.map(|(name, table)| (name.clone(), table)));
    for (name, _) in &mut tensors {
        *name = renamed(naming, name);
    }
    write_folder(
        folder,
        &adapter_config(attached, base_model, naming),
        &tensors,
    )
}

/// The name in a file of the tensor that is called `name` here.
fn renamed(naming: Naming, name: &str) -> String {
    match name.strip_prefix(PREFIX) {
        Some(module) => format!("{PREFIX}{}", naming.theirs(module)),
        None => name.to_owned(),
    }
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
pub fn adapter_config(attached: &Attached, base_model: &str, naming: Naming) -> Value {
    let (config, task) = (&attached.config_for(naming), Some("CAUSAL_LM"));
    config_keys(config, &attached.modules, Some(base_model), task)
}

/// The keys of `config`, which is attached to the layers `attached`.
fn config_keys(
    config: &LoraConfig,
    attached: &[String],
    base_model: Option<&str>,
    task_type: Option<&str>,
) -> Value {
    let modules = |modules: &Modules| match modules {
        // Listed explicitly, because PEFT also writes what `all-linear` resolved to.
        Modules::AllLinear => {
            let mut names: Vec<&str> = attached
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
    let mut keys = json!({
        "task_type": task_type,
        "base_model_name_or_path": base_model,
        "inference_mode": true,
        "r": config.rank,
        // PEFT declares alphas as integers, but fractions work too.
        alpha_key(config.kind): json::number(config.alpha),
        "target_modules": modules(&config.target_modules),
        "target_parameters": Some(&config.target_parameters).filter(|names| !names.is_empty()),
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
        "modules_to_save": Some(&config.modules_to_save).filter(|names| !names.is_empty()),
    });
    let of_kind = match config.kind {
        AdapterType::Lora => json!({
            "peft_type": "LORA",
            "lora_dropout": config.dropout,
            "use_rslora": config.rslora,
            "use_dora": config.dora,
            "bias": Biases::NAMED.iter().find(|(bias, _)| *bias == config.bias).map(|(_, name)| name),
            "fan_in_fan_out": false,
            "init_lora_weights": true,
        }),
        AdapterType::Loha => json!({ "peft_type": "LOHA", "init_weights": true }),
        AdapterType::Lokr {
            factor,
            decompose_both,
        } => json!({
            "peft_type": "LOKR",
            "init_weights": true,
            "decompose_factor": factor,
            "decompose_both": decompose_both,
        }),
    };
    if let (Value::Object(keys), Value::Object(of_kind)) = (&mut keys, of_kind) {
        keys.extend(of_kind);
    }
    keys
}

/// Writes changes to single layers as an adapter that [`PeftAdapter::open`] and PEFT read, for a model of this `task_type`.
///
/// # Errors
/// If PEFT has no form for them: if they are of several kinds, or the factors of a LoKr differ in how they divide sides.
pub fn write_changes(
    folder: &Path,
    changes: &BTreeMap<String, LoraModule>,
    base_model: Option<&str>,
    task_type: Option<&str>,
) -> Result<(), Error> {
    let no_form = |what: &str| Error::Invalid(format!("PEFT has no form for {what}"));
    let kind = LoraModule::kind_of_all(changes.values())
        .ok_or_else(|| no_form("adapters of several kinds, or with factors of any size"))?;
    let dora = changes.values().filter(|change| change.magnitude.is_some());
    let dora = dora.count();
    if dora > 0 && (dora < changes.len() || kind != AdapterType::Lora) {
        return Err(no_form("magnitudes beside some LoRAs, or beside others"));
    }
    let most = changes
        .values()
        .map(|change| change.rank_and_alpha().0)
        .max();
    let most = most.unwrap_or(1);
    // The end of a name decides, in PEFT, too: one that others end with is anchored.
    let is_end = |name: &str| {
        let end = format!(".{name}");
        changes.keys().any(|other| other.ends_with(&end))
    };
    let pattern = |name: &String| match is_end(name) {
        true => format!("^{name}"),
        false => name.clone(),
    };
    let ambiguous = changes.keys().any(|name| is_end(name));
    let each = |(name, change): (&String, &LoraModule)| (pattern(name), change.rank_and_alpha());
    let config = LoraConfig {
        kind,
        rank: most,
        alpha: most as f64,
        dora: dora > 0,
        target_modules: match ambiguous {
            true => Modules::from_text(&exactly(&changes.keys().cloned().collect::<Vec<_>>()))
                .map_err(|error| Error::Invalid(error.to_string()))?,
            false => Modules::Suffixes(changes.keys().cloned().collect()),
        },
        rank_pattern: changes
            .iter()
            .map(each)
            .map(|(name, (rank, _))| (name, rank))
            .collect(),
        alpha_pattern: changes
            .iter()
            .map(each)
            .map(|(name, (_, alpha))| (name, alpha))
            .collect(),
        ..LoraConfig::default()
    };
    let mut tensors = Vec::new();
    for (name, change) in changes {
        for (part, tensor) in change.change.parts() {
            tensors.push((format!("{PREFIX}{name}.{part}"), tensor.shallow_clone()));
        }
        if let Some(magnitude) = &change.magnitude {
            let name = format!("{PREFIX}{name}.lora_magnitude_vector");
            tensors.push((name, magnitude.f_flatten(0, -1)?));
        }
    }
    let tensors = tensors.iter().map(|(name, tensor)| (name.clone(), tensor));
    let config = config_keys(&config, &[], base_model, task_type);
    write_folder(folder, &config, &tensors.collect::<Vec<_>>())
}
