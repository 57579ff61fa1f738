//! How many samples are in a pass where `train.per_device_train_batch_size` is `auto`.
//!
//! The samples of a step follow from the config, whatever the machine. Memory decides in how many passes they are computed:
//! the sizes that come into question are those to which a step shrinks that runs out of memory ([`placement::oom`]), and the
//! largest is taken for which the estimate has room.

use std::fmt;
use std::num::NonZeroU32;

use placement::Bytes;
use placement::oom::BatchShape;
use placement::plan::Memory;

use crate::Error;
use crate::config::{BatchSize, Config, TrainConfig};

/// How the samples of a step are divided into passes, and why.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PassSize {
    /// Samples in a pass.
    pub rows: u32,
    /// Samples in a step of this process.
    pub samples: u32,
    /// Why, as the end of a line.
    pub reason: String,
}

impl PassSize {
    /// The choice for `config`, `None` if it makes its own. `need` tells what a step of another config, which says the size of
    /// its passes, has on the device at once; `None` if it cannot be planned within the memory. At most `room` is used.
    ///
    /// # Errors
    /// Those of `need`, unless a smaller pass may do.
    pub(crate) fn choose(
        config: &Config,
        room: Bytes,
        mut need: impl FnMut(&Config) -> Result<Option<Bytes>, Error>,
    ) -> Result<Option<Self>, Error> {
        let BatchSize::Auto(so_far) = config.train.per_device_train_batch_size else {
            return Ok(None);
        };
        let samples = config.train.batch();
        let chosen = |rows, reason: &str| {
            let reason = reason.to_owned();
            Ok(Some(Self {
                rows,
                samples,
                reason,
            }))
        };
        let sizes = shapes(&config.train).map(|shape| shape.micro_batch.get());
        if let Some(rows) = so_far.filter(|so_far| sizes.clone().any(|rows| rows == *so_far)) {
            return chosen(rows, ", as in the checkpoint");
        }
        let mut refused = String::new();
        for rows in sizes {
            // Nothing is smaller.
            if rows == 1 {
                break;
            }
            match need(&config.in_passes_of(rows))? {
                Some(need) if need <= room => return chosen(rows, &refused),
                Some(need) => {
                    refused = format!(": {rows} would need {need} of memory, and there are {room}");
                }
                None => refused = format!(": memory has no room for {rows}"),
            }
        }
        chosen(1, &refused)
    }

    /// Samples in a pass of a run on `config`, for which this was chosen.
    pub(crate) fn rows(chosen: Option<&Self>, config: &Config) -> u32 {
        chosen.map_or(config.train.batch(), |chosen| chosen.rows)
    }

    /// The same where another process has room for no more than `rows`.
    pub(crate) fn at_most(self, rows: u32) -> Self {
        match rows < self.rows {
            true => Self {
                rows,
                reason: ": another process has no room for more".into(),
                ..self
            },
            false => self,
        }
    }
}

impl fmt::Display for PassSize {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            rows,
            samples,
            reason,
        } = self;
        match (rows, samples) {
            (_, 1) => out.write_str(
                "a step has one sample: `train.gradient_accumulation_steps` says how many, beside `auto`",
            ),
            (rows, samples) if rows == samples => {
                write!(out, "all {samples} samples of a step in one pass{reason}")
            }
            _ => write!(
                out,
                "passes of {rows} of the {samples} samples of a step{reason}"
            ),
        }
    }
}

/// The shape of a step with passes of whole batches.
pub(crate) fn whole(train: &TrainConfig) -> BatchShape {
    let at_least_one = |number| NonZeroU32::new(number).unwrap_or(NonZeroU32::MIN);
    BatchShape {
        micro_batch: at_least_one(train.batch()),
        accumulation: at_least_one(train.batches()),
    }
}

/// That, and all smaller ones.
pub(crate) fn shapes(train: &TrainConfig) -> impl Iterator<Item = BatchShape> + Clone {
    std::iter::successors(Some(whole(train)), |shape| shape.smaller())
}

/// What passes may use of `memory`: a plan leaves what it must, and without one a twentieth stays free, since what is estimated is
/// the tensors alone.
pub(crate) fn room(config: &Config, memory: Memory) -> Bytes {
    let Bytes(device) = memory.on_device();
    match config.model.offload_options() {
        Some(_) => Bytes(device),
        None => Bytes(device - device / 20),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(accumulation: u32, so_far: Option<u32>) -> Config {
        let mut config = Config::default();
        config.train.per_device_train_batch_size = BatchSize::Auto(so_far);
        config.train.gradient_accumulation_steps = accumulation;
        config
    }

    /// With ten bytes of weights and two for each sample.
    fn choice(config: &Config, room: u64) -> (u32, String) {
        let mut needs = |config: &Config| {
            let samples = config.train.batch() * config.train.batches();
            assert_eq!(samples, 12, "a step stays as it is");
            Ok(Some(Bytes(10 + 2 * u64::from(config.train.batch()))))
        };
        let size = PassSize::choose(config, Bytes(room), &mut needs);
        let size = size.unwrap().unwrap();
        (size.rows, size.to_string())
    }

    #[test]
    fn the_largest_equal_pass_for_which_there_is_room_is_taken_and_why_is_said() {
        let config = config(12, None);
        for (room, rows, said) in [
            (34, 12, "all 12 samples of a step in one pass"),
            (
                33,
                6,
                "passes of 6 of the 12 samples of a step: 12 would need 34 bytes of memory, and there are 33 bytes",
            ),
            (
                18,
                4,
                "passes of 4 of the 12 samples of a step: 6 would need 22 bytes of memory, and there are 18 bytes",
            ),
            // It is tried.
            (
                0,
                1,
                "passes of 1 of the 12 samples of a step: 2 would need 14 bytes of memory, and there are 0 bytes",
            ),
        ] {
            assert_eq!(choice(&config, room), (rows, said.to_owned()));
        }
    }

    #[test]
    fn a_run_that_goes_on_keeps_its_passes_if_they_divide_its_steps() {
        let said = "passes of 3 of the 12 samples of a step, as in the checkpoint";
        assert_eq!(choice(&config(12, Some(3)), 34), (3, said.to_owned()));
        assert_eq!(choice(&config(12, Some(5)), 34).0, 12);
    }

    #[test]
    fn a_plan_that_is_refused_means_smaller_passes_and_a_number_in_the_config_none() {
        let mut tried = Vec::new();
        let mut needs = |config: &Config| {
            tried.push(config.train.batch());
            Ok((config.train.batch() < 4).then_some(Bytes(1)))
        };
        let size = PassSize::choose(&config(8, None), Bytes(1), &mut needs).unwrap();
        assert_eq!(
            size.unwrap().to_string(),
            "passes of 2 of the 8 samples of a step: memory has no room for 4"
        );
        assert_eq!(tried, [8, 4, 2]);
        let fixed = Config::default();
        let size = PassSize::choose(&fixed, Bytes(1), |_| Err(Error::Data("asked".into())));
        assert_eq!(size.unwrap(), None);
    }
}
