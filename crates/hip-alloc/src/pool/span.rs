//! Spans: the contiguous pieces of a block, in use or free.
//!
//! The spans of one block form a list in address order (`before`, `after`); a
//! free span is also in the list of its bin in one [`FreeIndex`](super::free_index::FreeIndex).
//! Spans live in a table and refer to each other by index, so the whole pool is
//! safe code without reference counting, and a retired slot is used again.

use super::block::BlockIndex;
use super::lifetime::Birth;

/// Place of a span in the [`SpanTable`].
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub(super) struct SpanIndex(u32);

impl SpanIndex {
    /// No span: the end of a list.
    pub(super) const NONE: SpanIndex = SpanIndex(u32::MAX);

    #[cfg(test)]
    pub(super) fn new(index: usize) -> Self {
        SpanIndex(index as u32)
    }

    pub(super) fn is_none(self) -> bool {
        self == Self::NONE
    }

    pub(super) fn some(self) -> Option<SpanIndex> {
        if self.is_none() { None } else { Some(self) }
    }
}

/// What a span is doing.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum SpanState {
    /// In the free index of its arena.
    Free,
    /// Handed out.
    Used,
    /// Freed by the program, but another stream may still be working on it.
    Pending,
    /// Free, and about to go back to the driver.
    Leaving,
    /// Gone back to the driver: an address that must not be touched.
    Absent,
}

/// One contiguous piece of a block.
#[derive(Clone, Copy, Debug)]
pub(super) struct Span {
    pub(super) address: u64,
    pub(super) bytes: u64,
    /// What the program asked for; `bytes` is that, rounded up. Zero when free.
    pub(super) requested: u64,
    /// Orders free spans: older blocks first, then lower addresses.
    pub(super) position: u64,
    pub(super) before: SpanIndex,
    pub(super) after: SpanIndex,
    pub(super) bin_before: SpanIndex,
    pub(super) bin_after: SpanIndex,
    pub(super) block: BlockIndex,
    /// Which streams may use it while it is free, or did while it was used.
    pub(super) owner: Owner,
    pub(super) state: SpanState,
    /// Other streams were recorded on it: see `Streams`.
    pub(super) shared_use: bool,
    /// For [`Lifetimes`](super::lifetime::Lifetimes), when it is freed.
    pub(super) birth: Birth,
}

/// Who may take a free span without waiting: one stream, or any.
///
/// Memory freed on a stream may be taken again on that stream at once, since
/// work on one stream runs in order. For another stream it must first be known
/// that the work is done.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub(super) struct Owner(pub(super) u16);

impl Owner {
    /// Nothing in flight touches it: any stream may take it.
    pub(super) const ANYONE: Owner = Owner(0);
}

/// All spans of a pool, by index.
#[derive(Default)]
pub(super) struct SpanTable {
    spans: Vec<Span>,
    retired: Vec<SpanIndex>,
}

impl SpanTable {
    pub(super) fn add(&mut self, span: Span) -> SpanIndex {
        if let Some(index) = self.retired.pop() {
            self.spans[index.0 as usize] = span;
            return index;
        }
        let index = SpanIndex(self.spans.len() as u32);
        self.spans.push(span);
        index
    }

    pub(super) fn retire(&mut self, index: SpanIndex) {
        self.retired.push(index);
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
