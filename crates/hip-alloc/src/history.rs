//! The program's latest requests, for memory snapshots: the "Active Memory
//! Timeline" of PyTorch's memory_viz shows them.
//!
//! Off by default (`hip_alloc_record_history`, which
//! `torch.cuda.memory._record_memory_history` calls). The oldest entries are dropped for new ones.
//!
//! The history has requests and frees of the program, and those of the pool to the driver
//! ([`Moved`]). The position of the program is an opaque [`StackId`]: whoever can read
//! its stack assigns it (`hip_alloc_record_stacks`), and finds it in the snapshot.

use crate::pool::Moved;
use crate::units::StreamId;
use std::collections::{HashMap, VecDeque};
use std::time::{SystemTime, UNIX_EPOCH};

/// Identifies where the program was.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct StackId(pub(crate) u64);

impl StackId {
    /// No stack was recorded for the request.
    pub(crate) const UNKNOWN: StackId = StackId(0);
}

/// An event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    pub action: Action,
    /// 0 for a refused request.
    pub address: u64,
    /// The size that the program requested, or that the driver provided.
    pub bytes: u64,
    /// The stream of the request.
    pub stream: StreamId,
    /// Where the program was.
    pub stack: StackId,
    /// Microseconds since 1970.
    pub time: u64,
}

/// PyTorch's names for these are in [`Action::name`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Action {
    /// A request was served.
    Allocate,
    /// The program freed memory.
    FreeRequested,
    /// No stream uses the memory any more.
    FreeCompleted,
    /// A request was refused while this many bytes were available.
    OutOfMemory {
        /// Bytes.
        free: u64,
    },
    /// The driver provided a block.
    SegmentAllocate,
    /// A block was returned to the driver.
    SegmentFree,
}

impl Action {
    /// PyTorch's name for it.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Action::Allocate => "alloc",
            Action::FreeRequested => "free_requested",
            Action::FreeCompleted => "free_completed",
            Action::OutOfMemory { .. } => "oom",
            Action::SegmentAllocate => "segment_alloc",
            Action::SegmentFree => "segment_free",
        }
    }
}

/// The origin of a request.
#[derive(Clone, Copy, Debug, Default)]
struct Origin {
    stream: StreamId,
    stack: StackId,
}

/// The entries of one device, oldest first.
#[derive(Debug, Default)]
pub(crate) struct History {
    entries: VecDeque<Entry>,
    /// 0 if nothing is kept.
    most: usize,
    /// Origins of live requests, by address.
    live: HashMap<u64, Origin>,
    /// The streams whose requests needed new blocks, by address of the block.
    segments: HashMap<u64, StreamId>,
    /// Freed, but another stream may still use it.
    pending: Vec<Entry>,
}

impl History {
    /// Keeps this many entries from now on, and drops older ones; 0 keeps none.
    pub(crate) fn keep(&mut self, most: usize) {
        if most == 0 {
            *self = History::default();
            return;
        }
        self.most = most;
        let beyond = self.entries.len().saturating_sub(most);
        self.entries.drain(..beyond);
    }

    /// Whether anything is kept.
    pub(crate) fn is_on(&self) -> bool {
        self.most > 0
    }

    /// A request was served.
    pub(crate) fn allocated(&mut self, address: u64, bytes: u64, stream: StreamId, stack: StackId) {
        let origin = Origin { stream, stack };
        self.live.insert(address, origin);
        self.add(Entry::now(Action::Allocate, address, bytes, origin));
    }

    /// The program freed memory; [`complete`](Self::complete) records when it is unused.
    pub(crate) fn freed(&mut self, address: u64, bytes: u64, stack: StackId) {
        // A request from before the history began is attributed to the default stream.
        let Origin { stream, .. } = self.live.remove(&address).unwrap_or_default();
        let origin = Origin { stream, stack };
        let entry = Entry::now(Action::FreeRequested, address, bytes, origin);
        self.add(entry);
        self.pending.push(entry);
    }

    /// A request was refused while `free` bytes were available.
    pub(crate) fn refused(&mut self, bytes: u64, stream: StreamId, stack: StackId, free: u64) {
        let origin = Origin { stream, stack };
        self.add(Entry::now(Action::OutOfMemory { free }, 0, bytes, origin));
    }

    /// Records which frees are complete: all but those of memory that awaits a stream. After
    /// them, records what moved between driver and pools for a caller on `stream`.
    pub(crate) fn complete(
        &mut self,
        stream: StreamId,
        stack: StackId,
        moved: Vec<Moved>,
        awaits: impl Fn(u64) -> bool,
    ) {
        let mut pending = std::mem::take(&mut self.pending);
        pending.retain(|freed| {
            let still = awaits(freed.address);
            if !still {
                let origin = Origin {
                    stream: freed.stream,
                    stack: freed.stack,
                };
                let done = Action::FreeCompleted;
                self.add(Entry::now(done, freed.address, freed.bytes, origin));
            }
            still
        });
        self.pending = pending;
        for Moved {
            address,
            bytes,
            taken,
        } in moved
        {
            let (action, stream) = match taken {
                true => {
                    self.segments.insert(address, stream);
                    (Action::SegmentAllocate, stream)
                }
                // A block from before the history began is attributed to the default stream.
                false => {
                    let stream = self.segments.remove(&address).unwrap_or_default();
                    (Action::SegmentFree, stream)
                }
            };
            self.add(Entry::now(action, address, bytes, Origin { stream, stack }));
        }
    }

    /// Where the program was when it requested the live memory at this address.
    pub(crate) fn stack_of(&self, address: u64) -> StackId {
        self.live
            .get(&address)
            .map_or(StackId::UNKNOWN, |origin| origin.stack)
    }

    /// A copy of the entries.
    pub(crate) fn entries(&self) -> Vec<Entry> {
        self.entries.iter().copied().collect()
    }

    fn add(&mut self, entry: Entry) {
        if self.entries.len() >= self.most {
            self.entries.pop_front();
        }
        self.entries.push_back(entry);
    }
}

impl Entry {
    fn now(action: Action, address: u64, bytes: u64, origin: Origin) -> Self {
        let since = SystemTime::now().duration_since(UNIX_EPOCH);
        Entry {
            action,
            address,
            bytes,
            stream: origin.stream,
            stack: origin.stack,
            time: since.map_or(0, |since| since.as_micros() as u64),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STREAM: StreamId = StreamId(3);

    fn happened(history: &History) -> Vec<(&'static str, u64)> {
        let entries = history.entries();
        let seen = entries.iter();
        seen.map(|entry| (entry.action.name(), entry.address))
            .collect()
    }

    #[test]
    fn the_oldest_entries_make_room() {
        let mut history = History::default();
        history.keep(3);
        for address in [1, 2, 3, 4, 5] {
            history.allocated(address, 512, STREAM, StackId(address));
        }
        let expected = [("alloc", 3), ("alloc", 4), ("alloc", 5)];
        assert_eq!(happened(&history), expected);
        history.keep(1);
        assert_eq!(happened(&history), expected[2..]);
        history.keep(0);
        assert!(!history.is_on() && history.entries().is_empty());
    }

    #[test]
    fn a_free_completes_when_no_stream_uses_the_memory() {
        let mut history = History::default();
        history.keep(100);
        let (default, stack) = (StreamId(0), StackId::UNKNOWN);
        history.allocated(1, 512, STREAM, stack);
        history.freed(1, 512, stack);
        history.freed(2, 512, stack);
        history.complete(default, stack, Vec::new(), |address| address == 1);
        history.allocated(2, 9, default, stack);
        history.complete(default, stack, Vec::new(), |_| false);
        history.complete(default, stack, Vec::new(), |_| false);
        let expected = [
            ("alloc", 1),
            ("free_requested", 1),
            ("free_requested", 2),
            ("free_completed", 2),
            ("alloc", 2),
            ("free_completed", 1),
        ];
        assert_eq!(happened(&history), expected);
        let streams: Vec<_> = history
            .entries()
            .iter()
            .map(|entry| entry.stream.0)
            .collect();
        assert_eq!(streams, [3, 3, 0, 0, 0, 3]);
    }

    #[test]
    fn what_the_driver_gives_and_takes_is_between_the_free_and_the_request_that_made_it() {
        let mut history = History::default();
        history.keep(100);
        let (address, bytes) = (1 << 30, 1 << 20);
        let moved = |taken| {
            vec![Moved {
                address,
                bytes,
                taken,
            }]
        };
        history.complete(STREAM, StackId(7), moved(true), |_| false);
        history.allocated(address, 1000, STREAM, StackId(7));
        assert_eq!(history.stack_of(address), StackId(7));
        history.freed(address, 1000, StackId(8));
        history.complete(StreamId(0), StackId(8), moved(false), |_| false);
        assert_eq!(history.stack_of(address), StackId::UNKNOWN);
        let entries = history.entries();
        let seen: Vec<_> = entries
            .iter()
            .map(|entry| {
                (
                    entry.action.name(),
                    entry.bytes,
                    entry.stream.0,
                    entry.stack.0,
                )
            })
            .collect();
        let expected = [
            ("segment_alloc", 1 << 20, 3, 7),
            ("alloc", 1000, 3, 7),
            ("free_requested", 1000, 3, 8),
            ("free_completed", 1000, 3, 8),
            ("segment_free", 1 << 20, 3, 8),
        ];
        assert_eq!(seen, expected);
    }
}
