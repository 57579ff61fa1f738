//! Logs of events without order, and of tunes that come again.

use super::*;
use crate::units::MIB;

/// Numbers without order, always the same.
fn numbers(seed: u64) -> impl Iterator<Item = u64> {
    std::iter::successors(Some(seed), |state| {
        let state = state.wrapping_mul(6_364_136_223_846_793_005);
        Some(state.wrapping_add(1_442_695_040_888_963_407))
    })
    .skip(1)
}

/// A log of so many events that hardly repeat themselves, with the levels they led to.
fn noise(events: usize) -> (Log, Vec<u32>) {
    let mut log = Log::default();
    let mut levels = Vec::new();
    for number in numbers(1).take(events) {
        let (bytes, used) = ((number >> 40) % MIB, (number >> 20) % (1 << 36));
        levels.push((used >> LEVEL_LOG2) as u32);
        if let Some(bucket) = log.note(number >> 63 == 1, bytes, log_size(bytes), used).1 {
            log.note_place(bucket);
        }
    }
    (log, levels)
}

#[test]
fn what_is_remembered_is_bounded() {
    let (log, _) = noise(2 * REMEMBERED as usize);
    assert_eq!(log.events.len() as u64, REMEMBERED);
    assert!(log.places.len() as u64 <= NOTED);
}

/// Where a stretch begins and ends, and elsewhere, up to the last event.
fn beginnings(log: &Log) -> [u64; 6] {
    let now = log.now();
    let whole = now / STRETCH * STRETCH;
    [now, now - 1, whole + 1, whole, whole - 300, now - 100_000]
}

#[test]
fn the_range_is_that_of_the_levels() {
    let (log, levels) = noise(REMEMBERED as usize + 1000);
    for from in beginnings(&log) {
        let levels = &levels[from as usize - 1..];
        let expected = (*levels.iter().min().unwrap(), *levels.iter().max().unwrap());
        assert_eq!(log.range(from), expected, "from {from}");
    }
}

#[test]
fn the_first_low_level_is_found() {
    let (log, levels) = noise(REMEMBERED as usize + 1000);
    for from in beginnings(&log) {
        for level in [0, 1 << 10, 1 << 16, 1 << 20, 1 << 27] {
            let low = |at: &u64| levels[*at as usize - 1] <= level;
            let expected = (from..=log.now()).find(low);
            assert_eq!(
                log.first_at_most(level, from),
                expected,
                "{level} from {from}"
            );
        }
    }
}

#[test]
fn the_lowest_of_low_levels_ends_where_they_are_high() {
    let mut log = Log::default();
    for level in [7, 5, 4, 5, 4, 6, 9, 3] {
        log.note(true, 1, 0, level << LEVEL_LOG2);
    }
    assert_eq!(log.lowest_of_low(8, 1, 8), (5, 7), "the last of the lowest");
    assert_eq!(log.lowest_of_low(8, 1, 4), (3, 5), "up to the last");
    assert_eq!(log.lowest_of_low(8, 7, 8), (7, 7), "nothing is low");
    for _ in 0..2 * STRETCH {
        log.note(true, 1, 0, 2 << LEVEL_LOG2);
    }
    let last = 8 + 2 * STRETCH;
    assert_eq!(
        log.lowest_of_low(8, 8, last),
        (last, last + 1),
        "over several stretches"
    );
}

#[test]
fn peaks_are_what_nothing_after_them_reaches() {
    let (log, levels) = noise(REMEMBERED as usize + 1000);
    for (first, last) in beginnings(&log).map(|first| (first, log.now())) {
        let mut expected = Vec::new();
        for at in (first..=last).rev() {
            let level = levels[at as usize - 1];
            if expected.last().is_none_or(|(_, peak)| level > *peak) {
                expected.push((at, level));
            }
        }
        let mut peaks = vec![(1, 1)];
        log.peaks(first, last, &mut peaks);
        assert_eq!(peaks, expected, "from {first}");
    }
}

/// What is done, with sizes in KiB, and noted.
fn go(log: &mut Log, events: &[(bool, u64)]) -> Option<Bucket> {
    let mut bucket = None;
    for (request, kib) in events {
        let bytes = kib * 1024;
        bucket = log.note(*request, bytes, log_size(bytes), 0).1;
        if let Some(bucket) = bucket {
            log.note_place(bucket);
        }
    }
    bucket
}

/// Fifty events that are their own.
fn tune(number: u64) -> Vec<(bool, u64)> {
    let events = numbers(number).map(|number| (number >> 63 == 1, 4 << (number >> 59 & 7)));
    events.take(50).collect()
}

#[test]
fn the_same_at_another_scale_is_alike_and_something_else_is_not() {
    let mut log = Log::default();
    for number in [1, 2, 3] {
        go(&mut log, &tune(number));
    }
    let larger: Vec<_> = tune(2)
        .iter()
        .map(|(request, kib)| (*request, kib * 4))
        .collect();
    go(&mut log, &larger);
    assert_eq!(log.alike_near(100, 1), Some(100));
    assert_eq!(log.alike_near(95, 20), Some(100), "five events away");
    assert_eq!(log.alike_near(50, 20), None);
    go(&mut log, &[(true, 3)]);
    assert_eq!(log.alike_near(100, 20), None);
}

#[test]
fn a_place_is_found_by_what_led_to_it() {
    let mut log = Log::default();
    let mut found = 0;
    for round in 0..40u64 {
        for (at, event) in tune(round % 20).iter().enumerate() {
            let Some(bucket) = go(&mut log, &[*event]) else {
                continue;
            };
            if round >= 20 && at as u64 >= ALIKE {
                found += 1;
                assert_eq!(log.alike(bucket), Some(log.now() - 20 * 50));
            }
        }
    }
    assert!(found > 10, "{found}");
}
