//! Steps of a made-up program, followed.

use super::*;
use crate::pool::policy::lifetime::log_size;
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

/// Goes through events; the growth that is expected after each.
fn go(predictor: &mut StepPredictor, events: &[(bool, u64)]) -> Vec<u64> {
    let mut used = 1000 * MIB;
    let through = events.iter().map(|(request, bytes)| {
        used = if *request { used + bytes } else { used - bytes };
        predictor.note(*request, *bytes, log_size(*bytes), used);
        predictor.growth().unwrap_or(0)
    });
    through.collect()
}

#[test]
fn the_second_time_it_is_known_what_will_be_needed() {
    let mut predictor = StepPredictor::default();
    let step = events(40, 16 * MIB);
    go(&mut predictor, &step);
    let growth = go(&mut predictor, &step);
    let (middle, last) = (growth[growth.len() / 2], growth[growth.len() - 1]);
    assert!(middle > 300 * MIB && middle < 800 * MIB, "{}", middle / MIB);
    assert_eq!(last, 0, "memory is at its lowest");
}

#[test]
fn larger_tensors_need_more() {
    let mut predictor = StepPredictor::default();
    let step = events(40, 16 * MIB);
    for _ in 0..2 {
        go(&mut predictor, &step);
    }
    let same = go(&mut predictor, &step);
    let larger = go(&mut predictor, &events(40, 48 * MIB));
    let middle = same.len() / 2;
    let times = larger[middle] as f64 / same[middle] as f64;
    assert!((2.0..=4.0).contains(&times), "{times}");
}

#[test]
fn nothing_is_promised_where_something_else_is_done() {
    let mut predictor = StepPredictor::default();
    let step = events(40, 16 * MIB);
    for _ in 0..2 {
        go(&mut predictor, &step);
    }
    let half = step.len() / 2;
    let growth = go(&mut predictor, &step[..half]);
    assert!(growth[half - 1] > 100 * MIB);
    let (request, bytes) = step[half];
    predictor.note(!request, bytes, log_size(bytes), 1500 * MIB);
    assert_eq!(predictor.growth().unwrap_or(0), 0);
}

#[test]
fn nothing_is_known_of_what_is_new() {
    let mut predictor = StepPredictor::default();
    for _ in 0..3 {
        go(&mut predictor, &events(40, 16 * MIB));
    }
    assert!(predictor.followed.is_some());
    let new: Vec<_> = (0..200).map(|number| (true, number * 4096)).collect();
    let growth = go(&mut predictor, &new);
    assert!(predictor.followed.is_none());
    assert_eq!(growth[199], 0);
}

#[test]
fn how_a_request_ended_is_known_the_next_time() {
    let mut predictor = StepPredictor::default();
    let mut steps = events(100, 16 * MIB);
    steps.extend(events(100, 16 * MIB));
    go(&mut predictor, &steps);
    let next = predictor.followed.as_ref().unwrap().at + 1;
    assert_eq!(predictor.next_ended(), Some(Ended::NotYet));
    predictor.ended(next, Expectation::Transient);
    let transient = Ended::As(Expectation::Transient);
    assert_eq!(predictor.next_ended(), Some(transient));
}

#[test]
fn ends_of_steps_that_are_remembered_are_bounded() {
    let mut predictor = StepPredictor::default();
    for number in 0..2 * BOUNDARIES as u64 {
        predictor.step_ended(0, number);
    }
    assert_eq!(predictor.boundaries.len(), BOUNDARIES);
    assert_eq!(predictor.boundaries[0], BOUNDARIES as u64);
}
