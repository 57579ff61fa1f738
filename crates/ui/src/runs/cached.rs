//! What was read of files, kept while they stay the same: a page asks for all of them every second.

use std::collections::HashMap;
use std::fs::File;
use std::hash::Hash;
use std::io;
use std::sync::{Mutex, PoisonError};
use std::time::SystemTime;

use super::identity;

/// How many files are remembered; if there are more, all are read again.
const MAX_FILES: usize = 5000;

/// A file as it was read: its inode, its length and when it was written.
type Stamp = (u64, u64, Option<SystemTime>);

/// Values by what they belong to, each with the file that it was read from.
#[derive(Debug)]
pub(crate) struct Cached<K, V>(Mutex<HashMap<K, (Stamp, V)>>);

impl<K, V> Default for Cached<K, V> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<K: Eq + Hash, V: Clone> Cached<K, V> {
    /// The value of `file`. `read` gets that of the same file when it was shorter, if it is known.
    ///
    /// # Errors
    /// Those of `read`.
    pub(crate) fn get(
        &self,
        key: K,
        file: &mut File,
        read: impl FnOnce(&mut File, Option<V>) -> io::Result<V>,
    ) -> io::Result<V> {
        let metadata = file.metadata()?;
        let stamp: Stamp = (
            identity(&metadata),
            metadata.len(),
            metadata.modified().ok(),
        );
        let lock = || self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let known = lock().get(&key).cloned();
        let before = match known {
            Some((known, value)) if known == stamp => return Ok(value),
            Some((known, value)) if known.0 == stamp.0 && known.1 < stamp.1 => Some(value),
            _ => None,
        };
        let value = read(file, before)?;
        let mut all = lock();
        if all.len() >= MAX_FILES {
            all.clear();
        }
        all.insert(key, (stamp, value.clone()));
        Ok(value)
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Write as _};

    use super::*;

    #[test]
    fn a_file_is_read_again_only_once_it_has_changed() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("a");
        let cached = Cached::default();
        let mut readings = Vec::new();
        let mut get = || {
            let mut file = File::open(&path).unwrap();
            let read = |file: &mut File, before: Option<String>| {
                readings.push(before);
                let mut text = String::new();
                file.read_to_string(&mut text)?;
                Ok(text)
            };
            cached.get("a", &mut file, read).unwrap()
        };
        std::fs::write(&path, "one").unwrap();
        assert_eq!([get(), get()], ["one", "one"]);
        let mut file = File::options().append(true).open(&path).unwrap();
        file.write_all(b", two").unwrap();
        assert_eq!([get(), get()], ["one, two", "one, two"]);
        std::fs::write(place.path().join("b"), "another").unwrap();
        std::fs::rename(place.path().join("b"), &path).unwrap();
        assert_eq!(get(), "another");
        assert_eq!(readings, [None, Some("one".to_owned()), None]);
    }
}
