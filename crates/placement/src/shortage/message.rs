//! What an out-of-memory message says.
//!
//! The type of an error is asked first, where there is one. Through a boundary that keeps only the text, both
//! spellings must be known: programs that look for `CUDA out of memory` do not notice that an AMD GPU is full.

use serde::Serialize;

use crate::bytes::Bytes;

/// What PyTorch, HIP, CUDA, the CPU allocator and C++ say when memory is full.
const SAID_WHEN_FULL: [&str; 9] = [
    "CUDA out of memory",
    "HIP out of memory",
    "CUDA error: out of memory",
    "HIP error: out of memory",
    "hipErrorOutOfMemory",
    "cudaErrorMemoryAllocation",
    "DefaultCPUAllocator: can't allocate memory",
    "DefaultCPUAllocator: not enough memory",
    "std::bad_alloc",
];

/// Whether a message says that memory is full, in whichever spelling.
pub fn is_out_of_memory(message: &str) -> bool {
    SAID_WHEN_FULL.iter().any(|said| message.contains(said))
}

/// The numbers of an out-of-memory message, as far as it has them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct MemoryNumbers {
    /// What was asked for.
    pub requested: Option<Bytes>,
    /// What the device said is free.
    pub free: Option<Bytes>,
    /// What it said it has.
    pub total: Option<Bytes>,
}

impl MemoryNumbers {
    /// Reads the first message of a text, in the wording since PyTorch 2.1 or the one before.
    pub fn from_message(text: &str) -> MemoryNumbers {
        let line = text
            .lines()
            .find(|line| line.contains("Tried to allocate"))
            .unwrap_or(text);
        let requested = size_after(line, "Tried to allocate ");
        let total = size_after(line, "total capacity of ")
            // As PyTorch spelled it for some releases.
            .or_else(|| size_after(line, "total capacty of "))
            .or_else(|| size_before(line, " total capacity"));
        let free = size_before(line, " is free").or_else(|| size_before(line, " free;"));
        // More free than there is: an unsigned number that went below zero (seen on APUs).
        let free = free.filter(|free| total.is_none_or(|total| *free <= total));
        MemoryNumbers {
            requested,
            free,
            total,
        }
    }
}

/// The size that follows a phrase: `Tried to allocate 2.00 GiB. …`.
fn size_after(text: &str, phrase: &str) -> Option<Bytes> {
    let rest = &text[text.find(phrase)? + phrase.len()..];
    let mut words = rest.split_whitespace();
    size(words.next()?, words.next()?)
}

/// The size that stands before a phrase: `… of which 0 bytes is free`.
fn size_before(text: &str, phrase: &str) -> Option<Bytes> {
    let mut words = text[..text.find(phrase)?].split_whitespace().rev();
    let unit = words.next()?;
    size(words.next()?, unit)
}

fn size(number: &str, unit: &str) -> Option<Bytes> {
    let unit = unit.trim_end_matches(['.', ',', ';', ')']);
    let unit = if unit == "bytes" { "B" } else { unit };
    format!("{}{unit}", number.trim_start_matches('('))
        .parse()
        .ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: fn(u64) -> Option<Bytes> = |count| Some(Bytes::mib(count));

    #[test]
    fn both_spellings_are_out_of_memory() {
        for message in [
            "CUDA out of memory. Tried to allocate 2.00 GiB.",
            "HIP out of memory. Tried to allocate 84.00 MiB.",
            "RuntimeError: HIP error: out of memory",
            "hipErrorOutOfMemory: out of memory (2)",
            "[enforce fail at alloc_cpu.cpp:117] DefaultCPUAllocator: can't allocate memory: you tried \
             to allocate 400000000000000 bytes.",
        ] {
            assert!(is_out_of_memory(message), "{message}");
        }
    }

    #[test]
    fn other_errors_are_not() {
        for message in [
            "HIP error: invalid device function",
            "Memory access fault by GPU node-1 on address 0x7f. Reason: Page not present.",
            "hipErrorLaunchFailure: unspecified launch failure",
            "index 5 is out of bounds for dimension 0 with size 5",
            "the memory of the device is not mapped",
        ] {
            assert!(!is_out_of_memory(message), "{message}");
        }
    }

    #[test]
    fn reads_the_wording_of_today() {
        let numbers = MemoryNumbers::from_message(
            "torch.cuda.OutOfMemoryError: HIP out of memory. Tried to allocate 84.00 MiB. GPU 0 has a \
             total capacity of 512.00 MiB of which 0 bytes is free. Of the allocated memory 103.83 MiB is \
             allocated by PyTorch, and 22.17 MiB is reserved by PyTorch but unallocated",
        );
        assert_eq!(numbers.requested, MIB(84));
        assert_eq!(numbers.total, MIB(512));
        assert_eq!(numbers.free, MIB(0));
    }

    #[test]
    fn reads_the_wording_of_before() {
        let numbers = MemoryNumbers::from_message(
            "CUDA out of memory. Tried to allocate 2.00 MiB (GPU 0; 512.00 MiB total capacity; 150.39 \
             MiB already allocated; 312.00 MiB free; 168.00 MiB reserved in total by PyTorch)",
        );
        assert_eq!(
            numbers,
            MemoryNumbers {
                requested: MIB(2),
                free: MIB(312),
                total: MIB(512)
            }
        );
    }

    #[test]
    fn a_free_number_beyond_the_total_is_no_number() {
        let numbers = MemoryNumbers::from_message(
            "HIP out of memory. Tried to allocate 288.00 MiB. GPU 0 has a total capacty of 512.00 MiB of \
             which 17179869184.00 GiB is free.",
        );
        assert_eq!(
            numbers,
            MemoryNumbers {
                requested: MIB(288),
                free: None,
                total: MIB(512)
            }
        );
    }

    #[test]
    fn a_message_without_numbers_has_none() {
        for message in [
            "",
            "HIP error: out of memory",
            "Tried to allocate",
            "Tried to allocate x y",
        ] {
            assert_eq!(
                MemoryNumbers::from_message(message),
                MemoryNumbers::default(),
                "{message}"
            );
        }
    }
}
