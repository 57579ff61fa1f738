//! The driver of GPUs on a simulated runtime: two devices of which the program uses one
//! while the allocator works on the other, and every call of the runtime that may fail.
//!
//! Each test runs once more in a process of its own, which has the simulator preloaded, as
//! a program under PyTorch has its runtime.

#![allow(clippy::unwrap_used, reason = "tests")]

use hip_alloc::allocator::Allocator;
use hip_alloc::config::Config;
use hip_alloc::driver::gpu::GpuDriver;
use hip_alloc::driver::runtime::{Family, Runtime, Search};
use hip_alloc::driver::{Driver, DriverError, MemoryInfo};
use hip_alloc::ffi;
use hip_alloc::pool::PoolConfig;
use hip_alloc::units::{DeviceIndex, KIB, MIB, StreamId};
use libloading::os::unix::Library;
use std::ffi::{CString, c_char, c_int, c_void};
use std::process::Command;
use std::sync::Arc;

/// Says that this is the process with the simulator.
const INSIDE: &str = "HIP_ALLOC_TEST_SIMULATED";

/// The device of the allocator. The threads of the tests use device 0.
const DEVICE: DeviceIndex = DeviceIndex(1);

/// Runs the test `name` in a process with two simulated devices.
fn simulated(name: &str, test: impl FnOnce()) {
    if std::env::var_os(INSIDE).is_some() {
        return test();
    }
    let library = device_sim::install::library_path().expect("cargo builds it with the tests");
    let folder = tempfile::tempdir().unwrap();
    let output = Command::new(std::env::current_exe().unwrap())
        .args([&format!("gpu::{name}"), "--exact", "--nocapture"])
        .envs(device_sim::install::environment(&library, folder.path()).unwrap())
        .env("DEVICE_SIM_DEVICES", "2")
        .env("DEVICE_SIM_CAPACITY", "8G")
        .env(INSIDE, "1")
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{text}{errors}");
    assert!(text.contains("1 passed"), "{text}{errors}");
}

/// Calls a function of the simulator: `call!("hipFree", pointer: u64)`.
macro_rules! call {
    ($name:literal $(, $value:expr => $type:ty)*) => {{
        // SAFETY: the types are those of the function's declaration in HIP's headers (or of
        // the simulator's), and every pointer is to a live local of the test.
        unsafe {
            let function = Library::this().get::<unsafe extern "C" fn($($type),*) -> u32>($name.as_bytes()).unwrap();
            function($($value),*)
        }
    }};
}

fn order(text: &str) {
    let text = CString::new(text).unwrap();
    assert_eq!(
        call!("device_sim_control", text.as_ptr() => *const c_char),
        0
    );
}

/// Runs `act` with the allocator's device as the current one.
fn on_device(act: impl FnOnce()) {
    assert_eq!(call!("hipSetDevice", DEVICE.0 => c_int), 0);
    act();
    assert_eq!(call!("hipSetDevice", 0 => c_int), 0);
}

fn current_device() -> c_int {
    let mut device = -1;
    assert_eq!(call!("hipGetDevice", &mut device => *mut c_int), 0);
    device
}

/// Bytes that the allocator's device has given out.
fn used() -> u64 {
    let (mut free, mut total) = (0, 0);
    on_device(|| {
        let code = call!("hipMemGetInfo", &mut free => *mut usize, &mut total => *mut usize);
        assert_eq!(code, 0);
    });
    (total - free) as u64
}

/// Work on a stream of the allocator's device, as long as `device_time` says.
fn work(address: u64, stream: StreamId) {
    let (memory, stream) = (address as *mut c_void, stream.0 as *mut c_void);
    on_device(|| {
        let code = call!("hipMemsetAsync", memory => *mut c_void, 0 => c_int, 64 => usize, stream => *mut c_void);
        assert_eq!(code, 0);
    });
}

fn stream() -> StreamId {
    let mut stream = std::ptr::null_mut::<c_void>();
    on_device(|| assert_eq!(call!("hipStreamCreate", &mut stream => *mut *mut c_void), 0));
    StreamId(stream as u64)
}

fn driver(device: DeviceIndex) -> GpuDriver {
    let runtime = Runtime::find(Family::Hip, Search::Loaded).unwrap();
    let bound = Box::new(|driver: Result<MemoryInfo, DriverError>| driver);
    GpuDriver::new(Arc::new(runtime), device, bound)
}

#[test]
fn the_default_stream_is_that_of_the_memorys_device() {
    simulated("the_default_stream_is_that_of_the_memorys_device", || {
        order("device_time=copy:1000s");
        let mut ours = driver(DEVICE);
        let address = ours.allocate(MIB).unwrap();
        work(address, StreamId::DEFAULT);
        let event = ours.record(StreamId::DEFAULT).unwrap();
        let event = event.expect("the device is busy, whichever is current");
        assert_eq!(ours.reached(event), Ok(false));
        let mut other = driver(DeviceIndex(0));
        assert_eq!(other.record(StreamId::DEFAULT), Ok(None), "that is idle");
        assert_eq!(current_device(), 0);
    });
}

#[test]
fn memory_is_not_forgotten_when_the_device_before_cannot_be_current_again() {
    let name = "memory_is_not_forgotten_when_the_device_before_cannot_be_current_again";
    simulated(name, || {
        let mut ours = driver(DEVICE);
        order("fail=hipSetDevice@2:unknown");
        let address = ours.allocate(MIB).expect("memory was there");
        order("reset_faults");
        assert_eq!(call!("hipSetDevice", 0 => c_int), 0);
        order("fail=hipSetDevice@2:unknown");
        assert_eq!(ours.release(address, MIB), Ok(()), "it went back");
        order("reset_faults");
        assert_eq!(call!("hipSetDevice", 0 => c_int), 0);
        assert_eq!(used(), 0);
    });
}

/// An allocator without a floor, on a device that is not the current one.
fn allocator() -> Allocator {
    let config = PoolConfig {
        warmup_bytes: 0,
        ..PoolConfig::default()
    };
    let driver = driver(DEVICE);
    Allocator::builder(DEVICE, driver).config(config).build()
}

/// A program that needs every call of the runtime, in which requests may fail.
fn program(allocator: &Allocator, streams: &[StreamId; 3]) {
    let mut live = Vec::new();
    for number in 0..60usize {
        let bytes = [300, 60 * KIB, 3 * MIB, 9 * MIB, 300 * MIB, 70 * MIB][number % 6];
        let (own, other) = (streams[number % 3], streams[(number + 1) % 3]);
        if let Ok(address) = allocator.allocate(bytes, own) {
            live.push(address);
            work(address, own);
            if number % 4 == 1 {
                allocator.record_stream(address, other).unwrap();
                work(address, other);
            }
        }
        if number % 3 == 2 && !live.is_empty() {
            allocator.free(live.swap_remove(number * 5 % live.len()));
        }
        if number % 16 == 15 {
            allocator.trim(0);
            let _ = allocator.memory_info();
        }
    }
    live.into_iter().for_each(|address| allocator.free(address));
}

/// What the allocator calls. (`hipSetDevice`, which the test calls too, has a test above.)
const CALLS: [&str; 10] = [
    "hipGetDevice",
    "hipMalloc",
    "hipFree",
    "hipMemGetInfo",
    "hipStreamQuery",
    "hipEventCreateWithFlags",
    "hipEventRecord",
    "hipEventQuery",
    "hipEventSynchronize",
    "hipDeviceSynchronize",
];

/// What else has to fail so that a call is made: the device is only waited for where an
/// event cannot be had.
fn besides(call: &str) -> &'static str {
    match call {
        "hipDeviceSynchronize" => "hipEventRecord:unknown,",
        _ => "",
    }
}

#[test]
fn the_program_makes_every_call_of_the_runtime() {
    simulated("the_program_makes_every_call_of_the_runtime", || {
        order("device_time=copy:1ms");
        let streams = [StreamId::DEFAULT, stream(), stream()];
        for call in CALLS {
            let allocator = allocator();
            order(&format!(
                "fail={}hipNothing:unknown;reset_counters",
                besides(call)
            ));
            program(&allocator, &streams);
            order("reset_faults");
            assert!(calls_of(call) > 0, "{call}");
            allocator.trim(0);
        }
    });
}

fn calls_of(name: &str) -> u32 {
    let name = CString::new(name).unwrap();
    call!("device_sim_calls", name.as_ptr() => *const c_char)
}

fn survives_failing_calls() {
    order("device_time=copy:30us");
    let streams = [StreamId::DEFAULT, stream(), stream()];
    for call in CALLS {
        for number in [1, 2, 3, 5, 8, 13, 21] {
            for status in ["out_of_memory", "invalid_value", "launch_failure"] {
                for later in ["", "+"] {
                    let allocator = allocator();
                    let besides = besides(call);
                    order(&format!("fail={besides}{call}@{number}{later}:{status}"));
                    program(&allocator, &streams);
                    order("reset_faults");
                    let what = format!("{call}@{number}{later}:{status}");
                    let stats = allocator.stats();
                    assert_eq!(stats.live_allocations, 0, "{what}");
                    assert_eq!(stats.held_bytes, used(), "{what}");
                    let address = allocator.allocate(5 * MIB, streams[0]).expect(&what);
                    allocator.free(address);
                    allocator.trim(0);
                    let stats = allocator.stats();
                    assert_eq!((stats.held_bytes, stats.pending_bytes), (0, 0), "{what}");
                    assert_eq!(used(), 0, "{what}");
                    assert_eq!(current_device(), 0, "{what}");
                }
            }
        }
    }
}

#[test]
fn whichever_call_of_the_runtime_fails_nothing_is_lost() {
    simulated(
        "whichever_call_of_the_runtime_fails_nothing_is_lost",
        survives_failing_calls,
    );
}

#[test]
fn gfx12_needs_a_guard_and_others_do_not() {
    simulated("gfx12_needs_a_guard_and_others_do_not", || {
        for (name, needs) in [
            ("gfx1201", true),
            ("gfx1200", true),
            ("gfx1151", false),
            ("gfx1100", false),
            ("gfx942", false),
        ] {
            order(&format!("architecture={name}"));
            assert_eq!(driver(DEVICE).needs_guard(), needs, "{name}");
        }
    });
}

/// Matrix products in the sizes of a LoRA's backward pass, with operands that fill their requests, while memory
/// comes and goes. Returns how many steps were done before the device was lost.
fn products(settings: &str, steps: u32) -> u32 {
    let driver = driver(DEVICE);
    let config = Config::parse(settings).unwrap();
    let config = config.pool(512, driver.needs_guard());
    let allocator = Allocator::builder(DEVICE, driver).config(config).build();
    let mut handle = 0u64;
    assert_eq!(call!("cublasCreate_v2", &mut handle => *mut u64), 0);
    let mut state = 0x2545_F491_4F6C_DD1Du64;
    let mut draw = |below: u64| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 20) % below
    };
    let mut kept = Vec::new();
    for step in 0..steps {
        // Numbers of whole granules, so that nothing is left at the end of an operand.
        let (m, k) = (128 * (1 + draw(16)) as i32, 64 * (1 + draw(32)) as i32);
        let operands = [(); 2].map(|()| {
            let bytes = 4 * m as u64 * k as u64;
            allocator.allocate(bytes, StreamId::DEFAULT).unwrap()
        });
        let mut lost = false;
        on_device(|| {
            let [a, b] = operands;
            let one = 1.0f32;
            call!("cublasSgemm_v2", handle => u64, 0 => i32, 1 => i32, m => i32, m => i32, k => i32,
                &one => *const f32, a => u64, m => i32, b => u64, m => i32, &one => *const f32, a => u64, m => i32);
            lost = call!("hipDeviceSynchronize") != 0;
        });
        if lost {
            return step;
        }
        kept.extend(operands);
        while kept.len() > 40 {
            allocator.free(kept.swap_remove(draw(40) as usize));
        }
        if step % 50 == 49 {
            allocator.trim(0);
        }
    }
    steps
}

/// The over-read of hipBLASLt's kernels for gfx12, as measured.
const OVERREAD: &str = "architecture=gfx1201;overread=4K";

#[test]
fn kernels_that_read_behind_an_operand_never_fault_on_gfx12() {
    let name = "kernels_that_read_behind_an_operand_never_fault_on_gfx12";
    simulated(name, || {
        order(OVERREAD);
        for settings in ["", "keep:off", "warmup_mb:0,max_split_size_mb:1"] {
            assert_eq!(products(settings, 10_000), 10_000, "{settings}");
        }
    });
}

#[test]
fn without_the_guard_they_do() {
    simulated("without_the_guard_they_do", || {
        order(OVERREAD);
        assert!(products("guard:off", 1000) < 1000);
        order("reset_faults;architecture=gfx1151");
        assert!(products("", 1000) < 1000, "another card has none");
    });
}

/// Which devices have a context, which takes hundreds of megabytes of a real one.
fn contexts() -> Vec<bool> {
    let mut report = vec![0u8; 1 << 16];
    let (start, size) = (report.as_mut_ptr().cast(), report.len());
    let length = call!("device_sim_report", start => *mut c_char, size => usize);
    let text = String::from_utf8_lossy(&report[..length as usize]);
    let after = text.split("\"context\":").skip(1);
    after.map(|rest| rest.starts_with("true")).collect()
}

/// PyTorch's `empty_cache` and `memory_summary` ask about every device of the machine.
#[test]
fn only_requests_open_a_device() {
    simulated("only_requests_open_a_device", || {
        let size = size_of::<ffi::HipAllocStats>();
        let held = |device| {
            let mut stats = ffi::HipAllocStats::default();
            // SAFETY: the structure has the size that is said, and is written before it is read.
            assert_eq!(unsafe { ffi::hip_alloc_stats(device, &mut stats, size) }, 0);
            (stats.held_bytes > 0, stats.capacity_bytes)
        };
        let ask = || {
            for device in [0, DEVICE.0] {
                assert_eq!(ffi::hip_alloc_trim(device, 0), 0);
                assert_eq!(ffi::hip_alloc_reset_peaks(device), 0);
                assert_eq!(ffi::hip_alloc_set_memory_fraction(device, 0.5), 0);
                held(device);
            }
        };
        ask();
        assert_eq!((held(0), held(1)), ((false, 0), (false, 0)));
        assert_eq!(contexts(), [false, false]);
        let address = ffi::hip_alloc_malloc(MIB as usize, DEVICE.0, std::ptr::null_mut());
        ask();
        assert_eq!(contexts(), [false, true]);
        let half = memory_of(DEVICE.0).1;
        assert_eq!(half, 4 << 30, "what was set before it was opened holds");
        assert_eq!((held(0), held(1)), ((false, 0), (true, 4 << 30)));
        ffi::hip_alloc_free(address, MIB as usize, DEVICE.0, std::ptr::null_mut());
        assert_eq!(ffi::hip_alloc_trim(DEVICE.0, 0), 0);
        assert_eq!(used(), 0);
    });
}

/// Free and total bytes, according to the library.
fn memory_of(device: c_int) -> (usize, usize) {
    let (mut free, mut total) = (0, 0);
    // SAFETY: both are live locals.
    let code = unsafe { ffi::hip_alloc_mem_info(device, &mut free, &mut total) };
    assert_eq!(code, 0);
    (free, total)
}
