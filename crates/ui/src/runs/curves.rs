//! Curves of any length in bounded memory.
//!
//! Steps are grouped in buckets of equal width. A bucket keeps the mean, minimum and maximum of each value, so
//! that no spike is lost; if there are too many buckets, neighbours are merged. One pass over the records is
//! enough, and later records can be added.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The most buckets that are kept, and the fewest that may be requested.
const MAX_POINTS: usize = 2000;
const MIN_POINTS: usize = 50;

/// The requested part of a curve.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Range {
    /// First step.
    pub from: u64,
    /// Last step.
    pub to: u64,
    /// The most points to return, 50 to 2000.
    pub points: usize,
}

impl Default for Range {
    fn default() -> Self {
        Self {
            from: 0,
            to: u64::MAX,
            points: 1000,
        }
    }
}

/// One value over the steps. A bucket without a number is absent from all lists.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct Curve {
    /// Its name.
    pub name: &'static str,
    /// Mean of each bucket.
    pub mean: Vec<Option<f64>>,
    /// Minimum of each bucket; empty if every bucket has a single number.
    pub min: Vec<Option<f64>>,
    /// Maximum of each bucket; empty if every bucket has a single number.
    pub max: Vec<Option<f64>>,
}

/// Curves with the same steps.
#[derive(Debug, Clone, Default, PartialEq, Serialize, JsonSchema)]
pub struct Curves {
    /// Steps per bucket.
    pub width: u64,
    /// The last step of each bucket that has a number.
    pub steps: Vec<u64>,
    /// The curves; those without any number are left out.
    pub curves: Vec<Curve>,
}

#[derive(Debug, Clone, Copy)]
struct Extent {
    sum: f64,
    count: u32,
    min: f64,
    max: f64,
}

const EMPTY: Extent = Extent {
    sum: 0.0,
    count: 0,
    min: f64::INFINITY,
    max: f64::NEG_INFINITY,
};

impl Extent {
    fn add(&mut self, other: &Self) {
        self.sum += other.sum;
        self.count += other.count;
        self.min = self.min.min(other.min);
        self.max = self.max.max(other.max);
    }

    fn of(value: f64) -> Self {
        Self {
            sum: value,
            count: 1,
            min: value,
            max: value,
        }
    }
}

#[derive(Debug, Clone)]
struct Bucket<const N: usize> {
    /// Its index; its first step is the index times the width.
    index: u64,
    last_step: u64,
    values: [Extent; N],
}

/// Collects `N` values over the steps.
#[derive(Debug, Clone)]
pub(super) struct Collector<const N: usize> {
    names: [&'static str; N],
    range: Range,
    width: u64,
    buckets: Vec<Bucket<N>>,
}

impl<const N: usize> Collector<N> {
    pub(super) fn new(names: [&'static str; N], mut range: Range) -> Self {
        range.points = range.points.clamp(MIN_POINTS, MAX_POINTS);
        Self {
            names,
            range,
            width: 1,
            buckets: Vec::new(),
        }
    }

    pub(super) fn range(&self) -> Range {
        self.range
    }

    /// Adds the values of a step; values that are not finite are skipped.
    pub(super) fn add(&mut self, step: u64, values: [Option<f64>; N]) {
        if step < self.range.from || step > self.range.to {
            return;
        }
        let values = values.map(|value| match value {
            Some(value) if value.is_finite() => Extent::of(value),
            _ => EMPTY,
        });
        let index = step / self.width;
        let at = match self.buckets.last() {
            Some(last) if last.index < index => Err(self.buckets.len()),
            None => Err(0),
            _ => self
                .buckets
                .binary_search_by_key(&index, |bucket| bucket.index),
        };
        match at {
            Ok(at) => {
                let bucket = &mut self.buckets[at];
                bucket.last_step = bucket.last_step.max(step);
                for (extent, value) in bucket.values.iter_mut().zip(&values) {
                    extent.add(value);
                }
            }
            Err(at) => self.buckets.insert(
                at,
                Bucket {
                    index,
                    last_step: step,
                    values,
                },
            ),
        }
        while self.buckets.len() > self.range.points {
            self.widen();
        }
    }

    /// Merges pairs of neighbouring buckets.
    fn widen(&mut self) {
        self.width = self.width.saturating_mul(2);
        let mut wider: Vec<Bucket<N>> = Vec::with_capacity(self.buckets.len());
        for mut bucket in self.buckets.drain(..) {
            bucket.index /= 2;
            match wider.last_mut() {
                Some(last) if last.index == bucket.index => {
                    last.last_step = bucket.last_step;
                    for (extent, other) in last.values.iter_mut().zip(&bucket.values) {
                        extent.add(other);
                    }
                }
                _ => wider.push(bucket),
            }
        }
        self.buckets = wider;
    }

    /// Forgets everything after `step`, which the run returned to.
    pub(super) fn rewind(&mut self, step: u64) {
        self.buckets.retain(|bucket| bucket.last_step <= step);
    }

    pub(super) fn curves(&self) -> Curves {
        let numbers = |which: usize, of: fn(&Extent) -> f64| -> Vec<Option<f64>> {
            let extents = self.buckets.iter().map(|bucket| &bucket.values[which]);
            extents
                .map(|extent| (extent.count > 0).then(|| of(extent)))
                .collect()
        };
        let curve = |which: usize| {
            let mut extents = self.buckets.iter().map(|bucket| &bucket.values[which]);
            let many = extents.any(|extent| extent.count > 1);
            let bound = |of| match many {
                true => numbers(which, of),
                false => Vec::new(),
            };
            Curve {
                name: self.names[which],
                mean: numbers(which, |extent| extent.sum / f64::from(extent.count)),
                min: bound(|extent| extent.min),
                max: bound(|extent| extent.max),
            }
        };
        let is_there = |curve: &Curve| curve.mean.iter().any(Option::is_some);
        Curves {
            width: self.width,
            steps: self.buckets.iter().map(|bucket| bucket.last_step).collect(),
            curves: (0..N).map(curve).filter(is_there).collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn collector(points: usize) -> Collector<1> {
        let range = Range {
            points,
            ..Range::default()
        };
        Collector::new(["loss"], range)
    }

    #[test]
    fn few_points_stay_as_they_are() {
        let mut made = collector(50);
        for step in [10, 20, 30] {
            made.add(step, [Some(step as f64)]);
        }
        let curves = made.curves();
        assert_eq!((curves.width, &curves.steps[..]), (1, &[10, 20, 30][..]));
        let curve = &curves.curves[0];
        assert_eq!(curve.mean, [Some(10.0), Some(20.0), Some(30.0)]);
        assert!(curve.min.is_empty() && curve.max.is_empty());
    }

    #[test]
    fn a_spike_among_a_million_is_not_lost() {
        let mut made = collector(1000);
        for step in 0..1_000_000 {
            made.add(step, [Some(if step == 777_777 { 99.0 } else { 1.0 })]);
        }
        let curves = made.curves();
        assert!(curves.steps.len() <= 1000, "{}", curves.steps.len());
        let most = curves.curves[0].max.iter().flatten();
        assert_eq!(most.copied().fold(0.0, f64::max), 99.0);
        assert!(curves.steps.windows(2).all(|pair| pair[0] < pair[1]));
    }

    #[test]
    fn steps_after_a_rewind_replace_the_earlier_ones() {
        let mut made = collector(50);
        for step in 1..=9 {
            made.add(step, [Some(1.0)]);
        }
        made.rewind(4);
        made.add(5, [Some(2.0)]);
        assert_eq!(made.curves().steps, [1, 2, 3, 4, 5]);
    }

    #[test]
    fn a_value_that_is_not_finite_leaves_a_gap() {
        let mut made = collector(50);
        made.add(1, [Some(1.0)]);
        made.add(2, [None]);
        made.add(3, [Some(f64::NAN)]);
        assert_eq!(made.curves().curves[0].mean, [Some(1.0), None, None]);
    }

    proptest! {
        #[test]
        fn steps_in_any_order_are_all_counted(
            steps in prop::collection::vec(0_u64..10_000, 1..400),
        ) {
            let mut made = collector(50);
            for step in &steps {
                made.add(*step, [Some(*step as f64)]);
            }
            let counted: u32 = made.buckets.iter().map(|bucket| bucket.values[0].count).sum();
            prop_assert_eq!(counted as usize, steps.len());
            let curves = made.curves();
            prop_assert!(curves.steps.len() <= 50);
            prop_assert!(curves.steps.windows(2).all(|pair| pair[0] < pair[1]));
        }
    }
}
