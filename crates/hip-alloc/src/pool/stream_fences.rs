//! Streams: when memory freed on one stream may be used by another, or returned to the driver.
//!
//! Work on a stream runs in order, so memory freed on it may be reused on it
//! at once. For another stream, or for the driver, an event recorded after the
//! free must be complete. Events are recorded only when the memory is needed,
//! and queried without waiting; the pool waits only if the
//! alternative is to fail.
//!
//! A program may destroy a stream of its own while memory that it freed there is still ours, and a destroyed
//! stream must not be asked for anything. So an event is recorded only on the streams that a runtime always
//! has, on the stream of the request that is being served, and, when memory is freed, on those that were
//! recorded on it. Frees on other streams count as done after their next request, or once the whole device was
//! waited for.

use super::device_memory::Device;
use super::heap::{BlockIndex, Owner, SpanIndex};
use crate::driver::{Driver, DriverError, EventId};
use crate::units::StreamId;
use std::collections::HashMap;

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

/// An empty block that is returned to the driver once its stream is done with it.
struct Departing {
    block: BlockIndex,
    bytes: u64,
    owner: Owner,
    /// The number of the last free in it.
    freed_at: u64,
}

/// Up to how many streams are searched linearly; for more there is a map.
const FEW_STREAMS: usize = 32;

/// The streams that a pool has seen, and what waits for them.
pub(crate) struct StreamFences {
    device: Device,
    /// Driver errors that could not be returned to a caller.
    pub(crate) errors: Vec<DriverError>,
    known: Vec<Stream>,
    /// The index of each stream.
    places: HashMap<StreamId, usize>,
    /// Freed while other streams may use it: the fences to pass.
    pending: Vec<(SpanIndex, u64, Vec<Fence>)>,
    pending_bytes: u64,
    departing: Vec<Departing>,
    departing_bytes: u64,
    /// Streams recorded on a live span, by the span.
    recorded: HashMap<SpanIndex, Vec<StreamId>>,
    last: usize,
    /// The stream of the request that is being served.
    present: Option<StreamId>,
}

#[derive(Clone, Copy)]
struct Stream {
    id: StreamId,
    /// Number of frees on this stream: a free span remembers when it was freed.
    frees: u64,
    /// How many of these no work in flight uses any more.
    safe: u64,
    /// Recorded for another stream, after this many frees.
    event: Option<(EventId, u64)>,
}

impl StreamFences {
    pub(crate) fn new(device: Device) -> Self {
        StreamFences {
            device,
            errors: Vec::new(),
            known: Vec::new(),
            places: HashMap::new(),
            pending: Vec::new(),
            pending_bytes: 0,
            departing: Vec::new(),
            departing_bytes: 0,
            recorded: HashMap::new(),
            last: 0,
            present: None,
        }
    }

    fn record(&self, stream: StreamId) -> Result<Option<EventId>, DriverError> {
        self.device.lock().driver.record(stream)
    }

    fn wait(&self, event: EventId) -> Result<(), DriverError> {
        self.device.lock().driver.wait(event)
    }

    /// Sets the stream of the request that is being served, if one is: it exists.
    #[inline]
    pub(crate) fn set_present(&mut self, stream: Option<StreamId>) {
        self.present = stream;
    }

    /// Whether a stream may be asked for an event: the program cannot have destroyed it.
    fn exists(&self, id: StreamId) -> bool {
        id.is_the_runtimes() || self.present == Some(id)
    }

    /// The owner for the stream of a request; at the first call, a new one. `None` if there are more streams
    /// than owners: two streams with the same owner would share its memory without a fence between them.
    #[inline]
    pub(crate) fn owner(&mut self, id: StreamId, captured: bool) -> Option<Owner> {
        let is_last = |stream: &Stream| stream.id == id;
        if !self.known.get(self.last).is_some_and(is_last) {
            self.last = self.find_or_add(id)?;
            if !captured {
                self.mark();
            }
        }
        u16::try_from(self.last + 1).ok().map(Owner)
    }

    /// Records an event for what the stream of this request freed before: between its requests that is not
    /// possible. If it fails, the next request tries again.
    fn mark(&mut self) {
        let stream = &mut self.known[self.last];
        if stream.id.is_the_runtimes() || stream.event.is_some() || stream.safe == stream.frees {
            return;
        }
        let recorded = self.device.lock().driver.record(stream.id);
        match recorded {
            Ok(None) => stream.safe = stream.frees,
            Ok(Some(event)) => stream.event = Some((event, stream.frees)),
            Err(_) => {}
        }
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
            safe: 0,
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
    /// recorded on it. Returns whether it has to wait for them. While a graph is captured the events are
    /// recorded later.
    pub(crate) fn defer(&mut self, span: SpanIndex, requested: u64, captured: bool) -> bool {
        let streams = self.recorded.remove(&span).unwrap_or_default();
        let mut fences = Vec::with_capacity(streams.len());
        for stream in streams {
            match (!captured).then(|| self.record(stream)) {
                Some(Ok(Some(event))) => fences.push(Fence::Event(event)),
                Some(Ok(None)) => {}
                Some(Err(error)) => {
                    self.errors.push(error);
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

    /// Holds back a block until the owner's stream is done with what it freed there.
    pub(crate) fn depart(&mut self, block: BlockIndex, bytes: u64, owner: Owner, freed_at: u64) {
        self.departing_bytes += bytes;
        self.departing.push(Departing {
            block,
            bytes,
            owner,
            freed_at,
        });
    }

    /// Removes and returns freed spans that no stream uses any more.
    pub(crate) fn take_completed(&mut self, check: FenceCheck) -> Vec<SpanIndex> {
        let (mut completed, mut bytes) = (Vec::new(), 0);
        let (driver, errors) = (&mut self.device.lock().driver, &mut self.errors);
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

    /// Removes and returns the blocks that can be returned to the driver now.
    pub(crate) fn take_departed(&mut self, check: FenceCheck) -> Vec<BlockIndex> {
        let mut departed = Vec::new();
        for owner in self.owners() {
            if !(self.departing.iter()).any(|departing| departing.owner == owner) {
                continue;
            }
            match self.safe_until(owner, check) {
                Ok(until) => {
                    let goes = |departing: &mut Departing| {
                        departing.owner == owner && departing.freed_at <= until
                    };
                    for gone in self.departing.extract_if(.., goes) {
                        self.departing_bytes -= gone.bytes;
                        departed.push(gone.block);
                    }
                }
                Err(error) => self.errors.push(error),
            }
        }
        departed
    }

    /// Waits with the whole device for the spans that have no event to wait for. Returns whether
    /// there were any, and that succeeded.
    pub(crate) fn synchronize(&mut self) -> bool {
        let without_event = |fence: &Fence| matches!(fence, Fence::Recording(_));
        if !(self.pending.iter()).any(|(.., fences)| fences.iter().any(without_event)) {
            return false;
        }
        if let Err(error) = self.wait_for_all() {
            self.errors.push(error);
            return false;
        }
        for (.., fences) in &mut self.pending {
            fences.retain(|fence| !without_event(fence));
        }
        true
    }

    /// Waits for the whole device: then nothing that was freed is in use.
    pub(crate) fn wait_for_all(&mut self) -> Result<(), DriverError> {
        self.device.lock().driver.synchronize()?;
        for stream in &mut self.known {
            stream.safe = stream.frees;
        }
        Ok(())
    }

    /// Whether no work in flight uses anything that the owner's stream freed.
    pub(crate) fn is_idle(&mut self, owner: Owner) -> Result<bool, DriverError> {
        let Some(at) = Self::place(owner) else {
            return Ok(true);
        };
        let frees = self.safe_until(owner, FenceCheck::Query)?;
        Ok(frees == self.known[at].frees)
    }

    /// Whether work in flight is known to use something that the owner's stream freed.
    pub(crate) fn is_busy(&mut self, owner: Owner) -> bool {
        let idle = self.is_idle(owner);
        let unknown = Self::place(owner).is_some_and(|at| self.is_unknown(&self.known[at]));
        idle.map_or(true, |idle| !idle && !unknown)
    }

    /// Whether nothing tells what work in flight uses of what a stream freed.
    fn is_unknown(&self, stream: &Stream) -> bool {
        stream.safe < stream.frees && stream.event.is_none() && !self.exists(stream.id)
    }

    /// Whether there is such a stream.
    pub(crate) fn is_any_unknown(&self) -> bool {
        self.known.iter().any(|stream| self.is_unknown(stream))
    }

    /// Whether a block waits for such a stream before it is returned.
    pub(crate) fn departs_unknown(&self) -> bool {
        let owners = self.departing.iter().map(|departing| departing.owner);
        let mut places = owners.filter_map(Self::place);
        places.any(|at| self.is_unknown(&self.known[at]))
    }

    /// The number of the last free on a stream that no work in flight can use any more.
    pub(crate) fn safe_until(
        &mut self,
        owner: Owner,
        check: FenceCheck,
    ) -> Result<u64, DriverError> {
        let Some(at) = Self::place(owner) else {
            return Ok(0);
        };
        let wait = check == FenceCheck::Wait;
        if let Some((event, until)) = self.known[at].event {
            if wait {
                self.wait(event)?;
            } else if !self.device.lock().driver.reached(event)? {
                return Ok(self.known[at].safe);
            }
            self.known[at].event = None;
            self.known[at].safe = self.known[at].safe.max(until);
        }
        let Stream {
            id, frees, safe, ..
        } = self.known[at];
        if safe == frees {
            return Ok(frees);
        }
        // Later frees are not covered: they need a new event, if any.
        let recorded = match self.exists(id) {
            true => self.record(id),
            false if wait => return self.wait_for_all().map(|()| frees),
            false => return Ok(safe),
        };
        match recorded {
            Ok(None) => self.known[at].safe = frees,
            Ok(Some(event)) if wait => {
                self.known[at].event = Some((event, frees));
                self.wait(event)?;
                self.known[at].event = None;
                self.known[at].safe = frees;
            }
            Ok(Some(event)) => self.known[at].event = Some((event, frees)),
            Err(_) if wait => self.wait_for_all()?,
            Err(error) => return Err(error),
        }
        Ok(self.known[at].safe)
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
    errors: &mut Vec<DriverError>,
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
    use super::super::device_memory::DeviceMemory;
    use super::*;
    use crate::driver::sim::{SimConfig, SimDriver};
    use crate::pool::heap::Heap;
    use crate::pool::policy::Region;

    const STREAM: StreamId = StreamId(7);

    fn fences(polls_per_event: u32) -> (StreamFences, Device<SimDriver>) {
        let device = DeviceMemory::of(SimDriver::new(SimConfig {
            polls_per_event,
            ..SimConfig::default()
        }));
        (StreamFences::new(device.clone()), device)
    }

    fn span() -> SpanIndex {
        let mut heap = Heap::new(512);
        let block = heap.add_block(0x1000, 4096, Region::Small, Owner::ANYONE);
        heap.open(block, Owner::ANYONE, Region::Small, 4096)
    }

    #[test]
    fn a_freed_span_waits_for_every_stream_that_was_recorded_on_it() {
        let (mut fences, _) = fences(2);
        fences.record_use(span(), STREAM);
        assert!(fences.defer(span(), 100, false));
        assert_eq!((fences.waiting(), fences.pending_bytes()), (true, 100));
        let mut polls = 0;
        while fences.take_completed(FenceCheck::Query).is_empty() {
            polls += 1;
        }
        assert!(polls > 0 && !fences.waiting() && fences.errors.is_empty());
        assert_eq!(fences.pending_bytes(), 0);
        // Nothing was recorded on it since.
        assert!(!fences.defer(span(), 100, false));
    }

    #[test]
    fn frees_are_safe_up_to_the_last_event_that_was_reached() {
        let (mut fences, _) = fences(1);
        fences.set_present(Some(STREAM));
        let owner = fences.owner(STREAM, true).unwrap();
        assert_eq!(fences.next_free(owner), 1);
        // The first check records an event, the next ones query it.
        assert_eq!(fences.safe_until(owner, FenceCheck::Query), Ok(0));
        assert_eq!(fences.next_free(owner), 2);
        assert_eq!(
            fences.safe_until(owner, FenceCheck::Query),
            Ok(1),
            "the second free came after the event"
        );
        assert_eq!(fences.safe_until(owner, FenceCheck::Wait), Ok(2));
        assert_eq!(fences.is_idle(owner), Ok(true));
    }

    #[test]
    fn a_stream_that_may_be_destroyed_is_not_asked() {
        let (mut fences, device) = fences(1);
        let calls = || device.lock().driver.calls();
        let safe = |fences: &mut StreamFences, owner, check| {
            let before = calls();
            let safe = fences.safe_until(owner, check).unwrap();
            (safe, calls() - before)
        };
        let owner = fences.owner(STREAM, false).unwrap();
        fences.next_free(owner);
        assert_eq!(calls(), 0);
        let query = FenceCheck::Query;
        assert_eq!(safe(&mut fences, owner, query), (0, 0));
        assert!(!fences.is_busy(owner), "unknown");
        // Another request on it, after one on another stream, records an event.
        let other = fences.owner(StreamId(8), false).unwrap();
        assert_eq!(fences.owner(STREAM, false), Some(owner));
        assert_eq!(calls(), 1);
        assert_eq!(safe(&mut fences, owner, query), (1, 1));
        // Otherwise the device is waited for, once for all streams.
        fences.next_free(owner);
        fences.next_free(other);
        let wait = FenceCheck::Wait;
        assert_eq!(safe(&mut fences, owner, wait), (2, 1));
        assert_eq!(safe(&mut fences, other, wait), (1, 0));
        // The default stream always exists.
        let default = fences.owner(StreamId::DEFAULT, false).unwrap();
        fences.next_free(default);
        assert_eq!(safe(&mut fences, default, query), (0, 1));
    }

    #[test]
    fn every_stream_has_an_owner_of_its_own_or_none() {
        let (mut fences, _) = fences(0);
        let most = u64::from(u16::MAX);
        let mut owners: Vec<_> = (0..most)
            .map(|id| fences.owner(StreamId(id), true).unwrap())
            .collect();
        assert!(!owners.contains(&Owner::ANYONE));
        assert_eq!(fences.owner(StreamId(most), true), None);
        for id in [0, 31, 32, most - 1] {
            assert_eq!(fences.owner(StreamId(id), true), Some(owners[id as usize]));
        }
        assert_eq!(fences.owners().count(), owners.len());
        owners.sort_unstable_by_key(|owner| owner.0);
        owners.dedup();
        assert_eq!(owners.len() as u64, most);
    }

    #[test]
    fn an_event_that_cannot_be_recorded_is_recorded_later() {
        let (mut fences, device) = fences(0);
        device.lock().driver.config_mut().fail_call = Some((1, DriverError::OutOfMemory));
        fences.record_use(span(), STREAM);
        assert!(fences.defer(span(), 100, false));
        assert_eq!(fences.errors, [DriverError::OutOfMemory]);
        let completed = fences.take_completed(FenceCheck::Query);
        assert_eq!((completed.len(), fences.errors.len()), (1, 1));
    }
}
