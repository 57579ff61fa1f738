//! A language model as text encoder: what its decoder knows of a prompt after some of its blocks.
//!
//! ```text
//! prompt ─▶ chat template ─▶ tokens ─▶ embedding ─▶ ┌ block ┐ × as many as are asked for ─▶ states
//! ```
//!
//! Texts are encoded one at a time, without padding: a decoder's tokens do not see what comes after them, so that
//! padding at the end changes nothing. A model whose denoiser sees the padding asks for it by [`TextDecoder::filled`].

use std::path::Path;

use serde_json::{Map, Value};
use tch::{Device, Kind, Tensor};

use crate::Error;
use crate::diffusion::files::PartNames;
use crate::diffusion::{self, Conditions, TEXT};
use crate::language::{Decoder, DecoderConfig, DecoderOptions};
use crate::model::Builder;
use crate::tensor::to_kind;
use crate::text::{ChatTemplate, Conversation, Encoder, Message};

/// The weights: as a model with a head, its body alone, or a part of one that sees pictures, of which the tower for those
/// is left out.
pub const NAMES: PartNames = PartNames {
    rename: |name, _| {
        let starts = ["model.language_model.", "language_model."];
        let rest = starts.iter().find_map(|start| name.strip_prefix(start));
        let name = rest.unwrap_or(name);
        if name.starts_with("visual.") || name.starts_with("model.visual.") {
            return None;
        }
        let of_body = ["embed_tokens.", "layers.", "norm."];
        Some(match of_body.iter().any(|start| name.starts_with(start)) {
            true => format!("model.{name}"),
            false => name.to_owned(),
        })
    },
    ..PartNames::TRANSFORMERS
};

/// The part of a decoder that encodes texts.
#[derive(Debug)]
pub struct TextDecoder {
    decoder: Decoder,
    /// The states that are taken, side by side: 0 is the embedding, *n* what block *n* made of it.
    states: Vec<usize>,
    /// Whether the final norm is applied.
    is_normed: bool,
    vocabulary: i64,
    longest: usize,
    /// Tokens at the beginning, of a template, whose states are left out.
    before: usize,
    /// Fills up shorter texts to `longest`.
    filler: Option<u32>,
    device: Device,
}

impl TextDecoder {
    /// Builds the blocks up to the last of `states`, which are states before the final norm, for texts of at most
    /// `longest` tokens; blocks are streamed if `builder` is set up for it.
    ///
    /// # Errors
    /// If a weight is missing, or memory runs out.
    pub fn new(
        config: &DecoderConfig,
        states: &[usize],
        longest: usize,
        device: Device,
        builder: &mut Builder,
    ) -> Result<Self, Error> {
        let last = states.iter().max().copied().unwrap_or(0) as i64;
        if last >= config.num_hidden_layers {
            return Err(Error::Invalid(format!(
                "a text encoder of {} layers, of which the states up to layer {last} are taken: it is that of another \
                 model",
                config.num_hidden_layers
            )));
        }
        Self::of_states(config, (states, false), longest, device, builder)
    }

    /// As [`TextDecoder::new`], for the state after all blocks and the final norm.
    ///
    /// # Errors
    /// If a weight is missing, or memory runs out.
    pub fn whole(
        config: &DecoderConfig,
        longest: usize,
        device: Device,
        builder: &mut Builder,
    ) -> Result<Self, Error> {
        let last = [config.num_hidden_layers as usize];
        Self::of_states(config, (&last, true), longest, device, builder)
    }

    fn of_states(
        config: &DecoderConfig,
        (states, is_normed): (&[usize], bool),
        longest: usize,
        device: Device,
        builder: &mut Builder,
    ) -> Result<Self, Error> {
        let body = DecoderConfig {
            num_hidden_layers: states.iter().max().copied().unwrap_or(0) as i64,
            // A tied head has no weights of its own.
            tie_word_embeddings: true,
            ..config.clone()
        };
        let options = DecoderOptions {
            positions: longest as i64,
            initializer_range: 0.02,
            device,
        };
        Ok(Self {
            decoder: Decoder::new(&body, options, builder)?,
            states: states.to_vec(),
            is_normed,
            vocabulary: config.vocab_size,
            longest,
            before: 0,
            filler: None,
            device,
        })
    }

    /// The same encoder, of whose states there are always as many as of the longest text: texts are filled up with the
    /// token `filler`, which sees the text alone.
    #[must_use]
    pub fn filled(self, filler: u32) -> Self {
        Self {
            filler: Some(filler),
            ..self
        }
    }

    /// The same encoder without the states of the first `count` tokens of a text.
    #[must_use]
    pub fn behind(self, count: usize) -> Self {
        Self {
            before: count,
            ..self
        }
    }

    /// The states of one text, side by side: `[tokens, width]` fp32.
    ///
    /// # Errors
    /// If there is no token, there are too many, or one is not in the vocabulary; or if memory runs out.
    pub fn encode(&self, tokens: &[u32]) -> Result<Tensor, Error> {
        let mut ids = self.ids(tokens)?;
        if let Some(filler) = self.filler {
            ids.resize(self.longest, filler.into());
        }
        let row = Tensor::f_from_slice(&ids)?.f_to_device(self.device)?;
        let row = row.f_unsqueeze(0)?;
        let text = (tokens.len() < ids.len()).then_some(tokens.len() as i64);
        self.finished(&self.decoder.states(&row, text, &self.states)?)
    }

    /// As [`TextDecoder::encode`], for a text in which the tokens at `places` stand for `rows` `[count, width]`, and each
    /// token has three `positions`, by which so many frequencies after one another turn as `sections` lists.
    pub(crate) fn encode_with(
        &self,
        tokens: &[u32],
        (places, rows): (&[i64], &Tensor),
        (positions, sections): (&[Vec<i64>; 3], &[i64]),
    ) -> Result<Tensor, Error> {
        let row = |list: &[i64]| -> Result<Tensor, Error> {
            Ok(Tensor::f_from_slice(list)?.f_to_device(self.device)?)
        };
        let tokens = row(&self.ids(tokens)?)?.f_unsqueeze(0)?;
        let positions = positions.iter().map(|list| row(list));
        let positions = positions.collect::<Result<Vec<_>, _>>()?;
        let positions = Tensor::f_stack(&positions, 0)?;
        let (among, at) = ((&row(places)?, rows), (&positions, sections));
        self.finished(&self.decoder.states_with(&tokens, among, at, &self.states)?)
    }

    /// The tokens, if the text can be encoded.
    fn ids(&self, tokens: &[u32]) -> Result<Vec<i64>, Error> {
        let mut ids = tokens.iter().map(|token| i64::from(*token));
        let unknown = ids.find(|id| *id >= self.vocabulary);
        let least = self.before + 1;
        if !(least..=self.longest).contains(&tokens.len()) || unknown.is_some() {
            return Err(Error::Invalid(format!(
                "a text of {} tokens{}: from {least} to {} are encoded, of {} known ones",
                tokens.len(),
                unknown.map_or(String::new(), |token| format!(", of which one is {token}")),
                self.longest,
                self.vocabulary
            )));
        }
        Ok(tokens.iter().map(|token| i64::from(*token)).collect())
    }

    /// The states that are taken of one text.
    fn finished(&self, states: &[Tensor]) -> Result<Tensor, Error> {
        let mut text = Tensor::f_cat(states, -1)?;
        if self.is_normed {
            text = self.decoder.finish(&text)?;
        }
        let text = text.f_squeeze_dim(0)?;
        let before = self.before as i64;
        let text = text.f_narrow(0, before, text.size2()?.0 - before)?;
        to_kind(&text, Kind::Float)
    }
}

impl diffusion::TextEncoder for TextDecoder {
    fn encode(&self, tokens: &[u32]) -> Result<Conditions, Error> {
        Ok(Conditions::of(TEXT, self.encode(tokens)?))
    }
}

/// Cuts a prompt, as a turn of the user to which the assistant is about to answer, into tokens.
#[derive(Debug)]
pub struct ChatTokenizer {
    encoder: Encoder,
    /// Passed to the template.
    arguments: Map<String, Value>,
    longest: usize,
}

impl ChatTokenizer {
    /// The tokenizer in `folder` of a decoder with this config. Texts are cut after `longest` tokens.
    ///
    /// # Errors
    /// If a file is missing or damaged, or there is no chat template.
    pub fn open(
        folder: &Path,
        config: &DecoderConfig,
        arguments: Map<String, Value>,
        longest: usize,
    ) -> Result<Self, Error> {
        let tokenizer = Self {
            encoder: Encoder::of_folder(folder, config)?,
            arguments,
            longest,
        };
        match tokenizer.encoder.template() {
            Some(_) => Ok(tokenizer),
            None => {
                let reason = "has no chat template that can be used (`chat_template.jinja`, or `chat_template` in its \
                              `tokenizer_config.json`), into which this model's prompts are put";
                Err(Error::file(folder, reason))
            }
        }
    }

    /// The token that fills up shorter texts, if the tokenizer names one.
    pub fn padding(&self) -> Option<u32> {
        self.encoder.padding()
    }

    /// The tokens of the whole text.
    fn all(&self, text: &str) -> Result<Vec<u32>, Error> {
        let conversation = Conversation {
            template_arguments: self.arguments.clone(),
            ..Conversation::new(vec![Message::new("user", text)])
        };
        let template = self.encoder.template();
        let render = |template: &ChatTemplate| template.render(&conversation, true);
        let missing = || Err("there is no chat template".to_owned());
        let text = template.map_or_else(missing, render);
        self.encoder.tokens(&text.map_err(Error::Invalid)?, true)
    }
}

impl diffusion::Tokenizer for ChatTokenizer {
    fn tokens(&self, text: &str) -> Result<Vec<Vec<u32>>, Error> {
        let mut tokens = self.all(text)?;
        tokens.truncate(self.longest);
        Ok(vec![tokens])
    }

    fn length(&self, text: &str) -> Result<(usize, usize), Error> {
        Ok((self.all(text)?.len(), self.longest))
    }
}
