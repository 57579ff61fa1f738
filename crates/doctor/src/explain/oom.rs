//! Out-of-memory messages: their numbers, and what the numbers mean.
//!
//! PyTorch's message ends with advice about fragmentation whatever the cause. On
//! consumer AMD hardware there is usually another cause: a capacity that is half of the
//! RAM (TTM's default), a capacity of 512 MiB (only the carve-out), a capacity that
//! the driver does not honour. The numbers distinguish them.

use super::context::Context;
use super::{Confidence, Hints, Match, clip};
use platform::Bytes;
use platform::memory::apu;
use platform::oom_message::OomNumbers;
use std::collections::BTreeMap;

/// The out-of-memory messages of a text, gathered line by line.
///
/// They are interpreted at the end, because what a log says later (that it is from Windows)
/// matters too; until then only their numbers are kept.
#[derive(Default)]
pub(super) struct Messages {
    open: Option<Open>,
    kept: Vec<Kept>,
}

/// A message whose end has not been seen: its lines may be wrapped.
struct Open {
    text: String,
    line: String,
    line_number: usize,
}

struct Kept {
    numbers: OomNumbers,
    line: String,
    line_number: usize,
    count: usize,
}

impl Messages {
    /// The longest message, wrapped or not.
    const LONGEST: usize = 1200;
    /// A program that catches the error and continues may have thousands; only different ones are kept.
    const DISTINCT: usize = 256;

    /// Adds a line.
    pub(super) fn read(&mut self, line: &str, line_number: usize) {
        let mut rest = line;
        while let Some(at) = start_of_message(rest) {
            self.extend(&rest[..at]);
            self.close();
            // The marker itself, so that the next search begins after it.
            let marker = rest[at..].find(' ').map_or(rest.len(), |end| at + end + 1);
            self.open = Some(Open {
                text: rest[at..marker].to_owned(),
                line: clip(line.trim(), 500).to_owned(),
                line_number,
            });
            rest = &rest[marker..];
        }
        self.extend(rest);
    }

    fn extend(&mut self, text: &str) {
        let Some(open) = &mut self.open else { return };
        open.text.push_str(text);
        open.text.push('\n');
        if open.text.len() >= Self::LONGEST {
            self.close();
        }
    }

    fn close(&mut self) {
        let Some(open) = self.open.take() else { return };
        let numbers = OomNumbers::from_message(clip(&open.text, Self::LONGEST));
        if let Some(known) = self.kept.iter_mut().find(|known| known.numbers == numbers) {
            known.count += 1;
        } else if self.kept.len() < Self::DISTINCT {
            self.kept.push(Kept {
                numbers,
                line: open.line,
                line_number: open.line_number,
                count: 1,
            });
        } else if let Some(last) = self.kept.last_mut() {
            last.count += 1;
        }
    }

    /// All of them judged; one for each judgement.
    pub(super) fn finish(mut self, context: &Context, hints: Hints) -> Vec<Match> {
        self.close();
        let mut found: Vec<Match> = Vec::new();
        for kept in &self.kept {
            let mut judged = judge(&kept.numbers, context, hints, &kept.line, kept.line_number);
            judged.count = kept.count;
            match found.iter_mut().find(|known| known.id == judged.id) {
                Some(known) => known.count += judged.count,
                None => found.push(judged),
            }
        }
        found
    }
}

/// The rank of a judgement: numbers that show the cause say more than any other line, and less than most if the device
/// is simply full.
pub(super) fn rank(id: &str) -> u16 {
    match id {
        "out-of-memory" => 25,
        _ => 0,
    }
}

/// Where the message begins within a line.
fn start_of_message(line: &str) -> Option<usize> {
    [
        "HIP out of memory",
        "CUDA out of memory",
        "hipErrorOutOfMemory",
        "HIP error: out of memory",
        "XPU out of memory",
    ]
    .iter()
    .filter_map(|marker| line.find(marker))
    .min()
}

/// A cause and its remedy.
struct Judgement {
    id: &'static str,
    confidence: Confidence,
    cause: String,
    fix: Vec<String>,
    source: &'static str,
}

fn judge(
    numbers: &OomNumbers,
    context: &Context,
    hints: Hints,
    line: &str,
    line_number: usize,
) -> Match {
    let judgement = above_what_is_allowed(numbers)
        .or_else(|| carve_out_only(numbers))
        .or_else(|| larger_than_the_device(numbers))
        .or_else(|| fragmented(numbers, context))
        .or_else(|| capacity_not_honoured(numbers, context))
        .or_else(|| half_of_the_ram(numbers, context, hints))
        .or_else(|| refused_though_free(numbers, context))
        .or_else(|| held_elsewhere(numbers))
        .unwrap_or_else(|| full(numbers));
    let mut cause = judgement.cause;
    if numbers.free_is_nonsense {
        cause +=
            " The free memory in the message is a wrapped or impossible number: it is not known.";
    }
    Match {
        line: clip(line.trim(), 500).to_owned(),
        line_number,
        cause,
        fix: judgement.fix,
        source: judgement.source.to_owned(),
        confidence: judgement.confidence,
        numbers: as_map(numbers),
        ..Match::new(judgement.id)
    }
}

fn as_map(numbers: &OomNumbers) -> BTreeMap<&'static str, u64> {
    let named = [
        ("requested_bytes", numbers.requested),
        ("capacity_bytes", numbers.capacity),
        ("free_bytes", numbers.free),
        ("allocated_bytes", numbers.allocated),
        ("reserved_unallocated_bytes", numbers.unallocated),
        ("process_bytes", numbers.process),
    ];
    named
        .into_iter()
        .filter_map(|(name, bytes)| Some((name, bytes?.0)))
        .collect()
}

fn steps(fix: &[&str]) -> Vec<String> {
    fix.iter().map(|&step| step.to_owned()).collect()
}

/// The program, and not the device, set the limit.
fn above_what_is_allowed(numbers: &OomNumbers) -> Option<Judgement> {
    let (allowed, capacity) = (numbers.allowed?, numbers.capacity?);
    (allowed.share_of(capacity) < 0.98).then(|| Judgement {
        id: "oom-fraction",
        confidence: Confidence::High,
        cause: format!(
            "The program may use {allowed} of the {capacity}: it, or something in its process, called torch.cuda.set_per_process_memory_fraction."
        ),
        fix: steps(&[
            "look for set_per_process_memory_fraction, and for a setting of the program that limits memory",
            "torch.cuda.set_per_process_memory_fraction(1.0) takes the limit away",
        ]),
        source: "https://docs.pytorch.org/docs/stable/generated/torch.cuda.memory.set_per_process_memory_fraction.html",
    })
}

/// A capacity that is exactly a BIOS setting: an APU whose kernel uses nothing else.
fn carve_out_only(numbers: &OomNumbers) -> Option<Judgement> {
    let capacity = numbers.capacity?;
    let is_setting = capacity.0.is_multiple_of(1 << 26) && (capacity.0 >> 26).is_power_of_two();
    (is_setting && capacity <= Bytes::gib(4)).then(|| Judgement {
        id: "oom-carveout-only",
        confidence: Confidence::High,
        cause: format!(
            "The capacity of {capacity} is the carve-out that the BIOS gives to an APU: a kernel before about 6.10 uses nothing else."
        ),
        fix: steps(&["a kernel of 6.10 or newer, which lets the GPU allocate from RAM", "or a larger UMA frame buffer in the BIOS"]),
        source: "Linux, \"drm/amdkfd: Let VRAM allocations go to GTT domain on small APUs\"",
    })
}

fn larger_than_the_device(numbers: &OomNumbers) -> Option<Judgement> {
    let (requested, capacity) = (numbers.requested?, numbers.capacity?);
    (requested > capacity).then(|| Judgement {
        id: "oom-request-too-large",
        confidence: Confidence::High,
        cause: format!("A single tensor of {requested} was asked for, and the device has {capacity} in total."),
        fix: steps(&[
            "a smaller batch, sequence or image; attention in slices (math attention needs memory with the square of the length)",
            "tile the VAE",
        ]),
        source: "https://docs.pytorch.org/docs/stable/notes/cuda.html#memory-management",
    })
}

fn fragmented(numbers: &OomNumbers, context: &Context) -> Option<Judgement> {
    let unallocated = numbers.unallocated?;
    let covers_request = numbers
        .requested
        .is_some_and(|requested| unallocated >= requested);
    // Any cache holds a few per cent: the device is full, whatever the request.
    let is_little = numbers
        .capacity
        .is_some_and(|capacity| unallocated.share_of(capacity) < 0.04);
    let large = covers_request && unallocated >= Bytes::mib(256) && !is_little
        || numbers
            .capacity
            .is_some_and(|capacity| unallocated.share_of(capacity) >= 0.2);
    large.then(|| {
        let mut fix = steps(&[
            "PYTORCH_ALLOC_CONF=garbage_collection_threshold:0.8,max_split_size_mb:512",
            "smaller tiles or batches; torch.cuda.empty_cache() between stages",
        ]);
        fix.push(match context.is_windows() {
            true => "not expandable_segments: it is refused on Windows".to_owned(),
            false => "`surefoot run --alloc -- …`: an allocator that holds what is live, and nothing else".to_owned(),
        });
        Judgement {
            id: "oom-fragmentation",
            confidence: Confidence::High,
            cause: format!(
                "PyTorch holds {unallocated} that no tensor uses: its cache is fragmented, or a library took a large workspace."
            ),
            fix,
            source: "https://github.com/ROCm/TheRock/issues/2844",
        }
    })
}

/// Much less was used than the capacity promises, and yet the driver said no.
fn capacity_not_honoured(numbers: &OomNumbers, context: &Context) -> Option<Judgement> {
    let (capacity, allocated) = (numbers.capacity?, numbers.allocated?);
    let used = allocated.saturating_add(numbers.unallocated.unwrap_or_default());
    let reached = used.max(numbers.process.unwrap_or_default());
    let after = reached.saturating_add(numbers.requested.unwrap_or_default());
    let free_is_small = numbers
        .free
        .is_none_or(|free| Some(free) < numbers.requested || free.share_of(capacity) < 0.05);
    let contradicts = after.share_of(capacity) < 0.75 && free_is_small;
    // Cards do not come with such a capacity; APUs report it.
    (contradicts && capacity >= Bytes::gib(56) && !context.is_windows()).then(|| {
        let limit = reached.saturating_add(numbers.free.unwrap_or_default());
        Judgement {
            id: "oom-capacity-not-honoured",
            confidence: Confidence::Medium,
            cause: format!(
                "The driver refused at {limit} although it reports a capacity of {capacity}: the reported capacity is not what TTM lets the GPU use, which is about {limit} here. It is not fragmentation."
            ),
            fix: raise_ttm(),
            source: "https://github.com/kyuz0/amd-strix-halo-image-video-toolboxes/issues/3",
        }
    })
}

/// The capacity is what TTM allows by default.
fn half_of_the_ram(numbers: &OomNumbers, context: &Context, hints: Hints) -> Option<Judgement> {
    let capacity = numbers.capacity?;
    let is_half = match hints.ram {
        Some(ram) => apu::is_half(capacity, ram),
        None => is_half_of_a_machine(capacity),
    };
    (is_half && !context.is_windows() && !context.is_card()).then(|| {
        let mut cause = format!(
            "The capacity of {capacity} is half of the RAM, the default limit of TTM for an APU. {}",
            not_fragmentation(numbers)
        );
        if capacity < Bytes::gib(16) {
            cause += " On a machine of 128 GB with 96 GB carved out in the BIOS it is half of what is left.";
        }
        Judgement {
            id: "oom-ttm-limit",
            confidence: if hints.ram.is_some() { Confidence::High } else { Confidence::Medium },
            cause: cause.trim_end().to_owned(),
            fix: raise_ttm(),
            source: "https://github.com/ROCm/ROCm/issues/5595",
        }
    })
}

/// Half of the RAM that a kernel sees on machines as they are sold: 2 to 6 % less
/// than a round number. Cards report within 1 % of theirs.
fn is_half_of_a_machine(capacity: Bytes) -> bool {
    const HALVES_GIB: [f64; 7] = [8.0, 12.0, 16.0, 24.0, 32.0, 48.0, 64.0];
    HALVES_GIB
        .iter()
        .any(|half| (0.93..0.986).contains(&(capacity.as_gib() / half)))
}

fn raise_ttm() -> Vec<String> {
    steps(&[
        "set ttm.pages_limit on the kernel command line, in pages of 4 KiB (GiB × 262144), at least 8 GiB below the RAM",
        "keep the carve-out (UMA frame buffer) in the BIOS small",
        "`surefoot doctor --fix-script fix.sh` writes the commands for this machine",
    ])
}

/// The device reports room, and the driver says no.
fn refused_though_free(numbers: &OomNumbers, context: &Context) -> Option<Judgement> {
    let (requested, free, capacity) = (numbers.requested?, numbers.free?, numbers.capacity?);
    let had_room = free.0 / 4 >= requested.0 && free.share_of(capacity) > 0.1;
    had_room.then(|| Judgement {
        id: "oom-refused-though-free",
        confidence: Confidence::Low,
        cause: format!(
            "The driver refused {requested} although it reports {free} free. The limit is another one: host memory (TTM, a cgroup, pinned buffers), or a carve-out that leaves the host too little."
        ),
        fix: steps(match context.is_windows() {
            true => &["`surefoot doctor` looks at these limits"],
            false => &["`surefoot doctor` looks at these limits", "sudo dmesg | grep -iE 'amdgpu|ttm|oom'"],
        }),
        source: "https://github.com/ROCm/ROCm/issues/5902",
    })
}

fn held_elsewhere(numbers: &OomNumbers) -> Option<Judgement> {
    let (capacity, allocated, free) = (numbers.capacity?, numbers.allocated?, numbers.free?);
    let accounted = allocated
        .saturating_add(numbers.unallocated.unwrap_or_default())
        .saturating_add(free);
    let missing = capacity.saturating_sub(accounted);
    (missing.share_of(capacity) > 0.3).then(|| Judgement {
        id: "oom-held-elsewhere",
        confidence: Confidence::Medium,
        cause: format!(
            "{missing} of {capacity} are in use by something that is not this PyTorch: another process, the desktop, or workspaces of libraries."
        ),
        fix: steps(&["close other programs on the GPU (`rocm-smi --showpids`)", "MIOPEN_FIND_MODE=FAST keeps workspaces small"]),
        source: "https://github.com/ROCm/ROCm/issues/5216",
    })
}

fn full(numbers: &OomNumbers) -> Judgement {
    Judgement {
        id: "out-of-memory",
        confidence: Confidence::Medium,
        cause: format!(
            "The device is full: model, activations and optimizer need more than it has. {}",
            not_fragmentation(numbers)
        )
        .trim_end()
        .to_owned(),
        fix: steps(&[
            "a smaller batch with gradient accumulation, gradient checkpointing, a shorter sequence or smaller image",
            "bf16 weights; an 8-bit optimizer; LoRA instead of all weights",
            "on an APU: `surefoot doctor` tells whether the limit can be raised",
        ]),
        source: "https://docs.pytorch.org/docs/stable/notes/cuda.html#memory-management",
    }
}

fn not_fragmentation(numbers: &OomNumbers) -> String {
    match numbers.unallocated {
        Some(unallocated) => {
            format!("It is not fragmentation: only {unallocated} are reserved and unused.")
        }
        None => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::explain::explain_with;

    fn message(capacity: &str, free: &str, allocated: &str, unallocated: &str) -> String {
        format!(
            "torch.OutOfMemoryError: HIP out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of {capacity} of which \
             {free} is free. Of the allocated memory {allocated} is allocated by PyTorch, and {unallocated} is reserved by PyTorch but unallocated."
        )
    }

    fn id(text: &str, ram: Option<Bytes>) -> String {
        explain_with(text, Hints { ram }).matches[0].id.clone()
    }

    #[test]
    fn a_limit_of_the_program_is_not_one_of_the_device() {
        let text = "HIP out of memory. Tried to allocate 2.00 MiB. GPU 0 has a total capacity of 287.98 GiB of which 275.86 GiB is free. 1.05 GiB allowed; Of the allocated memory 1017.01 MiB is allocated by PyTorch";
        assert_eq!(id(text, None), "oom-fraction");
    }

    #[test]
    fn half_of_the_ram_is_the_ttm_limit() {
        let text = message("62.47 GiB", "1.00 GiB", "60.00 GiB", "120.00 MiB");
        assert_eq!(id(&text, None), "oom-ttm-limit");
        assert_eq!(id(&text, Some(Bytes::gib(125))), "oom-ttm-limit");
        // The same capacity on a machine with four times the RAM is something else.
        assert_eq!(id(&text, Some(Bytes::gib(250))), "out-of-memory");
    }

    #[test]
    fn a_full_card_is_a_full_card() {
        for (capacity, used) in [
            ("23.98 GiB", "22.50 GiB"),
            ("15.92 GiB", "14.50 GiB"),
            ("11.98 GiB", "11.00 GiB"),
        ] {
            assert_eq!(
                id(&message(capacity, "100.00 MiB", used, "100.00 MiB"), None),
                "out-of-memory",
                "{capacity}"
            );
        }
    }

    #[test]
    fn messages_may_be_wrapped_and_repeated() {
        let text = message("23.98 GiB", "1.00 GiB", "12.00 GiB", "9.00 GiB")
            .replace("total capacity", "total\n    capacity");
        let found = explain_with(&format!("{text}\r\n{text}"), Hints::default()).matches;
        assert_eq!(found.len(), 1);
        assert_eq!(
            (found[0].id.as_str(), found[0].count),
            ("oom-fragmentation", 2)
        );
        assert_eq!(found[0].numbers["capacity_bytes"], 25_748_328_939);
    }

    #[test]
    fn memory_held_by_others_is_named() {
        assert_eq!(
            id(
                &message("23.98 GiB", "0 bytes", "4.00 GiB", "10.00 MiB"),
                None
            ),
            "oom-held-elsewhere"
        );
    }

    #[test]
    fn room_that_is_refused_is_not_a_full_device() {
        assert_eq!(
            id(
                &message("23.98 GiB", "23.90 GiB", "0 bytes", "0 bytes"),
                None
            ),
            "oom-refused-though-free"
        );
    }

    #[test]
    fn free_above_capacity_is_not_a_number() {
        let numbers =
            OomNumbers::from_message(&message("62.47 GiB", "120.00 GiB", "60.00 GiB", "0 bytes"));
        assert_eq!((numbers.free, numbers.free_is_nonsense), (None, true));
    }
}
