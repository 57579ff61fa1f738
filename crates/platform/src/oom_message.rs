//! Parses PyTorch's out-of-memory messages.

use crate::Bytes;

/// The numbers in a message. Missing numbers, and wrapped negative ones, are `None`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OomNumbers {
    /// The allocation that failed.
    pub requested: Option<Bytes>,
    /// Total capacity of the device, according to the message.
    pub capacity: Option<Bytes>,
    /// Free memory; never above the capacity.
    pub free: Option<Bytes>,
    /// Memory that PyTorch has allocated to tensors.
    pub allocated: Option<Bytes>,
    /// Reserved by PyTorch but not allocated.
    pub unallocated: Option<Bytes>,
    /// All device memory of this process.
    pub process: Option<Bytes>,
    /// The limit of this process (`set_per_process_memory_fraction`).
    pub allowed: Option<Bytes>,
    /// Whether the number for free memory was nonsense: above the capacity, or a wrapped negative number
    /// (seen on APUs).
    pub free_is_nonsense: bool,
}

impl OomNumbers {
    /// Parses the first message in a text, in the wording since PyTorch 2.1 or the earlier one. Lines may be
    /// wrapped.
    ///
    /// ```
    /// use surefoot_platform::{Bytes, oom_message::OomNumbers};
    ///
    /// let numbers = OomNumbers::from_message(
    ///     "HIP out of memory. Tried to allocate 84.00 MiB. GPU 0 has a total capacity of \
    ///      512.00 MiB of which 0 bytes is free.",
    /// );
    /// assert_eq!(numbers.requested, Some(Bytes::mib(84)));
    /// assert_eq!(numbers.free, Some(Bytes::ZERO));
    /// ```
    #[must_use]
    pub fn from_message(text: &str) -> Self {
        const START: &str = "tried to allocate ";
        let words: Vec<&str> = text.split_whitespace().collect();
        let text = words.join(" ").to_ascii_lowercase();
        let first = text.find(START).map_or(text.as_str(), |at| &text[at..]);
        let text = first
            .match_indices(START)
            .nth(1)
            .map_or(first, |(next, _)| &first[..next]);

        let read = |size: Option<String>| size.and_then(|size| Bytes::parse_tool_output(&size));
        let free_text = before(text, " is free").or_else(|| before(text, " free"));
        let mut numbers = Self {
            requested: read(after(text, START)),
            // Some releases of PyTorch spelled it `capacty`.
            capacity: read(
                after(text, "total capacity of ")
                    .or_else(|| after(text, "total capacty of "))
                    .or_else(|| before(text, " total capacity"))
                    .or_else(|| before(text, " total capacty")),
            ),
            free: read(free_text.clone()),
            allocated: read(
                before(text, " is allocated by pytorch")
                    .or_else(|| before(text, " already allocated")),
            ),
            unallocated: read(before(text, " is reserved by pytorch but unallocated")),
            // The message also lists other processes.
            process: read(after(text, "this process has ")),
            allowed: read(before(text, " allowed")),
            free_is_nonsense: false,
        };
        if numbers.unallocated.is_none()
            && let Some(allocated) = numbers.allocated
        {
            let reserved = read(before(text, " reserved in total by pytorch"));
            numbers.unallocated = reserved.map(|reserved| reserved - allocated);
        }
        let above_capacity = numbers.capacity.is_some_and(|all| numbers.free > Some(all));
        if above_capacity || numbers.free.is_none() && free_text.is_some() {
            numbers.free = None;
            numbers.free_is_nonsense = true;
        }
        numbers
    }
}

/// The first size that follows `phrase`: `tried to allocate 2.00 gib. …`.
fn after(text: &str, phrase: &str) -> Option<String> {
    text.match_indices(phrase).find_map(|(at, _)| {
        let mut words = text[at + phrase.len()..].split(' ');
        let first = words.next()?;
        size(first, "").or_else(|| size(first, words.next()?))
    })
}

/// The first size directly before `phrase`, which must end a word: `… of which 0 bytes is free`.
fn before(text: &str, phrase: &str) -> Option<String> {
    text.match_indices(phrase).find_map(|(at, _)| {
        if text[at + phrase.len()..].starts_with(|next: char| next.is_alphanumeric()) {
            return None;
        }
        let mut words = text[..at].rsplit(' ');
        let last = words.next()?;
        size(last, "").or_else(|| size(words.next()?, last))
    })
}

/// Number and unit as one text, if they look like a size.
fn size(number: &str, unit: &str) -> Option<String> {
    const UNITS: [&str; 10] = [
        "bytes", "b", "kib", "mib", "gib", "tib", "kb", "mb", "gb", "tb",
    ];
    let text = format!("{}{unit}", number.trim_start_matches('('));
    let text = text.trim_end_matches(['.', ',', ';', ')']);
    let unit = text.trim_start_matches(|c: char| c.is_ascii_digit() || c == '.' || c == ',');
    (text.starts_with(|c: char| c.is_ascii_digit()) && UNITS.contains(&unit))
        .then(|| text.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mib(count: u64) -> Option<Bytes> {
        Some(Bytes::mib(count))
    }

    #[test]
    fn reads_the_wording_of_today() {
        let numbers = OomNumbers::from_message(
            "torch.cuda.OutOfMemoryError: HIP out of memory. Tried to allocate 84.00 MiB. GPU 0 has a \
             total capacity of 512.00 MiB of which 0 bytes is free. Including non-PyTorch memory, this \
             process has 126.00 MiB memory in use. Of the allocated memory 104.00 MiB is \
             allocated by PyTorch, and 22.00 MiB is reserved by PyTorch but unallocated",
        );
        assert_eq!(
            numbers,
            OomNumbers {
                requested: mib(84),
                capacity: mib(512),
                free: mib(0),
                allocated: mib(104),
                unallocated: mib(22),
                process: mib(126),
                allowed: None,
                free_is_nonsense: false,
            }
        );
    }

    #[test]
    fn reads_the_wording_of_before() {
        let numbers = OomNumbers::from_message(
            "CUDA out of memory. Tried to allocate 2.00 MiB (GPU 0; 512.00 MiB total capacity; 150.00 \
             MiB already allocated; 312.00 MiB free; 168.00 MiB reserved in total by PyTorch)",
        );
        assert_eq!(
            numbers,
            OomNumbers {
                requested: mib(2),
                free: mib(312),
                capacity: mib(512),
                allocated: mib(150),
                unallocated: mib(18),
                ..OomNumbers::default()
            }
        );
    }

    #[test]
    fn a_free_number_beyond_the_total_is_no_number() {
        for free in ["17179869184.00 GiB", "513.00 MiB"] {
            let numbers = OomNumbers::from_message(&format!(
                "HIP out of memory. Tried to allocate 288.00 MiB. GPU 0 has a total capacty of 512.00 MiB of \
                 which {free} is free."
            ));
            assert_eq!(
                numbers,
                OomNumbers {
                    requested: mib(288),
                    free_is_nonsense: true,
                    capacity: mib(512),
                    ..OomNumbers::default()
                }
            );
        }
    }

    #[test]
    fn a_message_without_numbers_has_none() {
        for message in [
            "",
            "HIP error: out of memory",
            "Tried to allocate",
            "Tried to allocate x y",
            "free the memory: 5 is free of charge, 3 MiB freed",
        ] {
            assert_eq!(
                OomNumbers::from_message(message),
                OomNumbers::default(),
                "{message}"
            );
        }
    }

    #[test]
    fn of_several_messages_the_first_is_read() {
        let numbers = OomNumbers::from_message(
            "Tried to allocate 1.00 MiB. GPU 0\nTried to allocate 2.00 MiB. total capacity of 3.00 MiB",
        );
        assert_eq!((numbers.requested, numbers.capacity), (mib(1), None));
    }
}
