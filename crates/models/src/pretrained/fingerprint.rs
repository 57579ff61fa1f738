//! Identifies the weights of a model without reading all of a large one.

use std::fs::File;

use platform::files::FileExt as _;
use sha2::{Digest, Sha256};

use crate::Error;
use crate::formats::TensorSource;

/// Up to this total size, files are read completely.
const WHOLE: u64 = 512 << 20;
/// Of larger files, this much of the beginning is read: names, types and shapes of the tensors.
const BEGINNING: u64 = 16 << 20;
/// Bytes per sample.
const WINDOW: u64 = 64 << 10;
/// Number of samples over all files, after their beginnings.
const WINDOWS: u64 = 8192;

/// A hexadecimal fingerprint that differs for different weights.
///
/// It covers the size of every weight file and its bytes: all of them if the files have 512 MiB or less in
/// total, otherwise the first 16 MiB and the end of each, and 64 KiB at each of 8192 evenly spaced places.
/// For a model of 14 GB that is a sample every 1.7 MiB, about half a gigabyte of reading: every larger tensor
/// is sampled, but a change to a few values between the samples is missed. Names of files and folders do not
/// count; how the weights are divided into files does.
pub fn fingerprint(tensors: &dyn TensorSource) -> Result<String, Error> {
    let files = tensors.weight_files().into_iter();
    let files = files.map(|path| {
        let file = File::open(&path).map_err(|error| Error::io("read", &path, error))?;
        let size = file
            .metadata()
            .map_err(|error| Error::io("read", &path, error))?;
        Ok((path, file, size.len()))
    });
    let files = files.collect::<Result<Vec<_>, Error>>()?;
    let total: u64 = files.iter().map(|(_, _, size)| size).sum();
    let mut hash = Sha256::new();
    let mut buffer = vec![0; WINDOW as usize];
    for (path, file, size) in &files {
        hash.update(size.to_le_bytes());
        for (start, length) in windows(*size, total) {
            let bytes = &mut buffer[..length as usize];
            file.read_exact_at(bytes, start)
                .map_err(|error| Error::io("read", path, error))?;
            hash.update(crc32c::crc32c(bytes).to_le_bytes());
        }
    }
    let digest = hash.finalize();
    let digest = digest.iter().take(16);
    Ok(digest.map(|byte| format!("{byte:02x}")).collect())
}

/// Offset and length of the parts to read of a file of `size` bytes, with `total` bytes in all files.
fn windows(size: u64, total: u64) -> impl Iterator<Item = (u64, u64)> {
    let stride = match total <= WHOLE {
        true => WINDOW,
        false => (total / WINDOWS).max(WINDOW),
    };
    let mut next = Some(0);
    std::iter::from_fn(move || {
        let start = next.filter(|start| *start < size)?;
        let length = WINDOW.min(size - start);
        let end = start + length;
        next = match end {
            end if end == size => None,
            end if end < BEGINNING => Some(end),
            // The last bytes, wherever the stride ends.
            _ => Some((start + stride).min(size.saturating_sub(WINDOW)).max(end)),
        };
        Some((start, length))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_files_are_read_whole_and_large_ones_at_their_ends_and_in_between() {
        for size in [0, 1, WINDOW, WINDOW + 1, BEGINNING + 5, WHOLE] {
            let mut end = 0;
            for (start, length) in windows(size, WHOLE) {
                assert_eq!(start, end, "{size}");
                end += length;
            }
            assert_eq!(end, size);
        }
        let size = 14_000_000_000;
        let read: Vec<_> = windows(size, size).collect();
        assert_eq!(read[0], (0, WINDOW));
        assert_eq!(read.last(), Some(&(size - WINDOW, WINDOW)));
        let bytes: u64 = read.iter().map(|(_, length)| length).sum();
        assert!((WHOLE..WHOLE + 2 * BEGINNING).contains(&bytes), "{bytes}");
        let widest = read.windows(2).map(|pair| pair[1].0 - pair[0].0).max();
        assert!(widest.unwrap() < 1_710_000 && read.is_sorted());
    }

    /// Files that are identified by their content.
    struct Files(Vec<std::path::PathBuf>);

    impl TensorSource for Files {
        fn path(&self) -> &std::path::Path {
            &self.0[0]
        }

        fn names(&self) -> Vec<String> {
            Vec::new()
        }

        fn shape(&self, _: &str) -> Option<Vec<i64>> {
            None
        }

        fn read(&self, name: &str, _: tch::Kind) -> Result<tch::Tensor, Error> {
            Err(Error::Internal(name.to_owned()))
        }

        fn weight_files(&self) -> Vec<std::path::PathBuf> {
            self.0.clone()
        }
    }

    #[test]
    fn any_byte_of_a_small_file_counts_and_its_name_does_not() {
        let folder = tempfile::tempdir().unwrap();
        let write = |name: &str, bytes: &[u8]| {
            let path = folder.path().join(name);
            std::fs::write(&path, bytes).unwrap();
            path
        };
        let mut bytes = vec![7; 200_000];
        let of = |paths: &[std::path::PathBuf]| fingerprint(&Files(paths.to_vec())).unwrap();
        let one = of(&[write("a", &bytes)]);
        assert_eq!(one, of(&[write("b", &bytes)]));
        assert_ne!(
            one,
            of(&[write("c", &bytes[..100_000]), write("d", &bytes[100_000..])])
        );
        for place in [0, 65_536, 131_071, 199_999] {
            bytes[place] ^= 1;
            assert_ne!(one, of(&[write("e", &bytes)]), "{place}");
            bytes[place] ^= 1;
        }
    }
}
