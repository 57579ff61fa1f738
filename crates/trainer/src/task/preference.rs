//! Losses of answers that were preferred or judged, as TRL 1.16 computes them: DPO and its relatives, ORPO, KTO, SimPO.
//!
//! A row of a batch is a prompt with two answers ([`Answers`]). All chosen ones and then all rejected ones go through the
//! model in one pass. Rewards are β times what the log-probability of an answer has gained over the model before the
//! first step; that model is this one with its adapter switched off, or what it said of all rows is computed before the
//! first step and kept in the run folder, so that no second model is in memory.

mod answers;
mod measures;
#[cfg(test)]
mod tests;

use std::cell::RefCell;
use std::collections::BTreeMap;

use placement::Placer;
use tch::{Kind, Tensor};

use super::held_out::in_batches;
use super::sequences::{IGNORED, Sequences};
use super::{Batch, Measures, Share};
use crate::Error;
use crate::config::{Config, LossType, PreferenceConfig};
use crate::observer::Observer;
use crate::text::thousands;
use measures::Sums;
use models::adapters::AdaptersOff;
use models::language::Decoder;
use models::loss::token_log_probabilities;
use models::model::Pass;

pub(super) use answers::{Answers, Form};

/// What is learned from preferences, and the state for it.
pub(super) struct Preference {
    pub(super) config: PreferenceConfig,
    /// Whether the model before the first step is this one without its adapter.
    switches: bool,
    /// Log-probabilities of the two answers of each row by the model before the first step, of the training rows and
    /// then of those held out; empty if they are computed when they are needed.
    reference: Vec<f32>,
    /// Training rows.
    training: u64,
    /// What the last loss measured.
    measured: RefCell<Option<Tensor>>,
}

/// Which rows are meant.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Set {
    Training,
    HeldOut,
}

/// How rows are made for this run's loss, if it learns from preferences.
pub(super) fn form(config: &Config) -> Option<Form> {
    let preference = config.preference.as_ref()?;
    Some(match preference.loss_type {
        LossType::Kto => Form::Mismatched(config.train.batch() as usize),
        LossType::Orpo => Form::WholePairs,
        _ => Form::Pairs,
    })
}

/// Losses of the sequences of a batch, and what was measured.
pub(super) struct Outcome {
    /// The mean, a scalar with a gradient.
    pub(super) loss: Tensor,
    /// See [`Sums`].
    pub(super) sums: Tensor,
}

impl Preference {
    /// That of `config`, if it has one.
    pub(super) fn new(config: &Config, training: u64) -> Option<Self> {
        let adapter = config.adapter.as_ref();
        Some(Self {
            config: config.preference.clone()?,
            switches: adapter.is_some_and(crate::config::AdapterConfig::is_new_and_alone),
            reference: Vec::new(),
            training,
            measured: RefCell::new(None),
        })
    }

    fn loss_type(&self) -> LossType {
        self.config.loss_type
    }

    /// Whether a batch must stay whole: KTO estimates its divergence from all of it.
    pub(super) fn is_indivisible(&self) -> bool {
        self.loss_type() == LossType::Kto
    }

    /// Whether what the model says of all rows is computed before the first step.
    pub(super) fn precomputes(&self) -> bool {
        let wanted = self.config.precompute_ref_log_probs;
        self.loss_type().has_reference() && wanted.unwrap_or(!self.switches)
    }

    /// Some rows, with what the model before the first step says of them where that was computed.
    ///
    /// # Errors
    /// When the file cannot be read.
    pub(super) fn batch(
        &self,
        rows: &Sequences,
        set: Set,
        numbers: &[u64],
    ) -> Result<Batch, Error> {
        let (mut batch, _) = rows.batch(numbers)?;
        if !self.reference.is_empty() {
            let first = match set {
                Set::Training => 0,
                Set::HeldOut => self.training,
            };
            let at = |number: &u64| 2 * (first + number) as usize;
            let values = numbers.iter().map(|number| {
                let pair = self.reference.get(at(number)..at(number) + 2);
                pair.ok_or_else(|| Error::Internal(format!("no reference of row {number}")))
            });
            let values = values.collect::<Result<Vec<_>, Error>>()?.concat();
            let values = Tensor::f_from_slice(&values)?.f_view([-1, 2])?;
            batch.add("reference", values);
        }
        Ok(batch)
    }

    /// What the model, which has not learned yet, says of `share`'s part of all rows; 0 for the others.
    ///
    /// # Errors
    /// When the file cannot be read, or memory runs out.
    pub(super) fn precompute(
        &self,
        model: &Decoder,
        sets: [Option<&Sequences>; 2],
        (share, size): (Share, usize),
        placer: &mut Placer,
        observer: &mut dyn Observer,
    ) -> Result<Vec<f64>, Error> {
        let _no_grad = tch::no_grad_guard();
        let mut values = Vec::new();
        for rows in sets.into_iter().flatten() {
            let count = rows.rows().unwrap_or_default();
            let start = values.len();
            values.resize(start + 2 * count as usize, 0.0);
            let numbers: Vec<u64> = (0..count).collect();
            let mut done = 0;
            in_batches(&share.part(&numbers), size, |numbers| {
                let batch = placer.batch(rows.batch(numbers)?.0)?;
                let found = self.reference_of(model, &batch)?.f_to_kind(Kind::Double)?;
                let found = Vec::<f64>::try_from(&found.f_reshape([-1])?)?;
                for (number, pair) in numbers.iter().zip(found.chunks_exact(2)) {
                    let at = start + 2 * *number as usize;
                    values[at..at + 2].copy_from_slice(pair);
                }
                done += numbers.len() as u64;
                let (done, count) = (thousands(done), thousands(count));
                observer.preparing(&format!(
                    "reference log-probabilities: {done} of {count} rows"
                ));
                Ok(())
            })?;
        }
        Ok(values)
    }

    /// Takes what [`precompute`](Self::precompute) found.
    ///
    /// # Errors
    /// When it is of other rows.
    pub(super) fn set_reference(&mut self, values: &[f64], rows: u64) -> Result<(), Error> {
        if values.len() as u64 != 2 * rows {
            return Err(Error::Data(format!(
                "the run folder has reference log-probabilities of {} rows, and the data has {rows}",
                values.len() / 2
            )));
        }
        self.reference = values.iter().map(|value| *value as f32).collect();
        Ok(())
    }

    /// The log-probabilities of both answers of each row by the model before the first step, `[rows, 2]`.
    fn reference_of(&self, model: &Decoder, batch: &Batch) -> Result<Tensor, Error> {
        if let Some(reference) = batch.find("reference") {
            return Ok(reference.shallow_clone());
        }
        let _no_grad = tch::no_grad_guard();
        let _off = self.switches.then(AdaptersOff::new);
        let [tokens, targets] = both(batch)?;
        let hidden = model.hidden(&tokens, Pass::Evaluate)?;
        let nats = token_log_probabilities(model, &hidden, &targets, Pass::Evaluate)?;
        let sums = summed(&nats)?;
        Ok(sums.f_view([2, -1])?.f_tr()?)
    }

    /// The mean loss of a batch.
    ///
    /// # Errors
    /// If memory runs out, or the batch belongs to another task.
    pub(super) fn loss(&self, model: &Decoder, batch: &Batch, pass: Pass) -> Result<Tensor, Error> {
        let Outcome { loss, sums } = self.outcome(model, batch, pass)?;
        self.measured.replace(Some(sums));
        Ok(loss)
    }

    /// The mean loss of a batch, and what is measured of it.
    ///
    /// # Errors
    /// As [`Preference::loss`].
    pub(super) fn outcome(
        &self,
        model: &Decoder,
        batch: &Batch,
        pass: Pass,
    ) -> Result<Outcome, Error> {
        match self.loss_type() {
            LossType::Kto => self.of_single_answers(model, batch, pass),
            _ => self.of_pairs(model, batch, pass),
        }
    }

    fn of_pairs(&self, model: &Decoder, batch: &Batch, pass: Pass) -> Result<Outcome, Error> {
        let loss_type = self.loss_type();
        let reference = match loss_type.has_reference() {
            true => Some(self.reference_of(model, batch)?),
            false => None,
        };
        let [tokens, answers] = both(batch)?;
        let rows = tokens.size2()?.0 / 2;
        let targets = match batch.find("texts") {
            // All of what was chosen.
            Some(texts) => Tensor::f_cat(&[texts, &answers.f_narrow(0, rows, rows)?], 0)?,
            None => answers.shallow_clone(),
        };
        let (all, balance) = log_probabilities(model, batch, (&tokens, &targets), pass)?;
        let is_answer = answers.f_ne(IGNORED)?.f_to_kind(Kind::Float)?;
        let lengths = summed(&is_answer)?.f_clamp_min(1.0)?;
        let sums = summed(&all.f_mul(&is_answer)?)?;
        let beta = self.config.beta();
        let sides = |both: &Tensor| -> Result<[Tensor; 2], Error> {
            Ok([both.f_narrow(0, 0, rows)?, both.f_narrow(0, rows, rows)?])
        };
        // What is compared, and what rewards are β times.
        let (compared, gained) = match &reference {
            Some(reference) => {
                let reference = reference.f_tr()?.f_reshape([-1])?;
                let gained = sums.f_sub(&reference)?;
                match loss_type {
                    LossType::Ipo => (gained.f_div(&lengths)?, gained),
                    _ => (gained.shallow_clone(), gained),
                }
            }
            None => {
                let means = sums.f_div(&lengths)?;
                (means.shallow_clone(), means)
            }
        };
        let [chosen, rejected] = sides(&compared)?;
        let delta = chosen.f_sub(&rejected)?;
        let logistic = |logits: &Tensor| -> Result<[Tensor; 2], Error> {
            Ok([
                logits.f_log_sigmoid()?.f_neg()?,
                logits.f_neg()?.f_log_sigmoid()?.f_neg()?,
            ])
        };
        let smoothing = self.config.label_smoothing;
        let mut extras = Vec::new();
        let losses = match loss_type {
            LossType::Sigmoid => delta.f_mul_scalar(beta)?.f_log_sigmoid()?.f_neg()?,
            LossType::Hinge => delta.f_mul_scalar(-beta)?.f_add_scalar(1.0)?.f_relu()?,
            LossType::Ipo => delta.f_sub_scalar(0.5 / beta)?.f_square()?,
            LossType::Robust => {
                let [right, wrong] = logistic(&delta.f_mul_scalar(beta)?)?;
                let difference = right
                    .f_mul_scalar(1.0 - smoothing)?
                    .f_sub(&wrong.f_mul_scalar(smoothing)?)?;
                difference.f_div_scalar(1.0 - 2.0 * smoothing)?
            }
            LossType::Simpo => {
                let logits = delta.f_mul_scalar(beta)?;
                let [right, wrong] = logistic(&logits.f_sub_scalar(self.config.simpo_gamma)?)?;
                right
                    .f_mul_scalar(1.0 - smoothing)?
                    .f_add(&wrong.f_mul_scalar(smoothing)?)?
            }
            LossType::Orpo => {
                let odds = delta.f_sub(&log1mexp(&chosen)?.f_sub(&log1mexp(&rejected)?)?)?;
                let ratio = odds.f_log_sigmoid()?;
                extras.extend([ratio.detach(), odds.detach()]);
                ratio.f_mul_scalar(-beta)?
            }
            LossType::Kto => return Err(Error::Internal("KTO of pairs".into())),
        };
        let mut loss = losses.f_mean(Kind::Float)?;
        let weight = match loss_type {
            LossType::Orpo => 1.0,
            LossType::Simpo => self.config.cpo_alpha,
            _ => 0.0,
        };
        if weight > 0.0 {
            let nats = sides(&all)?[0].f_sum(Kind::Float)?.f_neg()?;
            // The mean of all tokens that were chosen, in a piece of a batch by its share of them.
            let tokens = batch.get("chosen_tokens")?.f_sum(Kind::Float)?;
            let nats = nats.f_div(&tokens)?;
            extras.insert(0, nats.detach().f_expand([rows], false)?);
            loss = loss.f_add(&nats.f_mul_scalar(weight)?)?;
        }
        let rewards = sides(&gained.detach().f_mul_scalar(beta)?)?;
        let shown = match loss_type.has_reference() {
            true => sides(&sums.detach())?,
            false => sides(&gained.detach())?,
        };
        Ok(Outcome {
            loss: with_balance(loss, balance)?,
            sums: Sums::of_pairs(&rewards, &shown, &extras)?,
        })
    }

    fn of_single_answers(
        &self,
        model: &Decoder,
        batch: &Batch,
        pass: Pass,
    ) -> Result<Outcome, Error> {
        let reference = self.reference_of(model, batch)?;
        let [tokens, targets] = both(batch)?;
        let rows = tokens.size2()?.0 / 2;
        let side = |both: &Tensor, side: i64| both.f_narrow(0, side * rows, rows);
        let divergence = {
            let _no_grad = tch::no_grad_guard();
            let hidden = model.hidden(&side(&tokens, 1)?, Pass::Evaluate)?;
            let targets = side(&targets, 1)?;
            let nats = token_log_probabilities(model, &hidden, &targets, Pass::Evaluate)?;
            let gained = summed(&nats)?.f_sub(&reference.f_select(1, 1)?)?;
            gained.f_mean(Kind::Float)?.f_clamp_min(0.0)?
        };
        let own = (&side(&tokens, 0)?, &side(&targets, 0)?);
        let (nats, balance) = log_probabilities(model, batch, own, pass)?;
        let sums = summed(&nats)?;
        let gained = sums.f_sub(&reference.f_select(1, 0)?)?;
        let desirable = batch.get("desirable")?;
        let undesirable = desirable.f_neg()?.f_add_scalar(1.0)?;
        let beta = self.config.beta();
        // Desirable answers are to be above the divergence, the others below it.
        let sign = desirable.f_sub(&undesirable)?;
        let away = gained.f_sub(&divergence)?.f_mul(&sign)?;
        let losses = away
            .f_mul_scalar(beta)?
            .f_sigmoid()?
            .f_neg()?
            .f_add_scalar(1.0)?;
        let weights = desirable
            .f_mul_scalar(self.config.desirable_weight)?
            .f_add(&undesirable.f_mul_scalar(self.config.undesirable_weight)?)?;
        let loss = losses.f_mul(&weights)?.f_mean(Kind::Float)?;
        let rewards = gained.detach().f_mul_scalar(beta)?;
        let judged = [desirable, &undesirable];
        Ok(Outcome {
            loss: with_balance(loss, balance)?,
            sums: Sums::of_single(judged, &rewards, &sums.detach(), &divergence)?,
        })
    }
}

impl Measures for Preference {
    fn count(&self) -> usize {
        measures::COUNT
    }

    fn take(&self) -> Option<Tensor> {
        self.measured.borrow_mut().take()
    }

    fn named(&self, sums: &[f64]) -> BTreeMap<String, f64> {
        measures::named(&self.config, sums)
    }
}

/// Tokens and targets of a batch, all first answers and then all second ones: `[2 rows, longest]`.
fn both(batch: &Batch) -> Result<[Tensor; 2], Error> {
    let one = |name: &str| -> Result<Tensor, Error> {
        let pairs = batch.get(name)?;
        let width = pairs.size().last().copied().unwrap_or(0);
        Ok(pairs.f_transpose(0, 1)?.f_reshape([-1, width])?)
    };
    Ok([one("tokens")?, one("targets")?])
}

/// The log-probability of each target, 0 where there is none; and the balance of routers, if it is learned.
fn log_probabilities(
    model: &Decoder,
    batch: &Batch,
    (tokens, targets): (&Tensor, &Tensor),
    pass: Pass,
) -> Result<(Tensor, Option<Tensor>), Error> {
    let real = match batch.find("real") {
        Some(real) => {
            let width = real.size().last().copied().unwrap_or(0);
            let real = real.f_transpose(0, 1)?.f_reshape([-1, width])?;
            Some(real.f_narrow(0, 0, tokens.size2()?.0)?)
        }
        None => None,
    };
    let (hidden, balance) = model.learned(tokens, (None, real.as_ref()), pass)?;
    let nats = token_log_probabilities(model, &hidden, targets, pass)?;
    Ok((nats, balance))
}

fn summed(rows: &Tensor) -> Result<Tensor, Error> {
    Ok(rows.f_sum_dim_intlist(1, false, Kind::Float)?)
}

fn with_balance(loss: Tensor, balance: Option<Tensor>) -> Result<Tensor, Error> {
    match balance {
        Some(balance) => Ok(loss.f_add(&balance)?),
        None => Ok(loss),
    }
}

/// `log(1 − eˣ)`, in the form that is exact on its side of −ln 2. Neither form sees the other's numbers, for which its
/// gradient is not finite; nor a probability of one, which has no odds.
fn log1mexp(x: &Tensor) -> Result<Tensor, Error> {
    let border = -std::f64::consts::LN_2;
    let far = x.f_clamp_max(border)?.f_exp()?.f_neg()?.f_log1p()?;
    let near = x.f_clamp(border, -f64::from(f32::EPSILON))?;
    let near = near.f_expm1()?.f_neg()?.f_log()?;
    Ok(far.f_where_self(&x.f_lt(border)?, &near)?)
}
