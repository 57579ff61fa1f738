//! A device that exists only in arithmetic: addresses without memory.
//!
//! Replays and tests run the real pool on it. It takes orders: how much memory
//! there is, how many polls an event takes, and which call fails. It checks its
//! caller: giving back what was not given, or a wrong size, is an error.

use super::{Driver, DriverError, EventId, MemoryInfo};
use crate::units::{GIB, MIB, StreamId};
use std::collections::{BTreeMap, HashMap};

/// Orders for a [`SimDriver`].
#[derive(Clone, Debug)]
pub struct SimOrders {
    /// Bytes of the device.
    pub capacity: u64,
    /// How often an event is polled before it counts as reached; 0: work is always done.
    pub polls_per_event: u32,
    /// The n-th call (from 1, of any kind) fails with this error.
    pub fail_call: Option<(u64, DriverError)>,
}

impl Default for SimOrders {
    fn default() -> Self {
        SimOrders {
            capacity: 1024 * GIB,
            polls_per_event: 0,
            fail_call: None,
        }
    }
}

/// The simulated device.
pub struct SimDriver {
    orders: SimOrders,
    /// Given out: address to bytes.
    allocations: BTreeMap<u64, u64>,
    held: u64,
    next_address: u64,
    events: HashMap<u64, u32>,
    next_event: u64,
    calls: u64,
}

/// Blocks start at multiples of this, as a GPU's allocations do.
const ADDRESS_STEP: u64 = 2 * MIB;

impl SimDriver {
    /// A device with these orders.
    pub fn new(orders: SimOrders) -> Self {
        SimDriver {
            orders,
            allocations: BTreeMap::new(),
            held: 0,
            next_address: 0x7f00_0000_0000,
            events: HashMap::new(),
            next_event: 1,
            calls: 0,
        }
    }

    /// Bytes given out now.
    pub fn held(&self) -> u64 {
        self.held
    }

    /// Calls of any kind so far.
    pub fn calls(&self) -> u64 {
        self.calls
    }

    /// New orders; what was given out stays.
    pub fn orders_mut(&mut self) -> &mut SimOrders {
        &mut self.orders
    }

    fn count_call(&mut self) -> Result<(), DriverError> {
        self.calls += 1;
        match &self.orders.fail_call {
            Some((number, error)) if *number == self.calls => Err(error.clone()),
            _ => Ok(()),
        }
    }

    fn misuse(call: &'static str, message: String) -> DriverError {
        DriverError::Failed {
            call,
            code: 1,
            message,
        }
    }
}

impl Driver for SimDriver {
    fn allocate(&mut self, bytes: u64) -> Result<u64, DriverError> {
        self.count_call()?;
        if bytes == 0 || self.held.saturating_add(bytes) > self.orders.capacity {
            return Err(DriverError::OutOfMemory);
        }
        let address = self.next_address;
        // A gap, so that two blocks never touch.
        self.next_address += bytes.next_multiple_of(ADDRESS_STEP) + ADDRESS_STEP;
        self.allocations.insert(address, bytes);
        self.held += bytes;
        Ok(address)
    }

    fn release(&mut self, address: u64, bytes: u64) -> Result<(), DriverError> {
        self.count_call()?;
        match self.allocations.get(&address) {
            Some(&given) if given == bytes => {
                self.allocations.remove(&address);
                self.held -= bytes;
                Ok(())
            }
            Some(given) => Err(Self::misuse(
                "release",
                format!("{address:#x} has {given} bytes, not {bytes}"),
            )),
            None => Err(Self::misuse(
                "release",
                format!("{address:#x} was not given"),
            )),
        }
    }

    fn record(&mut self, _stream: StreamId) -> Result<Option<EventId>, DriverError> {
        self.count_call()?;
        if self.orders.polls_per_event == 0 {
            return Ok(None);
        }
        let event = self.next_event;
        self.next_event += 1;
        self.events.insert(event, self.orders.polls_per_event);
        Ok(Some(EventId(event)))
    }

    fn reached(&mut self, event: EventId) -> Result<bool, DriverError> {
        self.count_call()?;
        match self.events.get_mut(&event.0) {
            Some(polls) if *polls > 1 => {
                *polls -= 1;
                Ok(false)
            }
            Some(_) => {
                self.events.remove(&event.0);
                Ok(true)
            }
            None => Err(Self::misuse("reached", format!("no event {}", event.0))),
        }
    }

    fn wait(&mut self, event: EventId) -> Result<(), DriverError> {
        self.count_call()?;
        match self.events.remove(&event.0) {
            Some(_) => Ok(()),
            None => Err(Self::misuse("wait", format!("no event {}", event.0))),
        }
    }

    fn synchronize(&mut self) -> Result<(), DriverError> {
        self.count_call()?;
        for polls in self.events.values_mut() {
            *polls = 1;
        }
        Ok(())
    }

    fn memory_info(&mut self, _held: u64) -> Result<MemoryInfo, DriverError> {
        Ok(MemoryInfo {
            free: self.orders.capacity - self.held,
            total: self.orders.capacity,
        })
    }
}
