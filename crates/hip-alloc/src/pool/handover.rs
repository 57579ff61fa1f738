//! Streams: when memory that one stream freed may be used by another, or go back.
//!
//! Work on a stream runs in order, so memory freed on it may be taken again on it
//! at once. For another stream, or for the driver, an event recorded after the
//! free must have been reached. Events are recorded only when somebody wants the
//! memory, and asked about without waiting; the pool waits only when the
//! alternative is to fail.

use super::holes::DepartingPart;
use super::*;
use crate::driver::EventId;
use std::collections::HashMap;

/// What must happen before memory is safe.
#[derive(Clone, Copy, Debug)]
enum Awaited {
    /// The event is reached.
    Event(EventId),
    /// An event on this stream: recording one failed, and is tried again. A later event
    /// covers more work than the one that failed, so it is as safe.
    Recording(StreamId),
}

/// How to ask for an event.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Patience {
    Ask,
    Wait,
}

/// The streams a pool has seen, and what waits for them.
#[derive(Default)]
pub(super) struct Streams {
    known: Vec<Stream>,
    /// Freed while other streams may use it: the events that must be reached.
    pending: Vec<(SpanIndex, Vec<Awaited>)>,
    pending_bytes: u64,
    /// Empty blocks that go back once their stream is done with them.
    departing: Vec<(BlockIndex, EventId)>,
    /// Parts of blocks that do.
    departing_parts: Vec<DepartingPart>,
    departing_bytes: u64,
    /// Streams recorded on a live span, by the span.
    recorded: HashMap<SpanIndex, Vec<StreamId>>,
    last: usize,
}

#[derive(Clone, Copy)]
struct Stream {
    id: StreamId,
    /// Counts the frees on this stream: a free span remembers when it was freed.
    frees: u64,
    /// Recorded for a hand-over, after this many frees.
    event: Option<(EventId, u64)>,
}

impl Streams {
    pub(super) fn owners(&self) -> usize {
        self.known.len() + 1
    }

    /// The owner for a stream; the first time, a new one.
    pub(super) fn owner(&mut self, id: StreamId) -> Owner {
        if self
            .known
            .get(self.last)
            .is_some_and(|stream| stream.id == id)
        {
            return Owner(self.last as u16 + 1);
        }
        let at = self.known.iter().position(|stream| stream.id == id);
        self.last = at.unwrap_or_else(|| {
            self.known.push(Stream {
                id,
                frees: 0,
                event: None,
            });
            self.known.len() - 1
        });
        Owner(self.last as u16 + 1)
    }

    pub(super) fn id(&self, owner: Owner) -> StreamId {
        match usize::from(owner.0).checked_sub(1) {
            Some(at) => self.known[at].id,
            None => StreamId::DEFAULT,
        }
    }

    /// Numbers a free on the owner's stream.
    pub(super) fn next_free(&mut self, owner: Owner) -> u64 {
        match usize::from(owner.0).checked_sub(1) {
            Some(at) => {
                self.known[at].frees += 1;
                self.known[at].frees
            }
            None => 0,
        }
    }

    pub(super) fn waiting(&self) -> bool {
        !(self.pending.is_empty() && self.departing.is_empty() && self.departing_parts.is_empty())
    }

    /// Freed spans that a stream may still use.
    pub(super) fn pending(&self) -> impl Iterator<Item = SpanIndex> + '_ {
        self.pending.iter().map(|(index, _)| *index)
    }

    pub(super) fn pending_bytes(&self) -> u64 {
        self.pending_bytes
    }

    pub(super) fn departing_bytes(&self) -> u64 {
        self.departing_bytes
    }

    /// Part of a block goes back once the event is reached.
    pub(super) fn part_departs(&mut self, span: SpanIndex, bytes: u64, event: EventId) {
        self.departing_bytes += bytes;
        self.departing_parts
            .push(DepartingPart { span, bytes, event });
    }
}

impl Pool {
    /// Notes that work on `stream` uses the allocation at `address`, beyond the
    /// stream it was allocated on. It is not reused before that work is done.
    pub fn record_stream(&mut self, address: u64, stream: StreamId) -> Result<(), FreeError> {
        let index = self
            .addresses
            .get(&self.spans, address)
            .ok_or(FreeError::Unknown)?;
        if self.streams.id(self.spans[index].owner) == stream {
            return Ok(());
        }
        self.spans[index].shared_use = true;
        let streams = self.streams.recorded.entry(index).or_default();
        if !streams.contains(&stream) {
            streams.push(stream);
        }
        Ok(())
    }

    /// A freed span that other streams were recorded on waits for them.
    pub(super) fn defer(&mut self, driver: &mut dyn Driver, index: SpanIndex) {
        let streams = self.streams.recorded.remove(&index).unwrap_or_default();
        let mut awaited = Vec::with_capacity(streams.len());
        for stream in streams {
            match driver.record(stream) {
                Ok(Some(event)) => awaited.push(Awaited::Event(event)),
                Ok(None) => {}
                Err(error) => {
                    self.trouble(error);
                    awaited.push(Awaited::Recording(stream));
                }
            }
        }
        if awaited.is_empty() {
            self.reclaim(driver, index);
            return;
        }
        self.spans[index].state = SpanState::Pending;
        self.streams.pending_bytes += self.spans[index].requested;
        self.streams.pending.push((index, awaited));
    }

    /// Asks, without waiting, which freed spans and empty blocks are safe by now.
    pub(super) fn poll(&mut self, driver: &mut dyn Driver) {
        self.finish(driver, Patience::Ask);
    }

    /// Waits until every freed span and departing block is safe. What cannot be waited
    /// for by an event is waited for with the whole device.
    pub(super) fn settle(&mut self, driver: &mut dyn Driver) {
        self.finish(driver, Patience::Wait);
        let without_event = |awaited: &[Awaited]| {
            awaited
                .iter()
                .any(|awaited| matches!(awaited, Awaited::Recording(_)))
        };
        if !self
            .streams
            .pending
            .iter()
            .any(|(_, awaited)| without_event(awaited))
        {
            return;
        }
        match driver.synchronize() {
            Ok(()) => {
                for (_, awaited) in &mut self.streams.pending {
                    awaited.retain(|awaited| matches!(awaited, Awaited::Event(_)));
                }
                self.finish(driver, Patience::Wait);
            }
            Err(error) => self.trouble(error),
        }
    }

    fn finish(&mut self, driver: &mut dyn Driver, patience: Patience) {
        for (index, mut awaited) in std::mem::take(&mut self.streams.pending) {
            awaited.retain_mut(|awaited| !self.is_over(driver, awaited, patience));
            if awaited.is_empty() {
                self.streams.pending_bytes -= self.spans[index].requested;
                self.reclaim(driver, index);
            } else {
                self.streams.pending.push((index, awaited));
            }
        }
        for (block, event) in std::mem::take(&mut self.streams.departing) {
            if !self.is_over(driver, &mut Awaited::Event(event), patience) {
                self.streams.departing.push((block, event));
                continue;
            }
            self.streams.departing_bytes -= self.blocks[block].held();
            let first = self.blocks[block].first;
            self.spans[first].owner = Owner::ANYONE;
            self.spans[first].requested = 0;
            if let Err(error) = self.give_back(driver, block) {
                self.trouble(error);
                self.keep_empty(block);
            }
        }
        for part in std::mem::take(&mut self.streams.departing_parts) {
            if self.is_over(driver, &mut Awaited::Event(part.event), patience) {
                self.streams.departing_bytes -= part.bytes;
                self.part_leaves(driver, part.span);
            } else {
                self.streams.departing_parts.push(part);
            }
        }
    }

    /// Whether that has happened. A recording that failed is made up for here.
    fn is_over(
        &mut self,
        driver: &mut dyn Driver,
        awaited: &mut Awaited,
        patience: Patience,
    ) -> bool {
        let event = match *awaited {
            Awaited::Event(event) => event,
            Awaited::Recording(stream) => match driver.record(stream) {
                Ok(None) => return true,
                Ok(Some(event)) => {
                    *awaited = Awaited::Event(event);
                    event
                }
                // The first failure was reported.
                Err(_) => return false,
            },
        };
        let over = match patience {
            Patience::Ask => driver.reached(event),
            Patience::Wait => driver.wait(event).map(|()| true),
        };
        over.unwrap_or_else(|error| {
            self.trouble(error);
            false
        })
    }

    /// Sends an empty block back, as soon as its stream is done with it.
    pub(super) fn depart(
        &mut self,
        driver: &mut dyn Driver,
        block: BlockIndex,
    ) -> Result<(), DriverError> {
        let first = self.blocks[block].first;
        let owner = self.spans[first].owner;
        if owner != Owner::ANYONE
            && let Some(event) = driver.record(self.streams.id(owner))?
        {
            self.streams.departing_bytes += self.blocks[block].held();
            self.streams.departing.push((block, event));
            return Ok(());
        }
        self.spans[first].owner = Owner::ANYONE;
        self.spans[first].requested = 0;
        self.give_back(driver, block)
    }

    /// Makes what other streams freed available to everyone, where their work on it
    /// is done; waits for it if `wait`. Whether anything became available.
    pub(super) fn hand_over(&mut self, driver: &mut dyn Driver, to: Owner, wait: bool) -> bool {
        let mut any = false;
        for at in 0..self.streams.known.len() {
            let owner = Owner(at as u16 + 1);
            if owner != to && self.has_free(owner) {
                any |= match self.safe_until(driver, at, wait) {
                    Ok(frees) => frees > 0 && self.release_to_anyone(driver, owner, frees),
                    Err(error) => {
                        self.trouble(error);
                        false
                    }
                };
            }
        }
        any
    }

    fn has_free(&self, owner: Owner) -> bool {
        [Region::Lasting, Region::Passing, Region::Small]
            .into_iter()
            .any(|region| self.free[Self::arena(region, owner)].bytes() > 0)
            || self
                .empty
                .iter()
                .any(|block| self.spans[self.blocks[*block].first].owner == owner)
    }

    /// The number of the last free on a stream that no work can touch any more.
    fn safe_until(
        &mut self,
        driver: &mut dyn Driver,
        at: usize,
        wait: bool,
    ) -> Result<u64, DriverError> {
        let Stream { id, frees, event } = self.streams.known[at];
        let mut covered = 0;
        if let Some((event, until)) = event {
            if wait {
                driver.wait(event)?;
            } else if !driver.reached(event)? {
                return Ok(0);
            }
            self.streams.known[at].event = None;
            covered = until;
        }
        if covered == frees {
            return Ok(frees);
        }
        // What was freed since is not covered: a new event, if need be for next time.
        match driver.record(id) {
            Ok(None) => return Ok(frees),
            Ok(Some(event)) => self.streams.known[at].event = Some((event, frees)),
            Err(error) if !wait => return Err(error),
            Err(_) => return driver.synchronize().map(|()| frees),
        }
        if !wait {
            return Ok(covered);
        }
        if let Some((event, _)) = self.streams.known[at].event {
            driver.wait(event)?;
            self.streams.known[at].event = None;
        }
        Ok(frees)
    }

    /// Moves free spans of `owner`, freed up to the `frees`-th free, to everyone.
    fn release_to_anyone(&mut self, driver: &mut dyn Driver, owner: Owner, frees: u64) -> bool {
        let mut moved = false;
        // Dealt with when no span is out of its index any more.
        let (mut emptied, mut unused) = (Vec::new(), Vec::new());
        for block in &self.empty {
            let span = &mut self.spans[self.blocks[*block].first];
            if span.owner == owner && span.requested <= frees {
                span.owner = Owner::ANYONE;
                span.requested = 0;
                moved = true;
            }
        }
        for region in [Region::Lasting, Region::Passing, Region::Small] {
            let arena = Self::arena(region, owner);
            let mut later = Vec::new();
            while let Some(index) = self.free[arena].first() {
                self.free[arena].remove(&mut self.spans, index);
                if self.spans[index].requested > frees {
                    later.push(index);
                    continue;
                }
                moved = true;
                let whole = self.coalesce_anyones(index);
                let span = &self.spans[whole];
                let block = span.block;
                if span.before.is_none() && span.after.is_none() {
                    emptied.push(block);
                } else {
                    self.free[Self::arena(region, Owner::ANYONE)].insert(&mut self.spans, whole);
                    if self.blocks[block].used == 0 && self.blocks[block].absent > 0 {
                        unused.push(block);
                    }
                }
            }
            for index in later {
                self.free[arena].insert(&mut self.spans, index);
            }
        }
        for block in emptied {
            self.emptied(driver, block);
        }
        // Absent handles keep the pieces of such a block from becoming one.
        for block in unused {
            let in_pieces = |block: &Block| self.spans[block.first].after.some().is_some();
            if self.blocks.get(block).is_some_and(in_pieces) {
                self.join_owners(driver, block);
            }
        }
        moved
    }

    /// Gives a free span that is in no index to everyone, and joins it with what is
    /// everyone's already. (Not with an owner's: that would make it the owner's again.)
    fn coalesce_anyones(&mut self, index: SpanIndex) -> SpanIndex {
        self.spans[index].owner = Owner::ANYONE;
        // The number of a free means something to its own stream only.
        self.spans[index].requested = 0;
        let Span { before, after, .. } = self.spans[index];
        let mut whole = index;
        if let Some(before) = self.joinable(before, Owner::ANYONE, false) {
            self.unlist(before);
            self.absorb_next(before);
            whole = before;
        }
        if let Some(after) = self.joinable(after, Owner::ANYONE, false) {
            self.unlist(after);
            self.absorb_next(whole);
        }
        whole
    }

    /// A block of which nothing is used, but whose pieces belong to several streams,
    /// becomes one empty block if their work is done. If it is not, that happens at the
    /// next hand-over.
    pub(super) fn join_owners(&mut self, driver: &mut dyn Driver, block: BlockIndex) {
        let first = self.blocks[block].first;
        let pieces: Vec<SpanIndex> =
            std::iter::successors(Some(first), |index| self.spans[*index].after.some()).collect();
        let leaves = |index: &SpanIndex| self.spans[*index].state == SpanState::Leaving;
        if pieces.iter().any(leaves) {
            return;
        }
        let mut owners: Vec<Owner> = pieces
            .iter()
            .map(|index| self.spans[*index].owner)
            .collect();
        owners.sort_unstable_by_key(|owner| owner.0);
        owners.dedup();
        for owner in owners {
            let Some(at) = usize::from(owner.0).checked_sub(1) else {
                continue;
            };
            match self.safe_until(driver, at, false) {
                Ok(frees) if frees == self.streams.known[at].frees => {}
                Ok(_) => return,
                Err(error) => return self.trouble(error),
            }
        }
        for index in &pieces {
            if self.spans[*index].state == SpanState::Free {
                self.unlist(*index);
            }
            self.spans[*index].state = SpanState::Free;
            self.spans[*index].owner = Owner::ANYONE;
            self.spans[*index].requested = 0;
        }
        for _ in 1..pieces.len() {
            self.absorb_next(first);
        }
        self.emptied(driver, block);
    }
}
