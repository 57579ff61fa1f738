//! A checksum that a CPU and a device compute alike, and that a wrong arrival cannot pass by accident.
//!
//! The bytes are read as little-endian signed 32-bit words `w`, in rows of [`ROW_WORDS`]; the last row is
//! filled up with zeros. Each row keeps two sums, over 64-bit integers that wrap around:
//!
//! ```text
//!   plain    = Σ w[i]              weighted = Σ c[i] · w[i]          c = weights()
//! ```
//!
//! On a device these are four plain tensor operations per slab of rows, exact on every backend (no
//! floating point, so that a NaN is a number like any other):
//!
//! ```text
//!   w = bytes.view(int32).view(rows, ROW_WORDS)
//!   plain    = w.sum(1, dtype=int64)
//!   weighted = (w * c).sum(1)                     c an int64 tensor, w is widened by the product
//! ```
//!
//! # What is detected
//!
//! The weights are odd, below 2³² and all different. Let `d` be the difference of the words of one row.
//!
//! **With certainty**, in each row: any damage to one or two words, whatever the bits. For one word the
//! plain sum changes by `d`. For two, an unchanged plain sum means `d[j] = -d[i]`, and then the weighted sum
//! changes by `d[i] · (c[i] - c[j])`, a product of two numbers between 1 and 2³² in size, which is no
//! multiple of 2⁶⁴. That covers each single and double bit flip and each exchange of two words. A wrong
//! length is always detected.
//!
//! **With probability**: damage to three words or more of a row (zeros, NaN, truncation, stale bytes, chunks
//! in the wrong place) passes only if it satisfies both equations in every damaged row. The weights are
//! fixed, so this is no defence against an adversary; for damage that does not know them, the weighted sum alone
//! lets at most 1 in 2³² of it pass in each row, and the plain sum another factor.
//!
//! The rows are kept, not only their total: two checksums tell *where* bytes differ ([`Checksum::damage`]).

use std::fmt;
use std::sync::{Mutex, PoisonError};

use rayon::prelude::*;
use serde::Serialize;

use platform::Bytes;

/// Words of 32 bits in a row.
pub const ROW_WORDS: usize = 4096;

/// Bytes in a row.
pub const ROW_BYTES: usize = ROW_WORDS * 4;

/// What is copied and then summed at a time: with its copy well inside a core's own second cache.
///
/// Smaller pieces, which would stay in the first cache, cost more: the page faults of fresh memory and the copy
/// disturb each other least when each goes on for a while. What sums and faults add to a bare copy, on one core of
/// a Zen 5: 16 % with pieces of 8 KiB, 9 % with 16, 5 % with 32, 4 % from 64 to 256.
const PIECE_ROWS: usize = 4;
const PIECE_BYTES: usize = PIECE_ROWS * ROW_BYTES;

/// The smallest page; larger ones are only touched more often than they need be.
const PAGE_BYTES: usize = 4096;

/// From this size on, several cores share a sum; below, waking them costs more than it brings.
const SHARED_FROM: usize = 1 << 20;

/// Rows of a sum, and of a copy, that a core takes at least. Of a copy it is as much as of libtorch's own.
const SUMMED_AT_LEAST: usize = 16;
const COPIED_AT_LEAST: usize = 8;

/// Threads that share a copy.
pub(crate) trait Workers {
    /// How many there are.
    fn count(&self) -> usize;

    /// Does the work of every number below `shares`, each on one thread, and returns when all of it is done.
    fn each(&self, shares: usize, work: &(dyn Fn(usize) + Sync));
}

/// The sums of a tensor's bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Checksum {
    bytes: u64,
    rows: Vec<RowSum>,
}

/// The two sums of one row.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RowSum {
    /// Σ w\[i\]
    pub plain: i64,
    /// Σ c\[i\] · w\[i\], modulo 2⁶⁴
    pub weighted: i64,
}

/// How what arrived differs from what was sent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Damage {
    /// Bytes that were sent.
    pub sent: Bytes,
    /// Bytes that arrived.
    pub arrived: Bytes,
    /// The first wrong byte lies at or after this one.
    pub from: Bytes,
    /// And the last one before this.
    pub to: Bytes,
    /// Rows of [`ROW_BYTES`] that are wrong.
    pub wrong_rows: u64,
    /// Every wrong row holds nothing but zeros, as far as its sums tell.
    pub zeros: bool,
}

impl Checksum {
    /// The checksum of host bytes. Reads them once, as fast as the memory gives them; large tensors on
    /// several cores.
    pub fn of(bytes: &[u8]) -> Checksum {
        if bytes.len() < SHARED_FROM {
            return Checksum::on_one_core(bytes);
        }
        let mut rows = vec![RowSum::default(); bytes.len().div_ceil(ROW_BYTES)];
        bytes
            .par_chunks(ROW_BYTES)
            .zip(rows.par_chunks_mut(1))
            .with_min_len(SUMMED_AT_LEAST)
            .for_each(|(row, sum)| sum_into(row, sum));
        Checksum {
            bytes: bytes.len() as u64,
            rows,
        }
    }

    /// The same, where others are at work too.
    pub(crate) fn on_one_core(bytes: &[u8]) -> Checksum {
        let mut rows = vec![RowSum::default(); bytes.len().div_ceil(ROW_BYTES)];
        sum_into(bytes, &mut rows);
        Checksum {
            bytes: bytes.len() as u64,
            rows,
        }
    }

    /// Copies bytes and sums them on both sides, piece by piece: the first checksum is of `from`, the second
    /// of what is in `to` when its piece has been copied. `copy` moves one piece.
    ///
    /// Here both sides are at hand, so each row of `to` is compared with its source bit by bit while that is
    /// summed; a row that is equal has the same sums, and only one that is not is summed for itself. This takes
    /// half the time of two sums. A piece and its copy fit the core's own caches, so that each side comes from memory
    /// once, as in a bare copy. The price: a byte of `to` is read again soon after it was written, before it left
    /// for the memory chips. Damage by the copy is seen; damage in the chips, or by somebody who writes there
    /// later, is not.
    ///
    /// # Panics
    /// When the lengths differ.
    pub(crate) fn of_copy(
        from: &[u8],
        to: &mut [u8],
        workers: &impl Workers,
        copy: impl Fn(&[u8], &mut [u8]) + Sync,
    ) -> (Checksum, Checksum) {
        assert_eq!(from.len(), to.len(), "a copy keeps its length");
        let bytes = from.len() as u64;
        let nothing = vec![RowSum::default(); from.len().div_ceil(ROW_BYTES)];
        let (mut sent, mut arrived) = (nothing.clone(), nothing);

        let share = sent.len().div_ceil(workers.count().max(1));
        let share_rows = share.max(COPIED_AT_LEAST);
        let share_bytes = share_rows * ROW_BYTES;
        let sides = from.chunks(share_bytes).zip(to.chunks_mut(share_bytes));
        let sums = sent
            .chunks_mut(share_rows)
            .zip(arrived.chunks_mut(share_rows));
        let shares: Vec<_> = sides
            .zip(sums)
            .map(|share| Mutex::new(Some(share)))
            .collect();
        let take = |at: usize| {
            let share = shares.get(at)?;
            share.lock().unwrap_or_else(PoisonError::into_inner).take()
        };
        let work = |at: usize| {
            if let Some(((from, to), (sent, arrived))) = take(at) {
                copy_and_sum(from, to, sent, arrived, &copy);
            }
        };
        if shares.len() > 1 {
            workers.each(shares.len(), &work);
        }
        // Whatever nobody has taken, which is all of it where it is little.
        (0..shares.len()).for_each(work);
        drop(shares);
        let checksum = |rows| Checksum { bytes, rows };
        (checksum(sent), checksum(arrived))
    }

    /// A checksum whose rows a device computed.
    ///
    /// `rows` are in order, `bytes.div_ceil(ROW_BYTES)` of them.
    pub fn from_rows(bytes: u64, rows: Vec<RowSum>) -> Checksum {
        Checksum { bytes, rows }
    }

    /// The bytes that were summed.
    pub fn bytes(&self) -> Bytes {
        Bytes(self.bytes)
    }

    /// The sums of each row.
    pub fn rows(&self) -> &[RowSum] {
        &self.rows
    }

    /// How `arrived` differs from this checksum of what was sent; `None` when it does not.
    pub fn damage(&self, arrived: &Checksum) -> Option<Damage> {
        if self == arrived {
            return None;
        }
        let count = self.rows.len().max(arrived.rows.len());
        let wrong = |row: &usize| self.rows.get(*row) != arrived.rows.get(*row);
        let first = (0..count).find(wrong);
        let last = (0..count).rev().find(wrong);
        let (shortest, longest) = (self.bytes.min(arrived.bytes), self.bytes.max(arrived.bytes));
        let mut from = first.map_or(shortest, |row| (row * ROW_BYTES) as u64);
        let mut to = last.map_or(longest, |row| longest.min(((row + 1) * ROW_BYTES) as u64));
        // Missing bytes are wrong, whatever the rows say: zeros at the end sum to nothing.
        if shortest != longest {
            from = from.min(shortest);
            to = longest;
        }
        Some(Damage {
            sent: Bytes(self.bytes),
            arrived: Bytes(arrived.bytes),
            from: Bytes(from),
            to: Bytes(to),
            wrong_rows: (0..count).filter(wrong).count() as u64,
            zeros: first.is_some()
                && (0..count)
                    .filter(wrong)
                    .all(|row| arrived.rows.get(row) == Some(&RowSum::default())),
        })
    }

    /// One number for logs and for comparing files: rows folded with their position.
    pub fn digest(&self) -> u128 {
        let mut state = u128::from(self.bytes) ^ 0x243f_6a88_85a3_08d3_1319_8a2e_0370_7344;
        for row in &self.rows {
            let pair = (u128::from(row.plain as u64) << 64) | u128::from(row.weighted as u64);
            // Multiplying by an odd number and rotating are both invertible: two states never merge
            // unless their rows cancel, and a later row depends on every earlier one.
            state = (state ^ pair)
                .wrapping_mul(0x2360_ed05_1fc6_5da4_4385_df64_9fcc_f645)
                .rotate_right(47);
        }
        state ^ (state >> 64)
    }
}

impl fmt::Display for Checksum {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{:032x}", self.digest())
    }
}

impl fmt::Display for Damage {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.sent != self.arrived {
            write!(
                formatter,
                "{} B arrived of {} B; ",
                self.arrived.0, self.sent.0
            )?;
        }
        write!(
            formatter,
            "wrong between bytes {} and {}",
            self.from.0, self.to.0
        )?;
        if self.zeros {
            write!(formatter, ", where there are zeros")?;
        }
        Ok(())
    }
}

/// The weight of each word of a row: odd, below 2³², all different, in no simple pattern.
pub fn weights() -> &'static [u32; ROW_WORDS] {
    &WEIGHTS
}

static WEIGHTS: [u32; ROW_WORDS] = make_weights();

/// The weights of two neighbouring words in one, as a pair of words lies in memory.
static WEIGHT_PAIRS: [u64; ROW_WORDS / 2] = make_weight_pairs();

/// The sum of all weights.
const WEIGHT_TOTAL: u64 = {
    let mut total = 0;
    let mut index = 0;
    while index < ROW_WORDS {
        total += weight(index) as u64;
        index += 1;
    }
    total
};

/// Each step maps the 31-bit numbers one to one, so that different words get different weights. A plain
/// multiple of the index would not do: `(d, -2d, d)` at equal distances would cancel in both sums.
const fn weight(index: usize) -> u32 {
    const MASK: u64 = (1 << 31) - 1;
    let mut value = (index as u64)
        .wrapping_mul(0x5bd1_e995)
        .wrapping_add(0x3c6e_f372)
        & MASK;
    value ^= value >> 15;
    value = value.wrapping_mul(0x2c1b_3c6d) & MASK;
    value ^= value >> 12;
    value = value.wrapping_mul(0x297a_2d39) & MASK;
    value ^= value >> 15;
    (value as u32) << 1 | 1
}

const fn make_weights() -> [u32; ROW_WORDS] {
    let mut weights = [0; ROW_WORDS];
    let mut index = 0;
    while index < ROW_WORDS {
        weights[index] = weight(index);
        index += 1;
    }
    weights
}

const fn make_weight_pairs() -> [u64; ROW_WORDS / 2] {
    let mut pairs = [0; ROW_WORDS / 2];
    let mut index = 0;
    while index < pairs.len() {
        pairs[index] = weight(2 * index) as u64 | (weight(2 * index + 1) as u64) << 32;
        index += 1;
    }
    pairs
}

/// Puts the sums of the rows of `bytes` into `sums`, one for each; the last row may be short.
fn sum_into(bytes: &[u8], sums: &mut [RowSum]) {
    let (full, rest) = bytes.as_chunks::<ROW_BYTES>();
    let rest = (!rest.is_empty()).then(|| filled_up(rest));
    for (row, sum) in full.iter().chain(&rest).zip(sums) {
        *sum = sum_row(row);
    }
}

/// Copies a share of a tensor and sums it on both sides, piece by piece.
fn copy_and_sum(
    from: &[u8],
    to: &mut [u8],
    sent: &mut [RowSum],
    arrived: &mut [RowSum],
    copy: impl Fn(&[u8], &mut [u8]),
) {
    let sums = sent
        .chunks_mut(PIECE_ROWS)
        .zip(arrived.chunks_mut(PIECE_ROWS));
    let pieces = from.chunks(PIECE_BYTES).zip(to.chunks_mut(PIECE_BYTES));
    for ((from, to), (sent, arrived)) in pieces.zip(sums) {
        // Fresh memory: page faults in the middle of a copy cost more than before it.
        for page in to.chunks_mut(PAGE_BYTES) {
            *std::hint::black_box(&mut page[0]) = 0;
        }
        copy(from, to);
        let rows = from.chunks(ROW_BYTES).zip(to.chunks(ROW_BYTES));
        for ((from, to), (sent, arrived)) in rows.zip(sent.iter_mut().zip(arrived)) {
            (*sent, *arrived) = match from.len() {
                ROW_BYTES => sum_rows(from, to),
                _ => sum_rows(&filled_up(from), &filled_up(to)),
            };
        }
    }
}

/// A row that begins with these bytes and ends with zeros.
fn filled_up(bytes: &[u8]) -> [u8; ROW_BYTES] {
    let mut row = [0_u8; ROW_BYTES];
    row[..bytes.len()].copy_from_slice(bytes);
    row
}

/// The sums of one full row.
fn sum_row(row: &[u8]) -> RowSum {
    Tally::of(row, row).sums()
}

/// The sums of a full row and of what should be the same.
fn sum_rows(row: &[u8], other: &[u8]) -> (RowSum, RowSum) {
    let tally = Tally::of(row, other);
    let sums = tally.sums();
    match tally.difference {
        0 => (sums, sums),
        _ => (sums, sum_row(other)),
    }
}

/// A row that was summed, and compared with another one.
///
/// Two words are taken at a time as one `u64`, whose halves are multiplied where they lie: this is what the
/// 32 × 32 → 64 bit vector multiplication wants, and it has been in every x86-64. It is unsigned, so that the
/// words are moved up by 2³¹ first and the sums corrected at the end. The low words are never added up: they
/// are what is left of the sum of the pairs without the high ones.
#[derive(Default)]
struct Tally {
    /// Σ of the pairs, and of their upper words.
    whole: u64,
    upper: u64,
    /// Σ of the products of lower and of upper words.
    weighted_lower: u64,
    weighted_upper: u64,
    /// Not 0 when a bit of the other row is another.
    difference: u64,
}

impl Tally {
    /// The sums of a full row, and its comparison with another one; with the widest instructions this CPU has.
    fn of(row: &[u8], other: &[u8]) -> Tally {
        #[cfg(target_arch = "x86_64")]
        {
            if std::arch::is_x86_feature_detected!("avx512f") {
                // SAFETY: the CPU has AVX-512F, as was asked in the line above; the function needs nothing else.
                return unsafe { Tally::of_avx512(row, other) };
            }
            if std::arch::is_x86_feature_detected!("avx2") {
                // SAFETY: as above, with AVX2.
                return unsafe { Tally::of_avx2(row, other) };
            }
        }
        Tally::of_portable(row, other)
    }

    /// The same code as [`Self::of_portable`], compiled for AVX-512.
    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx512f")]
    fn of_avx512(row: &[u8], other: &[u8]) -> Tally {
        Tally::of_portable(row, other)
    }

    /// The same code as [`Self::of_portable`], compiled for AVX2.
    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx2")]
    fn of_avx2(row: &[u8], other: &[u8]) -> Tally {
        Tally::of_portable(row, other)
    }

    #[inline(always)]
    fn of_portable(row: &[u8], other: &[u8]) -> Tally {
        const LOW: u64 = 0xffff_ffff;
        const SHIFT_UP: u64 = 0x8000_0000_8000_0000;
        let (pairs, _) = row.as_chunks::<8>();
        let (others, _) = other.as_chunks::<8>();
        let mut tally = Tally::default();
        for ((pair, other), weight) in pairs.iter().zip(others).zip(&WEIGHT_PAIRS) {
            let pair = u64::from_le_bytes(*pair);
            // Gone from the compiled code where a row is compared with itself.
            tally.difference |= pair ^ u64::from_le_bytes(*other);
            let pair = pair ^ SHIFT_UP;
            let high = pair >> 32;
            tally.whole = tally.whole.wrapping_add(pair);
            tally.upper = tally.upper.wrapping_add(high);
            let product = (pair & LOW).wrapping_mul(weight & LOW);
            tally.weighted_lower = tally.weighted_lower.wrapping_add(product);
            let product = high.wrapping_mul(weight >> 32);
            tally.weighted_upper = tally.weighted_upper.wrapping_add(product);
        }
        tally
    }

    /// The sums of the row.
    fn sums(&self) -> RowSum {
        let plain = self.whole.wrapping_sub(self.upper << 32);
        let plain = plain.wrapping_add(self.upper);
        let weighted = self.weighted_lower.wrapping_add(self.weighted_upper);
        RowSum {
            plain: plain.wrapping_sub((ROW_WORDS as u64) << 31) as i64,
            weighted: weighted.wrapping_sub(WEIGHT_TOTAL << 31) as i64,
        }
    }
}

#[cfg(test)]
mod tests;
