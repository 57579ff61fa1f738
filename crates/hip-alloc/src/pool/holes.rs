//! Giving back holes inside blocks, where the driver maps memory in handles.
//!
//! ```text
//!  block   | used |  free            | used |      handles of one size
//!          | handle | handle | handle | handle |
//!                   |  goes  |                     back to the driver: absent
//! ```
//!
//! A free span that covers whole handles can lose them; what is left at either end stays
//! free. The addresses stay reserved and are not used again until the block as a whole
//! goes back: address space costs nothing. A block that has lost handles serves what is
//! left of it, and goes back as soon as nothing in it is used.

use super::*;
use crate::driver::EventId;

impl Pool {
    /// Gives back whole handles of the largest free span that has any; `false` if there is
    /// none, or the driver refused.
    pub(super) fn give_back_hole(&mut self, driver: &mut dyn Driver) -> bool {
        let Some(mapping) = self.mapping else {
            return false;
        };
        let found = self
            .free
            .iter()
            .filter_map(|arena| {
                arena.largest(&self.spans, mapping.handle, |index| {
                    self.whole_handles(index, mapping.handle)
                })
            })
            .max_by_key(|(index, (start, end))| (end - start, self.spans[*index].address));
        let Some((index, (start, end))) = found else {
            return false;
        };
        let owner = self.spans[index].owner;
        let event = if owner == Owner::ANYONE {
            None
        } else {
            match driver.record(self.streams.id(owner)) {
                Ok(event) => event,
                Err(error) => {
                    self.trouble(error);
                    return false;
                }
            }
        };
        let part = self.isolate(index, start, end);
        match event {
            Some(event) => {
                self.streams.part_departs(part, end - start, event);
                true
            }
            None => self.part_leaves(driver, part),
        }
    }

    /// The handles that lie wholly in a free span, as a range of addresses.
    fn whole_handles(&self, index: SpanIndex, handle: u64) -> Option<(u64, u64)> {
        let span = &self.spans[index];
        let block = &self.blocks[span.block];
        let from = (span.address - block.address).next_multiple_of(handle);
        let to = span.address + span.bytes - block.address;
        // The last handle of a block may be smaller.
        let to = if to == block.bytes {
            to
        } else {
            to - to % handle
        };
        (block.mapped && from < to).then_some((block.address + from, block.address + to))
    }

    /// Makes the range a span of its own, in no index; what is beside it stays free.
    fn isolate(&mut self, index: SpanIndex, start: u64, end: u64) -> SpanIndex {
        self.unlist(index);
        let span = self.spans[index];
        let arena = Self::arena(self.blocks[span.block].region, span.owner);
        let mut part = index;
        if start > span.address {
            part = self.split(index, start - span.address);
            self.free[arena].insert(&mut self.spans, index);
        }
        if end < span.address + span.bytes {
            let rest = self.split(part, end - start);
            self.free[arena].insert(&mut self.spans, rest);
        }
        self.spans[part].state = SpanState::Leaving;
        part
    }

    /// Cuts a span that is in no index; the second piece, as free as the first.
    fn split(&mut self, index: SpanIndex, bytes: u64) -> SpanIndex {
        let span = self.spans[index];
        let second = self.spans.add(Span {
            address: span.address + bytes,
            bytes: span.bytes - bytes,
            position: span.position + bytes,
            before: index,
            ..span
        });
        if let Some(after) = span.after.some() {
            self.spans[after].before = second;
        }
        self.spans[index].bytes = bytes;
        self.spans[index].after = second;
        second
    }

    /// Nothing in flight touches the part any more: it goes.
    pub(super) fn part_leaves(&mut self, driver: &mut dyn Driver, part: SpanIndex) -> bool {
        let Span {
            address,
            bytes,
            block,
            ..
        } = self.spans[part];
        let gone = driver.release_part(address, bytes);
        if let Err(error) = gone {
            self.trouble(error);
            self.spans[part].state = SpanState::Free;
            let whole = self.coalesce(part);
            let span = &self.spans[whole];
            if span.before.is_none() && span.after.is_none() {
                self.emptied(driver, block);
            } else {
                let arena = Self::arena(self.blocks[block].region, span.owner);
                self.free[arena].insert(&mut self.spans, whole);
            }
            return false;
        }
        let span = &mut self.spans[part];
        span.state = SpanState::Absent;
        span.owner = Owner::ANYONE;
        span.requested = 0;
        self.stats.held_bytes -= bytes;
        self.stats.driver_frees += self.handles(bytes);
        let entry = &mut self.blocks[block];
        entry.absent += bytes;
        if entry.used == 0 {
            self.join_owners(driver, block);
        } else if entry.is_large_and_passing() {
            self.large_blocks.left(bytes);
        }
        true
    }

    /// How many handles that many mapped bytes are: each is a call to the driver.
    pub(super) fn handles(&self, bytes: u64) -> u64 {
        self.mapping
            .map_or(1, |mapping| bytes.div_ceil(mapping.handle))
    }
}

/// A part of a block that goes back once its stream is done with it.
#[derive(Clone, Copy, Debug)]
pub(super) struct DepartingPart {
    pub(super) span: SpanIndex,
    pub(super) bytes: u64,
    pub(super) event: EventId,
}
