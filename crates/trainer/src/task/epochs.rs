//! Passes over the training data, and the steps that they are.

/// A task that goes through its training data pass after pass.
pub trait Epochs {
    /// Batches in the pass of this number, counted from 0; at least one.
    fn batches_in(&self, epoch: u64) -> u64;

    /// Where the next batch is: the number of its pass, and how many batches of that pass were given.
    /// After the last batch of a pass that is the start of the next.
    fn position(&self) -> (u64, u64);
}

/// The steps of a pass that has so many batches. What is left over is a step, too.
fn steps_in(batches: u64, batches_in_step: u64) -> u64 {
    batches.div_ceil(batches_in_step.max(1))
}

/// The steps of the first `count` passes, which need not be whole ones, of `batches_in_step` batches
/// each: what transformers' Trainer makes of `num_train_epochs`.
pub(crate) fn steps_of(epochs: &dyn Epochs, count: f64, batches_in_step: u64) -> u64 {
    let whole = count.floor() as u64;
    let steps = |epoch| steps_in(epochs.batches_in(epoch), batches_in_step);
    let full: u64 = (0..whole).map(steps).sum();
    full + part(steps(whole), count)
}

/// The steps that are left of the first `count` passes.
pub(crate) fn steps_left(epochs: &dyn Epochs, count: f64, batches_in_step: u64) -> u64 {
    let whole = count.floor() as u64;
    let steps = |epoch| steps_in(epochs.batches_in(epoch), batches_in_step);
    let (epoch, given) = epochs.position();
    let done = steps_in(given, batches_in_step);
    let last = part(steps(whole), count);
    match epoch.cmp(&whole) {
        std::cmp::Ordering::Greater => 0,
        std::cmp::Ordering::Equal => last.saturating_sub(done),
        std::cmp::Ordering::Less => {
            let open = epochs.batches_in(epoch).saturating_sub(given);
            let between: u64 = (epoch + 1..whole).map(steps).sum();
            steps_in(open, batches_in_step) + between + last
        }
    }
}

/// The steps of what `count` has behind its point, of a pass of `steps`.
fn part(steps: u64, count: f64) -> u64 {
    (steps as f64 * count.fract()).ceil() as u64
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    struct Data {
        batches: Vec<u64>,
        position: (u64, u64),
    }

    impl Epochs for Data {
        fn batches_in(&self, epoch: u64) -> u64 {
            self.batches[epoch as usize % self.batches.len()]
        }

        fn position(&self) -> (u64, u64) {
            self.position
        }
    }

    fn data(batches: &[u64]) -> Data {
        Data {
            batches: batches.to_vec(),
            position: (0, 0),
        }
    }

    /// Rows, rows in a batch, processes, accumulation, epochs: steps, as
    /// `Trainer.set_initial_training_values` of transformers 5.23 and accelerate's sharding count them.
    #[test]
    fn steps_are_counted_as_transformers_trainer_does() {
        for (rows, batch, ranks, accumulation, count, steps) in [
            (10, 4, 1, 1, 1.0, 3),
            (10, 4, 1, 1, 3.0, 9),
            (10, 4, 1, 2, 3.0, 6),
            (10, 4, 2, 1, 3.0, 6),
            (10, 4, 2, 2, 3.0, 3),
            (100, 8, 1, 4, 2.5, 10),
            (101, 10, 1, 1, 2.5, 28),
            (101, 10, 1, 1, 0.01, 1),
            (1, 16, 4, 8, 5.0, 5),
        ] {
            let data = data(&[u64::div_ceil(rows, batch)]);
            let found = steps_of(&data, count, ranks * accumulation);
            assert_eq!(
                found, steps,
                "{rows} / {batch} / {ranks} / {accumulation} x {count}"
            );
        }
    }

    proptest! {
        #[test]
        fn what_is_done_and_what_is_left_are_all(
            batches in prop::collection::vec(1_u64..20, 1..5), count in 0.1_f64..6.0, in_step in 1_u64..5,
        ) {
            let mut data = data(&batches);
            let all = steps_of(&data, count, in_step);
            for step in 0..=all {
                prop_assert_eq!(steps_left(&data, count, in_step), all - step);
                let (epoch, given) = data.position;
                let given = given + in_step;
                data.position = match given >= data.batches_in(epoch) {
                    true => (epoch + 1, 0),
                    false => (epoch, given),
                };
            }
        }
    }
}
