//! Which samples make up which batch.
//!
//! The shuffle is fully specified (splitmix64 and Fisher–Yates), because a run that is resumed with a later
//! release has to see the same order.

use std::sync::{Arc, Mutex, PoisonError};

use super::LoaderOptions;

/// Which samples make up which batch, like PyTorch's batch sampler. Batches are numbered from zero over all
/// epochs. Each depends only on its number, so it does not matter which worker prepares it, or when.
pub trait BatchSampler: Send + Sync + 'static {
    /// Batches in one epoch; at least one.
    fn batches_per_epoch(&self) -> u64;

    /// The samples of a batch, as indices into the source.
    fn samples_of(&self, number: u64) -> Vec<usize>;

    /// The epoch of a batch and its index within the epoch, both from zero.
    fn place_of(&self, number: u64) -> (u64, u64) {
        let per_epoch = self.batches_per_epoch().max(1);
        (number / per_epoch, number % per_epoch)
    }

    /// The seed that [`Source::sample`](super::Source::sample) gets for one sample of one epoch.
    fn draw(&self, epoch: u64, sample: usize) -> u64 {
        draw(0, epoch, sample)
    }
}

impl<O: BatchSampler> BatchSampler for Arc<O> {
    fn batches_per_epoch(&self) -> u64 {
        O::batches_per_epoch(self)
    }

    fn samples_of(&self, number: u64) -> Vec<usize> {
        O::samples_of(self, number)
    }

    fn place_of(&self, number: u64) -> (u64, u64) {
        O::place_of(self, number)
    }

    fn draw(&self, epoch: u64, sample: usize) -> u64 {
        O::draw(self, epoch, sample)
    }
}

/// A random number for one sample of one epoch.
fn draw(seed: u64, epoch: u64, sample: usize) -> u64 {
    let mut random = Random::new(seed, epoch);
    random.state = random
        .state
        .wrapping_add(random.next() ^ (sample as u64).rotate_left(32));
    random.next()
}

/// Batches of equal size, in the order of the source or shuffled anew in every epoch, as [`LoaderOptions`]
/// say.
pub struct Shuffle {
    samples: usize,
    batch_size: usize,
    drop_last: bool,
    shuffle: Option<u64>,
    /// The permutations of the last epochs requested; workers are at most two epochs apart.
    cache: Mutex<Vec<(u64, Arc<Vec<usize>>)>>,
}

impl Shuffle {
    pub(super) fn new(samples: usize, options: &LoaderOptions) -> Self {
        Self {
            samples,
            batch_size: options.batch_size,
            drop_last: options.drop_last,
            shuffle: options.shuffle,
            cache: Mutex::new(Vec::new()),
        }
    }

    /// The number of samples the order was made for; the source may report a different one later.
    pub(super) fn samples(&self) -> usize {
        self.samples
    }

    fn permutation(&self, seed: u64, epoch: u64) -> Arc<Vec<usize>> {
        let mut cache = self.cache.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, known)) = cache.iter().find(|(cached, _)| *cached == epoch) {
            return Arc::clone(known);
        }
        let permutation = Arc::new(shuffled(self.samples, Random::new(seed, epoch)));
        if cache.len() == 2 {
            cache.remove(0);
        }
        cache.push((epoch, Arc::clone(&permutation)));
        permutation
    }
}

impl BatchSampler for Shuffle {
    fn batches_per_epoch(&self) -> u64 {
        let batches = match self.drop_last {
            true => self.samples / self.batch_size,
            false => self.samples.div_ceil(self.batch_size),
        };
        batches as u64
    }

    fn samples_of(&self, number: u64) -> Vec<usize> {
        let (epoch, number) = self.place_of(number);
        let start = number as usize * self.batch_size;
        let range = start..self.samples.min(start + self.batch_size);
        match self.shuffle {
            None => range.collect(),
            Some(seed) => self.permutation(seed, epoch)[range].to_vec(),
        }
    }

    fn draw(&self, epoch: u64, sample: usize) -> u64 {
        draw(self.shuffle.unwrap_or(0), epoch, sample)
    }
}

fn shuffled(count: usize, mut random: Random) -> Vec<usize> {
    let mut order: Vec<usize> = (0..count).collect();
    for last in (1..count).rev() {
        order.swap(last, random.below(last as u64 + 1) as usize);
    }
    order
}

/// splitmix64 (Steele, Lea and Flood, OOPSLA 2014).
struct Random {
    state: u64,
}

impl Random {
    fn new(seed: u64, epoch: u64) -> Self {
        let mut random = Self { state: seed };
        // Epochs of one seed must not be shifted copies of each other.
        let seed = random.next();
        Self {
            state: seed ^ epoch.wrapping_mul(0xd1b5_4a32_d192_ed03),
        }
    }

    fn next(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut value = self.state;
        value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        value ^ (value >> 31)
    }

    /// Uniform below `bound`, by multiplication; the bias is below 2⁻³² for any source
    /// of fewer than four billion samples.
    fn below(&mut self, bound: u64) -> u64 {
        ((u128::from(self.next()) * u128::from(bound)) >> 64) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn order(samples: usize, batch_size: usize, shuffle: Option<u64>) -> Shuffle {
        let options = LoaderOptions {
            batch_size,
            shuffle,
            ..LoaderOptions::default()
        };
        Shuffle::new(samples, &options)
    }

    fn epoch(order: &Shuffle, epoch: u64) -> Vec<usize> {
        let per_epoch = order.batches_per_epoch();
        (epoch * per_epoch..(epoch + 1) * per_epoch)
            .flat_map(|n| order.samples_of(n))
            .collect()
    }

    #[test]
    fn each_epoch_has_every_sample_once_in_another_order() {
        let order = order(100, 10, Some(7));
        let (first, second) = (epoch(&order, 0), epoch(&order, 1));
        assert_ne!(first, second);
        for mut samples in [first, second] {
            samples.sort_unstable();
            assert!(samples.into_iter().eq(0..100));
        }
    }

    #[test]
    fn the_order_is_fixed_for_good() {
        // A change here breaks resuming runs that were started before it.
        let order = order(8, 8, Some(42));
        assert_eq!(epoch(&order, 0), [1, 3, 4, 5, 0, 7, 6, 2]);
    }

    #[test]
    fn without_a_seed_the_order_is_that_of_the_source() {
        assert!(epoch(&order(6, 2, None), 3).into_iter().eq(0..6));
    }

    #[test]
    fn a_short_last_batch_is_left_out() {
        assert_eq!(order(7, 3, None).batches_per_epoch(), 2);
    }

    #[test]
    fn a_short_last_batch_comes_when_it_is_asked_for() {
        let options = LoaderOptions {
            batch_size: 3,
            drop_last: false,
            shuffle: Some(1),
            ..LoaderOptions::default()
        };
        let order = Shuffle::new(7, &options);
        let sizes: Vec<usize> = (0..6).map(|n| order.samples_of(n).len()).collect();
        assert_eq!(sizes, [3, 3, 1, 3, 3, 1]);
        assert_eq!(order.place_of(5), (1, 2));
        let mut all = epoch(&order, 1);
        all.sort_unstable();
        assert!(all.into_iter().eq(0..7));
    }

    #[test]
    fn draws_differ_between_samples_and_between_epochs() {
        let order = order(100, 10, Some(7));
        let mut draws: Vec<u64> = (0..4)
            .flat_map(|epoch| (0..100).map(move |s| (epoch, s)))
            .map(|(e, s)| order.draw(e, s))
            .collect();
        draws.sort_unstable();
        draws.dedup();
        assert_eq!(draws.len(), 400);
    }
}
