//! The pools of a device that refuses what would end a capture.

use super::*;
use crate::driver::sim::{SimConfig, SimDriver};
use crate::driver::{Driver, DriverCost, EventId};
use crate::pool::DeviceMemory;
use crate::units::{GIB, MIB};
use proptest::prelude::*;
use std::collections::BTreeMap;
use std::sync::Mutex;
use std::time::Duration;

/// What is captured is captured on this stream.
const CAPTURED: StreamId = StreamId(7);
const OTHER: StreamId = StreamId(8);
const FIRST: PoolId = PoolId {
    first: 0,
    second: 1,
};
const SECOND: PoolId = PoolId {
    first: 1,
    second: 0,
};

/// A device that refuses, while a graph is captured, what would end the capture.
struct Strict {
    sim: SimDriver,
    captures: bool,
}

impl Strict {
    fn new(sim: SimConfig) -> Self {
        let sim = SimDriver::new(sim);
        let captures = false;
        Strict { sim, captures }
    }

    fn with_capacity(capacity: u64) -> Self {
        Self::new(SimConfig {
            capacity,
            polls_per_event: 2,
            ..SimConfig::default()
        })
    }

    fn check(&self, call: &str) {
        assert!(!self.captures, "{call} while a graph is captured");
    }
}

impl Driver for Strict {
    fn allocate(&mut self, bytes: u64) -> Result<u64, DriverError> {
        self.sim.allocate(bytes)
    }

    fn release(&mut self, address: u64, bytes: u64) -> Result<(), DriverError> {
        self.check("release");
        self.sim.release(address, bytes)
    }

    fn record(&mut self, stream: StreamId) -> Result<Option<EventId>, DriverError> {
        self.check("record");
        self.sim.record(stream)
    }

    fn reached(&mut self, event: EventId) -> Result<bool, DriverError> {
        self.check("reached");
        self.sim.reached(event)
    }

    fn wait(&mut self, event: EventId) -> Result<(), DriverError> {
        self.check("wait");
        self.sim.wait(event)
    }

    fn synchronize(&mut self) -> Result<(), DriverError> {
        self.check("synchronize");
        self.sim.synchronize()
    }

    fn is_capturing(&mut self, stream: StreamId) -> Result<bool, DriverError> {
        Ok(self.captures && stream == CAPTURED)
    }

    fn enter_capture(&mut self) {}

    fn leave_capture(&mut self) {}

    fn runtime(&self) -> &'static str {
        self.sim.runtime()
    }

    fn survives_fork(&self) -> bool {
        true
    }

    fn survives_exit(&self) -> bool {
        true
    }

    fn needs_guard(&self) -> bool {
        false
    }

    fn cheap_memory_info(&mut self) -> Result<MemoryInfo, DriverError> {
        self.sim.cheap_memory_info()
    }

    fn measure(&mut self) -> Option<DriverCost> {
        None
    }

    fn now(&mut self) -> Duration {
        self.sim.now()
    }

    fn memory_info(&mut self) -> Result<MemoryInfo, DriverError> {
        self.sim.memory_info()
    }
}

/// Takes requests for these streams.
struct Streams(Vec<StreamId>);

impl Filter for Streams {
    fn takes(&mut self, stream: StreamId) -> Result<bool, String> {
        Ok(self.0.contains(&stream))
    }
}

struct Broken;

impl Filter for Broken {
    fn takes(&mut self, _stream: StreamId) -> Result<bool, String> {
        Err("no capture like that".to_owned())
    }
}

/// A device with its pools.
struct Tested {
    pools: Pools,
    device: Device<Strict>,
}

impl Tested {
    fn new(capacity: u64) -> Self {
        let config = PoolConfig {
            warmup_bytes: 0,
            ..PoolConfig::default()
        };
        let device = DeviceMemory::of(Strict::with_capacity(capacity));
        Tested {
            pools: Pools::new(config, device.clone(), Vec::new()),
            device,
        }
    }

    fn begin(&mut self, id: PoolId, streams: &[StreamId]) -> Captured {
        let begun = self.pools.begin(id, Box::new(Streams(streams.to_vec())));
        begun.ok().unwrap()
    }

    fn end(&mut self, id: PoolId) {
        assert!(self.pools.end(id).is_some());
    }

    fn release(&mut self, id: PoolId) {
        assert!(self.pools.release(id));
    }

    fn allocate(&mut self, bytes: u64, stream: StreamId) -> Result<u64, AllocateError> {
        self.pools.allocate(bytes, stream)
    }

    fn free(&mut self, address: u64) {
        self.pools.free(address).unwrap();
    }

    /// Captures from now on, or no more.
    fn capture(&mut self, captures: bool) {
        self.device.lock().driver.captures = captures;
    }

    /// Whether requests go to the pool, and nothing has shown that they are not captured.
    fn may_capture(&self, id: PoolId) -> bool {
        let mut routes = self.pools.routes.iter();
        routes.any(|route| route.id == id && route.captured.load(Ordering::SeqCst))
    }

    /// Whether an address lies in blocks of the pool.
    fn is_in(&self, id: PoolId, address: u64) -> bool {
        let blocks = self.pools.layout();
        let mut of_pool = blocks.iter().filter(|(of, _)| *of == Some(id));
        of_pool.any(|(_, block)| (block.address..block.address + block.bytes).contains(&address))
    }

    fn held(&self) -> u64 {
        self.pools.stats().held_bytes
    }
}

#[test]
fn what_goes_to_a_pool_stays_there_until_nobody_has_it() {
    let mut device = Tested::new(GIB);
    device.pools.retain(FIRST);
    device.begin(FIRST, &[CAPTURED]);
    let inside = device.allocate(8 * MIB, CAPTURED).unwrap();
    let outside = device.allocate(8 * MIB, OTHER).unwrap();
    assert!(device.is_in(FIRST, inside) && !device.is_in(FIRST, outside));
    device.free(inside);
    assert_ne!(device.allocate(8 * MIB, OTHER), Ok(inside), "for others");
    assert_eq!(
        device.allocate(8 * MIB, CAPTURED),
        Ok(inside),
        "in the pool"
    );
    device.free(inside);
    device.end(FIRST);
    // The user that began has let it go, and the other not yet.
    device.release(FIRST);
    assert!(device.is_in(FIRST, inside));
    let held = device.held();
    device.release(FIRST);
    assert!(device.held() < held && device.pools.alone);
    assert_eq!(device.pools.users(FIRST), 0);
}

#[test]
fn what_is_live_in_a_pool_outlives_it() {
    let mut device = Tested::new(GIB);
    device.begin(FIRST, &[CAPTURED]);
    let inside = device.allocate(8 * MIB, CAPTURED).unwrap();
    device.end(FIRST);
    device.release(FIRST);
    assert!(device.is_in(FIRST, inside) && !device.pools.alone);
    device.free(inside);
    assert_eq!(
        (device.held(), device.device.lock().driver.sim.held()),
        (0, 0)
    );
    assert!(device.pools.alone);
    let stats = device.pools.stats();
    assert_eq!((stats.allocations, stats.frees), (1, 1));
}

#[test]
fn a_capture_is_not_disturbed() {
    let mut device = Tested::new(GIB);
    let kept = device.allocate(64 * MIB, OTHER).unwrap();
    let shared = device.allocate(4 * MIB, OTHER).unwrap();
    device.pools.record_stream(shared, StreamId(9)).unwrap();
    let captured = device.begin(SECOND, &[CAPTURED]);
    device.capture(true);
    let first = device.allocate(8 * MIB, CAPTURED).unwrap();
    assert!(captured.load(Ordering::SeqCst));
    let second = device.allocate(3 * MIB, CAPTURED).unwrap();
    // What the capture uses elsewhere, too, waits for that until events can be recorded.
    device.pools.record_stream(second, OTHER).unwrap();
    for address in [kept, shared, second] {
        device.free(address);
    }
    assert_ne!(device.allocate(3 * MIB, CAPTURED), Ok(second));
    device.pools.trim(0);
    assert!(device.pools.work(), "unknown");
    let held = device.held();
    device.capture(false);
    device.end(SECOND);
    device.pools.trim(0);
    assert_eq!(device.pools.main().held(), 0);
    assert!(device.held() < held && device.is_in(SECOND, first));
}

#[test]
fn who_directs_a_stream_to_a_pool_need_not_capture() {
    let mut device = Tested::new(GIB);
    let captured = device.begin(FIRST, &[CAPTURED]);
    assert!(device.pools.captured(), "nothing is known yet");
    device.allocate(MIB, OTHER).unwrap();
    assert!(device.pools.captured(), "this one was not taken");
    device.allocate(MIB, CAPTURED).unwrap();
    assert!(!device.pools.captured() && !captured.load(Ordering::SeqCst));
}

#[test]
fn a_capture_elsewhere_is_not_disturbed_either() {
    let mut device = Tested::new(GIB);
    let other = Captured::new(AtomicBool::new(true));
    device.pools.heed(other.clone());
    let address = device.allocate(64 * MIB, OTHER).unwrap();
    device.capture(true);
    device.free(address);
    device.capture(false);
    assert!(device.held() > 0);
    other.store(false, Ordering::SeqCst);
    device.pools.trim(0);
    assert_eq!(device.held(), 0);
    assert!(device.pools.alone);
}

#[test]
fn a_pool_that_requests_go_to_cannot_be_begun_again() {
    let mut device = Tested::new(GIB);
    device.begin(FIRST, &[CAPTURED]);
    let filter = Box::new(Streams(vec![OTHER]));
    let again = device.pools.begin(FIRST, filter);
    assert!(matches!(again, Err(AlreadyBegun(_))));
    assert_eq!(device.pools.users(FIRST), 1);
    device.end(FIRST);
    assert!(device.pools.end(FIRST).is_none());
    device.begin(FIRST, &[CAPTURED]);
    assert_eq!(device.pools.users(FIRST), 2);
}

#[test]
fn where_it_is_not_known_which_pool_a_request_is_for_it_fails() {
    let mut device = Tested::new(GIB);
    let begun = device.pools.begin(FIRST, Box::new(Broken));
    begun.ok().unwrap();
    let message = device.allocate(MIB, OTHER).unwrap_err().to_string();
    assert!(message.contains("no capture like that"), "{message}");
}

#[test]
fn a_pool_gets_what_the_device_keeps_before_a_request_fails() {
    let mut device = Tested::new(256 * MIB);
    let address = device.allocate(200 * MIB, OTHER).unwrap();
    device.begin(FIRST, &[CAPTURED]);
    device.allocate(MIB, CAPTURED).unwrap();
    device.pools.main().set_holding(true);
    device.free(address);
    device.pools.main().set_holding(false);
    assert!(device.held() > 200 * MIB);
    assert!(device.allocate(200 * MIB, CAPTURED).is_ok());
    let stats = device.pools.stats();
    assert_eq!(stats.out_of_memory, 0);
    assert_eq!(
        device.allocate(200 * MIB, CAPTURED),
        Err(AllocateError::OutOfMemory)
    );
    device.pools.ask_again();
    assert_eq!(device.pools.stats().out_of_memory, 0);
}

#[test]
fn a_pool_serves_others_before_they_are_refused_if_it_may() {
    for may in [false, true] {
        let mut device = Tested::new(256 * MIB);
        device.begin(FIRST, &[CAPTURED]);
        if may {
            device.pools.use_on_oom(FIRST);
        }
        let inside = device.allocate(200 * MIB, CAPTURED).unwrap();
        device.free(inside);
        let served = device.allocate(100 * MIB, OTHER);
        assert_eq!(served.is_ok(), may);
        let stats = device.pools.stats();
        assert_eq!(stats.out_of_memory, u64::from(!may));
        if let Ok(address) = served {
            assert!(device.is_in(FIRST, address));
            device.free(address);
        }
    }
}

#[test]
fn the_limit_is_that_of_all_pools_together() {
    let mut device = Tested::new(GIB);
    device.device.lock().limit = 128 * MIB;
    device.begin(FIRST, &[CAPTURED]);
    device.allocate(60 * MIB, CAPTURED).unwrap();
    device.allocate(60 * MIB, OTHER).unwrap();
    for stream in [CAPTURED, OTHER] {
        let refused = device.allocate(60 * MIB, stream);
        assert_eq!(refused, Err(AllocateError::OutOfMemory));
    }
    assert!(device.held() <= 128 * MIB);
    device.device.lock().limit = u64::MAX;
    assert!(device.allocate(60 * MIB, CAPTURED).is_ok());
    assert!(device.allocate(60 * MIB, OTHER).is_ok());
    assert_eq!(device.device.lock().limit, u64::MAX);
}

#[test]
fn peaks_are_those_of_all_pools_at_one_time() {
    let mut device = Tested::new(GIB);
    device.begin(FIRST, &[CAPTURED]);
    let inside = device.allocate(60 * MIB, CAPTURED).unwrap();
    device.free(inside);
    let outside = device.allocate(40 * MIB, OTHER).unwrap();
    let stats = device.pools.stats();
    assert_eq!(stats.live_peak_bytes, 60 * MIB);
    assert_eq!(stats.held_peak_bytes, stats.held_bytes);
    device.allocate(30 * MIB, CAPTURED).unwrap();
    device.free(outside);
    let stats = device.pools.stats();
    assert_eq!(
        (stats.live_bytes, stats.live_peak_bytes),
        (30 * MIB, 70 * MIB)
    );
    device.pools.reset_peaks();
    let stats = device.pools.stats();
    assert_eq!(stats.live_peak_bytes, 30 * MIB);
}

#[derive(Clone, Debug)]
enum Act {
    Begin(bool),
    End(bool),
    Release(bool),
    Capture(bool),
    Allocate { kib: u64, stream: u64 },
    Free(usize),
    Record { which: usize, stream: u64 },
    Trim,
}

fn acts() -> impl Strategy<Value = Vec<Act>> {
    let act = prop_oneof![
        2 => any::<bool>().prop_map(Act::Begin),
        2 => any::<bool>().prop_map(Act::End),
        1 => any::<bool>().prop_map(Act::Release),
        1 => any::<bool>().prop_map(Act::Capture),
        20 => (1..40_000u64, 6..9u64).prop_map(|(kib, stream)| Act::Allocate { kib, stream }),
        18 => any::<usize>().prop_map(Act::Free),
        3 => (any::<usize>(), 6..9u64).prop_map(|(which, stream)| Act::Record { which, stream }),
        1 => Just(Act::Trim),
    ];
    prop::collection::vec(act, 1..200)
}

proptest! {
    /// Live memory never overlaps, what one pool was given is no other's, and at the end all of
    /// it is the driver's again.
    #[test]
    fn pools_do_not_share(acts in acts()) {
        let mut device = Tested::new(64 * GIB);
        // By address: bytes, and the pool that it is of.
        let mut live = BTreeMap::new();
        let mut routed = [false; 2];
        let mut begun = [0; 2];
        let id = |second| if second { SECOND } else { FIRST };
        let streams = |second| if second { vec![CAPTURED] } else { vec![StreamId(6)] };
        for act in acts {
            match act {
                Act::Begin(which) if !routed[usize::from(which)] => {
                    device.begin(id(which), &streams(which));
                    routed[usize::from(which)] = true;
                    begun[usize::from(which)] += 1;
                }
                Act::End(which) if routed[usize::from(which)] => {
                    device.device.lock().driver.captures &= !which;
                    device.end(id(which));
                    routed[usize::from(which)] = false;
                }
                Act::Release(which) if begun[usize::from(which)] > usize::from(routed[usize::from(which)]) => {
                    device.release(id(which));
                    begun[usize::from(which)] -= 1;
                }
                // As PyTorch does it: the route is there before the capture begins.
                Act::Capture(true) if device.may_capture(SECOND) => device.capture(true),
                Act::Allocate { kib, stream } => {
                    let stream = StreamId(stream);
                    let address = device.allocate(kib * 1024, stream).unwrap();
                    let of = [false, true].into_iter().find(|which| {
                        routed[usize::from(*which)] && streams(*which).contains(&stream)
                    });
                    for which in [false, true] {
                        prop_assert_eq!(device.is_in(id(which), address), of == Some(which));
                    }
                    // Shown not to be one, it will not become one.
                    if of == Some(true) && !device.device.lock().driver.captures {
                        prop_assert!(!device.may_capture(SECOND));
                    }
                    live.insert(address, kib * 1024);
                }
                Act::Free(which) if !live.is_empty() => {
                    let address = *live.keys().nth(which % live.len()).unwrap();
                    live.remove(&address);
                    device.free(address);
                }
                Act::Record { which, stream } if !live.is_empty() => {
                    let address = *live.keys().nth(which % live.len()).unwrap();
                                    device.pools.record_stream(address, StreamId(stream)).unwrap();
                }
                Act::Trim => {
                                    device.pools.trim(0);
                }
                _ => {}
            }
            let mut end = 0;
            for (address, bytes) in &live {
                prop_assert!(*address >= end);
                end = address + bytes;
            }
            let stats = device.pools.stats();
            prop_assert_eq!(stats.live_bytes, live.values().sum::<u64>());
            prop_assert_eq!(stats.held_bytes, device.device.lock().driver.sim.held());
        }
        device.capture(false);
        for which in [false, true] {
            if routed[usize::from(which)] {
                device.end(id(which));
            }
            for _ in 0..begun[usize::from(which)] {
                device.release(id(which));
            }
        }
        for address in live.into_keys() {
            device.free(address);
        }
            device.pools.trim(0);
        prop_assert_eq!(device.device.lock().driver.sim.held(), 0);
        prop_assert!(device.pools.alone);
    }
}

/// Filters are asked on the thread that requests, one at a time.
#[test]
fn filters_are_asked_in_the_order_in_which_they_came() {
    struct Noting(Arc<Mutex<Vec<u64>>>, u64);
    impl Filter for Noting {
        fn takes(&mut self, _stream: StreamId) -> Result<bool, String> {
            self.0.lock().unwrap().push(self.1);
            Ok(self.1 == 2)
        }
    }
    let mut device = Tested::new(GIB);
    let asked = Arc::new(Mutex::new(Vec::new()));
    for number in 1..=3 {
        let id = PoolId {
            first: 0,
            second: number,
        };
        let filter = Box::new(Noting(asked.clone(), number));
        let begun = device.pools.begin(id, filter);
        begun.ok().unwrap();
    }
    device.allocate(MIB, OTHER).unwrap();
    assert_eq!(*asked.lock().unwrap(), [1, 2]);
}
