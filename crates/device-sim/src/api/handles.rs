//! Handles of the math libraries, each with the stream for its work.

use std::collections::HashMap;

use parking_lot::Mutex;

use crate::engine::{Effect, Engine, current_device};
use crate::status::Status;

/// The stream set for each handle; otherwise the default stream is used.
static STREAMS: Mutex<Option<HashMap<u64, u64>>> = Mutex::new(None);

/// A handle or descriptor: a unique number.
pub(super) fn create(engine: &Engine) -> u64 {
    engine.with(|state| state.timeline.handle())
}

pub(super) fn forget(handle: u64) {
    STREAMS.lock().get_or_insert_default().remove(&handle);
}

pub(super) fn set_stream(handle: u64, stream: u64) {
    STREAMS
        .lock()
        .get_or_insert_default()
        .insert(handle, stream);
}

pub(super) fn stream_of(handle: u64) -> u64 {
    let streams = STREAMS.lock();
    streams
        .as_ref()
        .and_then(|streams| streams.get(&handle).copied())
        .unwrap_or(0)
}

/// Submits a library's kernel to a stream.
pub(super) fn launch(engine: &Engine, stream: u64) -> Result<(), Status> {
    submit(engine, stream, Effect::Kernel)
}

/// Submits a matrix product, whose operands end at these addresses.
pub(super) fn launch_reading(
    engine: &Engine,
    stream: u64,
    operands: [u64; 2],
) -> Result<(), Status> {
    let effect = match engine.with(|state| state.overread) {
        0 => Effect::Kernel,
        _ => Effect::ReadBehind(operands),
    };
    submit(engine, stream, effect)
}

fn submit(engine: &Engine, stream: u64, effect: Effect) -> Result<(), Status> {
    engine.with(|state| {
        let cost = state.device_time.kernel.as_nanos() as u64;
        let device = current_device();
        state.contexts[device] = true;
        let submitted = state.timeline.submit(stream, device, cost, effect);
        submitted.map(drop)
    })
}

/// Exports functions whose first argument is a handle, and which launch a kernel.
macro_rules! export_kernels {
    ($($name:ident)*) => {$(
        #[unsafe(no_mangle)]
        #[allow(non_snake_case, reason = "the C API decides")]
        extern "C" fn $name(handle: u64) -> $crate::status::Status {
            static SITE: $crate::calls::CallSite = $crate::calls::CallSite::new(stringify!($name));
            $crate::api::call(&SITE, |engine| {
                $crate::api::handles::launch(engine, $crate::api::handles::stream_of(handle))
            })
        }
    )*};
}

pub(super) use export_kernels;
