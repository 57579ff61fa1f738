//! A single safetensors file: read tensor by tensor with ranged reads, and written tensor by tensor as they
//! are produced. Neither holds the whole file in memory.

use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};

use platform::files::FileExt as _;
use safetensors::tensor::{Dtype, Metadata, TensorInfo};
use tch::{Device, Kind, Tensor};

use super::TensorSource;
use crate::Error;
use crate::tensor::tensor_from;

/// The safetensors format's limit for the header.
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
    pub fn open(path: &Path) -> Result<Self, Error> {
        let io = |error| Error::io("read", path, error);
        let file = File::open(path).map_err(io)?;
        let size = file.metadata().map_err(io)?.len();
        let wrong = |reason: String| Error::file(path, reason);
        if size < 8 {
            return Err(wrong(format!("not a safetensors file: {size} bytes")));
        }
        let mut length = [0; 8];
        file.read_exact_at(&mut length, 0).map_err(io)?;
        let length = u64::from_le_bytes(length);
        if length > MAX_HEADER_BYTES || length > size - 8 {
            return Err(wrong(format!(
                "not a safetensors file, or truncated: its header claims {length} bytes of {size}"
            )));
        }
        let mut header = vec![0; length as usize];
        file.read_exact_at(&mut header, 8).map_err(io)?;
        // The library checks that offsets are contiguous and match the shapes.
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

    /// Reads a tensor in its stored type.
    pub fn read_stored(&self, name: &str) -> Result<Tensor, Error> {
        self.read_elements(name, None)
    }

    /// Reads a tensor in its stored type, or an element of its first dimension.
    fn read_elements(&self, name: &str, index: Option<i64>) -> Result<Tensor, Error> {
        let info = self
            .metadata
            .info(name)
            .ok_or_else(|| Error::file(&self.path, format!("there is no tensor `{name}`")))?;
        let kind = kind_of(info.dtype).ok_or_else(|| {
            Error::file(
                &self.path,
                format!(
                    "tensor `{name}` is of type {:?}, which libtorch lacks",
                    info.dtype
                ),
            )
        })?;
        let mut shape: Vec<i64> = info.shape.iter().map(|size| *size as i64).collect();
        let mut start = self.data_start + info.data_offsets.0 as u64;
        if let Some(index) = index {
            let count = match shape.is_empty() {
                true => 0,
                false => shape.remove(0),
            };
            if !(0..count).contains(&index) {
                let reason = format!("tensor `{name}` has no element {index} of {count}");
                return Err(Error::file(&self.path, reason));
            }
            let bytes = (info.data_offsets.1 - info.data_offsets.0) as u64;
            start += bytes / count as u64 * index as u64;
        }
        // A boolean's byte may be damaged, and any value but 0 and 1 is undefined behaviour.
        let bytes_as = if kind == Kind::Bool {
            Kind::Uint8
        } else {
            kind
        };
        let tensor = tensor_from(&shape, bytes_as, |bytes| {
            super::read_weights(&self.file, bytes, start)
                .map_err(|error| Error::io("read", &self.path, error))
        })?;
        match kind {
            Kind::Bool => Ok(tensor.f_ne(0)?),
            _ => Ok(tensor),
        }
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

    fn kind(&self, name: &str) -> Option<Kind> {
        kind_of(self.metadata.info(name)?.dtype)
    }

    fn read(&self, name: &str, kind: Kind) -> Result<Tensor, Error> {
        Ok(self.read_stored(name)?.f_to_kind(kind)?)
    }

    fn read_element(&self, name: &str, index: i64, kind: Kind) -> Result<Tensor, Error> {
        Ok(self.read_elements(name, Some(index))?.f_to_kind(kind)?)
    }
}

/// The types that libtorch and safetensors have in common.
const TYPES: [(Kind, Dtype); 12] = [
    (Kind::Double, Dtype::F64),
    (Kind::Float, Dtype::F32),
    (Kind::Half, Dtype::F16),
    (Kind::BFloat16, Dtype::BF16),
    (Kind::Float8e4m3fn, Dtype::F8_E4M3),
    (Kind::Float8e5m2, Dtype::F8_E5M2),
    (Kind::Int64, Dtype::I64),
    (Kind::Int, Dtype::I32),
    (Kind::Int16, Dtype::I16),
    (Kind::Int8, Dtype::I8),
    (Kind::Uint8, Dtype::U8),
    (Kind::Bool, Dtype::BOOL),
];

fn kind_of(dtype: Dtype) -> Option<Kind> {
    let (kind, _) = TYPES.iter().find(|(_, known)| *known == dtype)?;
    Some(*kind)
}

fn dtype_of(kind: Kind) -> Option<Dtype> {
    let (_, dtype) = TYPES.iter().find(|(known, _)| *known == kind)?;
    Some(*dtype)
}

/// A tensor that is produced when it is written.
pub struct LazyTensor<'a> {
    shape: Vec<usize>,
    kind: Kind,
    make: Box<dyn Fn() -> Result<Tensor, Error> + 'a>,
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
    pub fn of(source: &'a dyn TensorSource, name: &str, kind: Kind) -> Result<Self, Error> {
        let shape = source
            .shape(name)
            .ok_or_else(|| Error::file(source.path(), format!("there is no tensor `{name}`")))?;
        let name = name.to_owned();
        Ok(Self {
            shape: shape.iter().map(|size| *size as usize).collect(),
            kind,
            make: Box::new(move || source.read(&name, kind)),
        })
    }

    /// A tensor of this shape and type that `make` produces.
    pub fn made(shape: &[i64], kind: Kind, make: impl Fn() -> Result<Tensor, Error> + 'a) -> Self {
        Self {
            shape: shape.iter().map(|size| *size as usize).collect(),
            kind,
            make: Box::new(make),
        }
    }

    /// Calls `on_progress` each time the tensor has been produced.
    pub fn on_made(self, on_progress: impl Fn() + 'a) -> Self {
        let make = self.make;
        Self {
            make: Box::new(move || make().inspect(|_| on_progress())),
            ..self
        }
    }

    /// Its type.
    pub(crate) fn kind(&self) -> Kind {
        self.kind
    }

    /// Its shape.
    pub(crate) fn shape(&self) -> &[usize] {
        &self.shape
    }

    /// Produces it.
    pub(crate) fn make(&self) -> Result<Tensor, Error> {
        (self.make)()
    }

    fn bytes(&self) -> usize {
        self.shape.iter().product::<usize>() * self.kind.elt_size_in_bytes()
    }
}

/// Writes tensors to a temporary file, which replaces `path` only once it is complete and synced. `note` goes
/// into its `__metadata__`. Returns the CRC-32C of the file.
///
/// Tensors are ordered by descending element size, so that each one is aligned; otherwise the order is kept.
pub fn write_safetensors<'a>(
    path: &Path,
    tensors: impl IntoIterator<Item = (String, LazyTensor<'a>)>,
    note: Option<&str>,
) -> Result<u32, Error> {
    let note = note.map(|note| ("note".to_owned(), note.to_owned()));
    write_safetensors_with(path, tensors, &note.into_iter().collect())
}

/// Like [`write_safetensors`], with all of `metadata` in the file's `__metadata__`.
pub fn write_safetensors_with<'a>(
    path: &Path,
    tensors: impl IntoIterator<Item = (String, LazyTensor<'a>)>,
    metadata: &BTreeMap<String, String>,
) -> Result<u32, Error> {
    let mut draft = path.as_os_str().to_owned();
    draft.push(".part");
    let draft = PathBuf::from(draft);
    let mut tensors: Vec<_> = tensors.into_iter().collect();
    tensors.sort_by_key(|(_, tensor)| std::cmp::Reverse(tensor.kind.elt_size_in_bytes()));
    let written = header(path, &tensors, metadata).and_then(|header| {
        let file = File::create(&draft).map_err(|error| Error::io("create", path, error))?;
        let checksum = write(path, file, &header, &tensors)?;
        std::fs::rename(&draft, path).map_err(|error| Error::io("write", path, error))?;
        Ok(checksum)
    });
    if written.is_err() {
        // Best effort: the original error is the one to report.
        let _ = std::fs::remove_file(&draft);
    }
    written
}

/// Writes existing tensors, like [`write_safetensors`].
pub fn write_tensors(path: &Path, tensors: &[(String, &Tensor)]) -> Result<u32, Error> {
    let ready = |(name, tensor): &(String, &Tensor)| (name.clone(), LazyTensor::ready(tensor));
    write_safetensors(path, tensors.iter().map(ready), None)
}

/// The header with its length, as they begin a file.
fn header(
    path: &Path,
    tensors: &[(String, LazyTensor<'_>)],
    metadata: &BTreeMap<String, String>,
) -> Result<Vec<u8>, Error> {
    let mut end = 0;
    let infos = tensors.iter().map(|(name, tensor)| {
        let dtype = dtype_of(tensor.kind).ok_or_else(|| {
            let reason = format!("tensor `{name}`: {:?} cannot be written", tensor.kind);
            Error::file(path, reason)
        })?;
        let start = end;
        end += tensor.bytes();
        let info = TensorInfo {
            dtype,
            shape: tensor.shape.clone(),
            data_offsets: (start, end),
        };
        Ok((name.clone(), info))
    });
    let infos = infos.collect::<Result<Vec<_>, Error>>()?;
    let wrong =
        |error: &dyn std::fmt::Display| Error::Internal(format!("safetensors header: {error}"));
    // `transformers` refuses a file that does not name its framework.
    let mut all = HashMap::from([("format".to_owned(), "pt".to_owned())]);
    all.extend(metadata.clone());
    let metadata = Metadata::new(Some(all), infos).map_err(|error| wrong(&error))?;
    let mut text = serde_json::to_vec(&metadata).map_err(|error| wrong(&error))?;
    // The format requires the data to be aligned to eight bytes, padded with spaces.
    text.resize(text.len().next_multiple_of(8), b' ');
    let mut header = (text.len() as u64).to_le_bytes().to_vec();
    header.append(&mut text);
    Ok(header)
}

/// Writes `file`, which becomes the one at `path`, and syncs it; returns its CRC-32C.
fn write(
    path: &Path,
    file: File,
    header: &[u8],
    tensors: &[(String, LazyTensor<'_>)],
) -> Result<u32, Error> {
    let io = |error| Error::io("write", path, error);
    let mut file = BufWriter::with_capacity(1 << 20, file);
    file.write_all(header).map_err(io)?;
    let mut checksum = crc32c::crc32c(header);
    let mut bytes = Vec::new();
    for (name, lazy) in tensors {
        let tensor = lazy.make()?.f_detach()?.f_to_device(Device::Cpu)?;
        let tensor = tensor.f_contiguous()?;
        let size = tensor.numel() * tensor.kind().elt_size_in_bytes();
        if size != lazy.bytes() {
            return Err(Error::Internal(format!(
                "`{name}` is {size} bytes, but its header says {}",
                lazy.bytes()
            )));
        }
        bytes.resize(size, 0);
        tensor.f_copy_data_u8(&mut bytes, tensor.numel())?;
        file.write_all(&bytes).map_err(io)?;
        checksum = crc32c::crc32c_append(checksum, &bytes);
    }
    let file = file.into_inner().map_err(|error| io(error.into_error()))?;
    file.sync_all().map_err(io)?;
    Ok(checksum)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tensors_survive_bit_for_bit_and_in_every_shape() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("x.safetensors");
        let options = (Kind::Float, Device::Cpu);
        let tensors = [
            (
                "b.matrix".to_owned(),
                Tensor::randn([3, 5], options).transpose(0, 1),
            ),
            ("a.scalar".to_owned(), Tensor::from(f32::NAN)),
            (
                "c.half".to_owned(),
                Tensor::randn([7], options).to_kind(Kind::BFloat16),
            ),
            ("d.none".to_owned(), Tensor::zeros([0, 4], options)),
            ("e.mask".to_owned(), Tensor::from_slice(&[true, false])),
        ];
        let list: Vec<_> = tensors
            .iter()
            .map(|(name, tensor)| (name.clone(), tensor))
            .collect();
        let sum = write_tensors(&path, &list).unwrap();
        // The reference implementation can read it too.
        let bytes = std::fs::read(&path).unwrap();
        assert_eq!(crc32c::crc32c(&bytes), sum);
        assert_eq!(
            safetensors::SafeTensors::deserialize(&bytes).unwrap().len(),
            5
        );
        let file = SafetensorsFile::open(&path).unwrap();
        assert_eq!(
            file.names(),
            ["a.scalar", "b.matrix", "c.half", "d.none", "e.mask"]
        );
        for (name, tensor) in &tensors {
            let read = file.read_stored(name).unwrap();
            assert_eq!((read.size(), read.kind()), (tensor.size(), tensor.kind()));
            assert!(read.allclose(tensor, 0.0, 0.0, true), "{name}");
        }
    }

    #[test]
    fn every_tensor_is_aligned_whatever_the_order() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("x.safetensors");
        let (codes, scale) = (Tensor::from_slice(&[1u8, 2, 3]), Tensor::from(0.5f32));
        let list = [("codes".to_owned(), &codes), ("scale".to_owned(), &scale)];
        write_tensors(&path, &list).unwrap();
        let file = SafetensorsFile::open(&path).unwrap();
        assert_eq!(file.metadata.info("scale").unwrap().data_offsets, (0, 4));
        assert_eq!(file.metadata.info("codes").unwrap().data_offsets, (4, 7));
        assert!(file.read_stored("codes").unwrap().equal(&codes));
    }

    /// Like older checkpoints, which kept the order of the optimizer's state.
    #[test]
    fn tensors_that_are_not_aligned_are_read() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("x.safetensors");
        let header = br#"{"codes":{"dtype":"U8","shape":[3],"data_offsets":[0,3]},"scale":{"dtype":"F32","shape":[],"data_offsets":[3,7]}}"#;
        let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
        bytes.extend(header);
        bytes.extend([1, 2, 3]);
        bytes.extend(0.5f32.to_le_bytes());
        std::fs::write(&path, bytes).unwrap();
        let file = SafetensorsFile::open(&path).unwrap();
        assert_eq!(file.read_stored("scale").unwrap().double_value(&[]), 0.5);
        assert!(
            file.read_stored("codes")
                .unwrap()
                .equal(&Tensor::from_slice(&[1u8, 2, 3]))
        );
    }

    #[test]
    fn damaged_files_are_refused_without_believing_their_numbers() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("x.safetensors");
        let huge = u64::MAX.to_le_bytes();
        let header = br#"{"a":{"dtype":"F32","shape":[4],"data_offsets":[0,16]}}"#;
        let mut short = (header.len() as u64).to_le_bytes().to_vec();
        short.extend(header);
        short.extend([0; 15]);
        for bytes in [
            &b""[..],
            b"1234567",
            &huge,
            &[&huge[..], b"{}"].concat(),
            &short,
        ] {
            std::fs::write(&path, bytes).unwrap();
            assert!(SafetensorsFile::open(&path).is_err(), "{bytes:?}");
        }
    }
}
