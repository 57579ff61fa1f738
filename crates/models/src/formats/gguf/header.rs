//! The header of a GGUF file: metadata and the location of each tensor.
//!
//! ```text
//! magic, version, counts │ metadata: key, kind, value … │ tensors: name, shape, format, offset … │ padding │ data
//! ```
//!
//! The file is not trusted: every length is checked against the bytes that remain. No count makes this reader
//! allocate more than a small multiple of the file's size, and no input makes it panic (see the property
//! tests).

use std::collections::HashMap;
use std::io::Read;

use super::format::Format;

/// Maximum length of a string; tokens, merges and templates are far shorter.
const MAX_STRING: u64 = 1 << 24;
/// Maximum length of an array; the largest vocabularies have about a million tokens.
const MAX_ARRAY: u64 = 1 << 24;
/// Maximum depth of nested arrays; no known key nests at all.
const MAX_NESTING: u32 = 4;
/// Maximum number of dimensions: ggml's tensors have up to four, but files for ComfyUI also have convolutions over time.
const MAX_DIMENSIONS: u32 = 5;

/// A metadata value.
#[derive(Debug, Clone, PartialEq)]
pub enum Value {
    /// Any unsigned integer.
    Unsigned(u64),
    /// Any signed integer.
    Signed(i64),
    /// A 32-bit or 64-bit float.
    Float(f64),
    /// A boolean.
    Bool(bool),
    /// A UTF-8 string.
    String(String),
    /// Values of one type.
    Array(Array),
}

/// A metadata array.
#[derive(Debug, Clone, PartialEq)]
pub enum Array {
    /// Unsigned integers of 8 to 64 bits.
    Unsigned(Vec<u64>),
    /// Signed integers of 8 to 64 bits.
    Signed(Vec<i64>),
    /// Floats of 32 or 64 bits.
    Float(Vec<f64>),
    /// Booleans, one byte each in the file.
    Bool(Vec<bool>),
    /// UTF-8 strings.
    String(Vec<String>),
    /// Arrays in an array.
    Array(Vec<Array>),
}

/// A tensor's entry in the header.
#[derive(Debug, Clone, PartialEq)]
pub struct TensorEntry {
    /// Shape in PyTorch's order, rows first (the file stores the reverse).
    pub shape: Vec<u64>,
    /// The format's code in the file, possibly one that [`Format`] does not support.
    pub format_code: u32,
    /// Offset of the data from the start of the file, in bytes.
    pub offset: u64,
}

impl TensorEntry {
    /// The storage format, if supported.
    pub fn format(&self) -> Option<Format> {
        Format::from_code(self.format_code)
    }

    /// Number of elements. The product was checked for overflow when the header was read.
    pub fn elements(&self) -> u64 {
        self.shape.iter().product()
    }
}

/// The header of a GGUF file.
#[derive(Debug, Clone, PartialEq)]
pub struct Header {
    /// Version of the format: 2 or 3.
    pub version: u32,
    /// All metadata keys with their values.
    pub metadata: HashMap<String, Value>,
    /// All tensors by name.
    pub tensors: HashMap<String, TensorEntry>,
}

impl Header {
    /// Reads the header from the start of a file of `file_bytes` bytes.
    ///
    /// # Errors
    /// What is wrong with the file, as text to follow the file's name.
    pub fn read(source: impl Read, file_bytes: u64) -> Result<Self, String> {
        let mut reader = Reader {
            source,
            position: 0,
            file_bytes,
        };
        let magic = reader.bytes::<4>()?;
        if &magic != b"GGUF" {
            return Err(format!(
                "not a GGUF file: it starts with {:?}",
                String::from_utf8_lossy(&magic)
            ));
        }
        let version = reader.u32()?;
        match version {
            2 | 3 => {}
            1 => return Err("GGUF version 1 is obsolete; convert the file again".into()),
            _ if matches!(version.swap_bytes(), 1..=3) => {
                return Err("a big-endian GGUF; only little-endian files can be read".into());
            }
            _ => {
                return Err(format!(
                    "GGUF version {version}; versions 2 and 3 can be read"
                ));
            }
        }
        let tensor_count = reader.u64()?;
        let metadata_count = reader.u64()?;

        let mut metadata = HashMap::new();
        for _ in 0..metadata_count {
            let key = reader.string()?;
            let kind = reader.u32()?;
            let value = reader
                .value(kind)
                .map_err(|reason| format!("metadata `{}`: {reason}", shown(&key)))?;
            if metadata.insert(key.clone(), value).is_some() {
                return Err(format!("metadata `{}` occurs twice", shown(&key)));
            }
        }

        let mut tensors = HashMap::new();
        for _ in 0..tensor_count {
            let name = reader.string()?;
            let entry = reader
                .tensor_entry()
                .map_err(|reason| format!("tensor `{}`: {reason}", shown(&name)))?;
            if tensors.insert(name.clone(), entry).is_some() {
                return Err(format!("tensor `{}` occurs twice", shown(&name)));
            }
        }

        let alignment = match metadata.get("general.alignment") {
            None => 32,
            Some(Value::Unsigned(bytes)) if bytes.is_power_of_two() && *bytes <= 1 << 20 => *bytes,
            Some(other) => {
                return Err(format!(
                    "`general.alignment` is {other:?}, not a power of two"
                ));
            }
        };
        let data_start = reader.position.next_multiple_of(alignment);
        for (name, entry) in &mut tensors {
            place(entry, data_start, alignment, file_bytes)
                .map_err(|reason| format!("tensor `{}`: {reason}", shown(name)))?;
        }
        Ok(Self {
            version,
            metadata,
            tensors,
        })
    }
}

/// Converts an offset into the data section to one into the file, and checks that the tensor lies inside it.
fn place(
    entry: &mut TensorEntry,
    data_start: u64,
    alignment: u64,
    file_bytes: u64,
) -> Result<(), String> {
    if !entry.offset.is_multiple_of(alignment) {
        return Err(format!(
            "offset {} is not a multiple of {alignment}",
            entry.offset
        ));
    }
    let numbers = entry
        .shape
        .iter()
        .try_fold(1u64, |product, size| product.checked_mul(*size))
        .filter(|numbers| i64::try_from(*numbers).is_ok())
        .ok_or_else(|| format!("shape {:?} is too large", entry.shape))?;
    let start = data_start.checked_add(entry.offset);
    // For an unsupported format, only the start can be checked.
    let bytes = match entry.format() {
        None => 0,
        Some(format) => {
            let row = entry.shape.last().copied().unwrap_or(1);
            if !row.is_multiple_of(format.block_elements() as u64) {
                return Err(format!(
                    "rows of {row} numbers are not whole {} blocks of {}",
                    format.name(),
                    format.block_elements()
                ));
            }
            format
                .bytes_of(numbers)
                .ok_or_else(|| format!("shape {:?} is too large", entry.shape))?
        }
    };
    match start.and_then(|start| Some((start, start.checked_add(bytes)?))) {
        Some((start, end)) if end <= file_bytes => {
            entry.offset = start;
            Ok(())
        }
        _ => Err(format!(
            "its {bytes} bytes at offset {} reach beyond the end of the file; the download may be incomplete",
            entry.offset
        )),
    }
}

/// Reads little-endian values and tracks how much of the file is left.
struct Reader<R> {
    source: R,
    position: u64,
    file_bytes: u64,
}

impl<R: Read> Reader<R> {
    fn left(&self) -> u64 {
        self.file_bytes.saturating_sub(self.position)
    }

    fn bytes<const N: usize>(&mut self) -> Result<[u8; N], String> {
        let mut buffer = [0; N];
        self.fill(&mut buffer)?;
        Ok(buffer)
    }

    fn fill(&mut self, buffer: &mut [u8]) -> Result<(), String> {
        self.source.read_exact(buffer).map_err(|error| match error.kind() {
            std::io::ErrorKind::UnexpectedEof => format!(
                "the file ends inside its header, after {} bytes; the download may be incomplete",
                self.file_bytes
            ),
            _ => error.to_string(),
        })?;
        self.position += buffer.len() as u64;
        Ok(())
    }

    fn u32(&mut self) -> Result<u32, String> {
        self.bytes().map(u32::from_le_bytes)
    }

    fn u64(&mut self) -> Result<u64, String> {
        self.bytes().map(u64::from_le_bytes)
    }

    fn string(&mut self) -> Result<String, String> {
        let length = self.u64()?;
        if length > self.left() || length > MAX_STRING {
            return Err(format!(
                "a string of {length} bytes, with {} left in the file",
                self.left()
            ));
        }
        let mut buffer = vec![0; length as usize];
        self.fill(&mut buffer)?;
        String::from_utf8(buffer).map_err(|error| format!("a string is not UTF-8: {error}"))
    }

    fn bool(&mut self) -> Result<bool, String> {
        match self.bytes()? {
            [0] => Ok(false),
            [1] => Ok(true),
            [byte] => Err(format!("{byte} is not a boolean")),
        }
    }

    /// A value of the type with code `kind` (`enum gguf_type`).
    fn value(&mut self, kind: u32) -> Result<Value, String> {
        Ok(match kind {
            0 | 2 | 4 | 10 => Value::Unsigned(self.unsigned(kind)?),
            1 | 3 | 5 | 11 => Value::Signed(self.signed(kind)?),
            6 | 12 => Value::Float(self.float(kind)?),
            7 => Value::Bool(self.bool()?),
            8 => Value::String(self.string()?),
            9 => Value::Array(self.array(MAX_NESTING)?),
            _ => return Err(format!("{kind} is not a value type")),
        })
    }

    fn unsigned(&mut self, kind: u32) -> Result<u64, String> {
        Ok(match kind {
            0 => self.bytes().map(u8::from_le_bytes)?.into(),
            2 => self.bytes().map(u16::from_le_bytes)?.into(),
            4 => self.u32()?.into(),
            _ => self.u64()?,
        })
    }

    fn signed(&mut self, kind: u32) -> Result<i64, String> {
        Ok(match kind {
            1 => self.bytes().map(i8::from_le_bytes)?.into(),
            3 => self.bytes().map(i16::from_le_bytes)?.into(),
            5 => self.bytes().map(i32::from_le_bytes)?.into(),
            _ => self.bytes().map(i64::from_le_bytes)?,
        })
    }

    fn float(&mut self, kind: u32) -> Result<f64, String> {
        Ok(match kind {
            6 => self.bytes().map(f32::from_le_bytes)?.into(),
            _ => self.bytes().map(f64::from_le_bytes)?,
        })
    }

    fn array(&mut self, nesting: u32) -> Result<Array, String> {
        if nesting == 0 {
            return Err(format!("arrays nested more than {MAX_NESTING} deep"));
        }
        let kind = self.u32()?;
        let count = self.u64()?;
        let smallest: u64 = match kind {
            0 | 1 | 7 => 1,
            2 | 3 => 2,
            4..=6 => 4,
            8 | 10..=12 => 8,
            9 => 12,
            _ => return Err(format!("{kind} is not a value type")),
        };
        if count > MAX_ARRAY
            || count
                .checked_mul(smallest)
                .is_none_or(|bytes| bytes > self.left())
        {
            return Err(format!(
                "an array of {count} values, with {} bytes left in the file",
                self.left()
            ));
        }
        Ok(match kind {
            0 | 2 | 4 | 10 => Array::Unsigned(self.list(count, |reader| reader.unsigned(kind))?),
            1 | 3 | 5 | 11 => Array::Signed(self.list(count, |reader| reader.signed(kind))?),
            6 | 12 => Array::Float(self.list(count, |reader| reader.float(kind))?),
            7 => Array::Bool(self.list(count, Self::bool)?),
            8 => Array::String(self.list(count, Self::string)?),
            _ => Array::Array(self.list(count, |reader| reader.array(nesting - 1))?),
        })
    }

    /// Grows as values are read, because `count` was only checked against the smallest element size.
    fn list<T>(
        &mut self,
        count: u64,
        read: impl Fn(&mut Self) -> Result<T, String>,
    ) -> Result<Vec<T>, String> {
        (0..count).map(|_| read(self)).collect()
    }

    fn tensor_entry(&mut self) -> Result<TensorEntry, String> {
        let dimensions = self.u32()?;
        if dimensions > MAX_DIMENSIONS {
            return Err(format!(
                "{dimensions} dimensions; at most {MAX_DIMENSIONS} are possible"
            ));
        }
        let mut shape = (0..dimensions)
            .map(|_| self.u64())
            .collect::<Result<Vec<_>, _>>()?;
        shape.reverse();
        Ok(TensorEntry {
            shape,
            format_code: self.u32()?,
            offset: self.u64()?,
        })
    }
}

/// A name from the file, short enough for a message.
fn shown(name: &str) -> String {
    if name.chars().count() <= 80 {
        return name.escape_debug().to_string();
    }
    let start: String = name.chars().take(80).collect();
    format!("{}…", start.escape_debug())
}
