//! The keys of `model` that limit its memory, which become the options of a plan: `offload` says what is streamed,
//! `max_memory` how much there is. The words of accelerate and kohya for the former are read as it.

use std::borrow::Cow;
use std::collections::BTreeMap;

use placement::Bytes;
use placement::plan::{DeviceMap, MaxMemory, OffloadOptions, Place};
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};
use serde_json::{Value as Json, json};

use super::ModelConfig;
use super::problem::Problem;
use super::tree::{Entry, Node, OVERRIDE, Value};

/// Memory limits of a run, whatever the machine has.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct MemoryLimits {
    /// For the device's memory, including everything that training uses: a number of bytes, or
    /// a size such as `6GiB`.
    pub device: Option<Size>,
    /// For the host's memory: a number of bytes, or a size such as `16GiB`. On the CPU the smaller
    /// of both applies.
    pub cpu: Option<Size>,
}

/// A size in bytes, written as a number or with a unit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(transparent)]
pub struct Size(pub Bytes);

/// Which blocks of a frozen model are streamed.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "Json", into = "Json")]
pub enum Offload {
    /// `auto`: as few as memory permits.
    Auto,
    /// `all`.
    All,
    /// This many, spread evenly.
    Blocks(u32),
    /// At least this many percent of their bytes; written `50%`.
    Percent(f64),
    /// Where each part is kept, by name.
    Places(BTreeMap<String, PlaceConfig>),
}

/// A place in a device map.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PlaceConfig {
    /// Always on the device.
    Device,
    /// In host memory, and streamed when used.
    Cpu,
    /// In a file, and streamed when used.
    Disk,
}

impl ModelConfig {
    /// The options of the plan; `None` if none are set, and the whole model stays in memory.
    pub fn offload_options(&self) -> Option<OffloadOptions> {
        if self.offload.is_none() && self.max_memory.is_none() {
            return None;
        }
        let limits = self.max_memory.unwrap_or_default();
        let mut options = OffloadOptions {
            max_memory: MaxMemory {
                device: limits.device.map(|size| size.0),
                cpu: limits.cpu.map(|size| size.0),
            },
            ..OffloadOptions::default()
        };
        options.ring_slots = self.ring_slots.unwrap_or(options.ring_slots);
        match &self.offload {
            None | Some(Offload::Auto) => {}
            Some(Offload::All) => options.low_vram = true,
            Some(Offload::Blocks(count)) => options.blocks_to_swap = Some(*count as usize),
            Some(Offload::Percent(share)) => options.offload_fraction = *share / 100.0,
            Some(Offload::Places(places)) => {
                let places = places.iter();
                let placed = places.map(|(name, place)| (name.clone(), (*place).into()));
                options.device_map = DeviceMap::Explicit(placed.collect());
            }
        }
        Some(options)
    }
}

/// Older words for `model.offload`, and what each means.
const OLDER: [(&str, &str); 5] = [
    ("low_vram", "`true` is `offload: all`"),
    ("blocks_to_swap", "`8` is `offload: 8`"),
    ("offload_fraction", "`0.5` is `offload: 50%`"),
    ("device_map", "the same value for `offload`"),
    (
        "profile",
        "`roomy` and `unified` are `offload: auto`, the latter with `ring_slots: 3`; `balanced` is `offload: 34%`, and \
         `low-vram` is `offload: all`",
    ),
];

/// Replaces the older words for `model.offload` by that key. Returns problems, and warnings that say so.
pub(super) fn replace_older_words(tree: &mut Node) -> (Vec<Problem>, Vec<Problem>) {
    let (mut problems, mut told) = (Vec::new(), Vec::new());
    let Some(Value::Map(model)) = tree.find_mut("model").map(|node| &mut node.value) else {
        return (problems, told);
    };
    let is_older = |word: &str| OLDER.iter().any(|(older, _)| *older == word);
    let (found, mut others): (Vec<_>, Vec<_>) = std::mem::take(model)
        .into_iter()
        .partition(|entry| entry.key == "offload" || is_older(&entry.key));
    let mut asked: Vec<(String, Entry)> = Vec::new();
    for mut entry in found {
        let word = std::mem::replace(&mut entry.key, "offload".into());
        let written = plain(&entry.node);
        if is_older(&word) {
            let Some(value) = meaning(&word, &entry.node.value) else {
                continue;
            };
            entry.node.value = value;
            let now = plain(&entry.node);
            let message =
                format!("`model.{word}: {written}` is an older word for `model.offload: {now}`");
            told.push(Problem::at(&entry.place, message));
        }
        if (&*word, &*written) == ("profile", "unified")
            && others.iter().all(|e| e.key != "ring_slots")
        {
            let mut slots = entry.clone();
            slots.key = "ring_slots".into();
            slots.node.value = Value::Integer(3);
            others.push(slots);
        }
        asked.push((word, entry));
    }
    // An override replaces what was there, and what leaves the choice to memory gives way to what makes it.
    let is_later =
        |(word, entry): &(String, Entry)| is_older(word) && *entry.place.source.name == *OVERRIDE;
    if asked.iter().any(is_later) {
        asked.retain(is_later);
    }
    let rank = |(word, entry): &(String, Entry)| match (&**word, &*plain(&entry.node)) {
        ("profile", _) => 1,
        (_, "auto") => 0,
        _ => 2,
    };
    let highest = asked.iter().map(rank).max();
    asked.retain(|one| Some(rank(one)) == highest);
    if let [(one, _), (two, entry), ..] = &asked[..] {
        let message = format!("`model.{one}` and `model.{two}` both set what is streamed");
        problems.push(Problem::at(&entry.place, message).with_help("keep one of the two"));
    }
    others.extend(asked.into_iter().next().map(|(_, entry)| entry));
    *model = others;
    (problems, told)
}

/// A value as it is written, on one line.
fn plain(node: &Node) -> String {
    match node.to_json() {
        Json::String(text) => text,
        other => other.to_string(),
    }
}

/// The value of `model.offload` for an older word; `None` if that asks for nothing. A value that it cannot have is left
/// for the schema to refuse.
fn meaning(word: &str, value: &Value) -> Option<Value> {
    let text = |text: &str| Some(Value::String(text.into()));
    match (word, value) {
        (_, Value::Null | Value::Bool(false) | Value::Integer(0)) => None,
        ("low_vram", Value::Bool(true)) => text("all"),
        ("offload_fraction", Value::Integer(1)) => text("100%"),
        ("offload_fraction", Value::Float(share)) if *share == 0.0 => None,
        ("offload_fraction", Value::Float(share)) => {
            text(&format!("{}%", (share * 1e6).round() / 1e4))
        }
        ("profile", Value::String(name)) => match &**name {
            "roomy" | "unified" => text("auto"),
            "balanced" => text("34%"),
            "low-vram" => text("all"),
            _ => Some(value.clone()),
        },
        _ => Some(value.clone()),
    }
}

/// Adds the older words to the schema of `model`, so that editors know them.
pub(super) fn add_older_words(schema: &mut Schema) {
    let Some(Json::Object(properties)) = schema.get_mut("properties") else {
        return;
    };
    for (word, meaning) in OLDER {
        let description = format!("An older word for `offload`: {meaning}.");
        properties.insert(
            word.into(),
            json!({ "description": description, "deprecated": true }),
        );
    }
}

impl From<PlaceConfig> for Place {
    fn from(place: PlaceConfig) -> Self {
        match place {
            PlaceConfig::Device => Self::Device,
            PlaceConfig::Cpu => Self::Cpu,
            PlaceConfig::Disk => Self::Disk,
        }
    }
}

impl From<Offload> for Json {
    fn from(offload: Offload) -> Self {
        match offload {
            Offload::Auto => "auto".into(),
            Offload::All => "all".into(),
            Offload::Blocks(count) => count.into(),
            Offload::Percent(share) => format!("{share}%").into(),
            Offload::Places(places) => json!(places),
        }
    }
}

impl TryFrom<Json> for Offload {
    type Error = String;

    fn try_from(value: Json) -> Result<Self, String> {
        let wrong = format!(
            "{value} is not `auto`, `all`, a number of blocks, a share such as `50%` or a map"
        );
        let share = |text: &str| text.strip_suffix('%')?.trim().parse::<f64>().ok();
        match value {
            Json::Number(count) => {
                let count = count.as_u64().and_then(|count| u32::try_from(count).ok());
                count.map(Self::Blocks).ok_or(wrong)
            }
            Json::Object(_) => match serde_json::from_value(value) {
                Ok(places) => Ok(Self::Places(places)),
                Err(_) => Err(wrong),
            },
            Json::String(text) => match (&*text, share(&text)) {
                ("auto", _) => Ok(Self::Auto),
                ("all", _) => Ok(Self::All),
                (_, Some(percent)) => Ok(Self::Percent(percent)),
                _ => Err(wrong),
            },
            _ => Err(wrong),
        }
    }
}

impl<'de> Deserialize<'de> for Size {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum Written {
            Number(u64),
            Text(String),
        }
        match Written::deserialize(deserializer)? {
            Written::Number(bytes) => Ok(Self(Bytes(bytes))),
            Written::Text(text) => text.parse().map(Self).map_err(serde::de::Error::custom),
        }
    }
}

impl JsonSchema for Size {
    fn schema_name() -> Cow<'static, str> {
        "Size".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "description": "A number of bytes, or a size with a unit: `6GiB`, `512 MB`.",
            "type": ["integer", "string"],
            "minimum": 0,
            "pattern": "^ *[0-9]+([.][0-9]+)? *([kKmMgGtT]([iI]?[bB])?|[bB])? *$",
        })
    }
}

impl JsonSchema for Offload {
    fn schema_name() -> Cow<'static, str> {
        "Offload".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "description": "`auto`, `all`, a number of blocks, a share of their bytes such as `50%`, or where each part \
                            goes by name, the longest name deciding: `{\"\": device, model.layers.3: disk}`.",
            "type": ["integer", "string", "object"],
            "minimum": 0,
            "maximum": 1024,
            "pattern": "^(auto|all|(100|[0-9]{1,2}([.][0-9]+)?) *%)$",
            "additionalProperties": { "enum": ["device", "cpu", "disk"] },
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;
    use crate::config::tree::parse_file;

    fn problems(text: &str) -> Vec<String> {
        let problems = Config::parse("x.yaml", text, &[])
            .err()
            .map(|error| error.problems);
        problems.iter().flatten().map(ToString::to_string).collect()
    }

    /// A published model with an adapter and these memory keys.
    fn streamed(keys: &str) -> String {
        format!(
            "model: {{name_or_path: m, {keys}}}\nadapter: {{r: 2}}\ndata: {{dataset: shakespeare}}"
        )
    }

    #[test]
    fn what_is_streamed_is_set_by_one_key_or_one_older_word() {
        for (keys, one, other) in [
            (
                "low_vram: true, blocks_to_swap: 2",
                "low_vram",
                "blocks_to_swap",
            ),
            (
                "offload_fraction: 0.5, blocks_to_swap: 2",
                "offload_fraction",
                "blocks_to_swap",
            ),
            (
                "device_map: {'': cpu}, blocks_to_swap: 2",
                "device_map",
                "blocks_to_swap",
            ),
            (
                "device_map: {'': cpu}, low_vram: true",
                "device_map",
                "low_vram",
            ),
            (
                "device_map: {'': cpu}, offload_fraction: 0.5",
                "device_map",
                "offload_fraction",
            ),
            (
                "offload: all, blocks_to_swap: 2",
                "offload",
                "blocks_to_swap",
            ),
        ] {
            let told =
                format!("`model.{one}` and `model.{other}` both set what is streamed (keep one");
            let problems = problems(&streamed(keys));
            assert!(
                problems.len() == 1 && problems[0].contains(&told),
                "{keys}: {problems:?}"
            );
        }
        let got = problems("model: {offload: all}\ndata: {dataset: shakespeare}");
        assert!(
            got.len() == 1 && got[0].contains("add an `adapter` section"),
            "{got:?}"
        );
    }

    #[test]
    fn an_older_word_for_what_is_streamed_is_read_as_the_key_and_says_so() {
        for (older, now) in [
            ("low_vram: true", "all"),
            ("blocks_to_swap: 8", "8"),
            ("offload_fraction: 0.07", "7%"),
            (
                "device_map: {'': device, model.layers.1: disk}",
                "{'': device, model.layers.1: disk}",
            ),
            ("profile: roomy", "auto"),
            ("profile: balanced", "34%"),
            ("profile: low-vram", "all"),
            ("profile: unified", "auto, ring_slots: 3"),
        ] {
            let config = |keys: &str| Config::parse("x.yaml", &streamed(keys), &[]).unwrap();
            let read = config(older);
            assert_eq!(read, config(&format!("offload: {now}")), "{older}");
            let written = read.to_yaml().unwrap();
            assert_eq!(
                Config::parse("y.yaml", &written, &[]).unwrap(),
                read,
                "{written}"
            );
            let mut tree = parse_file("x.yaml", &streamed(older)).unwrap();
            let (_, told) = replace_older_words(&mut tree);
            assert!(
                told.len() == 1 && told[0].message.contains("is an older word for"),
                "{told:?}"
            );
        }
        let overridden = ["model.low_vram=true".to_owned()];
        let config = Config::parse("x.yaml", &streamed("blocks_to_swap: 2"), &overridden).unwrap();
        assert_eq!(config.model.offload, Some(Offload::All));
    }

    /// A profile is a preset: keys beside it override it.
    #[test]
    fn keys_override_a_profile() {
        let options = |keys: &str| {
            let config = Config::parse("x.yaml", &streamed(keys), &[]).unwrap();
            config.model.offload_options().unwrap()
        };
        for profile in ["low-vram", "balanced"] {
            for keys in ["blocks_to_swap: 2", "device_map: {'': cpu}"] {
                let options = options(&format!("profile: {profile}, {keys}"));
                assert_eq!(
                    (options.low_vram, options.offload_fraction),
                    (false, 0.0),
                    "{profile}, {keys}"
                );
            }
        }
        let map = options("profile: low-vram, device_map: auto");
        assert!(map.low_vram, "`auto` leaves the choice to the profile");
    }
}
