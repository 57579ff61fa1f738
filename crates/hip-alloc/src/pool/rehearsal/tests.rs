//! Steps of a made-up program, followed.

use super::*;
use crate::pool::lifetime::octaves;
use crate::units::MIB;

/// A step of `layers`: each saves a tensor of `bytes`, and needs five times that for a
/// moment; then all are freed. What is requested, and what is freed.
fn events(layers: u64, bytes: u64) -> Vec<(bool, u64)> {
    let mut events = Vec::new();
    for layer in 0..layers {
        events.push((true, bytes));
        // Every layer has something of its own, so that the place is known.
        let parts = 0..1 + (layer * layer + layer / 3) % 5;
        events.extend(parts.clone().map(|part| (true, bytes / (2 + part))));
        events.extend([(true, 5 * bytes), (false, 5 * bytes)]);
        events.extend(parts.map(|part| (false, bytes / (2 + part))));
    }
    events.extend((0..layers).map(|_| (false, bytes)));
    events
}

/// Goes through events; what is ahead after each.
fn go(rehearsal: &mut Rehearsal, events: &[(bool, u64)]) -> Vec<u64> {
    let mut used = 1000 * MIB;
    let through = events.iter().map(|(request, bytes)| {
        used = if *request { used + bytes } else { used - bytes };
        rehearsal.turn(*request, *bytes, octaves(*bytes), used);
        rehearsal.ahead()
    });
    through.collect()
}

#[test]
fn the_second_time_it_is_known_what_will_be_needed() {
    let mut rehearsal = Rehearsal::default();
    let step = events(40, 16 * MIB);
    go(&mut rehearsal, &step);
    let ahead = go(&mut rehearsal, &step);
    let (middle, last) = (ahead[ahead.len() / 2], ahead[ahead.len() - 1]);
    assert!(middle > 300 * MIB && middle < 800 * MIB, "{}", middle / MIB);
    assert_eq!(last, 0, "memory is at its lowest");
}

#[test]
fn larger_tensors_need_more() {
    let mut rehearsal = Rehearsal::default();
    let step = events(40, 16 * MIB);
    for _ in 0..2 {
        go(&mut rehearsal, &step);
    }
    let same = go(&mut rehearsal, &step);
    let larger = go(&mut rehearsal, &events(40, 48 * MIB));
    let middle = same.len() / 2;
    let times = larger[middle] as f64 / same[middle] as f64;
    assert!((2.0..=4.0).contains(&times), "{times}");
}

#[test]
fn nothing_is_promised_where_something_else_is_done() {
    let mut rehearsal = Rehearsal::default();
    let step = events(40, 16 * MIB);
    for _ in 0..2 {
        go(&mut rehearsal, &step);
    }
    let half = step.len() / 2;
    let ahead = go(&mut rehearsal, &step[..half]);
    assert!(ahead[half - 1] > 100 * MIB);
    let (request, bytes) = step[half];
    rehearsal.turn(!request, bytes, octaves(bytes), 1500 * MIB);
    assert_eq!(rehearsal.ahead(), 0);
}

#[test]
fn nothing_is_known_of_what_is_new() {
    let mut rehearsal = Rehearsal::default();
    for _ in 0..3 {
        go(&mut rehearsal, &events(40, 16 * MIB));
    }
    assert!(rehearsal.followed.is_some());
    let new: Vec<_> = (0..200).map(|number| (true, number * 4096)).collect();
    let ahead = go(&mut rehearsal, &new);
    assert!(rehearsal.followed.is_none());
    assert_eq!(ahead[199], 0);
}

#[test]
fn how_a_request_ended_is_known_the_next_time() {
    let mut rehearsal = Rehearsal::default();
    let mut steps = events(100, 16 * MIB);
    steps.extend(events(100, 16 * MIB));
    go(&mut rehearsal, &steps);
    let next = rehearsal.followed.as_ref().unwrap().at + 1;
    assert_eq!(rehearsal.next_ended(), Some(Ended::NotYet));
    rehearsal.ended(next, Expectation::Passing);
    let passing = Ended::As(Expectation::Passing);
    assert_eq!(rehearsal.next_ended(), Some(passing));
}

#[test]
fn ends_of_steps_that_are_remembered_are_bounded() {
    let mut rehearsal = Rehearsal::default();
    for number in 0..2 * EBBS as u64 {
        rehearsal.ebbed(0, number);
    }
    assert_eq!(rehearsal.ebbs.len(), EBBS);
    assert_eq!(rehearsal.ebbs[0], EBBS as u64);
}
