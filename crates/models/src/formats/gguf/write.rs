//! Writes GGUF files.

use std::fs::File;
use std::io::{BufWriter, Write as _};
use std::panic::resume_unwind;
use std::path::{Path, PathBuf};

use tch::{Device, Kind};

use super::{Array, Format, Header, Value};
use crate::Error;
use crate::formats::LazyTensor;

/// The data of each tensor begins at a multiple of this.
const ALIGNMENT: u64 = 32;
/// Numbers that a thread quantises at a time: whole blocks of every format.
const PIECE: usize = 1 << 18;

/// A tensor that is to be written.
pub struct GgufTensor<'a> {
    /// Its name in the file.
    pub name: String,
    /// How it is stored.
    pub format: Format,
    /// Its shape, and what makes it: numbers, or bytes as they are written.
    pub tensor: LazyTensor<'a>,
}

/// A GGUF file that is to be written.
pub struct GgufWriter<'a> {
    header: Vec<u8>,
    tensors: Vec<GgufTensor<'a>>,
}

impl<'a> GgufWriter<'a> {
    /// The file with this metadata and these tensors. Whole numbers are written with 32 bits if those suffice, and others
    /// as fp32: llama.cpp expects them so.
    ///
    /// # Errors
    /// If a tensor is not whole blocks of its format, or a value has no form in the file.
    pub fn new(metadata: &[(String, Value)], tensors: Vec<GgufTensor<'a>>) -> Result<Self, Error> {
        let mut header = b"GGUF".to_vec();
        header.extend(3u32.to_le_bytes());
        header.extend((tensors.len() as u64).to_le_bytes());
        header.extend((metadata.len() as u64).to_le_bytes());
        for (key, value) in metadata {
            text(&mut header, key);
            put(&mut header, value);
        }
        let mut offset = 0u64;
        for GgufTensor {
            name,
            format,
            tensor,
        } in &tensors
        {
            let shape = tensor.shape();
            let row = shape.last().copied().unwrap_or(1);
            let bytes = format.bytes_of(shape.iter().product::<usize>() as u64);
            let bytes = bytes
                .filter(|_| row.is_multiple_of(format.block_elements()))
                .filter(|_| format.can_be_written() || tensor.kind() == Kind::Uint8);
            let bytes = bytes.ok_or_else(|| {
                let format = format.name();
                Error::Internal(format!(
                    "`{name}` of {shape:?} cannot be stored as {format}"
                ))
            })?;
            text(&mut header, name);
            header.extend((shape.len() as u32).to_le_bytes());
            for size in shape.iter().rev() {
                header.extend((*size as u64).to_le_bytes());
            }
            header.extend(format.code().to_le_bytes());
            header.extend(offset.to_le_bytes());
            offset += bytes.next_multiple_of(ALIGNMENT);
        }
        let aligned = (header.len() as u64).next_multiple_of(ALIGNMENT);
        header.resize(aligned as usize, 0);
        Ok(Self { header, tensors })
    }

    /// Bytes of the whole file.
    pub fn bytes(&self) -> u64 {
        let each = self.tensors.iter().map(|tensor| {
            let numbers = tensor.tensor.shape().iter().product::<usize>() as u64;
            let bytes = tensor.format.bytes_of(numbers).unwrap_or(0);
            bytes.next_multiple_of(ALIGNMENT)
        });
        self.header.len() as u64 + each.sum::<u64>()
    }

    /// The header as a reader sees it.
    ///
    /// # Errors
    /// If it is not valid.
    pub fn read_back(&self) -> Result<Header, String> {
        Header::read(self.header.as_slice(), self.bytes())
    }

    /// Writes the file at `path`, where it appears once it is complete.
    ///
    /// # Errors
    /// If a tensor cannot be made or is not finite, or the file cannot be written.
    pub fn write(self, path: &Path) -> Result<(), Error> {
        let mut draft = path.as_os_str().to_owned();
        draft.push(".part");
        let draft = PathBuf::from(draft);
        let written = self.write_draft(path, &draft).and_then(|()| {
            std::fs::rename(&draft, path).map_err(|error| Error::io("write", path, error))
        });
        if written.is_err() {
            // Best effort: the original error is the one to report.
            let _ = std::fs::remove_file(&draft);
        }
        written
    }

    fn write_draft(self, path: &Path, draft: &Path) -> Result<(), Error> {
        let io = |error| Error::io("write", path, error);
        let file = File::create(draft).map_err(|error| Error::io("create", path, error))?;
        let mut file = BufWriter::with_capacity(1 << 20, file);
        file.write_all(&self.header).map_err(io)?;
        for GgufTensor {
            name,
            format,
            tensor,
        } in self.tensors
        {
            let made = tensor.make()?.f_detach()?.f_to_device(Device::Cpu)?;
            if made.kind() == Kind::Uint8 {
                let mut bytes = vec![0u8; made.numel()];
                made.f_contiguous()?.f_copy_data(&mut bytes, made.numel())?;
                bytes.resize(bytes.len().next_multiple_of(ALIGNMENT as usize), 0);
                file.write_all(&bytes).map_err(io)?;
                continue;
            }
            let made = made.f_to_kind(Kind::Float)?.f_contiguous()?;
            let mut numbers = vec![0f32; made.numel()];
            made.f_copy_data(&mut numbers, made.numel())?;
            drop(made);
            // Those that fp16 rounds to infinity are as bad.
            let most = match format {
                Format::F16 => 65_520.0,
                _ => f32::INFINITY,
            };
            let bad = numbers
                .iter()
                .filter(|number| number.is_nan() || number.abs() >= most);
            let bad = bad.count() as i64;
            if bad > 0 {
                let reason = format!(
                    "{bad} of the {} numbers of `{name}` are not finite as {}",
                    numbers.len(),
                    format.name()
                );
                return Err(Error::file(path, reason));
            }
            let mut bytes = quantized(format, &numbers);
            bytes.resize(bytes.len().next_multiple_of(ALIGNMENT as usize), 0);
            file.write_all(&bytes).map_err(io)?;
        }
        let file = file.into_inner().map_err(|error| io(error.into_error()))?;
        file.sync_all().map_err(io)
    }
}

/// `numbers` in a format, by all processors.
fn quantized<'n>(format: Format, numbers: &'n [f32]) -> Vec<u8> {
    let workers = std::thread::available_parallelism().map_or(1, usize::from);
    let pieces: Vec<&[f32]> = numbers.chunks(PIECE).collect();
    let mut bytes = Vec::new();
    for round in pieces.chunks(workers) {
        let made: Vec<Vec<u8>> = std::thread::scope(|scope| {
            let start = |&piece: &&'n [f32]| {
                scope.spawn(move || {
                    let mut bytes = Vec::new();
                    format.quantize(piece, &mut bytes);
                    bytes
                })
            };
            let started: Vec<_> = round.iter().map(start).collect();
            let joined = started.into_iter().map(|thread| thread.join());
            let joined = joined.map(|made| made.unwrap_or_else(|panic| resume_unwind(panic)));
            joined.collect()
        });
        bytes.extend(made.into_iter().flatten());
    }
    bytes
}

fn text(out: &mut Vec<u8>, text: &str) {
    out.extend((text.len() as u64).to_le_bytes());
    out.extend(text.as_bytes());
}

/// The code of a value's type (`enum gguf_type`) and the value.
fn put(out: &mut Vec<u8>, value: &Value) {
    let code = |out: &mut Vec<u8>, code: u32| out.extend(code.to_le_bytes());
    match value {
        Value::Unsigned(number) => match u32::try_from(*number) {
            Ok(short) => {
                code(out, 4);
                out.extend(short.to_le_bytes());
            }
            Err(_) => {
                code(out, 10);
                out.extend(number.to_le_bytes());
            }
        },
        Value::Signed(number) => match i32::try_from(*number) {
            Ok(short) => {
                code(out, 5);
                out.extend(short.to_le_bytes());
            }
            Err(_) => {
                code(out, 11);
                out.extend(number.to_le_bytes());
            }
        },
        Value::Float(number) => {
            code(out, 6);
            out.extend((*number as f32).to_le_bytes());
        }
        Value::Bool(flag) => {
            code(out, 7);
            out.push(u8::from(*flag));
        }
        Value::String(string) => {
            code(out, 8);
            text(out, string);
        }
        Value::Array(array) => {
            code(out, 9);
            put_array(out, array);
        }
    }
}

/// The type of the elements, their number, and the elements without a type each.
fn put_array(out: &mut Vec<u8>, array: &Array) {
    let begin = |out: &mut Vec<u8>, code: u32, count: usize| {
        out.extend(code.to_le_bytes());
        out.extend((count as u64).to_le_bytes());
    };
    match array {
        Array::Unsigned(list) => {
            begin(out, 10, list.len());
            list.iter()
                .for_each(|number| out.extend(number.to_le_bytes()));
        }
        Array::Signed(list) => match list
            .iter()
            .map(|number| i32::try_from(*number))
            .collect::<Result<Vec<_>, _>>()
        {
            // llama.cpp takes token types as they lie in the file.
            Ok(list) => {
                begin(out, 5, list.len());
                list.iter()
                    .for_each(|number| out.extend(number.to_le_bytes()));
            }
            Err(_) => {
                begin(out, 11, list.len());
                list.iter()
                    .for_each(|number| out.extend(number.to_le_bytes()));
            }
        },
        Array::Float(list) => {
            begin(out, 6, list.len());
            list.iter()
                .for_each(|number| out.extend((*number as f32).to_le_bytes()));
        }
        Array::Bool(list) => {
            begin(out, 7, list.len());
            out.extend(list.iter().map(|flag| u8::from(*flag)));
        }
        Array::String(list) => {
            begin(out, 8, list.len());
            list.iter().for_each(|string| text(out, string));
        }
        Array::Array(list) => {
            begin(out, 9, list.len());
            list.iter().for_each(|array| put_array(out, array));
        }
    }
}
