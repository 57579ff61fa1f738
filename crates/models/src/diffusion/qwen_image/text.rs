//! Qwen2.5-VL as text encoder.
//!
//! A prompt stands in a template whose first tokens are not taken. Without pictures, the three kinds of positions that the
//! model knows are alike, so that it is a decoder as Qwen2.5 is, and its tower for pictures is not read. With pictures, what the
//! tower makes of them takes the place of as many tokens before the prompt.

use std::path::Path;

use serde_json::json;
use tch::{Device, Tensor};

use super::names;
use super::vision::{Pixels, Tower, VisionConfig};
use crate::Error;
use crate::diffusion::files::{PartFile, PartNames};
use crate::diffusion::parts::decoder::TextDecoder;
use crate::diffusion::parts::places::{Places, config_at};
use crate::diffusion::parts::stills::Texts;
use crate::diffusion::parts::vision_language::{
    BEFORE, BEHIND, LONGEST_TEXT, TOKENS_BEFORE, VisionLanguage,
};
use crate::diffusion::{Conditions, Picture, TEXT, TextEncoder, Tokenizer};
use crate::formats::TensorSource;
use crate::json::Object;
use crate::language::DecoderConfig;
use crate::model::Builder;
use crate::text::Encoder;

/// What stands before a prompt, with the number of its tokens, and how many are read of a prompt and what is behind it.
#[derive(Debug)]
pub(super) struct Template {
    before: &'static str,
    pub(super) tokens_before: usize,
    longest_text: usize,
}

/// For texts alone.
pub(super) const OF_TEXT: Template = Template {
    before: BEFORE,
    tokens_before: TOKENS_BEFORE,
    longest_text: LONGEST_TEXT,
};

/// For texts with pictures.
pub(super) const OF_PICTURES: Template = Template {
    before: "<|im_start|>system\nDescribe the key features of the input image (color, shape, size, texture, objects, \
             background), then explain how the user's text instruction should alter or modify the image. Generate a new image \
             that meets the user's requirements while maintaining consistency with the original input where \
             appropriate.<|im_end|>\n<|im_start|>user\n",
    tokens_before: 64,
    longest_text: 1024,
};

/// Tokens of a text with its pictures, of which each has some two hundred.
const LONGEST_WITH_PICTURES: usize = 4096;

/// The token that stands for a part of a picture, and its number in published models.
const PICTURE: &str = "<|image_pad|>";
const PICTURE_TOKEN: i64 = 151_655;

/// Classes of what prepares pictures for it.
pub(super) const PROCESSORS: &[&str] = &["Qwen2VLProcessor", "Qwen2_5_VLProcessor"];

/// How many frequencies of a head turn by each kind of positions, as published.
const SECTIONS: [i64; 3] = [16, 24, 24];

/// The text encoder of a model.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct TextConfig {
    pub(super) decoder: DecoderConfig,
    /// How it sees pictures, if the model shows it some.
    pub(super) sight: Option<Sight>,
}

impl Texts for TextConfig {
    const NAMES: &'static [PartNames] = &[names::TEXT];
}

/// How a text encoder sees pictures.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Sight {
    vision: VisionConfig,
    /// How many frequencies of a head turn by each kind of positions.
    sections: Vec<i64>,
    /// The token that stands for a part of a picture.
    token: u32,
    pub(super) pixels: Pixels,
}

impl TextConfig {
    /// That of a model whose parts are at `parts`; `processor` is a folder that says how pictures are prepared, if it is shown
    /// some.
    pub(super) fn open(parts: &Places, processor: Option<&Path>) -> Result<Self, Error> {
        let path = &parts.text_encoder;
        let decoder = config_at(path, &names::TEXT, read, of_shapes)?;
        let Some(processor) = processor else {
            return Ok(Self {
                decoder,
                sight: None,
            });
        };
        let (vision, sections, token) = config_at(path, &names::TEXT, read_sight, |file| {
            let vision = VisionConfig::of_shapes(file)?;
            Ok((vision, SECTIONS.to_vec(), PICTURE_TOKEN))
        })?;
        let wrong = |reason: String| Err(Error::file(path, reason));
        if sections.iter().sum::<i64>() * 2 != decoder.head_dim {
            return wrong(format!(
                "`mrope_section` is {sections:?}: half the width of a head, {}, is needed in all",
                decoder.head_dim
            ));
        }
        if vision.out_hidden_size != decoder.hidden_size {
            return wrong(format!(
                "its tower for pictures makes states of width {}, and its language part has {}",
                vision.out_hidden_size, decoder.hidden_size
            ));
        }
        let sight = Some(Sight {
            vision,
            sections,
            token: u32::try_from(token).unwrap_or(u32::MAX),
            pixels: Pixels::read(processor)?,
        });
        Ok(Self { decoder, sight })
    }

    /// Builds the encoder on `device`.
    pub(super) fn encoder(
        &self,
        device: Device,
        builder: &mut Builder,
    ) -> Result<Box<dyn TextEncoder>, Error> {
        let whole = |longest, before, builder: &mut Builder| -> Result<TextDecoder, Error> {
            Ok(TextDecoder::whole(&self.decoder, longest, device, builder)?.behind(before))
        };
        let Some(sight) = &self.sight else {
            let before = OF_TEXT.tokens_before;
            let longest = before + OF_TEXT.longest_text;
            return Ok(Box::new(whole(longest, before, builder)?));
        };
        Ok(Box::new(SeeingEncoder {
            tower: Tower::new(&sight.vision, device, builder)?,
            text: whole(LONGEST_WITH_PICTURES, OF_PICTURES.tokens_before, builder)?,
            sight: sight.clone(),
        }))
    }
}

/// Encodes texts with pictures.
#[derive(Debug)]
struct SeeingEncoder {
    tower: Tower,
    text: TextDecoder,
    sight: Sight,
}

impl TextEncoder for SeeingEncoder {
    fn encode(&self, tokens: &[u32]) -> Result<Conditions, Error> {
        self.text
            .encode(tokens)
            .map(|text| Conditions::of(TEXT, text))
    }

    fn encode_with(&self, tokens: &[u32], pictures: &[Picture]) -> Result<Conditions, Error> {
        if pictures.is_empty() {
            return self.encode(tokens);
        }
        let (mut grids, mut states) = (Vec::new(), Vec::new());
        for picture in pictures {
            let (patches, grid) = self.sight.pixels.patches(picture)?;
            states.push(self.tower.states(&patches, grid)?);
            grids.push(grid);
        }
        let (places, positions) = positions(tokens, self.sight.token, &grids)?;
        let rows = Tensor::f_cat(&states, 0)?;
        let sections = &self.sight.sections;
        let text = self
            .text
            .encode_with(tokens, (&places, &rows), (&positions, sections))?;
        Ok(Conditions::of(TEXT, text))
    }
}

/// The tokens that stand for pictures of so many rows and columns, and the three positions of each token: those of a picture
/// are counted along its sides, and what follows it continues behind the longer one.
fn positions(
    tokens: &[u32],
    token: u32,
    grids: &[(i64, i64)],
) -> Result<(Vec<i64>, [Vec<i64>; 3]), Error> {
    let (mut places, mut all) = (Vec::new(), [Vec::new(), Vec::new(), Vec::new()]);
    let (mut next, mut left) = (0, grids.iter());
    let mut index = 0;
    while index < tokens.len() {
        let (rows, columns) = match tokens[index] == token {
            true => left.next().copied().unwrap_or((0, 0)),
            false => (1, 1),
        };
        let count = (rows * columns) as usize;
        let is_picture = |token_of: &u32| (*token_of == token) == (tokens[index] == token);
        let own = tokens.get(index..index + count).unwrap_or_default();
        if own.is_empty() || !own.iter().all(is_picture) {
            break;
        }
        for (row, column) in (0..rows).flat_map(|row| (0..columns).map(move |c| (row, c))) {
            for (list, at) in all.iter_mut().zip([0, row, column]) {
                list.push(next + at);
            }
        }
        if tokens[index] == token {
            places.extend(index as i64..(index + count) as i64);
        }
        next += rows.max(columns);
        index += count;
    }
    match index == tokens.len() && left.next().is_none() {
        true => Ok((places, all)),
        false => Err(Error::Invalid(format!(
            "a text whose places for pictures are not those of {} pictures: `{PICTURE}` in a prompt is not allowed",
            grids.len()
        ))),
    }
}

/// The tower, the sections and the token of a picture in a `config.json`.
fn read_sight(path: &Path) -> Result<(VisionConfig, Vec<i64>, i64), Error> {
    let whole = Object::read(path)?;
    let section = whole.object("text_config")?;
    let section = section.as_ref().unwrap_or(&whole);
    let vision = whole.object("vision_config")?;
    let vision = vision.ok_or_else(|| whole.error("vision_config", "is missing"))?;
    let mut sections = None;
    for key in ["rope_parameters", "rope_scaling"] {
        if let Some(rope) = section.object(key)? {
            sections = sections.or(rope.integers("mrope_section", 1..=1 << 16)?);
        }
    }
    let token = whole.integer(
        "image_token_id",
        Some(PICTURE_TOKEN),
        0..=i64::from(u32::MAX),
    )?;
    let sections = sections.unwrap_or_else(|| SECTIONS.to_vec());
    Ok((VisionConfig::read(&vision)?, sections, token))
}

/// Its language part.
const ENCODER: VisionLanguage = VisionLanguage {
    title: "Qwen2.5-VL",
    types: ["qwen2_5_vl", "qwen2_5_vl_text"],
    family: "qwen2",
    keys: &[],
};

/// Reads the language part of a `config.json`.
pub(super) fn read(path: &Path) -> Result<DecoderConfig, Error> {
    ENCODER.read(path)
}

/// Infers it from the shapes in a file; what they do not tell is as published.
pub(super) fn of_shapes(file: &PartFile) -> Result<DecoderConfig, Error> {
    const HEAD: i64 = 128;
    let size = |name: &str, dimension: usize| {
        let shape = file.shape(&format!("model.{name}"));
        let size = shape.and_then(|shape| shape.get(dimension).copied());
        size.ok_or_else(|| {
            let reason = format!("not the text encoder of Qwen-Image: there is no `model.{name}`");
            Error::file(file.path(), reason)
        })
    };
    let rows = |part: &str| size(&format!("layers.0.self_attn.{part}_proj.bias"), 0);
    let (queries, keys) = (rows("q")?, rows("k")?);
    if queries % HEAD != 0 || keys % HEAD != 0 {
        let reason = format!(
            "not the text encoder of Qwen-Image: queries of {queries} and keys of {keys} numbers are not made of heads of \
             {HEAD}"
        );
        return Err(Error::file(file.path(), reason));
    }
    let layer = |name: &String| -> Option<i64> {
        let rest = name.strip_prefix("model.layers.")?;
        rest.split('.').next()?.parse().ok()
    };
    let last = file.names().iter().filter_map(layer).max().unwrap_or(0);
    let keys = json!({
        "model_type": "qwen2",
        "vocab_size": size("embed_tokens.weight", 0)?,
        "hidden_size": size("embed_tokens.weight", 1)?,
        "intermediate_size": size("layers.0.mlp.gate_proj.weight", 0)?,
        "num_hidden_layers": last + 1,
        "num_attention_heads": queries / HEAD,
        "num_key_value_heads": keys / HEAD,
        "max_position_embeddings": 128_000,
        "rms_norm_eps": 1e-6,
        "rope_theta": 1_000_000,
    });
    DecoderConfig::from_json(file.path(), keys)
}

/// Cuts a prompt in its template into tokens.
#[derive(Debug)]
pub(super) struct PromptTokenizer {
    encoder: Encoder,
    template: &'static Template,
    sight: Option<Sight>,
}

impl PromptTokenizer {
    /// The tokenizer in `folder`.
    ///
    /// # Errors
    /// If a file is missing or damaged, or it cuts the template otherwise than the model's.
    pub(super) fn open(folder: &Path, config: &TextConfig) -> Result<Self, Error> {
        let encoder = Encoder::of_folder(folder, &config.decoder)?;
        let template = match config.sight {
            Some(_) => &OF_PICTURES,
            None => &OF_TEXT,
        };
        let Template {
            before,
            tokens_before,
            ..
        } = template;
        let found = encoder.tokens(before, true)?.len();
        if found != *tokens_before {
            let reason = format!(
                "cuts what stands before a prompt into {found} tokens in place of {tokens_before}: it is the tokenizer of \
                 another model"
            );
            return Err(Error::file(folder, reason));
        }
        Ok(Self {
            encoder,
            template,
            sight: config.sight.clone(),
        })
    }

    fn all(&self, text: &str) -> Result<Vec<u32>, Error> {
        let before = self.template.before;
        self.encoder
            .tokens(&format!("{before}{text}{BEHIND}"), true)
    }
}

impl Tokenizer for PromptTokenizer {
    fn tokens(&self, text: &str) -> Result<Vec<Vec<u32>>, Error> {
        self.tokens_with(text, &[])
    }

    fn tokens_with(&self, text: &str, pictures: &[(u32, u32)]) -> Result<Vec<Vec<u32>>, Error> {
        let (mut shown, mut parts) = (String::new(), 0);
        for (index, size) in pictures.iter().enumerate() {
            let sight = self.sight.as_ref();
            let sight = sight.ok_or_else(|| Error::Internal("a prompt of text alone".into()))?;
            let (rows, columns) = sight.pixels.sizes(*size).1;
            let count = (rows * columns) as usize;
            let number = index + 1;
            let all = PICTURE.repeat(count);
            shown += &format!("Picture {number}: <|vision_start|>{all}<|vision_end|>");
            // What stands around its parts is not counted either.
            parts += count
                + self
                    .encoder
                    .tokens(&format!("Picture {number}: "), true)?
                    .len()
                + 2;
        }
        let mut tokens = self.all(&format!("{shown}{text}"))?;
        tokens.truncate(self.template.tokens_before + parts + self.template.longest_text);
        Ok(vec![tokens])
    }

    fn preparation(&self) -> String {
        format!("{:?}", self.sight)
    }

    fn length(&self, text: &str) -> Result<(usize, usize), Error> {
        let before = self.template.tokens_before;
        let length = self.all(text)?.len().saturating_sub(before);
        Ok((length, self.template.longest_text))
    }
}
