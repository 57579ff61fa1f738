//! Sums by definition, by vector instructions and on the way of a copy.

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
    let portable = Tally::of_portable(&row, &row);
    assert_eq!(sum_row(&row), portable.sums());
    #[cfg(target_arch = "x86_64")]
    if std::arch::is_x86_feature_detected!("avx2") {
        // SAFETY: the CPU has AVX2.
        let vector = unsafe { Tally::of_avx2(&row, &row) };
        assert_eq!(vector.sums(), portable.sums());
    }
}

/// Short, one row, some pieces, and enough for several cores; each with an end that is no full row.
const LENGTHS: [usize; 6] = [
    5,
    ROW_BYTES,
    3 * ROW_BYTES + PIECE_BYTES + 7,
    MIN_COPY_ROWS * ROW_BYTES,
    PARALLEL_BYTES,
    2 * PARALLEL_BYTES + 9,
];

/// Threads that leave some of the work undone, as when one cannot be had.
struct Helpers(usize);

impl Workers for Helpers {
    fn count(&self) -> usize {
        self.0
    }

    fn each(&self, shares: usize, work: &(dyn Fn(usize) + Sync)) {
        std::thread::scope(|scope| {
            for at in 1..shares {
                scope.spawn(move || work(at));
            }
        });
    }
}

fn bytes(length: usize) -> Vec<u8> {
    (0..length).map(|at| (at * 31 % 253) as u8).collect()
}

#[test]
fn the_sums_of_a_copy_are_those_of_both_sides() {
    for length in LENGTHS {
        let from = bytes(length);
        let mut to = vec![0xa5; length];
        let expected = Checksum {
            bytes: length as u64,
            rows: by_definition(&from),
        };
        for helpers in [0, 1, 2, 3, 40] {
            to.fill(0xa5);
            let copy = |from: &[u8], to: &mut [u8]| to.copy_from_slice(from);
            let sums = Checksum::of_copy(&from, &mut to, &Helpers(helpers), copy);
            assert_eq!(to, from);
            assert_eq!(sums, (expected.clone(), expected.clone()));
        }
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
            let (sent, arrived) = Checksum::of_copy(&from, &mut to, &Helpers(2), copy);
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
