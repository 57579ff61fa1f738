//! Which of its two pools an APU allocates from.
//!
//! Since "drm/amdkfd: Let VRAM allocations go to GTT domain on small APUs" (Linux 6.10) and `apu_prefer_gtt`
//! after it, `hipMalloc` on an APU uses *either* the carve-out that the BIOS took from RAM, *or* the RAM that
//! TTM may pin (GTT): whichever is larger. Never the sum of the two, although many tools display it.

use crate::{Bytes, Gfx};
use serde::Serialize;

/// The rule that determines a GPU's usable memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum MemoryRule {
    /// APU, carve-out smaller than GTT: RAM, up to `ttm.pages_limit`.
    Gtt,
    /// APU, carve-out at least as large as GTT: only the carve-out.
    Carveout,
    /// A card with its own memory.
    Discrete,
    /// Unknown.
    Unknown,
}

/// The kernel's choice, from `mem_info_vram_total` and `mem_info_gtt_total`.
#[must_use]
pub fn rule(vram: Bytes, gtt: Bytes) -> MemoryRule {
    if vram >= gtt {
        MemoryRule::Carveout
    } else {
        MemoryRule::Gtt
    }
}

/// The rule, inferred from the pool that KFD or HIP reports and the RAM that the host sees (which excludes
/// the carve-out).
///
/// This is all there is if a dump has no DRM files, as with `rocminfo`:
/// - a pool larger than the RAM cannot be RAM: carve-out, unless no machine has that much of both;
/// - exactly half of the RAM is TTM's default: GTT;
/// - pool and RAM add up to a size in which memory is sold (the firmware keeps up to 4 % for itself): the pool was taken out of it, carve-out;
/// - otherwise a raised GTT, if it is most of the RAM; else unknown.
#[must_use]
pub fn infer(pool: Bytes, ram: Bytes) -> MemoryRule {
    if pool == Bytes::ZERO || ram == Bytes::ZERO {
        return MemoryRule::Unknown;
    }
    if pool > ram {
        // More than is sold: the pool is a TTM limit larger than the RAM.
        return if pool.saturating_add(ram) > MOST_RAM.saturating_add(Bytes::gib(4)) {
            MemoryRule::Gtt
        } else {
            MemoryRule::Carveout
        };
    }
    if is_half(pool, ram) {
        return MemoryRule::Gtt;
    }
    // 512 MiB, 1, 2 or 4 GiB beside several times as much RAM: not a plausible TTM limit.
    let is_setting = pool.0.is_power_of_two() && pool <= Bytes::gib(4);
    if is_setting && pool.share_of(ram) < 0.4 || is_sold_size(pool.saturating_add(ram)) {
        return MemoryRule::Carveout;
    }
    if pool.share_of(ram) > 0.5 {
        MemoryRule::Gtt
    } else {
        MemoryRule::Unknown
    }
}

/// The most RAM in a consumer APU, including the carve-out.
const MOST_RAM: Bytes = Bytes(128 << 30);

/// The rule if a report has only TTM's limit and the RAM: the missing RAM can be a carve-out, and if it is
/// smaller than the limit, the limit counts.
#[must_use]
pub fn rule_without_vram(limit: Option<Bytes>, ram: Option<Bytes>) -> MemoryRule {
    match (limit, ram) {
        (Some(limit), Some(ram)) if MOST_RAM.saturating_sub(ram) < limit => MemoryRule::Gtt,
        _ => MemoryRule::Unknown,
    }
}

/// The APU implied by the size of a carve-out: only Strix Halo supports 64 GiB or more (Ryzen AI Max, at most
/// 96 of 128 GiB); all others at most 48.
#[must_use]
pub fn architecture_of_carve_out(carve_out: Option<Bytes>) -> Option<Gfx> {
    let plausible = Bytes::gib(64)..=Bytes::gib(112);
    carve_out
        .is_some_and(|size| plausible.contains(&size))
        .then_some(Gfx::new(11, 5, 1))
}

/// Whether `limit` is half of `ram`, TTM's default, up to memory that the kernel had not counted yet when TTM
/// was initialised.
#[must_use]
pub fn is_half(limit: Bytes, ram: Bytes) -> bool {
    (0.49..=0.505).contains(&limit.share_of(ram))
}

/// Whether memory is sold in this size, allowing for what the firmware keeps.
fn is_sold_size(sum: Bytes) -> bool {
    const SOLD_GIB: [f64; 13] = [
        8.0, 12.0, 16.0, 24.0, 32.0, 40.0, 48.0, 64.0, 80.0, 96.0, 128.0, 192.0, 256.0,
    ];
    SOLD_GIB
        .iter()
        .any(|sold| (0.96..=1.0).contains(&(sum.as_gib() / sold)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_larger_pool_wins_and_a_tie_is_the_carve_out() {
        assert_eq!(rule(Bytes::mib(512), Bytes::gib(62)), MemoryRule::Gtt);
        assert_eq!(rule(Bytes::gib(96), Bytes::gib(15)), MemoryRule::Carveout);
        assert_eq!(rule(Bytes::gib(16), Bytes::gib(16)), MemoryRule::Carveout);
    }

    #[test]
    fn rocminfo_alone_gives_the_rule() {
        // Strix Halo with 96 of 128 GiB carved out; 780M at TTM's default.
        assert_eq!(
            infer(Bytes(103_079_215_104), Bytes(33_264_304_128)),
            MemoryRule::Carveout
        );
        assert_eq!(
            infer(Bytes(16_151_744_512), Bytes(32_303_489_024)),
            MemoryRule::Gtt
        );
        // 16 of 64 GiB carved out: less than half of the rest, but it adds up.
        assert_eq!(
            infer(Bytes::gib(16), Bytes::mib(47_400)),
            MemoryRule::Carveout
        );
        // ttm.pages_limit raised to 110 of 125 GiB.
        assert_eq!(infer(Bytes::gib(110), Bytes::gib(125)), MemoryRule::Gtt);
        assert_eq!(infer(Bytes::ZERO, Bytes::gib(125)), MemoryRule::Unknown);
    }

    #[test]
    fn a_limit_and_the_ram_give_the_rule_when_no_carve_out_can_be_larger() {
        let rule = |limit, ram| rule_without_vram(Some(Bytes::gib(limit)), Some(Bytes::gib(ram)));
        assert_eq!(rule(62, 125), MemoryRule::Gtt);
        // 32 GiB, or what 96 of 128 leave.
        assert_eq!(rule(15, 31), MemoryRule::Unknown);
    }

    #[test]
    fn only_one_apu_takes_so_much() {
        let of = |gib| architecture_of_carve_out(Some(Bytes::gib(gib)));
        assert_eq!(of(96), Some(Gfx::new(11, 5, 1)));
        assert_eq!((of(32), of(128)), (None, None));
    }
}
