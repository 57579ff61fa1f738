//! Many threads at once: through the C interface on memory that is really written, and on
//! a simulated device whose streams take their time.
//!
//! `cargo xtask test --heavy` runs this under ThreadSanitizer and AddressSanitizer too.

#![allow(clippy::unwrap_used, reason = "tests")]

mod random;

use hip_alloc::allocator::Allocator;
use hip_alloc::driver::sim::{SimConfig, SimDriver};
use hip_alloc::ffi;
use hip_alloc::units::{DeviceIndex, MIB, StreamId};
use random::Random;
use std::ffi::{CStr, CString, c_void};
use std::os::unix::ffi::OsStrExt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

const THREADS: u64 = 4;
/// Under a sanitizer every operation takes tens of times as long.
const ROUNDS: u64 = if cfg!(surefoot_sanitizer) {
    2_000
} else {
    20_000
};

/// Mostly small, sometimes beyond what is served from blocks.
fn any_size(random: &mut Random) -> u64 {
    match random.below(64) {
        0 => 0,
        1 => 1 + random.below(40 * MIB),
        2..8 => 1 + random.below(MIB),
        _ => 1 + random.below(4096),
    }
}

fn allocator(sim: SimConfig) -> Allocator {
    Allocator::builder(DeviceIndex(0), SimDriver::new(sim)).build()
}

/// Where threads leave what others are to free: a number that is not 0 in each place.
///
/// Atomics, since they are compiled with this test: what the standard library's channels
/// do is invisible to ThreadSanitizer.
struct Exchange([AtomicU64; 32]);

impl Exchange {
    fn new() -> Exchange {
        Exchange([const { AtomicU64::new(0) }; 32])
    }

    /// Leaves `mine` in some place, and takes what was there.
    fn swap(&self, random: &mut Random, mine: u64) -> Option<u64> {
        let place = &self.0[random.below(32) as usize];
        Some(place.swap(mine, Ordering::AcqRel)).filter(|other| *other != 0)
    }

    /// What is left.
    fn drain(&self) -> impl Iterator<Item = u64> {
        let all = self.0.iter().map(|place| place.swap(0, Ordering::AcqRel));
        all.filter(|other| *other != 0)
    }
}

/// Runs `work` on some threads, each with its number, and adds up what it returns.
fn on_threads(work: impl Fn(u64) -> u64 + Sync) -> u64 {
    let work = &work;
    thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS)
            .map(|number| scope.spawn(move || work(number)))
            .collect();
        let ended = threads.into_iter().map(|thread| thread.join().unwrap());
        ended.sum()
    })
}

/// What one thread does, leaving some of what it allocates for others to free.
fn churn(allocator: &Allocator, exchange: &Exchange, seed: u64) -> u64 {
    let mut random = Random(0x9e37_79b9 + seed);
    let mut live: Vec<u64> = Vec::new();
    let mut refused = 0;
    for _ in 0..ROUNDS {
        match random.below(16) {
            0..8 => match allocator.allocate(any_size(&mut random), StreamId(random.below(4))) {
                Ok(address) => live.push(address),
                Err(_) => refused += 1,
            },
            8 => {
                if let Some(address) = live.last() {
                    allocator
                        .record_stream(*address, StreamId(random.below(4)))
                        .unwrap();
                }
            }
            9 => match random.below(32) {
                0 => allocator.trim(random.below(512) * MIB),
                1 => allocator.reset_peaks(),
                2 => drop(allocator.snapshot()),
                _ => {
                    let (stats, info) = (allocator.stats(), allocator.memory_info().unwrap());
                    assert!(stats.live_bytes <= stats.held_bytes);
                    assert!(info.free <= info.total);
                }
            },
            number if !live.is_empty() => {
                let place = random.below(live.len() as u64) as usize;
                let address = live.swap_remove(place);
                if number < 12 {
                    let theirs = exchange.swap(&mut random, address);
                    theirs
                        .into_iter()
                        .for_each(|address| allocator.free(address));
                } else {
                    allocator.free(address);
                }
            }
            _ => {}
        }
    }
    live.into_iter().for_each(|address| allocator.free(address));
    refused
}

fn churn_on_threads(allocator: &Allocator) -> u64 {
    let exchange = Exchange::new();
    let refused = on_threads(|number| churn(allocator, &exchange, number));
    exchange.drain().for_each(|address| allocator.free(address));
    let stats = allocator.stats();
    assert_eq!((stats.live_bytes, stats.live_allocations), (0, 0));
    assert_eq!(stats.allocations, stats.frees);
    assert_eq!(stats.out_of_memory, refused);
    refused
}

#[test]
fn threads_and_streams_leave_nothing_behind() {
    let allocator = allocator(SimConfig {
        capacity: 64 << 30,
        polls_per_event: 3,
        ..SimConfig::default()
    });
    assert_eq!(churn_on_threads(&allocator), 0);
    allocator.trim(0);
    assert_eq!(allocator.stats().held_bytes, 0);
}

#[test]
fn threads_that_run_out_of_memory_leave_nothing_behind() {
    let allocator = allocator(SimConfig {
        capacity: 200 * MIB,
        polls_per_event: 3,
        ..SimConfig::default()
    });
    assert!(
        churn_on_threads(&allocator) > 0,
        "the device was to be too small"
    );
    allocator.trim(0);
    assert_eq!(allocator.stats().held_bytes, 0);
}

const DEVICES: [i32; 4] = [-1, 0, 1, 2];
/// Those of the test that asks and changes everything meanwhile.
const WATCHED: [i32; 3] = [3, 4, 5];
/// The one that stacks are named with, meanwhile and in other tests.
const NAMING: i32 = 6;

/// An allocation whose every byte says whose it is. One number says all about it: the
/// address in the upper 48 bits, and below it a number from which size, device and mark
/// follow.
struct Marked(u64);

impl Marked {
    fn new(kind: u64, stream: u64) -> Marked {
        let marked = Marked(kind);
        let bytes = marked.bytes();
        let address = ffi::hip_alloc_malloc(bytes, marked.device(), stream as *mut c_void);
        // SAFETY: the allocation is ours, of that many bytes, in memory of the host.
        unsafe { address.cast::<u8>().write_bytes(marked.mark(), bytes) };
        Marked((address as u64) << 16 | kind)
    }

    /// Frees it; panics unless it still is as it was written.
    fn end(self) {
        let address = (self.0 >> 16) as *mut c_void;
        // SAFETY: allocated and written in `new`, and freed only below.
        let bytes = unsafe { std::slice::from_raw_parts(address.cast::<u8>(), self.bytes()) };
        assert!(bytes.iter().all(|byte| *byte == self.mark()));
        ffi::hip_alloc_free(address, self.bytes(), self.device(), std::ptr::null_mut());
    }

    fn kind(&self) -> usize {
        (self.0 & 0xffff) as usize
    }

    fn bytes(&self) -> usize {
        // Up to 16 KiB, and one in 256 up to 8 MiB.
        let large = if self.kind().is_multiple_of(256) {
            512
        } else {
            1
        };
        self.kind() / 4 * large
    }

    fn device(&self) -> i32 {
        DEVICES[self.kind() % 4]
    }

    fn mark(&self) -> u8 {
        (self.kind() % 251) as u8
    }
}

/// Without a GPU runtime in the process every device is host memory, so the bytes can be
/// looked at: two allocations that overlap, on whatever device, are seen. The first
/// requests of all threads come at once, so this is also a race for making the allocators.
#[test]
fn threads_never_share_memory_that_they_did_not_share() {
    let exchange = Exchange::new();
    on_threads(|number| {
        let mut random = Random(77 + number);
        let mut live: Vec<Marked> = Vec::new();
        for _ in 0..ROUNDS {
            if live.len() < 200 && random.below(2) == 0 {
                live.push(Marked::new(random.below(1 << 16), random.below(3)));
            } else if !live.is_empty() {
                let marked = live.swap_remove(random.below(live.len() as u64) as usize);
                match random.below(4) {
                    0 => {
                        let theirs = exchange.swap(&mut random, marked.0);
                        theirs.map(Marked).into_iter().for_each(Marked::end);
                    }
                    _ => marked.end(),
                }
            }
        }
        live.into_iter().for_each(Marked::end);
        0
    });
    exchange.drain().map(Marked).for_each(Marked::end);
    for device in DEVICES {
        let mut stats = ffi::HipAllocStats::default();
        // SAFETY: a live local of the size given.
        let code = unsafe { ffi::hip_alloc_stats(device, &mut stats, size_of_val(&stats)) };
        assert_eq!((code, stats.live_bytes, stats.pending_bytes), (0, 0, 0));
        assert_eq!(stats.allocations, stats.frees);
        assert!(stats.allocations > 0);
    }
}

/// Names where a thread is, and needs memory itself to do so.
extern "C" fn name_stack() -> u64 {
    let note = ffi::hip_alloc_malloc(64, NAMING, std::ptr::null_mut());
    ffi::hip_alloc_free(note, 64, NAMING, std::ptr::null_mut());
    77
}

/// What a program may ask and change while others allocate: each function of the interface
/// in turn, on each device.
fn ask_and_change(random: &mut Random, snapshot: &CStr) {
    let device = WATCHED[random.below(3) as usize];
    let code = match random.below(16) {
        0 => ffi::hip_alloc_trim(device, random.below(64 * MIB) as usize),
        1 => ffi::hip_alloc_reset_peaks(device),
        2 => ffi::hip_alloc_record_history(random.below(3) as usize * 100),
        3 => ffi::hip_alloc_set_memory_fraction(device, 1.0 - random.below(2) as f64 / 64.0),
        // SAFETY: a string that ends with a zero.
        4 => unsafe { ffi::hip_alloc_snapshot(snapshot.as_ptr()) },
        5 => {
            let named = name_stack as extern "C" fn() -> u64;
            ffi::stacks::hip_alloc_record_stacks((random.below(2) == 0).then_some(named))
        }
        6..8 => {
            let (mut free, mut total) = (0, 0);
            // SAFETY: two live locals.
            let code = unsafe { ffi::hip_alloc_mem_info(device, &mut free, &mut total) };
            assert!(free <= total);
            code
        }
        _ => {
            let mut stats = ffi::HipAllocStats::default();
            // SAFETY: a live local of the size given.
            let code = unsafe { ffi::hip_alloc_stats(device, &mut stats, size_of_val(&stats)) };
            assert!(stats.live_bytes <= stats.held_bytes);
            assert_eq!(stats.allocations - stats.frees, stats.live_allocations);
            code
        }
    };
    assert_eq!(code, 0);
}

/// Two threads allocate, use each other's streams and free what the other made; two ask
/// and change all that the interface lets them.
#[test]
fn everything_may_be_asked_and_changed_meanwhile() {
    let folder = tempfile::tempdir().unwrap();
    let snapshot = folder.path().join("snapshot.pickle");
    let name = CString::new(snapshot.as_os_str().as_bytes()).unwrap();
    let exchange = Exchange::new();
    // The address in the upper 48 bits, the device below it.
    let free = |kept: u64| {
        let address = (kept >> 16) as *mut c_void;
        ffi::hip_alloc_free(address, 0, (kept & 0xffff) as i32, std::ptr::null_mut());
    };
    on_threads(|number| {
        let mut random = Random(1234 + number);
        let mut live = Vec::new();
        for _ in 0..ROUNDS {
            if number >= 2 {
                // Rarely: a snapshot or a trim takes as long as hundreds of requests.
                if random.below(16) == 0 {
                    ask_and_change(&mut random, &name);
                }
                continue;
            }
            let device = WATCHED[random.below(3) as usize];
            match random.below(8) {
                0..4 => {
                    let stream = random.below(4) as *mut c_void;
                    let address =
                        ffi::hip_alloc_malloc(any_size(&mut random) as usize, device, stream);
                    live.push((address as u64) << 16 | device as u64);
                }
                4 => {
                    if let Some(kept) = live.last() {
                        let stream = random.below(4) as *mut c_void;
                        ffi::hip_alloc_record_stream((kept >> 16) as *mut c_void, stream);
                    }
                }
                _ if !live.is_empty() => {
                    let kept = live.swap_remove(random.below(live.len() as u64) as usize);
                    exchange.swap(&mut random, kept).into_iter().for_each(free);
                }
                _ => {}
            }
        }
        live.into_iter().for_each(free);
        0
    });
    exchange.drain().for_each(free);
    assert!(std::fs::read(&snapshot).unwrap().len() > 100);
    for device in WATCHED {
        let mut stats = ffi::HipAllocStats::default();
        // SAFETY: a live local of the size given.
        let code = unsafe { ffi::hip_alloc_stats(device, &mut stats, size_of_val(&stats)) };
        assert_eq!((code, stats.live_bytes, stats.pending_bytes), (0, 0, 0));
        assert_eq!(stats.allocations, stats.frees);
        assert!(stats.allocations > 0);
    }
}
