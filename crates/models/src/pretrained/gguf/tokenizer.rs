//! The tokenizer in a GGUF file, identical to Hugging Face's `tokenizers` with the model's `tokenizer.json`.
//!
//! Of a byte-level BPE, the file contains the tokens, their types and the merges. How text is split before the merges is only
//! given as a name (`tokenizer.ggml.pre`), so all supported names are defined below.

use std::collections::BTreeSet;

use tokenizers::decoders::byte_level::ByteLevel as ByteLevelDecoder;
use tokenizers::models::bpe::{BPE, Vocab};
use tokenizers::normalizers::unicode::NFC;
use tokenizers::pre_tokenizers::PreTokenizerWrapper;
use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::pre_tokenizers::digits::Digits;
use tokenizers::pre_tokenizers::sequence::Sequence;
use tokenizers::pre_tokenizers::split::{Split, SplitPattern};
use tokenizers::processors::template::TemplateProcessing;
use tokenizers::{AddedToken, SplitDelimiterBehavior, Tokenizer};

use super::sentencepiece;
use crate::formats::gguf::{Array, Header, Value};
use crate::language::Family;

/// Token types (`enum llama_token_type`) that must not be split.
pub(super) const CONTROL: i64 = 3;
pub(super) const USER_DEFINED: i64 = 4;

/// `tokenizer.ggml.model` of a SentencePiece tokenizer with scores. One that is called after its family has merges.
pub(super) const SCORED: &str = "llama";

/// From Qwen2's published `tokenizer.json`.
const QWEN2: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
/// From Qwen3.5's: marks belong to letters.
const QWEN3_5: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
/// From Llama 3's published `tokenizer.json`.
const LLAMA3: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";

/// From gpt-oss': words change between small and capital letters.
const GPT_4O: &str = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+";

/// Builds the tokenizer.
///
/// # Errors
/// What is missing or unsupported, as text to follow the file's name.
pub(super) fn from_metadata(header: &Header) -> Result<Tokenizer, String> {
    let text = |key: &str| match header.metadata.get(key) {
        Some(Value::String(text)) => Ok(text.as_str()),
        Some(_) => Err(format!("`{key}` must be a text")),
        None => Err(format!("`{key}` is missing")),
    };
    let texts = |key: &str| match header.metadata.get(key) {
        Some(Value::Array(Array::String(texts))) => Ok(texts.as_slice()),
        Some(_) => Err(format!("`{key}` must be a list of strings")),
        None => Err(format!("`{key}` is missing")),
    };
    let tokens = texts("tokenizer.ggml.tokens")?;
    let mut vocabulary = Vocab::default();
    for (id, token) in tokens.iter().enumerate() {
        let id = u32::try_from(id).map_err(|error| error.to_string())?;
        if vocabulary.insert(token.clone(), id).is_some() {
            return Err(format!("token {token:?} occurs twice"));
        }
    }
    let kinds: BTreeSet<_> = Family::in_gguf()
        .map(|(_, rules)| rules.sentencepiece)
        .collect();
    let mut tokenizer = match text("tokenizer.ggml.model")? {
        "gpt2" => byte_level(
            text("tokenizer.ggml.pre")?,
            texts("tokenizer.ggml.merges")?,
            vocabulary,
        )?,
        kind if kinds.contains(&kind) => {
            let merges = match kind {
                SCORED => None,
                _ => Some(pairs(texts("tokenizer.ggml.merges")?)?),
            };
            sentencepiece::tokenizer(header, tokens, vocabulary, merges)?
        }
        model => {
            return Err(format!(
                "`tokenizer.ggml.model` is {model:?}; supported: \"gpt2\" (byte-level BPE) and {kinds:?} \
                 (SentencePiece)"
            ));
        }
    };
    add_tokens(&mut tokenizer, header, tokens)?;
    begin_with_bos(&mut tokenizer, header, tokens)?;
    Ok(tokenizer)
}

/// Whether a text begins with the model's first token: without the key, as llama.cpp does for the kind of tokenizer.
fn adds_bos(header: &Header) -> Result<bool, String> {
    const KEY: &str = "tokenizer.ggml.add_bos_token";
    match header.metadata.get(KEY) {
        None => {
            let byte_level = Value::String("gpt2".into());
            Ok(header.metadata.get("tokenizer.ggml.model") != Some(&byte_level))
        }
        Some(Value::Bool(adds)) => Ok(*adds),
        Some(other) => Err(format!("`{KEY}` must be true or false, not {other:?}")),
    }
}

/// The two tokens of each merge. Neither contains a space: bytes are mapped to printable characters, and SentencePiece has a
/// character of its own for it.
fn pairs(merges: &[String]) -> Result<Vec<(String, String)>, String> {
    let pair = |merge: &String| {
        let (left, right) = merge.split_once(' ')?;
        Some((left.to_owned(), right.to_owned()))
    };
    let pair = |merge| pair(merge).ok_or_else(|| format!("merge {merge:?} is not two tokens"));
    merges.iter().map(pair).collect()
}

/// A byte-level BPE that divides text by the rules `pre`.
fn byte_level(pre: &str, merges: &[String], vocabulary: Vocab) -> Result<Tokenizer, String> {
    let merges = pairs(merges)?;
    let rules = Rules::named(pre)?;
    let model = BPE::builder()
        .vocab_and_merges(vocabulary, merges)
        .ignore_merges(rules.ignore_merges)
        .build()
        .map_err(|error| format!("its tokenizer: {error}"))?;
    let mut tokenizer = Tokenizer::new(model);
    tokenizer.with_pre_tokenizer(Some(rules.pre_tokenizer));
    if rules.nfc {
        tokenizer
            .with_normalizer(Some(NFC))
            .map_err(|error| error.to_string())?;
    }
    tokenizer.with_decoder(Some(ByteLevelDecoder::new(true, true, true)));
    Ok(tokenizer)
}

/// How text is split before the merges apply.
struct Rules {
    pre_tokenizer: PreTokenizerWrapper,
    nfc: bool,
    /// Whether a word that is a token stays unsplit, whatever the merges say.
    ignore_merges: bool,
}

impl Rules {
    fn named(name: &str) -> Result<Self, String> {
        // GPT-2's own regex is built into `ByteLevel`.
        let gpt2 = || PreTokenizerWrapper::ByteLevel(ByteLevel::new(false, true, true));
        let sequence = |parts| PreTokenizerWrapper::Sequence(Sequence::new(parts));
        let split = |regex: &str| -> Result<PreTokenizerWrapper, String> {
            let split = Split::new(
                SplitPattern::Regex(regex.into()),
                SplitDelimiterBehavior::Isolated,
                false,
            )
            .map_err(|error| error.to_string())?;
            let bytes = PreTokenizerWrapper::ByteLevel(ByteLevel::new(false, false, false));
            Ok(sequence(vec![PreTokenizerWrapper::Split(split), bytes]))
        };
        let (pre_tokenizer, nfc, ignore_merges) = match name {
            "gpt-2" => (gpt2(), false, false),
            // Granite's is Refact's.
            "smollm" | "refact" | "starcoder" | "command-r" => {
                let digits = PreTokenizerWrapper::Digits(Digits::new(true));
                (sequence(vec![digits, gpt2()]), false, false)
            }
            "qwen2" => (split(QWEN2)?, true, false),
            "qwen35" => (split(QWEN3_5)?, true, false),
            "llama3" | "llama-v3" | "llama-bpe" => (split(LLAMA3)?, false, true),
            // Phi-4's and Olmo 2's, and SmolLM3's.
            "dbrx" | "smaug-bpe" => (split(LLAMA3)?, false, false),
            "gpt-4o" => (split(GPT_4O)?, false, false),
            _ => {
                return Err(format!(
                    "`tokenizer.ggml.pre` is {name:?}; supported: gpt-2, smollm, refact, starcoder, command-r, \
                     qwen2, qwen35, llama-bpe, dbrx, smaug-bpe, gpt-4o"
                ));
            }
        };
        Ok(Self {
            pre_tokenizer,
            nfc,
            ignore_merges,
        })
    }
}

/// Control tokens and user-defined tokens are matched as a whole.
fn add_tokens(tokenizer: &mut Tokenizer, header: &Header, tokens: &[String]) -> Result<(), String> {
    const KEY: &str = "tokenizer.ggml.token_type";
    let types = match header.metadata.get(KEY) {
        None => return Ok(()),
        Some(Value::Array(Array::Signed(types))) => types.clone(),
        Some(Value::Array(Array::Unsigned(types))) => {
            let types = types.iter().map(|kind| i64::try_from(*kind));
            types
                .collect::<Result<_, _>>()
                .map_err(|error| format!("`{KEY}`: {error}"))?
        }
        Some(_) => return Err(format!("`{KEY}` must be a list of whole numbers")),
    };
    if types.len() != tokens.len() {
        return Err(format!(
            "`{KEY}` has {} entries, but there are {} tokens",
            types.len(),
            tokens.len()
        ));
    }
    let added: Vec<_> = tokens
        .iter()
        .zip(types)
        .filter(|(_, kind)| matches!(*kind, CONTROL | USER_DEFINED))
        .map(|(token, kind)| AddedToken::from(token.clone(), kind == CONTROL).normalized(false))
        .collect();
    tokenizer
        .add_tokens(added)
        .map_err(|error| error.to_string())?;
    Ok(())
}

/// Some models start every text with a token.
fn begin_with_bos(
    tokenizer: &mut Tokenizer,
    header: &Header,
    tokens: &[String],
) -> Result<(), String> {
    if !adds_bos(header)? {
        return Ok(());
    }
    let Some(Value::Unsigned(id)) = header.metadata.get("tokenizer.ggml.bos_token_id") else {
        return Err(
            "`tokenizer.ggml.add_bos_token` is set, but `tokenizer.ggml.bos_token_id` is missing"
                .into(),
        );
    };
    let token = usize::try_from(*id)
        .ok()
        .and_then(|id| tokens.get(id))
        .ok_or_else(|| format!("`tokenizer.ggml.bos_token_id` {id} is not a token"))?;
    let template = TemplateProcessing::builder()
        .try_single(vec![token.clone(), "$A".into()])
        .and_then(|builder| {
            builder.try_pair(vec![
                token.clone(),
                "$A".into(),
                token.clone(),
                "$B:1".into(),
            ])
        })
        .map_err(|error| format!("begin-of-text token {token:?}: {error}"))?
        .special_tokens(vec![(token.clone(), *id as u32)])
        .build()
        .map_err(|error| error.to_string())?;
    tokenizer.with_post_processor(Some(template));
    Ok(())
}
