//! GGUF, llama.cpp's format: one file with metadata, tokenizer and (usually quantised) weights.
//!
//! [`Gguf`] reads the file as it is; [`GgufModel`](crate::pretrained::GgufModel) presents it as the Hugging
//! Face model it was converted from. This is our own reader because the crates gguf, gguf-rs and gguf-rs-lib
//! read headers but dequantise nothing, and candle-core would add a second tensor library.

mod format;
mod header;
mod quantize;
#[cfg(test)]
mod tests;
mod write;

use std::fs::File;
use std::io::BufReader;
use std::path::{Path, PathBuf};

use tch::{Kind, Tensor};

pub use format::Format;
pub use header::{Array, Header, TensorEntry, Value};
pub use write::{GgufTensor, GgufWriter};

use super::TensorSource;
use crate::Error;
use crate::tensor::tensor_from;

/// Elements that are dequantised at a time: enough for long sequential reads, few enough to stay in the
/// cache. A multiple of every block size.
const STRIDE: usize = 1 << 16;

/// An open GGUF file.
#[derive(Debug)]
pub struct Gguf {
    path: PathBuf,
    file: File,
    header: Header,
}

impl Gguf {
    /// Opens a file and reads its header.
    ///
    /// # Errors
    /// If the file cannot be read, or is not a valid GGUF file of version 2 or 3.
    pub fn open(path: &Path) -> Result<Self, Error> {
        let io = |error| Error::io("read", path, error);
        let file = File::open(path).map_err(io)?;
        let size = file.metadata().map_err(io)?.len();
        let header = Header::read(BufReader::with_capacity(1 << 18, &file), size)
            .map_err(|reason| Error::file(path, reason))?;
        Ok(Self {
            path: path.to_owned(),
            file,
            header,
        })
    }

    /// The file's path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Metadata and tensor entries.
    pub fn header(&self) -> &Header {
        &self.header
    }

    /// Reads a tensor by its name in the file and dequantises it to fp32.
    pub fn read(&self, name: &str) -> Result<Tensor, Error> {
        self.read_elements(name, None)
    }

    /// The same for element `index` of the first dimension.
    ///
    /// # Errors
    /// If there is no such element, or the file cannot be read.
    pub fn read_element(&self, name: &str, index: i64) -> Result<Tensor, Error> {
        self.read_elements(name, Some(index))
    }

    /// The bytes of element `index` of the first dimension, `[rows, bytes]`.
    ///
    /// # Errors
    /// As [`read_element`](Self::read_element).
    pub fn read_bytes(&self, name: &str, index: i64) -> Result<Tensor, Error> {
        let (format, shape, start) = self.place(name, Some(index))?;
        let row = shape.last().copied().unwrap_or(0);
        let rows: i64 = shape.iter().rev().skip(1).product();
        let bytes = format.bytes_of(row as u64).unwrap_or(0) as i64;
        tensor_from(&[rows, bytes], Kind::Uint8, |bytes| {
            super::read_weights(&self.file, bytes, start)
                .map_err(|error| Error::io("read", &self.path, error))
        })
    }

    fn read_elements(&self, name: &str, index: Option<i64>) -> Result<Tensor, Error> {
        let (format, shape, start) = self.place(name, index)?;
        tensor_from(&shape, Kind::Float, |bytes| {
            let numbers: &mut [f32] = bytemuck::try_cast_slice_mut(bytes)
                .map_err(|error| Error::file(&self.path, format!("tensor `{name}`: {error}")))?;
            self.dequantize(start, format, numbers)
        })
    }

    /// Format, shape and place of a tensor or of an element of its first dimension.
    fn place(&self, name: &str, index: Option<i64>) -> Result<(Format, Vec<i64>, u64), Error> {
        let entry = self
            .header
            .tensors
            .get(name)
            .ok_or_else(|| Error::file(&self.path, format!("there is no tensor `{name}`")))?;
        let format = entry.format().ok_or_else(|| {
            let known: Vec<_> = Format::ALL.iter().map(|format| format.name()).collect();
            Error::file(
                &self.path,
                format!(
                    "tensor `{name}` is in format number {}; supported: {}",
                    entry.format_code,
                    known.join(", ")
                ),
            )
        })?;
        let mut shape: Vec<i64> = entry.shape.iter().map(|size| *size as i64).collect();
        let mut start = entry.offset;
        if let Some(index) = index {
            let elements = entry.shape.iter().skip(1).product();
            // Blocks lie within a row, and so within an element.
            let bytes = format.bytes_of(elements);
            let count = entry.shape.first().copied().unwrap_or(0);
            let place = u64::try_from(index).ok().filter(|index| *index < count);
            let (Some(bytes), Some(place)) = (bytes, place) else {
                let reason = format!("tensor `{name}` has no element {index} of {count}");
                return Err(Error::file(&self.path, reason));
            };
            shape.remove(0);
            start += bytes * place;
        }
        Ok((format, shape, start))
    }

    /// The shape that a tensor had before it was cut into rows of whole blocks, if the file says so, as files for ComfyUI do.
    fn original_shape(&self, name: &str) -> Option<Vec<i64>> {
        let key = format!("comfy.gguf.orig_shape.{name}");
        match self.header.metadata.get(&key)? {
            Value::Array(Array::Signed(sizes)) => Some(sizes.clone()),
            Value::Array(Array::Unsigned(sizes)) => {
                Some(sizes.iter().map(|size| *size as i64).collect())
            }
            _ => None,
        }
    }

    fn dequantize(&self, start: u64, format: Format, numbers: &mut [f32]) -> Result<(), Error> {
        let stride_bytes = STRIDE / format.block_elements() * format.block_bytes();
        let mut buffer =
            vec![
                0;
                stride_bytes.min(numbers.len() / format.block_elements() * format.block_bytes())
            ];
        let mut at = start;
        for numbers in numbers.chunks_mut(STRIDE) {
            let stored =
                &mut buffer[..numbers.len() / format.block_elements() * format.block_bytes()];
            super::read_weights(&self.file, stored, at)
                .map_err(|error| Error::io("read", &self.path, error))?;
            format.dequantize(stored, numbers);
            at += stored.len() as u64;
        }
        Ok(())
    }
}

/// The tensors as they are named in the file.
impl TensorSource for Gguf {
    fn path(&self) -> &Path {
        &self.path
    }

    fn names(&self) -> Vec<String> {
        let mut names: Vec<_> = self.header.tensors.keys().cloned().collect();
        names.sort_unstable();
        names
    }

    fn shape(&self, name: &str) -> Option<Vec<i64>> {
        let entry = self.header.tensors.get(name)?;
        let stored = || entry.shape.iter().map(|size| *size as i64).collect();
        Some(self.original_shape(name).unwrap_or_else(stored))
    }

    fn read(&self, name: &str, kind: Kind) -> Result<Tensor, Error> {
        let tensor = self.read(name)?.f_to_kind(kind)?;
        match self.original_shape(name) {
            Some(shape) => tensor.f_reshape(&shape).map_err(|_| {
                let found = tensor.size();
                let reason =
                    format!("tensor `{name}` is {found:?}, and is said to have been {shape:?}");
                Error::file(&self.path, reason)
            }),
            None => Ok(tensor),
        }
    }
}
