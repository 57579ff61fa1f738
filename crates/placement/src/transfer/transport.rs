//! What the engine needs from a device.
//!
//! The [`TransferEngine`](crate::TransferEngine) decides which strategy to try; a [`Transport`] carries it
//! out: with libtorch (`torch_transport`), and in tests with faults on the way (`testing`).
//!
//! ```text
//!   Host ──contiguous──▶ Host ──────────────copy──────────────▶ Remote ──cast_on_device──▶ Remote
//!                         ├──stage──▶ Host (pinned) ──copy──▶    │
//!                         └──cast_on_host──▶ Host ──copy──▶      ├──sum_device──▶ Checksum
//!                         │                                      └──read_back──▶ Host
//!                         └──sum_host──▶ Checksum
//! ```

use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::transfer::checksum::Checksum;
use platform::Bytes;

/// A device that tensors are moved to.
///
/// Methods may be called at any time, and none may panic. A copy may be asynchronous: the engine calls
/// [`synchronize`](Transport::synchronize) before it relies on the result, and keeps the source alive until
/// then.
pub trait Transport {
    /// A tensor in host memory. Cheap to hold; dropping it frees what the transport allocated for it.
    type Host;
    /// A tensor on the device. Dropping it frees its memory, so the engine never drops one that a pending
    /// copy may still write to: it passes it to [`abandon`](Transport::abandon) instead.
    type Remote;

    /// The device's name in messages (`hip:0`) and its capabilities.
    fn facts(&self) -> DeviceFacts;

    /// Properties of a source on which the choice of a strategy depends.
    fn source(&self, host: &Self::Host) -> SourceFacts;

    /// The same values, contiguous in row-major order; shares memory if they already are.
    fn contiguous(&mut self, host: &Self::Host) -> Result<Self::Host, TransportError>;

    /// The checksum of a contiguous host tensor: [`Checksum::of`] its bytes.
    fn sum_host(&mut self, host: &Self::Host) -> Result<Checksum, TransportError>;

    /// A copy in pinned (page-locked) memory for this move only.
    fn stage(&mut self, host: &Self::Host) -> Result<Self::Host, TransportError>;

    /// The tensor converted on the host.
    fn cast_on_host(
        &mut self,
        host: &Self::Host,
        to: Element,
    ) -> Result<Self::Host, TransportError>;

    /// Starts copying a contiguous tensor to the device. May return before the bytes have arrived.
    fn copy(
        &mut self,
        host: &Self::Host,
        method: CopyMethod,
    ) -> Result<Self::Remote, TransportError>;

    /// The same, with a checksum of the source, for a transfer that will be verified.
    ///
    /// The default computes the checksum first. A transport that overrides this checksums each byte before
    /// its copy is started, or reads both within one small piece, so that a change in between is detected.
    /// For the engine, a source that changes before its bytes are first read is simply the source.
    fn copy_with_checksum(
        &mut self,
        host: &Self::Host,
        method: CopyMethod,
    ) -> Result<ChecksummedCopy<Self::Remote>, TransportError> {
        let sent = self.sum_host(host)?;
        let remote = self.copy(host, method)?;
        Ok(ChecksummedCopy {
            remote,
            sent: Some(sent),
            arrived: None,
        })
    }

    /// Starts copying several contiguous tensors with [`CopyMethod::Direct`], in order, and computes
    /// checksums for the marked ones like [`copy_with_checksum`](Transport::copy_with_checksum). Results are
    /// in the same order.
    ///
    /// The default copies them one after the other. A transport that overrides this overlaps the checksum of
    /// one tensor with the copy of the next, and reads all checksums back at once.
    fn copy_batched(
        &mut self,
        loads: &[(&Self::Host, bool)],
    ) -> Vec<Result<ChecksummedCopy<Self::Remote>, TransportError>> {
        one_by_one(self, loads)
    }

    /// Waits until the work is done, up to the transport's own deadline.
    ///
    /// # Errors
    /// [`TransportError::TimedOut`] after the deadline. Errors of earlier asynchronous copies are also
    /// reported here.
    fn synchronize(&mut self, scope: SyncScope) -> Result<(), TransportError>;

    /// The checksum computed by the device itself, or `None` if it cannot compute one.
    ///
    /// This is stronger than reading back: there is a known device that reads its memory wrongly but copies
    /// it back correctly (a card in a chipset slot read NaN where the read-back was clean).
    fn sum_device(&mut self, remote: &Self::Remote) -> Result<Option<Checksum>, TransportError>;

    /// Size of a device tensor.
    fn remote_bytes(&self, remote: &Self::Remote) -> Bytes;

    /// Copies the bytes back to new host memory, complete on return.
    fn read_back(&mut self, remote: &Self::Remote) -> Result<Self::Host, TransportError>;

    /// The tensor converted on the device. The source is unchanged.
    fn cast_on_device(
        &mut self,
        remote: &Self::Remote,
        to: Element,
    ) -> Result<Self::Remote, TransportError>;

    /// Releases cached memory to the driver; returns the number of bytes.
    fn trim(&mut self) -> Result<Bytes, TransportError>;

    /// Takes what a stuck operation may still write to or read from, or what a lost context owned. None of
    /// this memory may be used or freed: the process is about to end with an error.
    fn abandon(&mut self, remotes: Vec<Self::Remote>, sources: Vec<Self::Host>);
}

/// [`Transport::copy_batched`] for transports that gain nothing from batching.
pub(crate) fn one_by_one<T: Transport + ?Sized>(
    transport: &mut T,
    loads: &[(&T::Host, bool)],
) -> Vec<Result<ChecksummedCopy<T::Remote>, TransportError>> {
    let move_one = |(host, summed): &(&T::Host, bool)| {
        if *summed {
            return transport.copy_with_checksum(host, CopyMethod::Direct);
        }
        let (sent, arrived) = (None, None);
        let remote = transport.copy(host, CopyMethod::Direct)?;
        Ok(ChecksummedCopy {
            remote,
            sent,
            arrived,
        })
    };
    loads.iter().map(move_one).collect()
}

/// A copy that was started, with its checksums.
#[derive(Debug)]
pub struct ChecksummedCopy<Remote> {
    /// The target.
    pub remote: Remote,
    /// Checksum of the source, if requested.
    pub sent: Option<Checksum>,
    /// Checksum of the target, if it was computed along with the copy. The copy is then complete.
    pub arrived: Option<Checksum>,
}

/// How a copy is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CopyMethod {
    /// One copy on the current stream.
    Direct,
    /// Through a small pinned buffer, chunk by chunk, waiting for each.
    Chunked {
        /// The chunk size.
        chunk: Bytes,
    },
    /// One copy on another stream.
    OtherStream,
    /// No copy: the host memory is registered with the device, and the result is a view of it. The transport
    /// keeps the source alive as long as the result.
    ZeroCopy,
}

/// What [`Transport::synchronize`] waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SyncScope {
    /// The current stream.
    Stream,
    /// Device memory.
    Device,
}

/// A device's properties and capabilities.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct DeviceFacts {
    /// The name in messages: `hip:0`, `cpu`.
    pub name: String,
    /// Whether device and CPU share memory (an APU).
    pub unified_memory: bool,
    /// Whether host memory can be registered with the device ([`CopyMethod::ZeroCopy`]).
    pub zero_copy: bool,
    /// Whether pinned staging buffers are available.
    pub pinned_memory: bool,
    /// Whether there is more than one stream.
    pub other_streams: bool,
}

/// Properties of the source of a move.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SourceFacts {
    /// Its size without gaps.
    pub bytes: Bytes,
    /// Its element type.
    pub element: Element,
    /// Where its bytes are.
    pub origin: Origin,
}

/// Where the bytes of a source are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Origin {
    /// Pageable host memory.
    Memory,
    /// Page-locked host memory.
    Pinned,
    /// Pages of a memory-mapped file. A device copy directly from them hangs on some APUs
    /// (ROCm/legacy-rocm-build issue 6182), so the engine stages them first.
    MappedFile,
}

/// An element type, by its name in safetensors files.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[allow(missing_docs)] // The names are self-explanatory.
pub enum Element {
    Bool,
    U8,
    I8,
    I16,
    I32,
    I64,
    F8E4M3,
    F8E5M2,
    /// AMD's data-centre format from before the OCP formats: no infinities, a single zero.
    F8E4M3Fnuz,
    F8E5M2Fnuz,
    F16,
    BF16,
    F32,
    F64,
    /// A pair of `F32`.
    C64,
    /// A pair of `F64`.
    C128,
}

impl Element {
    /// Bytes of one element.
    pub fn size(self) -> u64 {
        match self {
            Element::Bool
            | Element::U8
            | Element::I8
            | Element::F8E4M3
            | Element::F8E5M2
            | Element::F8E4M3Fnuz
            | Element::F8E5M2Fnuz => 1,
            Element::I16 | Element::F16 | Element::BF16 => 2,
            Element::I32 | Element::F32 => 4,
            Element::I64 | Element::F64 | Element::C64 => 8,
            Element::C128 => 16,
        }
    }
}

/// Why a transport failed, by what it means for the next attempt.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TransportError {
    /// The operation was refused without side effects: another strategy may work.
    #[error("{operation} was refused: {message}")]
    Refused {
        /// What was asked.
        operation: Operation,
        /// The device's own words.
        message: String,
    },
    /// There was not enough memory; the context is intact.
    #[error("{operation} ran out of {pool} memory: {message}")]
    OutOfMemory {
        /// What was asked.
        operation: Operation,
        /// Which memory is full.
        pool: Pool,
        /// The device's own words.
        message: String,
    },
    /// The operation missed its deadline and may still be running.
    #[error("{operation} did not end within {after:?}")]
    TimedOut {
        /// What was asked.
        operation: Operation,
        /// How long it was waited for.
        after: Duration,
    },
    /// The context is unusable: everything on the device is lost, and going on would corrupt the run.
    #[error("{operation} left the device unusable: {message}")]
    ContextLost {
        /// What was asked.
        operation: Operation,
        /// The device's own words.
        message: String,
    },
}

/// Converts to libtorch's errors: a hang counts as a lost context.
impl From<TransportError> for torch_ext::Error {
    fn from(error: TransportError) -> Self {
        let message = error.to_string();
        match error {
            TransportError::OutOfMemory { .. } => Self::OutOfMemory { message },
            TransportError::ContextLost { .. } | TransportError::TimedOut { .. } => {
                Self::DeviceLost { message }
            }
            TransportError::Refused { .. } => Self::Torch(message),
        }
    }
}

/// The memory that an allocation needed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Pool {
    /// Device memory.
    Device,
    /// Page-locked host memory.
    Pinned,
    /// Ordinary host memory.
    Host,
}

/// An operation of a transport, named in messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Operation {
    /// [`Transport::contiguous`]
    Contiguous,
    /// [`Transport::sum_host`]
    SumHost,
    /// [`Transport::stage`]
    Stage,
    /// [`Transport::cast_on_host`]
    CastOnHost,
    /// [`Transport::copy`]
    Copy,
    /// [`Transport::synchronize`]
    Synchronize,
    /// [`Transport::sum_device`]
    SumDevice,
    /// [`Transport::read_back`]
    ReadBack,
    /// [`Transport::cast_on_device`]
    CastOnDevice,
    /// [`Transport::trim`]
    Trim,
}

impl fmt::Display for Operation {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.pad(match self {
            Operation::Contiguous => "making the source contiguous",
            Operation::SumHost => "summing the source",
            Operation::Stage => "staging in pinned memory",
            Operation::CastOnHost => "casting on the host",
            Operation::Copy => "copying",
            Operation::Synchronize => "synchronising",
            Operation::SumDevice => "summing on the device",
            Operation::ReadBack => "reading back",
            Operation::CastOnDevice => "casting on the device",
            Operation::Trim => "trimming",
        })
    }
}

impl fmt::Display for Pool {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.pad(match self {
            Pool::Device => "device",
            Pool::Pinned => "pinned",
            Pool::Host => "host",
        })
    }
}
