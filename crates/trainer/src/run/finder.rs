//! Finding a learning rate: `train.find_learning_rate`.
//!
//! ```text
//! loss │▔▔▔▔▔▔▔▔▔▔╲                   one step at each rate, each a little higher than the one before;
//!      │            ╲_     ╱          the weights are not kept
//!      │               ╲__╱
//!      └───────────┬──────┬──── rate
//!           suggestion    lowest
//! ```
//!
//! A tenth of the rate at which the loss was lowest is well below where training becomes unstable, and high enough to
//! learn at (Smith, "Cyclical Learning Rates for Training Neural Networks", 2017; fastai's rule).

use std::fmt::Write as _;

use super::Run;
use super::results::write_summary;
use crate::Error;
use crate::config::{
    Config, ConfigError, LrSchedulerKwargs, LrSchedulerType, SampleConfig, Strategy,
};
use crate::events::FoundRate;
use crate::observer::Observer;
use crate::summary::{Ending, Summary};

/// The lowest rate.
const LOWEST: f64 = 1e-7;
/// Steps in which the rate becomes ten times as high.
const STEPS_OF_TEN: u64 = 15;
/// Steps up to a rate of 1.
const STEPS: u64 = 7 * STEPS_OF_TEN + 1;
/// Losses on either side of a step that it is averaged with.
const REACH: usize = 3;
/// How much of the first loss it may rise by before the search ends.
const RISE: f64 = 0.5;

/// The config of the search that `config` asks for, if it does: in a folder of its own, and with nothing but training.
///
/// # Errors
/// If a run is to be resumed.
pub(super) fn search_of(config: &Config) -> Result<Option<Config>, Error> {
    if !config.train.find_learning_rate {
        return Ok(None);
    }
    if config.train.resume_from_checkpoint.is_some() {
        let reason = "a learning rate is searched for from the beginning of a run: remove `--resume` \
                      (`train.resume_from_checkpoint`), or `--find-lr` (`train.find_learning_rate`)";
        return Err(ConfigError::of(&config.name, reason.to_owned()).into());
    }
    let mut search = config.clone();
    search.name += "-lr";
    search.sample = SampleConfig {
        max_new_tokens: 0,
        ..SampleConfig::default()
    };
    let train = &mut search.train;
    train.max_steps = Some(STEPS);
    train.num_train_epochs = None;
    train.lr_scheduler_type = LrSchedulerType::Constant;
    train.lr_scheduler_kwargs = LrSchedulerKwargs::default();
    (train.min_lr, train.warmup_steps, train.warmup_ratio) = (0.0, 0, None);
    (train.eval_strategy, train.eval_steps) = (Strategy::No, 0);
    (train.save_strategy, train.save_steps) = (Strategy::No, 0);
    (train.load_best_model_at_end, train.ema_decay) = (false, None);
    (
        train.early_stopping_patience,
        train.early_stopping_threshold,
    ) = (None, None);
    train.logging_steps = 1;
    Ok(Some(search))
}

/// The learning rate of the step after `done` steps.
fn rate(done: u64) -> f64 {
    LOWEST * 10f64.powf(done as f64 / STEPS_OF_TEN as f64)
}

/// Losses of the steps so far, and the rate of each: a step that is skipped has none.
#[derive(Debug, Default)]
struct Losses(Vec<f64>, Vec<f64>);

impl Losses {
    fn add(&mut self, rate: f64, loss: f64) {
        self.0.push(loss);
        self.1.push(rate);
    }

    /// The loss of the lowest rates, at which nothing is learned yet.
    fn first(&self) -> f64 {
        mean(&self.0[..self.0.len().min(STEPS_OF_TEN as usize)])
    }

    /// Whether the loss has risen so far that higher rates tell nothing more.
    fn rose(&self) -> bool {
        let last = &self.0[self.0.len().saturating_sub(REACH)..];
        self.0.len() > STEPS_OF_TEN as usize
            && mean(last) > self.first() + RISE * self.first().abs()
    }

    /// Each as the mean of those around it.
    fn smoothed(&self) -> Vec<f64> {
        let around = |at: usize| {
            let end = self.0.len().min(at + REACH + 1);
            mean(&self.0[at.saturating_sub(REACH)..end])
        };
        (0..self.0.len()).map(around).collect()
    }

    /// The rate to train with, and why; or why none can be told.
    fn found(&self, ending: Ending, is_finite: bool) -> (Option<f64>, String) {
        if ending != Ending::Completed {
            return (None, "the search was stopped before its end".into());
        }
        let (smoothed, first) = (self.smoothed(), self.first());
        let end = match is_finite {
            true => "the highest rate that is tried",
            false => "and was not finite at higher rates",
        };
        let least = (0..smoothed.len()).min_by(|a, b| smoothed[*a].total_cmp(&smoothed[*b]));
        let Some(least) = least.filter(|_| self.0.len() > STEPS_OF_TEN as usize) else {
            let reason = format!(
                "the loss is not finite even at low rates: {} steps from a rate of {LOWEST:.0e} on had a finite one",
                self.0.len()
            );
            return (None, reason);
        };
        let off = smoothed
            .iter()
            .zip(&self.0)
            .map(|(mean, loss)| (mean - loss).powi(2));
        let off: Vec<f64> = off.take(least + 1).collect();
        let noise = mean(&off).sqrt();
        let (lowest, fall) = (smoothed[least], first - smoothed[least]);
        if fall <= 1.5 * noise || fall <= 2e-3 * first.abs() {
            let mut reason = format!(
                "the curve is flat: the loss was {first:.4} at the lowest rates and {lowest:.4} at best"
            );
            if noise > 0.0 {
                // Writing to a string cannot fail.
                let _ = write!(
                    reason,
                    ", and differs by {noise:.4} from one batch to the next anyway"
                );
            }
            return (
                None,
                reason + ". Larger batches (`train.gradient_accumulation_steps`) make it clearer",
            );
        }
        let lowest_at = self.1[least];
        if !self.rose() && least + 2 * REACH >= self.0.len() {
            let reason = format!("the loss still fell at {lowest_at:.1e}, {end}");
            return (None, reason);
        }
        let found = lowest_at / 10.0;
        // Two digits are all that it is good for.
        let unit = 10f64.powi(found.log10().floor() as i32 - 1);
        let reason = format!(
            "a tenth of {lowest_at:.1e}, where the loss was lowest ({lowest:.4}, from {first:.4})"
        );
        (Some((found / unit).round() * unit), reason)
    }
}

fn mean(numbers: &[f64]) -> f64 {
    numbers.iter().sum::<f64>() / numbers.len().max(1) as f64
}

impl Run<'_> {
    /// One step at each rate, until the loss has clearly risen, or several in a row were not finite: one alone is an
    /// overflow or an unlucky batch.
    pub(super) fn search(
        &mut self,
        observer: &mut dyn Observer,
        stop: &crate::Stop,
    ) -> Result<Ending, Error> {
        if !self.turns.is_empty() {
            let reason = "models that learn in turn have losses on scales of their own: search with one of them \
                          (`train.experts`), and then with the other";
            return Err(ConfigError::of(&self.config.name, reason.to_owned()).into());
        }
        let (mut losses, mut is_finite) = (Losses::default(), true);
        let mut ending = Ending::Completed;
        while is_finite && self.step < STEPS && !losses.rose() {
            if self.is_to_stop(stop) {
                ending = Ending::Stopped;
                break;
            }
            let learning_rate = rate(self.step);
            if let Some(skipped) = self.step(learning_rate, observer, stop)? {
                self.recorder.skipped(&skipped)?;
                observer.skipped(&skipped);
                is_finite = !self.guard.skipped(skipped);
                continue;
            }
            observer.stepped(self.step);
            self.note_asked(stop);
            losses.add(learning_rate, self.window.loss);
            self.log(learning_rate, observer)?;
        }
        let (learning_rate, reason) = losses.found(ending, is_finite);
        let groups = self.config.train.parameter_groups.iter();
        let groups = groups.filter(|group| group.learning_rate.is_some()).count();
        let found = FoundRate {
            step: self.step,
            learning_rate,
            reason: match (learning_rate, groups) {
                (None, _) | (_, 0) => reason,
                (Some(rate), _) => format!(
                    "{reason}; multiply each `train.parameter_groups[…].learning_rate` by {:.2}, too",
                    rate / self.config.train.learning_rate
                ),
            },
        };
        self.recorder.found_rate(&found)?;
        self.found_rate = Some(found);
        Ok(ending)
    }

    /// The summary and the pages of a search. Its weights are not kept.
    pub(super) fn finish_search(
        &mut self,
        ending: Ending,
        observer: &mut dyn Observer,
    ) -> Result<Summary, Error> {
        let summary = self.summary(ending);
        if self.folder.is_written_here() {
            self.recorder.draw(self.config.loss_unit())?;
            write_summary(&self.folder, &summary)?;
            self.write_page(ending, None);
            observer.finished(&summary);
        }
        self.forget_if(ending)?;
        Ok(summary)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::SplitMix64;

    /// A loss that falls around 1e-4 and rises from 1e-2 on, with noise.
    fn losses(noise: f64, falls: f64, rises: f64) -> Losses {
        let mut random = SplitMix64::new(&[1]);
        let mut losses = Losses::default();
        for step in 0..STEPS {
            let rate = rate(step);
            let loss = 3.0 - falls / (1.0 + 1e-4 / rate) + rises * (rate / 1e-2).powi(2);
            losses.add(rate, loss + noise * (random.unit() - 0.5));
            if losses.rose() {
                break;
            }
        }
        losses
    }

    #[test]
    fn a_rate_well_below_the_lowest_loss_is_found_in_noise_too() {
        for noise in [0.0, 0.1, 0.5] {
            let losses = losses(noise, 1.0, 1.0);
            assert!(
                losses.0.len() < STEPS as usize,
                "the search ends where it rises"
            );
            let (found, reason) = losses.found(Ending::Completed, true);
            let found = found.unwrap_or_else(|| panic!("{reason}"));
            assert!((3e-5..1e-3).contains(&found), "{noise}: {found}");
        }
    }

    #[test]
    fn the_rate_is_that_of_the_step_where_others_were_skipped() {
        let all = losses(0.0, 1.0, 1.0);
        let mut some = Losses::default();
        for (at, (loss, rate)) in all.0.iter().zip(&all.1).enumerate() {
            if at % 10 != 0 {
                some.add(*rate, *loss);
            }
        }
        let [all, some] = [all, some].map(|losses| losses.found(Ending::Completed, true));
        let (Some(all), Some(some)) = (all.0, some.0) else {
            panic!("{} {}", all.1, some.1)
        };
        assert!((0.7..1.5).contains(&(some / all)), "{some} {all}");
    }

    #[test]
    fn what_tells_nothing_is_refused_with_its_reason() {
        let flat = |noise| losses(noise, 0.0, 0.0).found(Ending::Completed, true);
        for noise in [0.0, 0.01, 1.0] {
            let (found, reason) = flat(noise);
            assert!(
                found.is_none() && reason.contains("flat"),
                "{noise}: {reason}"
            );
        }
        // It only rises.
        let (found, reason) = losses(0.1, 0.0, 1.0).found(Ending::Completed, true);
        assert!(found.is_none() && reason.contains("flat"), "{reason}");
        let (found, reason) = losses(0.0, 1.0, 0.0).found(Ending::Completed, true);
        assert!(found.is_none() && reason.contains("still fell"), "{reason}");
        let few = Losses(vec![3.0; 2], vec![1e-7, 2e-7]);
        let (found, reason) = few.found(Ending::Completed, false);
        assert!(found.is_none() && reason.contains("not finite"), "{reason}");
        // Not finite before it has risen.
        let mut cut = losses(0.0, 1.0, 0.0);
        cut.0.truncate(50);
        cut.1.truncate(50);
        let (found, reason) = cut.found(Ending::Completed, false);
        assert!(found.is_none() && reason.contains("still fell"), "{reason}");
        let (found, reason) = losses(0.0, 1.0, 1.0).found(Ending::Stopped, true);
        assert!(found.is_none() && reason.contains("stopped"), "{reason}");
    }
}
