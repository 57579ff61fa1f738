//! The recorded traces, held to the numbers that the project promises.

#![allow(clippy::unwrap_used, reason = "tests")]

use alloc_lab::replay::{Bounds, Outcome, replay};
use alloc_lab::synthetic::Shape;
use alloc_lab::trace::{Event, Trace};
use hip_alloc::driver::sim::{SimConfig, SimDriver};
use hip_alloc::pool::{DeviceMemory, Keep, Pool, PoolConfig};
use hip_alloc::units::{MIB, StreamId};
use std::collections::HashMap;
use std::path::Path;
use std::time::Duration;

/// The recorded traces, those that the policy had not seen among them.
fn recorded() -> Vec<(String, Trace)> {
    let traces = traces_in(&["traces", "held_out"]);
    assert!(traces.len() >= 16);
    traces
}

/// These, and those of the kinds that none of them has: lengths that vary without checkpointing, and a video that is sampled
/// between steps.
fn recorded_of_all_kinds() -> Vec<(String, Trace)> {
    traces_in(&["traces", "held_out", "kinds"])
}

fn traces_in(folders: &[&str]) -> Vec<(String, Trace)> {
    let tests = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests");
    let files = folders
        .iter()
        .map(|folder| std::fs::read_dir(tests.join(folder)).unwrap());
    let files = files.flatten();
    let mut traces: Vec<_> = files
        .map(|entry| entry.unwrap().path())
        .map(|path| {
            let name = path.file_name().unwrap().display().to_string();
            let name = name.trim_end_matches(".trace.zst").to_owned();
            (name, Trace::read(&path).unwrap())
        })
        .collect();
    traces.sort_by(|a, b| a.0.cmp(&b.0));
    traces
}

fn run(trace: &Trace) -> (Outcome, Bounds) {
    run_keeping(Keep::Off, trace)
}

fn run_keeping(keep: Keep, trace: &Trace) -> (Outcome, Bounds) {
    let config = PoolConfig {
        keep,
        ..PoolConfig::default()
    };
    let sim = SimConfig {
        call_latency: Duration::from_micros(50),
        clearing_rate: 5_000_000_000,
        ..SimConfig::default()
    };
    let outcome = replay(trace, config.clone(), sim);
    let promises = Bounds::of(&outcome, &config);
    (outcome, promises)
}

#[test]
fn the_peak_is_within_five_percent_of_the_live_peak() {
    for (name, trace) in recorded() {
        let (outcome, promises) = run(&trace);
        let ratio = outcome.peak_ratio();
        assert!(promises.peak(&outcome), "{name}: {ratio:.4}");
    }
}

#[test]
fn between_steps_no_more_than_the_floor_and_a_block_is_held() {
    for (name, trace) in recorded() {
        let (outcome, promises) = run(&trace);
        let excess = outcome.idle_excess() / MIB;
        assert!(promises.idle(&outcome), "{name}: {excess} MiB");
    }
}

/// Where `keep:off` holds more than 1.03 × the live peak. It must not become worse.
const MISSES_FRUGAL_PEAK: [(&str, f64); 5] = [
    ("experts", 1.0326),
    ("gpt2", 1.0362),
    ("gpt_medium_generating", 1.0315),
    ("vit_evaluating", 1.0382),
    ("vocoder_gan", 1.0431),
];

/// Where the default holds more than 1.03 × the live peak. It must not become worse.
const MISSES_PEAK: [(&str, f64); 6] = [
    ("experts", 1.0376),
    ("gpt2", 1.0326),
    ("qwen_qlora", 1.0334),
    ("vit_evaluating", 1.0365),
    ("vit_short_last", 1.0311),
    ("wan_swapped", 1.0330),
];

#[test]
fn the_default_holds_little_more_than_what_is_live() {
    for (name, trace) in recorded_of_all_kinds() {
        let (outcome, _) = run_keeping(Keep::Auto, &trace);
        let known = MISSES_PEAK.iter().find(|(missed, _)| *missed == name);
        let bound = known.map_or(1.03, |(_, bound)| *bound);
        let ratio = outcome.peak_ratio();
        assert!(ratio <= bound, "{name}: {ratio:.4}");
    }
}

/// `keep:off` is for those who have no byte to spare.
#[test]
fn with_nothing_kept_the_peak_is_frugal_and_between_steps_the_floor_is_left() {
    for (name, trace) in recorded() {
        let (outcome, _) = run_keeping(Keep::Off, &trace);
        let known = MISSES_FRUGAL_PEAK
            .iter()
            .find(|(missed, _)| *missed == name);
        let (bound, ratio) = (
            known.map_or(1.03, |(_, bound)| *bound),
            outcome.peak_ratio(),
        );
        assert!(ratio <= bound, "{name}: {ratio:.4}");
        let floor = (outcome.peak_live / 4).min(1024 * MIB);
        let beyond = outcome.idle_excess().saturating_sub(floor) / MIB;
        assert!(beyond <= 144, "{name}: {beyond} MiB beyond the floor");
    }
}

/// Where there are more driver calls per step than promised: why is in `POLICIES.md`. It must
/// not become worse; the bound for all others stays.
const MISSES_CALLS: [(&str, f64); 1] = [("wan_swapped", 1723.0)];

#[test]
fn driver_calls_are_few() {
    for (name, trace) in recorded() {
        let (outcome, promises) = run(&trace);
        let calls = outcome.calls_per_step();
        let known = MISSES_CALLS.iter().find(|(missed, _)| *missed == name);
        let bound = known.map_or(promises.calls_allowed_per_step, |(_, bound)| *bound);
        assert!(calls <= bound, "{name}: {calls:.1} of {bound:.1}");
    }
}

/// With 3 % more than the live peak, and so less than the floor to spare.
#[test]
fn under_pressure_nothing_that_fits_is_refused() {
    for (name, trace) in recorded() {
        let capacity = run(&trace).0.peak_live / 100 * 103;
        let sim = SimConfig {
            capacity,
            ..SimConfig::default()
        };
        let outcome = replay(&trace, PoolConfig::default(), sim);
        assert_eq!(outcome.out_of_memory, 0, "{name}");
        assert!(outcome.peak_held <= capacity, "{name}");
    }
}

/// Other shapes than those the policy was tuned on, with looser bounds that must never be exceeded.
#[test]
fn made_up_training_stays_near_its_live_memory() {
    for (name, shape) in Shape::examples() {
        let (outcome, _) = run(&shape.trace());
        assert_eq!(outcome.out_of_memory, 0, "{name}");
        let bound = (outcome.peak_live as f64 * 1.08) as u64;
        assert!(
            outcome.peak_held <= bound.max(1024 * MIB),
            "{name}: {:.4}",
            outcome.peak_ratio()
        );
    }
}

/// The evaluation requests blocks of 1.5 and 6 GiB again and again, for every layer, and
/// the step ends there. Blocks kept for the next layer must be gone by then.
#[test]
fn what_a_step_will_use_again_is_given_back_when_it_ends() {
    let (_, base) = Shape::examples().swap_remove(0);
    let shape = Shape {
        hidden: 3072,
        vocabulary: 0,
        element: 2,
        batch: 16,
        sequence: (1024, 4096),
        steps: 6,
        adapter_rank: 64,
        checkpointing: true,
        evaluate_every: 2,
        seed: 57_618_071,
        ..base
    };
    let (outcome, promises) = run(&shape.trace());
    let excess = outcome.idle_excess() / MIB;
    assert!(promises.idle(&outcome), "{excess} MiB");
}

/// `record` of `python/tests/test_snapshot.py` under PyTorch 2.13 wrote the pickle.
#[test]
fn pytorchs_own_recording_is_a_trace() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/pytorch_snapshot.pickle");
    let trace = Trace::read(&path).unwrap();
    // The first was live before the recording began, and is known because it is freed.
    let sizes = [5 * MIB, 4000, MIB, 20 * MIB, 300 * MIB];
    let requests = sizes.iter().enumerate();
    let mut expected: String = requests
        .map(|(id, bytes)| format!("a {id} {bytes}\n"))
        .collect();
    expected += "f 4\nf 3\nf 2\nf 0\n";
    expected += &format!("a 5 {}\n", 7 * MIB);
    assert_eq!(trace.to_text(), expected);
    assert_eq!(run(&trace).0.out_of_memory, 0);
}

#[test]
fn a_replay_is_the_same_every_time() {
    let trace = Shape::examples()[2].1.trace();
    assert_eq!(
        format!("{:?}", run(&trace).0.marks),
        format!("{:?}", run(&trace).0.marks)
    );
}

#[test]
fn a_synthetic_trace_survives_being_written_and_read() {
    let trace = Shape::examples()[0].1.trace();
    assert_eq!(Trace::parse(&trace.to_text()).unwrap(), trace);
}

/// Memory that was needed at the peak is kept between steps: this avoids most of the traffic with the
/// driver, and costs at most this at the peak.
#[test]
fn keeping_memory_saves_most_of_what_goes_through_the_driver() {
    let mut bytes = [0.0; 2];
    for (name, trace) in recorded() {
        let (none, _) = run(&trace);
        let (auto, promises) = run_keeping(Keep::Auto, &trace);
        assert!(promises.peak(&auto), "{name}: {:.4}", auto.peak_ratio());
        assert!(
            auto.bytes_per_step() <= none.bytes_per_step(),
            "{name}: {:.0} of {:.0}",
            auto.bytes_per_step(),
            none.bytes_per_step()
        );
        bytes[0] += auto.bytes_per_step();
        bytes[1] += none.bytes_per_step();
    }
    assert!(bytes[0] < bytes[1] / 2.0, "{bytes:?}");
}

/// Four resolutions whose layers request a quarter of a terabyte: what one step left serves the
/// next only if sizes do not matter, in one large block.
#[test]
fn steps_of_several_resolutions_share_what_is_kept() {
    let (_, trace) = recorded()
        .into_iter()
        .find(|(name, _)| name == "wan_swapped")
        .unwrap();
    let (none, _) = run(&trace);
    let (auto, _) = run_keeping(Keep::Auto, &trace);
    let part = auto.bytes_per_step() / none.bytes_per_step();
    assert!(part < 0.25, "{part:.3}");
}

/// Gradients and optimizer state come after the peak, with other sizes than what was kept for it: they
/// use its blocks, and do not displace them.
#[test]
fn blocks_of_the_peak_serve_what_comes_after_it() {
    let (_, trace) = recorded()
        .into_iter()
        .find(|(name, _)| name == "vit_ema")
        .unwrap();
    let (none, _) = run(&trace);
    let (auto, promises) = run_keeping(Keep::Auto, &trace);
    assert!(promises.peak(&auto), "{:.4}", auto.peak_ratio());
    let part = auto.bytes_per_step() / none.bytes_per_step();
    assert!(part < 0.15, "{part:.3}");
}

const GUARD: u64 = 4096;

/// At no moment is a live request without its guard: each is looked at when it is served, and all of them whenever
/// something was returned to the driver, since nothing else unmaps.
#[test]
fn behind_every_live_request_something_is_mapped() {
    for (name, trace) in recorded_of_all_kinds() {
        for keep in [Keep::Auto, Keep::Off] {
            let device = DeviceMemory::of(SimDriver::new(SimConfig::default()));
            let config = PoolConfig {
                keep,
                guard: GUARD,
                ..PoolConfig::default()
            };
            let mut pool = Pool::new(config, device.clone());
            let mut live = HashMap::new();
            let guarded = |(address, bytes): &(u64, u64)| {
                let mapped = device.lock().driver.mapped_until(*address);
                mapped.is_some_and(|end| address + bytes + GUARD <= end)
            };
            let mut returned = 0;
            for event in &trace.events {
                match *event {
                    Event::Allocate { id, bytes, stream } => {
                        let stream = StreamId(stream);
                        let address = pool.allocate(bytes, stream).unwrap();
                        assert!(guarded(&(address, bytes)), "{name}");
                        live.insert(id, (address, bytes));
                    }
                    Event::Free { id } => {
                        if let Some((address, _)) = live.remove(&id) {
                            pool.free(address).unwrap();
                        }
                    }
                    Event::Step => {}
                }
                let so_far = pool.stats().driver_frees;
                if so_far > std::mem::replace(&mut returned, so_far) {
                    assert!(live.values().all(guarded), "{name}");
                }
            }
        }
    }
}

/// The guard's price: a page for each block.
#[test]
fn the_guard_costs_less_than_a_percent_of_memory_and_hardly_a_call() {
    for (name, trace) in recorded_of_all_kinds() {
        let with = |guard| {
            let config = PoolConfig {
                keep: Keep::Auto,
                guard,
                ..PoolConfig::default()
            };
            replay(&trace, config, SimConfig::default())
        };
        let (plain, guarded) = (with(0), with(GUARD));
        let (held, most) = (guarded.peak_held as f64, plain.peak_held as f64 * 1.01);
        assert!(held <= most, "{name}: {held} of {most}");
        let (calls, most) = (
            guarded.driver_calls as f64,
            plain.driver_calls as f64 * 1.05,
        );
        assert!(calls <= most, "{name}: {calls} of {most}");
    }
}
