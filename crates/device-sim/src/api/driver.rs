//! Functions that only CUDA's driver API has: contexts, and looking up functions by name.

use std::ffi::CStr;
#[cfg(unix)]
use std::ffi::{CString, c_void};
#[cfg(unix)]
use std::sync::OnceLock;

use super::devices::checked;
use super::{Out, Text, export, export_nothing};
use crate::engine::{current_device, set_current_device};
use crate::status::Status;

/// Context handles start here: one per device, the primary context.
const FIRST_CONTEXT: u64 = 0x100;

/// The primary context of a device.
pub(super) fn context(device: usize) -> u64 {
    FIRST_CONTEXT + 0x10 * device as u64
}

export! {
    fn init(engine, _flags: u32) as driver cuInit {
        let _ = engine;
        Ok(())
    }

    fn device(engine, device: Out<i32>, ordinal: i32) as driver cuDeviceGet {
        device.set(checked(engine, ordinal)? as i32)
    }

    fn retain_primary(engine, context: Out<u64>, device: i32) as driver cuDevicePrimaryCtxRetain {
        context.set(self::context(checked(engine, device)?))
    }

    fn primary_state(engine, device: i32, flags: Out<u32>, active: Out<i32>) as driver cuDevicePrimaryCtxGetState {
        checked(engine, device)?;
        flags.set_if_wanted(0);
        active.set_if_wanted(1);
        Ok(())
    }

    fn current_context(engine, context: Out<u64>) as driver cuCtxGetCurrent {
        let _ = engine;
        context.set(self::context(current_device()))
    }

    fn pop_context(engine, context: Out<u64>) as driver cuCtxPopCurrent_v2 {
        let _ = engine;
        context.set_if_wanted(self::context(current_device()));
        Ok(())
    }

    /// Limits of a context, such as the sizes of stack and heap, which do not exist here.
    fn context_limit(engine, value: Out<u64>, _limit: i32) as driver cuCtxGetLimit, runtime cudaDeviceGetLimit {
        let _ = engine;
        value.set(0)
    }

    fn set_context(engine, context: u64) as driver cuCtxSetCurrent, driver cuCtxPushCurrent_v2 {
        if context == 0 {
            return Ok(());
        }
        let devices = engine.with(|state| state.devices);
        let device = (0..devices).find(|device| self::context(*device) == context);
        set_current_device(device.ok_or(Status::INVALID_HANDLE)?);
        Ok(())
    }

    /// Looks up a function of this API by name, in the newest version available here.
    fn function_by_name(engine, symbol: Text, function: Out<usize>, _version: i32, _flags: u64, outcome: Out<i32>)
        as driver cuGetProcAddress_v2
    {
        let _ = engine;
        let found = find(symbol.get()?);
        // CU_GET_PROC_ADDRESS_SUCCESS, CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND
        outcome.set_if_wanted(i32::from(found.is_none()));
        function.set(found.unwrap_or(0))?;
        found.map(drop).ok_or(Status::NOT_FOUND)
    }

    /// The CUDA 11 version, without an output argument for the status.
    fn function_by_name_of_cuda_11(engine, symbol: Text, function: Out<usize>, _version: i32, _flags: u64)
        as driver cuGetProcAddress
    {
        let _ = engine;
        let found = find(symbol.get()?);
        function.set(found.unwrap_or(0))?;
        found.map(drop).ok_or(Status::NOT_FOUND)
    }

    fn address_range_unversioned(engine, base: Out<u64>, size: Out<u64>, pointer: u64) as driver cuMemGetAddressRange {
        let region = engine.with(|state| state.memory.region(pointer).copied()).ok_or(Status::NOT_FOUND)?;
        base.set_if_wanted(region.start);
        size.set_if_wanted(region.size);
        Ok(())
    }

    fn unsupported(engine) as driver cuGetExportTable, driver cuTensorMapEncodeTiled, driver cuLinkCreate_v2,
        driver cuLinkAddData_v2, driver cuLinkComplete, driver cuGreenCtxCreate, driver cuGreenCtxDestroy,
        driver cuGreenCtxStreamCreate, driver cuCtxFromGreenCtx, driver cuDevSmResourceSplitByCount,
        driver cuDeviceGetDevResource, driver cuDevResourceGenerateDesc, driver cuStreamWriteValue32_v2,
        driver cuTensorMapEncodeIm2col
    {
        let _ = engine;
        Err(Status::NOT_SUPPORTED)
    }
}

export_nothing! {
    cuDevicePrimaryCtxRelease_v2 cuDevicePrimaryCtxReset_v2 cuDevicePrimaryCtxSetFlags_v2 cuCtxSetLimit
    cuProfilerStart cuProfilerStop
}

/// The address of one of our own functions: with the version suffix that headers of
/// CUDA 12 and later hide, or under the name itself. Other libraries are not searched, so a real
/// driver that may be installed is never mixed in.
pub(super) fn find(name: &CStr) -> Option<usize> {
    let name = name.to_str().ok()?;
    ["_v3", "_v2", ""]
        .iter()
        .find_map(|suffix| own_symbol(&format!("{name}{suffix}")))
}

#[cfg(unix)]
fn own_symbol(name: &str) -> Option<usize> {
    static HANDLE: OnceLock<usize> = OnceLock::new();
    // None, or the null handle of all libraries, would search more than our own.
    let handle = Some(*HANDLE.get_or_init(own_handle)).filter(|handle| *handle != 0)?;
    let name = CString::new(name).ok()?;
    // SAFETY: the handle is this library's own, and the name is terminated.
    let found = unsafe { libc::dlsym(handle as *mut c_void, name.as_ptr()) };
    (!found.is_null()).then_some(found as usize)
}

#[cfg(unix)]
/// A handle of the library that contains this function.
fn own_handle() -> usize {
    // SAFETY: an all-zero Dl_info is a valid value of that plain structure.
    let mut info: libc::Dl_info = unsafe { std::mem::zeroed() };
    // SAFETY: the address is a function of this library; `info` lives on.
    if unsafe { libc::dladdr(own_handle as *const c_void, &mut info) } == 0 {
        return 0;
    }
    // SAFETY: dladdr succeeded, so the name is a terminated string; NOLOAD only
    // looks up what is loaded already.
    unsafe { libc::dlopen(info.dli_fname, libc::RTLD_NOW | libc::RTLD_NOLOAD) as usize }
}

/// CUDA's driver is not simulated on Windows.
#[cfg(windows)]
fn own_symbol(_name: &str) -> Option<usize> {
    None
}
