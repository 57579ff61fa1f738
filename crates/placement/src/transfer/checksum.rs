//! A checksum that is identical on CPU and device, and that detects damaged copies.
//!
//! The bytes are read as little-endian signed 32-bit words `w`, in rows of [`ROW_WORDS`]; the last row is
//! padded with zeros. Each row has two sums in wrapping 64-bit arithmetic:
//!
//! ```text
//!   plain    = Σ w[i]              weighted = Σ c[i] · w[i]          c = weights()
//! ```
//!
//! On a device these are four ordinary tensor operations per slab of rows, exact on every backend (no
//! floating point, so NaN is a bit pattern like any other):
//!
//! ```text
//!   w = bytes.view(int32).view(rows, ROW_WORDS)
//!   plain    = w.sum(1, dtype=int64)
//!   weighted = (w * c).sum(1)                     c an int64 tensor, w is widened by the product
//! ```
//!
//! # What is detected
//!
//! The weights are odd, below 2³² and distinct. Let `d` be the difference of the words of one row.
//!
//! **With certainty**, in each row: any damage to one or two words, whatever the bits. For one word the plain
//! sum changes by `d`. For two, an unchanged plain sum means `d[j] = -d[i]`, and then the weighted sum
//! changes by `d[i] · (c[i] - c[j])`, a product of two numbers with magnitudes between 1 and 2³², which is
//! not a multiple of 2⁶⁴. That covers all single and double bit flips and all swaps of two words. A wrong
//! length is always detected.
//!
//! **With high probability**: damage to three or more words of a row (zeros, NaN, truncation, stale bytes,
//! misplaced chunks) is missed only if it satisfies both equations in every damaged row. The weights are
//! fixed, so this is no defence against an adversary; for damage that is independent of them, the weighted
//! sum alone misses at most 1 in 2³² per row, and the plain sum reduces that further.
//!
//! The rows are kept, not only their total, so two checksums show *where* bytes differ
//! ([`Checksum::damage`]).

use std::fmt;
use std::sync::{Mutex, PoisonError};

use rayon::prelude::*;
use serde::Serialize;

use platform::Bytes;

/// 32-bit words per row.
pub const ROW_WORDS: usize = 4096;

/// Bytes per row.
pub const ROW_BYTES: usize = ROW_WORDS * 4;

/// Rows that are copied and then checksummed at a time; with their copy they fit well inside a core's L2
/// cache.
///
/// Smaller pieces, which would stay in L1, cost more: page faults of fresh memory and the copy interfere
/// least if each runs for a while. Overhead of checksums and faults over a bare copy, on one core of a Zen 5:
/// 16 % with pieces of 8 KiB, 9 % with 16, 5 % with 32, 4 % from 64 to 256.
const PIECE_ROWS: usize = 4;
const PIECE_BYTES: usize = PIECE_ROWS * ROW_BYTES;

/// The smallest page size; larger pages are only touched more often than necessary.
const PAGE_BYTES: usize = 4096;

/// From this size on, several cores share a checksum; below, waking them costs more than it saves.
const PARALLEL_BYTES: usize = 1 << 20;

/// Minimum number of rows per core, for a checksum and for a copy; for a copy it matches libtorch's own.
const MIN_SUM_ROWS: usize = 16;
const MIN_COPY_ROWS: usize = 8;

/// Threads that share a copy.
pub(crate) trait Workers {
    /// Number of threads.
    fn count(&self) -> usize;

    /// Calls `work` for every number below `shares`, each on one thread, and returns when all are done.
    fn each(&self, shares: usize, work: &(dyn Fn(usize) + Sync));
}

/// The checksum of a tensor's bytes.
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

/// How the received bytes differ from those sent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Damage {
    /// Number of bytes sent.
    pub sent: Bytes,
    /// Number of bytes received.
    pub arrived: Bytes,
    /// Lower bound for the position of the first wrong byte.
    pub from: Bytes,
    /// Upper bound (exclusive) for the position of the last wrong byte.
    pub to: Bytes,
    /// Number of wrong rows of [`ROW_BYTES`].
    pub wrong_rows: u64,
    /// Whether all wrong rows seem to contain only zeros.
    pub zeros: bool,
}

impl Checksum {
    /// The checksum of host bytes. Reads them once, at memory bandwidth; large tensors use several cores.
    pub fn of(bytes: &[u8]) -> Checksum {
        if bytes.len() < PARALLEL_BYTES {
            return Checksum::on_one_core(bytes);
        }
        let mut rows = vec![RowSum::default(); bytes.len().div_ceil(ROW_BYTES)];
        bytes
            .par_chunks(ROW_BYTES)
            .zip(rows.par_chunks_mut(1))
            .with_min_len(MIN_SUM_ROWS)
            .for_each(|(row, sum)| sum_into(row, sum));
        Checksum {
            bytes: bytes.len() as u64,
            rows,
        }
    }

    /// The same on one core, for when others are busy too.
    pub(crate) fn on_one_core(bytes: &[u8]) -> Checksum {
        let mut rows = vec![RowSum::default(); bytes.len().div_ceil(ROW_BYTES)];
        sum_into(bytes, &mut rows);
        Checksum {
            bytes: bytes.len() as u64,
            rows,
        }
    }

    /// Copies bytes and checksums both sides, piece by piece: the first checksum is of `from`, the second of
    /// the contents of `to` after its piece was copied. `copy` copies one piece.
    ///
    /// Both sides are on the host, so each row of `to` is compared bit by bit with its source while that is
    /// checksummed; equal rows have equal sums, and only a row that differs is checksummed separately. This
    /// takes half the time of two checksums. A piece and its copy fit the core's own caches, so each side is
    /// read from memory only once, as in a bare copy. The price: `to` is read back soon after it was written,
    /// before it has left for DRAM. Damage by the copy is detected; damage in DRAM, or by a later writer, is
    /// not.
    ///
    /// # Panics
    /// If the lengths differ.
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
        let share_rows = share.max(MIN_COPY_ROWS);
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
        // Whatever no other core has taken, which is everything if it is little.
        (0..shares.len()).for_each(work);
        drop(shares);
        let checksum = |rows| Checksum { bytes, rows };
        (checksum(sent), checksum(arrived))
    }

    /// A checksum with rows computed by a device. `rows` are in order, `bytes.div_ceil(ROW_BYTES)` of them.
    pub fn from_rows(bytes: u64, rows: Vec<RowSum>) -> Checksum {
        Checksum { bytes, rows }
    }

    /// Number of bytes.
    pub fn bytes(&self) -> Bytes {
        Bytes(self.bytes)
    }

    /// The sums of each row.
    pub fn rows(&self) -> &[RowSum] {
        &self.rows
    }

    /// How `arrived` differs from this checksum of what was sent; `None` if it does not.
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
        // Missing bytes are wrong whatever the rows say: zeros at the end have a sum of zero.
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

    /// A single number for logs and for comparing files: the rows folded with their position.
    pub fn digest(&self) -> u128 {
        let mut state = u128::from(self.bytes) ^ 0x243f_6a88_85a3_08d3_1319_8a2e_0370_7344;
        for row in &self.rows {
            let pair = (u128::from(row.plain as u64) << 64) | u128::from(row.weighted as u64);
            // Multiplication by an odd number and rotation are both invertible, so two states never merge
            // unless their rows cancel, and later rows depend on all earlier ones.
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

/// The weight of each word of a row: odd, below 2³², distinct, and without a simple pattern.
pub fn weights() -> &'static [u32; ROW_WORDS] {
    &WEIGHTS
}

static WEIGHTS: [u32; ROW_WORDS] = make_weights();

/// The weights of two adjacent words packed into one, like a pair of words in memory.
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

/// Each step is a bijection on 31-bit numbers, so different words get different weights. A multiple of the
/// index would not do: `(d, -2d, d)` at equal distances would cancel in both sums.
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

/// Writes the sums of the rows of `bytes` to `sums`, one each; the last row may be short.
fn sum_into(bytes: &[u8], sums: &mut [RowSum]) {
    let (full, rest) = bytes.as_chunks::<ROW_BYTES>();
    let rest = (!rest.is_empty()).then(|| zero_padded(rest));
    for (row, sum) in full.iter().chain(&rest).zip(sums) {
        *sum = sum_row(row);
    }
}

/// Copies a part of a tensor and checksums both sides, piece by piece.
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
        // Touch fresh memory first: page faults during a copy cost more than before it.
        for page in to.chunks_mut(PAGE_BYTES) {
            *std::hint::black_box(&mut page[0]) = 0;
        }
        copy(from, to);
        let rows = from.chunks(ROW_BYTES).zip(to.chunks(ROW_BYTES));
        for ((from, to), (sent, arrived)) in rows.zip(sent.iter_mut().zip(arrived)) {
            (*sent, *arrived) = match from.len() {
                ROW_BYTES => sum_rows(from, to),
                _ => sum_rows(&zero_padded(from), &zero_padded(to)),
            };
        }
    }
}

/// A row that starts with these bytes, padded with zeros.
fn zero_padded(bytes: &[u8]) -> [u8; ROW_BYTES] {
    let mut row = [0_u8; ROW_BYTES];
    row[..bytes.len()].copy_from_slice(bytes);
    row
}

/// The sums of one full row.
fn sum_row(row: &[u8]) -> RowSum {
    Tally::of(row, row).sums()
}

/// The sums of a full row and of the row that should be equal to it.
fn sum_rows(row: &[u8], other: &[u8]) -> (RowSum, RowSum) {
    let tally = Tally::of(row, other);
    let sums = tally.sums();
    match tally.difference {
        0 => (sums, sums),
        _ => (sums, sum_row(other)),
    }
}

/// A row that was summed and compared with another one.
///
/// Two words are processed at a time as one `u64`, whose halves are multiplied in place: this suits the 32 ×
/// 32 → 64 bit vector multiplication that every x86-64 has. It is unsigned, so words are first offset by 2³¹
/// and the sums corrected at the end. The low words are never added up: their sum is that of the pairs minus
/// the high ones.
#[derive(Default)]
struct Tally {
    /// Σ of the pairs, and of their high words.
    whole: u64,
    upper: u64,
    /// Σ of the products of low and of high words.
    weighted_lower: u64,
    weighted_upper: u64,
    /// Non-zero if any bit differs from the other row.
    difference: u64,
}

impl Tally {
    /// The sums of a full row and its comparison with another, using the widest instructions of this CPU.
    fn of(row: &[u8], other: &[u8]) -> Tally {
        #[cfg(target_arch = "x86_64")]
        {
            if std::arch::is_x86_feature_detected!("avx512f") {
                // SAFETY: the CPU has AVX-512F, as checked in the line above; the function has no other
                // requirements.
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
            // Optimised out where a row is compared with itself.
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
