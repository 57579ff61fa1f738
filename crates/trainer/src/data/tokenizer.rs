//! Text to tokens and back, in Hugging Face's `tokenizer.json` format.
//!
//! Both kinds work on bytes, so no text is out of vocabulary, and a loss per token can be converted to a loss per
//! byte, which is comparable between tokenizers.

use std::path::Path;

use tokenizers::AddedToken;
use tokenizers::models::bpe::{BPE, BpeTrainer, Vocab};
use tokenizers::pre_tokenizers::byte_level::ByteLevel;

use crate::Error;
use crate::config::TokenizerKind;

/// The token between documents; always token 0.
const END_OF_TEXT: &str = "<|endoftext|>";

/// A tokenizer and the facts about its vocabulary that the trainer needs.
pub struct Tokenizer {
    inner: tokenizers::Tokenizer,
    kind: TokenizerKind,
    /// Bytes of text for each token; 0 for the end of a text.
    byte_lengths: Vec<u32>,
}

impl Tokenizer {
    /// One token for each byte: byte `b` is token `b + 1`.
    pub fn bytes() -> Result<Self, Error> {
        let mut vocabulary = Vocab::default();
        vocabulary.insert(END_OF_TEXT.to_owned(), 0);
        for byte in 0..=255u8 {
            vocabulary.insert(byte_to_char(byte).to_string(), u32::from(byte) + 1);
        }
        let model = BPE::builder()
            .vocab_and_merges(vocabulary, Vec::new())
            .build()
            .map_err(internal)?;
        let mut inner = tokenizers::Tokenizer::new(model);
        inner.with_pre_tokenizer(Some(ByteLevel::new(false, false, false)));
        Self::finish(inner, TokenizerKind::Bytes)
    }

    /// A byte-level BPE of `vocab_size` tokens, trained on `documents`.
    pub fn train_bpe(documents: &[String], vocab_size: usize) -> Result<Self, Error> {
        let mut inner = tokenizers::Tokenizer::new(BPE::default());
        inner.with_pre_tokenizer(Some(ByteLevel::new(false, false, true)));
        let mut trainer = tokenizers::models::TrainerWrapper::BpeTrainer(
            BpeTrainer::builder()
                .vocab_size(vocab_size)
                .show_progress(false)
                .special_tokens(vec![AddedToken::from(END_OF_TEXT, true)])
                .initial_alphabet(ByteLevel::alphabet().into_iter().collect())
                .build(),
        );
        // By lines, so that the trainer can use all cores.
        let lines = documents
            .iter()
            .flat_map(|document| document.split_inclusive('\n'));
        inner.train(&mut trainer, lines).map_err(internal)?;
        Self::finish(inner, TokenizerKind::Bpe)
    }

    /// Reads a `tokenizer.json` that [`Tokenizer::save`] wrote.
    pub fn load(path: &Path, kind: TokenizerKind) -> Result<Self, Error> {
        let inner = tokenizers::Tokenizer::from_file(path)
            .map_err(|error| Error::Data(format!("tokenizer `{}`: {error}", path.display())))?;
        Self::finish(inner, kind)
    }

    fn finish(mut inner: tokenizers::Tokenizer, kind: TokenizerKind) -> Result<Self, Error> {
        inner.with_decoder(Some(ByteLevel::new(false, false, false)));
        inner
            .add_special_tokens([AddedToken::from(END_OF_TEXT, true)])
            .map_err(internal)?;
        let size = inner.get_vocab_size(true) as u32;
        // A token of the byte alphabet has one character per byte.
        let byte_lengths = (0..size)
            .map(|id| match inner.id_to_token(id) {
                Some(token) if token != END_OF_TEXT => token.chars().count() as u32,
                _ => 0,
            })
            .collect();
        Ok(Self {
            inner,
            kind,
            byte_lengths,
        })
    }

    /// The tokens of a text, without the end-of-text token.
    pub fn encode(&self, text: &str) -> Result<Vec<u16>, Error> {
        if self.kind == TokenizerKind::Bytes {
            return Ok(text.bytes().map(|byte| u16::from(byte) + 1).collect());
        }
        let encoding = self.inner.encode_fast(text, false).map_err(internal)?;
        Ok(encoding.get_ids().iter().map(|id| *id as u16).collect())
    }

    /// The tokens of several texts, each preceded by an end-of-text token.
    pub fn encode_documents(&self, documents: &[String]) -> Result<Vec<u16>, Error> {
        let mut tokens = Vec::new();
        for document in documents {
            tokens.push(self.end_of_text());
            tokens.extend(self.encode(document)?);
        }
        Ok(tokens)
    }

    /// The text of tokens; bytes that are not UTF-8 become the replacement character.
    pub fn decode(&self, tokens: &[u16]) -> Result<String, Error> {
        let ids: Vec<u32> = tokens.iter().map(|token| u32::from(*token)).collect();
        self.inner.decode(&ids, true).map_err(internal)
    }

    /// The token between documents.
    pub fn end_of_text(&self) -> u16 {
        0
    }

    /// The number of tokens.
    pub fn vocab_size(&self) -> usize {
        self.byte_lengths.len()
    }

    /// Bytes of text for each token.
    pub fn byte_lengths(&self) -> &[u32] {
        &self.byte_lengths
    }

    /// For example "a 2,048-token BPE".
    pub(crate) fn description(&self) -> String {
        match self.kind {
            TokenizerKind::Bytes => "one byte each".into(),
            TokenizerKind::Bpe => {
                format!(
                    "a {}-token BPE",
                    crate::text::thousands(self.vocab_size() as u64)
                )
            }
        }
    }

    /// Writes `tokenizer.json`, which Hugging Face's libraries read.
    pub fn save(&self, path: &Path) -> Result<(), Error> {
        let text = self.inner.to_string(true).map_err(internal)?;
        std::fs::write(path, text).map_err(|error| Error::io("write", path, error))
    }
}

/// The character that byte-level tokenizers use for a byte (GPT-2's table).
fn byte_to_char(byte: u8) -> char {
    let printable = |byte: u8| matches!(byte, 0x21..=0x7E | 0xA1..=0xAC | 0xAE..=0xFF);
    if printable(byte) {
        return char::from(byte);
    }
    let rank = (0..byte).filter(|earlier| !printable(*earlier)).count() as u32;
    char::from_u32(256 + rank).unwrap_or(char::REPLACEMENT_CHARACTER)
}

fn internal(error: tokenizers::Error) -> Error {
    Error::Internal(format!("tokenizers: {error}"))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn bpe() -> Tokenizer {
        let text = "to be, or not to be, that is the question:\n".repeat(20);
        Tokenizer::train_bpe(&[text], 280).unwrap()
    }

    #[test]
    fn the_byte_table_is_that_of_tokenizers() {
        let alphabet = ByteLevel::alphabet();
        assert!((0..=255).all(|byte| alphabet.contains(&byte_to_char(byte))));
    }

    proptest! {
        #[test]
        fn text_survives_and_lengths_are_bytes(text in any::<String>()) {
            for tokenizer in [Tokenizer::bytes().unwrap(), bpe()] {
                let tokens = tokenizer.encode(&text).unwrap();
                let bytes: u32 =
                    tokens.iter().map(|token| tokenizer.byte_lengths()[usize::from(*token)]).sum();
                prop_assert_eq!(bytes as usize, text.len());
                prop_assert_eq!(tokenizer.decode(&tokens).unwrap(), text.clone());
            }
        }
    }

    #[test]
    fn the_fast_path_for_bytes_equals_the_saved_tokenizer() {
        let tokenizer = Tokenizer::bytes().unwrap();
        let text = "Ay, señor — ☂\n";
        let slow = tokenizer.inner.encode(text, false).unwrap();
        let slow: Vec<u16> = slow.get_ids().iter().map(|id| *id as u16).collect();
        assert_eq!(tokenizer.encode(text).unwrap(), slow);
    }

    #[test]
    fn a_bpe_learns_words_and_is_the_same_after_loading() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("tokenizer.json");
        let tokenizer = bpe();
        tokenizer.save(&path).unwrap();
        let loaded = Tokenizer::load(&path, TokenizerKind::Bpe).unwrap();
        let tokens = loaded.encode("to be, or not").unwrap();
        assert_eq!(tokens, tokenizer.encode("to be, or not").unwrap());
        assert!(tokens.len() < 8, "{tokens:?}");
        assert_eq!(loaded.byte_lengths(), tokenizer.byte_lengths());
    }
}
