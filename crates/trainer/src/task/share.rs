//! An evaluation that several processes share out.

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

    /// Its part of some samples: every one in so many, since neighbours take alike long.
    pub fn part<T: Clone>(self, samples: &[T]) -> Vec<T> {
        let rest = samples.iter().skip(self.rank);
        let part: StepBy<_> = rest.step_by(self.size);
        part.cloned().collect()
    }
}

/// What an evaluation adds up. The sums of all shares are those of the whole.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct EvaluationSums {
    /// The loss of all tokens together.
    pub nats: f64,
    /// Tokens measured.
    pub tokens: u64,
    /// Bytes of text that they stand for, where that is known.
    pub bytes: Option<u64>,
    /// Samples in all shares.
    pub samples: u64,
    /// Whether these are all held-out data.
    pub complete: bool,
}

impl EvaluationSums {
    /// The numbers that are shown; not a number where there was no token.
    pub fn mean(self) -> Evaluation {
        Evaluation {
            loss: self.nats / self.tokens as f64,
            nats_per_byte: self.bytes.map(|bytes| self.nats / bytes as f64),
            samples: self.samples,
            complete: self.complete,
            ..Evaluation::default()
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
}
