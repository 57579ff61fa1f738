//! How a garment moves: the path of its centre of brightness.

use std::f64::consts::{PI, TAU};

use image::GrayImage;

use crate::setup::clips::draw::{self, Motion};

/// The path through a clip.
#[derive(Debug)]
pub(super) struct Track {
    /// Displacement between frames, in pixels; dark frames have none.
    steps: Vec<(f64, f64)>,
    /// Displacement from the first frame to the last.
    net: (f64, f64),
}

/// Shorter steps, in pixels, have no meaningful direction.
const SHORT: f64 = 0.25;
/// Larger turns, in radians, are reversals.
const BACK: f64 = 0.75 * PI;
/// Clips whose path is shorter, in pixels, do not move.
const STILL: f64 = 4.0;

impl Track {
    pub(super) fn of(frames: &[GrayImage]) -> Self {
        let centres: Vec<(f64, f64)> = frames.iter().filter_map(draw::centre).collect();
        let apart = |from: &(f64, f64), to: &(f64, f64)| (to.0 - from.0, to.1 - from.1);
        Self {
            steps: centres
                .windows(2)
                .map(|pair| apart(&pair[0], &pair[1]))
                .collect(),
            net: match (centres.first(), centres.last()) {
                (Some(first), Some(last)) => apart(first, last),
                _ => (0.0, 0.0),
            },
        }
    }

    /// Length of the path.
    fn way(&self) -> f64 {
        self.steps.iter().map(|step| step.0.hypot(step.1)).sum()
    }

    pub(super) fn pixels_per_frame(&self) -> f64 {
        self.way() / self.steps.len().max(1) as f64
    }

    /// Number of clockwise turns of the path.
    pub(super) fn turns(&self) -> f64 {
        let long = self.steps.iter().filter(|s| s.0.hypot(s.1) >= SHORT);
        let directions: Vec<f64> = long.map(|step| step.1.atan2(step.0)).collect();
        let turn = |pair: &[f64]| (pair[1] - pair[0] + PI).rem_euclid(TAU) - PI;
        let turns = directions.windows(2).map(turn);
        // A reversal is as much a turn to one side as to the other.
        turns.filter(|turn| turn.abs() < BACK).sum::<f64>() / TAU
    }

    /// Which motion it is: a circle or along one axis; `None` for neither.
    pub(super) fn motion(&self) -> Option<Motion> {
        let (x, y) = self.net;
        let net = x.hypot(y);
        // The twelve steps of a circle make eleven twelfths of a turn.
        if self.turns().abs() >= 0.6 && self.way() >= 3.0 * STILL && net < self.way() / 2.0 {
            return Some(Motion::Circle);
        }
        let straight = net >= STILL && net > 0.7 * self.way();
        match (straight, x.abs() > 2.0 * y.abs(), y.abs() > 2.0 * x.abs()) {
            (true, true, _) if x > 0.0 => Some(Motion::Right),
            (true, true, _) => Some(Motion::Left),
            (true, _, true) if y > 0.0 => Some(Motion::Down),
            (true, _, true) => Some(Motion::Up),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::setup::clips::draw::{Random, frames};

    fn clip(motion: Motion) -> Vec<GrayImage> {
        let picture = vec![200; 28 * 28];
        frames(&picture, 28, motion, &mut Random::new("clip"))
    }

    #[test]
    fn every_motion_is_told_from_the_others() {
        for motion in Motion::STRAIGHT.into_iter().chain([Motion::Circle]) {
            let track = Track::of(&clip(motion));
            assert_eq!(track.motion(), Some(motion));
        }
        assert!((Track::of(&clip(Motion::Left)).pixels_per_frame() - 1.0).abs() < 0.01);
        assert!((Track::of(&clip(Motion::Circle)).turns() - 11.0 / 12.0).abs() < 0.02);
    }

    #[test]
    fn what_stands_trembles_or_is_dark_does_not_move() {
        let still = vec![clip(Motion::Up)[0].clone(); 13];
        assert_eq!(Track::of(&still).motion(), None);
        let all = clip(Motion::Left);
        let trembling: Vec<_> = (0..13).map(|n| all[n % 2].clone()).collect();
        assert_eq!(Track::of(&trembling).motion(), None);
        let dark = vec![GrayImage::new(32, 32); 13];
        assert_eq!(Track::of(&dark).motion(), None);
        assert_eq!(Track::of(&dark).pixels_per_frame(), 0.0);
        // Forth and back.
        let back: Vec<_> = (0..13)
            .map(|n: usize| all[6 - n.abs_diff(6)].clone())
            .collect();
        assert_eq!(Track::of(&back).motion(), None);
    }
}
