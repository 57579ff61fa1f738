//! A transport that refuses the strategies before the one under test, and configures the simulator's fault just before
//! the copy of that one.

use placement::checksum::Checksum;
use placement::torch_transport::{HostTensor, TorchTransport};
use placement::transport::{
    ChecksummedCopy, CopyMethod, DeviceFacts, Element, Operation, SourceFacts, SyncScope,
    Transport, TransportError,
};
use placement::{Bytes, TransferStrategy};
use tch::Tensor;

use crate::simulator;

/// A wrapper around the real transport.
pub(crate) struct Gate {
    pub(crate) inner: TorchTransport,
    first_open: TransferStrategy,
    fault: Option<String>,
    direct_copies: u32,
}

/// A host tensor, and which step of a strategy produced it.
pub(crate) struct Host(HostTensor, Provenance);

#[derive(Clone, Copy, PartialEq)]
enum Provenance {
    Caller,
    Stage,
}

impl Host {
    pub(crate) fn new(tensor: HostTensor) -> Host {
        Host(tensor, Provenance::Caller)
    }

    pub(crate) fn into_tensor(self) -> Tensor {
        self.0.into_tensor()
    }
}

impl Gate {
    pub(crate) fn new(inner: TorchTransport) -> Gate {
        Gate {
            inner,
            first_open: TransferStrategy::Direct,
            fault: None,
            direct_copies: 0,
        }
    }

    /// Starts a new move, in which the strategies before `first_open` are refused and the first copy gets the fault.
    pub(crate) fn begin(&mut self, first_open: TransferStrategy, fault: Option<String>) {
        self.first_open = first_open;
        self.fault = fault;
        self.direct_copies = 0;
    }

    /// Refuses a copy, or configures the fault and allows it.
    fn pass(&mut self, host: &Host, method: CopyMethod) -> Result<(), TransportError> {
        let route = match (method, host.1) {
            (CopyMethod::OtherStream, _) => TransferStrategy::OtherStream,
            (CopyMethod::ZeroCopy, _) => TransferStrategy::ZeroCopy,
            (CopyMethod::Chunked { .. }, _) => TransferStrategy::Chunked,
            (CopyMethod::Direct, Provenance::Stage) => TransferStrategy::Staged,
            (CopyMethod::Direct, Provenance::Caller) => {
                self.direct_copies += 1;
                match self.direct_copies {
                    1 => TransferStrategy::Direct,
                    _ => TransferStrategy::Retry,
                }
            }
        };
        let refused = |message: String| TransportError::Refused {
            operation: Operation::Copy,
            message,
        };
        if route < self.first_open {
            return Err(refused(format!("`{route}` is closed")));
        }
        match self.fault.take() {
            Some(fault) => simulator::configure(&fault).map_err(|error| refused(error.to_string())),
            None => Ok(()),
        }
    }
}

impl Transport for Gate {
    type Host = Host;
    type Remote = Tensor;

    fn facts(&self) -> DeviceFacts {
        self.inner.facts()
    }

    fn source(&self, host: &Host) -> SourceFacts {
        self.inner.source(&host.0)
    }

    fn contiguous(&mut self, host: &Host) -> Result<Host, TransportError> {
        Ok(Host(self.inner.contiguous(&host.0)?, host.1))
    }

    fn sum_host(&mut self, host: &Host) -> Result<Checksum, TransportError> {
        self.inner.sum_host(&host.0)
    }

    fn stage(&mut self, host: &Host) -> Result<Host, TransportError> {
        Ok(Host(self.inner.stage(&host.0)?, Provenance::Stage))
    }

    fn cast_on_host(&mut self, host: &Host, to: Element) -> Result<Host, TransportError> {
        Ok(Host(self.inner.cast_on_host(&host.0, to)?, host.1))
    }

    fn copy(&mut self, host: &Host, method: CopyMethod) -> Result<Tensor, TransportError> {
        self.pass(host, method)?;
        self.inner.copy(&host.0, method)
    }

    fn copy_with_checksum(
        &mut self,
        host: &Host,
        method: CopyMethod,
    ) -> Result<ChecksummedCopy<Tensor>, TransportError> {
        self.pass(host, method)?;
        self.inner.copy_with_checksum(&host.0, method)
    }

    fn copy_batched(
        &mut self,
        loads: &[(&Host, bool)],
    ) -> Vec<Result<ChecksummedCopy<Tensor>, TransportError>> {
        // All of them use the direct strategy, and a later direct copy belongs to the next strategy.
        let passed = match loads.first() {
            Some((first, _)) => self.pass(first, CopyMethod::Direct),
            None => Ok(()),
        };
        if let Err(error) = passed {
            return loads.iter().map(|_| Err(error.clone())).collect();
        }
        let loads: Vec<_> = loads.iter().map(|(host, sum)| (&host.0, *sum)).collect();
        self.inner.copy_batched(&loads)
    }

    fn synchronize(&mut self, scope: SyncScope) -> Result<(), TransportError> {
        self.inner.synchronize(scope)
    }

    fn sum_device(&mut self, remote: &Tensor) -> Result<Option<Checksum>, TransportError> {
        self.inner.sum_device(remote)
    }

    fn remote_bytes(&self, remote: &Tensor) -> Bytes {
        self.inner.remote_bytes(remote)
    }

    fn read_back(&mut self, remote: &Tensor) -> Result<Host, TransportError> {
        Ok(Host::new(self.inner.read_back(remote)?))
    }

    fn cast_on_device(&mut self, remote: &Tensor, to: Element) -> Result<Tensor, TransportError> {
        self.inner.cast_on_device(remote, to)
    }

    fn trim(&mut self) -> Result<Bytes, TransportError> {
        self.inner.trim()
    }

    fn abandon(&mut self, remotes: Vec<Tensor>, sources: Vec<Host>) {
        let sources = sources.into_iter().map(|host| host.0).collect();
        self.inner.abandon(remotes, sources);
    }
}
