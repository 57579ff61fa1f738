//! Everything but the transformer's weights for a model that is trained from scratch, as a folder in
//! diffusers' layout.
//!
//! The autoencoder is the linear one. The text encoder is a small UMT5 with frozen random weights: it gives
//! each word its own embedding, which is enough for captions of few words, but knows nothing of language. The
//! tokenizer has the words of the captions, and single letters for all others.

use std::collections::BTreeMap;
use std::path::Path;

use placement::{Placer, Policy};
use serde_json::{Value, json};
use tch::{Device, Kind};
use tokenizers::models::unigram::Unigram;
use tokenizers::pre_tokenizers::PreTokenizerWrapper;
use tokenizers::pre_tokenizers::metaspace::{Metaspace, PrependScheme};
use tokenizers::pre_tokenizers::sequence::Sequence;
use tokenizers::pre_tokenizers::whitespace::WhitespaceSplit;
use tokenizers::processors::template::TemplateProcessing;
use tokenizers::{AddedToken, Tokenizer};

use super::autoencoder::LinearWeights;
use super::transformer::TransformerConfig;
use crate::diffusion::parts::prompt::clean;
use crate::diffusion::parts::t5::{TextEncoder, TextEncoderConfig};
use crate::formats::write_tensors;
use crate::model::{Base, Builder, RandomWeights};
use crate::{Error, Parameters};

/// Maximum number of words of the captions that become tokens, the most frequent first.
const WORDS: usize = 8192;
/// The tokenizer's special tokens.
const SPECIAL: [&str; 3] = ["<pad>", "</s>", "<unk>"];

/// The parts of a model that is to be trained from scratch.
#[derive(Debug)]
pub struct FreshParts<'a> {
    /// The transformer's dimensions; `text_dim` is also the width of the text encoder.
    pub transformer: &'a TransformerConfig,
    /// The autoencoder, with the same number of latent channels.
    pub autoencoder: &'a LinearWeights,
    /// The captions of the clips.
    pub captions: &'a [String],
    /// Seed of the text encoder's weights.
    pub seed: u64,
    /// The scheduler's shift towards noise.
    pub flow_shift: f64,
}

impl FreshParts<'_> {
    /// Writes them into the existing, empty `folder`.
    pub fn write(&self, folder: &Path) -> Result<(), Error> {
        let write = |name: &str, value: &Value| {
            let path = folder.join(name);
            let made = path.parent().map_or(Ok(()), std::fs::create_dir_all);
            made.and_then(|()| std::fs::write(&path, format!("{value:#}\n")))
                .map_err(|error| Error::io("write", &path, error))
        };
        write("model_index.json", &index())?;
        let scheduler = json!({
            "_class_name": "UniPCMultistepScheduler",
            "num_train_timesteps": 1000,
            "prediction_type": "flow_prediction",
            "use_flow_sigmas": true,
            "flow_shift": self.flow_shift,
            "solver_order": 2,
            "solver_type": "bh2",
        });
        write("scheduler/scheduler_config.json", &scheduler)?;
        write("transformer/config.json", &self.transformer.to_json())?;
        write("vae/config.json", &self.autoencoder.config.linear_json())?;
        let tensors = self.autoencoder.tensors.iter();
        let tensors: Vec<_> = tensors.map(|(name, t)| (name.clone(), t)).collect();
        let path = folder.join("vae/diffusion_pytorch_model.safetensors");
        write_tensors(&path, &tensors)?;
        let tokenizer = folder.join("tokenizer");
        write(
            "tokenizer/tokenizer_config.json",
            &json!({ "tokenizer_class": "T5TokenizerFast", "extra_ids": 0 }),
        )?;
        let tokens = write_tokenizer(&tokenizer.join("tokenizer.json"), self.captions)?;
        let width = self.transformer.text_dim;
        let heads = if width % 4 == 0 { 4 } else { 1 };
        let config = TextEncoderConfig {
            vocab_size: tokens,
            d_model: width,
            d_kv: width / heads,
            d_ff: 2 * width,
            num_layers: 2,
            num_heads: heads,
            relative_attention_num_buckets: 32,
            relative_attention_max_distance: 128,
            layer_norm_epsilon: 1e-6,
        };
        write("text_encoder/config.json", &config.to_json())?;
        write_text_encoder(
            &folder.join("text_encoder/model.safetensors"),
            &config,
            self.seed,
        )
    }
}

fn index() -> Value {
    json!({
        "_class_name": "WanPipeline",
        "boundary_ratio": null,
        "expand_timesteps": false,
        "scheduler": ["diffusers", "UniPCMultistepScheduler"],
        "text_encoder": ["transformers", "UMT5EncoderModel"],
        "tokenizer": ["transformers", "T5TokenizerFast"],
        "transformer": ["diffusers", "WanTransformer3DModel"],
        "transformer_2": [null, null],
        "vae": ["surefoot", "SurefootLinearAutoencoder"],
    })
}

fn write_text_encoder(path: &Path, config: &TextEncoderConfig, seed: u64) -> Result<(), Error> {
    let mut placer = Placer::new(Device::Cpu, Policy::default())?;
    let mut source = RandomWeights::new(seed, &mut placer);
    let mut parameters = Parameters::default();
    let mut builder = Builder::new(&mut source, &mut parameters, Kind::Float, Base::Trained);
    TextEncoder::new(config, Device::Cpu, &mut builder)?;
    write_tensors(path, &parameters.named())?;
    Ok(())
}

/// Writes a tokenizer for the words of `captions` and returns the size of its vocabulary.
fn write_tokenizer(path: &Path, captions: &[String]) -> Result<i64, Error> {
    let wrong = |error: tokenizers::Error| Error::file(path, error.to_string());
    let mut words: BTreeMap<String, u64> = BTreeMap::new();
    let mut letters: BTreeMap<char, ()> = (' '..='~').skip(1).map(|c| (c, ())).collect();
    letters.insert('▁', ());
    for caption in captions {
        for word in clean(caption).split_whitespace() {
            *words.entry(format!("▁{word}")).or_default() += 1;
            letters.extend(word.chars().map(|letter| (letter, ())));
        }
    }
    let total = words.values().sum::<u64>().max(1) as f64;
    let mut words: Vec<(String, u64)> = words.into_iter().collect();
    // Ties keep their alphabetical order.
    words.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
    words.truncate(WORDS);
    let special = SPECIAL.map(|name| (name.to_owned(), 0.0));
    let mut pieces: Vec<(String, f64)> = special.into();
    let known = words.iter().map(|(word, count)| {
        let score = (*count as f64 / total).ln();
        (word.clone(), score)
    });
    pieces.extend(known);
    // A word as one token is always more likely than its letters.
    let alone = (1.0 / total).ln() - 10.0;
    let letters = letters
        .into_keys()
        .map(|letter| (letter.to_string(), alone));
    let new: Vec<_> = letters
        .filter(|(letter, _)| !words.iter().any(|(word, _)| word == letter))
        .collect();
    pieces.extend(new);
    let count = pieces.len() as i64;
    let unigram = Unigram::from(pieces, Some(2), false);
    let mut tokenizer = Tokenizer::new(unigram.map_err(|error| wrong(error.to_string().into()))?);
    let parts = [
        PreTokenizerWrapper::WhitespaceSplit(WhitespaceSplit),
        PreTokenizerWrapper::Metaspace(Metaspace::new('▁', PrependScheme::Always, true)),
    ];
    tokenizer.with_pre_tokenizer(Some(Sequence::new(parts.into())));
    let template = TemplateProcessing::builder()
        .try_single(vec!["$A", SPECIAL[1]])
        .map_err(|error| wrong(error.into()))?
        .special_tokens(vec![(SPECIAL[1], 1)])
        .build()
        .map_err(|error| wrong(error.to_string().into()))?;
    tokenizer.with_post_processor(Some(template));
    let special = SPECIAL.map(|name| AddedToken::from(name, true));
    tokenizer
        .add_special_tokens(special)
        .map_err(|error| wrong(error.to_string().into()))?;
    tokenizer.save(path, false).map_err(wrong)?;
    Ok(count)
}

#[cfg(test)]
mod tests {
    use tch::Tensor;

    use super::super::autoencoder::LinearFit;
    use super::super::model::WanModel;
    use super::*;
    use crate::diffusion::files::PartFile;
    use crate::diffusion::wan::names::{AUTOENCODER, TEXT_ENCODER};
    use crate::diffusion::{Diffusion, PartPaths, TEXT, load_autoencoder, load_text_encoder};

    fn shape() -> TransformerConfig {
        TransformerConfig {
            patch_size: [1, 2, 2],
            num_attention_heads: 2,
            attention_head_dim: 8,
            in_channels: 6,
            out_channels: 6,
            text_dim: 12,
            freq_dim: 8,
            ffn_dim: 16,
            num_layers: 1,
            cross_attn_norm: true,
            eps: 1e-6,
            rope_max_seq_len: 64,
        }
    }

    fn parts(folder: &Path) -> WanModel {
        let shape = shape();
        let mut fit = LinearFit::new(4).unwrap();
        tch::manual_seed(1);
        let options = (Kind::Float, Device::Cpu);
        for _ in 0..8 {
            fit.push(&(Tensor::rand([5, 3, 8, 8], options) - 0.5))
                .unwrap();
        }
        let captions = [
            "a boot moves to the left",
            "a bag moves to the right — schön",
        ];
        let parts = FreshParts {
            transformer: &shape,
            autoencoder: &fit.finish(6).unwrap(),
            captions: &captions.map(str::to_owned),
            seed: 3,
            flow_shift: 2.0,
        };
        parts.write(folder).unwrap();
        WanModel::open(folder, &PartPaths::default()).unwrap()
    }

    #[test]
    fn the_folder_is_read_as_any_other() {
        let folder = tempfile::tempdir().unwrap();
        let model = parts(folder.path());
        assert_eq!(model.transformer, shape());
        assert_eq!(model.defaults().unwrap().shift, 2.0);
        assert_eq!(model.geometry().pixels, 4);
        let mut placer = Placer::new(Device::Cpu, Policy::default()).unwrap();
        load_autoencoder(&model, Kind::Float, &mut placer).unwrap();
        let file = PartFile::open(&TEXT_ENCODER, &folder.path().join("text_encoder"));
        assert!(file.unwrap().unknown().is_empty());
        let file = PartFile::open(&AUTOENCODER, &folder.path().join("vae"));
        assert!(file.unwrap().unknown().is_empty());
    }

    #[test]
    fn words_of_captions_are_tokens_and_others_are_letters() {
        let folder = tempfile::tempdir().unwrap();
        let model = parts(folder.path());
        let tokenizer = model.tokenizer().unwrap();
        let tokens = |text: &str| tokenizer.tokens(text).unwrap().remove(0);
        let known = tokens("a boot  moves to the right");
        assert_eq!(known.len(), 7);
        assert_eq!(known[6], 1);
        assert!(!known.contains(&2));
        let new = tokens("circle");
        assert_eq!(new.len(), 8);
        assert!(!new.contains(&2));
        assert_eq!(tokens("Ж")[1], 2);
        // Captions that differ in one word have different embeddings.
        let mut placer = Placer::new(Device::Cpu, Policy::default()).unwrap();
        let encoder = load_text_encoder(&model, 0, Kind::Float, false, &mut placer).unwrap();
        let encode = |text: &str| {
            let encoded = encoder.encode(&tokens(text)).unwrap();
            encoded.get(TEXT).unwrap().shallow_clone()
        };
        let (left, right) = (
            encode("a boot moves to the left"),
            encode("a boot moves to the right"),
        );
        let apart = (left - right)
            .square()
            .mean_dim([1].as_slice(), false, Kind::Float);
        assert!(apart.double_value(&[5]) > 0.5, "{apart:?}");
    }
}
