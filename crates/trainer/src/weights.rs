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

mod bytes;
mod convert;
mod error;
pub mod gguf;
mod hf;
pub(crate) mod json;
mod safetensors_file;
#[cfg(test)]
mod tests;

use std::path::{Path, PathBuf};

use tch::{Kind, Tensor};

pub use convert::{CONVERSION_NOTE, convert_gguf};
pub use error::WeightsError;
pub use gguf::{Gguf, GgufModel};
pub use hf::HfFolder;
pub use safetensors_file::{LazyTensor, SafetensorsFile, write_safetensors};

use crate::model::DecoderConfig;

/// Where the model called `name` is: a path that exists, or else a model in the cache, as
/// `smollm2-135m-instruct`. A GGUF file there is converted into a folder once, of which
/// `told(done, all)` hears.
///
/// # Errors
/// When there is no such model, or it cannot be converted.
pub fn locate(name: &Path, told: &dyn Fn(usize, usize)) -> Result<PathBuf, WeightsError> {
    if name.exists() {
        return Ok(name.to_owned());
    }
    let models = crate::data::cache_folder().join("models");
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
        convert_gguf(&file, &folder, Kind::Float, told)?;
        return Ok(folder);
    }
    Err(WeightsError::file(
        name,
        format!(
            "is neither a folder, nor a file, nor a model in `{}` (`cargo xtask train \
             configs/smollm2-lora.yaml` puts smollm2-135m-instruct there)",
            models.display()
        ),
    ))
}

/// Named tensors that are read one at a time.
pub trait TensorSource {
    /// The file or folder, for messages.
    fn path(&self) -> &Path;

    /// Every name, sorted.
    fn names(&self) -> Vec<String>;

    /// Shape of a tensor; `None` when there is none of this name.
    fn shape(&self, name: &str) -> Option<Vec<i64>>;

    /// Reads one tensor into host memory as `kind`.
    ///
    /// # Errors
    /// When there is none of this name, its format is not known, or the file fails.
    fn read(&self, name: &str, kind: Kind) -> Result<Tensor, WeightsError>;
}

/// A model as somebody published it.
pub struct Pretrained {
    /// Its shape.
    pub config: DecoderConfig,
    /// Its vocabulary, in Hugging Face's implementation.
    pub tokenizer: tokenizers::Tokenizer,
    /// The Jinja template that turns a chat into text.
    pub chat_template: Option<String>,
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
    /// Opens a Hugging Face folder or a GGUF file. No weights are read yet.
    ///
    /// # Errors
    /// When `path` is neither, or is damaged, or is a model that is not known here.
    pub fn open(path: &Path) -> Result<Self, WeightsError> {
        if path.is_dir() {
            return HfFolder::open(path)?.into_pretrained();
        }
        match path.metadata() {
            Ok(_) => GgufModel::open(path)?.into_pretrained(),
            Err(error) => Err(WeightsError::io("open", path, error)),
        }
    }
}
