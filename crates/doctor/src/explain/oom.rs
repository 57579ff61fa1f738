//! Out-of-memory messages: their numbers, and what the numbers mean.
//!
//! PyTorch's message ends with advice about fragmentation whatever the cause. On
//! consumer AMD hardware there is usually another cause: a capacity that is half of the
//! RAM (TTM's default), a capacity of 512 MiB (only the carve-out), a capacity that
//! the driver does not honour. The numbers distinguish them.

use super::context::Context;
use super::{Catalogue, Hints, Match, clip, from_entry};
use aho_corasick::AhoCorasick;
use platform::Bytes;
use platform::memory::apu;
use platform::oom_message::OomNumbers;
use std::collections::BTreeMap;
use std::sync::LazyLock;

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
    pub(super) fn finish(
        mut self,
        context: &Context,
        hints: Hints,
        catalogue: &Catalogue,
    ) -> Vec<Match> {
        self.close();
        let mut found: Vec<Match> = Vec::new();
        // Words about the message (a title) say less than the message.
        let without_numbers = OomNumbers::default();
        if self.kept.iter().any(|kept| kept.numbers.capacity.is_some()) {
            self.kept.retain(|kept| kept.numbers != without_numbers);
        }
        for kept in self.kept {
            let judgement = judge(&kept.numbers, context, hints);
            if let Some(known) = found.iter_mut().find(|known| known.id == judgement.id) {
                known.count += kept.count;
            } else if let Some((_, entry)) = catalogue.entry(judgement.id) {
                found.push(Match {
                    numbers: as_map(&kept.numbers),
                    count: kept.count,
                    values: judgement.values,
                    ..from_entry(entry, &kept.line, kept.line_number)
                });
            }
        }
        found
    }
}

static STARTS: LazyLock<Option<AhoCorasick>> = LazyLock::new(|| {
    // Constant words: without them no message is found, and the tests fail.
    AhoCorasick::new([
        "HIP out of memory",
        "CUDA out of memory",
        "hipErrorOutOfMemory",
        "HIP error: out of memory",
        "XPU out of memory",
    ])
    .ok()
});

/// Where the message begins within a line.
fn start_of_message(line: &str) -> Option<usize> {
    Some(STARTS.as_ref()?.find(line)?.start())
}

/// Which entry of the catalogue the numbers mean, with what stands in its places.
struct Judgement {
    id: &'static str,
    values: Vec<(&'static str, String)>,
}

/// A judgement with numbers in its places.
fn judged(id: &'static str, values: &[(&'static str, Bytes)]) -> Judgement {
    let values = values
        .iter()
        .map(|(place, size)| (*place, size.to_string()));
    Judgement {
        id,
        values: values.collect(),
    }
}

fn judge(numbers: &OomNumbers, context: &Context, hints: Hints) -> Judgement {
    let judgement = above_what_is_allowed(numbers)
        .or_else(|| carve_out_only(numbers))
        // More free than there is: the two numbers are of two pools of an APU. And what is more than
        // this share of an APU's memory may be less than all of it.
        .or_else(|| {
            let is_larger = numbers.requested > numbers.capacity;
            half_of_the_ram(numbers, context, hints)
                .filter(|_| numbers.free_is_nonsense || is_larger && context.is_apu())
        })
        .or_else(|| larger_than_the_device(numbers))
        .or_else(|| fragmented(numbers))
        .or_else(|| capacity_not_honoured(numbers, context))
        .or_else(|| half_of_the_ram(numbers, context, hints))
        .or_else(|| refused_though_free(numbers))
        .or_else(|| held_elsewhere(numbers));
    let mut judgement = judgement.unwrap_or_else(|| judged("out-of-memory", &[]));
    let nonsense = match numbers.free_is_nonsense {
        true => {
            " The free memory in the message is a wrapped or impossible number: it is not known."
        }
        false => "",
    };
    let not_fragmentation = numbers.unallocated.map(|unallocated| {
        format!(" It is not fragmentation: only {unallocated} are reserved and unused.")
    });
    judgement.values.extend([
        ("nonsense", nonsense.to_owned()),
        ("not-fragmentation", not_fragmentation.unwrap_or_default()),
    ]);
    judgement
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

/// The program, and not the device, set the limit.
fn above_what_is_allowed(numbers: &OomNumbers) -> Option<Judgement> {
    let (allowed, capacity) = (numbers.allowed?, numbers.capacity?);
    let values = [("allowed", allowed), ("capacity", capacity)];
    (allowed.share_of(capacity) < 0.98).then(|| judged("oom-fraction", &values))
}

/// A capacity that is exactly a BIOS setting: an APU whose kernel uses nothing else.
fn carve_out_only(numbers: &OomNumbers) -> Option<Judgement> {
    let capacity = numbers.capacity?;
    let is_setting = capacity.0.is_multiple_of(1 << 26) && (capacity.0 >> 26).is_power_of_two();
    let is_only = is_setting && capacity <= Bytes::gib(4);
    is_only.then(|| judged("oom-carveout-only", &[("capacity", capacity)]))
}

fn larger_than_the_device(numbers: &OomNumbers) -> Option<Judgement> {
    let (requested, capacity) = (numbers.requested?, numbers.capacity?);
    let values = [("requested", requested), ("capacity", capacity)];
    (requested > capacity).then(|| judged("oom-request-too-large", &values))
}

fn fragmented(numbers: &OomNumbers) -> Option<Judgement> {
    let unallocated = numbers.unallocated?;
    let requested = numbers.requested;
    let covers_request = requested.is_some_and(|requested| unallocated >= requested);
    let share = numbers
        .capacity
        .map(|capacity| unallocated.share_of(capacity));
    // Any cache holds a few per cent: the device is full, whatever the request.
    let is_little = share.is_some_and(|share| share < 0.04);
    let large = covers_request && unallocated >= Bytes::mib(256) && !is_little
        || share.is_some_and(|share| share >= 0.2);
    large.then(|| judged("oom-fragmentation", &[("unallocated", unallocated)]))
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
    let limit = reached.saturating_add(numbers.free.unwrap_or_default());
    let values = [("limit", limit), ("capacity", capacity)];
    // Cards do not come with such a capacity; APUs report it.
    (contradicts && capacity >= Bytes::gib(56) && !context.is_windows())
        .then(|| judged("oom-capacity-not-honoured", &values))
}

/// The capacity is what TTM allows by default.
fn half_of_the_ram(numbers: &OomNumbers, context: &Context, hints: Hints) -> Option<Judgement> {
    let capacity = numbers.capacity?;
    let is_half = match hints.ram {
        Some(ram) => apu::is_half(capacity, ram),
        None => is_half_of_a_machine(capacity),
    };
    if !is_half || context.is_windows() || context.is_card() {
        return None;
    }
    let mut judgement = judged("oom-ttm-limit", &[("capacity", capacity)]);
    let of_what_is_left = match capacity < Bytes::gib(16) {
        true => {
            " On a machine of 128 GB with 96 GB carved out in the BIOS it is half of what is left."
        }
        false => "",
    };
    let value = ("of-what-is-left", of_what_is_left.to_owned());
    judgement.values.push(value);
    Some(judgement)
}

/// Half of the RAM that a kernel sees on machines as they are sold: 2 to 6 % less
/// than a round number. Cards report within 1 % of theirs.
fn is_half_of_a_machine(capacity: Bytes) -> bool {
    const HALVES_GIB: [f64; 7] = [8.0, 12.0, 16.0, 24.0, 32.0, 48.0, 64.0];
    HALVES_GIB
        .iter()
        .any(|half| (0.93..0.986).contains(&(capacity.as_gib() / half)))
}

/// The device reports room, and the driver says no.
fn refused_though_free(numbers: &OomNumbers) -> Option<Judgement> {
    let (requested, free, capacity) = (numbers.requested?, numbers.free?, numbers.capacity?);
    let had_room = free.0 / 4 >= requested.0 && free.share_of(capacity) > 0.1;
    let values = [("requested", requested), ("free", free)];
    had_room.then(|| judged("oom-refused-though-free", &values))
}

fn held_elsewhere(numbers: &OomNumbers) -> Option<Judgement> {
    let (capacity, allocated, free) = (numbers.capacity?, numbers.allocated?, numbers.free?);
    let accounted = allocated
        .saturating_add(numbers.unallocated.unwrap_or_default())
        .saturating_add(free);
    let missing = capacity.saturating_sub(accounted);
    let values = [("missing", missing), ("capacity", capacity)];
    (missing.share_of(capacity) > 0.3).then(|| judged("oom-held-elsewhere", &values))
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
    fn one_tensor_above_half_of_the_ram_is_the_limit_of_an_apu_only() {
        let text = message("15.24 GiB", "15.09 GiB", "0 bytes", "0 bytes")
            .replace("allocate 2.00 GiB", "allocate 16.00 GiB");
        assert_eq!(
            id(&format!("{text}\nDevice 0: gfx1151"), None),
            "oom-ttm-limit"
        );
        assert_eq!(
            id(&format!("{text}\nDevice 0: gfx1201"), None),
            "oom-request-too-large"
        );
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
