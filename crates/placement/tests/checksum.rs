//! Each listed kind of damage changes the checksum, for bytes of all kinds and lengths.

use proptest::prelude::*;
use surefoot_placement::checksum::{Checksum, ROW_BYTES};

/// Typical tensors: noise, constants, few distinct values, ordered floats; up to several rows, with odd
/// lengths.
fn tensors() -> impl Strategy<Value = Vec<u8>> {
    let length = prop_oneof![1..64_usize, 1..3 * ROW_BYTES];
    let kind = prop_oneof![
        any::<u64>().prop_map(Kind::Noise),
        any::<u8>().prop_map(Kind::Constant),
        Just(Kind::Alternating),
        Just(Kind::Ramp),
    ];
    (length, kind).prop_map(|(length, kind)| kind.fill(length))
}

#[derive(Clone, Copy, Debug)]
enum Kind {
    Noise(u64),
    Constant(u8),
    Alternating,
    Ramp,
}

impl Kind {
    fn fill(self, length: usize) -> Vec<u8> {
        match self {
            Kind::Noise(seed) => noise(seed, length),
            Kind::Constant(byte) => vec![byte; length],
            // Words of 1.0 and -1.0, which differ in their top bit only.
            Kind::Alternating => {
                let ones = [1.0_f32.to_le_bytes(), (-1.0_f32).to_le_bytes()].concat();
                ones.into_iter().cycle().take(length).collect()
            }
            Kind::Ramp => (0..length as u32)
                .flat_map(|i| (i as f32).to_le_bytes())
                .take(length)
                .collect(),
        }
    }
}

fn noise(seed: u64, length: usize) -> Vec<u8> {
    let mut state = seed | 1;
    let next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 32) as u8
    };
    std::iter::repeat_with(next).take(length).collect()
}

/// Different bytes must have different checksums, and the damage must lie in the reported range.
fn check(sent: &[u8], arrived: &[u8]) -> Result<(), TestCaseError> {
    let damage = Checksum::of(sent).damage(&Checksum::of(arrived));
    if sent == arrived {
        prop_assert_eq!(damage, None);
        return Ok(());
    }
    let damage = damage.ok_or_else(|| TestCaseError::fail("not detected"))?;
    let at = sent
        .iter()
        .zip(arrived)
        .position(|(a, b)| a != b)
        .unwrap_or(sent.len().min(arrived.len()));
    prop_assert!(
        (damage.from.0..damage.to.0).contains(&(at as u64)),
        "{} not in {:?}",
        at,
        damage
    );
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn a_bit_flip(mut bytes in tensors(), at: prop::sample::Index, bit in 0..8) {
        let sent = bytes.clone();
        *at.get_mut(&mut bytes) ^= 1_u8 << bit;
        check(&sent, &bytes)?;
    }

    #[test]
    fn two_bit_flips(
        mut bytes in tensors(),
        at: [prop::sample::Index; 2],
        bits in [0..8, 0..8],
    ) {
        let sent = bytes.clone();
        for (at, bit) in at.iter().zip(bits) {
            *at.get_mut(&mut bytes) ^= 1_u8 << bit;
        }
        check(&sent, &bytes)?;
    }

    /// Any damage to any two words of a row: what the module guarantees.
    #[test]
    fn any_damage_to_two_words_of_a_row(
        mut bytes in tensors(),
        at: [prop::sample::Index; 2],
        masks: [u32; 2],
    ) {
        let sent = bytes.clone();
        let (words, _) = bytes.as_chunks_mut::<4>();
        if !words.is_empty() {
            for (at, mask) in at.iter().zip(masks) {
                let word = at.get_mut(words);
                *word = (u32::from_le_bytes(*word) ^ mask).to_le_bytes();
            }
        }
        check(&sent, &bytes)?;
    }

    /// A plain sum misses this: one word gains what another loses.
    #[test]
    fn two_words_that_balance(
        mut bytes in tensors(),
        at: [prop::sample::Index; 2],
        amount in 1..1_000_i32,
    ) {
        let sent = bytes.clone();
        let (words, _) = bytes.as_chunks_mut::<4>();
        if !words.is_empty() {
            for (at, amount) in at.iter().zip([amount, -amount]) {
                let word = at.get_mut(words);
                *word = i32::from_le_bytes(*word).wrapping_add(amount).to_le_bytes();
            }
        }
        check(&sent, &bytes)?;
    }

    #[test]
    fn zeros_from_somewhere_to_somewhere(mut bytes in tensors(), ends: [prop::sample::Index; 2]) {
        let sent = bytes.clone();
        let (a, b) = (ends[0].index(bytes.len()), ends[1].index(bytes.len()));
        bytes[a.min(b)..=a.max(b)].fill(0);
        check(&sent, &bytes)?;
    }

    /// Also with another payload where there was a NaN already.
    #[test]
    fn nans(mut bytes in tensors(), ends: [prop::sample::Index; 2], payload in 1..0x7f_ffff_u32) {
        let sent = bytes.clone();
        let (words, _) = bytes.as_chunks_mut::<4>();
        if !words.is_empty() {
            let (a, b) = (ends[0].index(words.len()), ends[1].index(words.len()));
            words[a.min(b)..=a.max(b)].fill((0x7f80_0000 | payload).to_le_bytes());
        }
        check(&sent, &bytes)?;
        let nan_already = bytes.clone();
        let (words, _) = bytes.as_chunks_mut::<4>();
        for word in words {
            if f32::from_le_bytes(*word).is_nan() {
                word[0] ^= 1;
                break;
            }
        }
        check(&nan_already, &bytes)?;
    }

    #[test]
    fn a_shorter_tensor(bytes in tensors(), at: prop::sample::Index) {
        check(&bytes, &bytes[..at.index(bytes.len())])?;
    }

    #[test]
    fn a_tail_of_stale_bytes(mut bytes in tensors(), at: prop::sample::Index, before: u64) {
        let sent = bytes.clone();
        let at = at.index(bytes.len());
        let stale = noise(before, bytes.len());
        bytes[at..].copy_from_slice(&stale[at..]);
        check(&sent, &bytes)?;
    }

    #[test]
    fn chunks_in_each_others_place(
        mut bytes in tensors(),
        ends: [prop::sample::Index; 2],
        length: prop::sample::Index,
    ) {
        let sent = bytes.clone();
        let (a, b) = (ends[0].index(bytes.len()), ends[1].index(bytes.len()));
        let (a, b) = (a.min(b), a.max(b));
        let length = length.index(bytes.len()).min(b - a).min(bytes.len() - b);
        let (front, back) = bytes.split_at_mut(b);
        front[a..a + length].swap_with_slice(&mut back[..length]);
        check(&sent, &bytes)?;
    }

    #[test]
    fn everything_moved_by_some_bytes(mut bytes in tensors(), by: prop::sample::Index) {
        let sent = bytes.clone();
        let by = by.index(bytes.len());
        bytes.rotate_left(by);
        check(&sent, &bytes)?;
    }
}
