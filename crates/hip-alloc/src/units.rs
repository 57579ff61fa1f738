//! Newtypes and constants for quantities that are easily mixed up.

use std::fmt;

/// One KiB, MiB, GiB in bytes.
pub const KIB: u64 = 1 << 10;
/// One MiB in bytes.
pub const MIB: u64 = 1 << 20;
/// One GiB in bytes.
pub const GIB: u64 = 1 << 30;

/// A device by the program's numbering: the accelerator's index, or the host.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct DeviceIndex(pub i32);

impl DeviceIndex {
    /// Host memory: PyTorch's CPU allocator. `HIP_ALLOC_HOST` in the header.
    pub const HOST: DeviceIndex = DeviceIndex(-1);
}

impl fmt::Display for DeviceIndex {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            DeviceIndex::HOST => f.write_str("host"),
            DeviceIndex(index) => write!(f, "device {index}"),
        }
    }
}

/// A stream of the runtime: the bits of a `hipStream_t`. Zero is the
/// default stream.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct StreamId(pub u64);

impl StreamId {
    /// The default stream, which is also the only one of the host.
    pub const DEFAULT: StreamId = StreamId(0);

    /// Whether it is one of the default streams of HIP and CUDA, which no program destroys: the null stream,
    /// and the handles 1 and 2 for the legacy one and that of each thread.
    pub(crate) fn is_the_runtimes(self) -> bool {
        self.0 <= 2
    }
}

/// The id of a private pool: PyTorch's `MempoolId_t`. Two zeros mean no pool.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PoolId {
    /// Numbers the pools of graphs.
    pub first: u64,
    /// Numbers the pools that programs create.
    pub second: u64,
}

/// `value` rounded up to a multiple of `step`, a power of two; `None` beyond 64 bits.
pub(crate) fn round_up(value: u64, step: u64) -> Option<u64> {
    debug_assert!(step.is_power_of_two());
    Some(value.checked_add(step - 1)? & !(step - 1))
}
