//! A transport whose copies of a block go to one slot, from where the block is kept.

use std::sync::mpsc::RecvTimeoutError;
use std::time::Duration;

use tch::Tensor;

use super::block_store::Reader;
use crate::transfer::checksum::Checksum;
use crate::transfer::torch_transport::{HostTensor, TorchTransport, size_in_bytes};
use crate::transfer::transport::{
    CopyMethod, DeviceFacts, Element, Operation, Origin, SourceFacts, SyncScope, Transport,
    TransportError,
};
use platform::Bytes;

/// The device of a [`State`](super::state::State), as the engine sees it while one block is copied.
pub(super) struct SlotTransport<'a> {
    pub(super) inner: &'a mut TorchTransport,
    /// The part of the slot that the block occupies.
    pub(super) slot: Tensor,
    /// Where the block is kept, if not in host memory: each copy reads it again.
    pub(super) file: Option<(&'a Reader, u64)>,
    /// Whether the file is read directly into the slot.
    pub(super) in_place: bool,
    /// The checksum of the block when it was stored.
    pub(super) sum: Option<&'a Checksum>,
    /// Time limit for reading the file.
    pub(super) deadline: Duration,
    #[cfg(test)]
    pub(super) fault: &'a mut Option<super::state::Fault>,
}

impl SlotTransport<'_> {
    fn read_again(&self, into: &HostTensor) -> Result<(), TransportError> {
        let Some((reader, at)) = self.file else {
            return Ok(());
        };
        let refused = |message| TransportError::Refused {
            operation: Operation::Copy,
            message,
        };
        let into = HostTensor::new(into.tensor());
        let result = into.and_then(|into| reader.read(into, at, None));
        let result = result.map_err(|error| refused(error.to_string()))?;
        match result.recv_timeout(self.deadline) {
            Ok(read) => read
                .outcome
                .map_err(|error| refused(format!("its file cannot be read: {error}"))),
            // The thread may still write to the slot, so no more blocks can be swapped.
            Err(error) => Err(TransportError::ContextLost {
                operation: Operation::Copy,
                message: match error {
                    RecvTimeoutError::Timeout => {
                        format!("reading its file took longer than {:?}", self.deadline)
                    }
                    RecvTimeoutError::Disconnected => {
                        "the thread that reads blocks has exited".into()
                    }
                },
            }),
        }
    }
}

impl Transport for SlotTransport<'_> {
    type Host = HostTensor;
    type Remote = Tensor;

    fn facts(&self) -> DeviceFacts {
        let facts = self.inner.facts();
        DeviceFacts {
            // The block must be in its slot.
            zero_copy: false,
            // Data read from a file is already in its own buffer.
            pinned_memory: facts.pinned_memory && self.file.is_none(),
            ..facts
        }
    }

    fn source(&self, host: &HostTensor) -> SourceFacts {
        SourceFacts {
            bytes: Bytes(size_in_bytes(host.tensor())),
            element: Element::U8,
            origin: Origin::Pinned,
        }
    }

    fn contiguous(&mut self, host: &HostTensor) -> Result<HostTensor, TransportError> {
        self.inner.contiguous(host)
    }

    /// For a block in a file, the file is the source; its checksum is the one it was written with.
    fn sum_host(&mut self, host: &HostTensor) -> Result<Checksum, TransportError> {
        match (self.sum, self.file) {
            (Some(sum), Some(_)) => Ok(sum.clone()),
            _ => self.inner.sum_host(host),
        }
    }

    fn stage(&mut self, host: &HostTensor) -> Result<HostTensor, TransportError> {
        self.inner.stage(host)
    }

    fn cast_on_host(
        &mut self,
        host: &HostTensor,
        to: Element,
    ) -> Result<HostTensor, TransportError> {
        self.inner.cast_on_host(host, to)
    }

    fn copy(&mut self, host: &HostTensor, method: CopyMethod) -> Result<Tensor, TransportError> {
        self.read_again(host)?;
        let mut slot = self.slot.shallow_clone();
        if !self.in_place {
            slot = self.inner.copy_to(host, method, Some(slot))?;
        }
        #[cfg(test)]
        if let Some(fault) = self.fault {
            fault(&mut slot);
        }
        Ok(slot)
    }

    fn synchronize(&mut self, scope: SyncScope) -> Result<(), TransportError> {
        self.inner.synchronize(scope)
    }

    /// The compute stream, on which the checksum is computed, waits for the copy. After a read-back, the
    /// engine computes the checksum on the host.
    fn sum_device(&mut self, remote: &Tensor) -> Result<Option<Checksum>, TransportError> {
        self.inner.sum_device(remote)
    }

    fn remote_bytes(&self, remote: &Tensor) -> Bytes {
        self.inner.remote_bytes(remote)
    }

    fn read_back(&mut self, remote: &Tensor) -> Result<HostTensor, TransportError> {
        self.inner.read_back(remote)
    }

    fn cast_on_device(&mut self, remote: &Tensor, to: Element) -> Result<Tensor, TransportError> {
        self.inner.cast_on_device(remote, to)
    }

    fn trim(&mut self) -> Result<Bytes, TransportError> {
        self.inner.trim()
    }

    fn abandon(&mut self, remotes: Vec<Tensor>, sources: Vec<HostTensor>) {
        self.inner.abandon(remotes, sources);
    }
}
