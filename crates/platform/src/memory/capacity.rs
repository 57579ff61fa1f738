//! How much a process can still allocate on a device.
//!
//! `hip-alloc` checks this before it calls the driver, so that an allocation which
//! cannot succeed fails with an ordinary out-of-memory error, and not with an
//! over-committed host whose kernel kills a process.
//!
//! ```text
//! discrete   the driver's numbers, with free held below total
//! carve-out  the KFD pool; host limits do not apply to memory the host cannot see
//! GTT        the smallest of: KFD pool, TTM limit, GTT size, RAM less the reserve, cgroup
//! host       the smaller of: RAM less the reserve, cgroup
//! Windows    also the rest of what its memory manager gives this process, less 512 MiB; on an APU what of it is not
//!            dedicated memory must still be committable, less the reserve
//! ```
//!
//! Of a cgroup, too, a part stays free: a 32nd of its limit, and no more than the reserve.

use super::video::bound_by_windows;
use super::{CgroupMemory, HostMemory, MemoryRule, VideoMemory, apu};
use crate::Bytes;
use serde::Serialize;

/// The kind of device that the memory belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum DeviceKind {
    /// A card with its own memory.
    Discrete,
    /// An AMD GPU that shares the host's RAM, except for the carve-out.
    Apu,
    /// Another GPU that shares the host's RAM, without AMD's pools and limits.
    Unified,
    /// The host itself.
    Host,
}

/// How much RAM an APU leaves to the host.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Reserve {
    /// [`auto_reserve`] of the RAM.
    #[default]
    Auto,
    /// This many bytes.
    Fixed(Bytes),
}

/// Everything that limits an allocation. `None` means unknown, never unlimited.
#[derive(Clone, Copy, Debug)]
pub struct Inputs {
    /// The kind of device.
    pub kind: DeviceKind,
    /// `size_in_bytes` of the GPU's memory bank in KFD.
    pub kfd_pool: Option<Bytes>,
    /// Total memory according to the driver (`hipMemGetInfo`).
    pub driver_total: Option<Bytes>,
    /// Free memory according to the driver; may be larger than the total, or wrapped.
    pub driver_free: Option<Bytes>,
    /// From `/proc/meminfo`.
    pub host: HostMemory,
    /// The cgroup of this process.
    pub cgroup: CgroupMemory,
    /// `/sys/module/ttm/parameters/pages_limit`, in pages of 4 KiB.
    pub ttm_pages_limit: Option<u64>,
    /// `mem_info_gtt_total` of DRM.
    pub gtt_total: Option<Bytes>,
    /// `mem_info_vram_total` of DRM: on an APU, the carve-out.
    pub vram_total: Option<Bytes>,
    /// What Windows' memory manager gives this process on the device; `None` elsewhere.
    pub video: Option<VideoMemory>,
    /// What to leave to the host.
    pub reserve: Reserve,
}

impl Inputs {
    /// Nothing is known yet about a device of this kind.
    #[must_use]
    pub fn new(kind: DeviceKind) -> Self {
        Self {
            kind,
            kfd_pool: None,
            driver_total: None,
            driver_free: None,
            host: HostMemory::default(),
            cgroup: CgroupMemory::default(),
            ttm_pages_limit: None,
            gtt_total: None,
            vram_total: None,
            video: None,
            reserve: Reserve::Auto,
        }
    }

    /// The pool that an APU allocates from.
    #[must_use]
    pub fn rule(&self) -> MemoryRule {
        match self.kind {
            DeviceKind::Discrete => return MemoryRule::Discrete,
            DeviceKind::Unified => return MemoryRule::Unknown,
            DeviceKind::Apu | DeviceKind::Host => {}
        }
        if let (Some(vram), Some(gtt)) = (self.vram_total, self.gtt_total) {
            return apu::rule(vram, gtt);
        }
        match (self.kfd_pool.or(self.driver_total), self.host.total) {
            (Some(pool), Some(ram)) => apu::infer(pool, ram),
            _ => MemoryRule::Unknown,
        }
    }
}

/// The source of a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Limit {
    /// The driver's number.
    Driver,
    /// The memory bank of KFD.
    KfdPool,
    /// `ttm.pages_limit`.
    TtmPagesLimit,
    /// The size of the GTT.
    Gtt,
    /// RAM (or the available part of it) minus the reserve.
    HostMemory,
    /// The cgroup of this process.
    Cgroup,
    /// What Windows gives this process of the GPU's memory.
    VideoBudget,
    /// Nothing was known: no limit.
    Unknown,
}

/// How much memory a device has for this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Capacity {
    /// The maximum that can ever be allocated.
    pub total: Bytes,
    /// The maximum that can be allocated now; never above `total`.
    pub free: Bytes,
    /// The source of `total`.
    pub limited_by: Limit,
    /// The source of `free`.
    pub free_limited_by: Limit,
}

/// The default reserve for the host: a sixteenth of the RAM, at least 2 GiB and at most 8 GiB.
#[must_use]
pub fn auto_reserve(ram: Bytes) -> Bytes {
    Bytes(ram.0 / 16).clamp(Bytes::gib(2), Bytes::gib(8))
}

/// This part of a cgroup's limit, and at most the reserve, is left free in it: the kernel kills a process of a
/// full group that asks for one more page.
const CGROUP_RESERVE_PART: u64 = 32;

/// Combines the limits in `inputs`.
#[must_use]
pub fn capacity(inputs: &Inputs) -> Capacity {
    let mut total = Bound::none();
    let mut free = Bound::none();

    if inputs.kind != DeviceKind::Host {
        match inputs.kfd_pool {
            Some(pool) if inputs.kind == DeviceKind::Apu => total.at_most(pool, Limit::KfdPool),
            _ => {}
        }
        total.at_most_if_known(inputs.driver_total, Limit::Driver);
        if total.limit == Limit::Unknown {
            total.at_most_if_known(inputs.kfd_pool, Limit::KfdPool);
        }
    }
    if let Some(video) = inputs.video {
        bound_by_windows(inputs, video, &mut total, &mut free);
    } else if shares_host_memory(inputs) {
        bound_by_host(inputs, &mut total, &mut free);
    }
    // A driver that reports more free than total memory cannot be trusted: on APUs, ROCm does so (free is
    // GTT, total is TTM), or wraps below zero.
    let plausible = inputs
        .driver_free
        .filter(|&free| inputs.driver_total.is_none_or(|total| free <= total));
    if inputs.kind != DeviceKind::Host {
        free.at_most_if_known(plausible, Limit::Driver);
    }
    free.at_most(total.bytes, total.limit);

    Capacity {
        total: total.bytes,
        free: free.bytes,
        limited_by: total.limit,
        free_limited_by: free.limit,
    }
}

/// Whether device allocations come from RAM managed by the host. If an APU's dump leaves that open, it is
/// assumed: being too careful is better than an out-of-memory kill.
fn shares_host_memory(inputs: &Inputs) -> bool {
    match inputs.kind {
        DeviceKind::Discrete => false,
        DeviceKind::Host | DeviceKind::Unified => true,
        DeviceKind::Apu => inputs.rule() != MemoryRule::Carveout,
    }
}

pub(super) fn reserve(inputs: &Inputs) -> Bytes {
    match (inputs.reserve, inputs.host.total) {
        (Reserve::Fixed(bytes), _) => bytes,
        // On a small machine the minimum reserve must not take all of the RAM.
        (Reserve::Auto, Some(ram)) => auto_reserve(ram).min(Bytes(ram.0 / 2)),
        (Reserve::Auto, None) => Bytes::gib(2),
    }
}

fn bound_by_host(inputs: &Inputs, total: &mut Bound, free: &mut Bound) {
    if inputs.kind == DeviceKind::Apu {
        total.at_most_if_known(
            inputs
                .ttm_pages_limit
                .filter(|&pages| pages > 0)
                .map(Bytes::pages),
            Limit::TtmPagesLimit,
        );
        total.at_most_if_known(
            inputs.gtt_total.filter(|&gtt| gtt > Bytes::ZERO),
            Limit::Gtt,
        );
    }
    let reserve = reserve(inputs);
    total.at_most_if_known(
        inputs.host.total.map(|ram| ram.saturating_sub(reserve)),
        Limit::HostMemory,
    );
    total.at_most_if_known(inputs.cgroup.limit, Limit::Cgroup);
    free.at_most_if_known(
        inputs.host.available.map(|ram| ram.saturating_sub(reserve)),
        Limit::HostMemory,
    );
    free.at_most_if_known(
        inputs
            .cgroup
            .limit
            .zip(inputs.cgroup.headroom())
            .map(|(limit, headroom)| {
                headroom.saturating_sub(reserve.min(Bytes(limit.0 / CGROUP_RESERVE_PART)))
            }),
        Limit::Cgroup,
    );
}

/// The smallest limit so far, and its source. On a tie, the first one stays.
pub(super) struct Bound {
    pub(super) bytes: Bytes,
    pub(super) limit: Limit,
}

impl Bound {
    fn none() -> Self {
        Self {
            bytes: Bytes::MAX,
            limit: Limit::Unknown,
        }
    }

    pub(super) fn at_most(&mut self, bytes: Bytes, limit: Limit) {
        if bytes < self.bytes {
            *self = Self { bytes, limit };
        }
    }

    fn at_most_if_known(&mut self, bytes: Option<Bytes>, limit: Limit) {
        if let Some(bytes) = bytes {
            self.at_most(bytes, limit);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Strix Halo, 125 GiB of RAM left after a small carve-out, TTM at 110 GiB.
    fn strix_halo() -> Inputs {
        Inputs {
            kfd_pool: Some(Bytes::gib(110)),
            driver_total: Some(Bytes::gib(110)),
            driver_free: Some(Bytes::gib(109)),
            host: HostMemory {
                total: Some(Bytes::gib(125)),
                available: Some(Bytes::gib(120)),
                ..HostMemory::default()
            },
            ttm_pages_limit: Some(28_835_840),
            gtt_total: Some(Bytes::gib(110)),
            vram_total: Some(Bytes::mib(512)),
            ..Inputs::new(DeviceKind::Apu)
        }
    }

    #[test]
    fn discrete_passes_the_driver_through() {
        let inputs = Inputs {
            driver_total: Some(Bytes::gib(24)),
            driver_free: Some(Bytes::gib(20)),
            host: HostMemory {
                available: Some(Bytes::gib(4)),
                ..HostMemory::default()
            },
            ..Inputs::new(DeviceKind::Discrete)
        };
        let capacity = capacity(&inputs);
        assert_eq!(
            (capacity.total, capacity.free),
            (Bytes::gib(24), Bytes::gib(20))
        );
        assert_eq!(capacity.limited_by, Limit::Driver);
    }

    #[test]
    fn apu_is_bounded_by_the_kfd_pool() {
        let capacity = capacity(&strix_halo());
        assert_eq!(
            (capacity.total, capacity.limited_by),
            (Bytes::gib(110), Limit::KfdPool)
        );
    }

    #[test]
    fn apu_leaves_the_reserve_to_the_host() {
        let mut inputs = strix_halo();
        inputs.host.available = Some(Bytes::gib(40));
        let capacity = capacity(&inputs);
        // 125 GiB / 16 = 7.8125 GiB.
        assert_eq!(capacity.free, Bytes::mib(40 * 1024 - 8000));
        assert_eq!(capacity.free_limited_by, Limit::HostMemory);
    }

    #[test]
    fn free_above_total_is_not_believed() {
        // Numbers from legacy #6004: total 62.47 GiB, free 120 GiB.
        let inputs = Inputs {
            kfd_pool: Some(Bytes(67_076_651_745)),
            driver_total: Some(Bytes(67_076_651_745)),
            driver_free: Some(Bytes::gib(120)),
            ttm_pages_limit: None,
            gtt_total: Some(Bytes::gib(128)),
            ..strix_halo()
        };
        assert_eq!(capacity(&inputs).free, Bytes(67_076_651_745));
    }

    #[test]
    fn a_carve_out_is_not_bounded_by_what_is_left_of_the_ram() {
        let inputs = Inputs {
            kfd_pool: Some(Bytes::gib(96)),
            driver_total: Some(Bytes::gib(96)),
            driver_free: Some(Bytes::gib(95)),
            host: HostMemory {
                total: Some(Bytes::gib(31)),
                available: Some(Bytes::gib(20)),
                ..HostMemory::default()
            },
            vram_total: Some(Bytes::gib(96)),
            gtt_total: Some(Bytes::mib(15_860)),
            ttm_pages_limit: Some(4_058_844),
            ..Inputs::new(DeviceKind::Apu)
        };
        let capacity = capacity(&inputs);
        assert_eq!(
            (capacity.total, capacity.free),
            (Bytes::gib(96), Bytes::gib(95))
        );
    }

    #[test]
    fn a_parameter_raised_after_boot_does_not_raise_the_pool() {
        // amd-ttm said 120 GiB while HIP had 62.2 GiB (legacy #5595).
        let inputs = Inputs {
            kfd_pool: Some(Bytes(66_818_834_432)),
            driver_total: None,
            driver_free: None,
            ttm_pages_limit: Some(31_457_280),
            gtt_total: Some(Bytes(128_849_018_880)),
            ..strix_halo()
        };
        assert_eq!(capacity(&inputs).total, Bytes(66_818_834_432));
    }

    #[test]
    fn a_cgroup_binds_host_and_apu() {
        let cgroup = CgroupMemory {
            limit: Some(Bytes::gib(32)),
            working_set: Some(Bytes::gib(2)),
        };
        for kind in [DeviceKind::Apu, DeviceKind::Host] {
            let capacity = capacity(&Inputs {
                kind,
                cgroup,
                ..strix_halo()
            });
            assert_eq!(
                (capacity.total, capacity.limited_by),
                (Bytes::gib(32), Limit::Cgroup)
            );
            assert_eq!(
                (capacity.free, capacity.free_limited_by),
                (Bytes::gib(29), Limit::Cgroup)
            );
        }
    }

    #[test]
    fn of_a_cgroup_a_part_stays_free() {
        let free = |limit, used, reserve| {
            let inputs = Inputs {
                cgroup: CgroupMemory {
                    limit: Some(Bytes::gib(limit)),
                    working_set: Some(Bytes::gib(used)),
                },
                reserve,
                ..Inputs::new(DeviceKind::Host)
            };
            capacity(&inputs).free
        };
        assert_eq!(free(32, 16, Reserve::Auto), Bytes::gib(15));
        assert_eq!(free(32, 32, Reserve::Auto), Bytes::ZERO);
        assert_eq!(free(32, 16, Reserve::Fixed(Bytes::ZERO)), Bytes::gib(16));
        assert_eq!(
            free(256, 128, Reserve::Auto),
            Bytes::gib(126),
            "not above the reserve"
        );
    }

    #[test]
    fn reserve_is_a_sixteenth_within_bounds() {
        assert_eq!(auto_reserve(Bytes::gib(16)), Bytes::gib(2));
        assert_eq!(auto_reserve(Bytes::gib(64)), Bytes::gib(4));
        assert_eq!(auto_reserve(Bytes::gib(512)), Bytes::gib(8));
    }

    #[test]
    fn nothing_known_is_no_bound() {
        assert_eq!(
            capacity(&Inputs::new(DeviceKind::Discrete)).limited_by,
            Limit::Unknown
        );
    }

    /// A pool as large as the RAM would look like a carve-out, if the sum is a size that is sold; but the TTM
    /// limit is specific to AMD.
    #[test]
    fn another_unified_device_is_bounded_by_the_host_whatever_its_size() {
        for (pool, ram) in [(15.6, 15.6), (30.9, 30.9), (20.0, 12.0), (125.5, 125.5)] {
            let gib = |size: f64| Bytes((size * f64::from(1 << 30)) as u64);
            let capacity = capacity(&Inputs {
                driver_total: Some(gib(pool)),
                driver_free: Some(gib(pool)),
                ttm_pages_limit: Some(1 << 18),
                host: HostMemory {
                    total: Some(gib(ram)),
                    available: Some(gib(ram)),
                    ..HostMemory::default()
                },
                cgroup: CgroupMemory {
                    limit: Some(Bytes::gib(3)),
                    working_set: Some(Bytes::gib(1)),
                },
                ..Inputs::new(DeviceKind::Unified)
            });
            assert_eq!(
                (capacity.total, capacity.free),
                (Bytes::gib(3), Bytes::mib(2048 - 96))
            );
            assert_eq!(capacity.limited_by, Limit::Cgroup);
        }
    }

    fn maybe() -> impl Strategy<Value = Option<Bytes>> {
        proptest::option::of(any::<u64>().prop_map(Bytes))
    }

    proptest! {
        #[test]
        fn free_is_never_above_total_nor_total_above_a_bound(
            kind in prop_oneof![Just(DeviceKind::Discrete), Just(DeviceKind::Apu), Just(DeviceKind::Unified), Just(DeviceKind::Host)],
            kfd_pool in maybe(), driver_total in maybe(), driver_free in maybe(),
            ram in maybe(), available in maybe(), limit in maybe(), working_set in maybe(),
            gtt_total in maybe(), vram_total in maybe(), ttm in proptest::option::of(any::<u64>()), reserve in maybe(),
        ) {
            let inputs = Inputs {
                kind, kfd_pool, driver_total, driver_free, gtt_total, vram_total, ttm_pages_limit: ttm, video: None,
                host: HostMemory { total: ram, available, ..HostMemory::default() },
                cgroup: CgroupMemory { limit, working_set },
                reserve: reserve.map_or(Reserve::Auto, Reserve::Fixed),
            };
            let capacity = capacity(&inputs);
            prop_assert!(capacity.free <= capacity.total);
            if kind != DeviceKind::Host && let Some(total) = driver_total {
                prop_assert!(capacity.total <= total);
            }
            if shares_host_memory(&inputs) && let Some(limit) = limit {
                prop_assert!(capacity.total <= limit);
            }
        }
    }
}
