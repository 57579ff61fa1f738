//! The part of NVML that PyTorch uses: counting devices without initialising them, and
//! listing the processes that use one.

use std::ffi::c_char;

use super::devices::{checked, facts};
use super::properties;
use super::{Out, Text, export, export_nothing};
use crate::engine::Engine;
use crate::status::Status;

/// `NVML_ERROR_NOT_SUPPORTED`, `NVML_ERROR_NOT_FOUND`
const NOT_SUPPORTED: Status = Status(3);
const NOT_FOUND: Status = Status(6);

/// `nvmlMemory_t`
#[repr(C)]
struct MemoryInfo {
    total: u64,
    free: u64,
    used: u64,
}

export! {
    fn count(engine, count: Out<u32>) as driver nvmlDeviceGetCount_v2 {
        count.set(engine.with(|state| state.devices) as u32)
    }

    /// Handles are device numbers from 1, so that none is null.
    fn by_index(engine, index: i32, handle: Out<u64>) as driver nvmlDeviceGetHandleByIndex_v2 {
        handle.set(checked(engine, index).map_err(|_| NOT_FOUND)? as u64 + 1)
    }

    fn by_bus(engine, bus: Text, handle: Out<u64>) as driver nvmlDeviceGetHandleByPciBusId_v2 {
        let bus = bus.get()?.to_string_lossy().to_ascii_lowercase();
        let wanted = |device: &usize| bus.ends_with(&format!("{:02x}:00.0", properties::pci_bus(*device)));
        let devices = engine.with(|state| state.devices);
        handle.set((0..devices).find(wanted).ok_or(NOT_FOUND)? as u64 + 1)
    }

    fn index(engine, handle: u64, index: Out<u32>) as driver nvmlDeviceGetIndex {
        index.set(device(engine, handle)? as u32)
    }

    fn name(engine, handle: u64, name: Out<c_char>, size: u32) as driver nvmlDeviceGetName {
        device(engine, handle)?;
        name.set_text(properties::NAME, size as usize)
    }

    fn uuid(engine, handle: u64, text: Out<c_char>, size: u32) as driver nvmlDeviceGetUUID {
        let uuid = properties::uuid(device(engine, handle)?);
        let hex: String = uuid.iter().map(|byte| format!("{byte:02x}")).collect();
        let parts = [&hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..]];
        text.set_text(&format!("GPU-{}", parts.join("-")), size as usize)
    }

    fn memory(engine, handle: u64, info: Out<MemoryInfo>) as driver nvmlDeviceGetMemoryInfo {
        let device = device(engine, handle)?;
        let total = facts(engine, device).0;
        let used = engine.with(|state| state.memory.usage[device].held);
        info.set(MemoryInfo { total, free: total.saturating_sub(used), used })
    }

    /// Nobody else uses the device.
    fn processes(engine, handle: u64, count: Out<u32>, _processes: u64) as driver nvmlDeviceGetComputeRunningProcesses,
        driver nvmlDeviceGetComputeRunningProcesses_v3
    {
        device(engine, handle)?;
        count.set(0)
    }

    fn driver_version(engine, text: Out<c_char>, size: u32) as driver nvmlSystemGetDriverVersion {
        let _ = engine;
        text.set_text("580.0", size as usize)
    }

    fn cuda_version(engine, version: Out<i32>) as driver nvmlSystemGetCudaDriverVersion_v2 {
        let _ = engine;
        version.set(properties::CUDA_VERSION)
    }

    fn unsupported(engine) as driver nvmlDeviceGetNvLinkRemoteDeviceType, driver nvmlDeviceGetNvLinkRemotePciInfo_v2,
        driver nvmlDeviceGetP2PStatus, driver nvmlDeviceGetHandleByUUID
    {
        let _ = engine;
        Err(NOT_SUPPORTED)
    }
}

// Fabric info is left as the caller zeroed it, which reads "no fabric".
export_nothing! { nvmlInit_v2 nvmlInit nvmlShutdown nvmlDeviceGetGpuFabricInfoV }

#[unsafe(no_mangle)]
#[allow(non_snake_case, reason = "the C API decides")]
extern "C" fn nvmlErrorString(status: Status) -> *const c_char {
    let text = match status {
        Status::SUCCESS => c"The operation was successful",
        NOT_SUPPORTED => c"Not Supported",
        NOT_FOUND => c"Not Found",
        _ => c"Unknown Error",
    };
    text.as_ptr()
}

fn device(engine: &Engine, handle: u64) -> Result<usize, Status> {
    let index = handle
        .checked_sub(1)
        .and_then(|index| i32::try_from(index).ok())
        .ok_or(NOT_FOUND)?;
    checked(engine, index).map_err(|_| NOT_FOUND)
}
