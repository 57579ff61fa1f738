//! PEFT's folder: `adapter_config.json` and `adapter_model.safetensors`.

use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde_json::{Value, json};

use super::attachment::Attached;
use super::config::{LoraConfig, Modules};
use crate::Error;
use crate::model::Parameters;
use crate::weights::json::Object;
use crate::weights::{LazyTensor, SafetensorsFile, WeightsError, write_safetensors};

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
    /// Opens an adapter's folder.
    ///
    /// # Errors
    /// When a file is missing or damaged, or the adapter has features that are not known
    /// here: leaving them out would silently change its effect.
    pub fn open(folder: &Path) -> Result<Self, Error> {
        let object = Object::read(&folder.join(CONFIG))?;
        let config = config(&object)?;
        Ok(Self {
            folder: folder.to_owned(),
            config,
            base_model: object.text("base_model_name_or_path")?.map(str::to_owned),
            tensors: Arc::new(SafetensorsFile::open(&folder.join(TENSORS))?),
        })
    }

    /// What it is made of.
    pub fn config(&self) -> &LoraConfig {
        &self.config
    }

    /// The model it was made for, as its maker called it.
    pub fn base_model(&self) -> Option<&str> {
        self.base_model.as_deref()
    }

    pub(crate) fn tensors(&self) -> &SafetensorsFile {
        &self.tensors
    }

    pub(crate) fn error(&self, reason: impl Into<String>) -> Error {
        WeightsError::file(&self.folder.join(TENSORS), reason).into()
    }
}

/// Keys that change what an adapter computes and are not known here, with the values
/// under which they do nothing.
const UNKNOWN: [(&str, &[&str]); 16] = [
    ("bias", &["\"none\""]),
    ("fan_in_fan_out", &["false"]),
    ("modules_to_save", &["[]"]),
    ("layers_to_transform", &["[]"]),
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

/// Reads `adapter_config.json`.
///
/// # Errors
/// Names the file, the key, what it must be and what it is.
pub(super) fn config(object: &Object) -> Result<LoraConfig, WeightsError> {
    match object.text("peft_type")? {
        Some("LORA") => {}
        other => {
            let other = other.unwrap_or("missing");
            return Err(object.error("peft_type", format!("is {other}; only LORA is known here")));
        }
    }
    for (key, harmless) in UNKNOWN {
        if let Some(value) = object.get(key)
            && !harmless.contains(&value.to_string().as_str())
        {
            return Err(object.error(key, format!("is {value}, which is not known here")));
        }
    }
    let default = LoraConfig::default();
    let config = LoraConfig {
        rank: object.whole("r", Some(default.rank), 1..=1 << 16)?,
        alpha: number(object, "lora_alpha", object.get("lora_alpha"))?.unwrap_or(default.alpha),
        dropout: number(object, "lora_dropout", object.get("lora_dropout"))?.unwrap_or(0.0),
        rslora: object.flag("use_rslora", false)?,
        dora: object.flag("use_dora", false)?,
        target_modules: modules(object, "target_modules")?
            .ok_or_else(|| object.error("target_modules", "is missing"))?,
        exclude_modules: modules(object, "exclude_modules")?,
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
    super::config::Matcher::new(&config).map_err(|reason| object.error("r", reason))?;
    Ok(config)
}

fn number(object: &Object, key: &str, value: Option<&Value>) -> Result<Option<f64>, WeightsError> {
    match value {
        None => Ok(None),
        Some(value) => match value.as_f64() {
            Some(number) => Ok(Some(number)),
            None => Err(object.error(key, format!("must be a number, not {value}"))),
        },
    }
}

fn modules(object: &Object, key: &str) -> Result<Option<Modules>, WeightsError> {
    match object.get(key) {
        None => Ok(None),
        Some(Value::String(text)) => Modules::from_text(text)
            .map(Some)
            .map_err(|reason| object.error(key, reason)),
        Some(Value::Array(names)) => {
            let names: Option<Vec<String>> = names
                .iter()
                .map(|name| Some(name.as_str()?.to_owned()))
                .collect();
            match names {
                Some(names) => Ok(Some(Modules::Suffixes(names))),
                None => Err(object.error(key, "must be a list of names")),
            }
        }
        Some(_) => Err(object.error(key, "must be a name pattern or a list of names")),
    }
}

fn pattern<T>(
    object: &Object,
    key: &str,
    read: impl Fn(&Object, &str, &Value) -> Result<T, WeightsError>,
) -> Result<BTreeMap<String, T>, WeightsError> {
    let Some(map) = object.object(key)? else {
        return Ok(BTreeMap::new());
    };
    map.keys()
        .map(|(name, value)| Ok((name.clone(), read(&map, name, value)?)))
        .collect()
}

/// Writes an adapter that PEFT loads with `PeftModel.from_pretrained(base, folder)`.
/// `base_model` is what PEFT takes for the base when it is not told another.
///
/// # Errors
/// When a file cannot be written.
pub fn write_peft(
    folder: &Path,
    attached: &Attached,
    parameters: &Parameters,
    base_model: &str,
) -> Result<(), Error> {
    std::fs::create_dir_all(folder).map_err(|error| Error::io("create", folder, error))?;
    let tensors = parameters
        .iter()
        .map(|parameter| (parameter.name.clone(), LazyTensor::ready(&parameter.tensor)));
    let metadata = HashMap::from([("format".to_owned(), "pt".to_owned())]);
    write_safetensors(&folder.join(TENSORS), tensors, metadata)?;
    let path = folder.join(CONFIG);
    let text = format!("{:#}\n", to_json(attached, base_model));
    std::fs::write(&path, text).map_err(|error| Error::io("write", &path, error))
}

fn to_json(attached: &Attached, base_model: &str) -> Value {
    let config = &attached.config;
    let modules = |modules: &Modules| match modules {
        // Spelled out, because PEFT too writes what `all-linear` came to.
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
        "lora_alpha": whole_if_whole(config.alpha),
        "lora_dropout": config.dropout,
        "use_rslora": config.rslora,
        "use_dora": config.dora,
        "target_modules": modules(&config.target_modules),
        "exclude_modules": config.exclude_modules.as_ref().map(modules),
        "rank_pattern": config.rank_pattern,
        "alpha_pattern": config
            .alpha_pattern
            .iter()
            .map(|(name, alpha)| (name.clone(), whole_if_whole(*alpha)))
            .collect::<serde_json::Map<_, _>>(),
        "bias": "none",
        "fan_in_fan_out": false,
        "init_lora_weights": true,
        "modules_to_save": null,
    })
}

/// PEFT declares alphas as whole numbers; fractions work too.
fn whole_if_whole(number: f64) -> Value {
    match number.fract() == 0.0 && number.abs() < 1e15 {
        true => json!(number as i64),
        false => json!(number),
    }
}
