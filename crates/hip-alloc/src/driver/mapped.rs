//! Device memory that is reserved, created in handles and mapped: parts of it can be released.
//!
//! HIP has these functions in its runtime, CUDA in its driver; they have the same
//! signatures and structures. Some versions of ROCm use up a file descriptor for each handle,
//! and others fail although they offer it, so the functions are first tested on real memory,
//! which is written and read back, and handles are large.

use super::numbers::{
    ACCESS_READ_WRITE, ALLOCATION_PINNED, COPY_DEVICE_TO_HOST, COPY_HOST_TO_DEVICE,
    GRANULARITY_RECOMMENDED, LOCATION_DEVICE,
};
use super::runtime::{Family, RuntimeError, Search, Status, function_table, open_library};
use crate::units::{DeviceIndex, MIB};
use libloading::os::unix::Library;
use std::collections::BTreeMap;
use std::ffi::{c_int, c_ulonglong, c_void};

/// The smallest size of a handle.
const SMALLEST_HANDLE: u64 = 32 * MIB;
/// The device's memory is divided into about this many handles.
const HANDLES: u64 = 256;

/// `hipMemLocation`, `CUmemLocation`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct Location {
    kind: c_int,
    id: c_int,
}

/// `hipMemAllocationProp`, `CUmemAllocationProp`: 32 bytes in both.
#[repr(C)]
pub(super) struct Properties {
    kind: c_int,
    handle_types: c_int,
    location: Location,
    win32_metadata: *mut c_void,
    flags: [u8; 8],
}

/// `hipMemAccessDesc`, `CUmemAccessDesc`.
#[repr(C)]
pub(super) struct Access {
    location: Location,
    flags: c_int,
}

function_table! {
    /// The functions of virtual memory.
    MapFunctions {
        reserve: "MemAddressReserve" fn(*mut u64, usize, usize, u64, c_ulonglong) -> Status;
        unreserve: "MemAddressFree" fn(u64, usize) -> Status;
        create: "MemCreate" fn(*mut u64, usize, *const Properties, c_ulonglong) -> Status;
        release: "MemRelease" fn(u64) -> Status;
        map: "MemMap" fn(u64, usize, usize, u64, c_ulonglong) -> Status;
        unmap: "MemUnmap" fn(u64, usize) -> Status;
        set_access: "MemSetAccess" fn(u64, usize, *const Access, usize) -> Status;
        granularity: "MemGetAllocationGranularity" fn(*mut usize, *const Properties, c_int) -> Status;
    }
}

function_table! {
    /// Other functions of the runtime that the trial needs.
    CopyFunctions {
        copy: "Memcpy" fn(*mut c_void, *const c_void, usize, c_int) -> Status;
    }
}

/// Why a call failed: its name and the code.
pub(super) type Failure = (&'static str, Status);

/// Mapped memory of one device.
pub(super) struct MappedMemory {
    functions: MapFunctions,
    device: DeviceIndex,
    /// The unit of handle sizes.
    pub(super) granule: u64,
    /// Bytes of a handle.
    pub(super) handle: u64,
    reservations: BTreeMap<u64, Reservation>,
}

struct Reservation {
    bytes: u64,
    /// Each handle with its size; `None` once it was released.
    handles: Vec<Option<(u64, u64)>>,
}

/// A mapped handle and its position.
struct Part {
    address: u64,
    bytes: u64,
    handle: u64,
}

impl MappedMemory {
    /// Loads the functions, if the family has them, with handles for `capacity` bytes.
    ///
    /// # Errors
    /// If a function is missing, or the runtime does not report a granularity.
    pub(super) fn find(
        family: Family,
        device: DeviceIndex,
        capacity: u64,
    ) -> Result<Self, RuntimeError> {
        let (library, prefix) = match family {
            Family::Hip => (open_library(family, Search::Loaded), "hip"),
            Family::Cuda => (loaded_cuda_driver(), "cu"),
        };
        let library = library.ok_or(RuntimeError::NotFound {
            family,
            searched_disk: false,
        })?;
        let functions = MapFunctions::load(&library, family, prefix)?;
        // Closing it would unload a runtime that holds our memory.
        std::mem::forget(library);
        let mut granule = 0;
        // SAFETY: writes one size to a live local, reads properties of the documented layout.
        let status = unsafe {
            (functions.granularity)(&mut granule, &properties(device), GRANULARITY_RECOMMENDED)
        };
        if status != 0 || !granule.is_power_of_two() {
            return Err(RuntimeError::Refused {
                call: format!("{prefix}MemGetAllocationGranularity"),
                code: status,
                name: format!("granularity {granule}"),
            });
        }
        let granule = granule as u64;
        Ok(MappedMemory {
            functions,
            device,
            granule,
            handle: (capacity / HANDLES)
                .max(SMALLEST_HANDLE)
                .next_multiple_of(granule),
            reservations: BTreeMap::new(),
        })
    }

    /// Maps memory, writes it, reads it back, and releases a part and then all of it.
    pub(super) fn try_out(&mut self, family: Family) -> Result<(), String> {
        let library = open_library(family, Search::Loaded).ok_or("the runtime is gone")?;
        let prefix = family.prefix();
        let functions = CopyFunctions::load(&library, family, prefix);
        std::mem::forget(library);
        let functions = functions.map_err(|error| error.to_string())?;
        let described = |(call, code): Failure| format!("{prefix}{call}: error {code}");
        let handle = self.granule;
        let usual = std::mem::replace(&mut self.handle, handle);
        let result = self
            .allocate(2 * handle)
            .map_err(described)
            .and_then(|start| {
                let written = self.write_and_read(&functions, start + handle - 32);
                let part = self.release_part(start, handle).map_err(described);
                let rest = self.release(start).map_err(described);
                written.and(part).and(rest.map(|_| ()))
            });
        self.handle = usual;
        result
    }

    /// 64 bytes across the border of two handles.
    fn write_and_read(&self, functions: &CopyFunctions, address: u64) -> Result<(), String> {
        let written: Vec<u8> = (1..=64).collect();
        let mut read = vec![0u8; written.len()];
        // SAFETY: 64 bytes from a live buffer to memory that was just mapped for writing.
        let there = unsafe {
            (functions.copy)(
                address as *mut c_void,
                written.as_ptr().cast(),
                written.len(),
                COPY_HOST_TO_DEVICE,
            )
        };
        // SAFETY: and back, into a live buffer of that size.
        let back = unsafe {
            (functions.copy)(
                read.as_mut_ptr().cast(),
                address as *const c_void,
                read.len(),
                COPY_DEVICE_TO_HOST,
            )
        };
        match (there, back) {
            (0, 0) if read == written => Ok(()),
            (0, 0) => Err("what was written to mapped memory did not come back".to_owned()),
            (0, code) | (code, _) => Err(format!("a copy to mapped memory: error {code}")),
        }
    }

    /// Reserves, creates and maps; undoes everything if a call fails.
    pub(super) fn allocate(&mut self, bytes: u64) -> Result<u64, Failure> {
        let mut start = 0;
        // SAFETY: writes one address to a live local.
        let status = unsafe { (self.functions.reserve)(&mut start, bytes as usize, 0, 0, 0) };
        check("MemAddressReserve", status)?;
        let mut reservation = Reservation {
            bytes,
            handles: Vec::new(),
        };
        let mapped = self.map_all(start, &mut reservation).and_then(|()| {
            let access = Access {
                location: location(self.device),
                flags: ACCESS_READ_WRITE,
            };
            // SAFETY: the range was mapped above; one description of the documented layout.
            check("MemSetAccess", unsafe {
                (self.functions.set_access)(start, bytes as usize, &access, 1)
            })
        });
        self.reservations.insert(start, reservation);
        if let Err(failure) = mapped {
            // If undoing fails, the memory is lost; the first failure is the one to report.
            let _ = self.release(start);
            return Err(failure);
        }
        Ok(start)
    }

    fn map_all(&self, start: u64, reservation: &mut Reservation) -> Result<(), Failure> {
        let mut offset = 0;
        while offset < reservation.bytes {
            let bytes = self.handle.min(reservation.bytes - offset);
            let mut handle = 0;
            // SAFETY: writes one handle to a live local, reads properties of the documented layout.
            let status = unsafe {
                (self.functions.create)(&mut handle, bytes as usize, &properties(self.device), 0)
            };
            check("MemCreate", status)?;
            // SAFETY: a range of the reservation that nothing is mapped to, and a new
            // handle of the same size.
            let status =
                unsafe { (self.functions.map)(start + offset, bytes as usize, 0, handle, 0) };
            if let Err(failure) = check("MemMap", status) {
                // SAFETY: made above and mapped nowhere.
                unsafe { (self.functions.release)(handle) };
                return Err(failure);
            }
            reservation.handles.push(Some((handle, bytes)));
            offset += bytes;
        }
        Ok(())
    }

    /// Releases the handles of a range: all of them, or none and an error.
    ///
    /// The program must never get memory that does not exist. So if a range can be
    /// neither unmapped completely nor mapped again, it counts as released, and so does memory that the
    /// runtime refuses to release after it was unmapped.
    pub(super) fn release_part(&mut self, address: u64, bytes: u64) -> Result<(), Failure> {
        let going = self.parts(address, bytes)?;
        for (done, part) in going.iter().enumerate() {
            // SAFETY: nothing in flight touches the range (the contract of
            // `Driver::release_part`), and the handle is mapped there.
            let status = unsafe { (self.functions.unmap)(part.address, part.bytes as usize) };
            if let Err(failure) = check("MemUnmap", status) {
                if going[..done].iter().all(|part| self.put_back(part)) {
                    return Err(failure);
                }
                break;
            }
        }
        for part in &going {
            // SAFETY: ours; the runtime keeps what is still mapped until that ends.
            unsafe { (self.functions.release)(part.handle) };
        }
        let found = self.reservations.range_mut(..=address).next_back();
        for (slot, part) in found.into_iter().flat_map(|(_, reservation)| {
            let slots = reservation.handles.iter_mut();
            slots.filter_map(|slot| slot.map(|(handle, _)| (slot, handle)))
        }) {
            if going.iter().any(|gone| gone.handle == part) {
                *slot = None;
            }
        }
        Ok(())
    }

    /// The handles within a range.
    fn parts(&self, address: u64, bytes: u64) -> Result<Vec<Part>, Failure> {
        let found = self.reservations.range(..=address).next_back();
        let (&start, reservation) = found.ok_or(("MemUnmap", 1))?;
        let mut at = start;
        let mut parts = Vec::new();
        for slot in &reservation.handles {
            let Some((handle, size)) = *slot else {
                at += self.handle;
                continue;
            };
            if at >= address && at + size <= address + bytes {
                parts.push(Part {
                    address: at,
                    bytes: size,
                    handle,
                });
            }
            at += size;
        }
        Ok(parts)
    }

    /// Maps a handle at its old position again.
    fn put_back(&self, part: &Part) -> bool {
        let length = part.bytes as usize;
        // SAFETY: the range is of a reservation of ours and was unmapped a moment ago, and
        // the handle has its size.
        let mapped = unsafe { (self.functions.map)(part.address, length, 0, part.handle, 0) };
        let access = Access {
            location: location(self.device),
            flags: ACCESS_READ_WRITE,
        };
        // SAFETY: the range is mapped if the first call worked, else it is not looked at;
        // one description of the documented layout.
        mapped == 0 && unsafe { (self.functions.set_access)(part.address, length, &access, 1) } == 0
    }

    /// Releases the rest of an allocation; returns how many bytes of it were mapped.
    pub(super) fn release(&mut self, start: u64) -> Result<u64, Failure> {
        let Some(reservation) = self.reservations.get(&start) else {
            return Err(("MemAddressFree", 1));
        };
        let (bytes, left) = (reservation.bytes, reservation.left());
        self.release_part(start, bytes)?;
        // Addresses that the runtime keeps cost nothing.
        // SAFETY: reserved by `allocate` with this size, and no handle of ours is in it.
        unsafe { (self.functions.unreserve)(start, bytes as usize) };
        self.reservations.remove(&start);
        Ok(left)
    }

    /// Whether an allocation is mapped.
    pub(super) fn has(&self, start: u64) -> bool {
        self.reservations.contains_key(&start)
    }
}

impl Reservation {
    fn left(&self) -> u64 {
        let there = self.handles.iter().flatten();
        there.map(|(_, bytes)| bytes).sum()
    }
}

fn location(device: DeviceIndex) -> Location {
    Location {
        kind: LOCATION_DEVICE,
        id: device.0,
    }
}

fn properties(device: DeviceIndex) -> Properties {
    Properties {
        kind: ALLOCATION_PINNED,
        handle_types: 0,
        location: location(device),
        win32_metadata: std::ptr::null_mut(),
        flags: [0; 8],
    }
}

fn check(call: &'static str, status: Status) -> Result<(), Failure> {
    if status == 0 {
        Ok(())
    } else {
        Err((call, status))
    }
}

/// CUDA's driver, which its runtime has loaded.
pub(super) fn loaded_cuda_driver() -> Option<Library> {
    use libloading::os::unix::{RTLD_LAZY, RTLD_LOCAL};
    let flags = RTLD_LAZY | RTLD_LOCAL | libc::RTLD_NOLOAD;
    // SAFETY: nothing new is loaded.
    unsafe { Library::open(Some("libcuda.so.1"), flags) }.ok()
}
