//! Sliding windows: which blocks see only the latest tokens.

use serde_json::{Map, Value, json};

use super::DecoderConfig;
use super::config::{self, Defaults};
use crate::Error;
use crate::json::Object;
use crate::model::RopeSettings;
use crate::model::rope::{self, Place};

/// Keys of [`refuse`].
pub(super) const KEYS: &[&str] = &[
    "layer_types",
    "use_sliding_window",
    "sliding_window",
    "max_window_layers",
];

/// Blocks whose attention has a sliding window.
#[derive(Debug, Clone, PartialEq)]
pub struct LocalLayers {
    /// Number of tokens that a token sees, itself included.
    pub window: i64,
    /// Their rotary position embedding.
    pub rope: RopeSettings,
    /// For each block, whether it is one of them.
    pub layers: Vec<bool>,
}

impl LocalLayers {
    /// Blocks with a window and without one whose rotary embeddings differ, each in a section of `rope_parameters`.
    /// Without `layer_types`, all but each `pattern`th have a window.
    ///
    /// # Errors
    /// The error names the key, what is allowed and what was found.
    pub(super) fn read(
        object: &Object,
        config: &DecoderConfig,
        pattern: i64,
        [whole, local]: [&Place; 2],
    ) -> Result<Self, Error> {
        if let Some(sections) = object.object("rope_parameters")? {
            let known = [whole.section, local.section];
            let is_known = |key: &str| known.contains(&Some(key));
            if let Some((key, _)) = sections.keys().find(|(key, _)| !is_known(key)) {
                return Err(sections.error(
                    key,
                    "is not supported: there must be an object for each kind of layer",
                ));
            }
        }
        Ok(Self {
            window: object.integer("sliding_window", Some(4096), 1..=1 << 30)?,
            rope: rope::read(object, config.max_position_embeddings, local)?,
            layers: layers(
                object,
                config.num_hidden_layers,
                pattern,
                "sliding_attention",
            )?,
        })
    }

    /// The same window for all blocks, if `sliding_window` or the `default` says so.
    ///
    /// # Errors
    /// As [`LocalLayers::read`].
    pub(super) fn of_all(
        object: &Object,
        config: &DecoderConfig,
        default: Option<i64>,
    ) -> Result<Option<Self>, Error> {
        let is_none = match object.has("sliding_window") {
            true => object.get("sliding_window").is_none(),
            false => default.is_none(),
        };
        if is_none {
            return Ok(None);
        }
        let layers = usize::try_from(config.num_hidden_layers).unwrap_or(0);
        Ok(Some(Self {
            window: object.integer("sliding_window", default, 1..=1 << 30)?,
            rope: config.rope.clone(),
            layers: vec![true; layers],
        }))
    }

    /// Adds the keys that say which blocks these are.
    pub(super) fn write_layers(&self, keys: &mut Map<String, Value>) {
        keys.insert("layer_types".into(), layer_types(&self.layers));
        keys.insert("sliding_window".into(), self.window.into());
    }

    /// Adds the keys that [`LocalLayers::read`] reads.
    pub(super) fn write(&self, keys: &mut Map<String, Value>) {
        self.write_layers(keys);
        let whole = keys.remove("rope_parameters");
        let sections = json!({
            "full_attention": whole,
            "sliding_attention": self.rope.to_json().1,
        });
        keys.insert("rope_parameters".into(), sections);
    }
}

/// `layer_types` of blocks of which `local` tells each whether it has a window.
pub(super) fn layer_types(local: &[bool]) -> Value {
    let kinds = local.iter().map(|local| match local {
        true => "sliding_attention",
        false => "full_attention",
    });
    kinds.collect()
}

/// Refuses sliding windows, for families that are not known to have any. Many of Qwen's configs have keys for
/// one that no layer uses.
pub(super) fn refuse(object: &Object, defaults: &Defaults) -> Result<(), Error> {
    let layers = config::layers(object, defaults)?;
    match object.get("layer_types") {
        Some(Value::Array(types)) if types.len() as i64 != layers => Err(object.error(
            "layer_types",
            format!("has {} names for {layers} layers", types.len()),
        )),
        Some(Value::Array(types)) => match types.iter().find(|kind| *kind != "full_attention") {
            Some(kind) => Err(object.error(
                "layer_types",
                format!("has {kind}; only \"full_attention\" is supported"),
            )),
            None => Ok(()),
        },
        Some(_) => Err(object.error("layer_types", "must be a list of names")),
        None => {
            let whole = object.integer("max_window_layers", Some(28), 0..=1 << 20)?;
            let none = object.has("sliding_window") && object.get("sliding_window").is_none();
            match object.flag("use_sliding_window", false)? && whole < layers && !none {
                true => Err(object.error(
                    "use_sliding_window",
                    "is true; sliding windows are not supported",
                )),
                false => Ok(()),
            }
        }
    }
}

/// For each of `count` blocks, whether it is of the `other` kind than those that see the whole text: as `layer_types` says,
/// or all but each `pattern`th.
pub(super) fn layers(
    object: &Object,
    count: i64,
    pattern: i64,
    other: &str,
) -> Result<Vec<bool>, Error> {
    let kinds = ["full_attention", other];
    let Some(types) = object.get("layer_types") else {
        return Ok((1..=count).map(|number| number % pattern != 0).collect());
    };
    let Value::Array(types) = types else {
        return Err(object.error("layer_types", "must be a list of names"));
    };
    if types.len() as i64 != count {
        let reason = format!("has {} names for {count} layers", types.len());
        return Err(object.error("layer_types", reason));
    }
    let kind = |kind: &Value| match kinds.iter().position(|known| kind == known) {
        Some(place) => Ok(place == 1),
        None => {
            let reason = format!("has {kind}; supported: {}", kinds.join(", "));
            Err(object.error("layer_types", reason))
        }
    };
    types.iter().map(kind).collect()
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    #[test]
    fn windows_are_refused_by_families_that_are_not_known_to_have_any() {
        let mut config = json!({"num_hidden_layers": 1, "use_sliding_window": true,
            "max_window_layers": 0});
        let refusal = |config: &Value| {
            let object = Object::new(Path::new("config.json"), config.clone()).unwrap();
            refuse(&object, &Defaults::NONE)
                .err()
                .map(|error| error.to_string())
        };
        let reason = refusal(&config).unwrap();
        assert!(reason.contains("use_sliding_window"), "{reason}");
        config["sliding_window"] = Value::Null;
        assert_eq!(refusal(&config), None);
    }
}
