//! Every key of the files that define tokenisation, and how it is treated.
//!
//! A key is obeyed, is irrelevant for whole texts (as in transformers 5.23), is reported in a warning, or is refused.
//! An unknown key is reported too, so that nothing is silently
//! ignored.

use std::path::Path;

use serde::de::IgnoredAny;
use serde_json::{Map, Value};
use tokenizers::Tokenizer;

use super::added_tokens::{AddedTokens, each};
use super::tokenizer_class;
use crate::Error;

/// How a key is treated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Treatment {
    /// Obeyed, here or by `tokenizers`.
    Obeyed,
    /// It has no effect on tokens or texts here, nor in transformers.
    WithoutEffect,
    /// Reported, unless its value is the default.
    Told,
    /// Refused if it is true.
    RefusedIfTrue,
    /// Names tokens, which become single tokens; those missing from the vocabulary are reported.
    Tokens,
}

use Treatment::{Obeyed, RefusedIfTrue, Tokens, Told, WithoutEffect};

const TOKENIZER: &[(&str, Treatment)] = &[
    ("version", Obeyed),
    ("added_tokens", Obeyed),
    ("normalizer", Obeyed),
    ("pre_tokenizer", Obeyed),
    ("post_processor", Obeyed),
    ("decoder", Obeyed),
    ("model", Obeyed),
    // As they were when the file was saved; transformers applies them only if a call asks for it.
    ("truncation", WithoutEffect),
    ("padding", WithoutEffect),
];

const TOKENIZER_CONFIG: &[(&str, Treatment)] = &[
    ("bos_token", Obeyed),
    ("eos_token", Obeyed),
    ("chat_template", Obeyed),
    ("unk_token", Tokens),
    ("pad_token", Tokens),
    ("sep_token", Tokens),
    ("cls_token", Tokens),
    ("mask_token", Tokens),
    ("additional_special_tokens", Tokens),
    ("extra_special_tokens", Tokens),
    ("model_specific_special_tokens", Tokens),
    ("added_tokens_decoder", Tokens),
    ("split_special_tokens", RefusedIfTrue),
    // Ignored by transformers if there is a `tokenizer.json`, whose post-processor is used.
    ("add_bos_token", WithoutEffect),
    ("add_eos_token", WithoutEffect),
    // Ignored except by classes with their own rules; a difference is reported separately.
    ("add_prefix_space", WithoutEffect),
    ("legacy", WithoutEffect),
    ("sp_model_kwargs", WithoutEffect),
    ("spaces_between_special_tokens", WithoutEffect),
    ("use_default_system_prompt", WithoutEffect),
    ("errors", WithoutEffect),
    // Only for calls that truncate or pad.
    ("model_max_length", WithoutEffect),
    ("max_length", WithoutEffect),
    ("padding_side", WithoutEffect),
    ("truncation_side", WithoutEffect),
    ("truncation_strategy", WithoutEffect),
    ("pad_to_multiple_of", WithoutEffect),
    ("pad_token_type_id", WithoutEffect),
    ("stride", WithoutEffect),
    ("model_input_names", WithoutEffect),
    ("return_token_type_ids", WithoutEffect),
    // About the files and classes themselves.
    ("tokenizer_class", WithoutEffect),
    ("processor_class", WithoutEffect),
    ("image_processor_type", WithoutEffect),
    ("backend", WithoutEffect),
    ("is_local", WithoutEffect),
    ("local_files_only", WithoutEffect),
    ("name_or_path", WithoutEffect),
    ("special_tokens_map_file", WithoutEffect),
    ("tokenizer_file", WithoutEffect),
    ("use_fast", WithoutEffect),
    ("from_slow", WithoutEffect),
    ("init_inputs", WithoutEffect),
    ("transformers_version", WithoutEffect),
    ("_commit_hash", WithoutEffect),
    // These affect texts or tokens in some classes of transformers.
    ("clean_up_tokenization_spaces", Told),
    ("auto_map", Told),
    ("do_lower_case", Told),
    ("strip_accents", Told),
    ("tokenize_chinese_chars", Told),
    ("fix_mistral_regex", Told),
    ("response_schema", Told),
    ("response_template", Told),
    ("chat_control_tokens", Told),
];

/// Read only if `tokenizer_config.json` has no `added_tokens_decoder`, as in
/// transformers.
const SPECIAL_TOKENS_MAP: &[(&str, Treatment)] = &[
    ("bos_token", Obeyed),
    ("eos_token", Obeyed),
    ("unk_token", Tokens),
    ("pad_token", Tokens),
    ("sep_token", Tokens),
    ("cls_token", Tokens),
    ("mask_token", Tokens),
    ("additional_special_tokens", Tokens),
    ("extra_special_tokens", Tokens),
];

const GENERATION_CONFIG: &[(&str, Treatment)] = &[
    ("eos_token_id", Obeyed),
    ("bos_token_id", WithoutEffect),
    ("pad_token_id", WithoutEffect),
    ("transformers_version", WithoutEffect),
    ("_from_model_config", WithoutEffect),
    ("use_cache", WithoutEffect),
    ("cache_implementation", WithoutEffect),
    ("output_attentions", WithoutEffect),
    ("output_hidden_states", WithoutEffect),
    ("output_scores", WithoutEffect),
    ("output_logits", WithoutEffect),
    ("return_dict_in_generate", WithoutEffect),
    ("trust_remote_code", WithoutEffect),
    ("chat_format", WithoutEffect),
    // Set by command-line options and the section `sample` instead.
    ("do_sample", Told),
    ("temperature", Told),
    ("top_k", Told),
    ("top_p", Told),
    ("min_p", Told),
    ("typical_p", Told),
    ("epsilon_cutoff", Told),
    ("eta_cutoff", Told),
    ("repetition_penalty", Told),
    ("encoder_repetition_penalty", Told),
    ("length_penalty", Told),
    ("no_repeat_ngram_size", Told),
    ("bad_words_ids", Told),
    ("suppress_tokens", Told),
    ("begin_suppress_tokens", Told),
    ("forced_bos_token_id", Told),
    ("forced_eos_token_id", Told),
    ("sequence_bias", Told),
    ("guidance_scale", Told),
    ("penalty_alpha", Told),
    ("num_beams", Told),
    ("early_stopping", Told),
    ("max_length", Told),
    ("max_new_tokens", Told),
    ("min_length", Told),
    ("min_new_tokens", Told),
    ("max_time", Told),
    ("stop_strings", Told),
    ("num_return_sequences", Told),
    ("assistant_early_exit", Told),
    ("prompt_lookup_num_tokens", Told),
];

/// Whether a value is the default of its key.
fn is_default(key: &str, value: &Value) -> bool {
    match key {
        "tokenize_chinese_chars" => value.is_null() || value == &Value::Bool(true),
        _ if value.is_null() || value == &Value::Bool(false) => true,
        "temperature"
        | "top_p"
        | "typical_p"
        | "repetition_penalty"
        | "length_penalty"
        | "encoder_repetition_penalty"
        | "num_beams"
        | "num_return_sequences" => value.as_f64() == Some(1.0),
        _ => value.as_f64() == Some(0.0),
    }
}

/// What the files of a model folder say in addition to what was read before.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Keys {
    /// Tokens by their names in a chat template, such as `pad_token`.
    pub(super) named_tokens: Vec<(String, String)>,
    /// One warning for each file that needs one.
    pub(super) warnings: Vec<String>,
}

/// Checks the files of `folder`, to which `tokenizer` belongs, and adds the tokens that they name to
/// it.
pub(super) fn check(folder: &Path, tokenizer: &mut Tokenizer) -> Result<Keys, Error> {
    let mut keys = Keys::default();
    let mut added = AddedTokens::default();
    // Its values are long, and `tokenizers` has read them.
    if let Some(text) = read(folder, "tokenizer.json")? {
        let entries: std::collections::BTreeMap<String, IgnoredAny> =
            parse(folder, "tokenizer.json", &text)?;
        let entries = entries.into_keys().map(|key| (key, Value::Bool(true)));
        keys.look(
            folder,
            "tokenizer.json",
            TOKENIZER,
            entries.collect(),
            tokenizer,
        )?;
    }
    let mut newer = false;
    if let Some(text) = read(folder, "tokenizer_config.json")? {
        let entries: Map<String, Value> = parse(folder, "tokenizer_config.json", &text)?;
        newer = entries.contains_key("added_tokens_decoder");
        keys.name(&entries);
        added.name(
            entries
                .iter()
                .filter(|(key, value)| names_tokens(TOKENIZER_CONFIG, key, value)),
        );
        if let Some(decoder) = entries.get("added_tokens_decoder") {
            added.number(decoder);
        }
        keys.warnings
            .extend(tokenizer_class::difference(folder, &entries)?);
        keys.look(
            folder,
            "tokenizer_config.json",
            TOKENIZER_CONFIG,
            entries,
            tokenizer,
        )?;
    }
    if let Some(text) = read(folder, "special_tokens_map.json")?.filter(|_| !newer) {
        let entries: Map<String, Value> = parse(folder, "special_tokens_map.json", &text)?;
        keys.name(&entries);
        added.name(
            entries
                .iter()
                .filter(|(key, value)| names_tokens(SPECIAL_TOKENS_MAP, key, value)),
        );
        keys.look(
            folder,
            "special_tokens_map.json",
            SPECIAL_TOKENS_MAP,
            entries,
            tokenizer,
        )?;
    }
    // Like the map above, for older folders.
    if let Some(text) = read(folder, "added_tokens.json")?.filter(|_| !newer) {
        let entries: Map<String, Value> = parse(folder, "added_tokens.json", &text)?;
        added.older(&entries);
        let place = folder.join("added_tokens.json");
        keys.tell_missing(&place, entries.keys().map(String::as_str), tokenizer);
    }
    if let Some(text) = read(folder, "generation_config.json")? {
        let entries = parse(folder, "generation_config.json", &text)?;
        keys.look(
            folder,
            "generation_config.json",
            GENERATION_CONFIG,
            entries,
            tokenizer,
        )?;
    }
    if let Some(warning) = added.apply(tokenizer)? {
        keys.warnings
            .push(format!("`{}`: {warning}", folder.display()));
    }
    Ok(keys)
}

/// Whether a key of a file with this table names tokens of the tokenizer.
fn names_tokens(table: &[(&str, Treatment)], key: &str, value: &Value) -> bool {
    match table.iter().find(|(known, _)| *known == key) {
        Some((_, Tokens)) => key != "added_tokens_decoder",
        Some((known, _)) => ["bos_token", "eos_token"].contains(known),
        None => key.ends_with("_token") && !value.is_boolean(),
    }
}

impl Keys {
    /// Adds the tokens that a file names; later files override earlier ones.
    fn name(&mut self, entries: &Map<String, Value>) {
        for (key, value) in entries.iter().filter(|(key, _)| key.ends_with("_token")) {
            if let Some(token) = token_text(value) {
                self.named_tokens.retain(|(known, _)| known != key);
                self.named_tokens.push((key.clone(), token.to_owned()));
            }
        }
    }

    fn look(
        &mut self,
        folder: &Path,
        file: &str,
        table: &[(&str, Treatment)],
        entries: Map<String, Value>,
        tokenizer: &Tokenizer,
    ) -> Result<(), Error> {
        let place = folder.join(file);
        let mut ignored = Vec::new();
        let mut named = Vec::new();
        for (key, value) in &entries {
            let known = table.iter().find(|(known, _)| known == key);
            // Classes of transformers have further named tokens, such as `image_token`.
            let treatment = match known {
                Some((_, treatment)) => *treatment,
                None if key.ends_with("_token") && !value.is_boolean() => Tokens,
                None => Told,
            };
            match treatment {
                Obeyed | WithoutEffect => {}
                Told if known.is_some() && is_default(key, value) => {}
                Told => ignored.push(format!("`{key}`")),
                RefusedIfTrue if value == &Value::Bool(true) => {
                    return Err(Error::Invalid(format!(
                        "`{}` sets `{key}`, which is not supported here: remove the key, or use a \
                        tokenizer without it",
                        place.display()
                    )));
                }
                RefusedIfTrue => {}
                Tokens => named.extend(tokens(value)),
            }
        }
        if !ignored.is_empty() {
            self.warnings.push(format!(
                "`{}` has keys that are not applied: {}",
                place.display(),
                ignored.join(", ")
            ));
        }
        self.tell_missing(&place, named.into_iter(), tokenizer);
        Ok(())
    }

    /// Reports tokens that the file at `place` names but the vocabulary lacks.
    fn tell_missing<'a>(
        &mut self,
        place: &Path,
        named: impl Iterator<Item = &'a str>,
        tokenizer: &Tokenizer,
    ) {
        let missing = named.filter(|token| tokenizer.token_to_id(token).is_none());
        let mut missing: Vec<_> = missing.map(|token| format!("{token:?}")).collect();
        missing.sort();
        missing.dedup();
        if !missing.is_empty() {
            self.warnings.push(format!(
                "`{}` names tokens that `tokenizer.json` does not have; they are read as \
                ordinary text: {}",
                place.display(),
                missing.join(", ")
            ));
        }
    }
}

pub(super) fn read(folder: &Path, file: &str) -> Result<Option<String>, Error> {
    let path = folder.join(file);
    match std::fs::read_to_string(&path) {
        Ok(text) => Ok(Some(text)),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(Error::io("read", &path, error)),
    }
}

pub(super) fn parse<T: serde::de::DeserializeOwned>(
    folder: &Path,
    file: &str,
    text: &str,
) -> Result<T, Error> {
    serde_json::from_str(text).map_err(|error| {
        Error::Invalid(format!(
            "`{}` is damaged: {error}",
            folder.join(file).display()
        ))
    })
}

/// A token as a string, or an object with its properties.
fn token_text(value: &Value) -> Option<&str> {
    value.as_str().or_else(|| value.get("content")?.as_str())
}

/// All tokens of a value: one, a list, or a map of names or numbers to tokens.
fn tokens(value: &Value) -> Vec<&str> {
    let each = each(value).into_iter().flatten();
    each.filter_map(token_text).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn tokenizer() -> Tokenizer {
        let mut tokenizer = Tokenizer::new(tokenizers::models::bpe::BPE::default());
        let tokens = ["<s>", "</s>"].map(|token| tokenizers::AddedToken::from(token, true));
        tokenizer.add_special_tokens(tokens).unwrap();
        tokenizer
    }

    fn check_file(file: &str, content: &Value) -> Result<Keys, String> {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join(file), content.to_string()).unwrap();
        check(folder.path(), &mut tokenizer()).map_err(|error| error.to_string())
    }

    /// A value that triggers the key's treatment.
    fn telling(key: &str, treatment: Treatment) -> Value {
        match (key, treatment) {
            ("added_tokens_decoder", _) => json!({"7": {"content": "<new>"}}),
            ("additional_special_tokens", _) => json!(["<s>", "<new>"]),
            ("extra_special_tokens" | "model_specific_special_tokens", _) => {
                json!({"new_token": "<new>"})
            }
            (_, Tokens) => json!({"content": "<new>", "lstrip": false}),
            ("tokenize_chinese_chars", _) => json!(false),
            (_, RefusedIfTrue) => json!(true),
            _ => json!(7.5),
        }
    }

    #[test]
    fn each_key_of_each_file_is_obeyed_reported_or_refused() {
        for (file, table) in [
            ("tokenizer.json", TOKENIZER),
            ("tokenizer_config.json", TOKENIZER_CONFIG),
            ("special_tokens_map.json", SPECIAL_TOKENS_MAP),
            ("generation_config.json", GENERATION_CONFIG),
        ] {
            for (key, treatment) in table {
                let value = telling(key, *treatment);
                let found = check_file(file, &json!({*key: value}));
                match treatment {
                    Obeyed | WithoutEffect => {
                        assert_eq!(found.unwrap().warnings.len(), 0, "{file}: {key}");
                    }
                    Told => {
                        let warning = found.unwrap().warnings.concat();
                        let expected = format!("not applied: `{key}`");
                        assert!(warning.ends_with(&expected), "{file}: {warning}");
                    }
                    RefusedIfTrue => {
                        let reason = found.unwrap_err();
                        assert!(reason.contains(&format!("sets `{key}`")), "{reason}");
                    }
                    Tokens => {
                        let warning = found.unwrap().warnings.concat();
                        assert!(warning.ends_with(": \"<new>\""), "{file}: {key}: {warning}");
                    }
                }
            }
            let found = check_file(file, &json!({"never_seen": 1})).unwrap();
            let warning = found.warnings.concat();
            assert!(warning.ends_with("not applied: `never_seen`"), "{warning}");
        }
    }

    /// As in `from_pretrained` of transformers 5.23.
    #[test]
    fn the_map_of_special_tokens_is_read_if_the_config_has_no_decoder() {
        let folder = tempfile::tempdir().unwrap();
        let write = |file: &str, content: Value| {
            std::fs::write(folder.path().join(file), content.to_string()).unwrap();
        };
        write(
            "tokenizer_config.json",
            json!({"pad_token": "<s>", "unk_token": "<s>"}),
        );
        write(
            "special_tokens_map.json",
            json!({"pad_token": {"content": "</s>"}}),
        );
        let named = || check(folder.path(), &mut tokenizer()).unwrap().named_tokens;
        let want = [("unk_token", "<s>"), ("pad_token", "</s>")];
        assert_eq!(named(), want.map(|(a, b)| (a.to_owned(), b.to_owned())));
        write(
            "tokenizer_config.json",
            json!({"pad_token": "<s>", "added_tokens_decoder": {}}),
        );
        assert_eq!(named(), [("pad_token".to_owned(), "<s>".to_owned())]);
    }

    #[test]
    fn default_values_are_not_reported() {
        let generation =
            json!({"do_sample": false, "temperature": 1.0, "num_beams": 1, "top_k": null});
        assert_eq!(
            check_file("generation_config.json", &generation),
            Ok(Keys::default())
        );
        let config = json!({"split_special_tokens": false, "clean_up_tokenization_spaces": false,
            "pad_token": "</s>", "image_token": {"content": "<s>"}});
        let keys = check_file("tokenizer_config.json", &config).unwrap();
        assert!(keys.warnings.is_empty());
        let named = [("pad_token", "</s>"), ("image_token", "<s>")];
        assert_eq!(
            keys.named_tokens,
            named.map(|(a, b)| (a.to_owned(), b.to_owned()))
        );
    }
}
