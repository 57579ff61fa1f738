//! Both experts in one run.

use std::fs;
use std::path::Path;

use models::formats::{SafetensorsFile, TensorSource};
use placement::Bytes;
use placement::plan::{Memory, PhasePlan, Residency};
use surefoot_trainer::task::diffusion::DiffusionTask;
use surefoot_trainer::{Allocator, Error, NoObserver, Stop, Summary};
use tch::Kind;

use super::place::{Place, copy, weights};

pub(crate) const BOTH: [&str; 3] = [
    "model.boundary_ratio=0.9",
    "train.steps_per_expert=2",
    "train.ema_decay=0.9",
];

/// A model whose second expert is not the first: one number of each file differs.
pub(crate) fn place() -> Place {
    let place = Place::new();
    let (first, second) = (
        place.path("model/transformer"),
        place.path("model/transformer_2"),
    );
    copy(&first, &second);
    for entry in fs::read_dir(&second).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_some_and(|e| e == "safetensors") {
            let mut bytes = fs::read(&path).unwrap();
            // The last number of the last tensor, in the low bits of its fraction.
            let last = bytes.len() - 3;
            bytes[last] ^= 0x10;
            fs::write(&path, bytes).unwrap();
        }
    }
    place
}

fn with(more: &[&'static str]) -> Vec<&'static str> {
    BOTH.iter().chain(more).copied().collect()
}

fn tensors(path: &Path) -> Vec<(String, tch::Tensor)> {
    let file = SafetensorsFile::open(path).unwrap();
    let read = |name: String| {
        let tensor = file.read(&name, Kind::Float).unwrap();
        (name, tensor)
    };
    file.names().into_iter().map(read).collect()
}

#[test]
fn keys_for_one_transformer_are_refused() {
    let place = place();
    for key in ["model.training_adapter", "sample.transformer"] {
        let set = format!("{key}=x");
        let overrides = [&BOTH[..], &[&set]].concat();
        let error = place.run(&overrides).unwrap_err().to_string();
        assert!(
            error.contains(&format!("`{key}`")) && error.contains("has two"),
            "{error}"
        );
    }
}

#[test]
fn each_expert_learns_in_its_turn_and_has_a_file() {
    let place = place();
    let summary = place.run(&with(&["train.max_steps=6"])).unwrap();
    let held_out = summary.held_out.unwrap();
    let losses: Vec<f64> = held_out.turns.values().copied().collect();
    let names: Vec<&str> = held_out.turns.keys().map(String::as_str).collect();
    assert_eq!(names, ["high_noise", "low_noise"]);
    assert!((held_out.loss - (losses[0] + losses[1]) / 2.0).abs() < 1e-9);
    let run = place.path("runs/clips");
    let adapter = run.join("adapter");
    for name in ["high_noise", "low_noise"] {
        let file =
            SafetensorsFile::open(&adapter.join(format!("clips_{name}.safetensors"))).unwrap();
        assert_eq!(file.names().len(), 60);
        assert_eq!(file.metadata()["surefoot.expert"], name);
        let peft = tensors(&adapter.join(name).join("adapter_model.safetensors"));
        assert_eq!(peft.len(), 40);
    }
    // Two steps of high noise, two of low, two of high: after the second step nothing of the low one has
    // moved, and its optimizer has seen four and two.
    let state = |step: u64, file: &str| run.join(format!("checkpoints/step-{step:06}/{file}"));
    let moved = |expert: &str, from: u64, to: u64| -> bool {
        let (from, to) = (
            tensors(&state(from, "model.safetensors")),
            tensors(&state(to, "model.safetensors")),
        );
        let own = from
            .iter()
            .zip(&to)
            .filter(|((name, _), _)| name.starts_with(expert));
        own.clone().count() == 40 && own.into_iter().any(|((_, a), (_, b))| a != b)
    };
    assert!(moved("low_noise", 2, 4) && !moved("high_noise", 2, 4));
    assert!(moved("high_noise", 4, 6) && !moved("low_noise", 4, 6));
    let text = fs::read_to_string(state(6, "state.json")).unwrap();
    let json: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert_eq!(json["turn_steps"], serde_json::json!([4, 2]));
    let ends = tensors(&state(2, "optimizer.safetensors"));
    let idle = ends
        .iter()
        .filter(|(name, _)| name.starts_with("exp_avg.low_noise"));
    assert!(
        idle.clone().count() == 40
            && idle
                .into_iter()
                .all(|(_, t)| t.abs().max().double_value(&[]) == 0.0)
    );
    // A record of each step names whose it was.
    let lines = fs::read_to_string(run.join("metrics.jsonl")).unwrap();
    let turns: Vec<String> = lines
        .lines()
        .map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap())
        .filter(|record| record["kind"] == "train")
        .map(|record| {
            let turns = record["turns"].as_object().unwrap();
            assert_eq!(turns.len(), 1);
            let (name, numbers) = turns.iter().next().unwrap();
            assert_eq!(numbers["loss"], record["loss"]);
            name.clone()
        })
        .collect();
    let (high, low) = ("high_noise", "low_noise");
    assert_eq!(turns, [high, high, low, low, high, high]);
}

#[test]
fn a_run_that_is_killed_anywhere_ends_with_the_same_bits() {
    let place = place();
    place.check_kills(
        &with(&["train.save_steps=1"]),
        &[
            "adapter/high_noise/adapter_model.safetensors",
            "checkpoints/step-000006/optimizer.safetensors",
        ],
    );
}

/// Trains on a machine with `memory`, and says what was planned.
fn run_with(place: &Place, overrides: &[&str], memory: Memory) -> Result<Summary, Error> {
    let config = place.config(overrides);
    let (allocator, stop) = (Allocator::torch(), Stop::default());
    surefoot_trainer::run_task(
        &config,
        &allocator,
        &mut NoObserver,
        &stop,
        |placer, observer| {
            let path = place.path("model");
            let task = DiffusionTask::open(&config, &path, placer, memory, observer)?;
            Ok(Box::new(task))
        },
    )
}

fn card(device: Bytes, host: Bytes) -> Memory {
    Memory::Discrete { device, host }
}

#[test]
fn an_expert_that_waits_elsewhere_learns_the_same() {
    let place = place();
    let here = place.run(&with(&["name=here"])).unwrap();
    assert!(here.memory_plan.is_none());
    let resident = here.memory_estimate.weights;
    let folder = format!("model.offload_folder={}", place.path("away").display());
    let streamed = ["model.ring_slots=2", "model.blocks_to_swap=1"];
    let one = "transformer.blocks.1: cpu";
    let map = format!("model.device_map={{'': device, {one}, transformer_2.blocks.0: disk}}");
    let (gib, kib) = (Bytes::gib(1), Bytes::kib);
    // What is idle, and what is streamed of the first.
    type Case<'a> = (&'a str, Memory, &'a [&'a str], Residency, &'a [usize]);
    let cases: [Case<'_>; 7] = [
        // A card with no room on the host: a file.
        (
            "file",
            card(gib, Bytes(0)),
            &streamed,
            Residency::IdleOnDisk,
            &[1],
        ),
        (
            "host",
            card(gib, gib),
            &streamed,
            Residency::IdleOnHost,
            &[1],
        ),
        // One memory, in which both do not fit.
        (
            "small",
            Memory::Unified {
                device: kib(310),
                pool: kib(310),
                zero_copy: true,
            },
            &streamed,
            Residency::IdleOnDisk,
            &[1],
        ),
        // Nothing is asked: one leaves where both do not fit.
        (
            "turns",
            card(kib(420), gib),
            &[],
            Residency::IdleOnHost,
            &[],
        ),
        ("both", card(gib, gib), &[], Residency::Device, &[]),
        (
            "mapped",
            card(gib, gib),
            &[&map],
            Residency::IdleOnHost,
            &[1],
        ),
        (
            "bound",
            card(gib, gib),
            &["model.max_memory={device: 440KiB}"],
            Residency::IdleOnHost,
            &[],
        ),
    ];
    for (name, memory, more, idle, blocks) in cases {
        let name = format!("name={name}");
        let mut overrides: Vec<&str> = with(&[]);
        overrides.extend(more);
        overrides.extend([&*folder, &*name]);
        let made = run_with(&place, &overrides, memory).unwrap();
        assert_eq!(made.steps, 6);
        let run = place.path("runs").join(&name["name=".len()..]);
        assert!(weights(&place.path("runs/here")) == weights(&run), "{name}");
        if idle == Residency::Device {
            assert!(made.memory_plan.is_none() && made.memory_estimate.weights == resident);
            continue;
        }
        assert!(made.memory_estimate.weights < resident, "{name}");
        let plan = made.memory_plan.unwrap();
        let [high, low] = &plan.plan.phases[..] else {
            panic!("{plan:?}")
        };
        assert_eq!((&*high.phase, &*low.phase), ("high noise", "low noise"));
        assert_eq!(plan.streamed, blocks, "{name}");
        let waits = |phase: &PhasePlan, of: &str| {
            let own = phase
                .placements
                .iter()
                .filter(|placed| placed.component == of);
            own.map(|placed| placed.residency).collect::<Vec<_>>()
        };
        for residency in waits(high, "transformer_2")
            .iter()
            .chain(&waits(low, "transformer"))
        {
            assert_eq!(*residency, idle, "{name}: {plan:?}");
        }
    }
}

#[test]
fn blocks_are_streamed_where_a_plan_is_asked_for_and_not_all_fit() {
    let place = Place::new();
    let folder = format!("model.offload_folder={}", place.path("away").display());
    place.run(&["name=here"]).unwrap();
    let overrides = [&*folder, "name=roomy", "model.profile=roomy"];
    let made = run_with(&place, &overrides, card(Bytes::gib(1), Bytes::gib(1))).unwrap();
    assert_eq!(made.memory_plan.unwrap().streamed, [0usize; 0]);
    let overrides = [&*folder, "name=streamed", "model.profile=roomy"];
    let mut streamed = 0;
    // From where all stays down to where nothing is possible.
    for device in (100..1000).rev().step_by(20) {
        let memory = card(Bytes::kib(device), Bytes::gib(1));
        let made = match run_with(&place, &overrides, memory) {
            Ok(made) => made,
            Err(error) => {
                let text = error.to_string();
                assert!(text.contains("this run needs about"), "{text}");
                assert!(
                    text.contains("what would fit: `train.gradient_checkpointing"),
                    "{text}"
                );
                break;
            }
        };
        let plan = made.memory_plan.unwrap();
        let peak = plan.plan.device_peak();
        assert!(peak <= Bytes::kib(device), "{peak}");
        assert!(plan.streamed.len() >= streamed, "{device}");
        streamed = plan.streamed.len();
        let run = place.path("runs/streamed");
        assert!(
            weights(&place.path("runs/here")) == weights(&run),
            "{device}"
        );
        fs::remove_dir_all(run).unwrap();
    }
    assert_eq!(streamed, 2);
}

#[test]
fn a_run_goes_on_from_the_adapters_of_both() {
    let place = place();
    place.run(&with(&[])).unwrap();
    let from = |folder: &str| format!("adapter.resume_from={}", place.path(folder).display());
    let both = from("runs/clips/adapter");
    let run = |more: &[&str]| {
        let overrides = [
            &BOTH[..],
            &["train.max_steps=1", "train.learning_rate=1e-12"],
            more,
        ]
        .concat();
        place.run(&overrides)
    };
    run(&["name=further", &both]).unwrap();
    for name in ["high_noise", "low_noise"] {
        let of = |run: &str| {
            let folder = place.path(&format!("runs/{run}/adapter/{name}"));
            tensors(&folder.join("adapter_model.safetensors"))
        };
        for ((key, a), (_, b)) in of("clips").iter().zip(&of("further")) {
            assert!((a - b).abs().max().double_value(&[]) < 1e-9, "{key}");
        }
    }
    let one = from("runs/clips/adapter/low_noise");
    let error = run(&[&one]).unwrap_err().to_string();
    assert!(error.contains("has no folder `high_noise`"), "{error}");
}
