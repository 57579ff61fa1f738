//! Virtual memory management: `cuMem*` and `hipMem*`, which differ only in their names.

use super::{In, Out, export};
use crate::status::Status;

/// The granularity of mappings.
const GRANULARITY: u64 = 2 << 20;

/// `CUmemLocation`
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct Location {
    kind: i32,
    id: i32,
}

/// `CUmemAllocationProp`
#[repr(C)]
#[derive(Clone, Copy)]
struct AllocationProperties {
    kind: i32,
    handle_types: i32,
    location: Location,
    win32_metadata: u64,
    flags: [u8; 8],
}

/// `CUmemAccessDesc`
#[repr(C)]
#[derive(Clone, Copy)]
struct AccessDescription {
    location: Location,
    flags: i32,
}

const KIND_PINNED: i32 = 1;
const LOCATION_DEVICE: i32 = 1;
const READ_WRITE: i32 = 3;

export! {
    fn address_reserve(engine, pointer: Out<u64>, size: u64, alignment: u64, _hint: u64, _flags: u64)
        as driver cuMemAddressReserve, runtime hipMemAddressReserve
    {
        let pointer = pointer.required()?;
        pointer.set(engine.with(|state| state.memory.reserve(size, alignment.max(GRANULARITY)))?)
    }

    fn address_free(engine, pointer: u64, size: u64)
        as driver cuMemAddressFree, runtime hipMemAddressFree
    {
        engine.with(|state| state.memory.unreserve(pointer, size))
    }

    fn create(engine, handle: Out<u64>, size: u64, properties: In<AllocationProperties>, _flags: u64)
        as driver cuMemCreate, runtime hipMemCreate
    {
        let handle = handle.required()?;
        let device = device_of(properties.get()?.location)?;
        if !size.is_multiple_of(GRANULARITY) {
            return Err(Status::INVALID_VALUE);
        }
        let created = engine.with(|state| {
            if device >= state.devices {
                return Err(Status::INVALID_DEVICE);
            }
            state.memory.create_handle(device, size)
        })?;
        handle.set(created)
    }

    fn release(engine, handle: u64) as driver cuMemRelease, runtime hipMemRelease {
        engine.with(|state| state.memory.release_handle(handle))
    }

    fn retain(engine, handle: Out<u64>, pointer: u64)
        as driver cuMemRetainAllocationHandle, runtime hipMemRetainAllocationHandle
    {
        let handle = handle.required()?;
        let found = engine.with(|state| state.memory.mappings.retain(pointer));
        handle.set(found.ok_or(Status::INVALID_VALUE)?)
    }

    fn map(engine, pointer: u64, size: u64, offset: u64, handle: u64, _flags: u64)
        as driver cuMemMap, runtime hipMemMap
    {
        engine.with(|state| state.memory.map(pointer, size, offset, handle))
    }

    /// Waits for the device, since work in flight may use the range.
    fn unmap(engine, pointer: u64, size: u64) as driver cuMemUnmap, runtime hipMemUnmap {
        engine.wait_until(engine.with(|state| state.timeline.all_done()));
        engine.with(|state| state.memory.unmap(pointer, size))
    }

    /// Access applies to all devices or none: the last descriptor decides.
    fn set_access(engine, pointer: u64, size: u64, descriptions: In<AccessDescription>, count: u64)
        as driver cuMemSetAccess, runtime hipMemSetAccess
    {
        let description = descriptions.last_of(count)?;
        engine.with(|state| state.memory.set_access(pointer, size, description.flags == READ_WRITE))
    }

    fn granularity(engine, granularity: Out<u64>, properties: In<AllocationProperties>, _option: i32)
        as driver cuMemGetAllocationGranularity, runtime hipMemGetAllocationGranularity
    {
        let _ = engine;
        device_of(properties.get()?.location)?;
        granularity.set(GRANULARITY)
    }

    fn properties_of(engine, properties: Out<AllocationProperties>, handle: u64)
        as driver cuMemGetAllocationPropertiesFromHandle, runtime hipMemGetAllocationPropertiesFromHandle
    {
        let (device, _) = engine.with(|state| state.memory.mappings.describe(handle)).ok_or(Status::INVALID_VALUE)?;
        properties.set(AllocationProperties {
            kind: KIND_PINNED,
            handle_types: 0,
            location: Location { kind: LOCATION_DEVICE, id: device as i32 },
            win32_metadata: 0,
            flags: [0; 8],
        })
    }

    /// Sharing with other processes is not supported.
    fn share(engine) as driver cuMemExportToShareableHandle, driver cuMemImportFromShareableHandle,
        runtime hipMemExportToShareableHandle, runtime hipMemImportFromShareableHandle,
        driver cuMulticastCreate, driver cuMulticastAddDevice, driver cuMulticastBindMem, driver cuMulticastUnbind
    {
        let _ = engine;
        Err(Status::NOT_SUPPORTED)
    }
}

fn device_of(location: Location) -> Result<usize, Status> {
    match location {
        Location {
            kind: LOCATION_DEVICE,
            id: 0..,
        } => Ok(location.id as usize),
        _ => Err(Status::INVALID_VALUE),
    }
}
