//! How many examples of several sets of data a pass has, and in which order they stand.
//!
//! Python's `interleave_datasets` draws each example's set by its probability; here the shares are
//! those probabilities exactly, and the sets stand as evenly between each other as their shares let
//! them. The order of training shuffles the rows that are made of these, as it does those of one set.

use crate::config::StoppingStrategy;
use crate::data::SplitMix64;

/// How much is taken of each set that has so many examples, for those weights. At least one of each that
/// has any.
pub(super) fn counts(
    examples: &[usize],
    weights: &[f64],
    strategy: StoppingStrategy,
) -> Vec<usize> {
    let sets = || {
        examples
            .iter()
            .zip(weights)
            .filter(|(count, _)| **count > 0)
    };
    // How much of a weight of one makes each set whole.
    let whole = sets().map(|(count, weight)| *count as f64 / weight);
    let unit = match strategy {
        StoppingStrategy::FirstExhausted => whole.fold(f64::INFINITY, f64::min),
        StoppingStrategy::AllExhausted => whole.fold(0.0, f64::max),
    };
    let taken = examples.iter().zip(weights);
    taken
        .map(|(count, weight)| match count {
            0 => 0,
            _ => ((unit * weight).round() as usize).max(1),
        })
        .collect()
}

/// Which examples of a set of `examples` are taken where `count` are: each as often as any other, or
/// once more, which `random` decides. In the order of the set, again and again.
pub(super) fn chosen(examples: usize, count: usize, random: &mut SplitMix64) -> Vec<usize> {
    let (times, rest) = match examples {
        0 => return Vec::new(),
        _ => (count / examples, count % examples),
    };
    let mut numbers: Vec<usize> = (0..examples).collect();
    for end in (1..examples).rev().take_while(|_| rest > 0) {
        numbers.swap(end, random.below(end as u64 + 1) as usize);
    }
    numbers.truncate(rest);
    numbers.sort_unstable();
    let again = (0..times).flat_map(|_| 0..examples);
    again.chain(numbers).collect()
}

/// All of `sets`, each in its order, and the next of all as far in its set as any.
pub(super) fn interleaved<T: Copy>(sets: &[Vec<T>]) -> Vec<T> {
    let mut placed: Vec<(f64, usize, T)> = Vec::new();
    for (number, set) in sets.iter().enumerate() {
        let place = |index: usize| (index as f64 + 0.5) / set.len() as f64;
        let items = set.iter().enumerate();
        placed.extend(items.map(|(index, item)| (place(index), number, *item)));
    }
    placed.sort_by(|one, other| one.0.total_cmp(&other.0).then(one.1.cmp(&other.1)));
    placed.into_iter().map(|(_, _, item)| item).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::StoppingStrategy::{AllExhausted, FirstExhausted};
    use super::*;

    #[test]
    fn the_first_to_be_exhausted_is_whole_and_the_others_follow_their_weights() {
        assert_eq!(counts(&[100, 40], &[1.0, 1.0], FirstExhausted), [40, 40]);
        assert_eq!(counts(&[100, 40], &[3.0, 1.0], FirstExhausted), [100, 33]);
        assert_eq!(
            counts(&[100, 40, 0], &[0.5; 3], FirstExhausted),
            [40, 40, 0]
        );
        assert_eq!(
            counts(&[9, 1_000_000], &[1.0, 1e-6], FirstExhausted),
            [9, 1]
        );
    }

    #[test]
    fn when_all_are_exhausted_the_smaller_ones_were_given_again() {
        assert_eq!(counts(&[100, 40], &[1.0, 1.0], AllExhausted), [100, 100]);
        assert_eq!(counts(&[100, 40], &[3.0, 1.0], AllExhausted), [120, 40]);
        assert_eq!(counts(&[7, 3], &[0.7, 0.3], AllExhausted), [7, 3]);
    }

    #[test]
    fn the_sets_stand_evenly_between_each_other() {
        let sets = [vec!["a"; 2], vec!["b"; 6]];
        assert_eq!(interleaved(&sets).concat(), "babbbabb");
    }

    proptest! {
        #[test]
        fn an_example_is_taken_as_often_as_any_other_or_once_more(
            examples in 1_usize..40, count in 0_usize..200, seed in any::<u64>(),
        ) {
            let found = chosen(examples, count, &mut SplitMix64::new(&[seed]));
            prop_assert_eq!(found.len(), count);
            let times = |number| found.iter().filter(|one| **one == number).count();
            for number in 0..examples {
                let of_it = times(number);
                prop_assert!(of_it == count / examples || of_it == count.div_ceil(examples));
            }
            prop_assert_eq!(&found, &chosen(examples, count, &mut SplitMix64::new(&[seed])));
        }

        #[test]
        fn every_beginning_has_each_set_by_its_share(
            lengths in prop::collection::vec(0_usize..30, 1..5),
        ) {
            let sets: Vec<Vec<usize>> = (lengths.iter().enumerate())
                .map(|(number, length)| vec![number; *length])
                .collect();
            let all = interleaved(&sets);
            prop_assert_eq!(all.len(), lengths.iter().sum::<usize>());
            for end in 0..=all.len() {
                for (number, length) in lengths.iter().enumerate() {
                    let there = all[..end].iter().filter(|one| **one == number).count();
                    let share = *length as f64 * end as f64 / all.len().max(1) as f64;
                    prop_assert!((there as f64 - share).abs() <= sets.len() as f64);
                }
            }
        }

        #[test]
        fn counts_keep_the_shares(
            sets in prop::collection::vec((1_usize..5000, 0.1_f64..10.0), 1..6),
        ) {
            let examples: Vec<usize> = sets.iter().map(|set| set.0).collect();
            let weights: Vec<f64> = sets.iter().map(|set| set.1).collect();
            let first = counts(&examples, &weights, FirstExhausted);
            let all = counts(&examples, &weights, AllExhausted);
            // One set is exactly whole; none is taken further, or less, than the name says.
            prop_assert!(first.iter().zip(&examples).any(|(taken, there)| taken == there));
            prop_assert!(first.iter().zip(&examples).all(|(taken, there)| taken <= there));
            prop_assert!(all.iter().zip(&examples).any(|(taken, there)| taken == there));
            prop_assert!(all.iter().zip(&examples).all(|(taken, there)| taken >= there));
            for taken in [&first, &all] {
                let total: usize = taken.iter().sum();
                let sum: f64 = weights.iter().sum();
                for (taken, weight) in taken.iter().zip(&weights) {
                    let share = total as f64 * weight / sum;
                    prop_assert!((*taken as f64 - share).abs() <= 1.0 + sets.len() as f64);
                }
            }
        }
    }
}
