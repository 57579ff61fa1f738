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

use rayon::prelude::*;
use serde::Serialize;

use crate::bytes::Bytes;

/// Words of 32 bits in a row.
pub const ROW_WORDS: usize = 4096;

/// Bytes in a row.
pub const ROW_BYTES: usize = ROW_WORDS * 4;

/// What is worked on at a time: with its copy, and the weights, well inside the second-level cache of a core.
const PIECE_BYTES: usize = PIECE_ROWS * ROW_BYTES;
const PIECE_ROWS: usize = 2;

/// Pieces that a core takes at least.
const PIECES_AT_LEAST: usize = 8;

/// The smallest page; larger ones are only touched more often than they need be.
const PAGE_BYTES: usize = 4096;

/// From this size on, several cores share the work; below, waking them costs more than it brings.
const SHARED_FROM: usize = 1 << 20;

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
        let mut rows = vec![RowSum::default(); bytes.len().div_ceil(ROW_BYTES)];
        if bytes.len() < SHARED_FROM {
            sum_into(bytes, &mut rows);
        } else {
            let pieces = bytes.par_chunks(PIECE_BYTES);
            pieces
                .zip(rows.par_chunks_mut(PIECE_ROWS))
                .with_min_len(PIECES_AT_LEAST)
                .for_each(|(piece, rows)| sum_into(piece, rows));
        }
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
    /// half the time of two sums. A piece and its copy fit the nearest caches, so that each side comes from memory
    /// once, as in a bare copy. The price: a byte of `to` is read again soon after it was written, before it left
    /// for the memory chips. Damage by the copy is seen; damage in the chips, or by somebody who writes there
    /// later, is not.
    ///
    /// # Panics
    /// When the lengths differ.
    pub(crate) fn of_copy(
        from: &[u8],
        to: &mut [u8],
        copy: impl Fn(&[u8], &mut [u8]) + Sync,
    ) -> (Checksum, Checksum) {
        assert_eq!(from.len(), to.len(), "a copy keeps its length");
        let bytes = from.len() as u64;
        let nothing = vec![RowSum::default(); from.len().div_ceil(ROW_BYTES)];
        let (mut sent, mut arrived) = (nothing.clone(), nothing);
        let one = |from: &[u8], to: &mut [u8], sent: &mut [RowSum], arrived: &mut [RowSum]| {
            // Fresh memory: page faults in the middle of a copy cost more than before it.
            for page in to.chunks_mut(PAGE_BYTES) {
                *std::hint::black_box(&mut page[0]) = 0;
            }
            copy(from, to);
            sum_both_into(from, to, sent, arrived);
        };
        if from.len() < SHARED_FROM {
            let pieces = from.chunks(PIECE_BYTES).zip(to.chunks_mut(PIECE_BYTES));
            let sums = sent
                .chunks_mut(PIECE_ROWS)
                .zip(arrived.chunks_mut(PIECE_ROWS));
            for ((from, to), (sent, arrived)) in pieces.zip(sums) {
                one(from, to, sent, arrived);
            }
        } else {
            let pieces = from.par_chunks(PIECE_BYTES);
            let pieces = pieces.zip(to.par_chunks_mut(PIECE_BYTES));
            let sums = sent.par_chunks_mut(PIECE_ROWS);
            let sums = sums.zip(arrived.par_chunks_mut(PIECE_ROWS));
            pieces
                .zip(sums)
                .with_min_len(PIECES_AT_LEAST)
                .for_each(|((from, to), (sent, arrived))| one(from, to, sent, arrived));
        }
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
    let (sums, last_sum) = sums.split_at_mut(full.len());
    sum_rows(full, sums, None);
    if !rest.is_empty() {
        sum_rows(&[filled_up(rest)], last_sum, None);
    }
}

/// The same for a source and its copy, of the same length.
fn sum_both_into(from: &[u8], to: &[u8], sent: &mut [RowSum], arrived: &mut [RowSum]) {
    let (from, from_rest) = from.as_chunks::<ROW_BYTES>();
    let (to, to_rest) = to.as_chunks::<ROW_BYTES>();
    let (sent, last_sent) = sent.split_at_mut(from.len());
    let (arrived, last_arrived) = arrived.split_at_mut(to.len());
    sum_rows(from, sent, Some((to, arrived)));
    if !from_rest.is_empty() {
        let (from, to) = (filled_up(from_rest), filled_up(to_rest));
        sum_rows(&[from], last_sent, Some((&[to], last_arrived)));
    }
}

/// A row that begins with these bytes and ends with zeros.
fn filled_up(bytes: &[u8]) -> [u8; ROW_BYTES] {
    let mut row = [0_u8; ROW_BYTES];
    row[..bytes.len()].copy_from_slice(bytes);
    row
}

/// Rows that should equal others, and where their sums go.
type Copies<'a> = Option<(&'a [[u8; ROW_BYTES]], &'a mut [RowSum])>;

/// The sums of full rows, and of their copies where there are any, with the widest instructions this CPU has.
fn sum_rows(rows: &[[u8; ROW_BYTES]], sums: &mut [RowSum], copies: Copies<'_>) {
    #[cfg(target_arch = "x86_64")]
    {
        if std::arch::is_x86_feature_detected!("avx512f") {
            // SAFETY: the CPU has AVX-512F, as was asked in the line above; the function needs nothing else.
            unsafe { sum_rows_avx512(rows, sums, copies) };
            return;
        }
        if std::arch::is_x86_feature_detected!("avx2") {
            // SAFETY: as above, with AVX2.
            unsafe { sum_rows_avx2(rows, sums, copies) };
            return;
        }
    }
    sum_rows_portable(rows, sums, copies);
}

/// The same code as [`sum_row`], compiled for AVX-512.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f")]
fn sum_rows_avx512(rows: &[[u8; ROW_BYTES]], sums: &mut [RowSum], copies: Copies<'_>) {
    sum_rows_portable(rows, sums, copies);
}

/// The same code as [`sum_row`], compiled for AVX2.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
fn sum_rows_avx2(rows: &[[u8; ROW_BYTES]], sums: &mut [RowSum], copies: Copies<'_>) {
    sum_rows_portable(rows, sums, copies);
}

#[inline(always)]
fn sum_rows_portable(rows: &[[u8; ROW_BYTES]], sums: &mut [RowSum], copies: Copies<'_>) {
    let Some((copies, copy_sums)) = copies else {
        for (row, sum) in rows.iter().zip(sums) {
            *sum = sum_row(row);
        }
        return;
    };
    let pairs = rows.iter().zip(sums).zip(copies.iter().zip(copy_sums));
    for ((row, sum), (copy, copy_sum)) in pairs {
        let equal;
        (*sum, equal) = sum_and_compare(row, copy);
        *copy_sum = match equal {
            true => *sum,
            false => sum_row(copy),
        };
    }
}

/// The sums of one row.
#[inline(always)]
fn sum_row(row: &[u8; ROW_BYTES]) -> RowSum {
    sum_and_compare(row, row).0
}

/// The sums of one row, and whether another one is equal to it.
///
/// Two words are taken at a time as one `u64`, whose halves are multiplied where they lie: this is what the
/// 32 × 32 → 64 bit vector multiplication wants, and it has been in every x86-64. It is unsigned, so that the
/// words are moved up by 2³¹ first and the sums corrected at the end. The low words are never added up: they
/// are what is left of the sum of the pairs without the high ones.
#[inline(always)]
fn sum_and_compare(row: &[u8; ROW_BYTES], other: &[u8; ROW_BYTES]) -> (RowSum, bool) {
    const LOW: u64 = 0xffff_ffff;
    const SHIFT_UP: u64 = 0x8000_0000_8000_0000;
    let (mut whole, mut upper, mut difference) = (0_u64, 0_u64, 0_u64);
    let (mut weighted_lower, mut weighted_upper) = (0_u64, 0_u64);
    let (pairs, _) = row.as_chunks::<8>();
    let (others, _) = other.as_chunks::<8>();
    for ((pair, other), weight) in pairs.iter().zip(others).zip(&WEIGHT_PAIRS) {
        let pair = u64::from_le_bytes(*pair);
        // Gone from the compiled code where a row is compared with itself.
        difference |= pair ^ u64::from_le_bytes(*other);
        let pair = pair ^ SHIFT_UP;
        let high = pair >> 32;
        whole = whole.wrapping_add(pair);
        upper = upper.wrapping_add(high);
        weighted_lower = weighted_lower.wrapping_add((pair & LOW).wrapping_mul(weight & LOW));
        weighted_upper = weighted_upper.wrapping_add(high.wrapping_mul(weight >> 32));
    }
    let plain = whole.wrapping_sub(upper << 32).wrapping_add(upper);
    let weighted = weighted_lower.wrapping_add(weighted_upper);
    let sums = RowSum {
        plain: plain.wrapping_sub((ROW_WORDS as u64) << 31) as i64,
        weighted: weighted.wrapping_sub(WEIGHT_TOTAL << 31) as i64,
    };
    (sums, difference == 0)
}

#[cfg(test)]
mod tests;
