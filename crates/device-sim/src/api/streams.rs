//! Streams and events.

use std::ffi::c_void;

use super::{Out, export};
use crate::engine::{Effect, Engine, HostFunction, Nanos, current_device};
use crate::status::Status;

/// `cudaStreamNonBlocking`, `hipStreamNonBlocking`
const NON_BLOCKING: u32 = 1;

/// `cudaEventDisableTiming`, `hipEventDisableTiming`
const DISABLE_TIMING: u32 = 2;

/// The priority range of recent real devices; lower means higher priority.
const PRIORITIES: (i32, i32) = (0, -5);

export! {
    fn stream_create(engine, stream: Out<u64>) as runtime cudaStreamCreate, runtime hipStreamCreate {
        create_stream(engine, stream, 0, 0)
    }

    fn stream_create_with_flags(engine, stream: Out<u64>, flags: u32)
        as runtime cudaStreamCreateWithFlags, runtime hipStreamCreateWithFlags, driver cuStreamCreate
    {
        create_stream(engine, stream, flags, 0)
    }

    fn stream_create_with_priority(engine, stream: Out<u64>, flags: u32, priority: i32)
        as runtime cudaStreamCreateWithPriority, runtime hipStreamCreateWithPriority, driver cuStreamCreateWithPriority
    {
        create_stream(engine, stream, flags, priority)
    }

    fn stream_destroy(engine, stream: u64)
        as runtime cudaStreamDestroy, runtime hipStreamDestroy, driver cuStreamDestroy_v2
    {
        engine.with(|state| state.timeline.destroy_stream(stream))
    }

    fn stream_query(engine, stream: u64) as runtime cudaStreamQuery, runtime hipStreamQuery, driver cuStreamQuery {
        let done = engine.with(|state| state.timeline.stream_done(stream, current_device()))?;
        ready(engine, done)
    }

    fn stream_synchronize(engine, stream: u64)
        as runtime cudaStreamSynchronize, runtime hipStreamSynchronize, driver cuStreamSynchronize
    {
        let done = engine.with(|state| {
            state.forbid_in_capture()?;
            state.timeline.stream_done(stream, current_device())
        })?;
        engine.wait_until(done);
        Ok(())
    }

    fn device_synchronize(engine)
        as runtime cudaDeviceSynchronize, runtime hipDeviceSynchronize, driver cuCtxSynchronize
    {
        let done = engine.with(|state| {
            state.forbid_in_capture()?;
            Ok(state.timeline.device_done(current_device()))
        })?;
        engine.wait_until(done);
        Ok(())
    }

    fn stream_wait_event(engine, stream: u64, event: u64, _flags: u32)
        as runtime cudaStreamWaitEvent, runtime hipStreamWaitEvent, driver cuStreamWaitEvent
    {
        engine.with(|state| state.timeline.wait_event(stream, current_device(), event))
    }

    fn stream_priority(engine, stream: u64, priority: Out<i32>)
        as runtime cudaStreamGetPriority, runtime hipStreamGetPriority, driver cuStreamGetPriority
    {
        priority.set(engine.with(|state| state.timeline.priority(stream, current_device()))?)
    }

    fn stream_device(engine, stream: u64, device: Out<i32>)
        as runtime cudaStreamGetDevice, runtime hipStreamGetDevice
    {
        device.set(engine.with(|state| state.timeline.device_of(stream, current_device()))? as i32)
    }

    fn priority_range(engine, least: Out<i32>, greatest: Out<i32>)
        as runtime cudaDeviceGetStreamPriorityRange, runtime hipDeviceGetStreamPriorityRange,
           driver cuCtxGetStreamPriorityRange
    {
        let _ = engine;
        least.set_if_wanted(PRIORITIES.0);
        greatest.set_if_wanted(PRIORITIES.1);
        Ok(())
    }

    fn launch_host_function(engine, stream: u64, function: Option<unsafe extern "C" fn(*mut c_void)>, data: usize)
        as runtime cudaLaunchHostFunc, runtime hipLaunchHostFunc, driver cuLaunchHostFunc
    {
        let function = function.ok_or(Status::INVALID_VALUE)?;
        submit(engine, stream, Effect::Call(HostFunction::Plain { function, data }))
    }

    fn add_callback(
        engine, stream: u64, function: Option<unsafe extern "C" fn(*mut c_void, u32, *mut c_void)>, data: usize, _flags: u32,
    ) as runtime cudaStreamAddCallback, runtime hipStreamAddCallback, driver cuStreamAddCallback
    {
        let function = function.ok_or(Status::INVALID_VALUE)?;
        submit(engine, stream, Effect::Call(HostFunction::Callback { function, stream, data }))
    }

    fn event_create(engine, event: Out<u64>) as runtime cudaEventCreate, runtime hipEventCreate {
        let event = event.required()?;
        event.set(engine.with(|state| state.timeline.create_event(true)))
    }

    fn event_create_with_flags(engine, event: Out<u64>, flags: u32)
        as runtime cudaEventCreateWithFlags, runtime hipEventCreateWithFlags, driver cuEventCreate
    {
        let event = event.required()?;
        event.set(engine.with(|state| state.timeline.create_event(flags & DISABLE_TIMING == 0)))
    }

    fn event_destroy(engine, event: u64)
        as runtime cudaEventDestroy, runtime hipEventDestroy, driver cuEventDestroy_v2
    {
        engine.with(|state| state.timeline.destroy_event(event))
    }

    fn event_record(engine, event: u64, stream: u64)
        as runtime cudaEventRecord, runtime hipEventRecord, driver cuEventRecord
    {
        engine.with(|state| state.timeline.record(event, stream, current_device()))
    }

    fn event_record_with_flags(engine, event: u64, stream: u64, _flags: u32)
        as runtime cudaEventRecordWithFlags, runtime hipEventRecordWithFlags, driver cuEventRecordWithFlags
    {
        engine.with(|state| state.timeline.record(event, stream, current_device()))
    }

    fn event_query(engine, event: u64) as runtime cudaEventQuery, runtime hipEventQuery, driver cuEventQuery {
        let done = engine.with(|state| {
            state.forbid_in_capture()?;
            state.timeline.event_done(event)
        })?;
        ready(engine, done)
    }

    fn event_synchronize(engine, event: u64)
        as runtime cudaEventSynchronize, runtime hipEventSynchronize, driver cuEventSynchronize
    {
        let done = engine.with(|state| {
            state.forbid_in_capture()?;
            state.timeline.event_done(event)
        })?;
        engine.wait_until(done);
        Ok(())
    }

    fn event_elapsed(engine, milliseconds: Out<f32>, start: u64, end: u64)
        as runtime cudaEventElapsedTime, runtime hipEventElapsedTime, driver cuEventElapsedTime
    {
        milliseconds.set(engine.with(|state| state.timeline.elapsed(start, end))?)
    }
}

/// Submits work that takes no time to a stream.
pub(super) fn submit(engine: &Engine, stream: u64, effect: Effect) -> Result<(), Status> {
    engine
        .with(|state| state.timeline.submit(stream, current_device(), 0, effect))
        .map(drop)
}

fn create_stream(
    engine: &Engine,
    stream: Out<u64>,
    flags: u32,
    priority: i32,
) -> Result<(), Status> {
    let stream = stream.required()?;
    let priority = priority.clamp(PRIORITIES.1, PRIORITIES.0);
    let blocking = flags & NON_BLOCKING == 0;
    stream.set(engine.with(|state| {
        state
            .timeline
            .create_stream(current_device(), blocking, priority)
    }))
}

fn ready(engine: &Engine, done: Nanos) -> Result<(), Status> {
    match engine.with(|state| state.done(done)) {
        true => Ok(()),
        false => Err(Status::NOT_READY),
    }
}
