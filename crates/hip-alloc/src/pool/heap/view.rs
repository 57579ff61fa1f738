//! The contents of the heap, for snapshots and checks.

use super::span::SpanState;
use super::{Heap, Owner};
use crate::pool::layout::{BlockLayout, SpanLayout, SpanUse};
use crate::units::StreamId;

impl Heap {
    /// The spans in use, as address and requested bytes, in no particular order.
    pub(crate) fn live(&self) -> impl Iterator<Item = (u64, u64)> {
        let spans = self
            .blocks
            .iter()
            .flat_map(|(block, _)| self.spans_of(block));
        spans.filter_map(|span| match span.state {
            SpanState::Used { requested, .. } => Some((span.address, requested)),
            _ => None,
        })
    }

    /// The blocks in address order. A block of which handles were returned is shown as several,
    /// one for each remaining part.
    pub(crate) fn layout(&self, stream_of: impl Fn(Owner) -> StreamId) -> Vec<BlockLayout> {
        let mut layout = Vec::new();
        for (index, block) in self.blocks.iter() {
            let mut part: Option<BlockLayout> = None;
            for span in self.spans_of(index) {
                // An unused block is one span; the positions of missing handles are not kept.
                let bytes = span.bytes.min(block.held());
                let (state, requested) = match span.state {
                    SpanState::Used { requested, .. } => (SpanUse::Live, requested),
                    SpanState::Pending { requested } => (SpanUse::AwaitingFree, requested),
                    SpanState::Leaving { .. } => (SpanUse::AwaitingFree, 0),
                    SpanState::Free { .. } => (SpanUse::Free, 0),
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
                    requested,
                    state,
                    stream: stream_of(span.owner),
                });
            }
            layout.extend(part);
        }
        layout.sort_by_key(|block| block.address);
        layout
    }
}
