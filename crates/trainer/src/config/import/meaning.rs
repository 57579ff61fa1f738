//! What a key of another trainer means here: by the table of words where a word is enough, and by the rules here where it is
//! not.

use std::path::Path;

use serde_json::{Map, Value, json};

use super::Origin;
use super::read::{Item, pairs};
use super::sets::{files, is_form, is_text, sets, with_revision};
use crate::config::LossType;
use crate::config::words::{needless, one_line, our_key, translated, value_of};

/// What is said of another adapter.
pub(super) const ADAPTERS: &str = "the adapters here are LoRA, DoRA, LoHa, LoKr and LoRA+";

/// What is said where questions are not learned there, either.
const ANSWERS: &str = "the loss is that of the answers, as there";

/// The model to start from.
const MODEL: &str = "model.name_or_path";

/// Samples of a batch.
const BATCH: &str = "train.per_device_train_batch_size";

/// What becomes of a key.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Meaning {
    /// A key of ours, by its full name, with this value.
    Set(&'static str, Value),
    /// An adapter is trained.
    Adapter,
    /// Nothing, for this reason.
    Nothing(String),
    /// Nothing, until the user writes something.
    Write(String),
    /// A key of ours with a guess, and why it is one.
    Guess(&'static str, Value, String),
}

/// A file, while its keys are looked at.
pub(super) struct Keys<'a> {
    pub origin: Origin,
    pub items: &'a [Item],
    /// The folder that paths in it are relative to.
    pub folder: &'a Path,
}

impl Keys<'_> {
    pub(super) fn get(&self, word: &str) -> Option<&Value> {
        let mut items = self.items.iter();
        let found = items.find(|item| item.word() == word)?;
        Some(&found.value).filter(|value| !value.is_null())
    }

    /// Whether it is set to a number above 0.
    fn counts(&self, words: &[&str]) -> bool {
        let number = |word: &&str| self.get(word).and_then(Value::as_f64);
        words
            .iter()
            .any(|word| number(word).is_some_and(|number| number > 0.0))
    }

    /// What a key means; several things where it is a list of settings.
    pub(super) fn meaning(&self, item: &Item) -> Vec<Meaning> {
        let (word, value, origin) = (item.word(), &item.value, self.origin);
        let text = value.as_str().unwrap_or_default();
        let number = value.as_f64();
        let one = |meaning| vec![meaning];
        let set = |key, value: Value| one(Meaning::Set(key, value));
        let nothing = |reason: &str| one(Meaning::Nothing(reason.into()));
        let write = |reason: &str| one(Meaning::Write(reason.into()));
        if value.is_null() || text == "None" || *value == "" {
            return nothing("it is not set there, either");
        }
        if value.get("expression").is_some() {
            return one(match our_key(word, item.section()) {
                Some(ours) => {
                    Meaning::Write(format!("its value is computed there: write it as `{ours}`"))
                }
                None => Meaning::Nothing("its value is computed there".into()),
            });
        }
        if item.path.starts_with("launcher.") && word != "mixed_precision" {
            return nothing("it is for the launcher; `surefoot train` starts the processes itself");
        }
        // Their settings are all at the top: inside of a map, the same word is something else.
        let top = item.path.split(['.', '[']).next().unwrap_or_default();
        let is_flat = matches!(origin, Origin::Axolotl | Origin::LlamaFactory);
        if is_flat && top != item.path && !["launcher", "command"].contains(&top) {
            return nothing(needless(top).unwrap_or("there is no counterpart"));
        }
        if origin.is_of_media()
            && let Some(found) = self.of_media(item)
        {
            return found;
        }
        match word {
            "adapter" if origin == Origin::Axolotl => match text {
                "qlora" if self.get("load_in_4bit").is_none() => {
                    vec![
                        Meaning::Adapter,
                        Meaning::Set("model.quantization", "nf4".into()),
                    ]
                }
                "lora" | "qlora" => one(Meaning::Adapter),
                _ => nothing(ADAPTERS),
            },
            "init_lora_weights" | "peft_init_lora_weights" => match text {
                "pissa" | "loftq" => set("adapter.init_lora_weights", text.into()),
                _ if value.as_bool() == Some(true) => nothing("it is so here, too"),
                _ => nothing("a new LoRA begins as nothing here, or by `pissa` or `loftq`"),
            },
            "finetuning_type" | "use_peft" | "network_module" => {
                let module = text.rsplit('.').next().unwrap_or_default();
                match (module, value.as_bool()) {
                    ("full", _) | (_, Some(false)) => {
                        nothing("all weights are trained where there is no `adapter`")
                    }
                    (_, Some(true)) => one(Meaning::Adapter),
                    (module, _) if module.starts_with("lora") => one(Meaning::Adapter),
                    ("lokr" | "loha", _) => {
                        vec![Meaning::Adapter, Meaning::Set("adapter.type", module.into())]
                    }
                    _ if text.starts_with("lycoris.") => one(Meaning::Adapter),
                    _ => nothing(ADAPTERS),
                }
            }
            "type" if origin == Origin::AiToolkit => match (item.section(), text) {
                ("network", "lora") => one(Meaning::Adapter),
                ("network", "lokr" | "loha") => {
                    vec![Meaning::Adapter, Meaning::Set("adapter.type", text.into())]
                }
                ("network", _) => nothing(ADAPTERS),
                _ => nothing("this is what a run does here"),
            },
            "stage" | "rl" | "loss_type" | "pref_loss" if !origin.is_of_media() => {
                self.preference(item)
            }
            "beta" if self.loss().is_some() => {
                let mut found = self.preference(item);
                found.push(self.by_words(item));
                found
            }
            "report_to" | "log_with" => {
                let names = value
                    .as_array()
                    .map_or(std::slice::from_ref(value), Vec::as_slice);
                let ours = names
                    .iter()
                    .filter(|name| **name == "mlflow" || **name == "trackio");
                match ours.cloned().collect::<Vec<_>>() {
                    ours if ours.is_empty() => nothing(
                        "metrics are always written to the run folder, also for TensorBoard; `mlflow` and `trackio` are known, too",
                    ),
                    ours => set("train.report_to", ours.into()),
                }
            }
            "evals_per_epoch" | "eval_every_n_epochs" if number == Some(1.0) => {
                set("train.eval_strategy", "epoch".into())
            }
            "saves_per_epoch" | "save_every_n_epochs" if number == Some(1.0) => {
                set("train.save_strategy", "epoch".into())
            }
            "evals_per_epoch" | "eval_every_n_epochs" | "saves_per_epoch" | "save_every_n_epochs"
            | "sample_every_n_epochs" | "max_train_epochs"
                if number == Some(0.0) =>
            {
                nothing("it is off there")
            }
            "evals_per_epoch" | "eval_every_n_epochs" => write("write `train.eval_steps`"),
            "saves_per_epoch" | "save_every_n_epochs" => write("write `train.save_steps`"),
            "sample_every_n_epochs" => write("write `sample.sample_steps`"),
            "max_steps" | "max_train_steps" if number.is_some_and(|steps| steps <= 0.0) => {
                nothing("it says nothing: the epochs count")
            }
            "num_train_epochs" | "num_epochs" if self.counts(&["max_steps"]) => {
                nothing("the steps count there, too, where both are set")
            }
            "max_train_steps" if self.counts(&["max_train_epochs"]) => {
                nothing("the epochs count there, too, where both are set")
            }
            // As in transformers 5.
            "warmup_steps" | "lr_warmup_steps"
                if number.is_some_and(|share| share > 0.0 && share < 1.0) =>
            {
                set("train.warmup_ratio", value.clone())
            }
            "warmup_ratio" if self.counts(&["warmup_steps"]) => {
                nothing("the steps count there, too")
            }
            "datasets" | "test_datasets" | "pretraining_dataset" if value.is_array() => {
                sets(value, word == "test_datasets")
            }
            "dataset" | "eval_dataset" if origin == Origin::LlamaFactory => {
                self.named_sets(text, word != "dataset")
            }
            "optim_args" | "optimizer_args" | "optimizer_params" | "optimizer_kwargs" => {
                self.optimizer(pairs(value))
            }
            "lr_scheduler_args" | "lr_scheduler_params" | "lr_scheduler_kwargs" => {
                set("train.lr_scheduler_kwargs", pairs(value).into())
            }
            // In axolotl, a cosine that ends above nothing.
            "lr_scheduler" if text == "cosine" && self.get("cosine_min_lr_ratio").is_some() => {
                set("train.lr_scheduler_type", "cosine_with_min_lr".into())
            }
            "cosine_min_lr_ratio" if self.get("lr_scheduler").is_none_or(|kind| kind == "cosine") => {
                vec![
                    Meaning::Set("train.lr_scheduler_type", "cosine_with_min_lr".into()),
                    Meaning::Set("train.lr_scheduler_kwargs", json!({ "min_lr_rate": value })),
                ]
            }
            // The name that a trainer of TRL is given.
            "model" if value.is_string() && !origin.is_of_media() => {
                set(MODEL, self.revised(item, MODEL, value.clone()))
            }
            "revision" | "revision_of_model" | "model_revision" => {
                nothing("a revision other than `main` stands behind the name, as in `org/name@revision`")
            }
            // `load_dataset("json", data_files="mine.jsonl")`
            "data_files" if self.reads_files(item) => files(value),
            "dataset_name" | "split" if item.section() == "load_dataset" && self.reads_files(item) => {
                nothing("`data_files` are read whole, by the form that their names say")
            }
            "gradient_checkpointing" if text.starts_with("offload") => vec![
                Meaning::Set("train.gradient_checkpointing", true.into()),
                Meaning::Set("train.activation_offload", true.into()),
            ],
            "pissa_init" if value == true => set("adapter.init_lora_weights", "pissa".into()),
            "pissa_iter" | "pissa_convert" => nothing(
                "singular values are exact, and what is written is for the model as it was published",
            ),
            "network_args" | "lora_args" => {
                let mut found = Vec::new();
                for (key, value) in pairs(value) {
                    let pair = format!("`{key}={}`", one_line(&value));
                    let meanings = self.meaning(&Item::new(format!("network.{key}"), value));
                    found.extend(meanings.into_iter().map(|meaning| match meaning {
                        Meaning::Nothing(reason) => Meaning::Nothing(format!("{pair}: {reason}")),
                        other => other,
                    }));
                }
                found
            }
            "lora_target" | "target_modules" | "lora_target_modules" if text.contains(',') => {
                set("adapter.target_modules", names(text))
            }
            "additional_target" | "modules_to_save" | "lora_modules_to_save" if value.is_string() => {
                set("adapter.modules_to_save", names(text))
            }
            "lora_target" if text != "all" => set("adapter.target_modules", json!([text])),
            "blocks_to_swap" if self.counts(&["blocks_to_swap"]) => {
                set("model.offload", value.clone())
            }
            "low_vram" if value == true => set("model.offload", "all".into()),
            "blocks_to_swap" | "low_vram" => {
                nothing("nothing is streamed unless `model.offload` says so")
            }
            "ema_decay" if self.get("use_ema").is_some_and(|used| used == false) => {
                nothing("no average is kept there, either")
            }
            "use_ema" => nothing("an average is kept where `train.ema_decay` is set"),
            "sample_steps" if origin == Origin::AiToolkit => {
                set("sample.num_inference_steps", value.clone())
            }
            "device" => match text.strip_prefix("cuda") {
                Some(index) => set("device", format!("gpu{index}").into()),
                None => set("device", value.clone()),
            },
            "dtype" if item.section() == "save" => {
                nothing("LoRA files are written in the type that their readers expect")
            }
            "quantization_method" => {
                nothing("`model.quantization` quantises without other packages")
            }
            "train_on_inputs" | "train_on_prompt" if value == false => nothing(ANSWERS),
            "assistant_only_loss" | "completion_only_loss" if value == true => nothing(ANSWERS),
            _ if text == "auto" && our_key(word, item.section()) == Some(BATCH) => {
                one(Meaning::Guess(
                    BATCH,
                    value.clone(),
                    "a step there has as many samples as memory has room for, times the accumulation; here it has as many as \
                     `train.gradient_accumulation_steps` says: set that"
                        .into(),
                ))
            }
            _ => one(self.by_words(item)),
        }
    }

    /// The losses of a sum (`loss_type=["hinge", "sft"]`), which TRL has.
    fn sum_of_losses(&self) -> Option<&[Value]> {
        let list = self.get("loss_type")?.as_array()?;
        (list.len() > 1).then_some(list)
    }

    /// The loss on preferences that the file asks for, by its name there; an empty one if that is not said. Of a sum, that
    /// which is known here.
    fn loss(&self) -> Option<&str> {
        let text = |word: &str| match self.get(word)? {
            // `["sigmoid"]` is the same as `"sigmoid"`.
            Value::Array(list) => {
                let mut names = list.iter().filter_map(Value::as_str);
                names.clone().find(|name| known(name)).or(names.next())
            }
            value => value.as_str(),
        };
        let written = text("loss_type").or_else(|| text("pref_loss"));
        match (text("rl").or_else(|| text("stage")), written) {
            (Some("dpo"), None) => Some("sigmoid"),
            (Some("cpo"), None) => Some("cpo"),
            (Some("dpo" | "kto"), Some(loss)) | (Some("cpo"), Some(loss @ "simpo")) => Some(loss),
            (Some(stage @ ("cpo" | "ipo" | "orpo" | "kto" | "simpo")), _) => Some(stage),
            (Some(_), _) => None,
            // The file of `trl dpo --config` does not say for which of its commands it is.
            (None, Some(loss)) if self.origin == Origin::Trl && known(loss) => Some(loss),
            (None, None) if self.origin == Origin::Trl => self.get("beta").map(|_| ""),
            _ => None,
        }
    }

    /// Learning from preferences, and what else is meant by it there.
    fn preference(&self, item: &Item) -> Vec<Meaning> {
        const KEY: &str = "preference.loss_type";
        let text = item.value.as_str().unwrap_or_default();
        let Some(loss) = self.loss() else {
            return vec![match text {
                "sft" | "pt" | "nll" => Meaning::Nothing("this is what a run does here".into()),
                _ => Meaning::Write(
                    "this is another training than that on texts or answers: see the handbook on what there is"
                        .into(),
                ),
            }];
        };
        if let Some(list) = self.sum_of_losses() {
            let weights = self
                .get("loss_weights")
                .map(|weights| format!(", weighted by {weights}"));
            let ours = if known(loss) { loss } else { "sigmoid" };
            let why = format!(
                "the loss there is the sum of {}{}; here it is one, and `{ours}` is a guess",
                Value::from(list),
                weights.unwrap_or_default()
            );
            return vec![Meaning::Guess(KEY, ours.into(), why)];
        }
        if !known(loss) {
            let ours = match self.get("rl").or_else(|| self.get("stage")) {
                Some(stage) if stage == "kto" => "kto",
                _ => "sigmoid",
            };
            let why = match loss {
                "" => "which loss is not said there; `sigmoid` (DPO) is a guess".into(),
                loss => format!("`{loss}` is no loss here; `{ours}` is a guess"),
            };
            return vec![Meaning::Guess(KEY, ours.into(), why)];
        }
        let mut found = vec![Meaning::Set(KEY, loss.into())];
        let unset = |words: &[&str]| words.iter().all(|word| self.get(word).is_none());
        if loss == "simpo" {
            // TRL's defaults, which are not ours.
            if unset(&["beta", "pref_beta", "rl_beta", "dpo_beta"]) {
                found.push(Meaning::Set("preference.beta", json!(0.1)));
            }
            if self.origin != Origin::LlamaFactory && unset(&["cpo_alpha"]) {
                found.push(Meaning::Set("preference.cpo_alpha", json!(1.0)));
            }
        }
        found
    }

    /// By the table of words.
    pub(super) fn by_words(&self, item: &Item) -> Meaning {
        let (word, value) = (item.word(), &item.value);
        let is_off =
            *value == false || value.as_f64() == Some(0.0) || *value == "none" || *value == "no";
        let sections = item.path.split(['.', '[']);
        if let Some(reason) = sections.rev().find_map(needless) {
            return Meaning::Nothing(reason.into());
        }
        let Some(ours) = our_key(word, item.section()) else {
            return Meaning::Nothing(match is_off {
                true => "it is off there, and there is no counterpart".into(),
                false => "there is no counterpart".into(),
            });
        };
        if ours.starts_with("preference.") && self.loss().is_none() {
            return Meaning::Nothing("nothing is learned from preferences there".into());
        }
        match translated(word, value) {
            Some((_, None)) if is_off => {
                Meaning::Nothing(format!("it is off, as without `{ours}`"))
            }
            Some((_, None)) => Meaning::Write(format!(
                "this value is not known here: choose one for `{ours}`"
            )),
            Some((_, Some(value))) => {
                Meaning::Set(ours, self.revised(item, ours, value_of(ours, &value)))
            }
            None => Meaning::Set(ours, self.revised(item, ours, value_of(ours, value))),
        }
    }

    /// Whether files that it names stand for a data set, beside the name of their form.
    fn reads_files(&self, item: &Item) -> bool {
        let beside = |other: &&Item| other.section() == item.section();
        let mut items = self.items.iter().filter(beside);
        let has_files = items
            .clone()
            .any(|other| other.word() == "data_files" && is_text(&other.value));
        has_files && items.any(|other| other.word() == "dataset_name" && is_form(&other.value))
    }

    /// The name of a model or a data set with the revision that stands beside it.
    fn revised(&self, item: &Item, ours: &str, value: Value) -> Value {
        let is_model = ours == MODEL;
        let beside = |other: &&Item| match other.word() {
            "revision" => other.section() == item.section(),
            "revision_of_model" | "model_revision" => is_model,
            _ => false,
        };
        let mut items = self.items.iter();
        let found = items
            .find(beside)
            .filter(|_| is_model || ours == "data.path");
        with_revision(value, found.map(|item| &item.value))
    }

    /// Arguments of an optimizer.
    fn optimizer(&self, args: Map<String, Value>) -> Vec<Meaning> {
        let names = ["optim", "optimizer", "optimizer_type"];
        let name = names
            .iter()
            .find_map(|word| self.get(word))
            .and_then(Value::as_str);
        let is_adam = name.is_none_or(|name| {
            let name = name.to_lowercase();
            name.contains("adam") && !name.contains("free")
        });
        let (mut found, mut own) = (Vec::new(), Map::new());
        for (key, value) in args {
            match (key.as_str(), value.as_array().map(Vec::as_slice)) {
                ("weight_decay", _) => found.push(Meaning::Set("train.weight_decay", value)),
                ("betas", Some([first, second])) if is_adam => {
                    found.push(Meaning::Set("train.adam_beta1", first.clone()));
                    found.push(Meaning::Set("train.adam_beta2", second.clone()));
                }
                ("eps", None) if is_adam => found.push(Meaning::Set("train.adam_epsilon", value)),
                ("relative_step" | "warmup_init", _) => found.push(Meaning::Nothing(format!(
                    "`{key}`: the schedule and `train.learning_rate` say how fast it learns"
                ))),
                _ => drop(own.insert(key, value)),
            }
        }
        if !own.is_empty() {
            found.push(Meaning::Set("train.optim_args", own.into()));
        }
        found
    }

    /// Data sets of LLaMA-Factory, by their names in `dataset_info.json`.
    fn named_sets(&self, names: &str, held_out: bool) -> Vec<Meaning> {
        let folder = self
            .get("dataset_dir")
            .and_then(Value::as_str)
            .unwrap_or("data");
        // Its folder is relative to where LLaMA-Factory is.
        let mut above = self.folder.ancestors().map(|place| place.join(folder));
        let known = above.find(|place| place.join("dataset_info.json").is_file());
        let folder = known.unwrap_or_else(|| self.folder.join(folder));
        let known = std::fs::read_to_string(folder.join("dataset_info.json")).unwrap_or_default();
        let known: Value = serde_json::from_str(&known).unwrap_or_default();
        let mut unknown = Vec::new();
        let paths = names.split(',').map(|name| {
            let name = name.trim();
            let entry = &known[name];
            let file = entry["file_name"]
                .as_str()
                .map(|file| folder.join(file).display().to_string());
            let path = file.or_else(|| entry["hf_hub_url"].as_str().map(str::to_owned));
            if path.is_none() {
                unknown.push(name);
            }
            json!({ "path": path.unwrap_or_else(|| name.to_owned()) })
        });
        let mut found = sets(&paths.collect(), held_out);
        for name in unknown {
            found.push(Meaning::Write(format!(
                "`{name}` is a name in LLaMA-Factory's `dataset_info.json`: write the file or the name on the hub"
            )));
        }
        found
    }
}

/// The names in a text with commas.
fn names(text: &str) -> Value {
    text.split(',')
        .map(|name| Value::from(name.trim()))
        .collect()
}

/// Whether this is the name of a loss on preferences.
fn known(loss: &str) -> bool {
    serde_json::from_value::<LossType>(loss.into()).is_ok()
}
