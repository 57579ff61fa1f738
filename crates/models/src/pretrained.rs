//! Pretrained models on disk: Hugging Face folders and GGUF files.
//!
//! Both are read one tensor at a time through [`TensorSource`], under Hugging Face's names, so a model can be
//! built without holding its whole file in memory:
//!
//! ```text
//! folder/config.json, *.safetensors, tokenizer.json ──HfFolder──┐
//!                                                               ├─▶ Pretrained { config, tokenizer, tensors }
//! model.gguf (metadata, quantised tensors) ────────GgufModel────┘
//! ```
//!
//! Files are read with ordinary ranged reads and never memory-mapped: a mapped file that is truncated kills
//! the process, and copies from mapped pages to the device hang on APUs (ROCm issue 6182). File contents are
//! not trusted before they have been checked against the file's size.

mod convert;
mod fingerprint;
mod gguf;
mod hf;
mod merge;
mod packed;
mod slices;
#[cfg(test)]
mod tests;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use tch::{Device, Kind, Tensor};

pub use convert::{CONVERSION_NOTE, convert_gguf, copy};
pub use fingerprint::fingerprint;
pub use gguf::{Export, GgufModel, GgufType, export_adapter};
pub use hf::HfFolder;
pub(crate) use hf::TextFiles;
pub use merge::{Merged, merge};
pub use slices::write_weights;

use crate::Error;
use crate::Parameters;
use crate::adapters::Naming;
use crate::formats::TensorSource;
use crate::language::{Decoder, DecoderConfig, DecoderOptions, keys_without_effect};
use crate::model::{Base, Builder, Initial, WeightSource};
use torch_ext::fake::FakeMode;

/// A published model.
pub struct Pretrained {
    /// Dimensions and variant of the architecture.
    pub config: DecoderConfig,
    /// The tokenizer, in Hugging Face's implementation.
    pub tokenizer: tokenizers::Tokenizer,
    /// The Jinja template that turns a chat into text.
    pub chat_template: Option<String>,
    /// The template for chats with tools, which transformers calls `tool_use`, if there is one.
    pub tool_template: Option<String>,
    /// The tokens at the start and end of a text, if the tokenizer sets its own.
    pub special_tokens: SpecialTokens,
    /// The weights, under Hugging Face's names.
    pub tensors: Box<dyn TensorSource>,
    /// Whether it is the text part of a larger model, in which its layers have other names.
    pub is_part: bool,
}

/// From `tokenizer_config.json`; `None` where the model's config decides.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SpecialTokens {
    /// The token at the start of a text.
    pub bos: Option<String>,
    /// The token at the end of a text.
    pub eos: Option<String>,
}

impl Pretrained {
    /// What modules are called in its class in transformers.
    pub fn naming(&self) -> Naming {
        match self.is_part {
            true => Naming::PART,
            false => Naming::ALONE,
        }
    }

    /// Opens a Hugging Face folder or a GGUF file without reading weights yet. Warnings list weights that the
    /// model does not use, and keys of its config that have no effect.
    ///
    /// # Errors
    /// If `path` is neither, is damaged, or is a model that is not supported.
    pub fn open(path: &Path) -> Result<Self, Error> {
        let model = match (path.is_dir(), path.metadata()) {
            (true, _) => {
                let model = HfFolder::open(path)?;
                let config = path.join("config.json");
                warn_about_keys(&config, &keys_without_effect(&config)?);
                model.into_pretrained()?
            }
            (false, Ok(_)) => {
                let model = GgufModel::open(path)?;
                warn_about_keys(path, &gguf::keys_without_effect(model.gguf().header()));
                model.into_pretrained()?
            }
            (false, Err(error)) => return Err(Error::io("open", path, error)),
        };
        check_unused(&model.config, model.tensors.as_ref())?;
        Ok(model)
    }
}

/// Warns about `keys` of the file `path`.
pub(crate) fn warn_about_keys(path: &Path, keys: &[String]) {
    if keys.is_empty() {
        return;
    }
    let keys: Vec<_> = keys.iter().map(|key| format!("`{key}`")).collect();
    tracing::warn!(
        "`{}` has keys that are not applied: {}",
        path.display(),
        keys.join(", ")
    );
}

/// Warns about tensors in a file that the model does not use, as transformers does: the config has fewer
/// layers than the file, or the weights belong to something unsupported.
///
/// # Errors
/// If the head is tied to the embedding, but the file has a different weight for it.
fn check_unused(config: &DecoderConfig, tensors: &dyn TensorSource) -> Result<(), Error> {
    // If the model cannot be built, the error comes later.
    let Ok(used) = names_used(config) else {
        return Ok(());
    };
    const HEAD: &str = "lm_head.weight";
    if config.tie_word_embeddings && tensors.shape(HEAD).is_some() {
        let read = |name| tensors.read(name, Kind::BFloat16);
        if read(HEAD)? != read("model.embed_tokens.weight")? {
            let reason = "`lm_head.weight` differs from `model.embed_tokens.weight`, and its config \
                          says `tie_word_embeddings`: set that to false if the head has a weight \
                          of its own, or take the tensor out of the file";
            return Err(Error::file(tensors.path(), reason));
        }
    }
    let mut unused = tensors.names();
    unused.retain(|name| {
        // Computed at run time, or a copy of the embedding.
        let known =
            name.ends_with("rotary_emb.inv_freq") || (name == HEAD && config.tie_word_embeddings);
        !known && !used.contains(name)
    });
    let layer = |name: &String| -> Option<i64> {
        let rest = name.strip_prefix("model.layers.")?;
        rest.split('.').next()?.parse().ok()
    };
    let path = tensors.path().display();
    let layers = unused
        .iter()
        .filter_map(layer)
        .max()
        .map_or(0, |last| last + 1);
    if layers > config.num_hidden_layers {
        tracing::warn!(
            "`{path}` has weights of {layers} layers, and its config says \
             `num_hidden_layers: {}`: the others are not used",
            config.num_hidden_layers
        );
        unused.retain(|name| layer(name).is_none_or(|layer| layer < config.num_hidden_layers));
    }
    if !unused.is_empty() {
        let shown: Vec<_> = unused
            .iter()
            .take(5)
            .map(|name| format!("`{name}`"))
            .collect();
        let more = match unused.len() - shown.len() {
            0 => String::new(),
            more => format!(" and {more} more"),
        };
        tracing::warn!(
            "`{path}` has weights that the model its config describes does not have, and which are \
             not used: {}{more}",
            shown.join(", ")
        );
    }
    Ok(())
}

/// The names of the tensors of a model with this config.
///
/// # Errors
/// If it cannot be built.
fn names_used(config: &DecoderConfig) -> Result<BTreeSet<String>, Error> {
    struct Names(BTreeSet<String>);
    impl WeightSource for Names {
        fn tensor(&mut self, name: &str, shape: &[i64], _: Initial) -> Result<Tensor, Error> {
            self.0.insert(name.to_owned());
            Ok(Tensor::f_empty(shape, (Kind::Float, Device::Cpu))?)
        }
    }
    let _fake = FakeMode::begin(Device::Cpu)?;
    let mut used = Names(BTreeSet::new());
    let mut parameters = Parameters::default();
    let base = Base::Frozen(Kind::Float);
    let mut builder = Builder::new(&mut used, &mut parameters, Kind::Float, base);
    let options = DecoderOptions {
        positions: 1,
        initializer_range: 0.0,
        device: Device::Cpu,
    };
    Decoder::new(config, options, &mut builder)?;
    Ok(used.0)
}

/// Finds the model `name`: an existing path, or otherwise a model of that name in the folder `models`, such
/// as `smollm2-135m-instruct`. A GGUF file there is converted into a folder once, with `on_tensor(done,
/// total)` called for each tensor.
///
/// # Errors
/// If there is no such model, or it cannot be converted.
pub fn locate(
    name: &Path,
    models: &Path,
    on_tensor: &dyn Fn(usize, usize),
) -> Result<PathBuf, Error> {
    if name.exists() {
        return Ok(name.to_owned());
    }
    let plain = name.file_name() == Some(name.as_os_str());
    let folder = models.join(name);
    if plain && folder.is_dir() {
        return Ok(folder);
    }
    let mut file = folder.clone().into_os_string();
    file.push(".gguf");
    let mut file = PathBuf::from(file);
    // Setup stores files in folders with a manifest.
    if file.is_dir() {
        file.push("model.gguf");
    }
    if plain && file.is_file() {
        convert_gguf(&file, &folder, Kind::Float, on_tensor)?;
        return Ok(folder);
    }
    Err(Error::file(
        name,
        format!(
            "is neither a folder, nor a file, nor a model in `{}` (`cargo xtask train \
             configs/smollm2-lora.yaml` puts smollm2-135m-instruct there)",
            models.display()
        ),
    ))
}
