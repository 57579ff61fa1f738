//! What PyTorch's own allocator would hold: a model of its rules, for comparison.
//!
//! The rules are those of `c10/cuda/CUDACachingAllocator.cpp` of PyTorch 2.13, for one device with enough memory:
//! sizes are rounded, small and large requests have separate pools for each stream, the smallest free block that fits
//! is taken and split, and nothing is returned to the driver. `tests/baselines.rs` compares the model with the real
//! allocator on the simulated device, byte for byte. It does not model what a trace does not contain: events, graphs,
//! several devices, running out of memory.

use std::collections::{BTreeMap, BTreeSet};

use crate::trace::{Event, Trace};
use hip_alloc::units::MIB;

/// Every size is a multiple of this.
const ROUNDING: u64 = 512;
/// Requests up to this come from the small pool.
const SMALL: u64 = MIB;
/// Segment size of the small pool.
const SMALL_SEGMENT: u64 = 2 * MIB;
/// Segment size of the large pool for requests below [`LARGE`].
const LARGE_SEGMENT: u64 = 20 * MIB;
/// Requests of at least this size get a segment of their own.
const LARGE: u64 = 10 * MIB;
/// The size of such a segment is a multiple of this.
const LARGE_ROUNDING: u64 = 2 * MIB;

/// A setting of PyTorch's allocator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Baseline {
    /// The defaults.
    Default,
    /// `max_split_size_mb`, in MiB.
    MaxSplitSize(u64),
    /// `expandable_segments:True`.
    ExpandableSegments,
    /// `PYTORCH_NO_CUDA_MEMORY_CACHING=1`: one driver allocation per tensor.
    NoCaching,
}

impl Baseline {
    /// The settings that people use.
    pub const ALL: [Baseline; 5] = [
        Baseline::Default,
        Baseline::ExpandableSegments,
        Baseline::MaxSplitSize(128),
        Baseline::MaxSplitSize(512),
        Baseline::NoCaching,
    ];

    /// Its name, as the setting is written.
    pub fn name(self) -> String {
        match self {
            Baseline::Default => "PyTorch default".into(),
            Baseline::MaxSplitSize(mib) => format!("max_split_size_mb:{mib}"),
            Baseline::ExpandableSegments => "expandable_segments".into(),
            Baseline::NoCaching => "no caching".into(),
        }
    }

    /// Replays a trace; `watch` gets the bytes held after each event.
    pub fn replay(self, trace: &Trace, watch: &mut dyn FnMut(usize, u64)) -> BaselineOutcome {
        let mut allocator = Caching::new(self);
        let mut outcome = BaselineOutcome::default();
        let mut live = 0;
        let mut calls = 0;
        let mut bytes = 0;
        let mut places = vec![None; trace.requests as usize];
        for (number, event) in trace.events.iter().enumerate() {
            match *event {
                Event::Allocate { id, bytes, stream } => {
                    live += bytes;
                    places[id as usize] = Some((allocator.allocate(bytes, stream), bytes));
                }
                Event::Free { id } => {
                    if let Some((place, bytes)) = places[id as usize].take() {
                        live -= bytes;
                        allocator.free(place);
                    }
                }
                Event::Step => {
                    if outcome.marks.is_empty() {
                        calls = allocator.driver_calls;
                        bytes = allocator.driver_bytes;
                    }
                    outcome.marks.push((live, allocator.held));
                }
            }
            outcome.peak_live = outcome.peak_live.max(live);
            outcome.peak_held = outcome.peak_held.max(allocator.held);
            watch(number, allocator.held);
        }
        outcome.driver_calls_in_steps = allocator.driver_calls - calls;
        outcome.driver_bytes_in_steps = allocator.driver_bytes - bytes;
        outcome
    }
}

/// What a peer held. Bytes and counts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BaselineOutcome {
    /// Highest sum of live requests.
    pub peak_live: u64,
    /// Most bytes that the allocator held at any time.
    pub peak_held: u64,
    /// At each step mark: live and held.
    pub marks: Vec<(u64, u64)>,
    /// Driver calls after the first mark: allocations and frees, and with expandable segments
    /// creating and mapping each page and reserving each address range.
    pub driver_calls_in_steps: u64,
    /// Total bytes allocated from and returned to the driver after the first mark.
    pub driver_bytes_in_steps: u64,
}

impl BaselineOutcome {
    /// Peak held over peak live.
    pub fn peak_ratio(&self) -> f64 {
        self.peak_held as f64 / self.peak_live.max(1) as f64
    }

    /// The most that was held beyond live memory at a step mark.
    pub fn idle_excess(&self) -> u64 {
        let excess = self
            .marks
            .iter()
            .map(|(live, held)| held.saturating_sub(*live));
        excess.max().unwrap_or(0)
    }

    /// Driver calls per step, after the first mark.
    pub fn calls_per_step(&self) -> f64 {
        self.driver_calls_in_steps as f64 / self.marks.len().max(1) as f64
    }
}

/// The model's address space: room for an unlimited segment on each of any number of streams.
type Address = u128;
/// The distance between the starts of two expandable segments.
const SEGMENT_ROOM: Address = 1 << 64;

/// Which pool: the stream, and whether it is the small one.
type PoolName = (u64, bool);

/// A position in the model's address space, which restarts with each segment.
#[derive(Clone, Copy, Debug)]
struct Block {
    pool: PoolName,
    bytes: u64,
    free: bool,
    /// Whether it is the first or last of its segment.
    first: bool,
    last: bool,
}

/// The allocator's state.
struct Caching {
    peer: Baseline,
    /// All blocks by address; those of a segment lie side by side.
    blocks: BTreeMap<Address, Block>,
    /// Free blocks by pool, size and address: the order in which PyTorch looks.
    free: BTreeSet<(PoolName, u64, Address)>,
    /// The last block of each expandable segment.
    tails: BTreeMap<PoolName, Address>,
    next_address: Address,
    held: u64,
    driver_calls: u64,
    driver_bytes: u64,
}

impl Caching {
    fn new(peer: Baseline) -> Self {
        Self {
            peer,
            blocks: BTreeMap::new(),
            free: BTreeSet::new(),
            tails: BTreeMap::new(),
            next_address: 0,
            held: 0,
            driver_calls: 0,
            driver_bytes: 0,
        }
    }

    fn max_split(&self) -> u64 {
        match self.peer {
            Baseline::MaxSplitSize(mib) => mib * MIB,
            _ => u64::MAX,
        }
    }

    /// The address of a block for `bytes`.
    fn allocate(&mut self, bytes: u64, stream: u64) -> Address {
        let bytes = bytes.div_ceil(ROUNDING).max(1) * ROUNDING;
        let pool = (stream, bytes <= SMALL);
        let address = match self.peer {
            Baseline::NoCaching => self.segment(pool, bytes),
            _ => match self.find(pool, bytes) {
                Some(address) => address,
                None if self.peer == Baseline::ExpandableSegments => self.expand(pool, bytes),
                None => self.segment(pool, segment_size(bytes)),
            },
        };
        self.take(address, bytes);
        address
    }

    /// The smallest free block that fits.
    fn find(&self, pool: PoolName, bytes: u64) -> Option<Address> {
        let limit = self.max_split();
        let mut fitting = self
            .free
            .range((pool, bytes, 0)..=(pool, u64::MAX, Address::MAX));
        let (_, size, address) = match self.peer {
            Baseline::ExpandableSegments => {
                // The end of a segment can grow without end, so it counts as the largest.
                let tail = self.tails.get(&pool).copied();
                let inner = fitting
                    .clone()
                    .find(|(_, _, address)| Some(*address) != tail);
                inner.or_else(|| fitting.next())?
            }
            _ => fitting.next()?,
        };
        // Blocks above the limit are not for requests below it, nor much larger than they.
        let oversize = *size >= limit && (bytes < limit || *size >= bytes + LARGE_SEGMENT);
        (!oversize).then_some(*address)
    }

    /// A new segment as one free block.
    fn segment(&mut self, pool: PoolName, bytes: u64) -> Address {
        let address = self.next_address;
        // A gap, so that blocks of two segments never touch.
        self.next_address += Address::from(bytes + ROUNDING);
        self.held += bytes;
        self.driver_bytes += bytes;
        self.driver_calls += 1;
        let block = Block {
            pool,
            bytes,
            free: true,
            first: true,
            last: true,
        };
        self.blocks.insert(address, block);
        self.free.insert((pool, bytes, address));
        address
    }

    /// More pages at the end of the pool's one segment, until `bytes` fit there.
    fn expand(&mut self, pool: PoolName, bytes: u64) -> Address {
        let page = if pool.1 { SMALL_SEGMENT } else { LARGE_SEGMENT };
        let Some(&tail) = self.tails.get(&pool) else {
            let pages = bytes.div_ceil(page);
            let address = self.segment(pool, pages * page);
            self.driver_calls += 2 * pages + 1;
            // Room for it to grow.
            self.next_address += SEGMENT_ROOM;
            self.tails.insert(pool, address);
            return address;
        };
        let last = self.blocks[&tail];
        let missing = match last.free {
            true => bytes - last.bytes,
            false => bytes,
        };
        let pages = missing.div_ceil(page);
        let grown = pages * page;
        self.held += grown;
        self.driver_bytes += grown;
        self.driver_calls += 2 * pages + 1;
        if last.free {
            self.free.remove(&(pool, last.bytes, tail));
            let whole = Block {
                bytes: last.bytes + grown,
                ..last
            };
            self.blocks.insert(tail, whole);
            self.free.insert((pool, whole.bytes, tail));
            return tail;
        }
        if let Some(block) = self.blocks.get_mut(&tail) {
            block.last = false;
        }
        let address = tail + Address::from(last.bytes);
        let block = Block {
            pool,
            bytes: grown,
            free: true,
            first: false,
            last: true,
        };
        self.blocks.insert(address, block);
        self.free.insert((pool, grown, address));
        self.tails.insert(pool, address);
        address
    }

    /// Makes a free block live, and its rest, if it is worth it, a block of its own.
    fn take(&mut self, address: Address, bytes: u64) {
        let rest_address = address + Address::from(bytes);
        let block = self.blocks[&address];
        self.free.remove(&(block.pool, block.bytes, address));
        let rest = block.bytes - bytes;
        let splits = match block.pool.1 {
            true => rest >= ROUNDING,
            false => bytes < self.max_split() && rest > SMALL,
        };
        let mut taken = Block {
            free: false,
            ..block
        };
        if splits {
            let remainder = Block {
                bytes: rest,
                first: false,
                ..block
            };
            self.blocks.insert(rest_address, remainder);
            self.free.insert((block.pool, rest, rest_address));
            if self.tails.get(&block.pool) == Some(&address) {
                self.tails.insert(block.pool, rest_address);
            }
            taken.bytes = bytes;
            taken.last = false;
        }
        self.blocks.insert(address, taken);
    }

    /// Makes a block free and joins it with free neighbours of its segment.
    fn free(&mut self, mut address: Address) {
        let Some(mut block) = self.blocks.remove(&address) else {
            return;
        };
        if self.peer == Baseline::NoCaching {
            self.held -= block.bytes;
            self.driver_bytes += block.bytes;
            self.driver_calls += 1;
            return;
        }
        if !block.last {
            let after = address + Address::from(block.bytes);
            let next = self.blocks[&after];
            if next.free {
                self.blocks.remove(&after);
                self.free.remove(&(next.pool, next.bytes, after));
                if self.tails.get(&block.pool) == Some(&after) {
                    self.tails.insert(block.pool, address);
                }
                block.bytes += next.bytes;
                block.last = next.last;
            }
        }
        if !block.first
            && let Some((&before, &previous)) = self.blocks.range(..address).next_back()
            && previous.free
        {
            self.blocks.remove(&before);
            self.free.remove(&(previous.pool, previous.bytes, before));
            if self.tails.get(&block.pool) == Some(&address) {
                self.tails.insert(block.pool, before);
            }
            block.bytes += previous.bytes;
            block.first = previous.first;
            address = before;
        }
        block.free = true;
        self.blocks.insert(address, block);
        self.free.insert((block.pool, block.bytes, address));
    }
}

fn segment_size(bytes: u64) -> u64 {
    match bytes {
        0..=SMALL => SMALL_SEGMENT,
        bytes if bytes < LARGE => LARGE_SEGMENT,
        bytes => bytes.div_ceil(LARGE_ROUNDING) * LARGE_ROUNDING,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn held(peer: Baseline, text: &str) -> Vec<u64> {
        let mut held = Vec::new();
        peer.replay(&Trace::parse(text).unwrap(), &mut |_, bytes| {
            held.push(bytes / MIB)
        });
        held
    }

    #[test]
    fn small_and_large_requests_have_segments_of_their_own() {
        let text = "a 1 100\na 2 1048576\na 3 1048577\na 4 20971520\na 5 100 7\nf 1\n";
        assert_eq!(held(Baseline::Default, text), [2, 2, 22, 42, 44, 44]);
        assert_eq!(
            held(Baseline::ExpandableSegments, text),
            [2, 2, 22, 42, 44, 44]
        );
    }

    #[test]
    fn a_freed_block_is_split_unless_it_is_above_the_limit() {
        let text = "a 1 209715200\nf 1\na 2 52428800\na 3 52428800\n";
        assert_eq!(held(Baseline::Default, text), [200, 200, 200, 200]);
        assert_eq!(
            held(Baseline::MaxSplitSize(128), text),
            [200, 200, 250, 300]
        );
        assert_eq!(held(Baseline::NoCaching, text), [200, 0, 50, 100]);
    }

    #[test]
    fn an_expandable_segment_grows_where_a_segment_is_added() {
        let text = "a 1 104857600\nf 1\na 2 209715200\n";
        assert_eq!(held(Baseline::Default, text), [100, 100, 300]);
        assert_eq!(held(Baseline::ExpandableSegments, text), [100, 100, 200]);
    }
}
