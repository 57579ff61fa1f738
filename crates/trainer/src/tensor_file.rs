//! Tensors in safetensors files, one at a time.
//!
//! Files here may be larger than half of the memory, so neither direction ever holds
//! more than one tensor beside the model. A checksum of the whole file is computed on
//! the way, for the checkpoint's list.

use std::fs::File;
use std::io::{BufReader, BufWriter, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use safetensors::tensor::{Dtype, Metadata, TensorInfo};
use tch::{Device, Kind, Tensor};

use crate::Error;

/// The format's own limit on its header, so that a damaged length cannot ask for all memory.
const MAX_HEADER: u64 = 100_000_000;

/// Writes `tensors` to a new file at `path`, forces it to the disk, and returns its CRC-32C.
///
/// # Errors
/// When the file cannot be written, as on a full disk.
pub fn write(path: &Path, tensors: &[(String, &Tensor)]) -> Result<u32, Error> {
    let file = File::create(path).map_err(|error| Error::io("create", path, error))?;
    let mut writer = Checksummed {
        file: BufWriter::with_capacity(1 << 20, file),
        checksum: 0,
    };
    let mut infos = Vec::with_capacity(tensors.len());
    let mut offset = 0;
    for (name, tensor) in tensors {
        let shape = tensor
            .size()
            .into_iter()
            .map(|size| size as usize)
            .collect();
        let end = offset + tensor.numel() * tensor.kind().elt_size_in_bytes();
        let dtype = dtype_of(tensor.kind())?;
        infos.push((
            name.clone(),
            TensorInfo {
                dtype,
                shape,
                data_offsets: (offset, end),
            },
        ));
        offset = end;
    }
    let metadata = [("format".to_owned(), "pt".to_owned())].into();
    let metadata = Metadata::new(Some(metadata), infos)
        .map_err(|error| Error::Internal(format!("safetensors header: {error}")))?;
    let mut header = serde_json::to_vec(&metadata)
        .map_err(|error| Error::Internal(format!("safetensors header: {error}")))?;
    // The format wants the data aligned to eight bytes, with spaces.
    header.resize(header.len().next_multiple_of(8), b' ');

    let io = |error| Error::io("write", path, error);
    writer
        .write_all(&(header.len() as u64).to_le_bytes())
        .map_err(io)?;
    writer.write_all(&header).map_err(io)?;
    let mut bytes = Vec::new();
    for (_, tensor) in tensors {
        let host = tensor
            .f_detach()?
            .f_to_device(Device::Cpu)?
            .f_contiguous()?;
        bytes.resize(host.numel() * host.kind().elt_size_in_bytes(), 0);
        host.f_copy_data_u8(&mut bytes, host.numel())?;
        writer.write_all(&bytes).map_err(io)?;
    }
    let Checksummed { file, checksum } = writer;
    let file = file.into_inner().map_err(|error| io(error.into_error()))?;
    file.sync_all().map_err(io)?;
    Ok(checksum)
}

struct Checksummed {
    file: BufWriter<File>,
    checksum: u32,
}

impl Write for Checksummed {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        let written = self.file.write(bytes)?;
        self.checksum = crc32c::crc32c_append(self.checksum, &bytes[..written]);
        Ok(written)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        self.file.flush()
    }
}

/// CRC-32C of a whole file.
///
/// # Errors
/// When the file cannot be read.
pub fn checksum(path: &Path) -> Result<u32, Error> {
    let io = |error| Error::io("read", path, error);
    let mut file = File::open(path).map_err(io)?;
    let mut buffer = vec![0; 1 << 20];
    let mut checksum = 0;
    loop {
        match file.read(&mut buffer).map_err(io)? {
            0 => return Ok(checksum),
            count => checksum = crc32c::crc32c_append(checksum, &buffer[..count]),
        }
    }
}

/// An open safetensors file.
pub struct TensorFile {
    path: PathBuf,
    file: BufReader<File>,
    metadata: Metadata,
    data_start: u64,
}

impl TensorFile {
    /// Opens a file and reads its header.
    ///
    /// # Errors
    /// When the file is missing, is not safetensors, or is shorter than its header says.
    pub fn open(path: &Path) -> Result<Self, Error> {
        let io = |error| Error::io("read", path, error);
        let damaged = |reason: String| Error::checkpoint(path, reason);
        let file = File::open(path).map_err(io)?;
        let length = file.metadata().map_err(io)?.len();
        let mut file = BufReader::with_capacity(1 << 20, file);
        let mut prefix = [0; 8];
        file.read_exact(&mut prefix)
            .map_err(|_| damaged("not a safetensors file".into()))?;
        let header_length = u64::from_le_bytes(prefix);
        if header_length > MAX_HEADER || header_length.saturating_add(8) > length {
            return Err(damaged(
                "not a safetensors file: its header is longer than it".into(),
            ));
        }
        let mut header = vec![0; header_length as usize];
        file.read_exact(&mut header).map_err(io)?;
        let metadata: Metadata = serde_json::from_slice(&header)
            .map_err(|error| damaged(format!("its safetensors header: {error}")))?;
        let data_start = 8 + header_length;
        let expected = data_start + metadata.data_len() as u64;
        if expected != length {
            return Err(damaged(format!(
                "it has {length} bytes, and should have {expected}"
            )));
        }
        Ok(Self {
            path: path.to_owned(),
            file,
            metadata,
            data_start,
        })
    }

    /// Names of the tensors, sorted.
    pub fn names(&self) -> Vec<String> {
        let mut names = self.metadata.offset_keys();
        names.sort();
        names
    }

    /// Shape of a tensor; `None` when there is none of this name.
    pub fn shape(&self, name: &str) -> Option<Vec<i64>> {
        let info = self.metadata.info(name)?;
        Some(info.shape.iter().map(|size| *size as i64).collect())
    }

    /// Reads one tensor to the host.
    ///
    /// # Errors
    /// When there is none of this name, its type is unknown here, or reading fails.
    pub fn read(&mut self, name: &str) -> Result<Tensor, Error> {
        let Some(info) = self.metadata.info(name) else {
            return Err(Error::checkpoint(
                &self.path,
                format!("it has no tensor `{name}`"),
            ));
        };
        let kind = kind_of(info.dtype).ok_or_else(|| {
            Error::checkpoint(&self.path, format!("`{name}` has type {:?}", info.dtype))
        })?;
        let shape: Vec<i64> = info.shape.iter().map(|size| *size as i64).collect();
        let (start, end) = info.data_offsets;
        let io = |error| Error::io("read", &self.path, error);
        self.file
            .seek(SeekFrom::Start(self.data_start + start as u64))
            .map_err(io)?;
        let mut bytes = vec![0; end - start];
        self.file.read_exact(&mut bytes).map_err(io)?;
        Ok(Tensor::f_from_data_size(&bytes, &shape, kind)?)
    }
}

fn dtype_of(kind: Kind) -> Result<Dtype, Error> {
    Ok(match kind {
        Kind::Float => Dtype::F32,
        Kind::Double => Dtype::F64,
        Kind::Half => Dtype::F16,
        Kind::BFloat16 => Dtype::BF16,
        Kind::Uint8 => Dtype::U8,
        Kind::Int8 => Dtype::I8,
        Kind::Int16 => Dtype::I16,
        Kind::Int => Dtype::I32,
        Kind::Int64 => Dtype::I64,
        Kind::Bool => Dtype::BOOL,
        other => {
            return Err(Error::Internal(format!(
                "a tensor of type {other:?} to save"
            )));
        }
    })
}

fn kind_of(dtype: Dtype) -> Option<Kind> {
    Some(match dtype {
        Dtype::F32 => Kind::Float,
        Dtype::F64 => Kind::Double,
        Dtype::F16 => Kind::Half,
        Dtype::BF16 => Kind::BFloat16,
        Dtype::U8 => Kind::Uint8,
        Dtype::I8 => Kind::Int8,
        Dtype::I16 => Kind::Int16,
        Dtype::I32 => Kind::Int,
        Dtype::I64 => Kind::Int64,
        Dtype::BOOL => Kind::Bool,
        _ => return None,
    })
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
        ];
        let list: Vec<_> = tensors
            .iter()
            .map(|(name, tensor)| (name.clone(), tensor))
            .collect();
        let sum = write(&path, &list).unwrap();
        assert_eq!(checksum(&path).unwrap(), sum);
        let mut file = TensorFile::open(&path).unwrap();
        assert_eq!(file.names(), ["a.scalar", "b.matrix", "c.half", "d.none"]);
        for (name, tensor) in &tensors {
            let read = file.read(name).unwrap();
            assert_eq!((read.size(), read.kind()), (tensor.size(), tensor.kind()));
            assert!(read.allclose(tensor, 0.0, 0.0, true), "{name}");
        }
        // The reference implementation reads it too.
        let bytes = std::fs::read(&path).unwrap();
        assert_eq!(
            safetensors::SafeTensors::deserialize(&bytes).unwrap().len(),
            4
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
            assert!(TensorFile::open(&path).is_err(), "{bytes:?}");
        }
    }
}
