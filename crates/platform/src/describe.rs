//! Derives further facts about a GPU: its class, product and memory.
//!
//! Used by every reader of a machine: each fills in what it knows, and this completes the rest.

use crate::gfx::FormFactor;
use crate::machine::{Class, Gpu, Machine, ReadFrom, System};
use crate::memory::{MemoryRule, apu};
use crate::{Bytes, Gfx};

/// Completes every GPU of a machine.
pub fn complete(machine: &mut Machine) {
    let (system, ram, pages) = (
        machine.system,
        machine.memory.total,
        machine.ttm_pages_limit,
    );
    let is_report = machine.read_from == ReadFrom::Memory;
    let carve_out = machine.reported.carve_out;
    for gpu in &mut machine.gpus {
        if gpu.gfx.is_none()
            && let Some(gfx) = gpu.device_id.and_then(|id| id.gfx())
        {
            gpu.gfx = Some(gfx);
            gpu.gfx_from_device_id = true;
        }
        classify(gpu);
        if is_report && gpu.class.is_none() && pages.is_some() && gpu.device_id.is_none() {
            (gpu.class, gpu.class_from) = (
                Some(Class::Apu),
                "TTM's limit only matters for the memory of an APU",
            );
        }
        if gpu.gfx.is_none() && gpu.class == Some(Class::Apu) {
            gpu.gfx = apu::architecture_of_carve_out(carve_out.or(gpu.vram_bytes));
        }
        name(gpu);
        let (usable, rule) = memory(gpu, system, ram, pages, carve_out);
        // Reports round the pool to two decimals; the limit behind it is exact.
        let exact = pages.map(Bytes::pages).filter(|limit| {
            is_report && usable.is_some_and(|pool| (0.999..=1.001).contains(&limit.share_of(pool)))
        });
        gpu.usable_bytes = exact.or(usable);
        gpu.memory_rule = Some(rule);
    }
}

/// Card or APU, if the source has not said: by architecture, then by memory sizes.
fn classify(gpu: &mut Gpu) {
    if gpu.class.is_some() {
        return;
    }
    if gpu.device_id.is_some_and(|id| id.is_mi300a()) {
        (gpu.class, gpu.class_from) = (Some(Class::Apu), "the device id is that of an APU");
        return;
    }
    (gpu.class, gpu.class_from) = match gpu
        .gfx
        .and_then(Gfx::architecture)
        .map(|known| known.sold_as)
    {
        Some(FormFactor::Apu) => (Some(Class::Apu), "the architecture exists only as an APU"),
        Some(FormFactor::Discrete) => (Some(Class::Dgpu), "the architecture exists only as a card"),
        Some(FormFactor::Either) => (Some(Class::Dgpu), "the device id is not that of the APU"),
        // An unknown chip. A small carve-out beside a large GTT means an APU; the opposite proves nothing (a
        // carve-out can be 96 GiB).
        None => match (gpu.vram_bytes, gpu.gtt_bytes) {
            (Some(vram), Some(gtt))
                if vram <= Bytes::gib(4) && gtt >= Bytes::gib(8) && gtt.0 / 4 >= vram.0 =>
            {
                (
                    Some(Class::Apu),
                    "guessed from a small VRAM beside a large GTT",
                )
            }
            // There are no cards between 64 and 128 GiB.
            (Some(vram), _) if vram > Bytes::gib(65) && vram < Bytes::gib(112) => (
                Some(Class::Apu),
                "no card has this much memory, and one APU does",
            ),
            _ => (None, "not known"),
        },
    };
}

fn name(gpu: &mut Gpu) {
    let known = gpu.device_id.and_then(|id| id.product(gpu.compute_units));
    // Drivers give half of all consumer cards this name.
    let generic = |name: &str| {
        matches!(
            name,
            "" | "AMD Radeon Graphics" | "AMD Radeon(TM) Graphics" | "N/A"
        )
    };
    // `Phoenix1`, `Navi 31 [Radeon RX 7900 XT/…]`: the chip, not the product.
    let codename = |name: &str| name.contains('[') || !name.contains(['(', ' ']);
    match (&gpu.product, known) {
        (Some(product), Some(known)) if codename(product) => gpu.product = Some(known.to_owned()),
        (Some(product), _) if !generic(product) => {}
        (_, Some(known)) => gpu.product = Some(known.to_owned()),
        _ => {
            gpu.product = gpu
                .gfx
                .and_then(Gfx::architecture)
                .map(|known| known.products.to_owned())
        }
    }
}

/// The maximum that `hipMalloc` can allocate, and the rule behind it.
///
/// KFD's memory bank equals HIP's `totalGlobalMem` on cards and on APUs (rocm-systems PR #8475), so it takes
/// precedence if known; the rule then only explains it.
fn memory(
    gpu: &Gpu,
    system: System,
    ram: Option<Bytes>,
    ttm_pages: Option<u64>,
    carve_out: Option<Bytes>,
) -> (Option<Bytes>, MemoryRule) {
    let pool = gpu.usable_bytes;
    match gpu.class {
        Some(Class::Dgpu) => (pool.or(gpu.vram_bytes), MemoryRule::Discrete),
        None => (pool, MemoryRule::Unknown),
        // The Windows driver, also under WSL, has its own rules; only its number is known.
        Some(Class::Apu) if system != System::Linux => (pool, MemoryRule::Unknown),
        Some(Class::Apu) => {
            let limit = ttm_pages.map(Bytes::pages);
            if gpu.is_server_apu() {
                return (pool.or(limit), MemoryRule::Gtt);
            }
            let rule = match (gpu.vram_bytes, gpu.gtt_bytes, pool) {
                (Some(vram), Some(gtt), _) => apu::rule(vram, gtt),
                (Some(vram), None, Some(pool)) if vram == pool => MemoryRule::Carveout,
                (_, None, Some(pool)) if limit == Some(pool) => MemoryRule::Gtt,
                // No carve-out is so large that a raised GTT would be the smaller pool.
                (None, Some(gtt), None) if limit.is_some_and(|limit| limit < gtt) => {
                    MemoryRule::Gtt
                }
                (_, _, Some(pool)) => ram.map_or(MemoryRule::Unknown, |ram| apu::infer(pool, ram)),
                // Without raised parameters the GTT equals TTM's limit.
                (Some(vram), None, None) => {
                    limit.map_or(MemoryRule::Unknown, |limit| apu::rule(vram, limit))
                }
                (None, _, None) => apu::rule_without_vram(limit, ram),
            };
            let usable = pool.or(match rule {
                // User input: which of the two pools the driver uses is then unknown (the one of amdgpu-dkms
                // used TTM's pool beside a large carve-out).
                MemoryRule::Carveout if carve_out.is_some() => None,
                MemoryRule::Carveout => gpu.vram_bytes,
                // The GTT can be larger than TTM's limit; only the limit counts.
                MemoryRule::Gtt => limit,
                _ => None,
            });
            (usable, rule)
        }
    }
}
