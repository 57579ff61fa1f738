//! The SentencePiece tokenizer in a GGUF file as a BPE of Hugging Face's `tokenizers`.
//!
//! SentencePiece joins the two neighbours whose union has the highest score. A BPE joins those whose merge comes
//! first in a list, so the list has every division of every token into two, by the token's score: what
//! transformers' `generate_merges` makes of such a model. Files of the newest models have that list.

use std::cmp::Ordering;
use std::collections::HashMap;

use tokenizers::Tokenizer;
use tokenizers::decoders::DecoderWrapper;
use tokenizers::decoders::byte_fallback::ByteFallback;
use tokenizers::decoders::fuse::Fuse;
use tokenizers::decoders::sequence::Sequence as Decoders;
use tokenizers::decoders::strip::Strip;
use tokenizers::models::bpe::{BPE, Vocab};
use tokenizers::normalizers::{NormalizerWrapper, Prepend, Replace, Sequence};

use crate::formats::gguf::{Array, Header, Value};

/// What stands for a space.
const SPACE: &str = "▁";

/// Builds the tokenizer for these tokens, and merges if the file has them.
///
/// # Errors
/// What is missing or unsupported, as text to follow the file's name.
pub(super) fn tokenizer(
    header: &Header,
    tokens: &[String],
    vocabulary: Vocab,
    own: Option<Vec<(String, String)>>,
) -> Result<Tokenizer, String> {
    const SCORES: &str = "tokenizer.ggml.scores";
    const PREFIX: &str = "tokenizer.ggml.add_space_prefix";
    let prefix = match header.metadata.get(PREFIX) {
        None => own.is_none(),
        Some(Value::Bool(prefix)) => *prefix,
        Some(other) => return Err(format!("`{PREFIX}` must be true or false, not {other:?}")),
    };
    const UNKNOWN: &str = "tokenizer.ggml.unknown_token_id";
    let unknown = match header.metadata.get(UNKNOWN) {
        None => tokens.first(),
        Some(Value::Unsigned(id)) => usize::try_from(*id).ok().and_then(|id| tokens.get(id)),
        Some(_) => None,
    };
    let unknown = unknown.ok_or_else(|| format!("`{UNKNOWN}` must be a token"))?;
    let merges = match (own, header.metadata.get(SCORES)) {
        (Some(own), _) => own,
        (None, Some(Value::Array(Array::Float(scores)))) if scores.len() == tokens.len() => {
            merges(tokens, scores)
        }
        (None, Some(_)) => return Err(format!("`{SCORES}` must have a number for each token")),
        (None, None) => return Err(format!("`{SCORES}` is missing")),
    };
    let text = |error: tokenizers::Error| error.to_string();
    let model = BPE::builder()
        .vocab_and_merges(vocabulary, merges)
        .unk_token(unknown.clone())
        .fuse_unk(true)
        .byte_fallback(true)
        .build()
        .map_err(text)?;
    let mut tokenizer = Tokenizer::new(model);
    let mut normalizers = vec![NormalizerWrapper::Replace(
        Replace::new(" ", SPACE).map_err(text)?,
    )];
    let mut decoders = vec![
        DecoderWrapper::Replace(Replace::new(SPACE, " ").map_err(text)?),
        DecoderWrapper::ByteFallback(ByteFallback::new()),
        DecoderWrapper::Fuse(Fuse::new()),
    ];
    if prefix {
        let prepend = Prepend::new(SPACE.to_owned());
        normalizers.insert(0, NormalizerWrapper::Prepend(prepend));
        decoders.push(DecoderWrapper::Strip(Strip::new(' ', 1, 0)));
    }
    tokenizer
        .with_normalizer(Some(Sequence::new(normalizers)))
        .map_err(text)?;
    tokenizer.with_decoder(Some(Decoders::new(decoders)));
    Ok(tokenizer)
}

/// Each way to divide a token into two, those of the highest score first.
fn merges(tokens: &[String], scores: &[f64]) -> Vec<(String, String)> {
    let ids = tokens.iter().enumerate();
    let ids: HashMap<&str, usize> = ids.map(|(id, token)| (token.as_str(), id)).collect();
    let mut merges = Vec::new();
    for (token, score) in tokens.iter().zip(scores) {
        let cuts = token
            .char_indices()
            .skip(1)
            .map(|(at, _)| token.split_at(at));
        let mut divided: Vec<(usize, usize)> = cuts
            .filter_map(|(left, right)| Some((*ids.get(left)?, *ids.get(right)?)))
            .collect();
        divided.sort_unstable();
        merges.extend(divided.into_iter().map(|pair| (pair, *score)));
    }
    // Stable: tokens of one score in their order.
    merges.sort_by(|(_, left), (_, right)| right.partial_cmp(left).unwrap_or(Ordering::Equal));
    let pair =
        |((left, right), _): ((usize, usize), f64)| (tokens[left].clone(), tokens[right].clone());
    merges.into_iter().map(pair).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Tokens of a few letters with distinct scores; `<unk>`, the bytes and the letters come first.
    fn header(words: &[(&str, f64)], prefix: bool) -> Header {
        let mut pieces: Vec<(String, f64)> = vec![("<unk>".into(), 0.0)];
        pieces.extend((0..=255u8).map(|byte| (format!("<0x{byte:02X}>"), 0.0)));
        pieces.extend(["▁", "a", "b", "c"].map(|letter| (letter.to_owned(), -1000.0)));
        pieces.extend(
            words
                .iter()
                .map(|(word, score)| ((*word).to_owned(), *score)),
        );
        let (tokens, scores) = pieces.into_iter().unzip();
        let mut header = Header {
            version: 3,
            metadata: HashMap::new(),
            tensors: HashMap::new(),
        };
        for (key, value) in [
            ("tokens", Value::Array(Array::String(tokens))),
            ("scores", Value::Array(Array::Float(scores))),
            ("model", Value::String("llama".into())),
            ("add_space_prefix", Value::Bool(prefix)),
            ("add_bos_token", Value::Bool(false)),
        ] {
            header
                .metadata
                .insert(format!("tokenizer.ggml.{key}"), value);
        }
        header
    }

    const WORDS: [(&str, f64); 9] = [
        ("ab", -3.0),
        ("bc", -1.0),
        ("▁a", -2.0),
        ("abc", -4.0),
        ("▁ab", -2.5),
        ("▁▁", -6.0),
        ("bcbc", -0.5),
        ("cb", -0.7),
        ("aab", -8.0),
    ];

    /// SentencePiece's rule, as llama.cpp has it: the neighbours whose union has the highest score are
    /// joined, the leftmost of several, until none are a token.
    fn joined(text: &str) -> Vec<String> {
        let mut parts: Vec<String> = text.replace(' ', SPACE).chars().map(String::from).collect();
        loop {
            let score = |at: usize| {
                let union = parts[at].clone() + &parts[at + 1];
                WORDS
                    .iter()
                    .find(|(word, _)| *word == union)
                    .map(|(_, score)| *score)
            };
            let best = (0..parts.len().saturating_sub(1))
                .filter_map(|at| Some((at, score(at)?)))
                .reduce(|best, next| if next.1 > best.1 { next } else { best });
            let Some((at, _)) = best else { return parts };
            let right = parts.remove(at + 1);
            parts[at].push_str(&right);
        }
    }

    proptest! {
        #[test]
        fn neighbours_of_the_highest_score_are_joined_first(text in "[abc ]{0,24}") {
            let tokenizer = super::super::tokenizer::from_metadata(&header(&WORDS, false)).unwrap();
            let encoding = tokenizer.encode(text.as_str(), false).unwrap();
            prop_assert_eq!(encoding.get_tokens(), joined(&text));
            prop_assert_eq!(tokenizer.decode(encoding.get_ids(), false).unwrap(), text);
        }
    }

    #[test]
    fn what_is_no_token_is_its_bytes() {
        let tokenizer = super::super::tokenizer::from_metadata(&header(&WORDS, true)).unwrap();
        let encoding = tokenizer.encode("aé", false).unwrap();
        assert_eq!(encoding.get_tokens(), ["▁a", "<0xC3>", "<0xA9>"]);
        assert_eq!(tokenizer.decode(encoding.get_ids(), false).unwrap(), "aé");
    }
}
