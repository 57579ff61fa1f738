//! Many threads in the simulator at once, in this process: the sanitizers look on
//! (`cargo xtask test --heavy`), and what is held at the end is what was held before.

use std::ffi::{c_char, c_void};
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

// Linked for its C functions.
use device_sim as _;

// SAFETY: the signatures are those of HIP's headers and, for the settings, of `control.rs`.
unsafe extern "C" {
    fn hipMalloc(pointer: *mut u64, size: usize) -> u32;
    fn hipFree(pointer: u64) -> u32;
    fn hipMallocAsync(pointer: *mut u64, size: usize, stream: u64) -> u32;
    fn hipFreeAsync(pointer: u64, stream: u64) -> u32;
    fn hipHostMalloc(pointer: *mut u64, size: usize, flags: u32) -> u32;
    fn hipHostFree(pointer: u64) -> u32;
    fn hipMemcpyAsync(to: u64, from: u64, size: usize, kind: i32, stream: u64) -> u32;
    fn hipMemsetAsync(to: u64, value: i32, size: usize, stream: u64) -> u32;
    fn hipStreamCreateWithFlags(stream: *mut u64, flags: u32) -> u32;
    fn hipStreamSynchronize(stream: u64) -> u32;
    fn hipStreamDestroy(stream: u64) -> u32;
    fn hipEventCreateWithFlags(event: *mut u64, flags: u32) -> u32;
    fn hipEventRecord(event: u64, stream: u64) -> u32;
    fn hipEventSynchronize(event: u64) -> u32;
    fn hipEventDestroy(event: u64) -> u32;
    fn hipStreamWaitEvent(stream: u64, event: u64, flags: u32) -> u32;
    fn hipLaunchHostFunc(
        stream: u64,
        function: unsafe extern "C" fn(*mut c_void),
        data: *mut c_void,
    ) -> u32;
    fn hipMemGetInfo(free: *mut u64, total: *mut u64) -> u32;
    fn device_sim_control(settings: *const c_char) -> i32;
}

const THREADS: u64 = 4;
const ROUNDS: u64 = 200;
const SIZE: usize = 1 << 16;

/// How often [`count`] was called.
static CALLED: AtomicU64 = AtomicU64::new(0);

/// Counts itself, and writes what the copy behind it is to find.
unsafe extern "C" fn count(data: *mut c_void) {
    CALLED.fetch_add(1, Ordering::Relaxed);
    // SAFETY: `data` is the thread's pinned memory, which it does not touch until it has waited.
    unsafe {
        let byte = data.cast::<u8>();
        *byte = (*byte).wrapping_add(1);
    }
}

fn ok(status: u32) {
    assert_eq!(status, 0);
}

fn free_bytes() -> u64 {
    let (mut free, mut total) = (0, 0);
    // SAFETY: both pointers are to live locals.
    ok(unsafe { hipMemGetInfo(&mut free, &mut total) });
    free
}

/// One thread's rounds: each sends a number through a device and back, in stream order.
fn rounds(thread: u64) {
    // SAFETY: every pointer is to a live local or to memory that the simulator gave, and no
    // pinned byte is touched before the stream that uses it was waited for.
    unsafe {
        let (mut stream, mut other, mut event, mut pinned, mut back) = (0, 0, 0, 0, 0);
        ok(hipStreamCreateWithFlags(&mut other, 1));
        ok(hipHostMalloc(&mut pinned, SIZE, 0));
        ok(hipHostMalloc(&mut back, SIZE, 0));
        for round in 0..ROUNDS {
            let (mut lasting, mut passing) = (0, 0);
            ok(hipStreamCreateWithFlags(&mut stream, 1));
            ok(hipEventCreateWithFlags(&mut event, 2));
            ok(hipMalloc(&mut lasting, SIZE));
            ok(hipMallocAsync(&mut passing, SIZE, stream));
            ok(hipMemsetAsync(passing, 9, SIZE, stream));
            ok(hipLaunchHostFunc(stream, count, pinned as *mut c_void));
            ok(hipMemcpyAsync(lasting, pinned, SIZE, 1, stream));
            ok(hipEventRecord(event, stream));
            ok(hipStreamWaitEvent(other, event, 0));
            ok(hipMemcpyAsync(back, lasting, SIZE, 2, other));
            ok(hipFreeAsync(passing, stream));
            ok(hipStreamDestroy(stream));
            ok(hipEventSynchronize(event));
            ok(hipStreamSynchronize(other));
            let arrived = *(back as *const u8);
            assert_eq!(u64::from(arrived), (round + 1) % 256, "thread {thread}");
            ok(hipEventDestroy(event));
            ok(hipFree(lasting));
            if round % 50 == thread {
                let settings = c"device_time=copy:20us;reset_counters;latency=*Nothing:1ns";
                assert_eq!(device_sim_control(settings.as_ptr()), 0);
            }
        }
        ok(hipHostFree(pinned));
        ok(hipHostFree(back));
        ok(hipStreamDestroy(other));
    }
}

#[test]
fn threads_share_a_device_and_lose_nothing() {
    let before = free_bytes();
    thread::scope(|scope| {
        // Joined one by one: how a scope waits for the rest is the standard library's own,
        // which ThreadSanitizer does not see.
        let threads: Vec<_> = (0..THREADS)
            .map(|number| scope.spawn(move || rounds(number)))
            .collect();
        for thread in threads {
            assert!(thread.join().is_ok());
        }
    });
    assert_eq!(CALLED.load(Ordering::Relaxed), THREADS * ROUNDS);
    assert_eq!(free_bytes(), before);
}
