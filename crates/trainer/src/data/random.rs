//! A random number generator whose sequence is part of the checkpoint format.
//!
//! A resumed run must use the same data order as an uninterrupted one, even with a newer version of this program;
//! so the algorithm is defined here rather than taken from a library that
//! may change it.

/// SplitMix64 (Steele, Lea and Flood, "Fast splittable pseudorandom number generators", 2014).
#[derive(Debug, Clone)]
pub(crate) struct SplitMix64 {
    state: u64,
}

impl SplitMix64 {
    /// A generator for one purpose: the same `words` give the same sequence.
    pub(crate) fn new(words: &[u64]) -> Self {
        let mut generator = Self { state: 0 };
        for word in words {
            generator.state ^= *word;
            generator.state = generator.next();
        }
        generator
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut word = self.state;
        word = (word ^ (word >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        word = (word ^ (word >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        word ^ (word >> 31)
    }

    /// A number below `bound`, without bias (Lemire, "Fast random integer generation", 2019).
    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        if bound == 0 {
            return 0;
        }
        loop {
            let product = u128::from(self.next()) * u128::from(bound);
            let low = product as u64;
            if low >= bound || low >= bound.wrapping_neg() % bound {
                return (product >> 64) as u64;
            }
        }
    }

    /// A number in `[0, 1)`.
    pub(crate) fn unit(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1u64 << 53) as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn follows_the_published_sequence() {
        // First outputs for seed 1234567, from the reference implementation's test vector.
        let mut generator = SplitMix64 { state: 1_234_567 };
        let got: Vec<u64> = (0..3).map(|_| generator.next()).collect();
        let want = [
            6_457_827_717_110_365_317,
            3_203_168_211_198_807_973,
            9_817_491_932_198_370_423,
        ];
        assert_eq!(got, want);
    }

    #[test]
    fn below_reaches_every_value_and_no_other() {
        let mut generator = SplitMix64::new(&[7]);
        let mut seen = [0; 5];
        for _ in 0..5000 {
            seen[generator.below(5) as usize] += 1;
        }
        assert!(
            seen.iter().all(|count| (850..1150).contains(count)),
            "{seen:?}"
        );
    }
}
