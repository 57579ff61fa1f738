//! Traces: whatever is read can be written and read again, and replayed.

#![no_main]

use alloc_lab::replay::replay;
use alloc_lab::trace::Trace;
use hip_alloc::driver::sim::SimConfig;
use hip_alloc::pool::PoolConfig;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let Ok(mut trace) = Trace::from_bytes(bytes) else {
        return;
    };
    // What is written of a recording that was cut off is whole.
    trace.is_cut_off = false;
    assert_eq!(Trace::parse(&trace.to_text()).ok().as_ref(), Some(&trace));
    let outcome = replay(&trace, PoolConfig::default(), SimConfig::default());
    assert!(outcome.peak_held >= outcome.peak_live);
});
