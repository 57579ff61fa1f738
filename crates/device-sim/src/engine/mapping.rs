//! Virtual memory: handles to physical memory, mapped into reserved addresses.
//!
//! Physical memory is a part of one sparse file, so the same handle can be
//! mapped twice with the same contents, and punching a hole frees it.

use std::collections::{BTreeMap, HashMap};

use super::address_space::AddressSpace;
use super::memory::{Kind, Memory};
use super::pages::{self, PhysicalFile};
use crate::status::Status;

/// The size of the file, which takes no memory until it is written.
const FILE_SIZE: u64 = 1 << 42;

/// Handles start here, so that small numbers are never valid.
const FIRST_HANDLE: u64 = 0x5000_0000;

/// The physical memory of a handle.
struct Physical {
    device: usize,
    offset: u64,
    size: u64,
    /// Whether the program still holds the handle.
    owned: u32,
    /// The number of its mappings.
    mapped: u32,
}

/// A mapping of a handle (or a part of it).
struct Mapping {
    handle: u64,
    size: u64,
    accessible: bool,
}

/// All handles and where they are mapped.
#[derive(Default)]
pub(crate) struct Mappings {
    file: Option<(PhysicalFile, AddressSpace)>,
    handles: HashMap<u64, Physical>,
    next_handle: u64,
    by_start: BTreeMap<u64, Mapping>,
}

impl Mappings {
    /// Whether anything is mapped in a range.
    pub(crate) fn overlap(&self, start: u64, size: u64) -> bool {
        let last = self.by_start.range(..start + size).next_back();
        last.is_some_and(|(at, mapping)| at + mapping.size > start)
    }

    /// Whether a whole range is mapped and may be read and written.
    pub(crate) fn accessible(&self, start: u64, size: u64) -> bool {
        let end = start + size;
        let mut at = start;
        while at < end {
            match self.by_start.range(..=at).next_back() {
                Some((from, mapping)) if mapping.accessible && from + mapping.size > at => {
                    at = from + mapping.size
                }
                _ => return false,
            }
        }
        true
    }

    /// The device and size of a handle.
    pub(crate) fn describe(&self, handle: u64) -> Option<(usize, u64)> {
        self.handles
            .get(&handle)
            .map(|physical| (physical.device, physical.size))
    }

    /// The handle mapped at an address; the caller owns it once more.
    pub(crate) fn retain(&mut self, address: u64) -> Option<u64> {
        let (from, mapping) = self.by_start.range(..=address).next_back()?;
        let handle = (from + mapping.size > address).then_some(mapping.handle)?;
        self.handles.get_mut(&handle)?.owned += 1;
        Some(handle)
    }

    /// Starts of the mappings, one or more, that make up exactly `start..start + size`.
    fn covering(&self, start: u64, size: u64) -> Option<Vec<u64>> {
        let end = start.checked_add(size).filter(|_| size > 0)?;
        let mut starts = Vec::new();
        let mut at = start;
        while at < end {
            starts.push(at);
            at += self.by_start.get(&at)?.size;
        }
        (at == end).then_some(starts)
    }
}

impl Memory {
    /// Takes physical memory from a device.
    pub(crate) fn create_handle(&mut self, device: usize, size: u64) -> Result<u64, Status> {
        if size == 0 || !size.is_multiple_of(self.budget.granularity.max(pages::PAGE)) {
            return Err(Status::INVALID_VALUE);
        }
        if self.mappings.file.is_none() {
            let file = PhysicalFile::new(FILE_SIZE).map_err(|_| Status::NOT_SUPPORTED)?;
            self.mappings.file = Some((file, AddressSpace::new(0, FILE_SIZE)));
            self.mappings.next_handle = FIRST_HANDLE;
        }
        self.charge(device, size)?;
        let place = self
            .mappings
            .file
            .as_mut()
            .and_then(|(_, space)| space.allocate(size, pages::PAGE));
        let Some(offset) = place else {
            self.discharge(device, size);
            return Err(Status::OUT_OF_MEMORY);
        };
        self.usage[device].live += 1;
        let handle = self.mappings.next_handle;
        self.mappings.next_handle += 1;
        self.mappings.handles.insert(
            handle,
            Physical {
                device,
                offset,
                size,
                owned: 1,
                mapped: 0,
            },
        );
        Ok(handle)
    }

    /// Releases a handle; its memory is freed when it has no mappings.
    pub(crate) fn release_handle(&mut self, handle: u64) -> Result<(), Status> {
        let physical = self
            .mappings
            .handles
            .get_mut(&handle)
            .filter(|physical| physical.owned > 0);
        physical.ok_or(Status::INVALID_VALUE)?.owned -= 1;
        self.drop_if_unused(handle);
        Ok(())
    }

    /// Maps `size` bytes of a handle from `offset` at `start`.
    pub(crate) fn map(
        &mut self,
        start: u64,
        size: u64,
        offset: u64,
        handle: u64,
    ) -> Result<(), Status> {
        let region = self
            .region(start)
            .filter(|region| region.kind == Kind::Reserved);
        let region = region.ok_or(Status::INVALID_VALUE)?;
        let inside = start
            .checked_add(size)
            .is_some_and(|end| end <= region.start + region.size);
        let aligned = [start, size, offset]
            .iter()
            .all(|value| value.is_multiple_of(pages::PAGE));
        if size == 0 || !inside || !aligned || self.mappings.overlap(start, size) {
            return Err(Status::INVALID_VALUE);
        }
        let physical = self
            .mappings
            .handles
            .get_mut(&handle)
            .filter(|physical| physical.owned > 0)
            .ok_or(Status::INVALID_VALUE)?;
        if offset
            .checked_add(size)
            .is_none_or(|end| end > physical.size)
        {
            return Err(Status::INVALID_VALUE);
        }
        let (file, _) = self.mappings.file.as_ref().ok_or(Status::INVALID_VALUE)?;
        // SAFETY: the range is inside a reserved region and overlaps no mapping,
        // both checked above, so it overlays nothing that anybody uses.
        unsafe { file.map(start, size, physical.offset + offset) }
            .map_err(|_| Status::OUT_OF_MEMORY)?;
        physical.mapped += 1;
        self.mappings.by_start.insert(
            start,
            Mapping {
                handle,
                size,
                accessible: false,
            },
        );
        Ok(())
    }

    /// Removes the mappings of exactly this range (of one or more mappings).
    pub(crate) fn unmap(&mut self, start: u64, size: u64) -> Result<(), Status> {
        let starts = self
            .mappings
            .covering(start, size)
            .ok_or(Status::INVALID_VALUE)?;
        // SAFETY: the range is made up of mappings inside the arena, and the
        // program has just said that it no longer uses them.
        unsafe { pages::unmap(start, size) }.map_err(|_| Status::UNKNOWN)?;
        for start in starts {
            let Some(mapping) = self.mappings.by_start.remove(&start) else {
                continue;
            };
            if let Some(physical) = self.mappings.handles.get_mut(&mapping.handle) {
                physical.mapped -= 1;
            }
            self.drop_if_unused(mapping.handle);
        }
        Ok(())
    }

    /// Allows or forbids access to exactly this range (of one or more mappings).
    pub(crate) fn set_access(&mut self, start: u64, size: u64, access: bool) -> Result<(), Status> {
        let starts = self
            .mappings
            .covering(start, size)
            .ok_or(Status::INVALID_VALUE)?;
        // SAFETY: the range is made up of mappings of the file inside the arena.
        unsafe { pages::set_access(start, size, access) }.map_err(|_| Status::OUT_OF_MEMORY)?;
        for start in starts {
            if let Some(mapping) = self.mappings.by_start.get_mut(&start) {
                mapping.accessible = access;
            }
        }
        Ok(())
    }

    fn drop_if_unused(&mut self, handle: u64) {
        let unused = |physical: &Physical| physical.owned == 0 && physical.mapped == 0;
        if !self.mappings.handles.get(&handle).is_some_and(unused) {
            return;
        }
        if let Some(physical) = self.mappings.handles.remove(&handle) {
            if let Some((file, space)) = &mut self.mappings.file {
                file.punch(physical.offset, physical.size);
                space.release(physical.offset, physical.size);
            }
            self.discharge(physical.device, physical.size);
            self.usage[physical.device].live -= 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::memory::{Budget, MemoryType};
    use super::*;

    const MIB: u64 = 1 << 20;

    #[test]
    fn one_handle_at_two_places_shows_the_same_bytes() {
        let mut memory = Memory::new(1, Budget::default()).unwrap();
        let handle = memory.create_handle(0, 2 * MIB).unwrap();
        let range = memory.reserve(8 * MIB, 2 * MIB).unwrap();
        for start in [range, range + 4 * MIB] {
            memory.map(start, 2 * MIB, 0, handle).unwrap();
            memory.set_access(start, 2 * MIB, true).unwrap();
        }
        // SAFETY: both ranges were just mapped with access and are nobody else's.
        unsafe {
            (range as *mut u32).write_volatile(0xCAFE);
            assert_eq!(((range + 4 * MIB) as *const u32).read_volatile(), 0xCAFE);
        }
    }

    #[test]
    fn memory_is_held_until_neither_handle_nor_mapping_is_left() {
        let mut memory = Memory::new(1, Budget::default()).unwrap();
        let handle = memory.create_handle(0, 2 * MIB).unwrap();
        let range = memory.reserve(2 * MIB, 0).unwrap();
        memory.map(range, 2 * MIB, 0, handle).unwrap();
        memory.release_handle(handle).unwrap();
        assert_eq!(memory.usage[0].held, 2 * MIB);
        memory.unmap(range, 2 * MIB).unwrap();
        assert_eq!(memory.usage[0].held, 0);
        memory.unreserve(range, 2 * MIB).unwrap();
    }

    #[test]
    fn only_a_mapped_range_with_access_may_be_touched() {
        let mut memory = Memory::new(1, Budget::default()).unwrap();
        let range = memory.reserve(4 * MIB, 0).unwrap();
        let handles = [0, 1].map(|_| memory.create_handle(0, 2 * MIB).unwrap());
        assert_eq!(memory.classify(range, 1), Err(Status::ILLEGAL_ADDRESS));
        memory.map(range, 2 * MIB, 0, handles[0]).unwrap();
        assert_eq!(
            memory.classify(range, 1),
            Err(Status::ILLEGAL_ADDRESS),
            "no access yet"
        );
        memory.map(range + 2 * MIB, 2 * MIB, 0, handles[1]).unwrap();
        memory.set_access(range, 4 * MIB, true).unwrap();
        assert_eq!(
            memory.classify(range + MIB, 2 * MIB),
            Ok(MemoryType::Mapped)
        );
        memory.unmap(range + 2 * MIB, 2 * MIB).unwrap();
        assert_eq!(
            memory.classify(range + MIB, 2 * MIB),
            Err(Status::ILLEGAL_ADDRESS)
        );
        assert_eq!(memory.unreserve(range, 4 * MIB), Err(Status::INVALID_VALUE));
    }
}
