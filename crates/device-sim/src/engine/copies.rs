//! Copies and memsets: the bytes, and how they may arrive damaged.

use super::memory::{Memory, MemoryType};
use crate::settings::{CopyFault, Damage, Direction};
use crate::status::Status;

/// With `data=none`, transfers larger than this copy nothing.
const SMALL: u64 = 64 << 10;

/// To zero at least this much device memory, its pages are released instead.
const LARGE: u64 = 1 << 20;

/// Bytes to move or to set.
#[derive(Clone, Debug)]
pub(crate) enum Transfer {
    /// Rows of `width` bytes; a plain copy is one row.
    Copy {
        to: u64,
        from: u64,
        width: u64,
        height: u64,
        to_pitch: u64,
        from_pitch: u64,
        damage: Option<Damage>,
    },
    /// `count` times the lowest `width` bytes (1, 2 or 4) of `pattern`.
    Fill {
        to: u64,
        pattern: u32,
        width: u64,
        count: u64,
    },
    /// The data of a late copy.
    Arrival {
        to: u64,
        rows: Vec<Vec<u8>>,
        pitch: u64,
    },
}

/// Faults of copies, and statistics.
pub(crate) struct Copies {
    pub(crate) data: bool,
    faults: Vec<(CopyFault, u64)>,
    /// Copies and bytes by direction: to the device, from it, on it.
    pub(crate) moved: [(u64, u64); 3],
}

impl Default for Copies {
    fn default() -> Self {
        Self {
            data: true,
            faults: Vec::new(),
            moved: [(0, 0); 3],
        }
    }
}

impl Copies {
    pub(crate) fn add_faults(&mut self, faults: Vec<CopyFault>) {
        self.faults
            .extend(faults.into_iter().map(|fault| (fault, 0)));
    }

    pub(crate) fn reset_faults(&mut self) {
        self.faults.clear();
    }

    /// Counts a copy, and decides whether it arrives damaged.
    pub(crate) fn damage(&mut self, direction: Option<Direction>, bytes: u64) -> Option<Damage> {
        let direction = direction?;
        let moved = &mut self.moved[direction as usize];
        *moved = (moved.0 + 1, moved.1 + bytes);
        let mut damage = None;
        for (fault, seen) in &mut self.faults {
            if fault.direction.is_none_or(|wanted| wanted == direction) && bytes >= fault.at_least {
                *seen += 1;
                if fault.occurrence.covers(*seen) {
                    damage = damage.or(Some(fault.damage));
                }
            }
        }
        damage
    }
}

impl Transfer {
    /// Checks that all addresses are accessible, as far as the simulator knows
    /// them, and returns the direction of a copy.
    pub(crate) fn check(&self, memory: &Memory) -> Result<Option<Direction>, Status> {
        match *self {
            Transfer::Copy {
                to,
                from,
                width,
                height,
                to_pitch,
                from_pitch,
                ..
            } => {
                if width > to_pitch || width > from_pitch {
                    return Err(Status::INVALID_VALUE);
                }
                let to = memory.classify(to, span(width, height, to_pitch))?;
                let from = memory.classify(from, span(width, height, from_pitch))?;
                Ok(match (from.on_device(), to.on_device()) {
                    (false, true) => Some(Direction::HostToDevice),
                    (true, false) => Some(Direction::DeviceToHost),
                    (true, true) => Some(Direction::DeviceToDevice),
                    (false, false) => None,
                })
            }
            Transfer::Fill {
                to, width, count, ..
            } => {
                let bytes = width.checked_mul(count).ok_or(Status::INVALID_VALUE)?;
                match memory.classify(to, bytes)? {
                    MemoryType::Pageable => Err(Status::INVALID_VALUE),
                    _ => Ok(None),
                }
            }
            Transfer::Arrival { .. } => Ok(None),
        }
    }

    /// Whether host memory is involved that the program may reuse immediately.
    pub(crate) fn touches_pageable(&self, memory: &Memory) -> bool {
        let pageable = |address, size| memory.classify(address, size) == Ok(MemoryType::Pageable);
        match *self {
            Transfer::Copy {
                to,
                from,
                width,
                height,
                to_pitch,
                from_pitch,
                ..
            } => {
                pageable(to, span(width, height, to_pitch))
                    || pageable(from, span(width, height, from_pitch))
            }
            Transfer::Fill { .. } | Transfer::Arrival { .. } => false,
        }
    }

    /// The number of bytes that are moved or set, saturating.
    pub(crate) fn bytes(&self) -> u64 {
        match self {
            Transfer::Copy { width, height, .. } => width.saturating_mul(*height),
            Transfer::Fill { width, count, .. } => width.saturating_mul(*count),
            Transfer::Arrival { rows, .. } => rows.iter().map(|row| row.len() as u64).sum(),
        }
    }

    /// Executes the transfer. For a late copy, returns the data that have to be written later.
    ///
    /// Ranges were checked when the work was submitted; what the program freed
    /// since is checked again here, so that stale work touches nothing.
    pub(crate) fn run(
        &self,
        memory: &Memory,
        data: bool,
    ) -> Option<(std::time::Duration, Transfer)> {
        if self.bytes() == 0 || self.check(memory).is_err() || (!data && self.bytes() > SMALL) {
            return None;
        }
        match *self {
            Transfer::Copy {
                to,
                from,
                width,
                height,
                to_pitch,
                from_pitch,
                damage,
            } => {
                let rows = |row| (to + row * to_pitch, from + row * from_pitch);
                if let Some(Damage::Late(delay)) = damage {
                    // SAFETY: the source was checked above, or is the program's
                    // own host memory that it promised to keep until now.
                    let rows = (0..height)
                        .map(|row| unsafe { read(rows(row).1, width) })
                        .collect();
                    return Some((
                        delay,
                        Transfer::Arrival {
                            to,
                            rows,
                            pitch: to_pitch,
                        },
                    ));
                }
                let height_that_arrives = if damage == Some(Damage::Truncate) && height > 1 {
                    height / 2
                } else {
                    height
                };
                for row in 0..height_that_arrives {
                    let (to, from) = rows(row);
                    // SAFETY: as for the late copy; the destination likewise.
                    unsafe { copy_row(to, from, width, height, damage) };
                }
            }
            Transfer::Fill {
                to,
                pattern,
                width,
                count,
            } => {
                // SAFETY: the range was checked above.
                unsafe { fill(memory, to, pattern, width, count) };
            }
            Transfer::Arrival {
                to,
                ref rows,
                pitch,
            } => {
                for (row, bytes) in rows.iter().enumerate() {
                    let to = to + row as u64 * pitch;
                    // Unless it is pinned, host memory may have been reused by now: then a late
                    // copy only reaches the runtime's own buffer.
                    let place = memory.classify(to, bytes.len() as u64);
                    if place.is_ok_and(|place| place != MemoryType::Pageable) {
                        // SAFETY: the destination is live, checked just now.
                        unsafe {
                            std::ptr::copy_nonoverlapping(
                                bytes.as_ptr(),
                                to as *mut u8,
                                bytes.len(),
                            )
                        };
                    }
                }
            }
        }
        None
    }
}

/// How far apart the first byte and the end of the last row are.
fn span(width: u64, height: u64, pitch: u64) -> u64 {
    let rows_before_the_last = height.saturating_sub(1).saturating_mul(pitch);
    rows_before_the_last.saturating_add(width)
}

/// # Safety
/// `width` bytes at `from` can be read.
unsafe fn read(from: u64, width: u64) -> Vec<u8> {
    let mut bytes = vec![0; width as usize];
    // SAFETY: promised by the caller; the vector is new and has as many bytes.
    unsafe { std::ptr::copy_nonoverlapping(from as *const u8, bytes.as_mut_ptr(), bytes.len()) };
    bytes
}

/// # Safety
/// `width` bytes at `from` can be read, and at `to` written; with [`Damage::Mutate`], which is configured for host
/// memory of programs under test, those at `from` can be written too.
unsafe fn copy_row(to: u64, from: u64, width: u64, height: u64, damage: Option<Damage>) {
    let (target, source, bytes) = (to as *mut u8, from as *const u8, width as usize);
    // SAFETY: all accesses stay within the `width` bytes that the caller promises;
    // `copy` allows them to overlap.
    unsafe {
        match damage {
            Some(Damage::Zeros) => target.write_bytes(0, bytes),
            Some(Damage::Nan) => target.write_bytes(0xFF, bytes),
            Some(Damage::Truncate) if height == 1 => source.copy_to(target, bytes / 2),
            Some(Damage::Flip) => {
                source.copy_to(target, bytes);
                *target.add(bytes / 2) ^= 0x10;
            }
            Some(Damage::Stale) => {}
            Some(Damage::Swap) => {
                source.copy_to(target, bytes);
                let quarter = bytes / 4;
                source
                    .add(3 * quarter)
                    .copy_to(target.add(quarter), quarter);
                source
                    .add(quarter)
                    .copy_to(target.add(3 * quarter), quarter);
            }
            Some(Damage::Mutate) => {
                for at in bytes / 2..bytes {
                    let byte = (from as *mut u8).add(at);
                    *byte = (*byte).wrapping_add(1);
                }
                source.copy_to(target, bytes);
            }
            _ => source.copy_to(target, bytes),
        }
    }
}

/// # Safety
/// `width * count` bytes at `to` can be written.
unsafe fn fill(memory: &Memory, to: u64, pattern: u32, width: u64, count: u64) {
    let bytes = width * count;
    let pattern = &pattern.to_le_bytes()[..width as usize];
    let same = pattern.iter().all(|byte| *byte == pattern[0]);
    if same && pattern[0] == 0 && bytes >= LARGE && memory.discardable(to) {
        // SAFETY: the caller promises the range, which is the arena's own.
        unsafe { memory.zero(to, bytes) };
    } else if same {
        // SAFETY: the caller promises that all `bytes` can be written.
        unsafe { (to as *mut u8).write_bytes(pattern[0], bytes as usize) };
    } else {
        for index in 0..count {
            let at = (to + index * width) as *mut u8;
            // SAFETY: element `index` lies inside the promised range.
            unsafe { std::ptr::copy_nonoverlapping(pattern.as_ptr(), at, width as usize) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What arrives of 0 to 15 over memory full of 99s, and what becomes of the source.
    fn damaged(damage: Damage) -> ([u8; 16], [u8; 16]) {
        let mut source: [u8; 16] = std::array::from_fn(|at| at as u8);
        let mut target = [99; 16];
        // SAFETY: both arrays have 16 bytes, are this function's own, and may be written to.
        unsafe {
            copy_row(
                target.as_mut_ptr() as u64,
                source.as_mut_ptr() as u64,
                16,
                1,
                Some(damage),
            );
        }
        (target, source)
    }

    #[test]
    fn a_stale_copy_brings_nothing() {
        assert_eq!(damaged(Damage::Stale).0, [99; 16]);
    }

    #[test]
    fn swapped_quarters_are_in_each_others_place() {
        let (target, _) = damaged(Damage::Swap);
        assert_eq!(
            target,
            [0, 1, 2, 3, 12, 13, 14, 15, 8, 9, 10, 11, 4, 5, 6, 7]
        );
    }

    #[test]
    fn a_source_that_changes_arrives_changed_and_stays_so() {
        let (target, source) = damaged(Damage::Mutate);
        let changed = std::array::from_fn(|at| at as u8 + u8::from(at >= 8));
        assert_eq!((target, source), (changed, changed));
    }
}
