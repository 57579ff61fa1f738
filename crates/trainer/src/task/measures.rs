//! What some tasks measure beside the loss, and what they need of the model before the first step.

use std::collections::BTreeMap;

use placement::Placer;
use tch::Tensor;

use super::Share;
use crate::Error;
use crate::observer::Observer;

/// Something measured beside the loss.
pub trait Measures {
    /// How many sums there are.
    fn count(&self) -> usize;

    /// The sums of the last [`Task::loss`](super::Task::loss), `[count]`, once. They add up over batches and processes.
    fn take(&self) -> Option<Tensor>;

    /// The numbers to record for such sums, by name.
    fn named(&self, sums: &[f64]) -> BTreeMap<String, f64>;
}

/// What the model says of the data before the first step, for tasks that compare with it. The loop has it computed
/// once, and keeps it in the run folder.
pub trait Reference {
    /// How many numbers it is.
    fn numbers(&self) -> usize;

    /// The numbers of `share`'s part of the data, and 0 for all others.
    ///
    /// # Errors
    /// If the data cannot be read, or memory runs out.
    fn compute(
        &self,
        share: Share,
        placer: &mut Placer,
        observer: &mut dyn Observer,
    ) -> Result<Vec<f64>, Error>;

    /// Takes the numbers of all shares.
    ///
    /// # Errors
    /// If they are of other data.
    fn set(&mut self, numbers: &[f64]) -> Result<(), Error>;
}
