//! One safetensors file: read tensor by tensor with ranged reads, written tensor by
//! tensor as they are made. Neither holds the file in memory.

use std::borrow::Cow;
use std::cell::RefCell;
use std::collections::HashMap;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use safetensors::tensor::{Dtype, Metadata, View};
use tch::{Kind, Tensor};

use super::bytes::{bytes_of, tensor_from};
use super::{TensorSource, WeightsError};

/// What the safetensors format allows a header to be.
const MAX_HEADER_BYTES: u64 = 100_000_000;

/// An open safetensors file.
#[derive(Debug)]
pub struct SafetensorsFile {
    path: PathBuf,
    file: File,
    metadata: Metadata,
    data_start: u64,
}

impl SafetensorsFile {
    /// Opens a file and reads its header.
    ///
    /// # Errors
    /// When the file cannot be read, or its header does not fit the file.
    pub fn open(path: &Path) -> Result<Self, WeightsError> {
        let io = |error| WeightsError::io("read", path, error);
        let file = File::open(path).map_err(io)?;
        let size = file.metadata().map_err(io)?.len();
        let wrong = |reason: String| WeightsError::file(path, reason);
        if size < 8 {
            return Err(wrong(format!("not a safetensors file: {size} bytes")));
        }
        let mut length = [0; 8];
        file.read_exact_at(&mut length, 0).map_err(io)?;
        let length = u64::from_le_bytes(length);
        if length > MAX_HEADER_BYTES || length > size - 8 {
            return Err(wrong(format!(
                "not a safetensors file, or cut short: its header claims {length} bytes of {size}"
            )));
        }
        let mut header = vec![0; length as usize];
        file.read_exact_at(&mut header, 8).map_err(io)?;
        // The library checks that offsets follow each other and fit the shapes.
        let metadata: Metadata = serde_json::from_slice(&header)
            .map_err(|error| wrong(format!("damaged safetensors header: {error}")))?;
        let data_start = 8 + length;
        if data_start.checked_add(metadata.data_len() as u64) != Some(size) {
            return Err(wrong(format!(
                "the tensors need {} bytes after the header, and {} are there; the download may be incomplete",
                metadata.data_len(),
                size - data_start
            )));
        }
        Ok(Self {
            path: path.to_owned(),
            file,
            metadata,
            data_start,
        })
    }

    /// The `__metadata__` of the file.
    pub fn metadata(&self) -> HashMap<String, String> {
        self.metadata.metadata().clone().unwrap_or_default()
    }

    /// Reads a tensor in the kind that it is stored in.
    ///
    /// # Errors
    /// As [`TensorSource::read`].
    pub fn read_stored(&self, name: &str) -> Result<Tensor, WeightsError> {
        let info = self.metadata.info(name).ok_or_else(|| {
            WeightsError::file(&self.path, format!("there is no tensor `{name}`"))
        })?;
        let kind = kind_of(info.dtype).ok_or_else(|| {
            WeightsError::file(
                &self.path,
                format!(
                    "tensor `{name}` is of type {:?}, which libtorch lacks",
                    info.dtype
                ),
            )
        })?;
        let shape: Vec<i64> = info.shape.iter().map(|size| *size as i64).collect();
        let start = self.data_start + info.data_offsets.0 as u64;
        tensor_from(&shape, kind, |bytes| {
            self.file
                .read_exact_at(bytes, start)
                .map_err(|error| WeightsError::io("read", &self.path, error))
        })
    }
}

impl TensorSource for SafetensorsFile {
    fn path(&self) -> &Path {
        &self.path
    }

    fn names(&self) -> Vec<String> {
        let mut names = self.metadata.offset_keys();
        names.sort();
        names
    }

    fn shape(&self, name: &str) -> Option<Vec<i64>> {
        let info = self.metadata.info(name)?;
        Some(info.shape.iter().map(|size| *size as i64).collect())
    }

    fn read(&self, name: &str, kind: Kind) -> Result<Tensor, WeightsError> {
        Ok(self.read_stored(name)?.f_to_kind(kind)?)
    }
}

/// Kinds in which every bit pattern is a value. Booleans are not among them.
fn kind_of(dtype: Dtype) -> Option<Kind> {
    Some(match dtype {
        Dtype::F64 => Kind::Double,
        Dtype::F32 => Kind::Float,
        Dtype::F16 => Kind::Half,
        Dtype::BF16 => Kind::BFloat16,
        Dtype::F8_E4M3 => Kind::Float8e4m3fn,
        Dtype::F8_E5M2 => Kind::Float8e5m2,
        Dtype::I64 => Kind::Int64,
        Dtype::I32 => Kind::Int,
        Dtype::I16 => Kind::Int16,
        Dtype::I8 => Kind::Int8,
        Dtype::U8 => Kind::Uint8,
        _ => return None,
    })
}

fn dtype_of(kind: Kind) -> Option<Dtype> {
    Some(match kind {
        Kind::Double => Dtype::F64,
        Kind::Float => Dtype::F32,
        Kind::Half => Dtype::F16,
        Kind::BFloat16 => Dtype::BF16,
        Kind::Int64 => Dtype::I64,
        Kind::Int => Dtype::I32,
        Kind::Int16 => Dtype::I16,
        Kind::Int8 => Dtype::I8,
        Kind::Uint8 => Dtype::U8,
        _ => return None,
    })
}

/// A tensor that is made when it is written.
pub struct LazyTensor<'a> {
    shape: Vec<usize>,
    kind: Kind,
    make: Box<dyn Fn() -> Result<Tensor, WeightsError> + 'a>,
}

impl<'a> LazyTensor<'a> {
    /// A tensor that already exists.
    pub fn ready(tensor: &Tensor) -> LazyTensor<'static> {
        let tensor = tensor.detach();
        LazyTensor {
            shape: tensor.size().iter().map(|size| *size as usize).collect(),
            kind: tensor.kind(),
            make: Box::new(move || Ok(tensor.shallow_clone())),
        }
    }

    /// The tensor `name` of `source`, read as `kind` when it is written.
    ///
    /// # Errors
    /// When there is no such tensor.
    pub fn of(source: &'a dyn TensorSource, name: &str, kind: Kind) -> Result<Self, WeightsError> {
        let shape = source.shape(name).ok_or_else(|| {
            WeightsError::file(source.path(), format!("there is no tensor `{name}`"))
        })?;
        let name = name.to_owned();
        Ok(Self {
            shape: shape.iter().map(|size| *size as usize).collect(),
            kind,
            make: Box::new(move || source.read(&name, kind)),
        })
    }

    /// A tensor of this shape and kind that `make` makes.
    pub fn made(
        shape: &[i64],
        kind: Kind,
        make: impl Fn() -> Result<Tensor, WeightsError> + 'a,
    ) -> Self {
        Self {
            shape: shape.iter().map(|size| *size as usize).collect(),
            kind,
            make: Box::new(make),
        }
    }

    /// Calls `told` each time the tensor has been made.
    pub fn on_made(self, told: impl Fn() + 'a) -> Self {
        let make = self.make;
        Self {
            make: Box::new(move || make().inspect(|_| told())),
            ..self
        }
    }
}

/// Writes tensors to a new file, which takes its place at `path` only when complete.
///
/// # Errors
/// When a tensor cannot be made or the file cannot be written.
pub fn write_safetensors<'a>(
    path: &Path,
    tensors: impl IntoIterator<Item = (String, LazyTensor<'a>)>,
    metadata: HashMap<String, String>,
) -> Result<(), WeightsError> {
    // `View` cannot fail, so the first failure is kept here and the file dropped.
    let failure = Rc::new(RefCell::new(None));
    let views = tensors
        .into_iter()
        .map(|(name, tensor)| {
            let dtype = dtype_of(tensor.kind).ok_or_else(|| {
                WeightsError::file(
                    path,
                    format!("tensor `{name}`: {:?} cannot be written", tensor.kind),
                )
            })?;
            let failure = Rc::clone(&failure);
            Ok((
                name,
                Pending {
                    tensor,
                    dtype,
                    failure,
                },
            ))
        })
        .collect::<Result<Vec<_>, WeightsError>>()?;
    let mut draft = path.as_os_str().to_owned();
    draft.push(".part");
    let draft = PathBuf::from(draft);
    // The library writes files that only their owner may read; ours are as others are.
    let usual = File::create(&draft)
        .and_then(|file| file.metadata())
        .map_err(|error| WeightsError::io("write", path, error))?
        .permissions();
    let written = safetensors::serialize_to_file(views, Some(metadata), &draft);
    let result = match (failure.take(), written) {
        (Some(error), _) => Err(error),
        (None, Err(error)) => Err(WeightsError::file(
            path,
            format!("cannot be written: {error}"),
        )),
        (None, Ok(())) => std::fs::set_permissions(&draft, usual)
            .and_then(|()| std::fs::rename(&draft, path))
            .map_err(|error| WeightsError::io("write", path, error)),
    };
    if result.is_err() {
        // Best effort: what matters is the error that brought us here.
        let _ = std::fs::remove_file(&draft);
    }
    result
}

struct Pending<'a> {
    tensor: LazyTensor<'a>,
    dtype: Dtype,
    failure: Rc<RefCell<Option<WeightsError>>>,
}

impl View for Pending<'_> {
    fn dtype(&self) -> Dtype {
        self.dtype
    }

    fn shape(&self) -> &[usize] {
        &self.tensor.shape
    }

    fn data(&self) -> Cow<'_, [u8]> {
        if self.failure.borrow().is_some() {
            return Cow::Borrowed(&[]);
        }
        match (self.tensor.make)().and_then(|tensor| bytes_of(&tensor)) {
            Ok(bytes) => Cow::Owned(bytes),
            Err(error) => {
                *self.failure.borrow_mut() = Some(error);
                Cow::Borrowed(&[])
            }
        }
    }

    fn data_len(&self) -> usize {
        self.tensor.shape.iter().product::<usize>() * self.tensor.kind.elt_size_in_bytes()
    }
}
