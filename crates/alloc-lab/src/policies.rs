//! Policies to compare with the one that `hip-alloc` uses: their names, and how a trace is replayed
//! with them. CONTRIBUTING.md explains how to add one.

use crate::replay::{Outcome, replay_with};
use crate::trace::Trace;
use hip_alloc::driver::sim::SimConfig;
use hip_alloc::pool::PoolConfig;
use hip_alloc::pool::policy::{Held, Placement, Policy, Region, StepPolicy, best_multiple};
use hip_alloc::units::MIB;

/// Replays a trace with a certain policy.
pub type Run = fn(&Trace, PoolConfig, SimConfig) -> Outcome;

/// All policies by name, the current one first.
pub const POLICIES: &[(&str, Run)] = &[
    ("step", |trace, config, sim| {
        replay_with(StepPolicy::default(), trace, config, sim, &mut |_| {})
    }),
    ("uniform", |trace, config, sim| {
        replay_with(Uniform, trace, config, sim, &mut |_| {})
    }),
];

/// One region for everything that is not small, and blocks that are a multiple of the request:
/// a policy that only knows the size.
struct Uniform;

impl Policy for Uniform {
    fn place(&mut self, bytes: u64) -> Placement {
        Placement {
            region: match bytes < MIB {
                true => Region::Small,
                false => Region::Transient,
            },
            anywhere: false,
            known: true,
        }
    }

    fn block_bytes(&mut self, bytes: u64, placement: Placement, held: &Held) -> u64 {
        match placement.region {
            Region::Small => 2 * MIB,
            _ if held.usage.is_tight(bytes) => bytes.next_multiple_of(4096),
            _ => best_multiple(bytes, 1, (64 * MIB).div_ceil(bytes)),
        }
    }
}
