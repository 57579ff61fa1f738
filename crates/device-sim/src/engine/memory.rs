//! Device, managed and pinned memory: allocations and capacity.

use std::collections::BTreeMap;
use std::io;

use super::address_space::AddressSpace;
use super::mapping::Mappings;
use super::pages;
use crate::status::Status;

/// The kind of an address range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Memory of a device.
    Device,
    /// Memory that migrates between a device and the host.
    Managed,
    /// Host memory that the simulator allocated.
    Pinned,
    /// Host memory that the program allocated and registered.
    Registered,
    /// Addresses without memory, for mappings.
    Reserved,
}

/// A unique ID of a region, since addresses are reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RegionId(pub(crate) u64);

/// A range of addresses that was allocated for the program, or that it registered.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Region {
    pub(crate) id: RegionId,
    pub(crate) start: u64,
    /// The requested size; the region may be larger.
    pub(crate) size: u64,
    /// The memory that it takes from the device.
    pub(crate) held: u64,
    pub(crate) kind: Kind,
    pub(crate) device: usize,
    /// Whether it was freed on a stream that has not reached the free yet.
    pub(crate) leaving: bool,
}

/// The capacity of the devices, and how memory info reports it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Budget {
    /// Bytes per device.
    pub(crate) capacity: u64,
    /// One pool for devices and pinned host memory, instead of `capacity`.
    pub(crate) unified: Option<u64>,
    /// The reported total, which may be false.
    pub(crate) report_total: Option<u64>,
    /// Allocations are multiples of this.
    pub(crate) granularity: u64,
    /// Whether allocations use real memory immediately.
    pub(crate) populate: bool,
}

impl Default for Budget {
    fn default() -> Self {
        Self {
            capacity: 24 << 30,
            unified: None,
            report_total: None,
            granularity: pages::PAGE,
            populate: false,
        }
    }
}

/// How much of one device is in use.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Usage {
    pub(crate) held: u64,
    pub(crate) peak: u64,
    /// The sum of all that was taken from the budget and given back to it.
    pub(crate) moved: u64,
    pub(crate) live: u64,
}

/// All memory of all devices.
pub(crate) struct Memory {
    pub(crate) budget: Budget,
    pub(crate) usage: Vec<Usage>,
    pub(crate) pinned: u64,
    pub(crate) mappings: Mappings,
    arena: (u64, u64),
    space: AddressSpace,
    regions: BTreeMap<u64, Region>,
    next_region: u64,
}

impl Memory {
    pub(crate) fn new(devices: usize, budget: Budget) -> io::Result<Self> {
        let arena = pages::reserve_arena()?;
        Ok(Self {
            budget,
            usage: vec![Usage::default(); devices],
            pinned: 0,
            mappings: Mappings::default(),
            arena,
            space: AddressSpace::new(arena.0, arena.1),
            regions: BTreeMap::new(),
            next_region: 0,
        })
    }

    /// Free and total bytes as the runtime reports them: with `report_total` the
    /// free number may well exceed the total, as it does on some APUs.
    pub(crate) fn info(&self, device: usize) -> (u64, u64) {
        let total = self.budget.report_total.unwrap_or(self.limit());
        (self.available(device), total)
    }

    /// Allocates device or managed memory, at least a byte of it.
    pub(crate) fn allocate(&mut self, device: usize, size: u64, kind: Kind) -> Result<u64, Status> {
        if size == 0 {
            return Err(Status::INVALID_VALUE);
        }
        let held = size
            .checked_next_multiple_of(self.budget.granularity)
            .ok_or(Status::OUT_OF_MEMORY)?;
        self.charge(device, held)?;
        let alignment = if held >= 2 << 20 {
            2 << 20
        } else {
            self.budget.granularity.max(pages::PAGE)
        };
        let Some(start) = self.place(size, held, alignment, kind, device) else {
            self.discharge(device, held);
            return Err(Status::OUT_OF_MEMORY);
        };
        self.usage[device].live += 1;
        if self.budget.populate {
            // SAFETY: the region was just allocated from the arena; nothing else uses it yet.
            unsafe { pages::populate(start, held.next_multiple_of(pages::PAGE)) };
        }
        Ok(start)
    }

    /// Allocates pinned host memory, at least a byte of it.
    pub(crate) fn allocate_pinned(&mut self, size: u64) -> Result<u64, Status> {
        if size == 0 {
            return Err(Status::INVALID_VALUE);
        }
        let held = size
            .checked_next_multiple_of(pages::PAGE)
            .ok_or(Status::OUT_OF_MEMORY)?;
        if self.budget.unified.is_some() && held > self.available(0) {
            return Err(Status::OUT_OF_MEMORY);
        }
        let start = self
            .place(size, held, pages::PAGE, Kind::Pinned, 0)
            .ok_or(Status::OUT_OF_MEMORY)?;
        self.pinned += held;
        Ok(start)
    }

    /// The live region at an address; `host` selects the
    /// kind.
    pub(crate) fn freeable(&self, start: u64, host: bool) -> Result<Region, Status> {
        let region = self.regions.get(&start).ok_or(Status::INVALID_VALUE)?;
        match region.kind {
            _ if region.leaving => Err(Status::INVALID_VALUE),
            Kind::Device | Kind::Managed if !host => Ok(*region),
            Kind::Pinned if host => Ok(*region),
            _ => Err(Status::INVALID_VALUE),
        }
    }

    /// Frees what [`Memory::freeable`] found, unless another thread was faster.
    pub(crate) fn free(&mut self, region: Region) -> Result<(), Status> {
        let found = self.freeable(region.start, region.kind == Kind::Pinned)?;
        if found.id != region.id {
            return Err(Status::INVALID_VALUE);
        }
        self.give_back(found);
        Ok(())
    }

    /// Starts to free device memory in stream order: from now on it cannot be freed again, and
    /// [`Memory::free_leaving`] releases it when the stream reaches the free.
    pub(crate) fn leave(&mut self, start: u64) -> Result<RegionId, Status> {
        let id = self.freeable(start, false)?.id;
        if let Some(region) = self.regions.get_mut(&start) {
            region.leaving = true;
        }
        Ok(id)
    }

    /// The other half of [`Memory::leave`].
    pub(crate) fn free_leaving(&mut self, start: u64, id: RegionId) {
        let region = self.regions.get(&start).copied();
        if let Some(region) = region.filter(|region| region.id == id) {
            self.give_back(region);
        }
    }

    fn give_back(&mut self, region: Region) {
        let start = region.start;
        match region.kind {
            Kind::Pinned => self.pinned -= region.held,
            _ => {
                self.discharge(region.device, region.held);
                self.usage[region.device].live -= 1;
            }
        }
        self.regions.remove(&start);
        let size = region.held.next_multiple_of(pages::PAGE);
        // SAFETY: the region was the arena's, is no longer anybody's, and only
        // virtual-memory ranges, which are `Reserved`, are ever mapped to a file.
        unsafe { pages::release(start, size) };
        self.space.release(start, size);
    }

    /// Registers host memory that the program allocated itself.
    pub(crate) fn register(&mut self, start: u64, size: u64) -> Result<(), Status> {
        let end = start.checked_add(size).ok_or(Status::INVALID_VALUE)?;
        if size == 0 || start < pages::PAGE {
            return Err(Status::INVALID_VALUE);
        }
        let overlaps = self.regions.range(..end).next_back();
        if overlaps.is_some_and(|(_, region)| region.start + region.size > start) {
            return Err(Status::HOST_MEMORY_ALREADY_REGISTERED);
        }
        // Free memory of the arena will be allocated later.
        if self.touches_arena(start, end) {
            return Err(Status::INVALID_VALUE);
        }
        let id = self.region_id();
        self.regions.insert(
            start,
            Region {
                id,
                leaving: false,
                start,
                size,
                held: 0,
                kind: Kind::Registered,
                device: 0,
            },
        );
        Ok(())
    }

    /// Whether the program registered host memory from exactly this address on.
    pub(crate) fn registered(&self, start: u64) -> Result<RegionId, Status> {
        match self.regions.get(&start) {
            Some(region) if region.kind == Kind::Registered => Ok(region.id),
            _ => Err(Status::HOST_MEMORY_NOT_REGISTERED),
        }
    }

    /// Unregisters host memory.
    pub(crate) fn unregister(&mut self, start: u64, id: RegionId) -> Result<(), Status> {
        if self.registered(start)? != id {
            return Err(Status::HOST_MEMORY_NOT_REGISTERED);
        }
        self.regions.remove(&start);
        Ok(())
    }

    /// Reserves addresses for mappings.
    pub(crate) fn reserve(&mut self, size: u64, alignment: u64) -> Result<u64, Status> {
        let alignment = alignment.max(pages::PAGE);
        if size == 0 || !size.is_multiple_of(pages::PAGE) || !alignment.is_power_of_two() {
            return Err(Status::INVALID_VALUE);
        }
        self.place(size, size, alignment, Kind::Reserved, 0)
            .ok_or(Status::OUT_OF_MEMORY)
    }

    /// Gives addresses back; nothing may be mapped there any more.
    pub(crate) fn unreserve(&mut self, start: u64, size: u64) -> Result<(), Status> {
        match self.regions.get(&start) {
            Some(region) if region.kind == Kind::Reserved && region.size == size => {}
            _ => return Err(Status::INVALID_VALUE),
        }
        if self.mappings.overlap(start, size) {
            return Err(Status::INVALID_VALUE);
        }
        self.regions.remove(&start);
        self.space.release(start, size);
        Ok(())
    }

    /// The region that holds an address, if the program was given one.
    pub(crate) fn region(&self, address: u64) -> Option<&Region> {
        let (_, region) = self.regions.range(..=address).next_back()?;
        let inside = address < region.start + region.size;
        inside.then_some(region)
    }

    /// Whether a kernel may read `size` bytes behind an operand that ends here. No other allocation makes it so: ROCm leaves an
    /// unmapped page between two of them (`HSA_SVM_GUARD_PAGES`, 1 by default).
    pub(crate) fn is_mapped_behind(&self, operand: u64, size: u64) -> bool {
        let Some((_, region)) = self.regions.range(..operand).next_back() else {
            return false;
        };
        match region.kind {
            Kind::Reserved => self.mappings.accessible(operand - 1, 1 + size),
            _ => {
                let held = region.held.max(region.size);
                operand + size <= region.start + held.next_multiple_of(pages::PAGE)
            }
        }
    }

    /// What a copy or memset of `size` bytes at `address` touches: device memory,
    /// host memory, or nothing that it may touch.
    pub(crate) fn classify(&self, address: u64, size: u64) -> Result<MemoryType, Status> {
        let end = address.checked_add(size).ok_or(Status::INVALID_VALUE)?;
        if address < pages::PAGE {
            return Err(Status::INVALID_VALUE);
        }
        let inside = self
            .region(address)
            .filter(|region| end <= region.start + region.size);
        let Some(region) = inside else {
            // Host memory may continue beyond what was registered, but not into a device's.
            return if self.touches_arena(address, end) {
                Err(Status::ILLEGAL_ADDRESS)
            } else {
                Ok(MemoryType::Pageable)
            };
        };
        match region.kind {
            Kind::Pinned | Kind::Registered => Ok(MemoryType::Pinned),
            Kind::Device | Kind::Managed => Ok(MemoryType::Device),
            Kind::Reserved if self.mappings.accessible(address, size) => Ok(MemoryType::Mapped),
            Kind::Reserved => Err(Status::ILLEGAL_ADDRESS),
        }
    }

    /// Takes `bytes` from a device's budget.
    pub(crate) fn charge(&mut self, device: usize, bytes: u64) -> Result<(), Status> {
        if bytes > self.available(device) {
            return Err(Status::OUT_OF_MEMORY);
        }
        let usage = &mut self.usage[device];
        usage.held += bytes;
        usage.peak = usage.peak.max(usage.held);
        usage.moved += bytes;
        Ok(())
    }

    /// Gives `bytes` back to a device's budget.
    pub(crate) fn discharge(&mut self, device: usize, bytes: u64) {
        let usage = &mut self.usage[device];
        usage.held -= bytes;
        usage.moved += bytes;
    }

    /// Whether zeroing at `address` may give pages back instead: not where they
    /// belong to a file, and not in the program's own memory.
    pub(crate) fn discardable(&self, address: u64) -> bool {
        let owned = [Kind::Device, Kind::Managed, Kind::Pinned];
        self.region(address)
            .is_some_and(|region| owned.contains(&region.kind))
    }

    /// Zeroes a range without taking memory for it.
    ///
    /// # Safety
    /// The range lies inside one region for which [`Memory::discardable`] holds.
    pub(crate) unsafe fn zero(&self, start: u64, size: u64) {
        let first = start.next_multiple_of(pages::PAGE);
        let last = (start + size) / pages::PAGE * pages::PAGE;
        // SAFETY: the caller promises that the range is the arena's own plain
        // memory; head and tail lie inside it, and so do the whole pages between.
        unsafe {
            (start as *mut u8).write_bytes(0, (first - start) as usize);
            pages::discard(first, last - first);
            (last as *mut u8).write_bytes(0, (start + size - last) as usize);
        }
    }

    fn touches_arena(&self, start: u64, end: u64) -> bool {
        let (arena, size) = self.arena;
        start < arena + size && end > arena
    }

    fn region_id(&mut self) -> RegionId {
        self.next_region += 1;
        RegionId(self.next_region)
    }

    fn limit(&self) -> u64 {
        self.budget.unified.unwrap_or(self.budget.capacity)
    }

    fn available(&self, device: usize) -> u64 {
        let used = match self.budget.unified {
            Some(_) => self.usage.iter().map(|usage| usage.held).sum::<u64>() + self.pinned,
            None => self.usage[device].held,
        };
        self.limit().saturating_sub(used)
    }

    fn place(
        &mut self,
        size: u64,
        held: u64,
        alignment: u64,
        kind: Kind,
        device: usize,
    ) -> Option<u64> {
        let bytes = held.checked_next_multiple_of(pages::PAGE)?;
        let start = self.space.allocate(bytes, alignment)?;
        // SAFETY: a part of the arena that was just reserved for this.
        if kind != Kind::Reserved && !unsafe { pages::commit(start, bytes) } {
            self.space.release(start, bytes);
            return None;
        }
        let id = self.region_id();
        self.regions.insert(
            start,
            Region {
                id,
                leaving: false,
                start,
                size,
                held,
                kind,
                device,
            },
        );
        Some(start)
    }
}

/// What kind of memory an operation touches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MemoryType {
    /// Allocated device memory.
    Device,
    /// Device memory that was mapped into reserved addresses.
    Mapped,
    /// Pinned host memory.
    Pinned,
    /// Any other host memory.
    Pageable,
}

impl MemoryType {
    pub(crate) fn on_device(self) -> bool {
        matches!(self, MemoryType::Device | MemoryType::Mapped)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn memory(budget: Budget) -> Memory {
        Memory::new(1, budget).unwrap()
    }

    fn free(memory: &mut Memory, start: u64) -> Result<(), Status> {
        memory.free(memory.freeable(start, false)?)
    }

    #[test]
    fn what_does_not_fit_is_refused_and_changes_nothing() {
        let mut memory = memory(Budget {
            capacity: 1 << 20,
            ..Budget::default()
        });
        let first = memory.allocate(0, 1 << 19, Kind::Device).unwrap();
        assert_eq!(
            memory.allocate(0, (1 << 19) + 1, Kind::Device),
            Err(Status::OUT_OF_MEMORY)
        );
        assert_eq!(memory.info(0), (1 << 19, 1 << 20));
        free(&mut memory, first).unwrap();
        assert_eq!(memory.info(0), (1 << 20, 1 << 20));
        assert_eq!((memory.usage[0].peak, memory.usage[0].live), (1 << 19, 0));
    }

    #[test]
    fn freed_memory_reads_as_zeros_when_it_is_given_out_again() {
        let mut memory = memory(Budget::default());
        let first = memory.allocate(0, 8192, Kind::Device).unwrap();
        // SAFETY: the 8192 bytes were just allocated and are nobody else's.
        unsafe { (first as *mut u8).write_bytes(7, 8192) };
        free(&mut memory, first).unwrap();
        let second = memory.allocate(0, 8192, Kind::Device).unwrap();
        assert_eq!(first, second, "best fit gives the same range again");
        // SAFETY: as above.
        let bytes = unsafe { std::slice::from_raw_parts(second as *const u8, 8192) };
        assert!(bytes.iter().all(|byte| *byte == 0));
    }

    #[test]
    fn behind_an_operand_is_mapped_what_its_own_allocation_has() {
        let mut memory = memory(Budget::default());
        let first = memory.allocate(0, 5000, Kind::Device).unwrap();
        assert!(memory.is_mapped_behind(first + 5000, 3192));
        assert!(!memory.is_mapped_behind(first + 5000, 3193));
        let second = memory.allocate(0, 4096, Kind::Device).unwrap();
        assert_eq!(second, first + 2 * 4096, "next to it");
        assert!(!memory.is_mapped_behind(first + 5000, 4096));
        assert!(!memory.is_mapped_behind(first, 1));
    }

    #[test]
    fn unified_memory_is_one_pool_and_free_may_exceed_the_reported_total() {
        let mut memory = memory(Budget {
            unified: Some(1 << 30),
            report_total: Some(1 << 28),
            ..Budget::default()
        });
        assert_eq!(memory.info(0), (1 << 30, 1 << 28));
        memory.allocate_pinned(1 << 29).unwrap();
        assert_eq!(
            memory.allocate(0, (1 << 29) + 1, Kind::Device),
            Err(Status::OUT_OF_MEMORY)
        );
        memory.allocate(0, 1 << 29, Kind::Device).unwrap();
        assert_eq!(memory.allocate_pinned(1), Err(Status::OUT_OF_MEMORY));
    }

    #[test]
    fn addresses_are_told_apart() {
        let mut memory = memory(Budget::default());
        let device = memory.allocate(0, 4096, Kind::Device).unwrap();
        let pinned = memory.allocate_pinned(4096).unwrap();
        let local = [0_u8; 16];
        assert_eq!(memory.classify(device + 4000, 96), Ok(MemoryType::Device));
        assert_eq!(
            memory.classify(device + 4000, 97),
            Err(Status::ILLEGAL_ADDRESS)
        );
        assert_eq!(memory.classify(pinned, 4096), Ok(MemoryType::Pinned));
        assert_eq!(
            memory.classify(local.as_ptr() as u64, 16),
            Ok(MemoryType::Pageable)
        );
        free(&mut memory, device).unwrap();
        assert_eq!(memory.classify(device, 1), Err(Status::ILLEGAL_ADDRESS));
        assert_eq!(free(&mut memory, device), Err(Status::INVALID_VALUE));
        assert_eq!(free(&mut memory, pinned), Err(Status::INVALID_VALUE));
    }
}
