//! What follows from the facts of a GPU: its class, its product, its memory.
//!
//! Shared by every way of reading a machine; each way fills in what it knows, and
//! this completes the rest.

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
                "only for the memory of an APU does the limit of TTM matter",
            );
        }
        if gpu.gfx.is_none() && gpu.class == Some(Class::Apu) {
            gpu.gfx = apu::architecture_of_carve_out(carve_out.or(gpu.vram_bytes));
        }
        name(gpu);
        let (usable, rule) = memory(gpu, system, ram, pages, carve_out);
        // A report rounds the pool to two decimals; the limit behind it is exact.
        let exact = pages.map(Bytes::pages).filter(|limit| {
            is_report && usable.is_some_and(|pool| (0.999..=1.001).contains(&limit.share_of(pool)))
        });
        gpu.usable_bytes = exact.or(usable);
        gpu.memory_rule = Some(rule);
    }
}

/// Card or APU, when the source has not said: by architecture, then by numbers.
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
        // A chip we have never heard of. A small carve-out beside a large GTT is an
        // APU; the opposite proves nothing (a carve-out can be 96 GiB).
        None => match (gpu.vram_bytes, gpu.gtt_bytes) {
            (Some(vram), Some(gtt))
                if vram <= Bytes::gib(4) && gtt >= Bytes::gib(8) && gtt.0 / 4 >= vram.0 =>
            {
                (
                    Some(Class::Apu),
                    "guessed from a small VRAM beside a large GTT",
                )
            }
            // The cards end at 64 GiB and begin again at 128.
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
    // Drivers call half of all consumer cards this.
    let generic = |name: &str| {
        matches!(
            name,
            "" | "AMD Radeon Graphics" | "AMD Radeon(TM) Graphics" | "N/A"
        )
    };
    // `Phoenix1`, `Navi 31 [Radeon RX 7900 XT/…]`: the chip, not what it was sold as.
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

/// What `hipMalloc` can hand out, and the rule that gives it.
///
/// KFD's memory bank equals HIP's `totalGlobalMem` on cards and on APUs (rocm-systems
/// PR #8475), so it wins whenever it is known; the rule then only explains it.
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
        // The Windows driver, also below WSL, has rules of its own; its number is all there is.
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
                // Nobody carves out so much that a GTT which was raised is the smaller pool.
                (None, Some(gtt), None) if limit.is_some_and(|limit| limit < gtt) => {
                    MemoryRule::Gtt
                }
                (_, _, Some(pool)) => ram.map_or(MemoryRule::Unknown, |ram| apu::infer(pool, ram)),
                // Without raised parameters the GTT is what TTM allows.
                (Some(vram), None, None) => {
                    limit.map_or(MemoryRule::Unknown, |limit| apu::rule(vram, limit))
                }
                (None, _, None) => apu::rule_without_vram(limit, ram),
            };
            let usable = pool.or(match rule {
                // The words of a person: which of the two the driver hands out is then open
                // (the one of amdgpu-dkms took TTM's pool beside a large carve-out).
                MemoryRule::Carveout if carve_out.is_some() => None,
                MemoryRule::Carveout => gpu.vram_bytes,
                // The size of the GTT can be above what TTM hands out: only the limit counts.
                MemoryRule::Gtt => limit,
                _ => None,
            });
            (usable, rule)
        }
    }
}
