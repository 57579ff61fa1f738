//! Private pools, memory that is kept and goes back, forks and the end of the process, while many
//! threads allocate: through the C interface, on memory that is really written.
//!
//! Without a GPU runtime in the process every device is host memory, so the bytes can be looked at. `cargo
//! xtask test --heavy` runs this under ThreadSanitizer and AddressSanitizer too.

#![allow(clippy::unwrap_used, reason = "tests")]

mod random;

use hip_alloc::ffi::{self, pools};
use hip_alloc::units::{MIB, PoolId};
use random::Random;
use std::ffi::{CString, c_int, c_void};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Command;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// Threads that allocate, each for two streams: one whose requests go to a pool, and one without.
const THREADS: u64 = 4;
const ROUNDS: u64 = if cfg!(surefoot_sanitizer) { 400 } else { 4_000 };
/// So often all threads stop, and are watched until they are at their floor.
const PAUSES: usize = 2;
const DEVICES: [c_int; 2] = [0, 1];
/// The most that may be held beyond the live memory then: the floor of the host.
const FLOOR: u64 = 4 * MIB;
/// One that all threads have. Requests for one stream go there, of whichever thread, while
/// some thread says so.
const SHARED: PoolId = PoolId {
    first: 0,
    second: 99,
};
const SHARED_STREAM: u64 = 1000;
/// For each device, whether a thread says so now.
static SHARED_BEGUN: [AtomicBool; 2] = [const { AtomicBool::new(false) }; 2];
/// Set for the process that ends while it works.
const ENDS: &str = "HIP_ALLOC_TEST_ENDS";

/// `filter_of_stream` of a library that is built from `filters.cpp`.
///
/// Called before threads start: ThreadSanitizer does not see what a `OnceLock` waits for, since the
/// standard library comes without it.
fn filter_function() -> usize {
    static FUNCTION: OnceLock<usize> = OnceLock::new();
    *FUNCTION.get_or_init(|| {
        let folder = tempfile::tempdir().unwrap();
        let library = folder.path().join("filters.so");
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/cpp/filters.cpp");
        let compiled = Command::new("c++")
            .args([
                "-std=c++17",
                "-O1",
                "-Wall",
                "-Werror",
                "-shared",
                "-fPIC",
                "-o",
            ])
            .args([&library, &source])
            .status();
        assert!(compiled.unwrap().success());
        let library = CString::new(library.as_os_str().as_bytes()).unwrap();
        // SAFETY: strings that end with a zero; the library has no initialisers of its own.
        unsafe {
            let handle = libc::dlopen(library.as_ptr(), libc::RTLD_NOW);
            let function = libc::dlsym(handle, c"filter_of_stream".as_ptr()) as usize;
            assert_ne!(function, 0, "the test's own library");
            function
        }
    })
}

/// A `std::function` that takes the requests for one stream; `function` makes it.
fn filter(function: usize, stream: u64) -> *const c_void {
    // SAFETY: the function that `filters.cpp` defines, with that type.
    unsafe {
        let make: extern "C" fn(*mut c_void) -> *const c_void = std::mem::transmute(function);
        make(stream as *mut c_void)
    }
}

/// An allocation whose bytes say whose it is.
#[derive(Clone, Copy)]
struct Marked {
    address: u64,
    bytes: u64,
    device: c_int,
    mark: u8,
}

impl Marked {
    fn new(bytes: u64, device: c_int, stream: u64, mark: u8) -> Self {
        let address = ffi::hip_alloc_malloc(bytes as usize, device, stream as *mut c_void);
        let marked = Marked {
            address: address as u64,
            bytes,
            device,
            mark,
        };
        for at in marked.places() {
            // SAFETY: inside the allocation, which is ours and memory of the host.
            unsafe { address.cast::<u8>().add(at).write(mark) };
        }
        marked
    }

    /// Some bytes at both ends and between.
    fn places(&self) -> impl Iterator<Item = usize> + use<> {
        let bytes = self.bytes as usize;
        let step = (bytes / 64).max(1);
        (0..bytes).step_by(step).chain([bytes - 1])
    }

    fn is_intact(&self) -> bool {
        let address = self.address as *const u8;
        // SAFETY: as above; it is live until `end`.
        (self.places()).all(|at| unsafe { address.add(at).read() } == self.mark)
    }

    fn end(self) {
        assert!(self.is_intact(), "{} bytes were written over", self.bytes);
        let address = self.address as *mut c_void;
        ffi::hip_alloc_free(address, 0, self.device, std::ptr::null_mut());
    }
}

/// What one thread does with a device until it has gone through its rounds.
fn work(number: u64, seed: u64, function: usize) {
    let mut random = Random(0x1234_5678 + 977 * seed + number);
    let (outside, inside) = (2 * number + 1, 2 * number + 2);
    let own = PoolId {
        first: number + 1,
        second: 0,
    };
    let takes_inside = filter(function, inside);
    let takes_shared = filter(function, SHARED_STREAM);
    let mut live: Vec<Marked> = Vec::new();
    for round in 0..ROUNDS {
        let device = DEVICES[random.below(2) as usize];
        match random.below(64) {
            // A program's own pool, as a capture uses it.
            0..4 => {
                // SAFETY: the address of a `std::function` that is never destroyed.
                unsafe { pools::hip_alloc_begin_allocate_to_pool(device, own, takes_inside) };
                for _ in 0..random.below(12) {
                    let bytes = 1 + random.below(300_000);
                    live.push(Marked::new(bytes, device, inside, random.below(256) as u8));
                    if random.below(3) == 0 {
                        live.swap_remove(random.below(live.len() as u64) as usize)
                            .end();
                    }
                }
                pools::hip_alloc_end_allocate_to_pool(device, own);
                pools::hip_alloc_release_pool(device, own);
            }
            4..6 if !SHARED_BEGUN[device as usize].swap(true, Ordering::AcqRel) => {
                // SAFETY: as above.
                unsafe { pools::hip_alloc_begin_allocate_to_pool(device, SHARED, takes_shared) };
                thread::yield_now();
                for _ in 0..random.below(8) {
                    let bytes = 1 + random.below(300_000);
                    live.push(Marked::new(bytes, device, SHARED_STREAM, 3));
                }
                pools::hip_alloc_end_allocate_to_pool(device, SHARED);
                SHARED_BEGUN[device as usize].store(false, Ordering::Release);
                pools::hip_alloc_release_pool(device, SHARED);
            }
            6 => assert_eq!(pools::hip_alloc_retain_pool(device, SHARED, 1), 0),
            7 if pools::hip_alloc_pool_users(device, SHARED) > THREADS as c_int => {
                pools::hip_alloc_release_pool(device, SHARED);
            }
            // A step, whose memory is kept for the next.
            8..10 => {
                let marks = 0..4 + random.below(12);
                let step: Vec<Marked> = marks
                    .map(|mark| Marked::new(4 * MIB, device, outside, mark as u8))
                    .collect();
                step.into_iter().for_each(Marked::end);
            }
            10 if round % 16 == 0 => {
                assert_eq!(
                    ffi::hip_alloc_trim(device, random.below(64 * MIB) as usize),
                    0
                );
            }
            11 => {
                let stats = stats(device);
                assert!(stats.live_bytes <= stats.held_bytes);
            }
            _ if live.len() < 40 => {
                let bytes = 1 + random.below(20_000);
                let stream = match random.below(8) {
                    0 => SHARED_STREAM,
                    _ => outside,
                };
                live.push(Marked::new(bytes, device, stream, random.below(256) as u8));
            }
            _ => {
                live.swap_remove(random.below(live.len() as u64) as usize)
                    .end();
            }
        }
    }
    live.into_iter().for_each(Marked::end);
}

fn stats(device: c_int) -> ffi::HipAllocStats {
    let mut stats = ffi::HipAllocStats::default();
    // SAFETY: a live local of the size given.
    let code = unsafe { ffi::hip_alloc_stats(device, &mut stats, size_of_val(&stats)) };
    assert_eq!(code, 0);
    stats
}

/// Tells all allocators of host memory that another process needs some, as such a process would.
fn announce_need(number: u64) {
    // SAFETY: it has no preconditions.
    let user = unsafe { libc::geteuid() };
    let path = format!("/dev/shm/hip-alloc.{user}.host");
    let file = std::fs::OpenOptions::new().write(true).open(path).unwrap();
    let mut record = [0; 16];
    record[..8].copy_from_slice(&u64::MAX.to_le_bytes());
    record[8..].copy_from_slice(&number.to_le_bytes());
    file.write_all_at(&record, 0).unwrap();
}

/// A child of this process, forked while others are inside, allocates with what it inherited.
fn fork_a_child(parents: &Marked) {
    // SAFETY: the child only calls the library, which is made for that, and `_exit`.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let mut well = parents.is_intact();
        for device in DEVICES {
            let mine = Marked::new(10_000, device, 77, 5);
            well &= mine.is_intact() && stats(device).live_bytes >= 10_000;
            mine.end();
        }
        // SAFETY: ends the child, without the parent's handlers.
        unsafe { libc::_exit(i32::from(!well)) };
    }
    assert!(child > 0);
    let mut status = 0;
    // SAFETY: waits for the child above; the status is a live local.
    let waited = unsafe { libc::waitpid(child, &mut status, 0) };
    assert_eq!((waited, status), (child, 0), "the child's end");
}

/// Threads work; another process needs memory now and then; children are forked meanwhile.
fn work_disturbed(seed: u64) {
    let kept = Marked::new(1 << 20, DEVICES[0], 0, 0x77);
    let working = AtomicU64::new(THREADS);
    let function = filter_function();
    thread::scope(|scope| {
        for number in 0..THREADS {
            let working = &working;
            scope.spawn(move || {
                work(number, seed, function);
                working.fetch_sub(1, Ordering::AcqRel);
            });
        }
        let mut disturbed = 0;
        while working.load(Ordering::Acquire) > 0 || disturbed < 3 {
            announce_need(seed << 32 | disturbed);
            fork_a_child(&kept);
            disturbed += 1;
            thread::sleep(Duration::from_millis(30));
        }
    });
    kept.end();
}

#[test]
fn pools_forks_and_what_is_given_back_meanwhile_leave_nothing_behind() {
    for pause in 0..PAUSES {
        for device in DEVICES {
            assert_eq!(pools::hip_alloc_retain_pool(device, SHARED, 0), 0);
        }
        work_disturbed(pause as u64);
        for device in DEVICES {
            while pools::hip_alloc_pool_users(device, SHARED) > 0 {
                pools::hip_alloc_release_pool(device, SHARED);
            }
        }
        let began = Instant::now();
        let held = || DEVICES.map(|device| stats(device).held_bytes);
        let wait = || {
            assert!(began.elapsed() < Duration::from_secs(60), "{:?}", held());
            thread::sleep(Duration::from_millis(50));
        };
        // More than is always kept, so that there is something to give back. After the last need was
        // announced, nothing is kept until the next check.
        for device in DEVICES {
            while stats(device).held_bytes <= FLOOR {
                wait();
                let step = (0..16).map(|mark| Marked::new(4 * MIB, device, 3, mark));
                let step: Vec<Marked> = step.collect();
                step.into_iter().for_each(Marked::end);
            }
        }
        // A second after the last request, and some for a machine that is busy.
        while held().iter().any(|held| *held > FLOOR) {
            wait();
        }
    }
    for device in DEVICES {
        let stats = stats(device);
        assert_eq!((stats.live_bytes, stats.pending_bytes), (0, 0));
        assert_eq!(stats.allocations, stats.frees);
        assert!(stats.allocations > 0 && stats.give_backs >= PAUSES as u64);
    }
}

#[test]
fn a_process_that_ends_while_threads_are_inside_ends_well() {
    if std::env::var_os(ENDS).is_some() {
        return;
    }
    for seed in 0..3 {
        let output = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "ends_while_threads_are_inside", "--nocapture"])
            .env(ENDS, seed.to_string())
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{}: {said}", output.status);
        assert_eq!(said, "");
    }
}

/// Only in a process of its own, which it ends.
#[test]
fn ends_while_threads_are_inside() {
    let Some(seed) = std::env::var_os(ENDS) else {
        return;
    };
    let seed: u64 = seed.to_str().unwrap().parse().unwrap();
    let function = filter_function();
    for number in 0..THREADS {
        thread::spawn(move || {
            loop {
                work(number, seed, function);
            }
        });
    }
    // Until something is kept, so that there is a thread that looks after it.
    let operations = || {
        DEVICES
            .map(|device| stats(device).frees)
            .iter()
            .sum::<u64>()
    };
    while operations() < 500 {
        thread::sleep(Duration::from_millis(1));
    }
    std::process::exit(0);
}
