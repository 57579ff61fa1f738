//! Tensor file formats: safetensors and GGUF.

pub mod gguf;
mod safetensors;
mod shards;

use std::path::{Path, PathBuf};

use tch::{Kind, Tensor};

pub use self::gguf::Gguf;
pub use self::safetensors::{
    LazyTensor, SafetensorsFile, write_safetensors, write_safetensors_with, write_tensors,
};
pub use self::shards::Shards;
use crate::Error;
use crate::quant::Mxfp4;

/// Named tensors that can be read one at a time.
pub trait TensorSource {
    /// The file or folder, for messages.
    fn path(&self) -> &Path;

    /// The files that contain the tensors.
    fn weight_files(&self) -> Vec<PathBuf> {
        vec![self.path().to_owned()]
    }

    /// All names, sorted.
    fn names(&self) -> Vec<String>;

    /// Shape of the tensor `name`; `None` if there is none.
    fn shape(&self, name: &str) -> Option<Vec<i64>>;

    /// The type in which the tensor `name` is stored, if it is known and one of libtorch.
    fn kind(&self, _name: &str) -> Option<Kind> {
        None
    }

    /// Reads one tensor into host memory as `kind`.
    fn read(&self, name: &str, kind: Kind) -> Result<Tensor, Error>;

    /// Reads element `index` of the first dimension of a tensor.
    fn read_element(&self, name: &str, index: i64, kind: Kind) -> Result<Tensor, Error> {
        Ok(self.read(name, kind)?.f_get(index)?)
    }

    /// Whether the tensor `name` is stored in MXFP4.
    fn is_mxfp4(&self, _name: &str) -> bool {
        false
    }

    /// Reads such a tensor as it is stored, into host memory.
    ///
    /// # Errors
    /// If it is not one, or cannot be read.
    fn read_mxfp4(&self, name: &str) -> Result<Mxfp4, Error> {
        Err(Error::Internal(format!("`{name}` is not in MXFP4")))
    }
}

/// Fails if `tensor` has NaN or infinite values, since every result would be NaN.
pub(crate) fn require_finite(
    tensors: &dyn TensorSource,
    name: &str,
    tensor: &Tensor,
) -> Result<(), Error> {
    // One pass without a mask tensor. Finite values can only overflow the fp32 sum if they are far larger
    // than any weight; the slow path below then decides.
    let sum = tensor.f_sum(Kind::Float)?.f_double_value(&[])?;
    if sum.is_finite() {
        return Ok(());
    }
    let finite = tensor
        .f_isfinite()?
        .f_sum(Kind::Int64)?
        .f_int64_value(&[])?;
    let bad = tensor.numel() as i64 - finite;
    if bad == 0 {
        return Ok(());
    }
    Err(Error::NotFinite {
        path: tensors.path().to_owned(),
        tensor: name.to_owned(),
        bad,
        of: tensor.numel() as i64,
    })
}
