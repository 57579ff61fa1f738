//! What the engine needs from a device.
//!
//! The [`TransferEngine`](crate::TransferEngine) decides which strategy to try; a [`Transport`] carries it out. The real one works on
//! tensors (`torch_transport`), the one in [`crate::testing::fake`] on plain bytes with faults to order. The
//! decisions are the same, so what the fault matrix shows of the fake holds for the other.
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

/// One device that tensors are moved to.
///
/// Every method may be asked at any time; none may panic. A copy may be asynchronous: the engine calls
/// [`synchronize`](Transport::synchronize) before it trusts what arrived, and keeps the source alive
/// until then.
pub trait Transport {
    /// A tensor in host memory. Cheap to hold; dropping it frees what the transport made for it.
    type Host;
    /// A tensor on the device. Dropping it frees the memory, so the engine never drops one that a
    /// pending copy may still write to: it is handed to [`abandon`](Transport::abandon) instead.
    type Remote;

    /// The device's name in messages (`hip:0`) and what it can do.
    fn facts(&self) -> DeviceFacts;

    /// What the engine must know of a source before it chooses a route.
    fn source(&self, host: &Self::Host) -> SourceFacts;

    /// The same values without gaps, in row-major order; the same memory when they are so already.
    fn contiguous(&mut self, host: &Self::Host) -> Result<Self::Host, TransportError>;

    /// The checksum of a contiguous host tensor: [`Checksum::of`] its bytes.
    fn sum_host(&mut self, host: &Self::Host) -> Result<Checksum, TransportError>;

    /// A copy in pinned (page-locked) memory that belongs to this move alone.
    fn stage(&mut self, host: &Self::Host) -> Result<Self::Host, TransportError>;

    /// The tensor converted on the host.
    fn cast_on_host(
        &mut self,
        host: &Self::Host,
        to: Element,
    ) -> Result<Self::Host, TransportError>;

    /// Starts moving a contiguous tensor to the device. May return before the bytes have arrived.
    fn copy(
        &mut self,
        host: &Self::Host,
        method: CopyMethod,
    ) -> Result<Self::Remote, TransportError>;

    /// The same, and the checksum of what was sent: for an arrival that will be verified.
    ///
    /// The default sums the source first. A transport that overrides this sums each byte before its copy is
    /// started, or reads both within one small piece: a source that somebody changes in between shows. One that
    /// changes before its bytes are read at all is, for the engine, simply the source.
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

    /// Starts moving several contiguous tensors by [`CopyMethod::Direct`], in their order, and sums those of which
    /// it is said, as [`copy_with_checksum`](Transport::copy_with_checksum) does. The answers are in the same order.
    ///
    /// The default moves one after the other. A transport that overrides this lets the device sum one tensor while
    /// the next one is copied, and brings all its sums back at once.
    fn copy_together(
        &mut self,
        loads: &[(&Self::Host, bool)],
    ) -> Vec<Result<ChecksummedCopy<Self::Remote>, TransportError>> {
        one_by_one(self, loads)
    }

    /// Waits until the work is done, for as long as the transport's own deadline allows.
    ///
    /// # Errors
    /// [`TransportError::TimedOut`] past the deadline; an error of an earlier asynchronous copy surfaces
    /// here too.
    fn synchronize(&mut self, scope: SyncScope) -> Result<(), TransportError>;

    /// The checksum computed by the device itself, or `None` where it cannot compute one.
    ///
    /// This is stronger than reading back: a device that reads its memory wrongly, and copies it back
    /// rightly, is known (a card in a chipset slot read NaN where the copy back was clean).
    fn sum_device(&mut self, remote: &Self::Remote) -> Result<Option<Checksum>, TransportError>;

    /// The size of a tensor on the device.
    fn remote_bytes(&self, remote: &Self::Remote) -> Bytes;

    /// The bytes copied back to fresh host memory, complete on return.
    fn read_back(&mut self, remote: &Self::Remote) -> Result<Self::Host, TransportError>;

    /// The tensor converted by the device. The source stays as it is.
    fn cast_on_device(
        &mut self,
        remote: &Self::Remote,
        to: Element,
    ) -> Result<Self::Remote, TransportError>;

    /// Hands cached memory back to the driver; the bytes that were given back.
    fn trim(&mut self) -> Result<Bytes, TransportError>;

    /// Takes what a stuck operation may still write to or read from, or what a lost context owned. None of
    /// this memory may be used or freed again: the process is about to end with an error.
    fn abandon(&mut self, remotes: Vec<Self::Remote>, sources: Vec<Self::Host>);
}

/// What [`Transport::copy_together`] does where nothing is gained by it.
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

/// A copy that was started, with the checksum of its source.
#[derive(Debug)]
pub struct ChecksummedCopy<Remote> {
    /// Where the bytes arrive.
    pub remote: Remote,
    /// What was sent, if that was to be summed.
    pub sent: Option<Checksum>,
    /// What is there, when it could be summed on the way. Then the copy is complete: nothing is left to wait for.
    pub arrived: Option<Checksum>,
}

/// How the bytes of one copy travel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CopyMethod {
    /// One copy on the current stream.
    Direct,
    /// Through a small pinned buffer, one piece after the other, each complete before the next.
    Chunked {
        /// The size of a piece.
        chunk: Bytes,
    },
    /// One copy on a stream of its own.
    OtherStream,
    /// No copy: the host memory is registered with the device, and the result is another view of it.
    /// The transport keeps the source alive for as long as the result lives.
    ZeroCopy,
}

/// What [`Transport::synchronize`] waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SyncScope {
    /// The current stream.
    Stream,
    /// Everything the device was given, on every stream.
    Device,
}

/// What a device is and can do.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct DeviceFacts {
    /// As messages name it: `hip:0`, `cpu`.
    pub name: String,
    /// The device and the CPU share one memory (an APU).
    pub unified_memory: bool,
    /// Host memory can be registered with the device ([`CopyMethod::ZeroCopy`]).
    pub zero_copy: bool,
    /// Page-locked staging buffers can be had.
    pub pinned_memory: bool,
    /// There is more than one stream.
    pub other_streams: bool,
}

/// What the source of a move is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SourceFacts {
    /// Its size without gaps.
    pub bytes: Bytes,
    /// Its element type.
    pub element: Element,
    /// Where its bytes live.
    pub origin: Origin,
}

/// Where the bytes of a source live.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Origin {
    /// Pageable host memory.
    Memory,
    /// Page-locked (pinned) host memory.
    Pinned,
    /// Pages of a mapped file. A device copy straight from them hangs on some APUs
    /// (ROCm/legacy-rocm-build issue 6182), so that the engine reads them into staging first.
    MappedFile,
}

/// The type of one element, by its name in safetensors files.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[allow(missing_docs)] // The names say it.
pub enum Element {
    Bool,
    U8,
    I8,
    I16,
    I32,
    I64,
    F8E4M3,
    F8E5M2,
    /// As data-centre cards of AMD before the OCP formats have it: no infinities, one zero.
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

/// Why a transport could not do what it was asked, by what it means for the next attempt.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TransportError {
    /// The operation was refused and nothing else happened: another way may work.
    #[error("{operation} was refused: {message}")]
    Refused {
        /// What was asked.
        operation: Operation,
        /// The device's own words.
        message: String,
    },
    /// There was not enough memory; the context is sane.
    #[error("{operation} ran out of {pool} memory: {message}")]
    OutOfMemory {
        /// What was asked.
        operation: Operation,
        /// Which memory is full.
        pool: Pool,
        /// The device's own words.
        message: String,
    },
    /// The operation did not end in time and may still be running.
    #[error("{operation} did not end within {after:?}")]
    TimedOut {
        /// What was asked.
        operation: Operation,
        /// How long it was waited for.
        after: Duration,
    },
    /// The context is unusable: everything on the device is lost, and trying on would corrupt the run.
    #[error("{operation} left the device unusable: {message}")]
    ContextLost {
        /// What was asked.
        operation: Operation,
        /// The device's own words.
        message: String,
    },
}

/// The same in libtorch's words: what hangs is as lost as what failed.
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

/// Which memory an allocation wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Pool {
    /// Memory of the device.
    Device,
    /// Page-locked host memory.
    Pinned,
    /// Ordinary host memory.
    Host,
}

/// One operation a transport was asked for, as messages name it.
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
