//! A file without a name for what is in no memory.

use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

use tch::{Device, Kind, Tensor};

use crate::placer::PlaceError;
use crate::transfer::checksum::Checksum;
use crate::transfer::torch_transport::HostTensor;

/// A file without a name that holds what is in no memory. What leaves makes room for what
/// comes: a run that goes through its phases again and again needs no more of the disk.
pub struct SpillFile {
    file: File,
    tensors: HashMap<String, SpilledTensor>,
    /// What is taken of the file, by where it begins.
    held: BTreeMap<u64, Held>,
}

/// A tensor in the spill file.
#[derive(Clone)]
struct SpilledTensor {
    at: u64,
    kind: Kind,
    size: Vec<i64>,
    sum: Checksum,
}

/// A stretch of the file.
struct Held {
    bytes: u64,
    /// Tied tensors are one stretch under several names.
    names: usize,
}

impl SpillFile {
    /// An empty spill file on the disk of this folder.
    ///
    /// # Errors
    /// When no file can be made there.
    pub fn new(folder: &Path) -> io::Result<Self> {
        Ok(Self {
            file: tempfile::tempfile_in(folder)?,
            tensors: HashMap::new(),
            held: BTreeMap::new(),
        })
    }

    /// Tensors in the spill file.
    pub fn len(&self) -> usize {
        self.tensors.len()
    }

    /// Whether there is nothing on it.
    pub fn is_empty(&self) -> bool {
        self.tensors.is_empty()
    }

    /// Where a tensor is, if it is here: the same for tied ones.
    pub(super) fn place_of(&self, name: &str) -> Option<u64> {
        self.tensors.get(name).map(|spilled| spilled.at)
    }

    /// Writes a host tensor; what to put in its place.
    pub(super) fn put(&mut self, name: &str, tensor: &Tensor) -> Result<Tensor, PlaceError> {
        let torch = |error: tch::TchError| PlaceError::Torch {
            tensor: name.to_owned(),
            source: error.into(),
        };
        let host = HostTensor::new(&tensor.f_contiguous().map_err(torch)?)?;
        let bytes = host.bytes().len() as u64;
        let at = self.gap(bytes);
        let written = self.file.write_all_at(host.bytes(), at);
        written.map_err(|error| spill_error(name, "written to", &error))?;
        let kind = tensor.kind();
        let spilled = SpilledTensor {
            at,
            kind,
            size: tensor.size(),
            sum: Checksum::of(host.bytes()),
        };
        self.held.insert(at, Held { bytes, names: 1 });
        self.tensors.insert(name.to_owned(), spilled);
        Tensor::f_empty([0], (kind, Device::Cpu)).map_err(torch)
    }

    /// A second name for what is here under the first.
    pub(super) fn tie(&mut self, name: &str, first: &str) {
        let Some(spilled) = self.tensors.get(first).cloned() else {
            return;
        };
        if let Some(held) = self.held.get_mut(&spilled.at) {
            held.names += 1;
        }
        self.tensors.insert(name.to_owned(), spilled);
    }

    /// A tensor back in host memory. It stays in the spill file until [`Self::forget`].
    pub(super) fn read(&self, name: &str) -> Result<Tensor, PlaceError> {
        let lost = || spill_error(name, "read from", &io::ErrorKind::NotFound.into());
        let spilled = self.tensors.get(name).ok_or_else(lost)?;
        let empty = Tensor::f_empty(spilled.size.as_slice(), (spilled.kind, Device::Cpu));
        let empty = empty.map_err(|error| PlaceError::Torch {
            tensor: name.to_owned(),
            source: error.into(),
        })?;
        let mut host = HostTensor::new(&empty)?;
        let read = self.file.read_exact_at(host.bytes_mut(), spilled.at);
        read.map_err(|error| spill_error(name, "read from", &error))?;
        if let Some(damage) = spilled.sum.damage(&Checksum::of(host.bytes())) {
            let error = io::Error::other(format!("it came back wrong: {damage}"));
            return Err(spill_error(name, "read from", &error));
        }
        Ok(host.into_tensor())
    }

    /// Takes a name out of the spill file, and gives its stretch back with the last one.
    pub(super) fn forget(&mut self, name: &str) -> Result<(), PlaceError> {
        let Some(SpilledTensor { at, .. }) = self.tensors.remove(name) else {
            return Ok(());
        };
        let Some(held) = self.held.get_mut(&at) else {
            return Ok(());
        };
        held.names -= 1;
        if held.names > 0 {
            return Ok(());
        }
        self.held.remove(&at);
        let shrunk = self.file.set_len(self.end());
        shrunk.map_err(|error| spill_error(name, "taken off", &error))
    }

    /// Where the first stretch of so many bytes begins that nothing holds.
    fn gap(&self, bytes: u64) -> u64 {
        let mut free = 0;
        for (&at, held) in &self.held {
            if at - free >= bytes {
                return free;
            }
            free = at + held.bytes;
        }
        free
    }

    fn end(&self) -> u64 {
        let last = self.held.last_key_value();
        last.map_or(0, |(at, held)| at + held.bytes)
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
            spill_file.place_of("head"),
            spill_file.place_of("embedding")
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
            error.contains("text.weight") && error.contains("came back wrong"),
            "{error}"
        );
        spill_file.file.set_len(3).unwrap();
        assert!(spill_file.read("text.weight").is_err());
        assert_eq!(spill_file.len(), 1);
    }
}
