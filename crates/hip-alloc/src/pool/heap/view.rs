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

    /// The blocks in address order.
    pub(crate) fn layout(&self, stream_of: impl Fn(Owner) -> StreamId) -> Vec<BlockLayout> {
        let mut layout: Vec<_> = self
            .blocks
            .iter()
            .map(|(index, block)| BlockLayout {
                address: block.address,
                bytes: block.bytes,
                direct: block.direct,
                spans: self
                    .spans_of(index)
                    .map(|span| {
                        let (state, requested) = match span.state {
                            SpanState::Used { requested, .. } => (SpanUse::Live, requested),
                            SpanState::Pending { requested } => (SpanUse::AwaitingFree, requested),
                            SpanState::Free { .. } => (SpanUse::Free, 0),
                        };
                        SpanLayout {
                            address: span.address,
                            bytes: span.bytes,
                            requested,
                            state,
                            stream: stream_of(span.owner),
                        }
                    })
                    .collect(),
            })
            .collect();
        layout.sort_by_key(|block| block.address);
        layout
    }
}
