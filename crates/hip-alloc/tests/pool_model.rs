//! The pool against a simple model: nothing overlaps, nothing is lost, every number
//! is exact, also when driver calls fail.

#![allow(clippy::unwrap_used, reason = "tests")]

use hip_alloc::driver::DriverError;
use hip_alloc::driver::sim::{SimConfig, SimDriver};
use hip_alloc::pool::{Device, DeviceMemory, FreeError, Keep, Pool, PoolConfig, SpanUse};
use hip_alloc::units::{KIB, MIB, StreamId};
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// One thing that a program does.
#[derive(Clone, Copy, Debug)]
enum Act {
    Allocate {
        bytes: u64,
        stream: u64,
    },
    /// Frees the live request at this place, counted round.
    Free(usize),
    RecordStream(usize, u64),
    Trim,
}

/// The pool, its device, and what ought to be true of them.
struct Checked {
    pool: Pool,
    device: Device<SimDriver>,
    /// Live requests: address to bytes asked for.
    live: BTreeMap<u64, u64>,
    granule: u64,
    guard: u64,
}

impl Checked {
    fn new(sim: SimConfig) -> Self {
        Self::keeping(Keep::Off, sim)
    }

    fn keeping(keep: Keep, sim: SimConfig) -> Self {
        Self::guarded(keep, 0, sim)
    }

    fn guarded(keep: Keep, guard: u64, sim: SimConfig) -> Self {
        let small = PoolConfig {
            warmup_bytes: 64 * MIB,
            max_split_bytes: 32 * MIB,
            ..PoolConfig::default()
        };
        let config = match keep {
            Keep::Off => small,
            keep => PoolConfig {
                keep,
                ..PoolConfig::default()
            },
        };
        let config = PoolConfig { guard, ..config };
        let device = DeviceMemory::of(SimDriver::new(sim));
        let granule = config.granule;
        let pool = Pool::new(config, device.clone());
        Checked {
            guard,
            pool,
            device,
            live: BTreeMap::new(),
            granule,
        }
    }

    fn act(&mut self, act: Act) {
        match act {
            Act::Allocate { bytes, stream } => {
                self.allocate(bytes, stream);
            }
            Act::Free(place) => {
                if let Some(address) = self.pick(place) {
                    self.free(address);
                }
            }
            Act::RecordStream(place, stream) => {
                if let Some(address) = self.pick(place) {
                    self.pool.record_stream(address, StreamId(stream)).unwrap();
                }
            }
            Act::Trim => self.pool.trim(0),
        }
    }

    fn allocate(&mut self, bytes: u64, stream: u64) -> Option<u64> {
        let address = self.pool.allocate(bytes, StreamId(stream)).ok()?;
        assert_eq!(address % self.granule, 0);
        let end = address + bytes.max(1);
        if let Some((before, size)) = self.live.range(..end).next_back() {
            assert!(
                before + size.max(&1) <= address,
                "{address:#x} overlaps {before:#x}"
            );
        }
        self.live.insert(address, bytes);
        Some(address)
    }

    fn free(&mut self, address: u64) {
        let bytes = self.live.remove(&address).unwrap();
        assert_eq!(self.pool.free(address), Ok(bytes));
        assert!(self.pool.free(address).is_err(), "freed twice");
    }

    fn pick(&self, place: usize) -> Option<u64> {
        self.live
            .keys()
            .nth(place % self.live.len().max(1))
            .copied()
    }

    /// The numbers are those of the model, and the spans of each block are the block.
    fn check(&self) {
        let stats = self.pool.stats();
        assert_eq!(stats.live_bytes, self.live.values().sum::<u64>());
        assert_eq!(stats.live_allocations, self.live.len() as u64);
        assert_eq!(stats.allocations - stats.frees, self.live.len() as u64);
        assert_eq!(stats.held_bytes, self.device.lock().driver.held());
        assert!(stats.held_peak_bytes >= stats.held_bytes);
        let mut live = BTreeMap::new();
        let mut held = 0;
        for block in self.pool.layout() {
            held += block.bytes + self.guard;
            let mut at = block.address;
            let mut free_before = None;
            for span in &block.spans {
                assert_eq!(span.address, at, "a gap or an overlap in a block");
                at += span.bytes;
                if span.state == SpanUse::Live {
                    assert!(span.bytes >= span.requested);
                    live.insert(span.address, span.requested);
                }
                let free = (span.state == SpanUse::Free).then_some(span.stream);
                assert!(
                    free.is_none() || free != free_before || span.stream == StreamId(0),
                    "not joined"
                );
                free_before = free;
            }
            assert_eq!(at, block.address + block.bytes);
        }
        assert_eq!(held, stats.held_bytes);
        assert_eq!(live, self.live);
        for (address, bytes) in &self.live {
            let mapped = self.device.lock().driver.mapped_until(*address);
            assert!(mapped.is_some_and(|end| address + bytes + self.guard <= end));
        }
    }

    /// Frees everything: then all of it can go back.
    fn finish(mut self) {
        self.device.lock().driver.config_mut().fail_call = None;
        for address in std::mem::take(&mut self.live).into_keys() {
            self.pool.free(address).unwrap();
        }
        self.pool.trim(0);
        self.check();
        assert_eq!(self.pool.stats().pending_bytes, 0);
        assert_eq!(
            self.device.lock().driver.held(),
            0,
            "{:?}",
            self.pool.layout()
        );
    }
}

fn act() -> impl Strategy<Value = Act> {
    let bytes = prop_oneof![
        4 => 0..64 * KIB,
        4 => 64 * KIB..4 * MIB,
        3 => prop::sample::select(vec![MIB, 3 * MIB, 8 * MIB, 12 * MIB]),
        1 => 20 * MIB..60 * MIB,
    ];
    prop_oneof![
        10 => (bytes, prop_oneof![6 => Just(0u64), 1 => 1u64..4])
            .prop_map(|(bytes, stream)| Act::Allocate { bytes, stream }),
        8 => any::<usize>().prop_map(Act::Free),
        1 => (any::<usize>(), 0u64..4).prop_map(|(place, stream)| Act::RecordStream(place, stream)),
        1 => Just(Act::Trim),
    ]
}

fn acts(most: usize) -> impl Strategy<Value = Vec<Act>> {
    prop::collection::vec(act(), 1..most)
}

/// Steps of a training: each asks for the sizes of one of a few shapes, with what is freed at
/// once and what is freed on the way back, and now and then for something else.
#[derive(Clone, Debug)]
struct Steps {
    /// What lasts for a part of the step, and what passes at once, in granules of 512 bytes.
    shapes: Vec<Vec<(u64, u64)>>,
    /// The shape of each step.
    order: Vec<usize>,
    /// Done between two layers of some steps: step, layer, act.
    between: Vec<(usize, usize, Act)>,
}

fn steps() -> impl Strategy<Value = Steps> {
    let layer = (150_000u64..350_000, 4_000u64..100_000);
    let shape = prop::collection::vec(layer, 30..40);
    let shapes = prop::collection::vec(shape, 1..4);
    (shapes, prop::collection::vec(any::<usize>(), 20..40))
        .prop_flat_map(|(shapes, order)| {
            let place = (0..order.len(), 0..40usize, act());
            let between = prop::collection::vec(place, 0..30);
            (Just(shapes), Just(order), between)
        })
        .prop_map(|(shapes, order, between)| Steps {
            order: order.iter().map(|step| step % shapes.len()).collect(),
            shapes,
            between,
        })
}

impl Checked {
    fn take(&mut self, granules: u64) -> Option<u64> {
        self.allocate(granules * 512, 0)
    }

    /// Frees what is still live of these: another act may have freed it.
    fn give(&mut self, address: Option<u64>) {
        if let Some(address) = address.filter(|address| self.live.contains_key(address)) {
            self.free(address);
        }
    }

    fn run(&mut self, steps: &Steps) {
        for (number, shape) in steps.order.iter().enumerate() {
            let mut kept = Vec::new();
            for (layer, (lasting, brief)) in steps.shapes[*shape].iter().enumerate() {
                let brief = self.take(*brief);
                kept.push(self.take(*lasting));
                self.give(brief);
                self.device
                    .lock()
                    .driver
                    .advance(Duration::from_micros(200));
                for (_, _, act) in steps
                    .between
                    .iter()
                    .filter(|(step, at, _)| (*step, *at) == (number, layer))
                {
                    self.act(*act);
                    kept.retain(|address| {
                        address.is_some_and(|address| self.live.contains_key(&address))
                    });
                }
                self.check();
            }
            for address in kept.into_iter().rev() {
                let brief = self.take(700);
                self.give(address);
                self.give(brief);
                self.check();
            }
        }
    }
}

/// Enough for every run; `PROPTEST_CASES` for a wide search.
fn cases() -> u32 {
    let named = std::env::var("PROPTEST_CASES").ok();
    named.and_then(|text| text.parse().ok()).unwrap_or(96)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: cases(), ..ProptestConfig::default() })]

    #[test]
    fn agrees_with_the_model(acts in acts(300), polls in 0u32..4) {
        let mut checked = Checked::new(SimConfig { polls_per_event: polls, ..SimConfig::default() });
        for act in acts {
            checked.act(act);
            checked.check();
        }
        checked.finish();
    }

    #[test]
    fn agrees_with_the_model_when_memory_is_short(acts in acts(300), capacity in 8u64..200) {
        let mut checked = Checked::new(SimConfig { capacity: capacity * MIB, ..SimConfig::default() });
        for act in acts {
            checked.act(act);
            checked.check();
        }
        checked.finish();
    }

    /// Whatever comes and goes, something is mapped behind every live request.
    #[test]
    fn agrees_with_the_model_behind_a_guard(
        acts in acts(300),
        polls in 0u32..3,
        auto: bool,
        capacity in prop_oneof![Just(100_000u64), 40..200u64],
    ) {
        let keep = if auto { Keep::Auto } else { Keep::Off };
        let mut checked = Checked::guarded(keep, 4096, SimConfig {
            polls_per_event: polls,
            capacity: capacity * MIB,
            ..SimConfig::default()
        });
        for act in acts {
            checked.act(act);
            checked.check();
        }
        checked.finish();
    }

    /// Steps in several shapes, while their memory is kept.
    #[test]
    fn agrees_with_the_model_while_steps_are_kept(
        steps in steps(),
        polls in 0u32..3,
        capacity in prop_oneof![3 => Just(100_000u64), 1 => 6_000..12_000u64],
        fails in prop_oneof![2 => Just(None), 1 => (1u64..2_000).prop_map(Some)],
        clearing_rate in prop::sample::select(vec![1_000_000_000u64, 100_000_000_000]),
    ) {
        let mut checked = Checked::keeping(Keep::Auto, SimConfig {
            polls_per_event: polls,
            capacity: capacity * MIB,
            fail_call: fails.map(|call| (call, DriverError::OutOfMemory)),
            call_latency: Duration::from_micros(50),
            clearing_rate,
            ..SimConfig::default()
        });
        checked.run(&steps);
        checked.finish();
    }

    /// Whichever driver call fails, and in whichever way, the pool stays exact and usable.
    #[test]
    fn survives_any_failing_call(acts in acts(120), call in 1u64..200, polls in 0u32..3, refused: bool) {
        let error = if refused {
            DriverError::Failed { call: "test", code: 719, message: "launch failure".into() }
        } else {
            DriverError::OutOfMemory
        };
        let mut checked = Checked::new(SimConfig {
            fail_call: Some((call, error)),
            polls_per_event: polls,
            ..SimConfig::default()
        });
        for act in acts {
            checked.act(act);
            checked.check();
        }
        checked.finish();
    }
}

/// A short program that makes the pool use every call of its driver.
fn every_kind_of_call() -> Vec<Act> {
    let mut acts = Vec::new();
    for round in 0..6 {
        for number in 0..12 {
            let bytes = [300, 60 * KIB, 3 * MIB, 9 * MIB, 40 * MIB, MIB][(number % 6) as usize];
            acts.push(Act::Allocate {
                bytes,
                stream: (number + round) % 3,
            });
            if number % 4 == 1 {
                acts.push(Act::RecordStream(number as usize, 2));
            }
        }
        acts.extend((0..9).map(|number| Act::Free(number * 5)));
        acts.push(Act::Trim);
    }
    acts
}

/// How a call fails: for lack of memory, because it is refused, because the device is lost.
fn every_kind_of_error() -> [DriverError; 3] {
    let failed = |code, message: &str| DriverError::Failed {
        call: "test",
        code,
        message: message.into(),
    };
    let refused = failed(1, "invalid argument");
    let lost = failed(719, "launch failure");
    assert!(lost.loses_device() && !refused.loses_device());
    [DriverError::OutOfMemory, refused, lost]
}

/// Each driver call in turn fails, in each way, once or from then on: the pool stays
/// exact, and serves again when the device does. No function of the driver is left out.
#[test]
fn every_call_may_fail() {
    let mut failed = BTreeSet::new();
    for polls_per_event in [0, 2] {
        let sim = SimConfig {
            polls_per_event,
            ..SimConfig::default()
        };
        let run = |sim: SimConfig| {
            let mut checked = Checked::new(sim);
            for act in every_kind_of_call() {
                checked.act(act);
                checked.check();
            }
            checked
        };
        let calls = run(sim.clone()).device.lock().driver.calls();
        assert!(
            calls > 60,
            "the program is to use the driver: {calls} calls"
        );
        for number in 1..=calls {
            for (kind, error) in every_kind_of_error().into_iter().enumerate() {
                for fail_later_calls in [false, true] {
                    let mut checked = run(SimConfig {
                        fail_call: Some((number, error.clone())),
                        fail_later_calls,
                        ..sim.clone()
                    });
                    for function in checked.device.lock().driver.failed() {
                        failed.insert((*function, kind));
                    }
                    checked.device.lock().driver.config_mut().fail_call = None;
                    checked.act(Act::Allocate {
                        bytes: 5 * MIB,
                        stream: 0,
                    });
                    assert!(!checked.live.is_empty(), "it serves again");
                    checked.finish();
                }
            }
        }
    }
    let functions = [
        "allocate",
        "memory_info",
        "reached",
        "record",
        "release",
        "synchronize",
        "wait",
    ];
    let every = functions
        .into_iter()
        .flat_map(|function| (0..3).map(move |kind| (function, kind)));
    assert_eq!(failed, every.collect());
}

/// Two million operations in one run, checked now and then.
#[test]
fn agrees_with_the_model_over_millions_of_operations() {
    let mut checked = Checked::new(SimConfig::default());
    let mut state = 0x2545_F491_4F6C_DD1Du64;
    let mut addresses: Vec<u64> = Vec::new();
    for number in 0..2_000_000u64 {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        let wanted = 300 + (number / 1000 % 10) * 100;
        if state % 1000 < 500 && addresses.len() < wanted as usize || addresses.is_empty() {
            let bytes = 1 << ((state >> 10) % 24);
            let bytes = bytes + (state >> 20) % bytes;
            let address = checked.pool.allocate(bytes, StreamId(0)).unwrap();
            assert!(checked.live.insert(address, bytes).is_none());
            addresses.push(address);
        } else {
            let address = addresses.swap_remove((state >> 30) as usize % addresses.len());
            let bytes = checked.live.remove(&address).unwrap();
            assert_eq!(checked.pool.free(address), Ok(bytes));
        }
        if number % 20_000 == 0 {
            checked.check();
        }
    }
    checked.finish();
}

#[test]
fn wrong_frees_are_told_apart() {
    let device = DeviceMemory::of(SimDriver::new(SimConfig::default()));
    let mut pool = Pool::new(PoolConfig::default(), device);
    let a = pool.allocate(100, StreamId(0)).unwrap();
    assert_eq!(pool.free(a + 8), Err(FreeError::NotLive));
    assert_eq!(pool.free(42), Err(FreeError::Unknown));
    assert_eq!(pool.free(a), Ok(100));
    assert_eq!(pool.free(a), Err(FreeError::NotLive));
}

#[test]
fn the_floor_is_in_proportion_to_what_was_live() {
    let device = DeviceMemory::of(SimDriver::new(SimConfig::default()));
    let mut pool = Pool::new(PoolConfig::default(), device.clone());
    let held = || device.lock().driver.held();
    assert_eq!(held(), 0, "nothing is live yet");
    let addresses: Vec<u64> = (0..12)
        .map(|_| pool.allocate(30 * MIB, StreamId(0)).unwrap())
        .collect();
    for address in addresses {
        pool.free(address).unwrap();
    }
    assert!(held() <= 90 * MIB, "{} MiB", held() / MIB);
}

/// A small tensor that stays does not stand in the way of one that takes nearly the whole device.
#[test]
fn one_small_tensor_leaves_nearly_all_of_the_device_to_a_large_one() {
    for (capacity, warmup) in [(8, 0), (8, 1), (64, 0), (64, 1)] {
        let capacity = capacity * 1024 * MIB;
        let device = DeviceMemory::of(SimDriver::new(SimConfig {
            capacity,
            ..SimConfig::default()
        }));
        let config = PoolConfig {
            // Taken at the start, or not.
            floor_part: 1 - warmup,
            ..PoolConfig::default()
        };
        let mut pool = Pool::new(config, device.clone());
        let held = || device.lock().driver.held();
        pool.allocate(MIB, StreamId(0)).unwrap();
        let large = capacity / 100 * 97;
        let served = pool.allocate(large, StreamId(0));
        assert!(served.is_ok(), "{} MiB held", held() / MIB);
    }
}

#[test]
fn the_floor_is_kept_and_no_more() {
    let device = DeviceMemory::of(SimDriver::new(SimConfig::default()));
    let config = PoolConfig {
        floor_part: 0,
        ..PoolConfig::default()
    };
    let floor = config.warmup_bytes;
    let mut pool = Pool::new(config, device.clone());
    let held = || device.lock().driver.held();
    assert_eq!(held(), floor);
    let addresses: Vec<u64> = (0..200)
        .map(|_| pool.allocate(30 * MIB, StreamId(0)).unwrap())
        .collect();
    assert!(held() >= 6000 * MIB);
    for address in addresses {
        pool.free(address).unwrap();
        assert!(held() <= pool.stats().live_bytes + floor + 256 * MIB);
    }
    assert!(held() <= floor);
}
