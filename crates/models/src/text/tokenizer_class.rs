//! Tokenizer classes of transformers 5.23 that split text by their own rules, regardless of `tokenizer.json`.

use std::path::Path;

use serde_json::{Map, Value, json};

use super::tokenizer_keys::{parse, read};
use crate::Error;
use crate::language::{Family, TokenizerClass};

/// How Qwen's tokenizers split a text.
const QWEN: &str = concat!(
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}|",
    r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
);

/// How Qwen3.5's does: marks belong to letters.
const QWEN3_5: &str = concat!(
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}|",
    r" ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
);

/// A warning if the class that transformers would use for `folder`, with this `tokenizer_config.json`, splits text
/// differently from `tokenizer.json`, which is used here.
pub(super) fn difference(
    folder: &Path,
    config: &Map<String, Value>,
) -> Result<Option<String>, Error> {
    let of_file = |name: &str| -> Result<Value, Error> {
        let text = read(folder, name)?;
        text.map_or(Ok(Value::Null), |text| parse(folder, name, &text))
    };
    let model = of_file("config.json")?;
    let class = config.get("tokenizer_class").and_then(Value::as_str);
    let class = class.map(|class| class.trim_end_matches("Fast"));
    let family = model["model_type"].as_str().and_then(Family::of_model_type);
    let class = match family.map(|family| family.tokenizer_class) {
        Some(TokenizerClass::Always(class)) => class,
        Some(TokenizerClass::Default(default)) => class.unwrap_or(default),
        _ => class.unwrap_or_default(),
    };
    let prefix = config.get("add_prefix_space") == Some(&Value::Bool(true));
    let Some((normalizer, division)) = rules(class, prefix) else {
        return Ok(None);
    };
    let tokenizer = of_file("tokenizer.json")?;
    let differs = [("normalizer", normalizer), ("pre_tokenizer", division)]
        .into_iter()
        .filter(|(key, of_class)| plain(&tokenizer[*key]) != plain(of_class))
        .map(|(key, _)| format!("`{key}`"))
        .collect::<Vec<_>>();
    Ok((!differs.is_empty()).then(|| {
        format!(
            "`{}` differs from transformers 5.23, whose `{class}` has its own rules in place of \
            {}: the file is used here, and the tokens may differ",
            folder.join("tokenizer.json").display(),
            differs.join(" and ")
        )
    }))
}

/// The normalizer and the pre-tokenizer of a class.
fn rules(class: &str, prefix: bool) -> Option<(Value, Value)> {
    let bytes = |with_rules: bool| json!({"type": "ByteLevel", "add_prefix_space": prefix, "use_regex": with_rules});
    let qwen = |words: &str| {
        let split = json!({"type": "Split", "pattern": {"Regex": words}, "behavior": "Isolated", "invert": false});
        let parts = json!({"type": "Sequence", "pretokenizers": [split, bytes(false)]});
        Some((json!({"type": "NFC"}), parts))
    };
    match class {
        "Qwen2Tokenizer" => qwen(QWEN),
        "Qwen3_5Tokenizer" => qwen(QWEN3_5),
        "GPT2Tokenizer" => Some((Value::Null, bytes(true))),
        _ => None,
    }
}

/// The rules without what affects only offsets, and with defaults that older files leave out.
fn plain(rules: &Value) -> Value {
    match rules {
        Value::Object(map) => {
            let mut map = map.clone();
            map.remove("trim_offsets");
            if map.get("type") == Some(&"ByteLevel".into()) {
                map.entry("use_regex").or_insert(true.into());
            }
            Value::Object(
                map.iter()
                    .map(|(key, value)| (key.clone(), plain(value)))
                    .collect(),
            )
        }
        Value::Array(list) => list.iter().map(plain).collect(),
        other => other.clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The warning for a folder with such files.
    fn told(
        model_type: &str,
        class: Option<&str>,
        prefix: bool,
        tokenizer: &Value,
    ) -> Option<String> {
        let folder = tempfile::tempdir().unwrap();
        let write = |name: &str, content: &Value| {
            std::fs::write(folder.path().join(name), content.to_string()).unwrap();
        };
        write("config.json", &json!({"model_type": model_type}));
        write("tokenizer.json", tokenizer);
        let config = json!({"tokenizer_class": class, "add_prefix_space": prefix});
        difference(folder.path(), config.as_object().unwrap()).unwrap()
    }

    #[test]
    fn a_file_that_agrees_with_its_class_gives_no_warning() {
        for class in ["Qwen2Tokenizer", "Qwen3_5Tokenizer", "GPT2Tokenizer"] {
            for prefix in [false, true] {
                let (normalizer, mut division) = rules(class, prefix).unwrap();
                let file = json!({"normalizer": normalizer, "pre_tokenizer": division});
                let fast = format!("{class}Fast");
                assert_eq!(told("llama", Some(&fast), prefix, &file), None);
                assert!(told("llama", Some(&fast), !prefix, &file).is_some());
                assert_eq!(told("llama", Some("LlamaTokenizer"), !prefix, &file), None);
                // As in most files.
                if class == "GPT2Tokenizer" {
                    division["trim_offsets"] = true.into();
                    let file = json!({"normalizer": null, "pre_tokenizer": division});
                    assert_eq!(told("llama", Some(class), prefix, &file), None);
                }
            }
        }
    }

    #[test]
    fn what_a_class_would_replace_is_named() {
        let file =
            json!({"normalizer": {"type": "Lowercase"}, "pre_tokenizer": {"type": "Digits"}});
        for (model_type, class) in [
            ("qwen2", Some("LlamaTokenizer")),
            ("qwen3", None),
            ("qwen3_5", None),
            ("llama", Some("Qwen2TokenizerFast")),
            ("llama", Some("GPT2Tokenizer")),
        ] {
            let told = told(model_type, class, false, &file).unwrap();
            assert!(told.contains("`normalizer` and `pre_tokenizer`"), "{told}");
        }
        for (model_type, class) in [("qwen3", Some("LlamaTokenizer")), ("llama", None)] {
            assert_eq!(told(model_type, class, false, &file), None);
        }
    }
}
