//! The model of PyTorch's allocator, held against the real one.
//!
//! `traces_in_pytorch.json` has what `bench/alloc/peers.py` measured for each trace with
//! PyTorch 2.13 on the simulated device.

#![allow(clippy::unwrap_used, reason = "tests")]

use alloc_lab::baselines::Baseline;
use alloc_lab::trace::Trace;
use std::path::Path;

#[test]
fn the_model_holds_what_pytorch_holds() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests");
    let text = std::fs::read_to_string(folder.join("traces_in_pytorch.json")).unwrap();
    let measured: serde_json::Value = serde_json::from_str(&text).unwrap();
    for (name, settings) in measured["traces"].as_object().unwrap() {
        let trace = Trace::read(&folder.join(format!("traces/{name}.trace.zst"))).unwrap();
        for peer in Baseline::ALL {
            let real = match peer {
                Baseline::Default => &settings["default"],
                _ => &settings[peer.name()],
            };
            let model = peer.replay(&trace, &mut |_, _| {});
            let held = real["peak_held"].as_u64().unwrap() as f64;
            let off = model.peak_held as f64 / held - 1.0;
            // Expandable segments: PyTorch leaves a page unmapped here and there that the
            // model maps. No caching: the driver rounds to its own granule.
            let allowed = match peer {
                Baseline::Default | Baseline::MaxSplitSize(_) => 0.0,
                Baseline::ExpandableSegments | Baseline::NoCaching => 0.002,
            };
            let case = format!("{name}, {}", peer.name());
            assert!(
                off.abs() <= allowed,
                "{case}: {} and {held}",
                model.peak_held
            );
            let calls = real["calls_per_step"].as_f64().unwrap();
            let off = model.calls_per_step() / calls - 1.0;
            assert!(
                off.abs() <= 0.05,
                "{case}: {} and {calls}",
                model.calls_per_step()
            );
        }
    }
}
