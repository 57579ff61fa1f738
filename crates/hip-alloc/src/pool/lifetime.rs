//! Guessing from its size how long a request will live.
//!
//! Training asks for the same sizes again and again: gradients and optimizer
//! state have exactly the sizes of weights, and a step repeats the sizes of the
//! step before. So the record of a size tells what to expect of the next request
//! of that size.

use super::block::Region;
use crate::units::MIB;
use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

/// Smaller requests always go with the lasting ones: they are little in sum, fill
/// holes there, and would pin the blocks of passing requests if one of them stays.
const SMALL: u64 = MIB;

/// What is known about the lifetimes of each size.
#[derive(Default)]
pub(super) struct Lifetimes {
    by_size: HashMap<u64, Record, BuildHasherDefault<SizeHasher>>,
    allocations: u64,
    frees: u64,
}

#[derive(Default, Clone, Copy)]
struct Record {
    allocations: u32,
    frees: u32,
}

impl Lifetimes {
    /// Notes a request and says where it belongs.
    pub(super) fn allocated(&mut self, bytes: u64) -> Region {
        self.allocations += 1;
        if bytes < SMALL {
            return Region::Lasting;
        }
        let record = self.by_size.entry(bytes).or_default();
        let region = if record.allocations == 0 {
            // While a program only loads, everything stays.
            if self.frees * 8 < self.allocations {
                Region::Lasting
            } else {
                Region::Passing
            }
        } else if record.frees * 2 < record.allocations {
            Region::Lasting
        } else {
            Region::Passing
        };
        record.allocations += 1;
        region
    }

    /// Notes that a request of this size was freed.
    pub(super) fn freed(&mut self, bytes: u64) {
        self.frees += 1;
        if bytes < SMALL {
            return;
        }
        if let Some(record) = self.by_size.get_mut(&bytes) {
            record.frees += 1;
        }
    }
}

/// Sizes are multiples of the granule: one multiplication spreads them enough.
#[derive(Default)]
struct SizeHasher(u64);

impl Hasher for SizeHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.write_u64(u64::from(*byte));
        }
    }

    fn write_u64(&mut self, value: u64) {
        self.0 = (self.0 ^ value)
            .wrapping_mul(0x9E37_79B9_7F4A_7C15)
            .rotate_left(32);
    }
}
