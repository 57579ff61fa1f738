//! Which settings there are to try, and those that were found best, for a config and a machine.

use std::collections::BTreeMap;
use std::fs;
use std::io::Write as _;
use std::path::PathBuf;

use doctor::plan::{Variable, plan};
use platform::Machine;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use surefoot_cli::cache;
use surefoot_cli::live::{self, Python};
use trainer::config::Bf16;
use trainer::{Config, device};

/// A variable that keeps `train` from using what `tune` has found: `off`.
pub(crate) const SWITCH: &str = "SUREFOOT_TUNED";

/// The variable that names the file of TunableOp's results.
pub(super) const TUNABLE_OP_FILE: &str = "PYTORCH_TUNABLEOP_FILENAME";
/// The variable that lets TunableOp look for solutions that it does not know.
pub(super) const TUNABLE_OP_SEARCH: &str = "PYTORCH_TUNABLEOP_TUNING";

/// Where everything is kept.
pub(super) fn folder() -> PathBuf {
    cache::folder().join("tune")
}

/// A setting: environment variables, and keys of the config.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Setting {
    /// For people.
    pub(crate) name: String,
    /// Variables that are read while libraries are loaded.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) variables: BTreeMap<String, String>,
    /// As `--set` takes them, by key.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) keys: BTreeMap<String, String>,
}

impl Setting {
    fn variables(name: &str, variables: &[(&str, &str)]) -> Self {
        Self {
            name: name.into(),
            variables: owned(variables),
            keys: BTreeMap::new(),
        }
    }

    fn key(name: &str, key: &str, value: impl ToString) -> Self {
        Self {
            name: name.into(),
            variables: BTreeMap::new(),
            keys: owned(&[(key, &value.to_string())]),
        }
    }

    /// Whether the other one sets something that this one sets.
    pub(super) fn concerns(&self, other: &Self) -> bool {
        self.variables
            .keys()
            .any(|name| other.variables.contains_key(name))
            || self.keys.keys().any(|key| other.keys.contains_key(key))
    }
}

fn owned(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
    let pairs = pairs.iter();
    pairs
        .map(|(name, value)| ((*name).into(), (*value).into()))
        .collect()
}

/// What can be tried for this config on this machine: only what neither the user nor the doctor's plan has decided.
pub(super) fn candidates(config: &Config, machine: &Machine) -> anyhow::Result<Vec<Setting>> {
    let chosen = device::choose(&config.device)?;
    let mut settings = match device::gpu_index(chosen) {
        Some(_) => of_gpu(config),
        None => of_cpu(config),
    };
    let planned = plan(machine).variables;
    settings.retain(|setting| {
        setting.variables.keys().all(|name| {
            std::env::var_os(name).is_none() && planned.iter().all(|planned| planned.name != *name)
        })
    });
    Ok(settings)
}

fn of_gpu(config: &Config) -> Vec<Setting> {
    let mut settings = vec![
        Setting::variables(
            "matrix products by hipBLASLt",
            &[
                ("TORCH_BLAS_PREFER_HIPBLASLT", "1"),
                ("DISABLE_ADDMM_HIP_LT", "0"),
            ],
        ),
        Setting::variables(
            "matrix products by rocBLAS",
            &[
                ("TORCH_BLAS_PREFER_HIPBLASLT", "0"),
                ("DISABLE_ADDMM_HIP_LT", "1"),
            ],
        ),
    ];
    if !device::describe_libtorch().contains("ROCm") {
        settings = vec![Setting::variables(
            "matrix products by cuBLASLt",
            &[("TORCH_BLAS_PREFER_CUBLASLT", "1")],
        )];
    }
    settings.push(Setting::variables(
        "the best kernel of each product (TunableOp)",
        &[
            ("PYTORCH_TUNABLEOP_ENABLED", "1"),
            (TUNABLE_OP_SEARCH, "0"),
            (TUNABLE_OP_FILE, ""),
        ],
    ));
    let adapter = config.adapter.as_ref();
    if adapter.is_some_and(|adapter| adapter.lora_bf16 == Bf16::Auto) {
        for (name, value) in [("adapters in bf16", true), ("adapters in fp32", false)] {
            settings.push(Setting::key(name, "adapter.lora_bf16", value));
        }
    }
    settings
}

fn of_cpu(config: &Config) -> Vec<Setting> {
    let mut settings = vec![
        Setting::variables("products by oneDNN", &[(device::PRODUCTS, "onednn")]),
        Setting::variables("products by MKL", &[(device::PRODUCTS, "mkl")]),
        Setting::variables("huge pages", &[("THP_MEM_ALLOC_ENABLE", "1")]),
    ];
    let all = std::thread::available_parallelism().map_or(1, usize::from);
    if config.threads.is_none() {
        // Half of them are one a core, where a core runs two; the others leave room for the thread that reads data.
        for threads in [all / 2, all.saturating_sub(1)] {
            if (1..all).contains(&threads) {
                let name = match threads {
                    1 => "1 thread".to_owned(),
                    count => format!("{count} threads"),
                };
                settings.push(Setting::key(&name, "threads", threads));
            }
        }
        settings.dedup();
    }
    settings
}

/// What the results of a measurement hold for: the processor, the driver and libtorch.
pub(crate) fn identity(machine: &Machine) -> String {
    let mut parts = vec![device::describe_libtorch()];
    parts.extend(machine.gpus.iter().map(|gpu| gpu.name()));
    parts.extend(machine.kernel.as_ref().map(|kernel| kernel.release.clone()));
    parts.extend(machine.amdgpu_dkms.clone());
    let processor = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let name = processor
        .lines()
        .find_map(|line| line.strip_prefix("model name")?.split_once(": "));
    parts.extend(name.map(|(_, name)| name.to_owned()));
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    parts.push(format!("{threads} threads"));
    parts.join(", ")
}

/// The keys of a config that the time of a step depends on.
fn shape(config: &Config) -> anyhow::Result<Value> {
    let all = serde_json::to_value(config)?;
    let some = |section: &str, keys: &[&str]| -> Value {
        keys.iter()
            .map(|key| ((*key).to_owned(), all[section][key].clone()))
            .collect::<serde_json::Map<_, _>>()
            .into()
    };
    let mut adapter = all["adapter"].clone();
    if let Some(keys) = adapter.as_object_mut() {
        // The last may have been tuned, as may the number of threads.
        for key in ["resume_from", "format", "save_merged", "lora_bf16"] {
            keys.remove(key);
        }
    }
    Ok(json!({
        "device": all["device"],
        "model": all["model"],
        "adapter": adapter,
        "preference": all["preference"],
        "data": some("data", &["block_size", "packing", "resolution", "num_frames", "image_to_video"]),
        "train": some("train", &[
            "per_device_train_batch_size", "gradient_accumulation_steps", "group_by_length", "optim", "bf16",
            "gradient_checkpointing", "activation_offload", "ema_decay",
        ]),
    }))
}

/// What was found.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Kept {
    machine: String,
    config: Value,
    pub(crate) chosen: Vec<Setting>,
    /// Speed with it, as a multiple of that without.
    pub(crate) speed: f64,
}

impl Kept {
    pub(super) fn new(
        config: &Config,
        machine: &str,
        chosen: Vec<Setting>,
        speed: f64,
    ) -> anyhow::Result<Self> {
        Ok(Self {
            machine: machine.to_owned(),
            config: shape(config)?,
            chosen,
            speed,
        })
    }

    /// The keys of the config, as `--set` takes them, but for those that `config` sets itself.
    pub(crate) fn keys(&self, config: &Config) -> Vec<String> {
        let is_set = |key: &str| match key {
            "threads" => config.threads.is_some(),
            _ => (config.adapter.as_ref()).is_none_or(|own| own.lora_bf16 != Bf16::Auto),
        };
        let keys = self.chosen.iter().flat_map(|setting| &setting.keys);
        let keys = keys.filter(|(key, _)| !is_set(key));
        keys.map(|(key, value)| format!("{key}={value}")).collect()
    }

    /// The variables.
    pub(crate) fn variables(&self) -> Vec<Variable> {
        let all = self.chosen.iter().flat_map(|setting| {
            let why = format!("{}, found by `surefoot tune`", setting.name);
            setting
                .variables
                .iter()
                .map(move |pair| (pair, why.clone()))
        });
        all.filter(|((name, _), _)| std::env::var_os(name).is_none())
            .map(|((name, value), why)| Variable {
                name: name.clone(),
                value: value.clone(),
                why,
            })
            .collect()
    }

    /// For people.
    pub(crate) fn describe(&self) -> String {
        let names: Vec<&str> = self
            .chosen
            .iter()
            .map(|setting| setting.name.as_str())
            .collect();
        format!(
            "tuned: {} ({:.2} × as fast when `surefoot tune` measured it; {SWITCH}=off does without)",
            names.join(", "),
            self.speed
        )
    }

    fn path(&self) -> PathBuf {
        let text = format!("{}\n{}", self.machine, self.config);
        let name = cache::fingerprint(text.bytes());
        folder().join(name + ".json")
    }

    /// Replaces what was found before for this config and machine.
    pub(super) fn write(&self) -> anyhow::Result<PathBuf> {
        let path = self.path();
        fs::create_dir_all(folder())?;
        let mut file = tempfile::NamedTempFile::new_in(folder())?;
        file.write_all(serde_json::to_string_pretty(self)?.as_bytes())?;
        file.persist(&path)?;
        Ok(path)
    }

    /// What was found for this config on this machine, unless [`SWITCH`] is `off`. A file that cannot be read, or is of something else
    /// with the same name, is none.
    pub(crate) fn of(config: &Config) -> Option<Self> {
        let is_off = std::env::var_os(SWITCH).is_some_and(|value| value == "off");
        // Most have never tuned anything, and looking at a machine takes time.
        if is_off || !folder().is_dir() {
            return None;
        }
        let machine = live::machine(&Python::Skip);
        let asked = Self::new(config, &identity(&machine), Vec::new(), 1.0).ok()?;
        let path = asked.path();
        let text = fs::read_to_string(&path).ok()?;
        let kept = match serde_json::from_str::<Self>(&text) {
            Ok(kept) => kept,
            Err(error) => {
                tracing::warn!("`{}` is left out: {error}", path.display());
                return None;
            }
        };
        let is_of_these = (&kept.machine, &kept.config) == (&asked.machine, &asked.config);
        (is_of_these && !kept.chosen.is_empty()).then_some(kept)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(text: &str) -> Config {
        Config::parse("test", text, &["data.path=text.txt".to_owned()]).unwrap()
    }

    #[test]
    fn what_changes_no_step_is_the_same_config() {
        let shape = |text| shape(&config(text)).unwrap();
        let base = shape("model: {hidden_size: 64}");
        assert_eq!(
            base,
            shape("{name: other, seed: 7, model: {hidden_size: 64}, train: {max_steps: 9}}")
        );
        for other in [
            "model: {hidden_size: 128}",
            "{model: {hidden_size: 64}, data: {block_size: 64}}",
            "{model: {hidden_size: 64}, train: {per_device_train_batch_size: 2}}",
        ] {
            assert_ne!(base, shape(other), "{other}");
        }
    }

    #[test]
    fn what_the_config_says_is_not_tried() {
        let threads = |text: &str| {
            of_cpu(&config(text))
                .iter()
                .any(|setting| setting.keys.contains_key("threads"))
        };
        assert!(!threads("threads: 1"));
        let types = |text: &str| {
            let all = of_gpu(&config(text));
            let of_adapters = |setting: &&Setting| setting.keys.contains_key("adapter.lora_bf16");
            all.iter().filter(of_adapters).count()
        };
        let model = "model: {name_or_path: x}";
        assert_eq!(types(&format!("{{{model}, adapter: {{r: 8}}}}")), 2);
        assert_eq!(
            types(&format!("{{{model}, adapter: {{lora_bf16: true}}}}")),
            0
        );
    }

    #[test]
    fn settings_of_the_same_variable_exclude_each_other() {
        let one = Setting::variables("a", &[("X", "1")]);
        assert!(one.concerns(&Setting::variables("b", &[("Y", "1"), ("X", "0")])));
        assert!(!one.concerns(&Setting::variables("b", &[("Y", "1")])));
        let key = Setting::key("a", "threads", 1);
        assert!(key.concerns(&Setting::key("b", "threads", 2)) && !key.concerns(&one));
    }
}
