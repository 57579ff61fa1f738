//! Private pools: what PyTorch tells its allocator about captures and memory pools.

use super::cpp::{Exception, Function};
use super::{ERROR_ARGUMENT, ERROR_DRIVER, OK, failed, with_existing, with_open};
use crate::allocator::{Allocator, CannotBegin};
use crate::device_pools::Filter;
use crate::refusal::Refusal;
use crate::registry;
use crate::units::{DeviceIndex, PoolId, StreamId};
use std::ffi::{c_int, c_void};

impl Filter for Function {
    fn takes(&mut self, stream: StreamId) -> Result<bool, String> {
        self.call(stream)
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
    // SAFETY: as the caller promises.
    if let Some(exception) = unsafe { begin(device, id, filter) } {
        exception.throw();
    }
}

/// What is thrown if requests cannot be directed to the pool. See `serve` in `ffi.rs`.
///
/// # Safety
/// As for [`hip_alloc_begin_allocate_to_pool`].
#[cfg_attr(windows, inline(never))]
unsafe fn begin(device: c_int, id: PoolId, filter: *const c_void) -> Option<Exception> {
    const FUNCTION: &str = "hip_alloc_begin_allocate_to_pool";
    let copy = if filter.is_null() {
        None
    } else {
        // SAFETY: not null, and the caller promises that it is such a function, which is copied.
        unsafe { Function::copy(filter) }
    };
    let mut problem = None;
    if let Some(filter) = copy {
        let code = with_open(FUNCTION, device, |allocator| {
            match allocator.begin_pool(id, Box::new(filter)) {
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
    } else {
        problem = Some(format!("{FUNCTION}: no filter, or no memory for a copy"));
    }
    problem.map(|problem| Exception::new(Refusal::Failed(problem)))
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
