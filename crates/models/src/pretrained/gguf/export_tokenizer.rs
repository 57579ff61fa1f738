//! The tokenizer of a model as metadata of a GGUF file.
//!
//! How a byte-level BPE divides text into words is only a name there. The name is found by trying: that under which the
//! file's tokenizer gives the tokens of the original for texts of many kinds. Without one, the model is refused.

use std::collections::HashMap;

use serde_json::Value as Json;
use tokenizers::Tokenizer;

use super::tokenizer::{self, CONTROL, SCORED, USER_DEFINED};
use crate::formats::gguf::{Array, Header, Value};
use crate::language::Gguf;
use crate::pretrained::Pretrained;

/// Other token types (`enum llama_token_type`).
const NORMAL: i64 = 1;
const UNKNOWN: i64 = 2;
const UNUSED: i64 = 5;
const BYTE: i64 = 6;

/// The names of divisions into words, one of each kind that is known.
const DIVISIONS: [&str; 7] = [
    "qwen2",
    "qwen35",
    "llama-bpe",
    "dbrx",
    "gpt-4o",
    "smollm",
    "gpt-2",
];

/// Texts that tokenizers divide differently: contractions, numbers, spaces, line ends, scripts, code, and joined and
/// separate accents.
const PROBES: [&str; 12] = [
    "The quick brown fox doesn't jump; it's 1 lazy dog, and they'LL've 23 456 7890 12345678 more.",
    "  two  spaces   three    four\tand\ttabs \t mixed  ",
    "line\nline\n\nline\r\n  indented\n\n\n   more \n",
    "def f(x_1, *args):\n    return {'a': x**2, \"b\": [1,2,3]}  # note\n",
    "naïve café Zürich naïve — “quotes” … ½ ²",
    "日本語のテキストと中文文本，以及한국어。",
    "Привет, мир! שלום مرحبا नमस्ते สวัสดี",
    "😀😃 👩‍👩‍👧‍👦 🇩🇪 e\u{301}",
    "https://example.org/a?b=c&d=%20e#f user@host.tld C:\\path\\file.txt",
    "CamelCaseWords and_snake_case AND SHOUTING iPhone4S 3.14159 -1e-5 0xFF",
    "a",
    "\u{a0}no-break\u{200b}zero\u{feff}",
];

/// What is written about a model's texts.
pub(super) struct Texts<'a> {
    pub(super) model: &'a Pretrained,
    /// With the tokens that other files than its own add.
    pub(super) tokenizer: &'a Tokenizer,
    /// Rows of the embedding: tokens of the file.
    pub(super) rows: i64,
    /// How the model is stored.
    pub(super) rules: &'a Gguf,
}

impl Texts<'_> {
    /// The metadata, without the name of the division into words.
    ///
    /// # Errors
    /// What is not supported, as text to follow the file's name.
    pub(super) fn metadata(&self) -> Result<Vec<(String, Value)>, String> {
        let tokenizer = self.tokenizer;
        let json = serde_json::to_value(tokenizer).map_err(|error| error.to_string())?;
        let model = &json["model"];
        if model["type"] != "BPE" {
            return Err(format!(
                "its tokenizer is a {}, and only BPE is written as GGUF",
                model["type"].as_str().unwrap_or("model without a type")
            ));
        }
        let merges = merges(model)?;
        let is_sentencepiece = is_sentencepiece(model);
        let mut tokens = self.tokens()?;
        let text = |text: &str| Value::String(text.to_owned());
        let kind = if is_sentencepiece {
            self.rules.sentencepiece
        } else {
            "gpt2"
        };
        let mut own = vec![("model", text(kind))];
        let unknown = model["unk_token"].as_str();
        let types = self.types(&tokens, unknown, is_sentencepiece);
        if is_sentencepiece {
            // llama.cpp takes these as they stand, and for a space only a space.
            let own = tokens.iter_mut().zip(&types);
            let own = own.filter(|(_, kind)| **kind == USER_DEFINED);
            own.for_each(|(token, _)| *token = token.replace('▁', " "));
        }
        if is_sentencepiece {
            let scores = match kind {
                SCORED => scores(&tokens, &merges),
                // As llama.cpp's converter has them, beside the merges.
                _ => vec![-1000.0; tokens.len()],
            };
            own.push(("scores", Value::Array(Array::Float(scores))));
            let begin = tokenizer
                .encode("a", false)
                .map_err(|error| error.to_string())?;
            let prefix = begin
                .get_tokens()
                .first()
                .is_some_and(|token| token.starts_with('▁'));
            own.push(("add_space_prefix", Value::Bool(prefix)));
        }
        if kind != SCORED {
            let merges = merges.iter().map(|(left, right)| format!("{left} {right}"));
            own.push(("merges", Value::Array(Array::String(merges.collect()))));
        }
        own.push(("token_type", Value::Array(Array::Signed(types))));
        own.push(("tokens", Value::Array(Array::String(tokens))));
        let (config, special) = (&self.model.config, &self.model.special_tokens);
        let id = |named: &Option<String>, id: Option<i64>| {
            let named = named.as_ref().and_then(|name| tokenizer.token_to_id(name));
            named.map(u64::from).or_else(|| u64::try_from(id?).ok())
        };
        let around = around(tokenizer)?;
        // What the tokenizer itself writes before a text is its first token, whatever the config says.
        let begin = around.0.map(u64::from);
        let begin = begin.or_else(|| id(&special.bos, config.bos_token_id));
        let end = id(&special.eos, config.eos_token_ids.first().copied());
        let unknown = unknown
            .and_then(|token| tokenizer.token_to_id(token))
            .map(u64::from);
        for (key, id) in [
            ("bos_token_id", begin),
            ("eos_token_id", end),
            ("unknown_token_id", unknown),
            ("padding_token_id", id(&None, config.pad_token_id)),
        ] {
            own.extend(id.map(|id| (key, Value::Unsigned(id))));
        }
        let adds = |token: Option<u64>, added: Option<u32>| {
            added.is_some() && added.map(u64::from) == token
        };
        own.push(("add_bos_token", Value::Bool(adds(begin, around.0))));
        own.push(("add_eos_token", Value::Bool(adds(end, around.1))));
        let own = own.into_iter();
        let mut metadata: Vec<_> = own
            .map(|(key, value)| (format!("tokenizer.ggml.{key}"), value))
            .collect();
        if let Some(template) = &self.model.chat_template {
            metadata.push(("tokenizer.chat_template".into(), text(template)));
        }
        Ok(metadata)
    }

    /// What may stand beside the metadata: the possible divisions into words.
    pub(super) fn variants(&self) -> Vec<Vec<(String, Value)>> {
        let named =
            |name: &str| vec![("tokenizer.ggml.pre".to_owned(), Value::String(name.into()))];
        let json = serde_json::to_value(self.tokenizer.get_model());
        let json = json.unwrap_or_default();
        // Whether a word that is a token stays whole, which few texts show.
        let keeps_words = json["ignore_merges"] == true;
        let known = DIVISIONS.into_iter();
        let known = known.filter(|name| keeps_words == (*name == "llama-bpe"));
        match is_sentencepiece(&json) {
            // Its kind says it.
            true if self.rules.sentencepiece != SCORED => vec![Vec::new()],
            true => vec![named("default")],
            false => known.map(named).collect(),
        }
    }

    /// A token for each row of the embedding.
    fn tokens(&self) -> Result<Vec<String>, String> {
        let rows = usize::try_from(self.rows).unwrap_or(0);
        let mut tokens: Vec<Option<String>> = vec![None; rows];
        for (token, id) in self.tokenizer.get_vocab(true) {
            match tokens.get_mut(id as usize) {
                Some(place) => *place = Some(token),
                None => {
                    return Err(format!(
                        "the tokenizer has token {id} ({token:?}), but the embedding has {rows} rows"
                    ));
                }
            }
        }
        let tokens = tokens.into_iter().enumerate();
        Ok(tokens
            .map(|(id, token)| token.unwrap_or_else(|| format!("[PAD{id}]")))
            .collect())
    }

    fn types(&self, tokens: &[String], unknown: Option<&str>, is_sentencepiece: bool) -> Vec<i64> {
        let tokenizer = self.tokenizer;
        let added = tokenizer.get_added_tokens_decoder();
        let types = tokens.iter().enumerate().map(|(id, token)| {
            let added = u32::try_from(id).ok().and_then(|id| added.get(&id));
            match added {
                _ if is_sentencepiece && Some(token.as_str()) == unknown => UNKNOWN,
                Some(added) if added.special && !self.rules.shown.contains(&token.as_str()) => {
                    CONTROL
                }
                Some(_) => USER_DEFINED,
                None if tokenizer.token_to_id(token).is_none() => UNUSED,
                None if is_sentencepiece && is_byte(token) => BYTE,
                None => NORMAL,
            }
        });
        types.collect()
    }
}

/// Whether this model of a tokenizer is one of SentencePiece, which writes unknown characters as bytes.
fn is_sentencepiece(model: &Json) -> bool {
    model["byte_fallback"] == true
}

/// `<0x0A>`.
fn is_byte(token: &str) -> bool {
    let digits = token
        .strip_prefix("<0x")
        .and_then(|rest| rest.strip_suffix('>'));
    digits.is_some_and(|digits| u8::from_str_radix(digits, 16).is_ok())
}

/// The pairs that are joined, in order. Files have them in one of two forms.
fn merges(model: &Json) -> Result<Vec<(String, String)>, String> {
    let pair = |merge: &Json| {
        let own = |text: &str| text.to_owned();
        match merge {
            Json::String(text) => text
                .split_once(' ')
                .map(|(left, right)| (own(left), own(right))),
            Json::Array(pair) => match pair.as_slice() {
                [Json::String(left), Json::String(right)] => Some((own(left), own(right))),
                _ => None,
            },
            _ => None,
        }
    };
    let merges = model["merges"].as_array().into_iter().flatten();
    merges
        .map(|merge| {
            pair(merge)
                .ok_or_else(|| format!("the merge {merge} of its tokenizer is not two tokens"))
        })
        .collect()
}

/// SentencePiece joins the neighbours whose union has the highest score: that of the earliest merge.
fn scores(tokens: &[String], merges: &[(String, String)]) -> Vec<f64> {
    let mut first: HashMap<String, usize> = HashMap::new();
    for (rank, (left, right)) in merges.iter().enumerate() {
        first.entry(format!("{left}{right}")).or_insert(rank);
    }
    let last = merges.len();
    let score = |token: &String| -(*first.get(token).unwrap_or(&last) as f64);
    tokens.iter().map(score).collect()
}

/// The tokens that the tokenizer writes before and behind a text.
fn around(tokenizer: &Tokenizer) -> Result<(Option<u32>, Option<u32>), String> {
    let ids = |special| -> Result<Vec<u32>, String> {
        let encoding = tokenizer
            .encode("a", special)
            .map_err(|error| error.to_string())?;
        Ok(encoding.get_ids().to_vec())
    };
    let (with, without) = (ids(true)?, ids(false)?);
    let added = with.len().saturating_sub(without.len());
    match (0..=added).find(|at| with[*at..].starts_with(&without)) {
        Some(before) if before <= 1 && added - before <= 1 => Ok((
            (before == 1).then(|| with[0]),
            (added > before).then(|| with[with.len() - 1]),
        )),
        _ => Err("its tokenizer writes more than one token before or behind a text".into()),
    }
}

/// Fails if the tokenizer of a file with this header gives other tokens than `original`.
pub(super) fn check(header: &Header, original: &Tokenizer) -> Result<(), String> {
    let read = tokenizer::from_metadata(header)?;
    let ids = |tokenizer: &Tokenizer, text: &str| {
        let encoding = tokenizer
            .encode(text, false)
            .map_err(|error| error.to_string());
        encoding.map(|encoding| encoding.get_ids().to_vec())
    };
    for probe in PROBES {
        if ids(&read, probe)? != ids(original, probe)? {
            return Err(format!(
                "its tokenizer divides text in a way that has no name in a GGUF file (found with {probe:?}); known: {}",
                DIVISIONS.join(", ")
            ));
        }
    }
    // Text behind a special token, whose surroundings some tokenizers take away and files cannot say so.
    let added = original.get_added_tokens_decoder();
    let mut control: Vec<_> = added
        .into_iter()
        .filter(|(_, token)| token.special)
        .collect();
    control.sort_by_key(|(id, _)| *id);
    for (_, token) in control {
        let probe = format!("a {0}b{0} b{0}\nb", token.content);
        if ids(&read, &probe)? != ids(original, &probe)? {
            tracing::warn!(
                "llama.cpp may divide text beside {:?} into other tokens than it was trained with: such a file cannot \
                 say what this tokenizer does there",
                token.content
            );
            break;
        }
    }
    Ok(())
}
