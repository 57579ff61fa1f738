//! What follows from the declarations of keys ([`keys`](super::keys)): which are refused, and which have no effect.

use serde_json::Value;

use super::keys::{Key, key, keys};

/// A key that is set and does not fit the others.
pub(super) struct Misfit {
    pub(super) key: &'static Key,
    /// Whether the config is refused; else the key has no effect.
    pub(super) refused: bool,
    /// Whether it is written with its default, as all keys were in the configs that older runs wrote. This is never
    /// refused.
    pub(super) is_default: bool,
    pub(super) message: String,
    pub(super) help: String,
}

/// All keys of a config that do not fit the others.
pub(super) fn misfits(config: &Value) -> Vec<Misfit> {
    let set: Vec<&Key> = keys().iter().filter(|key| key.is_set(config)).collect();
    let run = Run::of(config);
    let mut found = Vec::new();
    for (number, key) in set.iter().copied().enumerate() {
        let is_default = key.is_default(config);
        found.extend(run.misfit(key).map(|misfit| Misfit {
            refused: misfit.refused && !is_default,
            is_default,
            ..misfit
        }));
        let Some(what) = key.words("x-sets") else {
            continue;
        };
        let before = set[..number].iter();
        if let Some(other) = before
            .rev()
            .find(|other| other.words("x-sets") == Some(what))
        {
            let (one, two) = (other.full_name(), key.full_name());
            found.push(Misfit {
                key,
                refused: true,
                is_default: false,
                message: format!("`{one}` and `{two}` both set {what}"),
                help: "keep one of the two".into(),
            });
        }
    }
    found
}

/// The same config without the keys that have no effect in it.
pub(super) fn in_effect(mut config: Value) -> Value {
    let run = Run::of(&config);
    let idle = keys().iter().filter(|key| run.misfit(key).is_some());
    let idle: Vec<&Key> = idle.collect();
    for key in idle {
        let section = match key.section {
            Some(section) => config.get_mut(section),
            None => Some(&mut config),
        };
        if let Some(Value::Object(entries)) = section {
            entries.retain(|name, _| name != key.name);
        }
    }
    config
}

/// Keys of which only one may be set with this one.
pub(super) fn alternatives(path: &[&str]) -> impl Iterator<Item = &'static Key> {
    let this = keys().iter().find(|key| key.path() == path);
    let what = this.and_then(|key| key.words("x-sets"));
    let others = keys()
        .iter()
        .filter(move |key| what.is_some() && key.words("x-sets") == what);
    others.filter(move |other| this.is_some_and(|this| !std::ptr::eq(*other, this)))
}

/// A config, and the kind of run that it describes.
struct Run<'a> {
    config: &'a Value,
    diffusion: bool,
    published: bool,
}

impl<'a> Run<'a> {
    fn of(config: &'a Value) -> Self {
        let set = |name| key(name).is_some_and(|key| key.is_set(config));
        Self {
            config,
            diffusion: set("data.resolution") || set("data.encoded_by"),
            published: set("model.name_or_path"),
        }
    }

    /// Whether `data.path` is set, `data.frame_extraction: slide` is the case, or one of several joined by `or`.
    fn holds(&self, condition: &str) -> bool {
        condition.split(" or ").any(|condition| {
            let (name, value) = match condition.split_once(": ") {
                Some((name, value)) => (name, Some(value)),
                None => (condition, None),
            };
            key(name).is_some_and(|key| match value {
                Some(value) => plain(key.value(self.config)) == value,
                None => key.is_set(self.config),
            })
        })
    }

    /// Why a key has no effect in this run, or would not have if it were set.
    fn misfit(&self, key: &'static Key) -> Option<Misfit> {
        self.of_another_kind(key)
            .or_else(|| self.beside_others(key))
    }

    fn of_another_kind(&self, key: &'static Key) -> Option<Misfit> {
        let kinds = key.kinds();
        let (refused, message, help) = match (kinds.includes(self.diffusion), kinds.published()) {
            (false, _) if self.diffusion => (
                true,
                "has no effect on videos (`data.resolution` is set)",
                "remove the key",
            ),
            (false, _) => (
                true,
                "is for videos, and this run is not on videos",
                "set `data.resolution` to train on videos, or remove the key",
            ),
            (true, Some(true)) if !self.published => (
                true,
                "needs a published model, and none is named",
                "set `model.name_or_path`, or remove the key",
            ),
            (true, Some(false)) if self.published => (
                false,
                "has no effect on a published model (`model.name_or_path`)",
                "remove the key",
            ),
            _ => return None,
        };
        Some(Misfit {
            key,
            refused,
            is_default: false,
            message: format!("`{}` {message}", key.full_name()),
            help: help.into(),
        })
    }

    fn beside_others(&self, key: &'static Key) -> Option<Misfit> {
        let lacks = |word| key.words(word).filter(|condition| !self.holds(condition));
        let beside = |word| key.words(word).filter(|condition| self.holds(condition));
        let name = || key.full_name();
        let (refused, message, help) = if let Some(needed) = lacks("x-needs") {
            let reason = key.words("x-because").map(str::to_owned);
            let add = match needed.contains('.') {
                true => format!("set `{needed}`"),
                false => format!("add an `{needed}` section"),
            };
            (
                true,
                reason.unwrap_or_else(|| format!("`{}` requires `{needed}`", name())),
                format!("{add}, or remove `{}`", name()),
            )
        } else if let Some(other) = beside("x-not-with") {
            (
                true,
                format!(
                    "`{}` has no effect beside `{other}`, which decides it",
                    name()
                ),
                format!("remove the key, or `{other}`"),
            )
        } else if let Some(needed) = lacks("x-unused-without") {
            (
                false,
                format!("`{}` has no effect without `{needed}`", name()),
                "remove the key".into(),
            )
        } else if let Some(other) = beside("x-follows-from") {
            (
                false,
                format!("`{}` has no effect: it follows from `{other}`", name()),
                "remove the key".into(),
            )
        } else {
            return None;
        };
        Some(Misfit {
            key,
            refused,
            is_default: false,
            message,
            help,
        })
    }
}

/// A value as it is written in a declaration.
pub(super) fn plain(value: &Value) -> String {
    value
        .as_str()
        .map_or_else(|| value.to_string(), str::to_owned)
}
