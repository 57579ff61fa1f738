//! Edge cases of plans, and a comparison with what accelerate's `infer_auto_device_map` keeps of the same
//! irregular models, as recorded by `bench/placement/accelerate_odd.py`.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use std::collections::HashMap;

use serde::Deserialize;
use surefoot_placement::Bytes;
use surefoot_placement::plan::{
    Component, DeviceMap, Memory, Module, OffloadOptions, Phase, PlacementConstraint, Plan,
    PlanError, Residency, TensorSize, plan,
};

/// A model that accelerate planned.
#[derive(Deserialize)]
struct Odd {
    model: String,
    bytes: Vec<u64>,
    storages: Vec<u64>,
    /// Budgets and the bytes that stay on the device.
    plans: Vec<(u64, u64)>,
}

fn rows(bytes: &[u64], storages: &[u64]) -> Vec<Component> {
    let sizes = bytes.iter().zip(storages).enumerate();
    let modules = sizes.map(|(at, (&bytes, &storage))| {
        Module::new(
            format!("part_{at}"),
            storage,
            Bytes(bytes),
            PlacementConstraint::Streamable,
        )
    });
    vec![Component {
        name: "model".to_owned(),
        modules: modules.collect(),
    }]
}

fn use_of(
    components: &[Component],
    device: u64,
    options: &OffloadOptions,
) -> Result<Plan, PlanError> {
    let phase = Phase {
        name: "use".to_owned(),
        active: components
            .iter()
            .map(|component| component.name.clone())
            .collect(),
        working: Bytes::ZERO,
    };
    let memory = Memory::Discrete {
        device: Bytes(device),
        host: Bytes::gib(1),
    };
    plan(components, &[phase], memory, options)
}

fn blocks(bytes: &[u64]) -> Vec<Component> {
    let storages: Vec<u64> = (0..bytes.len() as u64).collect();
    rows(bytes, &storages)
}

#[test]
fn no_odd_model_has_less_on_the_device_than_with_accelerate() {
    let text = include_str!("fixtures/accelerate_plans.json");
    let models: Vec<Odd> = serde_json::from_str(text).unwrap();
    let one_slot = OffloadOptions {
        ring_slots: 1,
        ..OffloadOptions::default()
    };
    let (mut more, mut same, mut refused) = (0, 0, 0);
    for odd in models {
        let model = rows(&odd.bytes, &odd.storages);
        let largest = *odd.bytes.iter().max().unwrap();
        for (budget, theirs) in odd.plans {
            let case = format!("{}, {budget} bytes: {theirs}", odd.model);
            match use_of(&model, budget, &one_slot) {
                Ok(ours) => {
                    let phase = &ours.phases[0];
                    assert!(phase.device() <= Bytes(budget), "{case}");
                    assert!(
                        phase.resident >= Bytes(theirs),
                        "{case}, and here {}",
                        phase.resident.0
                    );
                    more += usize::from(phase.resident > Bytes(theirs));
                    same += usize::from(phase.resident == Bytes(theirs));
                }
                // If the largest block never fits, accelerate makes a plan anyway, which fails when it runs.
                Err(error) => {
                    assert!(
                        matches!(error, PlanError::DeviceTooSmall { .. }),
                        "{case}: {error}"
                    );
                    assert!(budget < largest, "{case}: {error}");
                    refused += 1;
                }
            }
        }
    }
    assert!(
        more > 30 && same > 30 && refused > 30,
        "{more} more, {same} same, {refused} refused"
    );
}

#[test]
fn all_stays_to_the_byte_and_one_less_streams() {
    let model = blocks(&[100, 300, 200]);
    let exact = use_of(&model, 600, &OffloadOptions::default()).unwrap();
    assert_eq!(
        (exact.phases[0].resident, exact.phases[0].ring),
        (Bytes(600), Bytes(0))
    );
    // Two slots of 200 do not fit beside the 300, one does.
    let less = use_of(&model, 599, &OffloadOptions::default()).unwrap();
    let phase = &less.phases[0];
    assert_eq!(
        (phase.resident, phase.ring, phase.ring_slots),
        (Bytes(300), Bytes(200), 1)
    );
}

#[test]
fn a_budget_of_nothing_is_refused_with_what_the_least_would_be() {
    let error = use_of(&blocks(&[100, 300]), 0, &OffloadOptions::default()).unwrap_err();
    assert_eq!(
        error.to_string(),
        "`use` does not fit the device: even with every block streamed, it needs 300 bytes (0 bytes of it to work in), \
         and there are 0 bytes: 300 bytes too little"
    );
    assert!(use_of(&blocks(&[100, 300]), 299, &OffloadOptions::default()).is_err());
    assert!(use_of(&blocks(&[100, 300]), 300, &OffloadOptions::default()).is_ok());
}

#[test]
fn a_model_of_nothing_fits_everywhere() {
    for model in [blocks(&[]), blocks(&[0]), blocks(&[0, 0, 0])] {
        let plan = use_of(&model, 0, &OffloadOptions::default()).unwrap();
        assert_eq!(plan.device_peak(), Bytes::ZERO);
    }
}

#[test]
fn buffers_and_views_of_one_memory_count_once() {
    let tensor = |storage, bytes| TensorSize {
        storage,
        bytes: Bytes(bytes),
    };
    let module = |name: &str, tensors| Module {
        name: name.to_owned(),
        tensors,
        constraint: PlacementConstraint::Streamable,
    };
    let model = [Component {
        name: "model".to_owned(),
        modules: vec![
            // A weight, a view of a part of it, and a buffer that the next module shares.
            module("a", vec![tensor(1, 1000), tensor(1, 200), tensor(2, 50)]),
            module("b", vec![tensor(2, 50), tensor(3, 100)]),
            module("c", vec![tensor(4, 100)]),
        ],
    }];
    let whole = use_of(&model, 1250, &OffloadOptions::default()).unwrap();
    assert_eq!(whole.phases[0].resident, Bytes(1250));
    let less = use_of(&model, 1249, &OffloadOptions::default()).unwrap();
    let residencies: HashMap<&str, Residency> = less.phases[0]
        .placements
        .iter()
        .map(|placed| (placed.module.as_str(), placed.residency))
        .collect();
    assert_eq!(residencies["a"], residencies["b"], "tied through a buffer");
}

#[test]
fn options_of_which_only_one_could_be_followed_are_refused_by_name() {
    let explicit = DeviceMap::all_on_device();
    let base = OffloadOptions::default;
    let cases = [
        (
            OffloadOptions {
                low_vram: true,
                blocks_to_swap: Some(1),
                ..base()
            },
            ["blocks_to_swap", "low_vram"],
        ),
        (
            OffloadOptions {
                offload_fraction: 0.5,
                blocks_to_swap: Some(1),
                ..base()
            },
            ["blocks_to_swap", "offload_fraction"],
        ),
        (
            OffloadOptions {
                device_map: explicit.clone(),
                blocks_to_swap: Some(0),
                ..base()
            },
            ["device_map", "blocks_to_swap"],
        ),
        (
            OffloadOptions {
                device_map: explicit.clone(),
                low_vram: true,
                ..base()
            },
            ["device_map", "low_vram"],
        ),
        (
            OffloadOptions {
                device_map: explicit,
                offload_fraction: 0.1,
                ..base()
            },
            ["device_map", "offload_fraction"],
        ),
    ];
    for (options, [one, other]) in cases {
        let error = use_of(&blocks(&[10; 4]), 100, &options).unwrap_err();
        let expected =
            format!("`{one}` and `{other}` both set what is streamed: remove one of them");
        assert_eq!(error.to_string(), expected);
    }
    let all_and_half = OffloadOptions {
        low_vram: true,
        offload_fraction: 0.5,
        ..base()
    };
    assert!(use_of(&blocks(&[10; 4]), 100, &all_and_half).is_ok());
}
