//! Tensor file formats: safetensors and GGUF.

pub mod gguf;
mod safetensors;
mod shards;

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU64, Ordering};

use platform::files::FileExt as _;
use platform::memory::HostMemory;
use tch::{Kind, Tensor};

pub use self::gguf::Gguf;
pub use self::safetensors::{
    LazyTensor, SafetensorsFile, write_safetensors, write_safetensors_with, write_tensors,
};
pub use self::shards::Shards;
use crate::Error;
use crate::quant::Mxfp4;

/// Named tensors that can be read one at a time.
pub trait TensorSource {
    /// The file or folder, for messages.
    fn path(&self) -> &Path;

    /// The files that contain the tensors.
    fn weight_files(&self) -> Vec<PathBuf> {
        vec![self.path().to_owned()]
    }

    /// All names, sorted.
    fn names(&self) -> Vec<String>;

    /// Shape of the tensor `name`; `None` if there is none.
    fn shape(&self, name: &str) -> Option<Vec<i64>>;

    /// The type in which the tensor `name` is stored, if it is known and one of libtorch.
    fn kind(&self, _name: &str) -> Option<Kind> {
        None
    }

    /// Reads one tensor into host memory as `kind`.
    fn read(&self, name: &str, kind: Kind) -> Result<Tensor, Error>;

    /// Reads element `index` of the first dimension of a tensor.
    fn read_element(&self, name: &str, index: i64, kind: Kind) -> Result<Tensor, Error> {
        Ok(self.read(name, kind)?.f_get(index)?)
    }

    /// Whether the tensor `name` is stored in MXFP4.
    fn is_mxfp4(&self, _name: &str) -> bool {
        false
    }

    /// Reads such a tensor as it is stored, into host memory.
    ///
    /// # Errors
    /// If it is not one, or cannot be read.
    fn read_mxfp4(&self, name: &str) -> Result<Mxfp4, Error> {
        Err(Error::Internal(format!("`{name}` is not in MXFP4")))
    }
}

/// Fails if `tensor` has NaN or infinite values, since every result would be NaN.
pub(crate) fn require_finite(
    tensors: &dyn TensorSource,
    name: &str,
    tensor: &Tensor,
) -> Result<(), Error> {
    // One pass without a mask tensor. Finite values can only overflow the fp32 sum if they are far larger
    // than any weight; the slow path below then decides.
    let sum = tensor.f_sum(Kind::Float)?.f_double_value(&[])?;
    if sum.is_finite() {
        return Ok(());
    }
    let finite = tensor
        .f_isfinite()?
        .f_sum(Kind::Int64)?
        .f_int64_value(&[])?;
    let bad = tensor.numel() as i64 - finite;
    if bad == 0 {
        return Ok(());
    }
    Err(Error::NotFinite {
        path: tensors.path().to_owned(),
        tensor: name.to_owned(),
        bad,
        of: tensor.numel() as i64,
    })
}

/// Fills `bytes` with the weights at `offset`.
///
/// Weights are read once. A quarter of the memory that was available may stay in the page cache, so that the next start of a
/// small model is quick; what is read beyond that leaves it at once, since it would displace the files of other programs.
fn read_weights(file: &File, bytes: &mut [u8], offset: u64) -> io::Result<()> {
    static READ: AtomicU64 = AtomicU64::new(0);
    static KEPT: LazyLock<u64> = LazyLock::new(|| {
        let memory = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
        let available = HostMemory::parse(&memory).available;
        available.map_or(u64::MAX, |available| available.0 / 4)
    });
    let length = bytes.len() as u64;
    let before = READ.fetch_add(length, Ordering::Relaxed);
    read_and_keep(file, bytes, offset, before + length <= *KEPT)
}

/// Reads; whether the pages stay in the page cache is only advice to the kernel, and Windows takes none.
fn read_and_keep(file: &File, bytes: &mut [u8], offset: u64, keep: bool) -> io::Result<()> {
    file.read_exact_at(bytes, offset)?;
    #[cfg(unix)]
    if !keep {
        use rustix::fs::{Advice, fadvise};
        // Pages leave in groups, the largest of 2 MiB: with this range goes the one that the last range ended in.
        let start = offset & !((2 << 20) - 1);
        let length = std::num::NonZeroU64::new(offset - start + bytes.len() as u64);
        let _ = length.map(|length| fadvise(file, start, Some(length), Advice::DontNeed));
    }
    #[cfg(not(unix))]
    let _ = keep;
    Ok(())
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use rustix::io::{Errno, ReadWriteFlags, preadv2};

    use super::*;

    /// Whether the page at `offset` can be read without a disk; `None` where the file system cannot tell.
    fn is_cached(file: &File, offset: u64) -> Option<bool> {
        let mut byte = [0];
        let mut buffers = [io::IoSliceMut::new(&mut byte)];
        match preadv2(file, &mut buffers, offset, ReadWriteFlags::NOWAIT) {
            Ok(_) => Some(true),
            Err(Errno::AGAIN) => Some(false),
            Err(_) => None,
        }
    }

    #[test]
    fn weights_stay_in_the_page_cache_only_if_they_shall() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("weights");
        let written: Vec<u8> = (0..6u32 << 20).map(|index| (index >> 8) as u8).collect();
        std::fs::write(&path, &written).unwrap();
        let file = File::open(&path).unwrap();
        file.sync_all().unwrap();
        let mut bytes = vec![0; (2 << 20) - 100];
        for keep in [true, false] {
            for offset in [100, 2 << 20] {
                read_and_keep(&file, &mut bytes, offset, keep).unwrap();
                assert_eq!(bytes, written[offset as usize..][..bytes.len()]);
            }
            let cached = is_cached(&file, 1 << 20);
            assert!(cached.is_none_or(|cached| cached == keep), "{keep}");
        }
        // What was not read is left alone.
        assert_ne!(is_cached(&file, 5 << 20), Some(false));
    }
}
