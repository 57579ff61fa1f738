//! The faults, and their effect on bytes.

use std::fmt;

use crate::transfer::transport::{Operation, Pool};

/// A fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Fault {
    /// The tensor arrives as zeros (reported for gfx1201 and gfx1151).
    Zeros,
    /// Half of it arrives as NaN (reported for gfx1030).
    Nan,
    /// One bit is flipped.
    BitFlip,
    /// The copy ends early: the tail keeps the previous contents of the memory.
    Truncated,
    /// Nothing arrives: the memory keeps its previous contents.
    Stale,
    /// Two chunks arrive in each other's place.
    SwappedChunks,
    /// The copy completes only some time after the stream reported completion.
    LateCopy,
    /// The source buffer is written to before the copy has read it.
    MutatedSource,
    /// The copy is refused.
    Refused,
    /// This operation runs out of memory.
    OutOfMemory(Operation),
    /// The copy takes longer than any deadline, then completes.
    Stall,
    /// The copy never completes, and neither does anything after it on the device.
    Hang,
    /// The copy invalidates the context.
    ContextLost,
    /// The tensor arrives, but kernels on the device write zeros.
    CastZeros,
}

impl Fault {
    /// All faults.
    pub const ALL: [Fault; 20] = [
        Fault::Zeros,
        Fault::Nan,
        Fault::BitFlip,
        Fault::Truncated,
        Fault::Stale,
        Fault::SwappedChunks,
        Fault::LateCopy,
        Fault::MutatedSource,
        Fault::Refused,
        Fault::OutOfMemory(Operation::Contiguous),
        Fault::OutOfMemory(Operation::CastOnHost),
        Fault::OutOfMemory(Operation::Stage),
        Fault::OutOfMemory(Operation::Copy),
        Fault::OutOfMemory(Operation::SumDevice),
        Fault::OutOfMemory(Operation::ReadBack),
        Fault::OutOfMemory(Operation::CastOnDevice),
        Fault::Stall,
        Fault::Hang,
        Fault::ContextLost,
        Fault::CastZeros,
    ];

    /// The name in tables and JSON.
    pub fn name(self) -> &'static str {
        match self {
            Fault::Zeros => "zeros",
            Fault::Nan => "nan",
            Fault::BitFlip => "bit_flip",
            Fault::Truncated => "truncated",
            Fault::Stale => "stale",
            Fault::SwappedChunks => "swapped_chunks",
            Fault::LateCopy => "late_copy",
            Fault::MutatedSource => "mutated_source",
            Fault::Refused => "refused",
            Fault::OutOfMemory(operation) => match operation {
                Operation::Contiguous => "out_of_memory_contiguous",
                Operation::SumHost => "out_of_memory_sum_host",
                Operation::Stage => "out_of_memory_stage",
                Operation::CastOnHost => "out_of_memory_cast_on_host",
                Operation::Copy => "out_of_memory_copy",
                Operation::Synchronize => "out_of_memory_synchronize",
                Operation::SumDevice => "out_of_memory_sum_device",
                Operation::ReadBack => "out_of_memory_read_back",
                Operation::CastOnDevice => "out_of_memory_cast_on_device",
                Operation::Trim => "out_of_memory_trim",
            },
            Fault::Stall => "stall",
            Fault::Hang => "hang",
            Fault::ContextLost => "context_lost",
            Fault::CastZeros => "cast_zeros",
        }
    }

    /// Applies the fault to device memory after a copy of `sent`.
    pub(crate) fn apply(self, sent: &[u8], memory: &mut [u8]) {
        let length = sent.len();
        match self {
            Fault::Stale => {}
            Fault::Zeros => memory.fill(0),
            Fault::Truncated => {
                let arrived = length / 4 * 3;
                memory[..arrived].copy_from_slice(&sent[..arrived]);
            }
            Fault::Nan => {
                memory.copy_from_slice(sent);
                let (nans, _) = memory[length / 2..].as_chunks_mut::<4>();
                nans.fill(f32::NAN.to_le_bytes());
            }
            Fault::BitFlip => {
                memory.copy_from_slice(sent);
                // The sign bit of an element in the middle.
                if let Some(byte) = memory.get_mut(length / 2 / 4 * 4 + 3) {
                    *byte ^= 0x80;
                }
            }
            Fault::SwappedChunks => {
                memory.copy_from_slice(sent);
                let chunk = length / 4;
                let (front, back) = memory.split_at_mut(length / 2);
                front[..chunk].swap_with_slice(&mut back[..chunk]);
            }
            _ => memory.copy_from_slice(sent),
        }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.pad(self.name())
    }
}

/// The memory that an operation runs out of when it is made to.
pub(crate) fn pool_of(operation: Operation) -> Pool {
    match operation {
        Operation::Copy | Operation::SumDevice | Operation::CastOnDevice => Pool::Device,
        Operation::Stage => Pool::Pinned,
        _ => Pool::Host,
    }
}
