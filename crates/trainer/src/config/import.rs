//! Configs of other trainers as configs of ours: `surefoot import`.
//!
//! ```text
//! file ──read──▶ keys with values ──meaning──▶ keys of ours ──Config::parse──▶ config, as text
//!                                     │ config/words.rs           │
//!                                     └────────── reasons ────────┴──▶ a comment for each key that is not in it
//! ```
//!
//! What this crate's own parser refuses becomes a comment, too, with its reason: so what is written can be loaded.

mod meaning;
mod media;
mod python;
mod read;
mod sets;
#[cfg(test)]
mod tests;

use std::fmt::Write;
use std::path::Path;

use indexmap::IndexMap;
use serde::Serialize;
use serde_json::Value;

use super::keys::key_names;
use super::words::one_line;
use super::{Config, ConfigError};
use meaning::{Keys, Meaning};
use read::Item;

/// What stands where a path or a name has to be written.
const BLANK: &str = "FILL_IN";
/// Characters of a value in a comment.
const LONGEST: usize = 60;

/// The trainer that a file is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Origin {
    /// axolotl.
    Axolotl,
    /// LLaMA-Factory.
    LlamaFactory,
    /// TRL, or another program with transformers' arguments.
    Trl,
    /// unsloth.
    Unsloth,
    /// kohya's sd-scripts.
    Kohya,
    /// musubi-tuner.
    Musubi,
    /// ai-toolkit.
    AiToolkit,
}

/// An imported config.
#[derive(Debug, Clone, Serialize)]
pub struct Imported {
    /// The trainer that the file is for.
    pub origin: Origin,
    /// The config as YAML, with comments for all that has no counterpart.
    pub config: String,
    /// The keys of ours that are set, with the keys that they come from.
    pub set: Vec<SetKey>,
    /// The keys without a counterpart.
    pub left_out: Vec<LeftOut>,
    /// What has to be filled in before a run can start.
    pub fill_in: Vec<String>,
    /// Lines that the user still has to write or to choose: those, and keys whose values could not be taken.
    pub to_change: usize,
}

/// A key of ours.
#[derive(Debug, Clone, Serialize)]
pub struct SetKey {
    /// Its full name.
    pub key: String,
    /// Its value.
    pub value: Value,
    /// The key that it comes from.
    pub from: String,
}

/// A key without a counterpart.
#[derive(Debug, Clone, Serialize)]
pub struct LeftOut {
    /// Its path in the file.
    pub key: String,
    /// Its value.
    pub value: Value,
    /// Why it is not in the config.
    pub reason: String,
    /// Whether the user has to write something in its place.
    pub to_write: bool,
}

/// Translates the file at `path`; files that it names (a data set config, sample prompts) are read from where it is.
///
/// # Errors
/// If it cannot be read, or no trainer's keys are found in it.
pub fn import(path: &Path) -> Result<Imported, ConfigError> {
    let folder = path.parent().unwrap_or(Path::new("."));
    let mut items = read::items(path)?;
    for word in ["config_file", "dataset_config"] {
        let named = items
            .iter()
            .position(|item| item.word() == word && item.value.is_string());
        let file = named.map(|index| folder.join(items[index].value.as_str().unwrap_or_default()));
        if let (Some(index), Some(file)) = (named, file.filter(|file| file.is_file())) {
            items.remove(index);
            items.extend(read::items(&file)?);
        }
    }
    let has = |word: &str| items.iter().any(|item| item.path == word);
    if has("training_method") && has("concept_file_name") {
        let name = path.display().to_string();
        return Err(ConfigError::of(
            &name,
            "it is for OneTrainer, whose configs are not read",
        ));
    }
    let origin = origin(path, &items);
    let keys = Keys {
        origin,
        items: &items,
        folder,
    };
    let mut draft = Draft::default();
    for item in &items {
        for meaning in keys.meaning(item) {
            draft.take(item, meaning);
        }
    }
    Ok(draft.finish(path, origin))
}

/// The trainer whose keys these are.
fn origin(path: &Path, items: &[Item]) -> Origin {
    let has = |words: &[&str]| items.iter().any(|item| words.contains(&item.word()));
    let below = |start: &str| items.iter().any(|item| item.path.starts_with(start));
    let extension = path.extension().and_then(|extension| extension.to_str());
    if below("config.process") {
        Origin::AiToolkit
    } else if has(&["base_model"]) {
        Origin::Axolotl
    } else if has(&["finetuning_type", "cutoff_len", "lora_rank"]) {
        Origin::LlamaFactory
    } else if below("get_peft_model.") && matches!(extension, Some("py" | "ipynb")) {
        Origin::Unsloth
    } else if has(&[
        "dit",
        "image_directory",
        "video_directory",
        "cache_directory",
    ]) {
        Origin::Musubi
    } else if has(&[
        "train_data_dir",
        "network_module",
        "image_dir",
        "unet_lr",
        "network_dim",
    ]) {
        Origin::Kohya
    } else {
        Origin::Trl
    }
}

impl Origin {
    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Axolotl => "axolotl",
            Self::LlamaFactory => "LLaMA-Factory",
            Self::Trl => "TRL",
            Self::Unsloth => "unsloth",
            Self::Kohya => "kohya's sd-scripts",
            Self::Musubi => "musubi-tuner",
            Self::AiToolkit => "ai-toolkit",
        }
    }

    /// Whether it trains models of images and videos.
    fn is_of_media(self) -> bool {
        matches!(self, Self::Kohya | Self::Musubi | Self::AiToolkit)
    }
}

/// A config that is being put together.
#[derive(Default)]
struct Draft {
    /// By full name: the value, and the key that it comes from.
    set: IndexMap<&'static str, (Value, Item)>,
    adapter: bool,
    left_out: Vec<LeftOut>,
    fill_in: Vec<String>,
}

impl Draft {
    fn take(&mut self, item: &Item, meaning: Meaning) {
        match meaning {
            Meaning::Adapter => self.adapter = true,
            Meaning::Nothing(reason) => self.leave_out(item, reason, false),
            Meaning::Write(reason) => self.leave_out(item, reason, true),
            Meaning::Guess(key, value, why) => {
                if self.set.insert(key, (value, item.clone())).is_none() {
                    self.fill_in.push(format!("{key}: {why}"));
                }
            }
            Meaning::Set(key, value) => match self.set.get(key) {
                Some((before, from)) if *before != value => {
                    let reason = format!("`{}` sets `{key}` already", from.path);
                    self.leave_out(item, reason, false);
                }
                Some(_) => {}
                None => drop(self.set.insert(key, (value, item.clone()))),
            },
        }
    }

    fn leave_out(&mut self, item: &Item, reason: String, to_write: bool) {
        self.left_out.push(LeftOut {
            key: item.path.clone(),
            value: item.value.clone(),
            reason,
            to_write,
        });
    }

    /// Adds what every run needs.
    fn complete(&mut self, origin: Origin) {
        let has = |key: &str| self.set.contains_key(key);
        // A file of the transformer is a model, whose other parts are named beside it.
        if !has("model.name_or_path")
            && !has("model.transformer_2")
            && let Some(file) = self.set.shift_remove("model.transformer")
        {
            self.set.insert("model.name_or_path", file);
        }
        let needed = [
            (
                "model.name_or_path",
                Value::from(BLANK),
                "the model to start from",
            ),
            (
                "data.path",
                BLANK.into(),
                "the data to train on: a file, a folder or a name on the hub",
            ),
            (
                "data.resolution",
                1024.into(),
                "the size of pictures; 1024 is a guess",
            ),
        ];
        for (key, value, why) in needed {
            let is_needed = match key {
                "data.path" => !self.set.contains_key("data.mixture"),
                "data.resolution" => origin.is_of_media(),
                _ => true,
            };
            if is_needed && !self.set.contains_key(key) {
                self.fill_in.push(format!("{key}: {why}"));
                self.set.insert(key, (value, Item::new("", Value::Null)));
            }
        }
    }

    fn finish(mut self, path: &Path, origin: Origin) -> Imported {
        self.complete(origin);
        // Each round leaves out what the parser refuses.
        let body = loop {
            let (text, lines) = self.text();
            let Err(error) = Config::parse("config", &text, &[]) else {
                break text;
            };
            let mut refused = Vec::new();
            for problem in &error.problems {
                let help = problem
                    .help
                    .as_ref()
                    .map_or(String::new(), |help| format!(": {help}"));
                let reason = format!("{}{help}", problem.message);
                match lines.get(problem.line - 1).copied().flatten() {
                    Some(key) if !refused.iter().any(|(known, _)| *known == key) => {
                        refused.push((key, reason))
                    }
                    Some(_) => {}
                    None => self.fill_in.push(reason),
                }
            }
            if refused.is_empty() {
                break text;
            }
            for (key, reason) in refused {
                if let Some((_, item)) = self.set.shift_remove(key) {
                    self.leave_out(&item, format!("`{key}` was left out: {reason}"), true);
                }
            }
        };
        let mut config = format!(
            "# From `{}`, for {}, by `surefoot import`.\n",
            path.file_name().unwrap_or_default().to_string_lossy(),
            origin.name()
        );
        for line in &self.fill_in {
            let _ = writeln!(config, "# To fill in: {}", line.replace('\n', " "));
        }
        config += &body;
        if !self.left_out.is_empty() {
            config += "\n# Keys of that file that are not above, and why:\n";
        }
        for LeftOut {
            key, value, reason, ..
        } in &self.left_out
        {
            let mut value = one_line(value).replace('\n', " ");
            if let Some((end, _)) = value.char_indices().nth(LONGEST) {
                value.replace_range(end.., "…");
            }
            let _ = writeln!(config, "# {key}: {value} -- {}", reason.replace('\n', " "));
        }
        let set = self.set.into_iter().map(|(key, (value, from))| SetKey {
            key: key.into(),
            value,
            from: from.path,
        });
        let to_write = self.left_out.iter().filter(|key| key.to_write).count();
        Imported {
            to_change: self.fill_in.len() + to_write,
            origin,
            config,
            set: set.collect(),
            left_out: self.left_out,
            fill_in: self.fill_in,
        }
    }

    /// The config, and the key on each of its lines.
    fn text(&self) -> (String, Vec<Option<&'static str>>) {
        let (mut text, mut lines) = (String::new(), Vec::new());
        let mut open = None;
        for name in key_names() {
            let is_adapter = *name == "adapter" && self.adapter;
            let Some((value, _)) = self.set.get(name.as_str()) else {
                let below = format!("{name}.");
                if is_adapter && !self.set.keys().any(|key| key.starts_with(&below)) {
                    text += "adapter: {}\n";
                    lines.push(None);
                }
                continue;
            };
            let (section, key) = match name.split_once('.') {
                Some((section, key)) => (Some(section), key),
                None => (None, name.as_str()),
            };
            if section.is_some() && section != open {
                let _ = writeln!(text, "{}:", section.unwrap_or_default());
                lines.push(None);
            }
            open = section;
            let indent = if section.is_some() { "  " } else { "" };
            let _ = writeln!(text, "{indent}{key}: {}", one_line(value));
            lines.push(Some(name.as_str()));
        }
        (text, lines)
    }
}
