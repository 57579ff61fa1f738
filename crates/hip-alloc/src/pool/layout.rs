//! The contents of a pool, for snapshots and checks.

use crate::units::StreamId;

/// One block of a pool, for snapshots.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BlockLayout {
    /// Its start address.
    pub address: u64,
    /// Size in bytes.
    pub bytes: u64,
    /// Whether it holds one large request.
    pub direct: bool,
    /// Its spans in address order, which cover the block.
    pub spans: Vec<SpanLayout>,
}

/// One span of a block, for snapshots.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SpanLayout {
    /// Its start address.
    pub address: u64,
    /// Size in bytes.
    pub bytes: u64,
    /// The requested bytes; not meaningful for a free span.
    pub requested: u64,
    /// Its state.
    pub state: SpanUse,
    /// The stream that may use it, or did.
    pub stream: StreamId,
}

/// The state of a span, for snapshots.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SpanUse {
    /// Allocated by a live request.
    Live,
    /// Freed, but another stream may still be working on it.
    AwaitingFree,
    /// Free for the next request.
    Free,
}
