//! How many bytes stay on the device under a budget, for well-known models.
//!
//! The module sizes go into the result, so that `bench/placement/accelerate_plan.py` plans the same models.
//! accelerate reserves one slot for the layer in use; prefetching needs two.

use placement::Bytes;
use placement::plan::{
    Component, Memory, Module, OffloadOptions, Phase, PlacementConstraint, plan,
};
use serde::Serialize;

/// One model under one budget.
#[derive(Serialize)]
pub(crate) struct PlanQuality {
    model: &'static str,
    budget: Bytes,
    modules: Vec<Size>,
    /// Bytes that stay on the device with a ring of one and of two slots; `None` if nothing fits.
    resident_one_slot: Option<Bytes>,
    resident_two_slots: Option<Bytes>,
}

/// A module. Modules that share storage are tied.
#[derive(Clone, Serialize)]
struct Size {
    name: String,
    storage: u64,
    bytes: Bytes,
}

pub(crate) fn measure() -> Vec<PlanQuality> {
    let mut plans = Vec::new();
    for (model, modules) in models() {
        let mut storages: Vec<(u64, Bytes)> = modules
            .iter()
            .map(|size| (size.storage, size.bytes))
            .collect();
        storages.dedup_by_key(|(storage, _)| *storage);
        storages.sort_unstable();
        storages.dedup();
        let all: Bytes = storages.iter().map(|(_, bytes)| *bytes).sum();
        for share in [0.25, 0.4, 0.55, 0.7, 0.85] {
            let budget = all.share(share);
            plans.push(PlanQuality {
                model,
                budget,
                resident_one_slot: resident(&modules, budget, 1),
                resident_two_slots: resident(&modules, budget, 2),
                modules: modules.clone(),
            });
        }
    }
    plans
}

fn resident(sizes: &[Size], budget: Bytes, ring_slots: u32) -> Option<Bytes> {
    let module = |size: &Size| {
        Module::new(
            size.name.clone(),
            size.storage,
            size.bytes,
            PlacementConstraint::Streamable,
        )
    };
    let component = Component {
        name: "model".to_owned(),
        modules: sizes.iter().map(module).collect(),
    };
    let phase = Phase {
        name: "use".to_owned(),
        active: vec!["model".to_owned()],
        working: Bytes::ZERO,
    };
    let memory = Memory::Discrete {
        device: budget,
        host: Bytes::gib(1 << 10),
    };
    let options = OffloadOptions {
        ring_slots,
        ..OffloadOptions::default()
    };
    plan(&[component], &[phase], memory, &options)
        .ok()
        .map(|plan| plan.phases[0].resident)
}

/// Module sizes in bf16, from the published shapes.
fn models() -> Vec<(&'static str, Vec<Size>)> {
    vec![
        // 0.6 billion parameters, vocabulary 151,936 × 1024, tied.
        (
            "llm 0.6B, tied head",
            tied(rows("blocks", &[(28, 15_730_000)]), 151_936 * 1024),
        ),
        // 8 billion, vocabulary 128,256 × 4096, not tied.
        (
            "llm 8B",
            framed(rows("blocks", &[(32, 218_112_000)]), 128_256 * 4096),
        ),
        // 19 blocks of two streams, 38 of one.
        (
            "image transformer 12B",
            rows("blocks", &[(19, 340_000_000), (38, 141_600_000)]),
        ),
        // Down, middle and up blocks of very different sizes.
        (
            "image U-Net 2.6B",
            rows(
                "blocks",
                &[
                    (2, 5_500_000),
                    (1, 19_000_000),
                    (1, 52_000_000),
                    (1, 150_000_000),
                    (1, 590_000_000),
                    (1, 410_000_000),
                    (1, 610_000_000),
                    (1, 435_000_000),
                    (1, 120_000_000),
                    (1, 60_000_000),
                    (3, 14_000_000),
                ],
            ),
        ),
        (
            "video transformer 14B",
            rows("blocks", &[(40, 351_000_000)]),
        ),
    ]
}

/// So many modules of so many parameters, of two bytes each.
fn rows(name: &str, counts: &[(usize, u64)]) -> Vec<Size> {
    let parameters = counts
        .iter()
        .flat_map(|(count, size)| std::iter::repeat_n(*size, *count));
    parameters
        .enumerate()
        .map(|(at, parameters)| Size {
            name: format!("{name}_{at}"),
            storage: at as u64 + 10,
            bytes: Bytes(2 * parameters),
        })
        .collect()
}

/// With an embedding before and a head after.
fn framed(mut blocks: Vec<Size>, parameters: u64) -> Vec<Size> {
    let end = |name: &str, storage| Size {
        name: name.to_owned(),
        storage,
        bytes: Bytes(2 * parameters),
    };
    blocks.insert(0, end("embedding", 0));
    blocks.push(end("head", 1));
    blocks
}

/// The same with tied embedding and head.
fn tied(blocks: Vec<Size>, parameters: u64) -> Vec<Size> {
    let mut blocks = framed(blocks, parameters);
    if let Some(head) = blocks.last_mut() {
        head.storage = 0;
    }
    blocks
}
