//! How a key of a config is declared: all that there is to say about it, in one place.
//!
//! ```text
//! /// What it does, and what unset means.       shown by the handbook and by editors
//! #[schemars(range(min = 2, max = 64))]          the values that are allowed
//! pub frame_stride: Option<u32> = None, for Diffusion, resume Free;
//!                                 │         │                 └ [`OnResume`]: may it change in a resumed run?
//!                                 │         └ [`For`]: the kinds of run in which it has an effect
//!                                 └ the default
//! ```
//!
//! How it depends on other keys is said by `#[schemars(extend("x-…" = …))]`. Another key is written with its section,
//! such as `data.path`, and possibly with the value that it must have, such as `data.frame_extraction: slide`.
//!
//! | | |
//! |---|---|
//! | `x-sets` | Only one of the keys with the same words here may be set; an override of one replaces the others. |
//! | `x-needs` | Refused without this other key, with the reason in `x-because` if there is one. |
//! | `x-unused-without` | The same, but it is only a warning that the key has no effect. |
//! | `x-not-with` | Refused beside this other key. |
//! | `x-follows-from` | Has no effect beside this other key, and a warning says so. |
//! | `x-per-machine` | May differ between the processes of a run: where things are, and how fast. |
//!
//! The JSON schema contains all of it, and what the trainer does by these rules is read from there.

use std::sync::OnceLock;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::paths::resolve;
use super::schema::schema;

/// Declares the struct of a section, with the default of each key.
macro_rules! section {
    (
        $(#[$about:meta])*
        pub struct $section:ident {
            $(
                $(#[$attribute:meta])*
                pub $key:ident: $type:ty = $default:expr, for $kinds:ident, resume $rule:ident;
            )*
        }
    ) => {
        #[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
        #[serde(default, deny_unknown_fields)]
        $(#[$about])*
        pub struct $section {
            $(
                $(#[$attribute])*
                #[schemars(extend(
                    "x-for" = $crate::config::keys::For::$kinds,
                    "x-resume" = $crate::config::keys::OnResume::$rule
                ))]
                pub $key: $type,
            )*
        }

        impl Default for $section {
            fn default() -> Self {
                Self { $($key: $default,)* }
            }
        }
    };
}

/// The kinds of run in which a key has an effect: language or diffusion models, published ones or from scratch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum For {
    Any,
    Language,
    LanguageFromScratch,
    PublishedLanguage,
    Diffusion,
    Published,
}

impl For {
    /// Whether this includes runs on diffusion models; else those on language models.
    pub(super) fn includes(self, diffusion: bool) -> bool {
        match self {
            Self::Any | Self::Published => true,
            Self::Language | Self::LanguageFromScratch | Self::PublishedLanguage => !diffusion,
            Self::Diffusion => diffusion,
        }
    }

    /// Whether the model must be published (`true`) or trained from scratch, if it matters.
    pub(super) fn published(self) -> Option<bool> {
        match self {
            Self::Any | Self::Language | Self::Diffusion => None,
            Self::Published | Self::PublishedLanguage => Some(true),
            Self::LanguageFromScratch => Some(false),
        }
    }
}

/// How a changed value of a key is treated when a run is resumed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum OnResume {
    /// It would be a different run: refused.
    Fixed,
    /// It may change, and the change is reported. If the key names something that is compared itself, as
    /// `model.name_or_path` names the weights, that comparison decides.
    Free,
    /// It does not affect what is trained: neither refused nor reported.
    Unrelated,
    /// A section, whose keys have a rule each.
    ByKey,
}

/// A declared key or section, and its schema.
#[derive(Debug)]
pub(crate) struct Key {
    pub(super) section: Option<&'static str>,
    pub(super) name: &'static str,
    schema: &'static Value,
}

/// All keys and sections, in the order of their declarations.
pub(crate) fn keys() -> &'static [Key] {
    static KEYS: OnceLock<Vec<Key>> = OnceLock::new();
    KEYS.get_or_init(|| {
        let of = |section: Option<&'static str>, declared: &'static Value| {
            let properties = declared["properties"].as_object().into_iter().flatten();
            properties.map(move |(name, schema)| Key {
                section,
                name,
                schema,
            })
        };
        let below = |top: Key| {
            let keys = of(Some(top.name), resolve(schema(), top.schema));
            std::iter::once(top).chain(keys)
        };
        of(None, schema()).flat_map(below).collect()
    })
}

/// The full names of all keys and sections, in that order.
pub(crate) fn key_names() -> &'static [String] {
    static NAMES: OnceLock<Vec<String>> = OnceLock::new();
    NAMES.get_or_init(|| keys().iter().map(Key::full_name).collect())
}

/// The key with this full name, such as `train.max_steps`, or the section.
pub(crate) fn key(full_name: &str) -> Option<&'static Key> {
    let (section, name) = match full_name.split_once('.') {
        Some((section, name)) => (Some(section), name),
        None => (None, full_name),
    };
    let mut keys = keys().iter();
    keys.find(|key| key.section == section && key.name == name)
}

impl Key {
    /// Its section and its name.
    pub(super) fn path(&self) -> Vec<&'static str> {
        self.section.into_iter().chain([self.name]).collect()
    }

    pub(super) fn full_name(&self) -> String {
        self.path().join(".")
    }

    /// Where it has an effect.
    pub(super) fn kinds(&self) -> For {
        self.read("x-for").unwrap_or(For::Any)
    }

    /// Whether it may change when a run is resumed.
    pub(crate) fn on_resume(&self) -> Option<OnResume> {
        self.read("x-resume")
    }

    /// Whether it may differ between the processes of a run.
    pub(crate) fn is_per_machine(&self) -> bool {
        self.schema["x-per-machine"] == true
    }

    /// The words of a declaration.
    pub(super) fn words(&self, declaration: &str) -> Option<&'static str> {
        self.schema[declaration].as_str()
    }

    fn read<T: Deserialize<'static>>(&self, declaration: &str) -> Option<T> {
        T::deserialize(&self.schema[declaration]).ok()
    }

    /// Its value in a config, or its default.
    pub(super) fn value<'c>(&self, config: &'c Value) -> &'c Value {
        self.written(config).unwrap_or(&self.schema["default"])
    }

    /// Whether a config sets it. A key that has a default is not set by `0`, `false` or an empty list or map: it asks for
    /// nothing.
    pub(super) fn is_set(&self, config: &Value) -> bool {
        let has_default = !self.schema["default"].is_null();
        match self.written(config).unwrap_or(&Value::Null) {
            Value::Null => false,
            Value::Bool(value) => *value || !has_default,
            Value::Number(value) => value.as_f64() != Some(0.0) || !has_default,
            Value::Array(items) => !items.is_empty() || !has_default,
            Value::Object(entries) => !entries.is_empty() || !has_default,
            Value::String(_) => true,
        }
    }

    /// Whether a config sets it to its default.
    pub(super) fn is_default(&self, config: &Value) -> bool {
        let (written, default) = (self.value(config), &self.schema["default"]);
        // `8` and `8.0` are the same number.
        let numbers = written.as_f64().zip(default.as_f64());
        numbers.map_or(written == default, |(written, default)| written == default)
    }

    fn written<'c>(&self, config: &'c Value) -> Option<&'c Value> {
        self.path()
            .into_iter()
            .try_fold(config, |config, key| config.get(key))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_key_is_declared_with_its_kinds_of_run_and_what_a_resume_may_change() {
        let declared = keys().iter().filter(|key| key.schema["deprecated"] != true);
        let incomplete =
            declared.filter(|key| key.read::<For>("x-for").is_none() || key.on_resume().is_none());
        let incomplete: Vec<_> = incomplete.map(Key::full_name).collect();
        assert!(
            incomplete.is_empty(),
            "declare these with `section!`, as `config/keys.rs` describes: {incomplete:?}"
        );
        assert!(keys().len() > 150);
    }

    #[test]
    fn what_a_declaration_refers_to_is_declared() {
        const KNOWN: [&str; 9] = [
            "x-aliases",
            "x-for",
            "x-resume",
            "x-sets",
            "x-needs",
            "x-because",
            "x-unused-without",
            "x-not-with",
            "x-follows-from",
        ];
        for declared in keys() {
            let of_ours = declared.schema.as_object().unwrap().iter();
            for (word, value) in of_ours.filter(|(word, _)| word.starts_with("x-")) {
                let name = declared.full_name();
                assert!(
                    KNOWN.contains(&word.as_str()) || word == "x-per-machine",
                    "{name}: {word}"
                );
                if let (
                    "x-needs" | "x-unused-without" | "x-not-with" | "x-follows-from",
                    Some(other),
                ) = (word.as_str(), value.as_str())
                {
                    for other in other.split(": ").next().unwrap().split(" or ") {
                        assert!(key(other).is_some(), "{name}: {word}: {other}");
                    }
                }
            }
        }
    }
}
