//! Stream capture and graphs.

use super::{Out, export, export_nothing};
use crate::engine::{Engine, Strictness, current_device};
use crate::status::Status;

/// `cudaStreamCaptureStatusNone` and `...Active`
const IDLE: i32 = 0;
const CAPTURING: i32 = 1;

/// `cudaStreamLegacy`: the default stream under another name.
const LEGACY_STREAM: u64 = 1;
const STREAM_PER_THREAD: u64 = 2;

export! {
    fn begin_capture(engine, stream: u64, mode: u32)
        as runtime cudaStreamBeginCapture, runtime hipStreamBeginCapture, driver cuStreamBeginCapture_v2
    {
        begin(engine, stream, None, mode)
    }

    fn begin_capture_to_graph(
        engine, stream: u64, graph: u64, _dependencies: u64, _edges: u64, _count: u64, mode: u32,
    ) as runtime cudaStreamBeginCaptureToGraph, driver cuStreamBeginCaptureToGraph
    {
        begin(engine, stream, Some(graph), mode)
    }

    fn end_capture(engine, stream: u64, graph: Out<u64>)
        as runtime cudaStreamEndCapture, runtime hipStreamEndCapture, driver cuStreamEndCapture
    {
        let graph = graph.required()?;
        let ended = engine.with(|state| {
            let capture = state.timeline.capture_of(stream, current_device())?.ok_or(Status::INVALID_VALUE)?;
            let ended = state.timeline.captures.end(capture, stream);
            if ended != Err(Status::INVALID_VALUE) {
                state.timeline.leave_capture(capture);
            }
            ended
        });
        graph.set(ended.unwrap_or(0))?;
        ended.map(drop)
    }

    fn is_capturing(engine, stream: u64, status: Out<i32>)
        as runtime cudaStreamIsCapturing, runtime hipStreamIsCapturing, driver cuStreamIsCapturing
    {
        let capture = engine.with(|state| state.timeline.capture_of(stream, current_device()))?;
        status.set(if capture.is_some() { CAPTURING } else { IDLE })
    }

    fn capture_info(
        engine, stream: u64, status: Out<i32>, id: Out<u64>, graph: Out<u64>, dependencies: Out<u64>, edges: Out<u64>,
        count: Out<u64>,
    ) as runtime cudaStreamGetCaptureInfo, driver cuStreamGetCaptureInfo_v3
    {
        edges.set_if_wanted(0);
        tell_capture(engine, stream, &status, &id, &graph, &dependencies, &count)
    }

    /// The CUDA 12 version, without edge data.
    fn capture_info_of_cuda_12(
        engine, stream: u64, status: Out<i32>, id: Out<u64>, graph: Out<u64>, dependencies: Out<u64>, count: Out<u64>,
    ) as runtime cudaStreamGetCaptureInfo_v2
    {
        tell_capture(engine, stream, &status, &id, &graph, &dependencies, &count)
    }

    fn create_graph(engine, graph: Out<u64>, _flags: u32) as runtime cudaGraphCreate, runtime hipGraphCreate {
        let graph = graph.required()?;
        let created = engine.with(|state| {
            let handle = state.timeline.handle();
            state.timeline.captures.create(handle);
            handle
        });
        graph.set(created)
    }

    fn instantiate(engine, executable: Out<u64>, graph: u64, _flags: u64)
        as runtime cudaGraphInstantiateWithFlags, runtime cudaGraphInstantiate, runtime hipGraphInstantiateWithFlags,
           driver cuGraphInstantiateWithFlags
    {
        let executable = executable.required()?;
        let handle = engine.with(|state| {
            let handle = state.timeline.handle();
            state.timeline.captures.instantiate(graph, handle).map(|()| handle)
        })?;
        executable.set(handle)
    }

    fn launch(engine, executable: u64, stream: u64)
        as runtime cudaGraphLaunch, runtime hipGraphLaunch, driver cuGraphLaunch
    {
        engine.with(|state| {
            for (cost, effect) in state.timeline.captures.graph(executable)?.clone() {
                state.timeline.submit(stream, current_device(), cost, effect)?;
            }
            Ok(())
        })
    }

    fn destroy(engine, graph: u64)
        as runtime cudaGraphDestroy, runtime cudaGraphExecDestroy, runtime hipGraphDestroy,
           runtime hipGraphExecDestroy, driver cuGraphDestroy, driver cuGraphExecDestroy
    {
        engine.with(|state| state.timeline.captures.destroy(graph))
    }

    /// The number of nodes; the nodes themselves are not available.
    fn nodes(engine, graph: u64, _nodes: u64, count: Out<u64>)
        as runtime cudaGraphGetNodes, runtime hipGraphGetNodes
    {
        count.set(engine.with(|state| state.timeline.captures.graph(graph).map(|work| work.len() as u64))?)
    }

    fn unsupported(engine) as runtime cudaGraphAddNode, runtime cudaGraphConditionalHandleCreate,
        runtime cudaGraphNodeGetDependencies, runtime cudaStreamUpdateCaptureDependencies
    {
        let _ = engine;
        Err(Status::NOT_SUPPORTED)
    }
}

// User objects tie the lifetime of a resource to a graph; the program keeps its own reference count too.
export_nothing! { cudaGraphDebugDotPrint cudaUserObjectCreate cudaUserObjectRelease cudaGraphRetainUserObject }

#[allow(
    clippy::too_many_arguments,
    reason = "as many as the function of the API has"
)]
fn tell_capture(
    engine: &Engine,
    stream: u64,
    status: &Out<i32>,
    id: &Out<u64>,
    graph: &Out<u64>,
    dependencies: &Out<u64>,
    count: &Out<u64>,
) -> Result<(), Status> {
    let (capture, of) = engine.with(|state| {
        let capture = state.timeline.capture_of(stream, current_device())?;
        let captures = &state.timeline.captures;
        Ok((
            capture,
            capture.and_then(|capture| captures.graph_of(capture)),
        ))
    })?;
    id.set_if_wanted(capture.map_or(0, |capture| capture.0));
    graph.set_if_wanted(of.unwrap_or(0));
    dependencies.set_if_wanted(0);
    count.set_if_wanted(0);
    status.set(if capture.is_some() { CAPTURING } else { IDLE })
}

fn begin(engine: &Engine, stream: u64, graph: Option<u64>, mode: u32) -> Result<(), Status> {
    let strictness = Strictness::from_code(mode)?;
    // The default stream, which others wait for, cannot stand still; and that of a thread is
    // the same one here.
    if matches!(stream, 0 | LEGACY_STREAM | STREAM_PER_THREAD) {
        return Err(Status::CAPTURE_UNSUPPORTED);
    }
    engine.with(|state| {
        state
            .timeline
            .forbid_in_capture_of(stream, current_device())?;
        if let Some(graph) = graph {
            state.timeline.captures.graph(graph)?;
        }
        let graph = graph.unwrap_or_else(|| state.timeline.handle());
        let id = state.timeline.captures.begin(stream, graph, strictness);
        state.timeline.begin_capture(stream, current_device(), id)
    })
}
