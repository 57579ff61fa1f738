//! Devices: count, properties, the current device of a thread, and errors.

use std::ffi::{CStr, c_char};

use super::properties::{self, Cuda12Properties, CudaProperties, HipProperties};
use super::{Out, Text, export, export_nothing};
use crate::calls;
use crate::engine::{self, Engine, current_device, set_current_device};
use crate::status::{Api, Status};

export! {
    fn device_count(engine, count: Out<i32>)
        as runtime cudaGetDeviceCount, runtime hipGetDeviceCount, driver cuDeviceGetCount
    {
        count.set(engine.with(|state| state.devices) as i32)
    }

    fn get_device(engine, device: Out<i32>) as runtime cudaGetDevice, runtime hipGetDevice, driver cuCtxGetDevice {
        let _ = engine;
        device.set(current_device() as i32)
    }

    fn set_device(engine, device: i32) as runtime cudaSetDevice, runtime hipSetDevice {
        set_current_device(checked(engine, device)?);
        Ok(())
    }

    /// Like `cudaSetDevice`, and creates the context immediately.
    fn init_device(engine, device: i32, _device_flags: u32, _flags: u32) as runtime cudaInitDevice {
        checked(engine, device).map(drop)
    }

    fn cuda_properties(engine, properties: Out<CudaProperties>, device: i32) as runtime cudaGetDeviceProperties {
        let device = checked(engine, device)?;
        let (memory, integrated) = facts(engine, device);
        properties.set(properties::cuda(device, memory, integrated))
    }

    fn cuda_12_properties(engine, properties: Out<Cuda12Properties>, device: i32)
        as runtime cudaGetDeviceProperties_v2
    {
        let device = checked(engine, device)?;
        let (memory, integrated) = facts(engine, device);
        properties.set(properties::cuda_12(device, memory, integrated))
    }

    fn hip_properties(engine, properties: Out<HipProperties>, device: i32)
        as runtime hipGetDevicePropertiesR0600
    {
        let device = checked(engine, device)?;
        let (memory, integrated) = facts(engine, device);
        let architecture = engine.with(|state| state.architecture.clone());
        properties.set(properties::hip(device, memory, integrated, &architecture))
    }

    fn cuda_attribute(engine, value: Out<i32>, attribute: i32, device: i32)
        as runtime cudaDeviceGetAttribute, driver cuDeviceGetAttribute
    {
        let device = checked(engine, device)?;
        value.set(properties::cuda_attribute(attribute, device, facts(engine, device).1))
    }

    fn hip_attribute(engine, value: Out<i32>, attribute: i32, device: i32) as runtime hipDeviceGetAttribute {
        let device = checked(engine, device)?;
        let architecture = engine.with(|state| state.architecture.clone());
        value.set(properties::hip_attribute(attribute, device, facts(engine, device).1, &architecture))
    }

    fn total_memory(engine, bytes: Out<u64>, device: i32) as driver cuDeviceTotalMem_v2, runtime hipDeviceTotalMem {
        bytes.set(facts(engine, checked(engine, device)?).0)
    }

    fn device_name(engine, name: Out<c_char>, size: i32, device: i32)
        as driver cuDeviceGetName, runtime hipDeviceGetName
    {
        checked(engine, device)?;
        name.set_text(properties::NAME, size.max(0) as usize)
    }

    fn device_uuid(engine, uuid: Out<[u8; 16]>, device: i32)
        as driver cuDeviceGetUuid, driver cuDeviceGetUuid_v2, runtime hipDeviceGetUuid
    {
        uuid.set(properties::uuid(checked(engine, device)?))
    }

    fn pci_bus_id(engine, text: Out<c_char>, size: i32, device: i32)
        as runtime cudaDeviceGetPCIBusId, runtime hipDeviceGetPCIBusId, driver cuDeviceGetPCIBusId
    {
        let bus = properties::pci_bus(checked(engine, device)?);
        text.set_text(&format!("0000:{bus:02x}:00.0"), size.max(0) as usize)
    }

    fn can_access_peer(engine, answer: Out<i32>, device: i32, peer: i32)
        as runtime cudaDeviceCanAccessPeer, runtime hipDeviceCanAccessPeer, driver cuDeviceCanAccessPeer
    {
        answer.set(i32::from(checked(engine, device)? != checked(engine, peer)?))
    }

    fn cuda_version(engine, version: Out<i32>)
        as runtime cudaDriverGetVersion, runtime cudaRuntimeGetVersion, driver cuDriverGetVersion
    {
        let _ = engine;
        version.set(properties::CUDA_VERSION)
    }

    fn hip_version(engine, version: Out<i32>) as runtime hipDriverGetVersion, runtime hipRuntimeGetVersion {
        let _ = engine;
        version.set(properties::HIP_VERSION)
    }

    fn default_pool(engine, pool: Out<u64>, device: i32)
        as runtime cudaDeviceGetDefaultMemPool, runtime hipDeviceGetDefaultMemPool
    {
        pool.set(checked(engine, device)? as u64 + 1)
    }

    /// Pools cache nothing: the memory they reserve, the memory in use and the memory held by the
    /// device are the same. Attributes from 5 on are current and peak reserved memory,
    /// and current and peak used memory; the earlier ones are flags.
    fn pool_attribute(engine, pool: u64, attribute: i32, value: Out<u64>)
        as runtime cudaMemPoolGetAttribute, runtime hipMemPoolGetAttribute
    {
        let device = pool.checked_sub(1).and_then(|device| i32::try_from(device).ok());
        let device = checked(engine, device.unwrap_or(-1)).map_err(|_| Status::INVALID_VALUE)?;
        let usage = engine.with(|state| state.memory.usage[device]);
        match attribute {
            5 | 7 => value.set(usage.held),
            6 | 8 => value.set(usage.peak),
            // The release threshold is 64-bit too; the rest are flags.
            4 => value.set(0),
            _ => value.set_narrow(0),
        }
    }

    fn exchange_capture_mode(engine, mode: Out<u32>)
        as runtime cudaThreadExchangeStreamCaptureMode, runtime hipThreadExchangeStreamCaptureMode,
           driver cuThreadExchangeStreamCaptureMode
    {
        let _ = engine;
        let before = engine::exchange_strictness(engine::Strictness::from_code(mode.get()?)?);
        mode.set(before as u32)
    }

    /// Looks up a driver function by name, through the runtime API.
    fn driver_entry_point(
        engine, symbol: Text, function: Out<usize>, _version: u32, _flags: u64, outcome: Out<i32>,
    ) as runtime cudaGetDriverEntryPointByVersion
    {
        let _ = engine;
        let found = super::driver::find(symbol.get()?);
        // cudaDriverEntryPointSuccess, cudaDriverEntryPointSymbolNotFound
        outcome.set_if_wanted(i32::from(found.is_none()));
        function.set(found.unwrap_or(0))
    }

    fn driver_entry_point_of_cuda_12(
        engine, symbol: Text, function: Out<usize>, _flags: u64, outcome: Out<i32>,
    ) as runtime cudaGetDriverEntryPoint
    {
        let _ = engine;
        let found = super::driver::find(symbol.get()?);
        outcome.set_if_wanted(i32::from(found.is_none()));
        function.set(found.unwrap_or(0))
    }

    fn unsupported(engine) as runtime cudaIpcGetMemHandle, runtime cudaIpcOpenMemHandle,
        runtime cudaIpcCloseMemHandle, runtime cudaIpcGetEventHandle, runtime cudaIpcOpenEventHandle,
        runtime hipIpcGetMemHandle, runtime hipIpcOpenMemHandle, runtime hipIpcCloseMemHandle
    {
        let _ = engine;
        Err(Status::NOT_SUPPORTED)
    }
}

export_nothing! {
    cudaDeviceEnablePeerAccess hipDeviceEnablePeerAccess cudaSetDeviceFlags hipSetDeviceFlags hipInit
    cudaDeviceSetLimit cudaDeviceSetCacheConfig cudaDeviceSetSharedMemConfig cudaDeviceReset
    cudaProfilerStart cudaProfilerStop hipProfilerStart hipProfilerStop
    cudaMemPoolSetAttribute cudaMemPoolSetAccess cudaMemPoolTrimTo
    hipMemPoolSetAttribute hipMemPoolSetAccess hipMemPoolTrimTo
    cudaMemAdvise hipMemAdvise cudaMemPrefetchAsync hipMemPrefetchAsync
}

macro_rules! error_functions {
    ($($last:ident $peek:ident $name:ident $message:ident $api:ident;)*) => {$(
        #[unsafe(no_mangle)]
        #[allow(non_snake_case, reason = "the C API decides")]
        extern "C" fn $last() -> Status {
            calls::last_error(true)
        }

        #[unsafe(no_mangle)]
        #[allow(non_snake_case, reason = "the C API decides")]
        extern "C" fn $peek() -> Status {
            calls::last_error(false)
        }

        #[unsafe(no_mangle)]
        #[allow(non_snake_case, reason = "the C API decides")]
        extern "C" fn $name(status: Status) -> *const c_char {
            status.name(Api::$api).as_ptr()
        }

        #[unsafe(no_mangle)]
        #[allow(non_snake_case, reason = "the C API decides")]
        extern "C" fn $message(status: Status) -> *const c_char {
            status.message().as_ptr()
        }
    )*};
}

error_functions! {
    cudaGetLastError cudaPeekAtLastError cudaGetErrorName cudaGetErrorString CudaRuntime;
    hipGetLastError hipPeekAtLastError hipGetErrorName hipGetErrorString Hip;
}

#[unsafe(no_mangle)]
#[allow(non_snake_case, reason = "the C API decides")]
extern "C" fn cuGetErrorName(status: Status, text: Out<*const c_char>) -> Status {
    text_of(status.name(Api::CudaDriver), &text)
}

#[unsafe(no_mangle)]
#[allow(non_snake_case, reason = "the C API decides")]
extern "C" fn cuGetErrorString(status: Status, text: Out<*const c_char>) -> Status {
    text_of(status.message(), &text)
}

fn text_of(words: &'static CStr, text: &Out<*const c_char>) -> Status {
    text.set(words.as_ptr()).err().unwrap_or(Status::SUCCESS)
}

/// Checks a device number of the program.
pub(super) fn checked(engine: &Engine, device: i32) -> Result<usize, Status> {
    let devices = engine.with(|state| state.devices);
    usize::try_from(device)
        .ok()
        .filter(|device| *device < devices)
        .ok_or(Status::INVALID_DEVICE)
}

/// A device's memory, and whether it shares it with the host.
pub(super) fn facts(engine: &Engine, device: usize) -> (u64, bool) {
    engine.with(|state| {
        (
            state.memory.info(device).1,
            state.memory.budget.unified.is_some(),
        )
    })
}
