//! The shared library as programs meet it: loaded, and called through its C names.
//!
//! HIP's names are tested here, since no PyTorch for ROCm can be had; CUDA's are
//! tested with real PyTorch (`python/tests`). One process per test, as nextest
//! runs them, is not assumed: everything that changes the simulator's state is in
//! one test per state.

use std::ffi::{CStr, CString, c_char, c_void};
use std::ptr;

use libloading::Library;

const MIB: usize = 1 << 20;

/// Every HIP function that hip-alloc or a program of its kind calls.
const HIP_FUNCTIONS: [&CStr; 33] = [
    c"hipMalloc",
    c"hipFree",
    c"hipMemGetInfo",
    c"hipHostMalloc",
    c"hipHostFree",
    c"hipHostRegister",
    c"hipHostUnregister",
    c"hipMallocManaged",
    c"hipMallocAsync",
    c"hipFreeAsync",
    c"hipMemcpy",
    c"hipMemcpyAsync",
    c"hipMemset",
    c"hipMemsetAsync",
    c"hipGetDeviceCount",
    c"hipGetDevice",
    c"hipSetDevice",
    c"hipDeviceSynchronize",
    c"hipDeviceGetAttribute",
    c"hipGetDevicePropertiesR0600",
    c"hipStreamCreateWithFlags",
    c"hipStreamDestroy",
    c"hipStreamSynchronize",
    c"hipStreamQuery",
    c"hipEventCreateWithFlags",
    c"hipEventRecord",
    c"hipEventQuery",
    c"hipEventDestroy",
    c"hipGetErrorString",
    c"hipMemAddressReserve",
    c"hipMemCreate",
    c"hipMemMap",
    c"hipMemSetAccess",
];

fn library() -> Library {
    let path = device_sim::install::library_path()
        .expect("cargo builds the shared library with the tests");
    // SAFETY: loading runs no code of ours; the library has no initialisers.
    unsafe { Library::new(path) }.expect("the library loads")
}

/// Calls a C function by name: `call!(library, "hipFree", pointer: u64)`.
macro_rules! call {
    ($library:expr, $name:literal $(, $value:expr => $type:ty)*) => {{
        // SAFETY: the types are those of the function's declaration in HIP's
        // headers, and every pointer is to a live local of the test.
        unsafe {
            let function = $library.get::<unsafe extern "C" fn($($type),*) -> u32>($name.as_bytes()).expect($name);
            function($($value),*)
        }
    }};
}

fn configure(library: &Library, text: &str) {
    let text = CString::new(text).expect("no zero byte in a setting");
    assert_eq!(
        call!(library, "device_sim_control", text.as_ptr() => *const c_char),
        0
    );
}

fn allocate(library: &Library, size: usize) -> Result<u64, u32> {
    let mut pointer = 0_u64;
    match call!(library, "hipMalloc", &mut pointer => *mut u64, size => usize) {
        0 => Ok(pointer),
        status => Err(status),
    }
}

fn free(library: &Library, pointer: u64) -> u32 {
    call!(library, "hipFree", pointer => u64)
}

fn info(library: &Library) -> (usize, usize) {
    let (mut free, mut total) = (0, 0);
    assert_eq!(
        call!(library, "hipMemGetInfo", &mut free => *mut usize, &mut total => *mut usize),
        0
    );
    (free, total)
}

#[test]
fn hip_functions_are_exported() {
    let library = library();
    for name in HIP_FUNCTIONS {
        // SAFETY: the symbol is only looked up.
        let found = unsafe { library.get::<*const c_void>(name.to_bytes()) };
        assert!(found.is_ok(), "{name:?}");
    }
}

#[test]
fn hip_memory_lives_through_its_life() {
    let library = library();
    configure(&library, "capacity=64M; reset_faults");

    // Allocation, copies both ways, and the number left.
    let (free_before, total) = info(&library);
    assert_eq!((free_before, total), (64 * MIB, 64 * MIB));
    let pointer = allocate(&library, MIB).unwrap();
    assert_eq!(info(&library).0, 63 * MIB);
    let sent: Vec<u8> = (0..MIB).map(|index| (index % 251) as u8).collect();
    let mut received = vec![0_u8; MIB];
    let (from, to) = (sent.as_ptr() as u64, received.as_mut_ptr() as u64);
    assert_eq!(
        call!(library, "hipMemcpy", pointer => u64, from => u64, MIB => usize, 1 => i32),
        0
    );
    assert_eq!(
        call!(library, "hipMemcpy", to => u64, pointer => u64, MIB => usize, 2 => i32),
        0
    );
    assert_eq!(sent, received);

    // What cannot be had is refused as HIP refuses it, and named as HIP names it.
    assert_eq!(allocate(&library, 64 * MIB), Err(2));
    // SAFETY: the signature is HIP's, and the result a string constant.
    let name = unsafe {
        let name = library
            .get::<unsafe extern "C" fn(u32) -> *const c_char>(b"hipGetErrorName")
            .unwrap();
        CStr::from_ptr(name(2))
    };
    assert_eq!(name, c"hipErrorOutOfMemory");
    assert_eq!(call!(library, "hipGetLastError"), 2);
    assert_eq!(call!(library, "hipGetLastError"), 0);

    // A configured fault applies to the HIP name, once.
    configure(&library, "fail=*Malloc@1:unknown");
    assert_eq!(allocate(&library, MIB), Err(999));
    free(&library, allocate(&library, MIB).unwrap());
    configure(&library, "reset_faults");

    // Freed once; a second time is an error, and so is reading it.
    assert_eq!((free(&library, pointer), free(&library, pointer)), (0, 1));
    assert_eq!(
        call!(library, "hipMemcpy", to => u64, pointer => u64, 1 => usize, 2 => i32),
        700
    );
    assert_eq!(info(&library).0, 64 * MIB);

    // Work on a stream takes its time, and freeing waits for it.
    configure(&library, "device_time=copy:30ms");
    let pointer = allocate(&library, MIB).unwrap();
    let (mut stream, mut event) = (0_u64, 0_u64);
    assert_eq!(
        call!(library, "hipStreamCreateWithFlags", &mut stream => *mut u64, 1 => u32),
        0
    );
    assert_eq!(
        call!(library, "hipEventCreateWithFlags", &mut event => *mut u64, 2 => u32),
        0
    );
    assert_eq!(
        call!(library, "hipMemsetAsync", pointer => u64, 7 => i32, MIB => usize, stream => u64),
        0
    );
    assert_eq!(
        call!(library, "hipEventRecord", event => u64, stream => u64),
        0
    );
    assert_eq!(call!(library, "hipEventQuery", event => u64), 600);
    assert_eq!(free(&library, pointer), 0);
    assert_eq!(call!(library, "hipEventQuery", event => u64), 0);
    configure(&library, "device_time=copy:0ns");

    // Virtual memory: reserve, create, map, allow, write through a copy, and back.
    let properties: [i32; 8] = [1, 0, 1, 0, 0, 0, 0, 0]; // pinned, no handle type, on device 0
    let access: [i32; 3] = [1, 0, 3]; // device 0 may read and write
    let (mut range, mut handle) = (0_u64, 0_u64);
    let size = 2 * MIB;
    assert_eq!(
        call!(library, "hipMemAddressReserve",
            &mut range => *mut u64, size => usize, 0 => usize, 0 => u64, 0 => u64),
        0
    );
    assert_eq!(
        call!(library, "hipMemCreate",
            &mut handle => *mut u64, size => usize, properties.as_ptr() => *const i32, 0 => u64),
        0
    );
    assert_eq!(
        call!(library, "hipMemMap", range => u64, size => usize, 0 => usize, handle => u64, 0 => u64),
        0
    );
    assert_eq!(
        call!(library, "hipMemcpy", range => u64, from => u64, MIB => usize, 1 => i32),
        700
    );
    assert_eq!(
        call!(library, "hipMemSetAccess", range => u64, size => usize, access.as_ptr() => *const i32, 1 => usize),
        0
    );
    received.fill(0);
    assert_eq!(
        call!(library, "hipMemcpy", range => u64, from => u64, MIB => usize, 1 => i32),
        0
    );
    assert_eq!(
        call!(library, "hipMemcpy", to => u64, range => u64, MIB => usize, 2 => i32),
        0
    );
    assert_eq!(sent, received);
    assert_eq!(info(&library).0, 62 * MIB);
    assert_eq!(
        call!(library, "hipMemUnmap", range => u64, size => usize),
        0
    );
    assert_eq!(call!(library, "hipMemRelease", handle => u64), 0);
    assert_eq!(
        call!(library, "hipMemAddressFree", range => u64, size => usize),
        0
    );
    assert_eq!(info(&library).0, 64 * MIB);

    // The properties are where HIP 6 has them.
    let mut properties = [0_u64; 184];
    assert_eq!(
        call!(library, "hipGetDevicePropertiesR0600", properties.as_mut_ptr() => *mut u64, 0 => i32),
        0
    );
    assert_eq!(properties[288 / 8], 64 * MIB as u64);
    let architecture: Vec<u8> = properties[1160 / 8..]
        .iter()
        .flat_map(|word| word.to_ne_bytes())
        .collect();
    assert_eq!(&architecture[..8], b"gfx1151\0");

    // The report counts it all.
    assert!(report(&library).contains("\"hipMemMap\":1"));
}

fn report(library: &Library) -> String {
    // SAFETY: the signature is the one declared in `control.rs`; with a null
    // buffer nothing is written, and then the buffer has the size asked for.
    unsafe {
        let report = library
            .get::<unsafe extern "C" fn(*mut c_char, usize) -> usize>(b"device_sim_report")
            .expect("device_sim_report");
        let size = report(ptr::null_mut(), 0) + 64;
        let mut buffer = vec![0_u8; size];
        report(buffer.as_mut_ptr().cast(), size);
        CStr::from_bytes_until_nul(&buffer)
            .expect("the report ends")
            .to_string_lossy()
            .into_owned()
    }
}

#[test]
fn an_invalid_setting_is_refused_and_named() {
    let library = library();
    assert_eq!(
        call!(library, "device_sim_control", c"capacity=lots".as_ptr() => *const c_char) as i32,
        -1
    );
}
