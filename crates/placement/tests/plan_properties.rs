//! Properties of every plan, for any model, memory and options.

use std::collections::{BTreeMap, HashMap};

use proptest::prelude::*;
use proptest::strategy::ValueTree as _;
use surefoot_placement::Bytes;
use surefoot_placement::plan::{
    Action, Component, DeviceMap, MaxMemory, Memory, Module, OffloadOptions, Phase,
    PlacementConstraint, Plan, Residency, TensorSize, plan,
};

/// Components, some with tied weights, and phases that use some of them.
fn models() -> impl Strategy<Value = (Vec<Component>, Vec<Phase>)> {
    let constraint = prop_oneof![
    1 => Just(PlacementConstraint::Trained),
    1 => Just(PlacementConstraint::Resident),
    4 => Just(PlacementConstraint::Streamable)
    ];
    // Few storages, so that many are shared within and between components.
    let tensor = (0..40_u64).prop_map(|storage| TensorSize {
        storage,
        bytes: Bytes((storage * 7_919) % 5_000 + 1),
    });
    let module = (prop::collection::vec(tensor, 1..3), constraint);
    let component = prop::collection::vec(module, 1..12);
    let components = prop::collection::vec(component, 1..4).prop_map(|components| {
        let name = |at: usize| format!("c{at}");
        let components = components
            .into_iter()
            .enumerate()
            .map(|(at, modules)| Component {
                name: name(at),
                modules: modules
                    .into_iter()
                    .enumerate()
                    .map(|(number, (tensors, constraint))| Module {
                        name: format!("{}.{number}", name(at)),
                        tensors,
                        constraint,
                    })
                    .collect(),
            });
        components.collect::<Vec<_>>()
    });
    components.prop_flat_map(|components| {
        let names: Vec<String> = components
            .iter()
            .map(|component| component.name.clone())
            .collect();
        let count = names.len();
        let phase = (prop::sample::subsequence(names, 0..=count), 0..2_000_u64).prop_map(
            |(active, working)| Phase {
                name: "phase".to_owned(),
                active,
                working: Bytes(working),
            },
        );
        (Just(components), prop::collection::vec(phase, 1..4))
    })
}

fn memories() -> impl Strategy<Value = Memory> {
    let size = || (0..120_000_u64).prop_map(Bytes);
    prop_oneof![
        (size(), size()).prop_map(|(device, host)| Memory::Discrete { device, host }),
        (size(), size(), any::<bool>()).prop_map(|(device, pool, zero_copy)| Memory::Unified {
            device,
            pool,
            zero_copy
        }),
    ]
}

fn options() -> impl Strategy<Value = OffloadOptions> {
    let bound = || prop::option::weighted(0.3, (0..120_000_u64).prop_map(Bytes));
    (
        any::<bool>(),
        prop::option::weighted(0.2, 0..10_usize),
        prop_oneof![Just(0.0), 0.0..=1.0],
        1..4_u32,
        (bound(), bound()),
    )
        .prop_map(
            |(low_vram, blocks_to_swap, offload_fraction, ring_slots, (device, cpu))| {
                // A number of blocks leaves nothing for the other two options to decide.
                let counted = blocks_to_swap.is_some();
                OffloadOptions {
                    device_map: DeviceMap::Auto,
                    max_memory: MaxMemory { device, cpu },
                    low_vram: low_vram && !counted,
                    blocks_to_swap,
                    offload_fraction: if counted { 0.0 } else { offload_fraction },
                    ring_slots,
                }
            },
        )
}

/// The storages of the modules at these residencies, each counted once.
fn unique(
    components: &[Component],
    residencies: &HashMap<&str, Residency>,
    at: impl Fn(Residency) -> bool,
) -> Bytes {
    let modules = components.iter().flat_map(|component| &component.modules);
    let storages: BTreeMap<u64, Bytes> = modules
        .filter(|module| at(residencies[module.name.as_str()]))
        .flat_map(|module| {
            module
                .tensors
                .iter()
                .map(|tensor| (tensor.storage, tensor.bytes))
        })
        .collect();
    storages.into_values().sum()
}

fn residencies(plan: &Plan, phase: usize) -> HashMap<&str, Residency> {
    plan.phases[phase]
        .placements
        .iter()
        .map(|placed| (placed.module.as_str(), placed.residency))
        .collect()
}

fn in_host_memory(residency: Residency) -> bool {
    matches!(
        residency,
        Residency::ZeroCopy | Residency::StreamedFromHost | Residency::IdleOnHost
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1024))]

    #[test]
    fn never_over_budget(
        (components, phases) in models(),
        memory in memories(),
        options in options(),
    ) {
        let Ok(plan) = plan(&components, &phases, memory, &options) else { return Ok(()) };
        for (at, phase) in plan.phases.iter().enumerate() {
            let residencies = residencies(&plan, at);
            // Summed up here from the storages, not taken from the plan.
            let resident = unique(&components, &residencies, |residency| residency == Residency::Device);
            let host = unique(&components, &residencies, in_host_memory);
            prop_assert_eq!(phase.resident, resident);
            prop_assert_eq!(phase.host, host);
            let on_device = resident + phase.ring + phases[at].working;
            let max = |size: Bytes, max: Option<Bytes>| max.unwrap_or(size).min(size);
            match memory {
                Memory::Discrete { device, host: limit } => {
                    prop_assert!(on_device <= max(device, options.max_memory.device));
                    prop_assert!(host <= max(limit, options.max_memory.cpu));
                }
                Memory::Unified { device, pool, .. } => {
                    prop_assert!(on_device <= max(device, options.max_memory.device));
                    prop_assert!(on_device + host <= max(pool, options.max_memory.cpu));
                }
            }
        }
    }

    #[test]
    fn every_module_is_placed_exactly_once_and_usable_where_it_is_used(
        (components, phases) in models(),
        memory in memories(),
        options in options(),
    ) {
        let Ok(plan) = plan(&components, &phases, memory, &options) else { return Ok(()) };
        prop_assert_eq!(plan.phases.len(), phases.len());
        for (phase, planned) in phases.iter().zip(&plan.phases) {
            let modules = components.iter().flat_map(|c| c.modules.iter().map(move |m| (c, m)));
            prop_assert_eq!(modules.clone().count(), planned.placements.len());
            for ((component, module), placed) in modules.zip(&planned.placements) {
                prop_assert_eq!(&module.name, &placed.module);
                let idle = matches!(placed.residency, Residency::IdleOnHost | Residency::IdleOnDisk);
                if phase.active.contains(&component.name) {
                    prop_assert!(!idle, "{placed:?}");
                    if module.constraint != PlacementConstraint::Streamable {
                        prop_assert_eq!(placed.residency, Residency::Device);
                    }
                }
                if module.constraint == PlacementConstraint::Trained {
                    prop_assert_ne!(placed.residency, Residency::IdleOnDisk, "trained weights would be lost");
                }
            }
        }
    }

    #[test]
    fn tied_modules_share_a_home(
        (components, phases) in models(),
        memory in memories(),
        options in options(),
    ) {
        let Ok(plan) = plan(&components, &phases, memory, &options) else { return Ok(()) };
        for at in 0..phases.len() {
            let residencies = residencies(&plan, at);
            let mut residency_of: HashMap<u64, Residency> = HashMap::new();
            for module in components.iter().flat_map(|component| &component.modules) {
                for tensor in &module.tensors {
                    let residency = residencies[module.name.as_str()];
                    prop_assert_eq!(*residency_of.entry(tensor.storage).or_insert(residency), residency);
                }
            }
        }
    }

    #[test]
    fn unified_memory_never_holds_a_second_copy(
        (components, phases) in models(),
        memory in memories(),
        options in options(),
    ) {
        let Ok(plan) = plan(&components, &phases, memory, &options) else { return Ok(()) };
        let Memory::Unified { zero_copy, .. } = memory else { return Ok(()) };
        for placed in plan.phases.iter().flat_map(|phase| &phase.placements) {
            prop_assert!(!matches!(placed.residency, Residency::StreamedFromHost | Residency::IdleOnHost));
            prop_assert!(zero_copy || placed.residency != Residency::ZeroCopy);
        }
    }

    /// The steps lead from each phase to the next, and evictions come before loads.
    #[test]
    fn what_is_idle_leaves_before_anything_comes(
        (components, phases) in models(),
        memory in memories(),
        options in options(),
    ) {
        let Ok(plan) = plan(&components, &phases, memory, &options) else { return Ok(()) };
        for phase in &plan.phases {
            let actions: Vec<Action> = phase.steps.iter().map(|step| step.action).collect();
            let last_leaves = actions.iter().rposition(|action| *action == Action::Offload);
            let first_comes = actions.iter().position(|action| *action == Action::Onload);
            if let (Some(last), Some(first)) = (last_leaves, first_comes) {
                prop_assert!(last < first, "{:?}", phase.steps);
            }
        }
    }
}

/// Otherwise the properties above could hold because no model could be planned.
#[test]
fn the_random_models_are_planned_often_enough() {
    let mut runner = proptest::test_runner::TestRunner::deterministic();
    let mut planned = 0;
    for _ in 0..200 {
        let ((components, phases), memory, options) = (models(), memories(), options())
            .new_tree(&mut runner)
            .map(|tree| tree.current())
            .unwrap();
        planned += usize::from(plan(&components, &phases, memory, &options).is_ok());
    }
    assert!(planned > 80, "{planned} of 200");
}
