//! Tokens that are named by the files beside `tokenizer.json`: they become single tokens wherever they occur in a
//! text, with the properties from those files, as in transformers 5.23.

use std::collections::BTreeMap;

use serde_json::{Map, Value};
use tokenizers::{AddedToken, Tokenizer};

use crate::Error;

/// The tokens that the files name; later files override earlier ones.
#[derive(Debug, Default)]
pub(super) struct AddedTokens {
    /// By their ids, from `added_tokens_decoder` or `added_tokens.json`.
    numbered: BTreeMap<u64, AddedToken>,
    /// By their role, such as `pad_token`.
    named: BTreeMap<String, Vec<AddedToken>>,
}

impl AddedTokens {
    /// Adds the values of keys that name tokens: one, a list, or a map.
    pub(super) fn name<'a>(&mut self, entries: impl Iterator<Item = (&'a String, &'a Value)>) {
        for (key, value) in entries {
            if let Some(each) = each(value) {
                let tokens = each.into_iter().filter_map(|value| token(value, true));
                self.named.insert(key.clone(), tokens.collect());
            }
        }
    }

    /// Adds an `added_tokens_decoder`: tokens with their properties, by id.
    pub(super) fn number(&mut self, decoder: &Value) {
        for (id, value) in decoder.as_object().into_iter().flatten() {
            if let (Ok(id), Some(token)) = (id.parse(), token(value, false)) {
                self.numbered.insert(id, token);
            }
        }
    }

    /// Adds an `added_tokens.json`: ids by token. A token is special if it is also named.
    pub(super) fn older(&mut self, entries: &Map<String, Value>) {
        for (content, id) in entries {
            let is_special = self
                .named
                .values()
                .flatten()
                .any(|token| token.content == *content);
            if let Some(id) = id.as_u64() {
                self.numbered
                    .insert(id, AddedToken::from(content.as_str(), is_special));
            }
        }
    }

    /// Adds those that are in the vocabulary to `tokenizer`; returns a warning about
    /// ids that differ.
    pub(super) fn apply(self, tokenizer: &mut Tokenizer) -> Result<Option<String>, Error> {
        let is_known = |token: &AddedToken| tokenizer.token_to_id(&token.content).is_some();
        let mut moved = Vec::new();
        for (id, token) in &self.numbered {
            let found = tokenizer.token_to_id(&token.content).map(u64::from);
            if let Some(found) = found.filter(|found| found != id) {
                moved.push(format!("{:?} is {found}, not {id}", token.content));
            }
        }
        let there = tokenizer.get_added_tokens_decoder();
        let mut new: Vec<AddedToken> = self.numbered.into_values().filter(is_known).collect();
        for token in self.named.into_values().flatten().filter(is_known) {
            let is_there = there
                .values()
                .chain(&new)
                .any(|known| known.content == token.content);
            if !is_there {
                new.push(token);
            }
        }
        let added = tokenizer.add_tokens(new);
        added.map_err(|error| {
            Error::Invalid(format!("the tokenizer accepts no further tokens: {error}"))
        })?;
        Ok((!moved.is_empty()).then(|| {
            format!(
                "other files have different ids for these tokens, and those of `tokenizer.json` are used: {}",
                moved.join(", ")
            )
        }))
    }
}

/// The values of a key that names tokens: one, a list, or a map; `None` for anything else.
pub(super) fn each(value: &Value) -> Option<Vec<&Value>> {
    match value {
        Value::String(_) => Some(vec![value]),
        Value::Object(map) if map.get("content").is_some_and(Value::is_string) => Some(vec![value]),
        Value::Array(list) => Some(list.iter().collect()),
        Value::Object(map) => Some(map.values().collect()),
        _ => None,
    }
}

/// A token as a string, or an object with its properties.
fn token(value: &Value, is_special: bool) -> Option<AddedToken> {
    if let Value::String(content) = value {
        return Some(AddedToken::from(content.as_str(), true));
    }
    let content = value.get("content")?.as_str()?;
    let flag = |name: &str| value.get(name).and_then(Value::as_bool);
    let mut token = AddedToken::from(content, is_special || flag("special") == Some(true))
        .single_word(flag("single_word") == Some(true))
        .lstrip(flag("lstrip") == Some(true))
        .rstrip(flag("rstrip") == Some(true));
    if let Some(normalized) = flag("normalized") {
        token = token.normalized(normalized);
    }
    Some(token)
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use tokenizers::models::wordlevel::WordLevel;
    use tokenizers::pre_tokenizers::whitespace::WhitespaceSplit;

    use super::*;

    /// Has `<a>`, which is an ordinary word, and `<b>`, which is an added token.
    fn tokenizer() -> Tokenizer {
        let words = ["<a>", "<b>", "x", "?"].into_iter().enumerate();
        let vocabulary = words
            .map(|(id, word)| (word.to_owned(), id as u32))
            .collect();
        let model = WordLevel::builder()
            .vocab(vocabulary)
            .unk_token("?".into())
            .build()
            .unwrap();
        let mut tokenizer = Tokenizer::new(model);
        tokenizer.with_pre_tokenizer(Some(WhitespaceSplit));
        tokenizer
            .add_special_tokens([AddedToken::from("<b>", true)])
            .unwrap();
        tokenizer
    }

    fn ids(tokenizer: &Tokenizer, text: &str) -> Vec<u32> {
        tokenizer.encode(text, false).unwrap().get_ids().to_vec()
    }

    #[test]
    fn a_named_word_becomes_a_token_wherever_it_occurs() {
        let mut tokenizer = tokenizer();
        assert_eq!(ids(&tokenizer, "x<a>x"), [3]);
        for value in [
            json!("<a>"),
            json!(["<a>"]),
            json!({"image": {"content": "<a>"}}),
        ] {
            let mut added = AddedTokens::default();
            added.name([(&"pad_token".to_owned(), &value)].into_iter());
            let mut with = tokenizer.clone();
            assert_eq!(added.apply(&mut with).unwrap(), None);
            assert_eq!(ids(&with, "x<a>x"), [2, 0, 2], "{value}");
        }
        let mut added = AddedTokens::default();
        added.name([(&"pad_token".to_owned(), &json!("<new>"))].into_iter());
        added.apply(&mut tokenizer).unwrap();
        assert_eq!(
            tokenizer.token_to_id("<new>"),
            None,
            "a model has no row for it"
        );
    }

    #[test]
    fn properties_with_an_id_override_those_in_the_file() {
        let mut tokenizer = tokenizer();
        let mut added = AddedTokens::default();
        added.number(
            &json!({"1": {"content": "<b>", "lstrip": true, "rstrip": true, "special": true}}),
        );
        assert_eq!(added.apply(&mut tokenizer).unwrap(), None);
        let found = tokenizer.encode("x  <b>  x", false).unwrap();
        assert_eq!(found.get_offsets(), [(0, 1), (1, 8), (8, 9)]);
    }

    #[test]
    fn differing_ids_are_reported() {
        let mut tokenizer = tokenizer();
        let mut added = AddedTokens::default();
        let older = json!({"<a>": 7, "x": 2});
        added.older(older.as_object().unwrap());
        let told = added.apply(&mut tokenizer).unwrap().unwrap();
        assert!(told.ends_with("\"<a>\" is 0, not 7"), "{told}");
        assert_eq!(ids(&tokenizer, "?<a>x"), [3, 0, 2]);
    }
}
