//! Examples of plans, and of messages when there is none.

use std::collections::{BTreeMap, HashMap};

use proptest::prelude::*;
use surefoot_placement::Bytes;
use surefoot_placement::plan::{
    Component, DeviceMap, MaxMemory, Memory, Module, OffloadOptions, Phase, Place,
    PlacementConstraint, Plan, PlanError, Residency, plan,
};

fn residencies(plan: &Plan, phase: usize) -> HashMap<&str, Residency> {
    plan.phases[phase]
        .placements
        .iter()
        .map(|placed| (placed.module.as_str(), placed.residency))
        .collect()
}

proptest! {
    /// More memory never gives a worse plan.
    #[test]
    fn more_memory_is_never_worse(
        sizes in prop::collection::vec(1..5_000_u64, 1..20),
        (small, more) in (0..60_000_u64, 0..20_000_u64),
    ) {
        let (components, phases) = row_of_blocks(&sizes);
        // More goes into the second slot first, without which copies wait; then into blocks that stay.
        let worth = |device| {
            let memory = Memory::Discrete { device: Bytes(device), host: Bytes::gib(1) };
            plan(&components, &phases, memory, &OffloadOptions::default()).ok().map(|plan| {
                let phase = &plan.phases[0];
                let slots = if phase.ring_slots == 0 { u32::MAX } else { phase.ring_slots };
                (slots, phase.resident)
            })
        };
        prop_assert!(worth(small) <= worth(small + more));
    }
}

fn row_of_blocks(sizes: &[u64]) -> (Vec<Component>, Vec<Phase>) {
    let modules = sizes.iter().enumerate().map(|(at, size)| {
        Module::new(
            format!("model.blocks.{at}"),
            at as u64,
            Bytes(*size),
            PlacementConstraint::Streamable,
        )
    });
    let component = Component {
        name: "model".to_owned(),
        modules: modules.collect(),
    };
    let phase = Phase {
        name: "train".to_owned(),
        active: vec!["model".to_owned()],
        working: Bytes::ZERO,
    };
    (vec![component], vec![phase])
}

/// A video model in bf16: text encoder 10.6 GiB, VAE 0.5 GiB, transformer 40 × 680 MiB, adapter.
fn video_model() -> (Vec<Component>, Vec<Phase>) {
    let mut storage = 0;
    let mut module = |name: String, mib: u64, constraint| {
        storage += 1;
        Module::new(name, storage, Bytes::mib(mib), constraint)
    };
    let encoder = (0..24)
        .map(|at| {
            module(
                format!("text_encoder.layers.{at}"),
                430,
                PlacementConstraint::Streamable,
            )
        })
        .collect();
    let vae = vec![module("vae".to_owned(), 500, PlacementConstraint::Resident)];
    let mut transformer: Vec<Module> = (0..40)
        .map(|at| {
            module(
                format!("transformer.blocks.{at}"),
                680,
                PlacementConstraint::Streamable,
            )
        })
        .collect();
    transformer.insert(
        0,
        module(
            "transformer.embed".to_owned(),
            200,
            PlacementConstraint::Resident,
        ),
    );
    let adapter = vec![module(
        "adapter".to_owned(),
        150,
        PlacementConstraint::Trained,
    )];
    let component = |name: &str, modules| Component {
        name: name.to_owned(),
        modules,
    };
    let phase = |name: &str, active: &[&str], working| Phase {
        name: name.to_owned(),
        active: active.iter().map(|name| (*name).to_owned()).collect(),
        working: Bytes::mib(working),
    };
    (
        vec![
            component("text_encoder", encoder),
            component("vae", vae),
            component("transformer", transformer),
            component("adapter", adapter),
        ],
        vec![
            phase("encode text", &["text_encoder"], 256),
            phase("encode video", &["vae"], 3_000),
            phase("train", &["transformer", "adapter"], 3_500),
        ],
    )
}

#[test]
fn a_card_of_16_gib_streams_what_does_not_fit() {
    let (components, phases) = video_model();
    let memory = Memory::Discrete {
        device: Bytes::gib(15),
        host: Bytes::gib(48),
    };
    let plan = plan(&components, &phases, memory, &OffloadOptions::default()).unwrap();
    assert_eq!(
        plan.to_string(),
        "\
memory: device 15 GiB, host 48 GiB

encode text: 10.33 GiB on the device (10.08 GiB resident, 0 bytes ring, 256 MiB working), 150 MiB on the host
  1. prepare 1 module of adapter (150 MiB): idle in host memory
  2. load 24 modules of text_encoder (10.08 GiB): on the device
  text_encoder            24 modules     10.08 GiB  on the device
  vae                      1 module        500 MiB  idle in its file
  transformer             41 modules     26.76 GiB  idle in its file
  adapter                  1 module        150 MiB  idle in host memory

encode video: 3.42 GiB on the device (500 MiB resident, 0 bytes ring, 2.93 GiB working), 150 MiB on the host
  1. offload 24 modules of text_encoder (10.08 GiB): idle in its file
  2. load 1 module of vae (500 MiB): on the device
  text_encoder            24 modules     10.08 GiB  idle in its file
  vae                      1 module        500 MiB  on the device
  transformer             41 modules     26.76 GiB  idle in its file
  adapter                  1 module        150 MiB  idle in host memory

train: 14.38 GiB on the device (9.64 GiB resident, 1.33 GiB ring, 3.42 GiB working), 17.27 GiB on the host
  1. offload 1 module of vae (500 MiB): idle in its file
  2. prepare 26 modules of transformer (17.27 GiB): streamed from host memory
  3. load 15 modules of transformer (9.49 GiB): on the device
  4. load 1 module of adapter (150 MiB): on the device
  text_encoder            24 modules     10.08 GiB  idle in its file
  vae                      1 module        500 MiB  idle in its file
  transformer             15 modules      9.49 GiB  on the device
  transformer             26 modules     17.27 GiB  streamed from host memory
  adapter                  1 module        150 MiB  on the device
"
    );
}

#[test]
fn an_apu_offloads_nothing_to_its_own_memory() {
    let (components, phases) = video_model();
    let memory = Memory::Unified {
        device: Bytes::gib(24),
        pool: Bytes::gib(56),
        zero_copy: true,
    };
    let plan = plan(&components, &phases, memory, &OffloadOptions::default()).unwrap();
    let printed = plan.to_string();
    let train = &printed[printed.find("train:").unwrap()..];
    assert_eq!(
        train,
        "\
train: 23.68 GiB on the device (20.26 GiB resident, 0 bytes ring, 3.42 GiB working), 6.64 GiB on the host
  1. offload 1 module of vae (500 MiB): idle in its file
  2. prepare 10 modules of transformer (6.64 GiB): zero-copy from host memory
  3. load 31 modules of transformer (20.12 GiB): on the device
  text_encoder            24 modules     10.08 GiB  idle in its file
  vae                      1 module        500 MiB  idle in its file
  transformer             31 modules     20.12 GiB  on the device
  transformer             10 modules      6.64 GiB  zero-copy from host memory
  adapter                  1 module        150 MiB  on the device

note: CPU and device share one memory: offloading to RAM would free nothing and copy everything, so that nothing is offloaded there
"
    );
}

#[test]
fn an_apu_without_zero_copy_streams_from_the_file() {
    let (components, phases) = video_model();
    let memory = Memory::Unified {
        device: Bytes::gib(24),
        pool: Bytes::gib(28),
        zero_copy: false,
    };
    let plan = plan(&components, &phases, memory, &OffloadOptions::default()).unwrap();
    let residencies = residencies(&plan, 2);
    assert_eq!(residencies["transformer.embed"], Residency::Device);
    assert!(
        residencies
            .values()
            .any(|residency| *residency == Residency::StreamedFromDisk)
    );
    assert_eq!(plan.phases[2].host, Bytes::ZERO);
    assert!(plan.to_string().contains("read from disk each time"));
}

#[test]
fn an_idle_component_that_comes_back_waits_on_the_host_or_stays() {
    let (components, mut phases) = video_model();
    phases.insert(
        2,
        Phase {
            name: "train a little".to_owned(),
            ..phases[2].clone()
        },
    );
    phases.push(Phase {
        name: "sample".to_owned(),
        ..phases[1].clone()
    });
    let at = |device: u64| {
        let memory = Memory::Discrete {
            device: Bytes::gib(device),
            host: Bytes::gib(48),
        };
        let plan = plan(&components, &phases, memory, &OffloadOptions::default()).unwrap();
        residencies(&plan, 2)["vae"]
    };
    assert_eq!(
        at(15),
        Residency::IdleOnHost,
        "beside a streamed transformer there is no room"
    );
    assert_eq!(at(40), Residency::Device, "beside a resident one there is");
}

/// Ten blocks of 100 MiB.
fn ten_blocks(device: u64, options: &OffloadOptions) -> Result<Plan, PlanError> {
    let (components, phases) = row_of_blocks(&[100 << 20; 10]);
    let memory = Memory::Discrete {
        device: Bytes::mib(device),
        host: Bytes::gib(8),
    };
    plan(&components, &phases, memory, options)
}

fn streamed(plan: &Plan) -> usize {
    let residencies = plan.phases[0]
        .placements
        .iter()
        .map(|placed| placed.residency);
    residencies
        .filter(|residency| *residency == Residency::StreamedFromHost)
        .count()
}

#[test]
fn blocks_to_swap_is_taken_at_its_word() {
    let options = OffloadOptions {
        blocks_to_swap: Some(4),
        ..OffloadOptions::default()
    };
    assert_eq!(streamed(&ten_blocks(2_000, &options).unwrap()), 4);
    // Six resident blocks and a ring of at least one slot.
    let error = ten_blocks(650, &options).unwrap_err();
    assert_eq!(
        error.to_string(),
        "`blocks_to_swap: 4` needs 700 MiB on the device, but there are 650 MiB; \
         5 would be enough"
    );
    let too_many = OffloadOptions {
        blocks_to_swap: Some(11),
        ..OffloadOptions::default()
    };
    assert_eq!(
        ten_blocks(2_000, &too_many).unwrap_err().to_string(),
        "`blocks_to_swap: 11`: only 10 blocks can be streamed"
    );
}

#[test]
fn low_vram_streams_every_block() {
    let options = OffloadOptions {
        low_vram: true,
        ..OffloadOptions::default()
    };
    let plan = ten_blocks(2_000, &options).unwrap();
    assert_eq!(streamed(&plan), 10);
    assert_eq!(plan.device_peak(), Bytes::mib(200));
}

#[test]
fn offload_fraction_is_a_least_share() {
    let streamed_at = |fraction, device| {
        let options = OffloadOptions {
            offload_fraction: fraction,
            ..OffloadOptions::default()
        };
        streamed(&ten_blocks(device, &options).unwrap())
    };
    assert_eq!(streamed_at(0.0, 2_000), 0);
    assert_eq!(streamed_at(0.35, 2_000), 4, "at least 35 % are four of ten");
    assert_eq!(
        streamed_at(0.1, 500),
        7,
        "memory asks for more than the user does"
    );
    assert_eq!(streamed_at(1.0, 2_000), 10);
}

#[test]
fn max_memory_bounds_what_the_machine_has() {
    let max_memory = MaxMemory {
        device: Some(Bytes::mib(500)),
        cpu: None,
    };
    let plan = ten_blocks(
        2_000,
        &OffloadOptions {
            max_memory,
            ..OffloadOptions::default()
        },
    )
    .unwrap();
    assert_eq!(streamed(&plan), 7);
}

#[test]
fn a_full_host_sends_the_rest_to_the_disk() {
    let max_memory = MaxMemory {
        device: Some(Bytes::mib(500)),
        cpu: Some(Bytes::mib(250)),
    };
    let plan = ten_blocks(
        2_000,
        &OffloadOptions {
            max_memory,
            ..OffloadOptions::default()
        },
    )
    .unwrap();
    assert_eq!(streamed(&plan), 2);
    assert_eq!(plan.phases[0].host, Bytes::mib(200));
}

#[test]
fn what_does_not_fit_says_by_how_much() {
    assert_eq!(
        ten_blocks(50, &OffloadOptions::default())
            .unwrap_err()
            .to_string(),
        "`train` does not fit the device: even with every block streamed, it needs 100 MiB \
         (0 bytes of it to work in), and there are 50 MiB: 50 MiB too little"
    );
}

#[test]
fn a_ring_of_two_slots_is_made_one_where_only_one_fits() {
    let plan = ten_blocks(150, &OffloadOptions::default()).unwrap();
    let phase = &plan.phases[0];
    assert_eq!((phase.ring, phase.ring_slots), (Bytes::mib(100), 1));
    assert_eq!(
        plan.notes,
        [
            "`train`: a ring of 2 slots (`ring_slots`) does not fit, one of 1 does; each copy waits for the \
             previous block"
        ]
    );
    let swapped = OffloadOptions {
        blocks_to_swap: Some(10),
        ..OffloadOptions::default()
    };
    assert_eq!(ten_blocks(150, &swapped).unwrap().phases[0].ring_slots, 1);
    let roomy = ten_blocks(250, &OffloadOptions::default()).unwrap();
    assert_eq!((roomy.phases[0].ring_slots, roomy.notes.len()), (2, 0));
}

fn mapped(places: &[(&str, Place)]) -> Result<Plan, PlanError> {
    let (components, phases) = video_model();
    let places = places
        .iter()
        .map(|(name, place)| ((*name).to_owned(), *place))
        .collect();
    let options = OffloadOptions {
        device_map: DeviceMap::Explicit(places),
        ..OffloadOptions::default()
    };
    let memory = Memory::Discrete {
        device: Bytes::gib(24),
        host: Bytes::gib(48),
    };
    plan(&components, &phases, memory, &options)
}

#[test]
fn a_device_map_is_followed() {
    let plan = mapped(&[
        ("", Place::Device),
        ("transformer.blocks", Place::Cpu),
        ("transformer.blocks.3", Place::Disk),
        ("transformer.blocks.4", Place::Device),
    ])
    .unwrap();
    let residencies = residencies(&plan, 2);
    assert_eq!(
        residencies["transformer.blocks.0"],
        Residency::StreamedFromHost
    );
    assert_eq!(
        residencies["transformer.blocks.3"],
        Residency::StreamedFromDisk
    );
    assert_eq!(residencies["transformer.blocks.4"], Residency::Device);
    assert_eq!(plan.phases[2].ring, Bytes::mib(2 * 680));
}

#[test]
fn a_device_map_that_makes_no_sense_is_refused_by_name() {
    for (places, message) in [
        (
            vec![("", Place::Device), ("transfomer", Place::Cpu)],
            "`device_map`: there is no module `transfomer`; did you mean `transformer`?",
        ),
        (
            vec![("transformer", Place::Device)],
            "`device_map` does not cover `text_encoder.layers.0`; an entry with the empty name covers \
             the rest",
        ),
        (
            vec![("", Place::Device), ("adapter", Place::Cpu)],
            "`device_map`: `adapter` cannot be on cpu: it is trained, or not one of the \
             repeated blocks",
        ),
    ] {
        assert_eq!(mapped(&places).unwrap_err().to_string(), message);
    }
}

#[test]
fn tied_modules_cannot_be_mapped_apart() {
    let tied = |name: &str| Module::new(name, 1, Bytes(8), PlacementConstraint::Streamable);
    let component = Component {
        name: "lm".to_owned(),
        modules: vec![tied("lm.embed"), tied("lm.head")],
    };
    let phase = Phase {
        name: "train".to_owned(),
        active: vec!["lm".to_owned()],
        working: Bytes(0),
    };
    let places = BTreeMap::from([
        ("".to_owned(), Place::Device),
        ("lm.head".to_owned(), Place::Cpu),
    ]);
    let options = OffloadOptions {
        device_map: DeviceMap::Explicit(places),
        ..OffloadOptions::default()
    };
    let memory = Memory::Discrete {
        device: Bytes(100),
        host: Bytes(100),
    };
    assert_eq!(
        plan(&[component], &[phase], memory, &options)
            .unwrap_err()
            .to_string(),
        "`device_map`: `lm.embed` and `lm.head` share weights and must have the same place"
    );
}

#[test]
fn a_phase_that_uses_what_is_not_there_is_refused() {
    let (components, mut phases) = video_model();
    phases[0].active = vec!["text_encoders".to_owned()];
    let memory = Memory::Discrete {
        device: Bytes::gib(24),
        host: Bytes::gib(48),
    };
    assert_eq!(
        plan(&components, &phases, memory, &OffloadOptions::default())
            .unwrap_err()
            .to_string(),
        "`encode text` uses `text_encoders`, but there is no such component; did you mean \
         `text_encoder`?"
    );
}
