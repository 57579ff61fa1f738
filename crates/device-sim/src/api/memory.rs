//! Memory: allocations, queries, copies and memsets.

use super::{Out, export};
use crate::engine::{Effect, Engine, Kind, Region, Transfer, current_device};
use crate::status::Status;

/// `cudaMemAttachGlobal` and `cudaHostAlloc` flags change nothing here.
type Flags = u32;

/// `cudaMemoryType`, and `hipMemoryType` as of HIP 6.
const TYPE_HOST: i32 = 1;
const TYPE_DEVICE: i32 = 2;
const TYPE_MANAGED: i32 = 3;

/// `cudaPointerAttributes`: CUDA 13 has reserved fields behind these, which are left as they are,
/// since programs for CUDA 12 have no room for them.
#[repr(C)]
struct PointerAttributes {
    kind: i32,
    device: i32,
    device_pointer: u64,
    host_pointer: u64,
}

/// `hipPointerAttribute_t`
#[repr(C)]
struct HipPointerAttributes {
    kind: i32,
    device: i32,
    device_pointer: u64,
    host_pointer: u64,
    is_managed: i32,
    allocation_flags: u32,
}

/// The attributes for `cudaPointerGetAttributes` and related functions.
struct Described {
    kind: i32,
    device: i32,
    device_pointer: u64,
    host_pointer: u64,
}

export! {
    /// Zero bytes give a null pointer, as in CUDA.
    fn malloc(engine, pointer: Out<u64>, size: u64)
        as runtime cudaMalloc, runtime hipMalloc, driver cuMemAlloc_v2
    {
        allocate(engine, pointer, size, Kind::Device)
    }

    fn malloc_managed(engine, pointer: Out<u64>, size: u64, _flags: Flags)
        as runtime cudaMallocManaged, runtime hipMallocManaged, driver cuMemAllocManaged
    {
        allocate(engine, pointer, size, Kind::Managed)
    }

    fn malloc_with_flags(engine, pointer: Out<u64>, size: u64, _flags: Flags)
        as runtime hipExtMallocWithFlags
    {
        allocate(engine, pointer, size, Kind::Device)
    }

    /// The memory is available immediately; only the free is stream-ordered. Graphs cannot own memory.
    fn malloc_async(engine, pointer: Out<u64>, size: u64, stream: u64)
        as runtime cudaMallocAsync, runtime hipMallocAsync, driver cuMemAllocAsync
    {
        let pointer = pointer.required()?;
        let address = engine.with(|state| {
            state.timeline.forbid_in_capture_of(stream, current_device())?;
            match size {
                0 => Ok(0),
                _ => state.memory.allocate(current_device(), size, Kind::Device),
            }
        })?;
        pointer.set(address)
    }

    /// Waits for the whole device, which is why allocators cache.
    fn free(engine, pointer: u64) as runtime cudaFree, runtime hipFree, driver cuMemFree_v2 {
        if pointer == 0 {
            return Ok(());
        }
        let (region, done) = engine.with(|state| {
            state.forbid_in_capture()?;
            let region = state.memory.freeable(pointer, false)?;
            Ok((region, state.timeline.device_done(region.device)))
        })?;
        engine.wait_until(done);
        engine.with(|state| state.memory.free(region))
    }

    fn free_async(engine, pointer: u64, stream: u64)
        as runtime cudaFreeAsync, runtime hipFreeAsync, driver cuMemFreeAsync
    {
        engine.with(|state| {
            state.timeline.forbid_in_capture_of(stream, current_device())?;
            let id = state.memory.leave(pointer)?;
            let free = Effect::Free { start: pointer, id };
            state.timeline.submit(stream, current_device(), 0, free).map(drop)
        })
    }

    fn host_alloc(engine, pointer: Out<u64>, size: u64, _flags: Flags)
        as runtime cudaHostAlloc, runtime hipHostMalloc, runtime hipHostAlloc, driver cuMemHostAlloc
    {
        allocate_host(engine, pointer, size)
    }

    fn malloc_host(engine, pointer: Out<u64>, size: u64)
        as runtime cudaMallocHost, runtime hipMallocHost, driver cuMemAllocHost_v2
    {
        allocate_host(engine, pointer, size)
    }

    fn free_host(engine, pointer: u64)
        as runtime cudaFreeHost, runtime hipHostFree, runtime hipFreeHost, driver cuMemFreeHost
    {
        if pointer == 0 {
            return Ok(());
        }
        let (region, done) = engine.with(|state| {
            state.forbid_in_capture()?;
            Ok((state.memory.freeable(pointer, true)?, state.timeline.all_done()))
        })?;
        engine.wait_until(done);
        engine.with(|state| state.memory.free(region))
    }

    fn host_register(engine, pointer: u64, size: u64, _flags: Flags)
        as runtime cudaHostRegister, runtime hipHostRegister, driver cuMemHostRegister_v2
    {
        engine.with(|state| state.memory.register(pointer, size))
    }

    /// Waits as `cudaFreeHost` does: the program may free the memory right after.
    fn host_unregister(engine, pointer: u64)
        as runtime cudaHostUnregister, runtime hipHostUnregister, driver cuMemHostUnregister
    {
        let (id, done) = engine.with(|state| Ok((state.memory.registered(pointer)?, state.timeline.all_done())))?;
        engine.wait_until(done);
        engine.with(|state| state.memory.unregister(pointer, id))
    }

    fn host_get_device_pointer(engine, device: Out<u64>, host: u64, _flags: Flags)
        as runtime cudaHostGetDevicePointer, runtime hipHostGetDevicePointer
    {
        let on_host = |region: &Region| matches!(region.kind, Kind::Pinned | Kind::Registered);
        match engine.with(|state| state.memory.region(host).is_some_and(on_host)) {
            true => device.set(host),
            false => Err(Status::INVALID_VALUE),
        }
    }

    fn memory_info(engine, free: Out<u64>, total: Out<u64>)
        as runtime cudaMemGetInfo, runtime hipMemGetInfo, driver cuMemGetInfo_v2
    {
        let device = current_device();
        let info = engine.with(|state| {
            state.contexts[device] = true;
            state.memory.info(device)
        });
        free.set(info.0)?;
        total.set(info.1)
    }

    fn pointer_attributes(engine, attributes: Out<PointerAttributes>, pointer: u64)
        as runtime cudaPointerGetAttributes
    {
        let Described { kind, device, device_pointer, host_pointer } = describe(engine, pointer);
        attributes.set(PointerAttributes { kind, device, device_pointer, host_pointer })
    }

    /// Unlike CUDA, HIP calls an address it does not know an invalid argument.
    fn hip_pointer_attributes(engine, attributes: Out<HipPointerAttributes>, pointer: u64)
        as runtime hipPointerGetAttributes
    {
        let Described { kind, device, device_pointer, host_pointer } = describe(engine, pointer);
        if kind == 0 {
            return Err(Status::INVALID_VALUE);
        }
        let is_managed = i32::from(kind == TYPE_MANAGED);
        attributes.set(HipPointerAttributes { kind, device, device_pointer, host_pointer, is_managed, allocation_flags: 0 })
    }

    /// The supported attributes: context, memory type, addresses, ordinal.
    fn pointer_attribute(engine, value: Out<u64>, attribute: i32, pointer: u64)
        as driver cuPointerGetAttribute
    {
        let described = describe(engine, pointer);
        if described.kind == 0 {
            return Err(Status::INVALID_VALUE);
        }
        match attribute {
            1 => value.set(super::driver::context(described.device.max(0) as usize)),
            2 => value.set_narrow(described.kind as u32),
            3 => value.set(described.device_pointer),
            4 => value.set(described.host_pointer),
            8 => value.set_narrow(u32::from(described.kind == TYPE_MANAGED)),
            9 => value.set_narrow(described.device as u32),
            _ => Err(Status::NOT_SUPPORTED),
        }
    }

    fn address_range(engine, base: Out<u64>, size: Out<u64>, pointer: u64)
        as driver cuMemGetAddressRange_v2, runtime hipMemGetAddressRange
    {
        let region = engine.with(|state| state.memory.region(pointer).copied());
        let region = region.ok_or(Status::NOT_FOUND)?;
        base.set_if_wanted(region.start);
        size.set_if_wanted(region.size);
        Ok(())
    }

    fn copy(engine, to: u64, from: u64, size: u64, _kind: i32)
        as runtime cudaMemcpy, runtime hipMemcpy
    {
        start(engine, 0, plain(to, from, size), true)
    }

    fn copy_async(engine, to: u64, from: u64, size: u64, _kind: i32, stream: u64)
        as runtime cudaMemcpyAsync, runtime hipMemcpyAsync
    {
        start(engine, stream, plain(to, from, size), false)
    }

    fn copy_with_stream(engine, to: u64, from: u64, size: u64, _kind: i32, stream: u64)
        as runtime hipMemcpyWithStream
    {
        start(engine, stream, plain(to, from, size), true)
    }

    fn copy_driver(engine, to: u64, from: u64, size: u64)
        as driver cuMemcpy, driver cuMemcpyHtoD_v2, driver cuMemcpyDtoH_v2, driver cuMemcpyDtoD_v2,
           runtime hipMemcpyHtoD, runtime hipMemcpyDtoH, runtime hipMemcpyDtoD
    {
        start(engine, 0, plain(to, from, size), true)
    }

    fn copy_driver_async(engine, to: u64, from: u64, size: u64, stream: u64)
        as driver cuMemcpyAsync, driver cuMemcpyHtoDAsync_v2, driver cuMemcpyDtoHAsync_v2,
           driver cuMemcpyDtoDAsync_v2, runtime hipMemcpyHtoDAsync, runtime hipMemcpyDtoHAsync,
           runtime hipMemcpyDtoDAsync
    {
        start(engine, stream, plain(to, from, size), false)
    }

    fn copy_peer_async(engine, to: u64, _to_device: i32, from: u64, _from_device: i32, size: u64, stream: u64)
        as runtime cudaMemcpyPeerAsync, runtime hipMemcpyPeerAsync
    {
        start(engine, stream, plain(to, from, size), false)
    }

    fn copy_2d_async(
        engine, to: u64, to_pitch: u64, from: u64, from_pitch: u64, width: u64, height: u64, _kind: i32, stream: u64,
    ) as runtime cudaMemcpy2DAsync, runtime hipMemcpy2DAsync
    {
        let transfer = Transfer::Copy { to, from, width, height, to_pitch, from_pitch, damage: None };
        start(engine, stream, transfer, false)
    }

    fn set(engine, to: u64, value: i32, size: u64)
        as runtime cudaMemset, runtime hipMemset
    {
        start(engine, 0, Transfer::Fill { to, pattern: value as u32 & 0xFF, width: 1, count: size }, true)
    }

    fn set_async(engine, to: u64, value: i32, size: u64, stream: u64)
        as runtime cudaMemsetAsync, runtime hipMemsetAsync, driver cuMemsetD8Async
    {
        start(engine, stream, Transfer::Fill { to, pattern: value as u32 & 0xFF, width: 1, count: size }, false)
    }

    fn set_32_async(engine, to: u64, pattern: u32, count: u64, stream: u64)
        as driver cuMemsetD32Async, runtime hipMemsetD32Async
    {
        start(engine, stream, Transfer::Fill { to, pattern, width: 4, count }, false)
    }
}

impl Out<u64> {
    /// Stores a result in the 32 bits that some attributes have instead of 64.
    pub(super) fn set_narrow(&self, value: u32) -> Result<(), Status> {
        Out(self.0.cast::<u32>()).set(value)
    }
}

/// Submits a transfer to a stream. As on real devices, a copy that touches pageable
/// host memory does not return before that memory may be reused.
pub(super) fn start(
    engine: &Engine,
    stream: u64,
    transfer: Transfer,
    wait: bool,
) -> Result<(), Status> {
    let device = current_device();
    let (done, wait) = engine.with(|state| {
        let wait = wait || transfer.touches_pageable(&state.memory);
        Ok((state.transfer(stream, device, transfer)?, wait))
    })?;
    if wait {
        engine.wait_until(done);
    }
    Ok(())
}

/// A copy of one row.
pub(super) fn plain(to: u64, from: u64, size: u64) -> Transfer {
    Transfer::Copy {
        to,
        from,
        width: size,
        height: 1,
        to_pitch: size,
        from_pitch: size,
        damage: None,
    }
}

fn allocate(engine: &Engine, pointer: Out<u64>, size: u64, kind: Kind) -> Result<(), Status> {
    let pointer = pointer.required()?;
    if size == 0 {
        return pointer.set(0);
    }
    let address = engine.with(|state| {
        state.forbid_in_capture()?;
        state.contexts[current_device()] = true;
        state.memory.allocate(current_device(), size, kind)
    })?;
    pointer.set(address)
}

fn allocate_host(engine: &Engine, pointer: Out<u64>, size: u64) -> Result<(), Status> {
    let pointer = pointer.required()?;
    if size == 0 {
        return pointer.set(0);
    }
    let address = engine.with(|state| {
        state.forbid_in_capture()?;
        state.memory.allocate_pinned(size)
    })?;
    pointer.set(address)
}

fn describe(engine: &Engine, pointer: u64) -> Described {
    let region = engine.with(|state| state.memory.region(pointer).copied());
    let kind = match region.map(|region| region.kind) {
        Some(Kind::Device | Kind::Reserved) => TYPE_DEVICE,
        Some(Kind::Managed) => TYPE_MANAGED,
        Some(Kind::Pinned | Kind::Registered) => TYPE_HOST,
        None => {
            return Described {
                kind: 0,
                device: -2,
                device_pointer: 0,
                host_pointer: pointer,
            };
        }
    };
    let device = region.map_or(0, |region| region.device as i32);
    let host_pointer = if kind == TYPE_DEVICE { 0 } else { pointer };
    Described {
        kind,
        device,
        device_pointer: pointer,
        host_pointer,
    }
}
