//! Which garment a clip shows: that of the nearest of the clips that are known.

use image::{GrayImage, Luma};

use crate::setup::clips::draw::{self, GARMENT};

/// Neighbours that are asked.
const NEIGHBOURS: usize = 5;

/// Clips whose garments are known.
#[derive(Clone)]
pub(super) struct Classifier {
    known: Vec<(&'static str, Vec<f64>)>,
    /// Whether the clip that is nearest is not asked, since it is the same.
    leaves_out: bool,
}

impl Classifier {
    pub(super) fn of<'a>(clips: impl Iterator<Item = (&'static str, &'a [GrayImage])>) -> Self {
        let looks = clips.filter_map(|(garment, frames)| Some((garment, look(frames)?)));
        Self {
            known: looks.collect(),
            leaves_out: false,
        }
    }

    /// The same for clips that it knows.
    pub(super) fn leaving_out(&self) -> Self {
        Self {
            leaves_out: true,
            ..self.clone()
        }
    }

    /// What most of the nearest show; `None` for a clip that is dark.
    pub(super) fn garment(&self, frames: &[GrayImage]) -> Option<&'static str> {
        let seen = look(frames)?;
        let likeness = |known: &[f64]| known.iter().zip(&seen).map(|(a, b)| a * b).sum::<f64>();
        let known = self.known.iter();
        let mut near: Vec<(f64, &str)> = known.map(|(name, k)| (likeness(k), *name)).collect();
        near.sort_by(|one, other| other.0.total_cmp(&one.0));
        let near = &near[usize::from(self.leaves_out).min(near.len())..];
        let near = &near[..NEIGHBOURS.min(near.len())];
        let votes = |name: &str| near.iter().filter(|(_, of)| *of == name).count();
        // Of equals the nearer one, which comes first.
        let best = near.iter().rev().max_by_key(|(_, name)| votes(name));
        best.map(|(_, name)| *name)
    }
}

/// The garment's mean look over the frames, moved to the middle: a direction of length 1.
fn look(frames: &[GrayImage]) -> Option<Vec<f64>> {
    // Somewhat more than a garment, whose middle is not that of its square.
    let side = GARMENT + 4;
    let mut sum = vec![0.0; (side * side) as usize];
    for frame in frames {
        let Some((x, y)) = draw::centre(frame) else {
            continue;
        };
        let half = f64::from(side - 1) / 2.0;
        for (index, value) in (0..).zip(&mut sum) {
            let (column, row) = (f64::from(index % side), f64::from(index / side));
            *value += between(frame, x + column - half, y + row - half);
        }
    }
    let mean = sum.iter().sum::<f64>() / sum.len() as f64;
    sum.iter_mut().for_each(|value| *value -= mean);
    let length = sum.iter().map(|value| value * value).sum::<f64>().sqrt();
    (length > 0.0).then(|| sum.iter().map(|value| value / length).collect())
}

/// The grey between pixels; black beyond the picture.
fn between(picture: &GrayImage, x: f64, y: f64) -> f64 {
    let (left, top) = (x.floor(), y.floor());
    let (right, below) = (x - left, y - top);
    let pixel = |dx: f64, dy: f64| {
        let (x, y) = (left + dx, top + dy);
        let inside = x >= 0.0
            && y >= 0.0
            && x < f64::from(picture.width())
            && y < f64::from(picture.height());
        match inside {
            true => {
                let Luma([grey]) = *picture.get_pixel(x as u32, y as u32);
                f64::from(grey)
            }
            false => 0.0,
        }
    };
    (1.0 - below) * ((1.0 - right) * pixel(0.0, 0.0) + right * pixel(1.0, 0.0))
        + below * ((1.0 - right) * pixel(0.0, 1.0) + right * pixel(1.0, 1.0))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::setup::clips::draw::{Motion, Random, frames};

    /// A garment that is a bar, this high.
    fn clip(height: usize, motion: Motion, name: &str) -> Vec<GrayImage> {
        let mut picture = vec![0; 28 * 28];
        picture[..height * 28].fill(180);
        frames(&picture, 28, motion, &mut Random::new(name))
    }

    #[test]
    fn a_garment_is_known_by_its_shape_wherever_it_goes() {
        let mut known = Vec::new();
        for number in 0..6 {
            known.push((
                "low",
                clip(6 + number % 2, Motion::Left, &format!("{number}")),
            ));
            known.push((
                "high",
                clip(20 + number % 2, Motion::Up, &format!("{number}")),
            ));
        }
        let classifier = Classifier::of(known.iter().map(|(name, frames)| (*name, &**frames)));
        let seen = |height| classifier.garment(&clip(height, Motion::Circle, "new"));
        assert_eq!((seen(7), seen(19)), (Some("low"), Some("high")));
        assert_eq!(classifier.garment(&[GrayImage::new(32, 32)]), None);
        // Left alone with others, the one that is known by itself is none of them.
        let mut one = vec![("odd", clip(13, Motion::Left, "odd"))];
        one.extend(known);
        let classifier = Classifier::of(one.iter().map(|(name, frames)| (*name, &**frames)));
        let left_out = classifier.leaving_out();
        assert_ne!(left_out.garment(&one[0].1), Some("odd"));
    }
}
