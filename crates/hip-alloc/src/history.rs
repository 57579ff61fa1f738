//! What the program asked for lately, kept for memory snapshots: the "Active Memory
//! Timeline" of PyTorch's memory_viz lives from it.
//!
//! Off until somebody asks (`hip_alloc_record_history`, which stands behind
//! `torch.cuda.memory._record_memory_history`). The oldest entries make room for new ones.

use crate::units::StreamId;
use std::collections::{HashMap, VecDeque};
use std::time::{SystemTime, UNIX_EPOCH};

/// One thing that happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    pub action: Action,
    /// 0 for a request that was refused.
    pub address: u64,
    /// What the program asked for.
    pub bytes: u64,
    /// The stream it was asked for on.
    pub stream: StreamId,
    /// Microseconds since 1970.
    pub time: u64,
}

/// PyTorch's names for these are in [`Action::name`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Action {
    /// A request was served.
    Allocate,
    /// The program gave memory back.
    FreeRequested,
    /// No stream uses it any more.
    FreeCompleted,
    /// A request was refused, when so many bytes could still be had.
    OutOfMemory {
        /// Bytes.
        free: u64,
    },
}

impl Action {
    /// As PyTorch calls it.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Action::Allocate => "alloc",
            Action::FreeRequested => "free_requested",
            Action::FreeCompleted => "free_completed",
            Action::OutOfMemory { .. } => "oom",
        }
    }
}

/// The entries of one device, oldest first.
#[derive(Debug, Default)]
pub(crate) struct History {
    entries: VecDeque<Entry>,
    /// 0 while nothing is kept.
    most: usize,
    /// The streams of live requests, by address.
    live: HashMap<u64, StreamId>,
    /// Freed, but another stream may still use it.
    pending: Vec<Entry>,
}

impl History {
    /// Keeps this many entries from now on, and forgets older ones; 0 keeps none.
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
    pub(crate) fn allocated(&mut self, address: u64, bytes: u64, stream: StreamId) {
        self.live.insert(address, stream);
        self.add(Entry::now(Action::Allocate, address, bytes, stream));
    }

    /// The program freed memory; [`complete`](Self::complete) says when nobody uses it.
    pub(crate) fn freed(&mut self, address: u64, bytes: u64) {
        // One that was served before the history began is taken for the default stream's.
        let stream = self.live.remove(&address).unwrap_or(StreamId(0));
        let entry = Entry::now(Action::FreeRequested, address, bytes, stream);
        self.add(entry);
        self.pending.push(entry);
    }

    /// A request was refused, when `free` bytes could still be had.
    pub(crate) fn refused(&mut self, bytes: u64, stream: StreamId, free: u64) {
        self.add(Entry::now(Action::OutOfMemory { free }, 0, bytes, stream));
    }

    /// Notes which frees are complete: all but those of memory that awaits a stream.
    pub(crate) fn complete(&mut self, awaits: impl Fn(u64) -> bool) {
        let mut pending = std::mem::take(&mut self.pending);
        pending.retain(|freed| {
            let still = awaits(freed.address);
            if !still {
                let done = Action::FreeCompleted;
                self.add(Entry::now(done, freed.address, freed.bytes, freed.stream));
            }
            still
        });
        self.pending = pending;
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
    fn now(action: Action, address: u64, bytes: u64, stream: StreamId) -> Self {
        let since = SystemTime::now().duration_since(UNIX_EPOCH);
        Entry {
            action,
            address,
            bytes,
            stream,
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
        let told = entries.iter();
        told.map(|entry| (entry.action.name(), entry.address))
            .collect()
    }

    #[test]
    fn the_oldest_entries_make_room() {
        let mut history = History::default();
        history.keep(3);
        for address in [1, 2, 3, 4, 5] {
            history.allocated(address, 512, STREAM);
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
        history.allocated(1, 512, STREAM);
        history.freed(1, 512);
        history.freed(2, 512);
        history.complete(|address| address == 1);
        history.allocated(2, 9, StreamId(0));
        history.complete(|_| false);
        history.complete(|_| false);
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
}
