//! The interface for tests: settings and statistics.

use std::ffi::{CStr, c_char};
use std::sync::Once;

use serde_json::{Map, Value, json};

use crate::calls;
use crate::engine::Engine;
use crate::environment::REPORT;
use crate::process::{forked, tell};
use crate::settings;

/// Changes settings while the program runs (see [`crate::settings`] for the grammar).
///
/// Returns 0, or -1 with a message on stderr if a setting is invalid (then
/// none is applied), or if there is no device.
///
/// # Safety
/// `settings` points to a terminated string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn device_sim_control(settings: *const c_char) -> i32 {
    if settings.is_null() {
        return -1;
    }
    // SAFETY: promised by the caller; null was excluded.
    let text = unsafe { CStr::from_ptr(settings) }.to_string_lossy();
    match calls::guarded(|| Ok(take(&text))) {
        Ok(Ok(())) => 0,
        Ok(Err(problem)) => {
            tell(&problem);
            -1
        }
        Err(_) => -1,
    }
}

fn take(text: &str) -> Result<(), String> {
    let settings = settings::parse_all(text).map_err(|problem| problem.to_string())?;
    let engine = Engine::get().map_err(|status| status.message().to_string_lossy().into_owned())?;
    engine.with(|state| {
        settings
            .into_iter()
            .for_each(|setting| state.apply(setting))
    });
    Ok(())
}

/// Writes the report as JSON, terminated, into `buffer` of `size` bytes if it
/// fits. Returns how many bytes it takes with its terminator, or 0 if there is none.
///
/// # Safety
/// `buffer` is null or has room for `size` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn device_sim_report(buffer: *mut c_char, size: usize) -> usize {
    let Ok(text) = calls::guarded(|| Ok(report().to_string())) else {
        return 0;
    };
    if !buffer.is_null() && text.len() < size {
        // SAFETY: the caller promises `size` bytes, and text and terminator fit.
        unsafe {
            buffer.copy_from_nonoverlapping(text.as_ptr().cast(), text.len());
            buffer.add(text.len()).write(0);
        }
    }
    text.len() + 1
}

/// The number of calls of the function with this name.
///
/// # Safety
/// `name` points to a terminated string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn device_sim_calls(name: *const c_char) -> u64 {
    if name.is_null() {
        return 0;
    }
    // SAFETY: promised by the caller; null was excluded.
    calls::count_of(&unsafe { CStr::from_ptr(name) }.to_string_lossy())
}

/// Writes the report to `DEVICE_SIM_REPORT` at exit.
pub(crate) fn report_at_exit() {
    extern "C" fn write() {
        let _ = calls::guarded(|| {
            // A forked child that exits normally has no report, and must not overwrite that of its parent.
            if let Some(path) = std::env::var_os(REPORT).filter(|_| !forked())
                && let Err(problem) = std::fs::write(&path, report().to_string())
            {
                tell(&format!("{}: {problem}", path.display()));
            }
            Ok(())
        });
    }
    static REGISTERED: Once = Once::new();
    REGISTERED.call_once(|| {
        if std::env::var_os(REPORT).is_some() {
            // SAFETY: the handler is a plain function without preconditions.
            unsafe { libc::atexit(write) };
        }
    });
}

/// Calls by function, and current and peak memory.
fn report() -> Value {
    let calls: Map<_, _> = calls::counters()
        .into_iter()
        .map(|(name, count)| (name.to_owned(), count.into()))
        .collect();
    let Ok(engine) = Engine::get() else {
        return json!({ "calls": calls });
    };
    engine.with(|state| {
        let devices: Vec<_> = (0..state.devices)
            .map(|device| {
                let usage = state.memory.usage[device];
                let (free, total) = state.memory.info(device);
                json!({
                    "held_bytes": usage.held, "peak_bytes": usage.peak, "moved_bytes": usage.moved,
                    "live": usage.live,
                    "free_bytes": free, "total_bytes": total, "context": state.contexts[device],
                })
            })
            .collect();
        let [to_device, to_host, on_device] = state
            .copies
            .moved
            .map(|(copies, bytes)| json!({ "copies": copies, "bytes": bytes }));
        json!({
            "calls": calls,
            "devices": devices,
            "pinned_bytes": state.memory.pinned,
            "h2d": to_device, "d2h": to_host, "d2d": on_device,
        })
    })
}
