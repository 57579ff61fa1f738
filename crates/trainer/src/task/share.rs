//! Evaluations and samples that several processes share out.

use std::collections::BTreeMap;
use std::iter::StepBy;

use crate::events::Evaluation;

/// The part of one of several processes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Share {
    rank: usize,
    size: usize,
}

impl Share {
    /// Of a process that measures all.
    pub const WHOLE: Self = Self { rank: 0, size: 1 };

    /// That of process `rank` of `size`.
    pub fn of(rank: usize, size: usize) -> Self {
        Self {
            rank,
            size: size.max(1),
        }
    }

    /// Whether the sample of this number is one of its.
    pub fn has(self, number: usize) -> bool {
        number % self.size == self.rank
    }

    /// Its part of some samples: every one in so many, since neighbours take alike long.
    pub fn part<T: Clone>(self, samples: &[T]) -> Vec<T> {
        let rest = samples.iter().skip(self.rank);
        let part: StepBy<_> = rest.step_by(self.size);
        part.cloned().collect()
    }
}

/// What an evaluation adds up. The sums of all shares are those of the whole.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct EvaluationSums {
    /// The loss of all units together: nats of tokens, for text.
    pub loss: f64,
    /// Units measured: tokens, for text.
    pub units: u64,
    /// Bytes of text that they stand for, where that is known.
    pub bytes: Option<u64>,
    /// The same of each model where several learn in turn, by name: loss and units.
    pub turns: BTreeMap<&'static str, (f64, u64)>,
    /// Sums of what the task measures beside the loss ([`Measures`](super::Measures)).
    pub measures: Vec<f64>,
    /// Samples in all shares.
    pub samples: u64,
    /// Whether these are all held-out data.
    pub complete: bool,
}

impl EvaluationSums {
    /// The numbers that are shown; not a number where nothing was measured.
    pub fn mean(self) -> Evaluation {
        let turns: BTreeMap<String, f64> = self
            .turns
            .iter()
            .map(|(name, (loss, units))| ((*name).to_owned(), loss / *units as f64))
            .collect();
        let loss = match turns.is_empty() {
            true => self.loss / self.units as f64,
            false => turns.values().sum::<f64>() / turns.len() as f64,
        };
        Evaluation {
            loss,
            nats_per_byte: self.bytes.map(|bytes| self.loss / bytes as f64),
            samples: self.samples,
            complete: self.complete,
            turns,
            measures: BTreeMap::new(),
        }
    }

    /// What is to be added up over all processes; counts are held exactly.
    pub(crate) fn to_numbers(&self) -> Vec<f64> {
        let mut numbers = vec![
            self.loss,
            self.units as f64,
            self.bytes.unwrap_or_default() as f64,
        ];
        let turns = self.turns.values();
        numbers.extend(turns.flat_map(|(loss, units)| [*loss, *units as f64]));
        numbers.extend(&self.measures);
        numbers
    }

    /// The same with these sums in place of its own.
    pub(crate) fn with_numbers(self, sums: &[f64]) -> Self {
        let mut sums = sums.iter().copied();
        let mut next = || sums.next().unwrap_or(f64::NAN);
        Self {
            loss: next(),
            units: next() as u64,
            bytes: {
                let bytes = next() as u64;
                self.bytes.map(|_| bytes)
            },
            turns: self
                .turns
                .into_keys()
                .map(|name| (name, (next(), next() as u64)))
                .collect(),
            measures: self.measures.iter().map(|_| next()).collect(),
            ..self
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_of_like_size_and_together_the_whole() {
        let samples: Vec<u32> = (0..11).collect();
        let parts: Vec<_> = (0..4)
            .map(|rank| Share::of(rank, 4).part(&samples))
            .collect();
        assert_eq!(parts[3], [3, 7]);
        assert_eq!(parts[0], [0, 4, 8]);
        let mut all = parts.concat();
        all.sort_unstable();
        assert_eq!(all, samples);
        assert_eq!(Share::WHOLE.part(&samples), samples);
        assert!(Share::of(2, 3).part(&[1, 2]).is_empty());
    }

    #[test]
    fn sums_of_shares_are_those_of_the_whole() {
        let share = |loss: f64, units: u64| EvaluationSums {
            loss,
            units,
            turns: BTreeMap::from([("high_noise", (loss / 2.0, units)), ("low_noise", (1.0, 2))]),
            samples: 3,
            complete: true,
            ..EvaluationSums::default()
        };
        let (one, other) = (share(8.0, 4), share(2.0, 1));
        let sums: Vec<f64> = one
            .to_numbers()
            .iter()
            .zip(other.to_numbers())
            .map(|(one, other)| one + other)
            .collect();
        let mean = one.with_numbers(&sums).mean();
        assert_eq!(mean.turns["high_noise"], 1.0);
        assert_eq!(mean.turns["low_noise"], 0.5);
        assert_eq!((mean.loss, mean.samples), (0.75, 3));
        assert_eq!(mean.nats_per_byte, None);
    }
}
