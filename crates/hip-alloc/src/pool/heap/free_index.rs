//! Finds the smallest free span that is large enough.
//!
//! Spans are kept in bins by size: exact for small sizes, then 32 bins per power
//! of two (3 % wide). A two-level bitmap finds the next bin that is not empty, and
//! each bin is a list in position order (older blocks first, then addresses), so
//! the result is the best fit and, among equals, the one that keeps later blocks
//! empty. Inserting, removing and finding take constant time: lists are short
//! because bins are narrow, and a scan looks at no more than [`SCAN_LIMIT`] spans.

use super::span::{Span, SpanIndex, SpanTable};

/// Sizes below this many granules have their own bin.
const EXACT_BINS: u64 = 64;
/// log2 of the bins for each power of two above that.
const BINS_PER_DOUBLING_LOG2: u32 = 5;
const BINS_PER_DOUBLING: u64 = 1 << BINS_PER_DOUBLING_LOG2;
/// Enough for spans of 2^36 granules: 4 TiB of 64 bytes.
const DOUBLINGS: u64 = 30;
const BINS: usize = (EXACT_BINS + DOUBLINGS * BINS_PER_DOUBLING) as usize;
const WORDS: usize = BINS.div_ceil(64);
/// A longer list is not searched further: order within it is then approximate.
const SCAN_LIMIT: usize = 64;

/// The free spans of one arena, by size.
pub(super) struct FreeIndex {
    heads: Box<[SpanIndex; BINS]>,
    /// One bit for each bin that is not empty.
    occupied: [u64; WORDS],
    /// One bit for each word of `occupied` that is not zero.
    summary: u32,
    granule_log2: u32,
    bytes: u64,
}

const _: () = assert!(WORDS <= 32, "the summary is one word");
const _: () = assert!(BINS <= u16::MAX as usize, "a span has 16 bits for its bin");

impl FreeIndex {
    /// `granule`: the unit of sizes, a power of two.
    pub(super) fn new(granule: u64) -> Self {
        FreeIndex {
            heads: Box::new([SpanIndex::NONE; BINS]),
            occupied: [0; WORDS],
            summary: 0,
            granule_log2: granule.trailing_zeros(),
            bytes: 0,
        }
    }

    /// The sum of all spans in the index.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    #[inline]
    pub(super) fn insert(&mut self, spans: &mut SpanTable, index: SpanIndex) {
        self.bytes += spans[index].bytes;
        let bin = self.bin(spans[index].bytes);
        self.link(spans, index, bin);
    }

    #[inline]
    pub(super) fn remove(&mut self, spans: &mut SpanTable, index: SpanIndex) {
        self.bytes -= spans[index].bytes;
        self.unlink(spans, index);
    }

    /// A span in the index now begins or ends elsewhere, and had `before` bytes. It has
    /// only gained or lost memory that was not free, so its position in the order stays, and usually
    /// its bin too: then nothing else changes.
    #[inline(always)]
    pub(super) fn resized(&mut self, spans: &mut SpanTable, index: SpanIndex, before: u64) {
        let Span {
            bytes, bin: old, ..
        } = spans[index];
        self.bytes = self.bytes - before + bytes;
        let bin = self.bin(bytes);
        if bin != usize::from(old) {
            self.unlink(spans, index);
            self.link(spans, index, bin);
        }
    }

    #[inline(always)]
    fn link(&mut self, spans: &mut SpanTable, index: SpanIndex, bin: usize) {
        let position = spans[index].position;
        let mut before = SpanIndex::NONE;
        let mut after = self.heads[bin];
        for _ in 0..SCAN_LIMIT {
            let Some(next) = after.some() else { break };
            let next = &spans[next];
            if next.position > position {
                break;
            }
            before = after;
            after = next.bin_after;
        }
        let span = &mut spans[index];
        span.bin = bin as u16;
        span.bin_before = before;
        span.bin_after = after;
        if let Some(after) = after.some() {
            spans[after].bin_before = index;
        }
        match before.some() {
            Some(before) => spans[before].bin_after = index,
            None => {
                self.heads[bin] = index;
                self.occupied[bin / 64] |= 1 << (bin % 64);
                self.summary |= 1 << (bin / 64);
            }
        }
    }

    #[inline(always)]
    fn unlink(&mut self, spans: &mut SpanTable, index: SpanIndex) {
        let Span {
            bin,
            bin_before,
            bin_after,
            ..
        } = spans[index];
        if let Some(after) = bin_after.some() {
            spans[after].bin_before = bin_before;
        }
        if let Some(before) = bin_before.some() {
            spans[before].bin_after = bin_after;
            return;
        }
        let bin = usize::from(bin);
        self.heads[bin] = bin_after;
        if bin_after.is_none() {
            self.occupied[bin / 64] &= !(1 << (bin % 64));
            if self.occupied[bin / 64] == 0 {
                self.summary &= !(1 << (bin / 64));
            }
        }
    }

    /// The smallest span of at least `bytes`; among equals, the first in position order.
    #[inline(always)]
    pub(super) fn best_fit(&self, spans: &SpanTable, bytes: u64) -> Option<SpanIndex> {
        if self.bytes < bytes {
            return None;
        }
        let own = self.bin(bytes);
        let bin = self.next_occupied(own)?;
        // Spans in the bin of the size itself may be too small; in later ones none is.
        if let Some(found) = self.best_in_bin(spans, bin, bytes) {
            return Some(found);
        }
        let larger = self.next_occupied(bin + 1)?;
        self.best_in_bin(spans, larger, bytes)
    }

    /// Any span, to iterate while removing them.
    pub(super) fn first(&self) -> Option<SpanIndex> {
        let bin = self.next_occupied(0)?;
        self.heads[bin].some()
    }

    #[inline(always)]
    fn best_in_bin(&self, spans: &SpanTable, bin: usize, bytes: u64) -> Option<SpanIndex> {
        let mut next = self.heads[bin];
        if bin < EXACT_BINS as usize {
            return next.some();
        }
        let mut best: Option<(u64, SpanIndex)> = None;
        for _ in 0..SCAN_LIMIT {
            let Some(index) = next.some() else { break };
            let span = &spans[index];
            if span.bytes == bytes {
                return Some(index);
            }
            if span.bytes > bytes && best.is_none_or(|(smallest, _)| span.bytes < smallest) {
                best = Some((span.bytes, index));
            }
            next = span.bin_after;
        }
        best.map(|(_, index)| index)
    }

    fn next_occupied(&self, from: usize) -> Option<usize> {
        if from >= BINS {
            return None;
        }
        let word = from / 64;
        let here = self.occupied[word] & (u64::MAX << (from % 64));
        if here != 0 {
            return Some(word * 64 + here.trailing_zeros() as usize);
        }
        let later = self.summary.checked_shr(word as u32 + 1).unwrap_or(0);
        if later == 0 {
            return None;
        }
        let word = word + 1 + later.trailing_zeros() as usize;
        Some(word * 64 + self.occupied[word].trailing_zeros() as usize)
    }

    fn bin(&self, bytes: u64) -> usize {
        let granules = bytes >> self.granule_log2;
        // The upper six bits of the size; smaller sizes are exact.
        let doubling = (granules | BINS_PER_DOUBLING).ilog2() - BINS_PER_DOUBLING_LOG2;
        let bin = u64::from(doubling) * BINS_PER_DOUBLING + (granules >> doubling);
        (bin as usize).min(BINS - 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_sizes_have_bins_of_their_own_and_larger_ones_narrow_bins() {
        let index = FreeIndex::new(512);
        for granules in 0..EXACT_BINS {
            assert_eq!(index.bin(granules * 512), granules as usize);
        }
        // The smallest size of each bin, and the largest of the one before.
        for bin in EXACT_BINS..BINS as u64 - 1 {
            let (doubling, part) = (bin / BINS_PER_DOUBLING - 1, bin % BINS_PER_DOUBLING);
            let smallest = (BINS_PER_DOUBLING + part) << doubling;
            assert_eq!(index.bin(smallest * 512), bin as usize);
            assert_eq!(index.bin((smallest - 1) * 512), bin as usize - 1);
        }
        assert_eq!(index.bin(1 << 62), BINS - 1);
    }
}
