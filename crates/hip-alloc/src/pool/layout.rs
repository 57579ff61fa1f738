//! What a pool holds, for snapshots and checks.

use super::*;

impl Pool {
    /// The live allocations, as address and requested bytes, in no order.
    pub fn live(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        self.blocks.iter().flat_map(|(_, block)| {
            std::iter::successors(block.first.some(), |index| self.spans[*index].after.some())
                .map(|index| &self.spans[index])
                .filter(|span| span.state == SpanState::Used)
                .map(|span| (span.address, span.requested))
        })
    }

    /// Addresses that the program gave back while another stream may still use them.
    pub fn awaiting(&self) -> impl Iterator<Item = u64> + '_ {
        self.streams
            .pending()
            .map(|index| self.spans[index].address)
    }

    /// What the pool holds, in address order. A block that has given back handles is told
    /// as several, one for each part that is still there.
    pub fn layout(&self) -> Vec<BlockLayout> {
        let mut layout = Vec::new();
        for (_, block) in self.blocks.iter() {
            let mut part: Option<BlockLayout> = None;
            let spans =
                std::iter::successors(block.first.some(), |index| self.spans[*index].after.some());
            for span in spans.map(|index| &self.spans[index]) {
                // An unused block is one span; where in it handles are missing is forgotten.
                let bytes = span.bytes.min(block.held());
                let state = match span.state {
                    SpanState::Used => SpanUse::Live,
                    SpanState::Pending | SpanState::Leaving => SpanUse::AwaitingFree,
                    SpanState::Free => SpanUse::Free,
                    SpanState::Absent => {
                        layout.extend(part.take());
                        continue;
                    }
                };
                let part = part.get_or_insert_with(|| BlockLayout {
                    address: span.address,
                    bytes: 0,
                    direct: block.direct,
                    spans: Vec::new(),
                });
                part.bytes += bytes;
                part.spans.push(SpanLayout {
                    address: span.address,
                    bytes,
                    requested: span.requested,
                    state,
                    stream: self.streams.id(span.owner),
                });
            }
            layout.extend(part);
        }
        layout.sort_by_key(|block| block.address);
        layout
    }
}

/// One block of a pool, for snapshots.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BlockLayout {
    /// Where it begins.
    pub address: u64,
    /// Its size.
    pub bytes: u64,
    /// Whether it holds one large request.
    pub direct: bool,
    /// Its spans in address order; together they are the block.
    pub spans: Vec<SpanLayout>,
}

/// One span of a block, for snapshots.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SpanLayout {
    /// Where it begins.
    pub address: u64,
    /// Its size.
    pub bytes: u64,
    /// What was asked for; not meaningful when free.
    pub requested: u64,
    /// What it is doing.
    pub state: SpanUse,
    /// The stream that may use it, or did.
    pub stream: StreamId,
}

/// What a span is doing, for snapshots.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SpanUse {
    /// Handed out.
    Live,
    /// Freed, but another stream may still be working on it.
    AwaitingFree,
    /// Free.
    Free,
}
