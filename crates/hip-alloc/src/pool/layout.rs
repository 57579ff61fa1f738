//! What a pool holds, for snapshots and checks.

use crate::units::StreamId;

/// One block of a pool, for snapshots.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BlockLayout {
    /// Where it begins.
    pub address: u64,
    /// Size in bytes.
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
    /// Size in bytes.
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
    /// Allocated by a live request.
    Live,
    /// Freed, but another stream may still be working on it.
    AwaitingFree,
    /// Free for the next request.
    Free,
}
