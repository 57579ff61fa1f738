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
    /// A piece and its copy fit the nearest caches, so that each side comes from memory once, as in a bare
    /// copy, and the sums cost a few percent of that. The price: a byte of `to` is read again soon after it was
    /// written, before it left for the memory chips. Damage by the copy is seen; damage in the chips, or by
    /// somebody who writes there later, is not.
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
            sum_into(to, arrived);
            sum_into(from, sent);
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
    sum_rows(full, sums);
    if !rest.is_empty() {
        let mut last = [0_u8; ROW_BYTES];
        last[..rest.len()].copy_from_slice(rest);
        sum_rows(&[last], last_sum);
    }
}

/// The sums of full rows, with the widest instructions this CPU has.
fn sum_rows(rows: &[[u8; ROW_BYTES]], sums: &mut [RowSum]) {
    #[cfg(target_arch = "x86_64")]
    {
        if std::arch::is_x86_feature_detected!("avx512f") {
            // SAFETY: the CPU has AVX-512F, as was asked in the line above; the function needs nothing else.
            unsafe { sum_rows_avx512(rows, sums) };
            return;
        }
        if std::arch::is_x86_feature_detected!("avx2") {
            // SAFETY: as above, with AVX2.
            unsafe { sum_rows_avx2(rows, sums) };
            return;
        }
    }
    sum_rows_portable(rows, sums);
}

/// The same code as [`sum_row`], compiled for AVX-512.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f")]
fn sum_rows_avx512(rows: &[[u8; ROW_BYTES]], sums: &mut [RowSum]) {
    sum_rows_portable(rows, sums);
}

/// The same code as [`sum_row`], compiled for AVX2.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
fn sum_rows_avx2(rows: &[[u8; ROW_BYTES]], sums: &mut [RowSum]) {
    sum_rows_portable(rows, sums);
}

#[inline(always)]
fn sum_rows_portable(rows: &[[u8; ROW_BYTES]], sums: &mut [RowSum]) {
    for (row, sum) in rows.iter().zip(sums) {
        *sum = sum_row(row);
    }
}

/// The sums of one row.
///
/// Two words are taken at a time as one `u64`, whose halves are multiplied where they lie: this is what the
/// 32 × 32 → 64 bit vector multiplication wants, and it has been in every x86-64. It is unsigned, so that the
/// words are moved up by 2³¹ first and the sums corrected at the end. The low words are never added up: they
/// are what is left of the sum of the pairs without the high ones.
#[inline(always)]
fn sum_row(row: &[u8; ROW_BYTES]) -> RowSum {
    const LOW: u64 = 0xffff_ffff;
    const SHIFT_UP: u64 = 0x8000_0000_8000_0000;
    let (mut whole, mut upper) = (0_u64, 0_u64);
    let (mut weighted_lower, mut weighted_upper) = (0_u64, 0_u64);
    let (pairs, _) = row.as_chunks::<8>();
    for (pair, weight) in pairs.iter().zip(&WEIGHT_PAIRS) {
        let pair = u64::from_le_bytes(*pair) ^ SHIFT_UP;
        let high = pair >> 32;
        whole = whole.wrapping_add(pair);
        upper = upper.wrapping_add(high);
        weighted_lower = weighted_lower.wrapping_add((pair & LOW).wrapping_mul(weight & LOW));
        weighted_upper = weighted_upper.wrapping_add(high.wrapping_mul(weight >> 32));
    }
    let plain = whole.wrapping_sub(upper << 32).wrapping_add(upper);
    let weighted = weighted_lower.wrapping_add(weighted_upper);
    RowSum {
        plain: plain.wrapping_sub((ROW_WORDS as u64) << 31) as i64,
        weighted: weighted.wrapping_sub(WEIGHT_TOTAL << 31) as i64,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The definition, word by word.
    fn by_definition(bytes: &[u8]) -> Vec<RowSum> {
        bytes
            .chunks(ROW_BYTES)
            .map(|row| {
                let mut sum = RowSum::default();
                for (index, word) in row.chunks(4).enumerate() {
                    let mut padded = [0; 4];
                    padded[..word.len()].copy_from_slice(word);
                    let word = i64::from(i32::from_le_bytes(padded));
                    sum.plain += word;
                    sum.weighted = sum
                        .weighted
                        .wrapping_add(word.wrapping_mul(i64::from(WEIGHTS[index])));
                }
                sum
            })
            .collect()
    }

    #[test]
    fn weights_are_odd_and_all_different() {
        assert!(WEIGHTS.iter().all(|weight| weight % 2 == 1));
        let mut sorted = WEIGHTS.to_vec();
        sorted.sort_unstable();
        sorted.dedup();
        assert_eq!(sorted.len(), ROW_WORDS);
    }

    #[test]
    fn host_sums_follow_the_definition_at_every_length() {
        let bytes: Vec<u8> = (0..3 * ROW_BYTES + 7)
            .map(|i| (i * 37 % 251) as u8)
            .collect();
        for length in [
            0,
            1,
            3,
            4,
            5,
            ROW_BYTES - 1,
            ROW_BYTES,
            ROW_BYTES + 1,
            bytes.len(),
        ] {
            assert_eq!(
                Checksum::of(&bytes[..length]).rows(),
                by_definition(&bytes[..length])
            );
        }
    }

    #[test]
    fn portable_and_vector_sums_agree() {
        let mut row = [0_u8; ROW_BYTES];
        for (index, byte) in row.iter_mut().enumerate() {
            *byte = (index.wrapping_mul(2_654_435_761) >> 7) as u8;
        }
        let mut vector = [RowSum::default()];
        sum_rows(&[row], &mut vector);
        assert_eq!(vector, [sum_row(&row)]);
        #[cfg(target_arch = "x86_64")]
        if std::arch::is_x86_feature_detected!("avx2") {
            // SAFETY: the CPU has AVX2.
            unsafe { sum_rows_avx2(&[row], &mut vector) };
            assert_eq!(vector, [sum_row(&row)]);
        }
    }

    /// Short, one row, some pieces, and enough for several cores; each with an end that is no full row.
    const LENGTHS: [usize; 5] = [
        5,
        ROW_BYTES,
        3 * PIECE_BYTES + 7,
        SHARED_FROM,
        2 * SHARED_FROM + 9,
    ];

    fn bytes(length: usize) -> Vec<u8> {
        (0..length).map(|at| (at * 31 % 253) as u8).collect()
    }

    #[test]
    fn the_sums_of_a_copy_are_those_of_both_sides() {
        for length in LENGTHS {
            let from = bytes(length);
            let mut to = vec![0xa5; length];
            let sums = Checksum::of_copy(&from, &mut to, |from, to| to.copy_from_slice(from));
            assert_eq!(to, from);
            let expected = Checksum {
                bytes: length as u64,
                rows: by_definition(&from),
            };
            assert_eq!(sums, (expected.clone(), expected));
        }
    }

    /// Every way in which a copy of one piece can go wrong without saying so.
    #[test]
    fn a_copy_that_brings_something_else_is_seen() {
        type Copy = fn(&[u8], &mut [u8]);
        let wrong: [(&str, Copy); 5] = [
            ("zeros", |_, to| to.fill(0)),
            ("nan", |_, to| to.fill(0xff)),
            ("nothing", |_, _| {}),
            ("half", |from, to| {
                let half = from.len() / 2;
                to[..half].copy_from_slice(&from[..half]);
            }),
            ("one bit", |from, to| {
                to.copy_from_slice(from);
                to[from.len() / 2] ^= 1;
            }),
        ];
        for (name, copy) in wrong {
            for length in LENGTHS {
                let from = bytes(length);
                let mut to = vec![0xa5; length];
                let (sent, arrived) = Checksum::of_copy(&from, &mut to, copy);
                assert_eq!(arrived, Checksum::of(&to), "{name} {length}");
                assert!(sent.damage(&arrived).is_some(), "{name} {length}");
            }
        }
    }

    #[test]
    fn damage_says_where_and_what() {
        let sent: Vec<u8> = (0..4 * ROW_BYTES).map(|i| (i % 250 + 1) as u8).collect();
        let mut arrived = sent.clone();
        arrived[2 * ROW_BYTES..].fill(0);
        let damage = Checksum::of(&sent)
            .damage(&Checksum::of(&arrived))
            .expect("they differ");
        assert_eq!(
            (damage.from.0, damage.to.0),
            (2 * ROW_BYTES as u64, 4 * ROW_BYTES as u64)
        );
        assert!(damage.zeros);
        assert_eq!(damage.wrong_rows, 2);
        assert_eq!(
            damage.to_string(),
            "wrong between bytes 32768 and 65536, where there are zeros"
        );
    }

    #[test]
    fn a_tail_of_zeros_that_is_missing_is_damage_too() {
        let damage = Checksum::of(&[1, 0, 0])
            .damage(&Checksum::of(&[1]))
            .expect("they differ");
        assert_eq!(
            damage.to_string(),
            "1 B arrived of 3 B; wrong between bytes 1 and 3"
        );
    }

    /// The missing zeros begin before the first row that sums differently.
    #[test]
    fn damage_begins_where_the_shorter_tensor_ends() {
        let mut sent = vec![0; ROW_BYTES];
        sent.push(9);
        let damage = Checksum::of(&sent)
            .damage(&Checksum::of(&[0]))
            .expect("they differ");
        assert_eq!((damage.from.0, damage.to.0), (1, sent.len() as u64));
    }

    #[test]
    fn digest_depends_on_the_order_of_rows() {
        let mut bytes = vec![1_u8; ROW_BYTES];
        bytes.extend(vec![2_u8; ROW_BYTES]);
        let forward = Checksum::of(&bytes);
        bytes.rotate_left(ROW_BYTES);
        assert_ne!(forward.digest(), Checksum::of(&bytes).digest());
    }
}
