//! Private pools: what PyTorch tells its allocator about captures and memory pools.

use super::{ERROR_ARGUMENT, ERROR_DRIVER, OK, failed, throw, with_existing, with_open};
use crate::allocator::{Allocator, CannotBegin};
use crate::device_pools::Filter;
use crate::refusal::Refusal;
use crate::registry;
use crate::units::{DeviceIndex, PoolId, StreamId};
use std::ffi::{CStr, c_char, c_int, c_void};

unsafe extern "C" {
    /// `cpp/pools.cpp`: a copy of a `std::function<bool(stream)>`, or null. Never throws.
    fn hip_alloc_copy_filter(filter: *const c_void) -> *mut c_void;
    /// Frees such a copy.
    fn hip_alloc_drop_filter(filter: *mut c_void);
    /// Calls it: 1, 0, or -1 with the reason in `message`. Never throws.
    fn hip_alloc_ask_filter(
        filter: *const c_void,
        stream: *mut c_void,
        message: *mut c_char,
        size: usize,
    ) -> c_int;
}

/// A copy of PyTorch's `std::function`.
struct PytorchFilter(*mut c_void);

// SAFETY: called in the thread of each request, and destroyed in any: the header demands of a filter
// that it owns nothing that belongs to one thread. PyTorch's compare a thread's or a stream's name, or
// ask the runtime for the capture of a stream. All access goes through `&mut self`.
unsafe impl Send for PytorchFilter {}

impl Filter for PytorchFilter {
    fn takes(&mut self, stream: StreamId) -> Result<bool, String> {
        let mut message: [c_char; 512] = [0; 512];
        // SAFETY: the pointer is to our own copy, which lives until it is dropped; as many bytes
        // as are said may be written to the local.
        let answer = unsafe {
            hip_alloc_ask_filter(
                self.0,
                stream.0 as *mut c_void,
                message.as_mut_ptr(),
                message.len(),
            )
        };
        if answer >= 0 {
            return Ok(answer != 0);
        }
        // SAFETY: all zeros at first, and whoever wrote there ended with a zero within the size.
        let message = unsafe { CStr::from_ptr(message.as_ptr()) };
        Err(message.to_string_lossy().into_owned())
    }
}

impl Drop for PytorchFilter {
    fn drop(&mut self) {
        // SAFETY: `hip_alloc_copy_filter` gave it, and it is dropped once.
        unsafe { hip_alloc_drop_filter(self.0) };
    }
}

/// Directs requests that the filter accepts to a pool, until `hip_alloc_end_allocate_to_pool`.
/// Throws a C++ exception if they already are.
///
/// # Safety
/// `filter` is null, or the address of a `std::function` that takes one pointer and returns a
/// `bool`, which lives through the call. A C++ caller that passes one by value does that: the
/// Itanium C++ ABI (3.1.1) has the address of a temporary passed for types that are not trivial
/// for calls, as it has a pair of two `unsigned long long` passed like [`PoolId`].
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn hip_alloc_begin_allocate_to_pool(
    device: c_int,
    id: PoolId,
    filter: *const c_void,
) {
    const FUNCTION: &str = "hip_alloc_begin_allocate_to_pool";
    let copy = if filter.is_null() {
        std::ptr::null_mut()
    } else {
        // SAFETY: not null, and the caller promises that it is such a function, which is copied.
        unsafe { hip_alloc_copy_filter(filter) }
    };
    let mut problem = None;
    if copy.is_null() {
        problem = Some(format!("{FUNCTION}: no filter, or no memory for a copy"));
    } else {
        let filter = Box::new(PytorchFilter(copy));
        let code = with_open(FUNCTION, device, |allocator| {
            match allocator.begin_pool(id, filter) {
                Ok(captured) => others(allocator.device())
                    .for_each(|other| other.heed_capture(captured.clone())),
                Err(CannotBegin::OutOfReach(reason)) => {
                    problem = Some(format!("{FUNCTION}: {reason}"));
                }
                Err(CannotBegin::AlreadyBegun) => {
                    problem = Some(format!(
                        "memory pool ({}, {}) is in use already: requests on this device go there",
                        id.first, id.second
                    ));
                }
            }
            OK
        });
        if code != OK {
            problem = Some(format!("{FUNCTION} failed; see standard error"));
        }
    }
    if let Some(problem) = problem {
        throw(Refusal::Failed(problem));
    }
}

/// The other accelerators in use: a capture forbids some calls on all of them.
fn others(device: DeviceIndex) -> impl Iterator<Item = &'static Allocator> {
    let registry = registry::existing().into_iter();
    let all = registry.flat_map(|registry| registry.all());
    all.filter(move |other| other.device() != device && other.device() != DeviceIndex::HOST)
}

/// Stops directing requests to the pool, if they were.
#[unsafe(no_mangle)]
pub extern "C-unwind" fn hip_alloc_end_allocate_to_pool(device: c_int, id: PoolId) {
    const FUNCTION: &str = "hip_alloc_end_allocate_to_pool";
    with_existing(FUNCTION, device, |allocator| {
        match allocator.is_some_and(|allocator| allocator.end_pool(id)) {
            true => OK,
            false => no_such(FUNCTION, id),
        }
    });
}

/// Removes a user of a pool; with the last, its memory is returned as soon as none of it is live.
#[unsafe(no_mangle)]
pub extern "C-unwind" fn hip_alloc_release_pool(device: c_int, id: PoolId) {
    const FUNCTION: &str = "hip_alloc_release_pool";
    with_existing(FUNCTION, device, |allocator| {
        match allocator.is_some_and(|allocator| allocator.release_pool(id)) {
            true => OK,
            false => no_such(FUNCTION, id),
        }
    });
}

/// Adds a user to a pool, which is created for the first. With `use_on_oom` other than 0, its free
/// memory serves other requests before they are refused.
#[unsafe(no_mangle)]
pub extern "C-unwind" fn hip_alloc_retain_pool(
    device: c_int,
    id: PoolId,
    use_on_oom: c_int,
) -> c_int {
    const FUNCTION: &str = "hip_alloc_retain_pool";
    with_open(FUNCTION, device, |allocator| {
        match allocator.retain_pool(id, use_on_oom != 0) {
            Ok(()) => OK,
            Err(reason) => failed(ERROR_DRIVER, &format!("{FUNCTION}: {reason}")),
        }
    })
}

/// The number of users of a pool; 0 if it does not exist, and below 0 if the device cannot be used.
#[unsafe(no_mangle)]
pub extern "C-unwind" fn hip_alloc_pool_users(device: c_int, id: PoolId) -> c_int {
    let mut users = 0;
    let code = with_existing("hip_alloc_pool_users", device, |allocator| {
        let known = allocator.map_or(0, |allocator| allocator.pool_users(id));
        users = c_int::try_from(known).unwrap_or(c_int::MAX);
        OK
    });
    if code == OK { users } else { -code }
}

fn no_such(function: &str, id: PoolId) -> c_int {
    let (first, second) = (id.first, id.second);
    failed(
        ERROR_ARGUMENT,
        &format!("{function}: memory pool ({first}, {second}) is not in use"),
    )
}
