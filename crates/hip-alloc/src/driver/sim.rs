//! A simulated device: addresses without memory.
//!
//! Replays and tests run the real pool on it. It can be configured: how much memory
//! there is, how many polls an event takes, and which call fails. It checks its
//! caller: releasing an unknown address, or a wrong size, is an error.

use super::{Driver, DriverCost, DriverError, EventId, MemoryInfo};
use crate::units::{GIB, MIB, StreamId};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::Duration;

/// Configuration of a [`SimDriver`].
#[derive(Clone, Debug)]
pub struct SimConfig {
    /// Bytes of the device.
    pub capacity: u64,
    /// How often an event is polled before it is complete; 0: work is always complete.
    pub polls_per_event: u32,
    /// The n-th call (from 1, of any kind) fails with this error.
    pub fail_call: Option<(u64, DriverError)>,
    /// So do all calls after it, as on a device that was lost.
    pub fail_later_calls: bool,
    /// Simulated time of a call that allocates or releases memory.
    pub call_latency: Duration,
    /// How many bytes of allocated memory are cleared per simulated second; 0: it takes no time.
    pub clearing_rate: u64,
}

impl Default for SimConfig {
    fn default() -> Self {
        SimConfig {
            capacity: 1024 * GIB,
            polls_per_event: 0,
            fail_call: None,
            fail_later_calls: false,
            call_latency: Duration::ZERO,
            clearing_rate: 0,
        }
    }
}

/// The simulated device.
pub struct SimDriver {
    config: SimConfig,
    /// The size of each allocation, by address.
    allocations: BTreeMap<u64, u64>,
    held: u64,
    next_address: u64,
    events: HashMap<u64, u32>,
    next_event: u64,
    calls: u64,
    failed: BTreeSet<&'static str>,
    now: Duration,
}

/// Blocks start at multiples of this, as a GPU's allocations do.
const ADDRESS_STEP: u64 = 2 * MIB;

impl SimDriver {
    /// A device with this configuration.
    pub fn new(config: SimConfig) -> Self {
        SimDriver {
            config,
            allocations: BTreeMap::new(),
            held: 0,
            next_address: 0x7f00_0000_0000,
            events: HashMap::new(),
            next_event: 1,
            calls: 0,
            failed: BTreeSet::new(),
            now: Duration::ZERO,
        }
    }

    /// Advances the simulated time, for work of the program.
    pub fn advance(&mut self, time: Duration) {
        self.now += time;
    }

    /// The end of the allocation that an address is in, if it is in one.
    pub fn mapped_until(&self, address: u64) -> Option<u64> {
        let (start, bytes) = self.allocations.range(..=address).next_back()?;
        Some(start + bytes).filter(|end| address < *end)
    }

    /// Bytes that are currently allocated.
    pub fn held(&self) -> u64 {
        self.held
    }

    /// Calls of any kind so far.
    pub fn calls(&self) -> u64 {
        self.calls
    }

    /// Changes the configuration; existing allocations stay.
    pub fn config_mut(&mut self) -> &mut SimConfig {
        &mut self.config
    }

    /// The functions of [`Driver`] that failed as configured.
    pub fn failed(&self) -> &BTreeSet<&'static str> {
        &self.failed
    }

    fn count_call(&mut self, function: &'static str) -> Result<(), DriverError> {
        self.calls += 1;
        match &self.config.fail_call {
            Some((number, error))
                if *number == self.calls
                    || (self.config.fail_later_calls && *number < self.calls) =>
            {
                self.failed.insert(function);
                Err(error.clone())
            }
            _ => Ok(()),
        }
    }

    fn give(&mut self, bytes: u64) -> Result<u64, DriverError> {
        if bytes == 0 || self.held.saturating_add(bytes) > self.config.capacity {
            return Err(DriverError::OutOfMemory);
        }
        let address = self.next_address;
        // A gap, so that two blocks never touch.
        self.next_address += bytes.next_multiple_of(ADDRESS_STEP) + ADDRESS_STEP;
        self.allocations.insert(address, bytes);
        self.held += bytes;
        self.now += self.config.call_latency;
        if let Some(time) = (bytes * 1000).checked_div(self.config.clearing_rate / 1_000_000) {
            self.now += Duration::from_nanos(time);
        }
        Ok(address)
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
        self.count_call("allocate")?;
        self.give(bytes)
    }

    fn release(&mut self, address: u64, bytes: u64) -> Result<(), DriverError> {
        self.count_call("release")?;
        match self.allocations.get(&address) {
            Some(allocated) if *allocated == bytes => {
                self.held -= bytes;
                self.allocations.remove(&address);
                self.now += self.config.call_latency;
                Ok(())
            }
            Some(allocated) => Err(Self::misuse(
                "release",
                format!("{address:#x} has {allocated} bytes, not {bytes}"),
            )),
            None => Err(Self::misuse(
                "release",
                format!("{address:#x} was not given"),
            )),
        }
    }

    fn record(&mut self, _stream: StreamId) -> Result<Option<EventId>, DriverError> {
        self.count_call("record")?;
        if self.config.polls_per_event == 0 {
            return Ok(None);
        }
        let event = self.next_event;
        self.next_event += 1;
        self.events.insert(event, self.config.polls_per_event);
        Ok(Some(EventId(event)))
    }

    fn reached(&mut self, event: EventId) -> Result<bool, DriverError> {
        self.count_call("reached")?;
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
        self.count_call("wait")?;
        match self.events.remove(&event.0) {
            Some(_) => Ok(()),
            None => Err(Self::misuse("wait", format!("no event {}", event.0))),
        }
    }

    fn synchronize(&mut self) -> Result<(), DriverError> {
        self.count_call("synchronize")?;
        for polls in self.events.values_mut() {
            *polls = 1;
        }
        Ok(())
    }

    fn is_capturing(&mut self, _stream: StreamId) -> Result<bool, DriverError> {
        Ok(false)
    }

    fn enter_capture(&mut self) {}

    fn leave_capture(&mut self) {}

    fn runtime(&self) -> &'static str {
        "HIP"
    }

    fn survives_fork(&self) -> bool {
        true
    }

    fn survives_exit(&self) -> bool {
        true
    }

    fn needs_guard(&self) -> bool {
        false
    }

    fn cheap_memory_info(&mut self) -> Result<MemoryInfo, DriverError> {
        self.memory_info()
    }

    fn measure(&mut self) -> Option<DriverCost> {
        None
    }

    fn now(&mut self) -> Duration {
        self.now
    }

    fn memory_info(&mut self) -> Result<MemoryInfo, DriverError> {
        self.count_call("memory_info")?;
        Ok(MemoryInfo {
            free: self.config.capacity - self.held,
            total: self.config.capacity,
            ..MemoryInfo::default()
        })
    }
}
