//! Streams, events, and when work is done.
//!
//! A stream is represented by the time until which it is busy. Work starts when
//! the stream is free and the host has submitted it, and takes the configured time
//! (zero by default). Effects on memory are applied when they are due, in the
//! order of their times, during the next call of the simulator: a program
//! that reads a buffer before waiting sees the old bytes, as on a real device.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::ffi::c_void;
use std::sync::Arc;
use std::time::Instant;

use super::capture::{CaptureId, Captures};
use super::copies::Transfer;
use super::memory::RegionId;
use crate::rdna::Launch;
use crate::status::Status;

/// Nanoseconds since the simulator started.
pub(crate) type Nanos = u64;

/// `cudaStreamLegacy` and `cudaStreamPerThread`: names for the default stream.
const LEGACY: u64 = 1;
const PER_THREAD: u64 = 2;

/// Handles start here, above all special values.
const FIRST_HANDLE: u64 = 0x1000;

/// The effect of work when it completes.
#[derive(Clone, Debug)]
pub(crate) enum Effect {
    /// A kernel: nothing.
    Kernel,
    /// A kernel that also reads behind its operands, which end at these addresses.
    ReadBehind([u64; 2]),
    /// A kernel whose machine code is executed.
    Execute(Arc<Launch>),
    /// Bytes are copied or set.
    Transfer(Transfer),
    /// Memory is freed, in stream order.
    Free {
        /// Where the region is.
        start: u64,
        /// The unique ID of the region, since addresses are reused.
        id: RegionId,
    },
    /// The program's function is called.
    Call(HostFunction),
}

/// A function of the program under test, to be called in stream order.
#[derive(Clone, Copy, Debug)]
pub(crate) enum HostFunction {
    /// `cudaLaunchHostFunc`
    Plain {
        function: unsafe extern "C" fn(*mut c_void),
        data: usize,
    },
    /// `cudaStreamAddCallback`
    Callback {
        function: unsafe extern "C" fn(*mut c_void, u32, *mut c_void),
        stream: u64,
        data: usize,
    },
}

struct Stream {
    device: usize,
    /// Whether it synchronises with the default stream of its device.
    blocking: bool,
    priority: i32,
    busy_until: Nanos,
    capture: Option<CaptureId>,
}

struct Event {
    timed: bool,
    /// When the recorded work completes; `None` before the first record.
    done_at: Option<Nanos>,
    capture: Option<CaptureId>,
}

struct Pending {
    at: Nanos,
    sequence: u64,
    effect: Effect,
}

/// All streams and events of a process.
pub(crate) struct Timeline {
    started: Instant,
    streams: HashMap<u64, Stream>,
    events: HashMap<u64, Event>,
    /// For each device, the time until which its destroyed streams are busy: the blocking ones, and all.
    destroyed: Vec<(Nanos, Nanos)>,
    pending: BinaryHeap<Reverse<Pending>>,
    sequence: u64,
    next_handle: u64,
    pub(crate) captures: Captures,
}

impl Timeline {
    /// Every device has a default stream from the start, under its own number.
    pub(crate) fn new(devices: usize) -> Self {
        let default = |device| Stream {
            device,
            blocking: true,
            priority: 0,
            busy_until: 0,
            capture: None,
        };
        Self {
            started: Instant::now(),
            streams: (0..devices)
                .map(|device| (device as u64, default(device)))
                .collect(),
            events: HashMap::new(),
            destroyed: vec![(0, 0); devices],
            pending: BinaryHeap::new(),
            sequence: 0,
            next_handle: FIRST_HANDLE,
            captures: Captures::default(),
        }
    }

    pub(crate) fn now(&self) -> Nanos {
        self.started.elapsed().as_nanos() as Nanos
    }

    /// A new number for a stream, event, graph or module.
    pub(crate) fn handle(&mut self) -> u64 {
        self.next_handle += 16;
        self.next_handle
    }

    pub(crate) fn create_stream(&mut self, device: usize, blocking: bool, priority: i32) -> u64 {
        let handle = self.handle();
        self.streams.insert(
            handle,
            Stream {
                device,
                blocking,
                priority,
                busy_until: 0,
                capture: None,
            },
        );
        handle
    }

    /// Work already on the stream still completes.
    pub(crate) fn destroy_stream(&mut self, stream: u64) -> Result<(), Status> {
        if stream < FIRST_HANDLE {
            return Err(Status::INVALID_HANDLE);
        }
        let Stream {
            device,
            blocking,
            busy_until,
            capture,
            ..
        } = *self.streams.get(&stream).ok_or(Status::INVALID_HANDLE)?;
        if capture.is_some() {
            return Err(Status::CAPTURE_UNSUPPORTED);
        }
        self.streams.remove(&stream);
        let (of_blocking, of_all) = &mut self.destroyed[device];
        if blocking {
            *of_blocking = busy_until.max(*of_blocking);
        }
        *of_all = busy_until.max(*of_all);
        Ok(())
    }

    pub(crate) fn priority(&self, stream: u64, device: usize) -> Result<i32, Status> {
        self.stream(stream, device).map(|stream| stream.priority)
    }

    pub(crate) fn device_of(&self, stream: u64, device: usize) -> Result<usize, Status> {
        self.stream(stream, device).map(|stream| stream.device)
    }

    pub(crate) fn create_event(&mut self, timed: bool) -> u64 {
        let handle = self.handle();
        self.events.insert(
            handle,
            Event {
                timed,
                done_at: None,
                capture: None,
            },
        );
        handle
    }

    pub(crate) fn destroy_event(&mut self, event: u64) -> Result<(), Status> {
        self.events
            .remove(&event)
            .map(drop)
            .ok_or(Status::INVALID_HANDLE)
    }

    /// Submits work to a stream; returns the time at which it completes. A stream that is being
    /// captured only records it.
    pub(crate) fn submit(
        &mut self,
        stream: u64,
        device: usize,
        cost: Nanos,
        effect: Effect,
    ) -> Result<Nanos, Status> {
        let now = self.now();
        if let Some(capture) = self.stream(stream, device)?.capture {
            self.captures.add(capture, cost, effect);
            return Ok(now);
        }
        let start = now.max(self.settled(stream, device)?);
        let done = start.saturating_add(cost);
        self.stream_mut(stream, device)?.busy_until = done;
        if !matches!(effect, Effect::Kernel) {
            self.schedule(done, effect);
        }
        Ok(done)
    }

    /// Schedules an effect at a given time, independent of streams.
    pub(crate) fn schedule(&mut self, at: Nanos, effect: Effect) {
        self.sequence += 1;
        self.pending.push(Reverse(Pending {
            at,
            sequence: self.sequence,
            effect,
        }));
    }

    /// The next effect that is due, with its time.
    pub(crate) fn due(&mut self, now: Nanos) -> Option<(Nanos, Effect)> {
        self.next_due().filter(|at| *at <= now)?;
        let Reverse(next) = self.pending.pop()?;
        Some((next.at, next.effect))
    }

    /// When the next effect is due.
    pub(crate) fn next_due(&self) -> Option<Nanos> {
        self.pending.peek().map(|next| next.0.at)
    }

    /// When all work on a stream completes.
    pub(crate) fn stream_done(&self, stream: u64, device: usize) -> Result<Nanos, Status> {
        if self.stream(stream, device)?.capture.is_some() {
            return Err(Status::CAPTURE_UNSUPPORTED);
        }
        self.settled(stream, device)
    }

    /// When all work on a device completes.
    pub(crate) fn device_done(&self, device: usize) -> Nanos {
        let streams = self
            .streams
            .values()
            .filter(|stream| stream.device == device);
        let busy = streams.map(|stream| stream.busy_until).max().unwrap_or(0);
        busy.max(self.destroyed[device].1)
    }

    /// When all work on all devices completes.
    pub(crate) fn all_done(&self) -> Nanos {
        let devices = 0..self.destroyed.len();
        devices
            .map(|device| self.device_done(device))
            .max()
            .unwrap_or(0)
    }

    pub(crate) fn record(&mut self, event: u64, stream: u64, device: usize) -> Result<(), Status> {
        let (capture, done) = (
            self.stream(stream, device)?.capture,
            self.settled(stream, device)?,
        );
        let now = self.now();
        let event = self.events.get_mut(&event).ok_or(Status::INVALID_HANDLE)?;
        event.capture = capture;
        event.done_at = Some(done.max(now));
        Ok(())
    }

    /// Makes a stream wait for an event. An event of a capture adds the stream
    /// to that capture, unless it is already in another one.
    pub(crate) fn wait_event(
        &mut self,
        stream: u64,
        device: usize,
        event: u64,
    ) -> Result<(), Status> {
        let event = self.events.get(&event).ok_or(Status::INVALID_HANDLE)?;
        let (capture, done) = (event.capture, event.done_at.unwrap_or(0));
        let stream = self.stream_mut(stream, device)?;
        match capture {
            Some(capture) if stream.capture.is_some_and(|own| own != capture) => {
                return Err(Status::CAPTURE_MERGE);
            }
            Some(capture) => stream.capture = Some(capture),
            None => stream.busy_until = stream.busy_until.max(done),
        }
        Ok(())
    }

    /// When the work recorded by an event completes.
    pub(crate) fn event_done(&self, event: u64) -> Result<Nanos, Status> {
        let event = self.events.get(&event).ok_or(Status::INVALID_HANDLE)?;
        match event.capture {
            Some(_) => Err(Status::CAPTURE_UNSUPPORTED),
            None => Ok(event.done_at.unwrap_or(0)),
        }
    }

    /// Milliseconds between two events with timing.
    pub(crate) fn elapsed(&self, start: u64, end: u64) -> Result<f32, Status> {
        let time = |event: u64| {
            let event = self
                .events
                .get(&event)
                .filter(|event| event.timed)
                .ok_or(Status::INVALID_HANDLE)?;
            event.done_at.ok_or(Status::INVALID_HANDLE)
        };
        let (start, end) = (time(start)?, time(end)?);
        if end > self.now() {
            return Err(Status::NOT_READY);
        }
        Ok((end as f64 - start as f64) as f32 / 1e6)
    }

    pub(crate) fn capture_of(
        &self,
        stream: u64,
        device: usize,
    ) -> Result<Option<CaptureId>, Status> {
        self.stream(stream, device).map(|stream| stream.capture)
    }

    /// Refuses work that a graph cannot contain, on a stream that is being captured.
    pub(crate) fn forbid_in_capture_of(&self, stream: u64, device: usize) -> Result<(), Status> {
        match self.capture_of(stream, device)? {
            Some(_) => Err(Status::CAPTURE_UNSUPPORTED),
            None => Ok(()),
        }
    }

    pub(crate) fn begin_capture(
        &mut self,
        stream: u64,
        device: usize,
        id: CaptureId,
    ) -> Result<(), Status> {
        let stream = self.stream_mut(stream, device)?;
        stream.capture = Some(id);
        Ok(())
    }

    /// Removes all streams and events from a capture.
    pub(crate) fn leave_capture(&mut self, id: CaptureId) {
        self.streams
            .values_mut()
            .filter(|stream| stream.capture == Some(id))
            .for_each(|stream| stream.capture = None);
        self.events
            .values_mut()
            .filter(|event| event.capture == Some(id))
            .for_each(|event| event.capture = None);
    }

    /// When a stream is free for more work: the default stream waits for all
    /// blocking streams of its device, and they wait for it.
    fn settled(&self, stream: u64, device: usize) -> Result<Nanos, Status> {
        let this = self.stream(stream, device)?;
        if !this.blocking {
            return Ok(this.busy_until);
        }
        if special(stream) {
            let others = self
                .streams
                .values()
                .filter(|other| other.device == this.device && other.blocking);
            let busy = others.map(|other| other.busy_until).max().unwrap_or(0);
            return Ok(busy.max(self.destroyed[this.device].0));
        }
        let default = self
            .streams
            .get(&(this.device as u64))
            .map_or(0, |default| default.busy_until);
        Ok(this.busy_until.max(default))
    }

    fn stream(&self, stream: u64, device: usize) -> Result<&Stream, Status> {
        self.streams
            .get(&key(stream, device))
            .ok_or(Status::INVALID_HANDLE)
    }

    fn stream_mut(&mut self, stream: u64, device: usize) -> Result<&mut Stream, Status> {
        self.streams
            .get_mut(&key(stream, device))
            .ok_or(Status::INVALID_HANDLE)
    }
}

fn special(stream: u64) -> bool {
    matches!(stream, 0 | LEGACY | PER_THREAD)
}

/// The key of a stream: default streams are stored under the number of their device.
fn key(stream: u64, device: usize) -> u64 {
    if special(stream) {
        device as u64
    } else {
        stream
    }
}

impl PartialEq for Pending {
    fn eq(&self, other: &Self) -> bool {
        (self.at, self.sequence) == (other.at, other.sequence)
    }
}

impl Eq for Pending {}

impl PartialOrd for Pending {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Pending {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (self.at, self.sequence).cmp(&(other.at, other.sequence))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR: Nanos = 3_600_000_000_000;

    #[test]
    fn an_event_is_done_when_the_work_before_it_is() {
        let mut timeline = Timeline::new(1);
        let stream = timeline.create_stream(0, false, 0);
        let event = timeline.create_event(false);
        assert_eq!(timeline.event_done(event), Ok(0), "never recorded");
        let done = timeline.submit(stream, 0, HOUR, Effect::Kernel).unwrap();
        timeline.record(event, stream, 0).unwrap();
        timeline.submit(stream, 0, HOUR, Effect::Kernel).unwrap();
        assert_eq!(timeline.event_done(event), Ok(done));
    }

    #[test]
    fn a_stream_that_waits_for_an_event_starts_after_it() {
        let mut timeline = Timeline::new(1);
        let [first, second] = [0, 1].map(|_| timeline.create_stream(0, false, 0));
        let event = timeline.create_event(false);
        let first_done = timeline.submit(first, 0, HOUR, Effect::Kernel).unwrap();
        timeline.record(event, first, 0).unwrap();
        let before = timeline.submit(second, 0, 0, Effect::Kernel).unwrap();
        timeline.wait_event(second, 0, event).unwrap();
        let after = timeline.submit(second, 0, 0, Effect::Kernel).unwrap();
        assert!(before < first_done && after >= first_done);
    }

    #[test]
    fn the_default_stream_keeps_in_step_with_blocking_streams_only() {
        let mut timeline = Timeline::new(1);
        let blocking = timeline.create_stream(0, true, 0);
        let free = timeline.create_stream(0, false, 0);
        let done = timeline.submit(blocking, 0, HOUR, Effect::Kernel).unwrap();
        assert!(timeline.stream_done(0, 0).unwrap() >= done);
        timeline.submit(free, 0, 2 * HOUR, Effect::Kernel).unwrap();
        assert!(timeline.stream_done(LEGACY, 0).unwrap() < 2 * HOUR);
        assert!(timeline.device_done(0) >= 2 * HOUR);
    }

    #[test]
    fn effects_come_due_in_the_order_of_their_times() {
        let mut timeline = Timeline::new(1);
        for (at, start) in [(30, 3), (10, 1), (10, 2), (HOUR * 1000, 4)] {
            let id = RegionId(start);
            timeline.schedule(at, Effect::Free { start, id });
        }
        let due: Vec<_> = std::iter::from_fn(|| timeline.due(HOUR)).collect();
        let freed = due.iter().map(|(at, effect)| match effect {
            Effect::Free { start, .. } => (*at, *start),
            _ => unreachable!("only frees were scheduled"),
        });
        assert_eq!(freed.collect::<Vec<_>>(), [(10, 1), (10, 2), (30, 3)]);
    }
}
