//! A tensor in host memory, and its bytes.

use std::ptr::NonNull;

use platform::Bytes;
use tch::{Device, Tensor};
use torch_ext::{Error, threads};

use super::elements::size_in_bytes;
use crate::transfer::checksum::{Checksum, Workers};

/// A tensor in host memory that is to be moved to the device. Detached from autograd.
#[derive(Debug)]
pub struct HostTensor(pub(super) Tensor);

impl HostTensor {
    /// The tensor as the source of a move.
    pub fn new(tensor: &Tensor) -> Result<Self, Error> {
        let tensor = tensor.f_detach()?;
        if tensor.device() != Device::Cpu || tensor.is_sparse() {
            return Err(Error::InvalidArgument(format!(
                "only dense tensors on the CPU can be placed; this one is on {:?}",
                tensor.device()
            )));
        }
        Ok(Self(tensor))
    }

    /// The tensor itself.
    pub fn into_tensor(self) -> Tensor {
        self.0
    }

    /// Its size in bytes without gaps.
    pub(super) fn size(&self) -> Bytes {
        Bytes(size_in_bytes(&self.0))
    }

    /// A reference to the tensor.
    pub(crate) fn tensor(&self) -> &Tensor {
        &self.0
    }

    /// Address and length of its bytes.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] unless they are contiguous in host memory: an expanded tensor has fewer, and
    /// a strided view has bytes of other elements in between.
    fn place(&self) -> Result<(NonNull<u8>, usize), Error> {
        if self.0.device() != Device::Cpu || self.0.is_sparse() || !self.0.is_contiguous() {
            return Err(Error::InvalidArgument(format!(
                "only a contiguous tensor in host memory has its bytes in one piece; this one is on \
                 {:?}, of shape {:?} and strides {:?}",
                self.0.device(),
                self.0.size(),
                self.0.stride(),
            )));
        }
        let bytes = size_in_bytes(&self.0) as usize;
        Ok(match NonNull::new(self.0.data_ptr().cast::<u8>()) {
            Some(start) => (start, bytes),
            None => (NonNull::dangling(), 0),
        })
    }

    /// The bytes of a contiguous tensor.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for one that is not.
    pub(crate) fn bytes(&self) -> Result<&[u8], Error> {
        let (start, bytes) = self.place()?;
        // SAFETY: a dense, contiguous CPU tensor of this many bytes from `start` (`place` looked), kept
        // alive by `self`. Any byte is a valid u8. As with every read of a tensor,
        // nobody may write to its storage from another thread meanwhile: the tensors
        // of a move belong to the caller of the move.
        Ok(unsafe { std::slice::from_raw_parts(start.as_ptr(), bytes) })
    }

    /// Copies the bytes of another tensor of this size, and sums both sides on the way.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] where one of the two is not contiguous, or of another size.
    pub(crate) fn fill_from(&mut self, source: &HostTensor) -> Result<(Checksum, Checksum), Error> {
        let (from, to) = (source.bytes()?, self.bytes_mut()?);
        if from.len() != to.len() {
            return Err(Error::InvalidArgument(format!(
                "{} bytes do not fit into {}",
                from.len(),
                to.len()
            )));
        }
        let copy = |from: &[u8], to: &mut [u8]| to.copy_from_slice(from);
        Ok(Checksum::of_copy(from, to, &TorchThreads, copy))
    }

    /// The same bytes, to be written.
    pub(crate) fn bytes_mut(&mut self) -> Result<&mut [u8], Error> {
        let (start, bytes) = self.place()?;
        // SAFETY: as in `bytes`. It is called for tensors that were just made (which includes
        // the fault matrix's damaged ones), and for slots of a ring between two blocks: nobody
        // reads or writes there meanwhile, and no reference to these bytes is kept anywhere,
        // since tensors hold plain pointers.
        Ok(unsafe { std::slice::from_raw_parts_mut(start.as_ptr(), bytes) })
    }
}

/// The threads that a copy of libtorch's on the CPU is shared by, so that verified copies have no others.
struct TorchThreads;

impl Workers for TorchThreads {
    fn count(&self) -> usize {
        threads::count().unwrap_or(1)
    }

    fn each(&self, shares: usize, work: &(dyn Fn(usize) + Sync)) {
        // Without threads the caller does it alone.
        let _ = threads::in_shares(shares, 1, |share| share.for_each(work));
    }
}
