//! Which of its two pools an APU allocates from.
//!
//! Since "drm/amdkfd: Let VRAM allocations go to GTT domain on small APUs" (Linux
//! 6.10) and `apu_prefer_gtt` after it, `hipMalloc` on an APU uses *either* the
//! carve-out that the BIOS took from RAM, *or* the RAM that TTM may pin (GTT):
//! whichever is larger. Never the sum of the two, although many tools display it.

use crate::{Bytes, Gfx};
use serde::Serialize;

/// The rule that gives a GPU its usable memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum MemoryRule {
    /// APU, carve-out smaller than GTT: RAM, up to `ttm.pages_limit`.
    Gtt,
    /// APU, carve-out at least as large as GTT: the carve-out alone.
    Carveout,
    /// A card with memory of its own.
    Discrete,
    /// The dump does not say.
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

/// The rule as far as it follows from a pool that KFD or HIP reports and the RAM
/// that the host sees (which no longer contains the carve-out).
///
/// This is what remains when a dump has no DRM files, as with `rocminfo`:
/// - a pool beyond the RAM cannot be RAM: carve-out, unless no machine has so much of both;
/// - exactly half of the RAM is TTM's default: GTT;
/// - pool and RAM that add up to a size memory is sold in (the firmware keeps up
///   to 4 % for itself): the pool was taken out of it, carve-out;
/// - otherwise GTT that somebody raised, if it is most of the RAM; else unknown.
#[must_use]
pub fn infer(pool: Bytes, ram: Bytes) -> MemoryRule {
    if pool == Bytes::ZERO || ram == Bytes::ZERO {
        return MemoryRule::Unknown;
    }
    if pool > ram {
        // More than was ever sold: the pool is a limit of TTM above the RAM.
        return if pool.saturating_add(ram) > MOST_RAM.saturating_add(Bytes::gib(4)) {
            MemoryRule::Gtt
        } else {
            MemoryRule::Carveout
        };
    }
    if is_half(pool, ram) {
        return MemoryRule::Gtt;
    }
    // 512 MiB, 1, 2 or 4 GiB beside several times as much RAM: nobody sets TTM to that.
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

/// The most RAM that an APU for consumers is sold with, carve-out and all.
const MOST_RAM: Bytes = Bytes(128 << 30);

/// The rule where a report has only the limit of TTM and the RAM: what is not in the RAM
/// can be carved out, and when that is less than the limit, the limit counts.
#[must_use]
pub fn rule_without_vram(limit: Option<Bytes>, ram: Option<Bytes>) -> MemoryRule {
    match (limit, ram) {
        (Some(limit), Some(ram)) if MOST_RAM.saturating_sub(ram) < limit => MemoryRule::Gtt,
        _ => MemoryRule::Unknown,
    }
}

/// The APU that a carve-out betrays: 64 GiB and more only Strix Halo can be told to take
/// (Ryzen AI Max, 96 of 128 GiB at most); all others stop at 48.
#[must_use]
pub fn architecture_of_carve_out(carve_out: Option<Bytes>) -> Option<Gfx> {
    let plausible = Bytes::gib(64)..=Bytes::gib(112);
    carve_out
        .is_some_and(|size| plausible.contains(&size))
        .then_some(Gfx::new(11, 5, 1))
}

/// Whether `limit` is half of `ram`, the default of TTM, give or take what the
/// kernel had not yet counted when TTM looked.
#[must_use]
pub fn is_half(limit: Bytes, ram: Bytes) -> bool {
    (0.49..=0.505).contains(&limit.share_of(ram))
}

/// Whether this much memory, less what firmware keeps, is sold in modules.
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
        // 16 of 64 GiB carved out: less than half of what is left, but it adds up.
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
