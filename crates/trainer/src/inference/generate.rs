//! Continuing a text token by token, with a key-value cache.

use std::time::Instant;

use serde::Serialize;
use tch::{Device, Tensor};
use tokenizers::Tokenizer;

use super::LanguageModel;
use crate::Error;
use crate::data::SplitMix64;
use crate::sampling::pick;
use models::language::Decoder;

/// How the next token is chosen.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SamplingSettings {
    /// Most tokens to generate.
    pub max_new_tokens: usize,
    /// 0 takes the likeliest token every time.
    pub temperature: f64,
    /// Sample from the likeliest tokens that together have this probability.
    pub top_p: f64,
}

/// What was generated.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Generated {
    /// The new tokens, without the one that ended the text.
    pub tokens: Vec<u32>,
    /// The new tokens, decoded.
    pub text: String,
    /// Whether the model ended the text itself.
    pub ended: bool,
    /// Generated tokens per second.
    pub tokens_per_second: f64,
}

/// Continues `prompt` (tokens) until one of `ends`, `settings.max_new_tokens` are
/// there, or the model's context is full. The same `seed` gives the same text. `on_text` is
/// given each new piece of it.
///
/// # Errors
/// When the prompt is empty or fills the context, or memory runs out.
pub fn generate(
    model: &LanguageModel,
    prompt: &[u32],
    ends: &[i64],
    settings: SamplingSettings,
    seed: u64,
    on_text: &mut dyn FnMut(&str),
) -> Result<Generated, Error> {
    continue_tokens(
        &model.decoder,
        (model.device, model.context),
        (model.encoder.tokenizer(), ends),
        prompt,
        settings,
        &mut SplitMix64::new(&[seed]),
        on_text,
    )
}

/// As [`generate`], for a model in training.
pub(crate) fn continue_tokens(
    decoder: &Decoder,
    (device, context): (Device, i64),
    (tokenizer, ends): (&Tokenizer, &[i64]),
    prompt: &[u32],
    settings: SamplingSettings,
    random: &mut SplitMix64,
    on_text: &mut dyn FnMut(&str),
) -> Result<Generated, Error> {
    let _no_grad = tch::no_grad_guard();
    if prompt.is_empty() {
        return Err(Error::Data("the prompt has no tokens".into()));
    }
    let room = usize::try_from(context)
        .unwrap_or(0)
        .saturating_sub(prompt.len());
    if room == 0 {
        return Err(Error::Data(format!(
            "the prompt has {} tokens, and the context is {context}",
            prompt.len()
        )));
    }
    let most = settings.max_new_tokens.min(room);
    let mut cache = decoder.cache((prompt.len() + most) as i64);
    let mut input: Vec<i64> = prompt.iter().map(|token| i64::from(*token)).collect();
    let mut tokens: Vec<u32> = Vec::with_capacity(most);
    let mut shown = 0;
    let mut ended = false;
    let began = Instant::now();
    while tokens.len() < most {
        let fed = Tensor::f_from_slice(&input)?
            .f_unsqueeze(0)?
            .f_to_device(device)?;
        let logits = decoder
            .next_logits(&fed, &mut cache)?
            .f_squeeze()?
            .f_to_device(Device::Cpu)?;
        let token = pick(&logits, settings.temperature, settings.top_p, random)?;
        if ends.contains(&i64::from(token)) {
            ended = true;
            break;
        }
        tokens.push(token);
        input = vec![i64::from(token)];
        let text = decode(tokenizer, &tokens)?;
        // A character of several tokens appears when its last token does.
        if let Some(fresh) = text
            .get(shown..)
            .filter(|fresh| !fresh.ends_with('\u{FFFD}'))
        {
            on_text(fresh);
            shown = text.len();
        }
    }
    let seconds = began.elapsed().as_secs_f64();
    let text = decode(tokenizer, &tokens)?;
    if let Some(rest) = text.get(shown..).filter(|rest| !rest.is_empty()) {
        on_text(rest);
    }
    Ok(Generated {
        tokens_per_second: tokens.len() as f64 / seconds.max(1e-9),
        text,
        tokens,
        ended,
    })
}

fn decode(tokenizer: &Tokenizer, tokens: &[u32]) -> Result<String, Error> {
    tokenizer
        .decode(tokens, true)
        .map_err(|error| Error::Internal(format!("tokenizers: {error}")))
}
