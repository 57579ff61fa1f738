//! Pretrained models on disk: Hugging Face folders and GGUF files.
//!
//! Both are read one tensor at a time through [`TensorSource`], under Hugging Face's
//! names, so that a model is built without its file being held beside it:
//!
//! ```text
//! folder/config.json, *.safetensors, tokenizer.json ──HfFolder──┐
//!                                                               ├─▶ Pretrained { config, tokenizer, tensors }
//! model.gguf (metadata, quantised tensors) ────────GgufModel────┘
//! ```
//!
//! Files are read with ordinary ranged reads, never mapped: a mapped file that is
//! cut short kills the process, and copying from mapped pages to the device hangs on
//! APUs (ROCm issue 6182). Nothing a file says is believed before it was checked
//! against the file's size.

mod convert;
mod fingerprint;
mod gguf;
mod hf;
mod keys;
mod merge;
#[cfg(test)]
mod tests;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use tch::{Device, Kind, Tensor};

pub use convert::{CONVERSION_NOTE, convert_gguf};
pub use fingerprint::fingerprint;
pub use gguf::GgufModel;
pub use hf::HfFolder;
pub use merge::merge;

use crate::Error;
use crate::Parameters;
use crate::formats::TensorSource;
use crate::model::{Base, Builder, Decoder, DecoderConfig, DecoderOptions, Initial, WeightSource};

/// A model as somebody published it.
pub struct Pretrained {
    /// Sizes and variants of the architecture.
    pub config: DecoderConfig,
    /// Its vocabulary, in Hugging Face's implementation.
    pub tokenizer: tokenizers::Tokenizer,
    /// The Jinja template that turns a chat into text.
    pub chat_template: Option<String>,
    /// Another template for chats that have tools: the one that transformers knows as `tool_use`.
    pub tool_template: Option<String>,
    /// The tokens that begin and end a text, where the tokenizer has its own idea of them.
    pub special_tokens: SpecialTokens,
    /// Its weights, under Hugging Face's names.
    pub tensors: Box<dyn TensorSource>,
}

/// What `tokenizer_config.json` says; unset where it says nothing, and the model's config counts.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SpecialTokens {
    /// The token that begins a text.
    pub bos: Option<String>,
    /// The token that ends a text.
    pub eos: Option<String>,
}

impl Pretrained {
    /// Opens a Hugging Face folder or a GGUF file. No weights are read yet; warnings name those
    /// that the model has no use for, and the keys of its config that are not applied.
    ///
    /// # Errors
    /// When `path` is neither, or is damaged, or is a model that is not known here.
    pub fn open(path: &Path) -> Result<Self, Error> {
        let model = match (path.is_dir(), path.metadata()) {
            (true, _) => {
                let model = HfFolder::open(path)?;
                let config = path.join("config.json");
                keys::warn(&config, &keys::not_applied_of_config(&config)?);
                model.into_pretrained()?
            }
            (false, Ok(_)) => {
                let model = GgufModel::open(path)?;
                keys::warn(path, &keys::not_applied_of_gguf(model.gguf().header()));
                model.into_pretrained()?
            }
            (false, Err(error)) => return Err(Error::io("open", path, error)),
        };
        check_unused(&model.config, model.tensors.as_ref())?;
        Ok(model)
    }
}

/// Tells in a warning which tensors of a file no part of the model is made of, as transformers
/// does: a config of fewer layers than the file has, or weights of something not known here.
///
/// # Errors
/// When the head is to share the embedding's weight, and the file has another one for it.
fn check_unused(config: &DecoderConfig, tensors: &dyn TensorSource) -> Result<(), Error> {
    struct Names(BTreeSet<String>);
    impl WeightSource for Names {
        fn tensor(&mut self, name: &str, shape: &[i64], _: Initial) -> Result<Tensor, Error> {
            self.0.insert(name.to_owned());
            let one = Tensor::f_zeros(vec![1; shape.len()], (Kind::Float, Device::Cpu))?;
            Ok(one.f_expand(shape, false)?)
        }
    }
    let mut used = Names(BTreeSet::new());
    let mut parameters = Parameters::default();
    let base = Base::Frozen(Kind::Float);
    let mut builder = Builder::new(&mut used, &mut parameters, Kind::Float, base);
    let options = DecoderOptions {
        positions: 1,
        initializer_range: 0.0,
        device: Device::Cpu,
    };
    // What cannot be built is refused when the model is.
    if Decoder::new(config, options, &mut builder).is_err() {
        return Ok(());
    }
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
        // Computed, or the embedding once more.
        let known =
            name.ends_with("rotary_emb.inv_freq") || (name == HEAD && config.tie_word_embeddings);
        !known && !used.0.contains(name)
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

/// Where the model called `name` is: a path that exists, or else a model of that name in the
/// folder `models`, as `smollm2-135m-instruct`. A GGUF file there is converted into a folder once;
/// `on_tensor(done, all)` is called for each tensor.
///
/// # Errors
/// When there is no such model, or it cannot be converted.
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
    // Setup's files lie in folders with a manifest.
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
