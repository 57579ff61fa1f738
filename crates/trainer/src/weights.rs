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

/// Where the model called `name` is: a path that exists, or else a model in the cache,
/// as `smollm2-135m-instruct`.
pub fn locate(name: &Path) -> PathBuf {
    let cached = crate::data::cache_folder().join("models").join(name);
    if !name.exists() && name.is_relative() && cached.exists() {
        return cached;
    }
    name.to_owned()
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
    /// Its weights, under Hugging Face's names.
    pub tensors: Box<dyn TensorSource>,
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
