//! Captions and other texts, and their encodings in the cache: one for each text with its control pictures.

use std::collections::BTreeMap;
use std::path::PathBuf;

use models::diffusion::{Conditions, Diffusion, Part, Tokenizer, load_text_encoder};
use models::pretrained::fingerprint;
use placement::Placer;
use tch::{Device, Kind};

use super::cache::{self, Cache};
use super::controls::{Control, picture_at};
use super::encode::named;
use crate::Error;
use crate::observer::Observer;

/// A text, and the files of its control pictures.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Prompt {
    pub(crate) text: String,
    pub(crate) controls: Vec<PathBuf>,
}

/// What is encoded of texts, by the file of the result.
pub(super) type PlannedTexts = BTreeMap<PathBuf, PlannedText>;

/// A text that is cut into tokens.
pub(super) struct PlannedText {
    tokens: Vec<Vec<u32>>,
    controls: Vec<PathBuf>,
}

/// The tokenizer, and everything else that the encoding of texts depends on.
pub(super) struct TextKeys {
    tokenizer: Box<dyn Tokenizer>,
    fingerprint: String,
    compute: Kind,
    /// Whether the text encoders see control pictures.
    sees_pictures: bool,
}

impl TextKeys {
    /// Those of a model that computes in `compute`.
    pub(super) fn open(model: &dyn Diffusion, compute: Kind) -> Result<Self, Error> {
        let encoders = 0..model.text_encoders();
        let encoders = encoders.map(|number| identity(model, Part::TextEncoder(number)));
        Ok(Self {
            sees_pictures: model.controls().is_some_and(|rule| rule.in_text),
            tokenizer: model.tokenizer()?,
            fingerprint: encoders.collect::<Result<Vec<_>, _>>()?.join(" "),
            compute,
        })
    }

    /// The file of a text with its control pictures, which is added to `planned`.
    pub(super) fn file(
        &self,
        text: &str,
        controls: &[Control],
        cache: &Cache,
        planned: &mut PlannedTexts,
    ) -> Result<PathBuf, Error> {
        let (count, most) = self.tokenizer.length(text)?;
        if count > most {
            tracing::warn!("a caption of {count} tokens is truncated to {most}: {text:?}");
        }
        let controls = if self.sees_pictures { controls } else { &[] };
        let sizes: Vec<_> = controls.iter().map(|control| control.size).collect();
        let tokens = self.tokenizer.tokens_with(text, &sizes)?;
        let ids: Vec<String> = tokens.iter().map(|ids| format!("{ids:?}")).collect();
        let (ids, compute) = (ids.join(" "), format!("{:?}", self.compute));
        let preparation = self.tokenizer.preparation();
        let mut parts = vec!["text", &ids, &self.fingerprint, &compute];
        if !controls.is_empty() {
            parts.push(&preparation);
        }
        parts.extend(controls.iter().map(|control| control.content.as_str()));
        let path = cache.text(&cache::key(&parts));
        let controls = controls
            .iter()
            .map(|control| control.path.clone())
            .collect();
        planned.insert(path.clone(), PlannedText { tokens, controls });
        Ok(path)
    }

    /// Encodes the texts that are not in the cache; returns their number.
    pub(super) fn encode(
        &self,
        planned: &PlannedTexts,
        model: &dyn Diffusion,
        placer: &mut Placer,
        observer: &mut dyn Observer,
    ) -> Result<usize, Error> {
        let missing: Vec<_> = planned
            .iter()
            .filter(|(path, _)| !cache::has(path))
            .collect();
        if missing.is_empty() {
            return Ok(0);
        }
        let _no_grad = tch::no_grad_guard();
        let (count, last) = (missing.len(), model.text_encoders());
        let encoded = missing
            .iter()
            .map(|(_, text)| model.of_tokens(&text.tokens));
        let mut encoded = encoded.collect::<Result<Vec<Conditions>, _>>()?;
        if last == 0 {
            // The denoiser is told tokens.
            for ((path, _), tokens) in missing.iter().zip(&encoded) {
                cache::write(path, &named(tokens))?;
            }
        }
        // One encoder after the other, so that only one is in memory.
        for number in 0..last {
            observer.preparing("loading the text encoder");
            let encoder = load_text_encoder(model, number, self.compute, true, placer)?;
            for (index, (path, text)) in missing.iter().enumerate() {
                observer.preparing(&format!("encoding captions: {index} of {count}"));
                let pictures = text.controls.iter().map(|path| picture_at(path));
                let pictures = pictures.collect::<Result<Vec<_>, _>>()?;
                let text = encoder.encode_with(&text.tokens[number], &pictures)?;
                let text = text.map(|_, tensor| tensor.f_to_device(Device::Cpu))?;
                encoded[index].join(text)?;
                if number + 1 == last {
                    cache::write(path, &named(&std::mem::take(&mut encoded[index])))?;
                }
            }
        }
        Ok(count)
    }
}

/// Identifies what a part computes: its weights, and its config if it has one.
pub(super) fn identity(model: &dyn Diffusion, part: Part) -> Result<String, Error> {
    let mut identity = fingerprint(&model.weights(part)?)?;
    let config = model.part(part).map(|path| path.join("config.json"));
    if let Some(config) = config.filter(|config| config.is_file()) {
        let text = std::fs::read(&config).map_err(|error| Error::io("read", &config, error))?;
        identity += &format!(" {:08x}", crc32c::crc32c(&text));
    }
    Ok(identity)
}
