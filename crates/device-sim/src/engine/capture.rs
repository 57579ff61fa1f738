//! Graph capture: work that is recorded instead of executed, and replayed later.

use std::collections::HashMap;

use super::timeline::{Effect, Nanos};
use crate::status::Status;

/// The ID of an active capture.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct CaptureId(pub(crate) u64);

/// Which calls invalidate a capture.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Strictness {
    /// Unsafe calls of any thread.
    Global,
    /// Unsafe calls of the capturing thread.
    ThreadLocal,
    /// None.
    Relaxed,
}

impl Strictness {
    /// Converts from `cudaStreamCaptureMode`.
    pub(crate) fn from_code(code: u32) -> Result<Self, Status> {
        match code {
            0 => Ok(Strictness::Global),
            1 => Ok(Strictness::ThreadLocal),
            2 => Ok(Strictness::Relaxed),
            _ => Err(Status::INVALID_VALUE),
        }
    }
}

/// Work with what it costs, in the order it was captured.
pub(crate) type Work = Vec<(Nanos, Effect)>;

struct Capture {
    origin: u64,
    graph: u64,
    strictness: Strictness,
    thread: std::thread::ThreadId,
    valid: bool,
    work: Work,
}

/// Active captures, and the graphs of completed ones.
#[derive(Default)]
pub(crate) struct Captures {
    next: u64,
    running: HashMap<CaptureId, Capture>,
    graphs: HashMap<u64, Work>,
}

impl Captures {
    /// Starts a capture whose work will be the graph with the given handle.
    pub(crate) fn begin(&mut self, origin: u64, graph: u64, strictness: Strictness) -> CaptureId {
        self.next += 1;
        let id = CaptureId(self.next);
        let thread = std::thread::current().id();
        self.running.insert(
            id,
            Capture {
                origin,
                graph,
                strictness,
                thread,
                valid: true,
                work: Vec::new(),
            },
        );
        id
    }

    /// Records work.
    pub(crate) fn add(&mut self, id: CaptureId, cost: Nanos, effect: Effect) {
        if let Some(capture) = self.running.get_mut(&id) {
            capture.work.push((cost, effect));
        }
    }

    /// The graph that an active capture will produce.
    pub(crate) fn graph_of(&self, id: CaptureId) -> Option<u64> {
        self.running.get(&id).map(|capture| capture.graph)
    }

    /// Ends the capture that began on `origin`; its work becomes a graph.
    pub(crate) fn end(&mut self, id: CaptureId, origin: u64) -> Result<u64, Status> {
        if self
            .running
            .get(&id)
            .is_none_or(|capture| capture.origin != origin)
        {
            return Err(Status::INVALID_VALUE);
        }
        let capture = self.running.remove(&id).ok_or(Status::INVALID_VALUE)?;
        if !capture.valid {
            return Err(Status::CAPTURE_INVALIDATED);
        }
        self.graphs.insert(capture.graph, capture.work);
        Ok(capture.graph)
    }

    /// Refuses a call that is unsafe during captures (allocating, freeing, waiting), and
    /// invalidates the captures concerned. `strictness` is the calling thread's own.
    pub(crate) fn forbid(&mut self, strictness: Strictness) -> Result<(), Status> {
        if self.running.is_empty() || strictness == Strictness::Relaxed {
            return Ok(());
        }
        let thread = std::thread::current().id();
        let mut disturbed = false;
        for capture in self.running.values_mut() {
            let strict = match capture.strictness {
                Strictness::Global => strictness == Strictness::Global || capture.thread == thread,
                Strictness::ThreadLocal => capture.thread == thread,
                Strictness::Relaxed => false,
            };
            if strict {
                capture.valid = false;
                disturbed = true;
            }
        }
        if disturbed {
            Err(Status::CAPTURE_UNSUPPORTED)
        } else {
            Ok(())
        }
    }

    /// The work of a graph.
    pub(crate) fn graph(&self, graph: u64) -> Result<&Work, Status> {
        self.graphs.get(&graph).ok_or(Status::INVALID_VALUE)
    }

    /// An empty graph.
    pub(crate) fn create(&mut self, graph: u64) {
        self.graphs.insert(graph, Work::new());
    }

    /// Copies a graph to another handle, for launching.
    pub(crate) fn instantiate(&mut self, graph: u64, handle: u64) -> Result<(), Status> {
        let work = self.graph(graph)?.clone();
        self.graphs.insert(handle, work);
        Ok(())
    }

    /// Deletes a graph.
    pub(crate) fn destroy(&mut self, graph: u64) -> Result<(), Status> {
        self.graphs
            .remove(&graph)
            .map(drop)
            .ok_or(Status::INVALID_VALUE)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_disturbed_capture_ends_in_an_error() {
        let mut captures = Captures::default();
        let id = captures.begin(7, 100, Strictness::Global);
        assert_eq!(captures.forbid(Strictness::Relaxed), Ok(()));
        assert_eq!(
            captures.forbid(Strictness::Global),
            Err(Status::CAPTURE_UNSUPPORTED)
        );
        assert_eq!(captures.end(id, 7), Err(Status::CAPTURE_INVALIDATED));
        assert_eq!(
            captures.forbid(Strictness::Global),
            Ok(()),
            "nothing is captured any more"
        );
    }

    #[test]
    fn captured_work_becomes_a_graph_that_can_be_kept_twice() {
        let mut captures = Captures::default();
        let id = captures.begin(7, 100, Strictness::Global);
        captures.add(id, 5, Effect::Kernel);
        assert_eq!(
            captures.end(id, 8),
            Err(Status::INVALID_VALUE),
            "another stream"
        );
        assert_eq!(captures.end(id, 7), Ok(100));
        captures.instantiate(100, 200).unwrap();
        captures.destroy(100).unwrap();
        assert_eq!(captures.graph(200).unwrap().len(), 1);
    }
}
