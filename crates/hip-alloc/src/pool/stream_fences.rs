//! Streams: when memory freed on one stream may be used by another, or returned to the driver.
//!
//! Work on a stream runs in order, so memory freed on it may be reused on it
//! at once. For another stream, or for the driver, an event recorded after the
//! free must be complete. Events are recorded only when the memory is needed,
//! and queried without waiting; the pool waits only if the
//! alternative is to fail.

use super::heap::{BlockIndex, Owner, SpanIndex};
use crate::driver::{Driver, DriverError, EventId};
use crate::units::StreamId;
use std::collections::HashMap;

/// Driver errors that cannot be returned to a caller.
pub(crate) type Errors = Vec<DriverError>;

/// What must happen before memory is safe.
#[derive(Clone, Copy, Debug)]
enum Fence {
    /// The event is complete.
    Event(EventId),
    /// An event on this stream: recording one failed, or was not possible then, and is tried
    /// again. A later event covers more work, so it is just as safe.
    Recording(StreamId),
}

/// How to check an event.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum FenceCheck {
    Query,
    Wait,
}

/// Memory that is returned to the driver once its stream is done with it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Departing {
    /// An empty block.
    Block(BlockIndex),
    /// An isolated part of a block.
    Part(SpanIndex),
}

/// Up to how many streams are searched linearly; for more there is a map.
const FEW_STREAMS: usize = 32;

/// The streams that a pool has seen, and what waits for them.
#[derive(Default)]
pub(crate) struct StreamFences {
    known: Vec<Stream>,
    /// The index of each stream.
    places: HashMap<StreamId, usize>,
    /// Freed while other streams may use it: the fences to pass.
    pending: Vec<(SpanIndex, u64, Vec<Fence>)>,
    pending_bytes: u64,
    departing: Vec<(Departing, u64, EventId)>,
    departing_bytes: u64,
    /// Streams recorded on a live span, by the span.
    recorded: HashMap<SpanIndex, Vec<StreamId>>,
    last: usize,
}

#[derive(Clone, Copy)]
struct Stream {
    id: StreamId,
    /// Number of frees on this stream: a free span remembers when it was freed.
    frees: u64,
    /// Recorded for another stream, after this many frees.
    event: Option<(EventId, u64)>,
}

impl StreamFences {
    /// The owner for a stream; at the first call, a new one. `None` if there are more streams than
    /// owners: two streams with the same owner would share its memory without a fence between them.
    #[inline]
    pub(crate) fn owner(&mut self, id: StreamId) -> Option<Owner> {
        let is_last = |stream: &Stream| stream.id == id;
        if !self.known.get(self.last).is_some_and(is_last) {
            self.last = self.find_or_add(id)?;
        }
        u16::try_from(self.last + 1).ok().map(Owner)
    }

    fn find_or_add(&mut self, id: StreamId) -> Option<usize> {
        let found = match self.known.len() <= FEW_STREAMS {
            true => self.known.iter().position(|stream| stream.id == id),
            false => self.places.get(&id).copied(),
        };
        if found.is_some() {
            return found;
        }
        let at = self.known.len();
        if at == usize::from(u16::MAX) {
            return None;
        }
        self.known.push(Stream {
            id,
            frees: 0,
            event: None,
        });
        self.places.insert(id, at);
        Some(at)
    }

    /// All owners but [`Owner::ANYONE`].
    pub(crate) fn owners(&self) -> impl Iterator<Item = Owner> + use<> {
        (1..=self.known.len() as u16).map(Owner)
    }

    /// The stream of an owner.
    pub(crate) fn id(&self, owner: Owner) -> StreamId {
        Self::place(owner).map_or(StreamId::DEFAULT, |at| self.known[at].id)
    }

    fn place(owner: Owner) -> Option<usize> {
        usize::from(owner.0).checked_sub(1)
    }

    /// Numbers a free on the owner's stream.
    #[inline]
    pub(crate) fn next_free(&mut self, owner: Owner) -> u64 {
        Self::place(owner).map_or(0, |at| {
            self.known[at].frees += 1;
            self.known[at].frees
        })
    }

    /// Whether anything waits for an event.
    #[inline]
    pub(crate) fn waiting(&self) -> bool {
        !(self.pending.is_empty() && self.departing.is_empty())
    }

    /// Freed spans that a stream may still use.
    pub(crate) fn pending(&self) -> impl Iterator<Item = SpanIndex> + '_ {
        self.pending.iter().map(|(span, ..)| *span)
    }

    /// The requested bytes of these.
    pub(crate) fn pending_bytes(&self) -> u64 {
        self.pending_bytes
    }

    /// Bytes that are being returned to the driver.
    pub(crate) fn departing_bytes(&self) -> u64 {
        self.departing_bytes
    }

    /// Another stream uses a live span.
    pub(crate) fn record_use(&mut self, span: SpanIndex, stream: StreamId) {
        let streams = self.recorded.entry(span).or_default();
        if !streams.contains(&stream) {
            streams.push(stream);
        }
    }

    /// A span of `requested` bytes was freed, and other streams were
    /// recorded on it. Returns whether it has to wait for them. Without a driver the events are
    /// recorded later.
    pub(crate) fn defer(
        &mut self,
        mut driver: Option<&mut dyn Driver>,
        span: SpanIndex,
        requested: u64,
        errors: &mut Errors,
    ) -> bool {
        let streams = self.recorded.remove(&span).unwrap_or_default();
        let mut fences = Vec::with_capacity(streams.len());
        for stream in streams {
            match driver.as_deref_mut().map(|driver| driver.record(stream)) {
                Some(Ok(Some(event))) => fences.push(Fence::Event(event)),
                Some(Ok(None)) => {}
                Some(Err(error)) => {
                    errors.push(error);
                    fences.push(Fence::Recording(stream));
                }
                None => fences.push(Fence::Recording(stream)),
            }
        }
        let waits = !fences.is_empty();
        if waits {
            self.pending_bytes += requested;
            self.pending.push((span, requested, fences));
        }
        waits
    }

    /// Holds back this many bytes until the event.
    pub(crate) fn depart(&mut self, what: Departing, bytes: u64, event: EventId) {
        self.departing_bytes += bytes;
        self.departing.push((what, bytes, event));
    }

    /// Removes and returns freed spans that no stream uses any more.
    pub(crate) fn take_completed(
        &mut self,
        driver: &mut dyn Driver,
        check: FenceCheck,
        errors: &mut Errors,
    ) -> Vec<SpanIndex> {
        let (mut completed, mut bytes) = (Vec::new(), 0);
        self.pending.retain_mut(|(span, requested, fences)| {
            fences.retain_mut(|fence| !is_passed(driver, fence, check, errors));
            if fences.is_empty() {
                completed.push(*span);
                bytes += *requested;
            }
            !fences.is_empty()
        });
        self.pending_bytes -= bytes;
        completed
    }

    /// What can be returned to the driver now, with its size. Each counts as departing until it
    /// has [left](StreamFences::left).
    pub(crate) fn take_departed(
        &mut self,
        driver: &mut dyn Driver,
        check: FenceCheck,
        errors: &mut Errors,
    ) -> Vec<(Departing, u64)> {
        let mut departed = Vec::new();
        self.departing.retain(|(what, bytes, event)| {
            let passed = is_passed(driver, &mut Fence::Event(*event), check, errors);
            if passed {
                departed.push((*what, *bytes));
            }
            !passed
        });
        // Blocks first: parts of blocks are many small calls.
        departed.sort_by_key(|(what, _)| matches!(what, Departing::Part(_)));
        departed
    }

    /// What was taken as departed is returned now.
    pub(crate) fn left(&mut self, bytes: u64) {
        self.departing_bytes -= bytes;
    }

    /// Waits with the whole device for the spans that have no event to wait for. Returns whether
    /// there were any, and that succeeded.
    pub(crate) fn synchronize(&mut self, driver: &mut dyn Driver, errors: &mut Errors) -> bool {
        let without_event = |fence: &Fence| matches!(fence, Fence::Recording(_));
        if !(self.pending.iter()).any(|(.., fences)| fences.iter().any(without_event)) {
            return false;
        }
        if let Err(error) = driver.synchronize() {
            errors.push(error);
            return false;
        }
        for (.., fences) in &mut self.pending {
            fences.retain(|fence| !without_event(fence));
        }
        true
    }

    /// Whether no work in flight uses anything that the owner's stream freed.
    pub(crate) fn is_idle(
        &mut self,
        driver: &mut dyn Driver,
        owner: Owner,
    ) -> Result<bool, DriverError> {
        let Some(at) = Self::place(owner) else {
            return Ok(true);
        };
        let frees = self.safe_until(driver, owner, FenceCheck::Query)?;
        Ok(frees == self.known[at].frees)
    }

    /// The number of the last free on a stream that no work in flight can use any more.
    pub(crate) fn safe_until(
        &mut self,
        driver: &mut dyn Driver,
        owner: Owner,
        check: FenceCheck,
    ) -> Result<u64, DriverError> {
        let Some(at) = Self::place(owner) else {
            return Ok(0);
        };
        let wait = check == FenceCheck::Wait;
        let Stream { id, frees, event } = self.known[at];
        let mut covered = 0;
        if let Some((event, until)) = event {
            if wait {
                driver.wait(event)?;
            } else if !driver.reached(event)? {
                return Ok(0);
            }
            self.known[at].event = None;
            covered = until;
        }
        if covered == frees {
            return Ok(frees);
        }
        // Later frees are not covered: they need a new event, if any.
        match driver.record(id) {
            Ok(None) => return Ok(frees),
            Ok(Some(event)) => self.known[at].event = Some((event, frees)),
            Err(error) if !wait => return Err(error),
            Err(_) => return driver.synchronize().map(|()| frees),
        }
        if !wait {
            return Ok(covered);
        }
        if let Some((event, _)) = self.known[at].event {
            driver.wait(event)?;
            self.known[at].event = None;
        }
        Ok(frees)
    }
}

/// Why a request is refused if its stream has no owner.
#[cold]
pub(crate) fn too_many_streams() -> DriverError {
    DriverError::Failed {
        call: "a request on one stream more",
        code: 0,
        message: format!(
            "memory was used on {} streams, and no more are told apart",
            u16::MAX
        ),
    }
}

/// Whether a fence was passed. An event that could not be recorded is recorded here.
fn is_passed(
    driver: &mut dyn Driver,
    fence: &mut Fence,
    check: FenceCheck,
    errors: &mut Errors,
) -> bool {
    let event = match *fence {
        Fence::Event(event) => event,
        Fence::Recording(stream) => match driver.record(stream) {
            Ok(None) => return true,
            Ok(Some(event)) => {
                *fence = Fence::Event(event);
                event
            }
            // The first failure was reported.
            Err(_) => return false,
        },
    };
    let passed = match check {
        FenceCheck::Query => driver.reached(event),
        FenceCheck::Wait => driver.wait(event).map(|()| true),
    };
    passed.unwrap_or_else(|error| {
        errors.push(error);
        false
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::driver::sim::{SimConfig, SimDriver};
    use crate::pool::heap::Heap;
    use crate::pool::policy::Region;

    const STREAM: StreamId = StreamId(7);

    fn driver(polls_per_event: u32) -> SimDriver {
        SimDriver::new(SimConfig {
            polls_per_event,
            ..SimConfig::default()
        })
    }

    fn span() -> SpanIndex {
        let mut heap = Heap::new(512);
        let block = heap.add_block(0x1000, 4096, Region::Small, Owner::ANYONE, false);
        heap.open(block, Owner::ANYONE, Region::Small, 4096)
    }

    #[test]
    fn a_freed_span_waits_for_every_stream_that_was_recorded_on_it() {
        let (mut fences, mut driver, mut errors) = (StreamFences::default(), driver(2), Vec::new());
        fences.record_use(span(), STREAM);
        assert!(fences.defer(Some(&mut driver), span(), 100, &mut errors));
        assert_eq!((fences.waiting(), fences.pending_bytes()), (true, 100));
        let mut polls = 0;
        while fences
            .take_completed(&mut driver, FenceCheck::Query, &mut errors)
            .is_empty()
        {
            polls += 1;
        }
        assert!(polls > 0 && !fences.waiting() && errors.is_empty());
        assert_eq!(fences.pending_bytes(), 0);
        // Nothing was recorded on it since.
        assert!(!fences.defer(Some(&mut driver), span(), 100, &mut errors));
    }

    #[test]
    fn frees_are_safe_up_to_the_last_event_that_was_reached() {
        let (mut fences, mut driver) = (StreamFences::default(), driver(1));
        let owner = fences.owner(STREAM).unwrap();
        assert_eq!(fences.next_free(owner), 1);
        // The first check records an event, the next ones query it.
        assert_eq!(
            fences.safe_until(&mut driver, owner, FenceCheck::Query),
            Ok(0)
        );
        assert_eq!(fences.next_free(owner), 2);
        let until = (0..5).find_map(|_| {
            let safe = fences.safe_until(&mut driver, owner, FenceCheck::Query);
            safe.ok().filter(|until| *until > 0)
        });
        assert_eq!(until, Some(1), "the second free came after the event");
        assert_eq!(
            fences.safe_until(&mut driver, owner, FenceCheck::Wait),
            Ok(2)
        );
        // Waiting leaves no state: an event is recorded, and completes.
        assert_eq!(fences.is_idle(&mut driver, owner), Ok(false));
        assert_eq!(fences.is_idle(&mut driver, owner), Ok(true));
    }

    #[test]
    fn every_stream_has_an_owner_of_its_own_or_none() {
        let mut fences = StreamFences::default();
        let most = u64::from(u16::MAX);
        let mut owners: Vec<_> = (0..most)
            .map(|id| fences.owner(StreamId(id)).unwrap())
            .collect();
        assert!(!owners.contains(&Owner::ANYONE));
        assert_eq!(fences.owner(StreamId(most)), None);
        for id in [0, 31, 32, most - 1] {
            assert_eq!(fences.owner(StreamId(id)), Some(owners[id as usize]));
        }
        assert_eq!(fences.owners().count(), owners.len());
        owners.sort_unstable_by_key(|owner| owner.0);
        owners.dedup();
        assert_eq!(owners.len() as u64, most);
    }

    #[test]
    fn an_event_that_cannot_be_recorded_is_recorded_later() {
        let (mut fences, mut errors) = (StreamFences::default(), Vec::new());
        let mut driver = driver(0);
        driver.config_mut().fail_call = Some((1, DriverError::OutOfMemory));
        fences.record_use(span(), STREAM);
        assert!(fences.defer(Some(&mut driver), span(), 100, &mut errors));
        assert_eq!(errors, [DriverError::OutOfMemory]);
        let completed = fences.take_completed(&mut driver, FenceCheck::Query, &mut errors);
        assert_eq!((completed.len(), errors.len()), (1, 1));
    }
}
