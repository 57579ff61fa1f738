//! An unlinked temporary file for tensors that are in no memory.

use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::io;
use std::path::Path;

use platform::files::FileExt as _;
use tch::{Device, Kind, Tensor};

use crate::placer::PlaceError;
use crate::transfer::checksum::Checksum;
use crate::transfer::torch_transport::HostTensor;

/// An unlinked temporary file for tensors that are in no memory. Space is reused, so a run that cycles
/// through its phases does not grow the file.
pub struct SpillFile {
    file: File,
    tensors: HashMap<String, SpilledTensor>,
    /// The used extents of the file, by their offset.
    extents: BTreeMap<u64, Extent>,
}

/// A tensor in the spill file.
#[derive(Clone)]
struct SpilledTensor {
    at: u64,
    kind: Kind,
    size: Vec<i64>,
    sum: Checksum,
}

/// A used range of the file.
struct Extent {
    bytes: u64,
    /// Number of names; tied tensors share one extent.
    names: usize,
}

impl SpillFile {
    /// An empty spill file on the disk of this folder.
    pub fn new(folder: &Path) -> io::Result<Self> {
        Ok(Self {
            file: tempfile::tempfile_in(folder)?,
            tensors: HashMap::new(),
            extents: BTreeMap::new(),
        })
    }

    /// Number of tensors in the file.
    pub fn len(&self) -> usize {
        self.tensors.len()
    }

    /// Whether it has no tensors.
    pub fn is_empty(&self) -> bool {
        self.tensors.is_empty()
    }

    /// The offset of a tensor, if it is in the file; the same for tied tensors.
    pub(super) fn offset_of(&self, name: &str) -> Option<u64> {
        self.tensors.get(name).map(|spilled| spilled.at)
    }

    /// Writes a host tensor; returns the placeholder to use in its place.
    pub(super) fn put(&mut self, name: &str, tensor: &Tensor) -> Result<Tensor, PlaceError> {
        let torch = |error: tch::TchError| PlaceError::Torch {
            tensor: name.to_owned(),
            source: error.into(),
        };
        let host = HostTensor::new(&tensor.f_contiguous().map_err(torch)?)?;
        let data = host.bytes()?;
        let bytes = data.len() as u64;
        let at = self.find_free(bytes);
        let written = self.file.write_all_at(data, at);
        written.map_err(|error| spill_error(name, "written to", &error))?;
        let kind = tensor.kind();
        let spilled = SpilledTensor {
            at,
            kind,
            size: tensor.size(),
            sum: Checksum::of(data),
        };
        self.extents.insert(at, Extent { bytes, names: 1 });
        self.tensors.insert(name.to_owned(), spilled);
        Tensor::f_empty([0], (kind, Device::Cpu)).map_err(torch)
    }

    /// Adds a second name for the extent of `first`.
    pub(super) fn tie(&mut self, name: &str, first: &str) {
        let Some(spilled) = self.tensors.get(first).cloned() else {
            return;
        };
        if let Some(extents) = self.extents.get_mut(&spilled.at) {
            extents.names += 1;
        }
        self.tensors.insert(name.to_owned(), spilled);
    }

    /// Reads a tensor back to host memory. It stays in the file until [`Self::forget`].
    pub(super) fn read(&self, name: &str) -> Result<Tensor, PlaceError> {
        let lost = || spill_error(name, "read from", &io::ErrorKind::NotFound.into());
        let spilled = self.tensors.get(name).ok_or_else(lost)?;
        let empty = Tensor::f_empty(spilled.size.as_slice(), (spilled.kind, Device::Cpu));
        let empty = empty.map_err(|error| PlaceError::Torch {
            tensor: name.to_owned(),
            source: error.into(),
        })?;
        let mut host = HostTensor::new(&empty)?;
        let read = self.file.read_exact_at(host.bytes_mut()?, spilled.at);
        read.map_err(|error| spill_error(name, "read from", &error))?;
        if let Some(damage) = spilled.sum.damage(&Checksum::of(host.bytes()?)) {
            let error = io::Error::other(format!("the data read back differs: {damage}"));
            return Err(spill_error(name, "read from", &error));
        }
        Ok(host.into_tensor())
    }

    /// Removes a name, and frees its extent with the last one.
    pub(super) fn forget(&mut self, name: &str) -> Result<(), PlaceError> {
        let Some(SpilledTensor { at, .. }) = self.tensors.remove(name) else {
            return Ok(());
        };
        let Some(extents) = self.extents.get_mut(&at) else {
            return Ok(());
        };
        extents.names -= 1;
        if extents.names > 0 {
            return Ok(());
        }
        self.extents.remove(&at);
        let shrunk = self.file.set_len(self.end());
        shrunk.map_err(|error| spill_error(name, "taken off", &error))
    }

    /// Offset of the first free range of `bytes` bytes.
    fn find_free(&self, bytes: u64) -> u64 {
        let mut free = 0;
        for (&at, extents) in &self.extents {
            if at - free >= bytes {
                return free;
            }
            free = at + extents.bytes;
        }
        free
    }

    fn end(&self) -> u64 {
        let last = self.extents.last_key_value();
        last.map_or(0, |(at, extents)| at + extents.bytes)
    }
}

fn spill_error(name: &str, done: &str, error: &io::Error) -> PlaceError {
    PlaceError::Torch {
        tensor: name.to_owned(),
        source: torch_ext::Error::Torch(format!("it cannot be {done} the disk: {error}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tensor(numbers: i64) -> Tensor {
        Tensor::arange(numbers, (Kind::Float, Device::Cpu))
    }

    fn bytes(spill_file: &SpillFile) -> u64 {
        spill_file.file.metadata().unwrap().len()
    }

    #[test]
    fn what_leaves_makes_room_for_what_comes() {
        let mut spill_file = SpillFile::new(&std::env::temp_dir()).unwrap();
        let _ = spill_file.put("small", &tensor(10)).unwrap();
        for _ in 0..20 {
            let _ = spill_file.put("text", &tensor(100)).unwrap();
            let _ = spill_file.put("picture", &tensor(50)).unwrap();
            for (name, numbers) in [("picture", 50), ("text", 100), ("small", 10)] {
                assert!(
                    spill_file.read(name).unwrap().equal(&tensor(numbers)),
                    "{name}"
                );
            }
            spill_file.forget("text").unwrap();
            let _ = spill_file.put("again", &tensor(90)).unwrap();
            assert!(spill_file.read("picture").unwrap().equal(&tensor(50)));
            assert!(bytes(&spill_file) <= 160 * 4);
            spill_file.forget("picture").unwrap();
            spill_file.forget("again").unwrap();
        }
        assert_eq!((spill_file.len(), bytes(&spill_file)), (1, 40));
        spill_file.forget("small").unwrap();
        assert_eq!((spill_file.is_empty(), bytes(&spill_file)), (true, 0));
    }

    #[test]
    fn tied_tensors_are_there_until_the_last_name_is_gone() {
        let mut spill_file = SpillFile::new(&std::env::temp_dir()).unwrap();
        let _ = spill_file.put("embedding", &tensor(10)).unwrap();
        spill_file.tie("head", "embedding");
        assert_eq!(
            spill_file.offset_of("head"),
            spill_file.offset_of("embedding")
        );
        spill_file.forget("embedding").unwrap();
        let _ = spill_file.put("other", &tensor(10)).unwrap();
        assert!(spill_file.read("head").unwrap().equal(&tensor(10)));
    }

    #[test]
    fn what_cannot_be_read_is_named_and_not_forgotten() {
        let mut spill_file = SpillFile::new(&std::env::temp_dir()).unwrap();
        let _ = spill_file.put("text.weight", &tensor(10)).unwrap();
        spill_file.file.write_all_at(&[1], 5).unwrap();
        let error = spill_file.read("text.weight").unwrap_err().to_string();
        assert!(
            error.contains("text.weight") && error.contains("the data read back differs"),
            "{error}"
        );
        spill_file.file.set_len(3).unwrap();
        assert!(spill_file.read("text.weight").is_err());
        assert_eq!(spill_file.len(), 1);
    }
}
