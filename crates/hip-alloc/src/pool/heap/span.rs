//! Spans: the contiguous pieces of a block, in use or free.
//!
//! The spans of one block form a list in address order (`before`, `after`); a
//! free span is also in the list of its bin in one [`FreeIndex`](super::free_index::FreeIndex).
//! Spans are stored in a table and refer to each other by index, so the whole pool is
//! safe code without reference counting, and retired slots are reused.
//!
//! A span is one cache line: a request or a free accesses three or four of them,
//! and in a real program these are rarely still in the cache.

use super::block::BlockIndex;

/// Index of a span in the [`SpanTable`].
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub(crate) struct SpanIndex(u32);

impl SpanIndex {
    /// No span: the end of a list.
    pub(super) const NONE: SpanIndex = SpanIndex(u32::MAX);

    /// A small number, reused once the span is gone.
    pub(crate) fn slot(self) -> usize {
        self.0 as usize
    }

    pub(super) fn is_none(self) -> bool {
        self == Self::NONE
    }

    pub(super) fn some(self) -> Option<SpanIndex> {
        if self.is_none() { None } else { Some(self) }
    }
}

/// The state of a span.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum SpanState {
    /// In the free index of its arena.
    Free {
        /// The number of the free on its owner's stream; 0 if it is anyone's.
        freed_at: u64,
    },
    /// Allocated by a live request.
    Used {
        /// The requested bytes; the span's size is rounded up.
        requested: u64,
        /// Other streams were recorded on it.
        shared: bool,
    },
    /// Freed by the program, but another stream may still be working on it.
    Pending {
        /// As in [`SpanState::Used`].
        requested: u64,
    },
}

impl SpanState {
    /// Taken for a request whose size is not recorded yet.
    pub(super) const USED: SpanState = SpanState::Used {
        requested: 0,
        shared: false,
    };
}

/// One contiguous piece of a block.
#[derive(Clone, Copy, Debug)]
#[repr(align(64))]
pub(super) struct Span {
    pub(super) address: u64,
    pub(super) bytes: u64,
    /// Orders free spans: older blocks first, then lower addresses.
    pub(super) position: u64,
    pub(super) before: SpanIndex,
    pub(super) after: SpanIndex,
    pub(super) bin_before: SpanIndex,
    pub(super) bin_after: SpanIndex,
    /// Its bin, while it is in one.
    pub(super) bin: u16,
    pub(super) block: BlockIndex,
    /// Which streams may use it while it is free, or did while it was used.
    pub(super) owner: Owner,
    pub(super) state: SpanState,
}

const _: () = assert!(size_of::<Span>() == 64, "one cache line");

impl Span {
    /// A free span that covers a block, in no index.
    pub(super) fn whole(
        block: BlockIndex,
        address: u64,
        bytes: u64,
        position: u64,
        owner: Owner,
    ) -> Self {
        Span {
            address,
            bytes,
            position,
            before: SpanIndex::NONE,
            after: SpanIndex::NONE,
            bin_before: SpanIndex::NONE,
            bin_after: SpanIndex::NONE,
            bin: 0,
            block,
            owner,
            state: SpanState::Free { freed_at: 0 },
        }
    }

    #[inline]
    pub(super) fn is_free(&self) -> bool {
        matches!(self.state, SpanState::Free { .. })
    }

    /// The number of the last free that made it free; 0 if no stream matters.
    #[inline]
    pub(super) fn freed_at(&self) -> u64 {
        match self.state {
            SpanState::Free { freed_at } => freed_at,
            _ => 0,
        }
    }

    /// It was merged into a free span, and is as recent as the later of the two.
    #[inline]
    pub(super) fn freed_with(&mut self, other: &Span) {
        let freed_at = self.freed_at().max(other.freed_at());
        self.state = SpanState::Free { freed_at };
    }

    /// Makes it free for everyone: the number of a free is meaningful to its own stream only.
    pub(super) fn give_to_anyone(&mut self) {
        self.owner = Owner::ANYONE;
        self.state = SpanState::Free { freed_at: 0 };
    }
}

/// Who may use a free span without waiting: one stream, or any.
///
/// Memory freed on a stream may be reused on that stream at once, since
/// work on one stream runs in order. Another stream must first know
/// that the work is done.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub(crate) struct Owner(pub(crate) u16);

impl Owner {
    /// No work in flight uses it: any stream may take it.
    pub(crate) const ANYONE: Owner = Owner(0);
}

/// All spans of a pool, by index.
pub(super) struct SpanTable {
    spans: Vec<Span>,
    /// The last retired span; `after` leads to the one before it.
    retired: SpanIndex,
}

impl Default for SpanTable {
    fn default() -> Self {
        SpanTable {
            spans: Vec::new(),
            retired: SpanIndex::NONE,
        }
    }
}

impl SpanTable {
    pub(super) fn add(&mut self, span: Span) -> SpanIndex {
        if let Some(index) = self.retired.some() {
            let slot = &mut self[index];
            let before = std::mem::replace(slot, span).after;
            self.retired = before;
            return index;
        }
        let index = SpanIndex(self.spans.len() as u32);
        self.spans.push(span);
        index
    }

    pub(super) fn retire(&mut self, index: SpanIndex) {
        self[index].after = self.retired;
        self.retired = index;
    }
}

impl std::ops::Index<SpanIndex> for SpanTable {
    type Output = Span;

    fn index(&self, index: SpanIndex) -> &Span {
        &self.spans[index.0 as usize]
    }
}

impl std::ops::IndexMut<SpanIndex> for SpanTable {
    fn index_mut(&mut self, index: SpanIndex) -> &mut Span {
        &mut self.spans[index.0 as usize]
    }
}
