//! Spans: the contiguous pieces of a block, in use or free.
//!
//! The spans of one block form a list in address order (`before`, `after`); a
//! free span is also in the list of its bin in one [`FreeIndex`](super::free_index::FreeIndex).
//! Spans live in a table and refer to each other by index, so the whole pool is
//! safe code without reference counting, and a retired slot is used again.
//!
//! A span is one cache line: a request or a free reads and writes three or four of them,
//! and in a program these are rarely still in the cache. What only some requests need is
//! kept beside.

use super::block::BlockIndex;
use super::lifetime::Birth;

/// Place of a span in the [`SpanTable`].
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub(super) struct SpanIndex(u32);

impl SpanIndex {
    /// No span: the end of a list.
    pub(super) const NONE: SpanIndex = SpanIndex(u32::MAX);

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
#[repr(align(64))]
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
    /// The bin that it is in, while it is in one.
    pub(super) bin: u16,
    pub(super) block: BlockIndex,
    /// Which streams may use it while it is free, or did while it was used.
    pub(super) owner: Owner,
    pub(super) state: SpanState,
    /// Other streams were recorded on it: see `Streams`.
    pub(super) shared_use: bool,
    /// The table has its [`Birth`].
    pub(super) born: bool,
}

const _: () = assert!(size_of::<Span>() == 64, "one cache line");

impl Span {
    /// A free span that fills a block, in no index.
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
            requested: 0,
            position,
            before: SpanIndex::NONE,
            after: SpanIndex::NONE,
            bin_before: SpanIndex::NONE,
            bin_after: SpanIndex::NONE,
            bin: 0,
            block,
            owner,
            state: SpanState::Free,
            shared_use: false,
            born: false,
        }
    }
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
pub(super) struct SpanTable {
    spans: Vec<Span>,
    /// What [`Lifetimes`](super::lifetime::Lifetimes) wants to know of a span when it is
    /// freed; up to the highest span that has it.
    births: Vec<Birth>,
    /// The last one that retired; `after` leads to the one before it.
    retired: SpanIndex,
}

impl Default for SpanTable {
    fn default() -> Self {
        SpanTable {
            spans: Vec::new(),
            births: Vec::new(),
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

    /// Keeps what is to be known of a span when it is freed: of most, nothing.
    pub(super) fn set_birth(&mut self, index: SpanIndex, birth: Birth) {
        let born = birth.is_noted();
        self[index].born = born;
        if born {
            let at = index.0 as usize;
            if at >= self.births.len() {
                self.births.resize(at + 1, Birth::default());
            }
            self.births[at] = birth;
        }
    }

    /// What was kept.
    pub(super) fn birth(&self, index: SpanIndex) -> Birth {
        if self[index].born {
            self.births[index.0 as usize]
        } else {
            Birth::default()
        }
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
