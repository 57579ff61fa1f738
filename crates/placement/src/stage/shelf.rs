//! A file without a name for what is in no memory.

use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

use tch::{Device, Kind, Tensor};

use crate::checksum::Checksum;
use crate::placer::PlaceError;
use crate::torch_transport::HostTensor;

/// A file without a name that holds what is in no memory. What leaves makes room for what
/// comes: a run that goes through its phases again and again needs no more of the disk.
pub struct Shelf {
    file: File,
    things: HashMap<String, Thing>,
    /// What is taken of the file, by where it begins.
    held: BTreeMap<u64, Held>,
}

/// A tensor on the shelf.
#[derive(Clone)]
struct Thing {
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

impl Shelf {
    /// An empty shelf on the disk of this folder.
    ///
    /// # Errors
    /// When no file can be made there.
    pub fn new(folder: &Path) -> io::Result<Self> {
        Ok(Self {
            file: tempfile::tempfile_in(folder)?,
            things: HashMap::new(),
            held: BTreeMap::new(),
        })
    }

    /// Tensors on the shelf.
    pub fn len(&self) -> usize {
        self.things.len()
    }

    /// Whether there is nothing on it.
    pub fn is_empty(&self) -> bool {
        self.things.is_empty()
    }

    /// Where a tensor is, if it is here: the same for tied ones.
    pub(super) fn place_of(&self, name: &str) -> Option<u64> {
        self.things.get(name).map(|thing| thing.at)
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
        written.map_err(|error| shelf_error(name, "written to", &error))?;
        let kind = tensor.kind();
        let thing = Thing {
            at,
            kind,
            size: tensor.size(),
            sum: Checksum::of(host.bytes()),
        };
        self.held.insert(at, Held { bytes, names: 1 });
        self.things.insert(name.to_owned(), thing);
        Tensor::f_empty([0], (kind, Device::Cpu)).map_err(torch)
    }

    /// A second name for what is here under the first.
    pub(super) fn tie(&mut self, name: &str, first: &str) {
        let Some(thing) = self.things.get(first).cloned() else {
            return;
        };
        if let Some(held) = self.held.get_mut(&thing.at) {
            held.names += 1;
        }
        self.things.insert(name.to_owned(), thing);
    }

    /// A tensor back in host memory. It stays on the shelf until [`Self::forget`].
    pub(super) fn read(&self, name: &str) -> Result<Tensor, PlaceError> {
        let lost = || shelf_error(name, "read from", &io::ErrorKind::NotFound.into());
        let thing = self.things.get(name).ok_or_else(lost)?;
        let empty = Tensor::f_empty(thing.size.as_slice(), (thing.kind, Device::Cpu));
        let empty = empty.map_err(|error| PlaceError::Torch {
            tensor: name.to_owned(),
            source: error.into(),
        })?;
        let mut host = HostTensor::new(&empty)?;
        let read = self.file.read_exact_at(host.bytes_mut(), thing.at);
        read.map_err(|error| shelf_error(name, "read from", &error))?;
        if let Some(damage) = thing.sum.damage(&Checksum::of(host.bytes())) {
            let error = io::Error::other(format!("it came back wrong: {damage}"));
            return Err(shelf_error(name, "read from", &error));
        }
        Ok(host.into_tensor())
    }

    /// Takes a name off the shelf, and gives its stretch back with the last one.
    pub(super) fn forget(&mut self, name: &str) -> Result<(), PlaceError> {
        let Some(Thing { at, .. }) = self.things.remove(name) else {
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
        shrunk.map_err(|error| shelf_error(name, "taken off", &error))
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

fn shelf_error(name: &str, done: &str, error: &io::Error) -> PlaceError {
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

    fn bytes(shelf: &Shelf) -> u64 {
        shelf.file.metadata().unwrap().len()
    }

    #[test]
    fn what_leaves_makes_room_for_what_comes() {
        let mut shelf = Shelf::new(&std::env::temp_dir()).unwrap();
        let _ = shelf.put("small", &tensor(10)).unwrap();
        for _ in 0..20 {
            let _ = shelf.put("text", &tensor(100)).unwrap();
            let _ = shelf.put("picture", &tensor(50)).unwrap();
            for (name, numbers) in [("picture", 50), ("text", 100), ("small", 10)] {
                assert!(shelf.read(name).unwrap().equal(&tensor(numbers)), "{name}");
            }
            shelf.forget("text").unwrap();
            let _ = shelf.put("again", &tensor(90)).unwrap();
            assert!(shelf.read("picture").unwrap().equal(&tensor(50)));
            assert!(bytes(&shelf) <= 160 * 4);
            shelf.forget("picture").unwrap();
            shelf.forget("again").unwrap();
        }
        assert_eq!((shelf.len(), bytes(&shelf)), (1, 40));
        shelf.forget("small").unwrap();
        assert_eq!((shelf.is_empty(), bytes(&shelf)), (true, 0));
    }

    #[test]
    fn tied_tensors_are_there_until_the_last_name_is_gone() {
        let mut shelf = Shelf::new(&std::env::temp_dir()).unwrap();
        let _ = shelf.put("embedding", &tensor(10)).unwrap();
        shelf.tie("head", "embedding");
        assert_eq!(shelf.place_of("head"), shelf.place_of("embedding"));
        shelf.forget("embedding").unwrap();
        let _ = shelf.put("other", &tensor(10)).unwrap();
        assert!(shelf.read("head").unwrap().equal(&tensor(10)));
    }

    #[test]
    fn what_cannot_be_read_is_named_and_not_forgotten() {
        let mut shelf = Shelf::new(&std::env::temp_dir()).unwrap();
        let _ = shelf.put("text.weight", &tensor(10)).unwrap();
        shelf.file.write_all_at(&[1], 5).unwrap();
        let error = shelf.read("text.weight").unwrap_err().to_string();
        assert!(
            error.contains("text.weight") && error.contains("came back wrong"),
            "{error}"
        );
        shelf.file.set_len(3).unwrap();
        assert!(shelf.read("text.weight").is_err());
        assert_eq!(shelf.len(), 1);
    }
}
